//! A file server: the file of a number holds its prime factors.

use std::sync::Arc;

use cellway::fs::{
    Answer, FileServer, FsError, Info, Kind, Node, OpenFile, OpenMode, Qid, kind, now, read_from,
};

/// A number, or `None`: the directory of all.
#[derive(Clone)]
pub(crate) struct Factors(pub(crate) Option<u64>);

impl Factors {
    fn text(&self) -> String {
        let (mut rest, mut divisor, mut text) = (self.0.unwrap_or(1), 2, String::new());
        while rest > 1 {
            if rest.is_multiple_of(divisor) {
                rest /= divisor;
                text += &format!("{divisor} ");
            } else {
                divisor = if divisor * divisor > rest { rest } else { divisor + 1 };
            }
        }
        text + "\n"
    }
}

impl FileServer for Factors {
    fn attach<'a>(&'a self, _user: &'a str, _tree: &'a str) -> Answer<'a, Arc<dyn Node>> {
        now(Ok(Arc::new(self.clone())))
    }
}

impl Node for Factors {
    fn stat(&self) -> Answer<'_, Info> {
        now(Ok(match self.0 {
            None => Info::made_up("/", (0, 0), kind::DIRECTORY | 0o555, 0),
            Some(number) => {
                Info::made_up(&number.to_string(), (number, 0), 0o444, self.text().len() as u64)
            }
        }))
    }

    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        let number = name.parse().ok().filter(|&number: &u32| self.0.is_none() && number > 0);
        now(match number {
            Some(number) => Ok(Arc::new(Self(Some(number.into())))),
            None => Err(FsError::new(Kind::NotFound, name)),
        })
    }

    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        now(mode.only_reads("factors").map(|()| Arc::new(self.clone()) as Arc<dyn OpenFile>))
    }
}

impl OpenFile for Factors {
    fn qid(&self) -> Qid {
        Qid { path: self.0.unwrap_or(0), ..Qid::default() }
    }

    fn read<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> Answer<'a, usize> {
        now(Ok(read_from(self.text().as_bytes(), offset, into)))
    }
}
