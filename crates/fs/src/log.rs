//! `#l`: the log, which stands for `printf` (CellFS, Table 1).
//!
//! One file, `log`: each write is appended as it is, and shown by the sink that the
//! server was made with, mostly standard error. Who reads it sees the last bytes
//! that were written; of earlier ones only that they are gone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use ninep::{Qid, kind};

use crate::error::{FsError, Kind};
use crate::name::only_tree;
use crate::server::{Answer, FileServer, Info, Node, OpenFile, OpenMode, now};
use crate::sync::lock;

/// What each write is shown to.
type Sink = Box<dyn Fn(&[u8]) + Send + Sync>;

/// The log of a job; clones are the same one.
#[derive(Clone)]
pub struct LogServer(Arc<Log>);

struct Log {
    sink: Sink,
    kept_bytes_max: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    bytes: VecDeque<u8>,
    /// Offset of the first byte that is kept.
    from: u64,
    writes: u32,
}

/// Which of the two files.
const ROOT: u64 = 0;
const LOG: u64 = 1;
const NAME: &str = "log";

impl LogServer {
    /// A log that keeps the last `kept_bytes_max` bytes for readers, and shows each write to `sink`.
    #[must_use]
    pub fn new(kept_bytes_max: usize, sink: impl Fn(&[u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Log { sink: Box::new(sink), kept_bytes_max, kept: Mutex::default() }))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        lock(&self.0.kept)
    }

    fn info(&self, path: u64) -> Info {
        let kept = self.kept();
        let (name, mode, length) = match path {
            ROOT => ("/", kind::DIRECTORY | 0o555, 0),
            _ => (NAME, kind::APPEND | 0o644, kept.from + kept.bytes.len() as u64),
        };
        Info::made_up(name, (path, kept.writes), mode, length)
    }

    /// Appends what a program has to say.
    pub fn say(&self, text: &[u8]) {
        let mut kept = self.kept();
        kept.writes = kept.writes.wrapping_add(1);
        kept.bytes.extend(text);
        let over = kept.bytes.len().saturating_sub(self.0.kept_bytes_max);
        kept.bytes.drain(..over);
        kept.from += over as u64;
        drop(kept);
        (self.0.sink)(text);
    }

    /// Of what follows `base`.
    fn read(&self, base: u64, offset: u64, into: &mut [u8]) -> Result<usize, FsError> {
        let kept = self.kept();
        let Some(skip) = base.saturating_add(offset).checked_sub(kept.from) else {
            let what = format!("what was logged before offset {} is not kept", kept.from);
            return Err(FsError::because(Kind::TooLarge, NAME, what));
        };
        let bytes = kept.bytes.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX));
        let copied = into.iter_mut().zip(bytes).map(|(to, byte)| *to = *byte);
        Ok(copied.count())
    }
}

impl FileServer for LogServer {
    fn attach<'a>(&'a self, _user: &'a str, tree: &'a str) -> Answer<'a, Arc<dyn Node>> {
        let root = || Part { log: self.clone(), path: ROOT };
        now(only_tree(tree).map(|()| Arc::new(root()) as Arc<dyn Node>))
    }
}

/// The root or the log in it.
struct Part {
    log: LogServer,
    path: u64,
}

impl Node for Part {
    fn stat(&self) -> Answer<'_, Info> {
        now(Ok(self.log.info(self.path)))
    }

    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        now(match (self.path, name) {
            (ROOT, NAME) => Ok(Arc::new(Self { log: self.log.clone(), path: LOG })),
            (ROOT, _) => Err(FsError::new(Kind::NotFound, name)),
            _ => Err(FsError::new(Kind::NotDirectory, name)),
        })
    }

    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        // What was logged stays logged: there is nothing to cut.
        let refused = mode.execute || (self.path == ROOT && (mode.write || mode.truncate));
        now(if refused {
            Err(FsError::new(Kind::Permission, NAME))
        } else {
            let (log, base) = (self.log.clone(), self.log.kept().from);
            Ok(Arc::new(OpenPart { log, path: self.path, mode, base }))
        })
    }
}

/// The root or the log, open.
struct OpenPart {
    log: LogServer,
    path: u64,
    mode: OpenMode,
    /// The first byte that was kept when it was opened: its offset 0.
    base: u64,
}

impl OpenFile for OpenPart {
    fn qid(&self) -> Qid {
        self.log.info(self.path).qid
    }

    fn read<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> Answer<'a, usize> {
        now(match self.path {
            LOG if self.mode.read => self.log.read(self.base, offset, into),
            LOG => Err(FsError::new(Kind::BadMode, NAME)),
            _ => Err(FsError::new(Kind::IsDirectory, "#l")),
        })
    }

    fn write<'a>(&'a self, _offset: u64, data: &'a [u8]) -> Answer<'a, usize> {
        if self.path != LOG || !self.mode.write {
            return now(Err(FsError::new(Kind::BadMode, NAME)));
        }
        self.log.say(data);
        now(Ok(data.len()))
    }

    fn entries(&self, from: u64, max: usize) -> Answer<'_, Vec<Info>> {
        now(match self.path {
            ROOT if from == 0 && max > 0 => Ok(vec![self.log.info(LOG)]),
            ROOT => Ok(Vec::new()),
            _ => Err(FsError::new(Kind::NotDirectory, NAME)),
        })
    }
}

#[cfg(test)]
mod tests {
    use pollster::block_on;

    use super::*;

    #[test]
    fn writes_are_appended_and_the_last_are_kept() {
        let shown = Arc::<Mutex<Vec<u8>>>::default();
        let sink = shown.clone();
        let server = LogServer::new(8, move |text| sink.lock().unwrap().extend(text));
        let root = block_on(server.attach("", "")).unwrap();
        let node = block_on(root.walk("log")).unwrap();
        let open = block_on(node.open(OpenMode { read: true, write: true, ..OpenMode::default() }));
        let open = open.unwrap();
        let before = open.qid();
        for text in ["hello ", "world", "\n"] {
            assert_eq!(block_on(open.write(1000, text.as_bytes())).unwrap(), text.len());
        }
        assert_ne!(open.qid().version, before.version);
        assert_eq!(*shown.lock().unwrap(), b"hello world\n");
        assert_eq!(block_on(node.stat()).unwrap().length, 12);
        let mut into = [0; 20];
        assert_eq!(block_on(open.read(4, &mut into)).unwrap(), 8);
        assert_eq!(&into[..8], b"o world\n");
        assert_eq!(block_on(open.read(12, &mut into)).unwrap(), 0);
        let again = block_on(node.open(OpenMode { read: true, ..OpenMode::default() })).unwrap();
        assert_eq!(block_on(again.read(0, &mut into)).unwrap(), 8);
        let gone = block_on(open.read(3, &mut into)).unwrap_err();
        assert_eq!(gone.to_string(), "log: what was logged before offset 4 is not kept");
    }
}
