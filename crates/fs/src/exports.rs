//! Several trees as one.

use std::sync::Arc;

use ninep::{Qid, kind};

use crate::error::{FsError, Kind};
use crate::memory::FileMemory;
use crate::name::checked_user;
use crate::server::{Answer, Change, FileServer, Info, Node, OpenFile, OpenMode, now};

/// Trees of one server, at most: their files' paths must stay apart.
const TREES_MAX: usize = 255;

/// Trees as directories of a root; clients may also attach to one of them by its name.
#[derive(Clone, Default)]
pub struct Exports(Arc<Vec<Export>>);

#[derive(Clone)]
struct Export {
    name: String,
    server: Arc<dyn FileServer>,
    number: u64,
}

impl Exports {
    /// The trees, each with its name.
    ///
    /// # Errors
    /// Names that are none, or equal; more than 255.
    pub fn new(trees: Vec<(String, Arc<dyn FileServer>)>) -> Result<Self, FsError> {
        if trees.len() > TREES_MAX {
            let what = format!("{} are more than {TREES_MAX}; serve some elsewhere", trees.len());
            return Err(FsError::because(Kind::TooLarge, "exports", what));
        }
        let mut exports: Vec<Export> = Vec::new();
        for ((name, server), number) in trees.into_iter().zip(1..) {
            if ["", ".", ".."].contains(&&*name) || name.contains(['/', '\0']) {
                let what = "no name for a directory; take one without /, and not . or ..";
                return Err(FsError::because(Kind::BadName, name, what));
            }
            if exports.iter().any(|export| export.name == name) {
                let what = "two exports have that name; give one another";
                return Err(FsError::because(Kind::Exists, name, what));
            }
            exports.push(Export { name, server, number });
        }
        Ok(Self(Arc::new(exports)))
    }

    fn find(&self, name: &str) -> Option<&Export> {
        self.0.iter().find(|export| export.name == name)
    }
}

impl Export {
    async fn root(&self, user: &str) -> Result<Arc<dyn Node>, FsError> {
        let root = self.server.attach(user, "").await?;
        Ok(Arc::new(Below { inner: root, number: self.number }))
    }

    async fn info(&self, user: &str) -> Result<Info, FsError> {
        let info = self.root(user).await?.stat().await?;
        Ok(Info { name: self.name.clone(), ..info })
    }
}

impl FileServer for Exports {
    fn attach<'a>(&'a self, user: &'a str, tree: &'a str) -> Answer<'a, Arc<dyn Node>> {
        Box::pin(async move {
            checked_user(user)?;
            match tree.trim_matches('/') {
                "" => {
                    let root = Root { exports: self.clone(), user: user.to_owned() };
                    Ok(Arc::new(root) as Arc<dyn Node>)
                }
                name => match self.find(name) {
                    Some(export) => export.root(user).await,
                    None => Err(FsError::new(Kind::NotFound, tree)),
                },
            }
        })
    }
}

/// The directory of all trees.
struct Root {
    exports: Exports,
    user: String,
}

const ROOT: Qid = Qid { kind: (kind::DIRECTORY >> 24) as u8, version: 0, path: 0 };

impl Node for Root {
    fn stat(&self) -> Answer<'_, Info> {
        now(Ok(Info::made_up("/", (ROOT.path, ROOT.version), kind::DIRECTORY | 0o555, 0)))
    }

    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        Box::pin(async move {
            match self.exports.find(name) {
                Some(export) => export.root(&self.user).await,
                None => Err(FsError::new(Kind::NotFound, name)),
            }
        })
    }

    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        let listing = || Listing { exports: self.exports.clone(), user: self.user.clone() };
        now(mode.only_reads("/").map(|()| Arc::new(listing()) as Arc<dyn OpenFile>))
    }
}

/// The directory of all trees, open.
struct Listing {
    exports: Exports,
    user: String,
}

impl OpenFile for Listing {
    fn qid(&self) -> Qid {
        ROOT
    }

    fn read<'a>(&'a self, _offset: u64, _into: &'a mut [u8]) -> Answer<'a, usize> {
        now(Err(FsError::new(Kind::IsDirectory, "/")))
    }

    fn entries(&self, from: u64, max: usize) -> Answer<'_, Vec<Info>> {
        Box::pin(async move {
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            let mut infos = Vec::new();
            for export in self.exports.0.iter().skip(from).take(max) {
                infos.push(export.info(&self.user).await?);
            }
            Ok(infos)
        })
    }
}

/// A file of one of the trees. Two trees may have numbered their files alike.
struct Below<T: ?Sized> {
    number: u64,
    inner: Arc<T>,
}

impl<T: ?Sized> Below<T> {
    fn qid(&self, qid: Qid) -> Qid {
        Qid { path: qid.path ^ self.number << 56, ..qid }
    }

    fn info(&self, info: Info) -> Info {
        Info { qid: self.qid(info.qid), ..info }
    }

    fn node(&self, inner: Arc<dyn Node>) -> Arc<dyn Node> {
        Arc::new(Below { number: self.number, inner })
    }

    fn open(&self, inner: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        Arc::new(Below { number: self.number, inner })
    }
}

impl Node for Below<dyn Node> {
    fn stat(&self) -> Answer<'_, Info> {
        Box::pin(async move { self.inner.stat().await.map(|info| self.info(info)) })
    }

    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        Box::pin(async move { self.inner.walk(name).await.map(|node| self.node(node)) })
    }

    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        Box::pin(async move { self.inner.open(mode).await.map(|open| self.open(open)) })
    }

    fn create<'a>(
        &'a self,
        name: &'a str,
        permissions: u32,
        mode: OpenMode,
    ) -> Answer<'a, (Arc<dyn Node>, Arc<dyn OpenFile>)> {
        Box::pin(async move {
            let (node, open) = self.inner.create(name, permissions, mode).await?;
            Ok((self.node(node), self.open(open)))
        })
    }

    fn remove(&self) -> Answer<'_, ()> {
        self.inner.remove()
    }

    fn wstat<'a>(&'a self, change: &'a Change) -> Answer<'a, ()> {
        self.inner.wstat(change)
    }
}

impl OpenFile for Below<dyn OpenFile> {
    fn qid(&self) -> Qid {
        Below::qid(self, self.inner.qid())
    }

    fn read<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> Answer<'a, usize> {
        self.inner.read(offset, into)
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> Answer<'a, usize> {
        self.inner.write(offset, data)
    }

    fn entries(&self, from: u64, max: usize) -> Answer<'_, Vec<Info>> {
        Box::pin(async move {
            let infos = self.inner.entries(from, max).await?;
            Ok(infos.into_iter().map(|info| self.info(info)).collect())
        })
    }

    fn lost(&self) {
        self.inner.lost();
    }

    fn memory(&self) -> Option<Arc<dyn FileMemory>> {
        self.inner.memory()
    }
}
