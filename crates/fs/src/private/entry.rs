//! A file or directory of the tree, as it is to all who use the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};

use ninep::{Qid, kind};

use super::Tree;
use super::names::State;
use super::pages::Pages;
use crate::error::{FsError, Kind};
use crate::server::{Info, seconds_now};
use crate::sync::lock;
use crate::unix::{DEPTH_MAX, UnixNode};

pub(super) struct Entry {
    /// Of its qid.
    pub(super) path: u64,
    depth: u32,
    /// The directory it is in; none above the root.
    pub(super) above: Option<Arc<Entry>>,
    /// Changed while that directory's names are locked, as the two after it are.
    name: Mutex<String>,
    pub(super) is_removed: AtomicBool,
    /// The directories above keep it.
    pub(super) is_kept: AtomicBool,
    /// On the disk, if it is there.
    pub(super) base: Option<UnixNode>,
    /// What was changed; of one that is not on the disk, all.
    own: RwLock<Option<Own>>,
    /// Of a directory. Locked before those of directories in it, and before `own`.
    pub(super) names: Option<Mutex<State>>,
}

/// What a changed file has of its own.
pub(super) struct Own {
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) atime: u32,
    pub(super) mtime: u32,
    pub(super) uid: String,
    pub(super) gid: String,
    pub(super) version: u32,
    pub(super) pages: Pages,
}

impl Own {
    /// Of a new file of this process.
    pub(super) fn new(mode: u32, gid: String, version: u32) -> Self {
        let uid = rustix::process::geteuid().as_raw().to_string();
        let (atime, mtime) = (seconds_now(), seconds_now());
        Self { mode, atime, mtime, uid, gid, version, pages: Pages::over(0) }
    }

    /// Takes note of new contents.
    pub(super) fn written(&mut self, tree: &Tree) {
        self.version = tree.version();
        self.mtime = seconds_now();
    }
}

impl Entry {
    pub(super) fn root(base: UnixNode) -> Arc<Self> {
        Arc::new(Self {
            is_kept: AtomicBool::new(true),
            ..Self::with(base.path(), None, "/", Some(base), None, true)
        })
    }

    pub(super) fn on_disk(above: &Arc<Self>, name: &str, base: UnixNode) -> Arc<Self> {
        let path = above.path_on_disk(name, base.path());
        let is_directory = base.is_directory();
        Arc::new(Self::with(path, Some(above.clone()), name, Some(base), None, is_directory))
    }

    pub(super) fn made(
        tree: &Tree,
        above: &Arc<Self>,
        name: &str,
        own: Own,
        is_directory: bool,
    ) -> Result<Arc<Self>, FsError> {
        if above.depth >= DEPTH_MAX {
            let what = format!("more than {DEPTH_MAX} directories below one another");
            return Err(FsError::because(Kind::BadName, name, what));
        }
        let (path, above) = (tree.made_path(), Some(above.clone()));
        Ok(Arc::new(Self::with(path, above, name, None, Some(own), is_directory)))
    }

    fn with(
        path: u64,
        above: Option<Arc<Self>>,
        name: &str,
        base: Option<UnixNode>,
        own: Option<Own>,
        is_directory: bool,
    ) -> Self {
        Self {
            path,
            depth: above.as_ref().map_or(0, |above| above.depth + 1),
            above,
            name: Mutex::new(name.into()),
            is_removed: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
            base,
            own: RwLock::new(own),
            names: is_directory.then(Mutex::default),
        }
    }

    /// Two names of one file on the disk are two files here.
    pub(super) fn path_on_disk(&self, name: &str, base_path: u64) -> u64 {
        self.base.as_ref().map_or(base_path, |base| base.hash((base_path, self.path, name)))
    }

    pub(super) fn is_directory(&self) -> bool {
        self.names.is_some()
    }

    pub(super) fn name(&self) -> String {
        lock(&self.name).clone()
    }

    pub(super) fn set_name(&self, name: &str) {
        name.clone_into(&mut lock(&self.name));
    }

    pub(super) fn info(&self, tree: &Tree) -> Result<Info, FsError> {
        let own = self.own.read().unwrap_or_else(PoisonError::into_inner);
        let base = self.base.as_ref().map(UnixNode::info_unnamed).transpose()?;
        let kind = if self.is_directory() { kind::DIRECTORY } else { 0 };
        let qid = |version| Qid { kind: (kind >> 24) as u8, version, path: self.path };
        match (&*own, base) {
            (Some(own), base) => {
                let shines = self.is_directory() || own.pages.has_base();
                let version = match base.filter(|_| shines) {
                    Some(base) => tree.hash((own.version, base.qid.version)) as u32,
                    None => own.version,
                };
                Ok(Info {
                    qid: qid(version),
                    mode: kind | own.mode,
                    atime: own.atime,
                    mtime: own.mtime,
                    length: own.pages.length(),
                    name: self.name(),
                    uid: own.uid.clone(),
                    gid: own.gid.clone(),
                    muid: String::new(),
                })
            }
            (None, Some(base)) => {
                Ok(Info { qid: qid(base.qid.version), name: self.name(), ..base })
            }
            (None, None) => Err(FsError::new(Kind::NotFound, self.name())),
        }
    }

    /// Shows what is its own, if anything is.
    pub(super) fn with_own<T>(&self, see: impl FnOnce(Option<&Own>) -> T) -> T {
        see(self.own.read().unwrap_or_else(PoisonError::into_inner).as_ref())
    }

    /// Changes it. It is kept from then on.
    pub(super) fn change<T>(
        self: &Arc<Self>,
        tree: &Tree,
        change: impl FnOnce(&mut Own) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        self.keep(tree)?;
        let mut own: RwLockWriteGuard<'_, Option<Own>> =
            self.own.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = &mut *own {
            return change(own);
        }
        let base = self.base.as_ref().ok_or_else(|| FsError::new(Kind::NotFound, self.name()))?;
        let info = base.info_unnamed()?;
        let made = own.insert(Own {
            mode: info.mode & !kind::DIRECTORY,
            atime: info.atime,
            mtime: info.mtime,
            uid: info.uid,
            gid: info.gid,
            version: tree.version(),
            pages: Pages::over(info.length),
        });
        change(made)
    }

    /// Has the directories above keep it, the topmost first: so whatever is kept
    /// can be found from the root.
    pub(super) fn keep(self: &Arc<Self>, tree: &Tree) -> Result<(), FsError> {
        let mut chain = Vec::new();
        let mut next = self;
        while !next.is_kept.load(Ordering::Acquire) {
            chain.push(next);
            match &next.above {
                Some(above) => next = above,
                None => break,
            }
        }
        chain.into_iter().rev().try_for_each(|entry| entry.keep_in_above(tree))
    }
}
