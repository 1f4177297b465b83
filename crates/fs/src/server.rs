//! What a file server is.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

pub use ninep::Change;
use ninep::Qid;

use crate::error::{FsError, Kind};
use crate::memory::FileMemory;

/// What a call gives: at once ([`now`]), or later, while other threads run.
/// Dropped, the call is called off, and has done nothing or all of it.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, FsError>> + Send + 'a>>;

/// An answer that is there.
pub fn now<'a, T: Send + 'a>(result: Result<T, FsError>) -> Answer<'a, T> {
    Box::pin(std::future::ready(result))
}

/// The time, in seconds since 1970.
pub(crate) fn seconds_now() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

/// A tree of files under one name, as `#r`.
pub trait FileServer: Send + Sync {
    /// The root of the tree `tree` (mostly ""), for `user`.
    fn attach<'a>(&'a self, user: &'a str, tree: &'a str) -> Answer<'a, Arc<dyn Node>>;
}

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Which file; its kind tells directories.
    pub qid: Qid,
    /// [`ninep::kind`] and permission bits.
    pub mode: u32,
    /// Last read, in seconds since 1970.
    pub atime: u32,
    /// Last written, in seconds since 1970.
    pub mtime: u32,
    /// Length in bytes; of directories 0.
    pub length: u64,
    /// Last part of the path; of a root `/`.
    pub name: String,
    /// Who owns it.
    pub uid: String,
    /// Which group may do what the mode says.
    pub gid: String,
    /// Who wrote to it last; empty where nobody keeps that.
    pub muid: String,
}

impl Info {
    /// Of a file that lies nowhere: it has no times, and its owner is `sys`, Plan 9's name for
    /// who owns what comes with the system.
    #[must_use]
    pub fn made_up(name: &str, (path, version): (u64, u32), mode: u32, length: u64) -> Self {
        let qid = Qid { kind: (mode >> 24) as u8, version, path };
        let owner = || "sys".to_owned();
        let (uid, gid, muid) = (owner(), owner(), String::new());
        Self { qid, mode, atime: 0, mtime: 0, length, name: name.to_owned(), uid, gid, muid }
    }
}

/// How a file is opened: [`ninep::mode`]'s byte, taken apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// For reads.
    pub read: bool,
    /// For writes.
    pub write: bool,
    /// To be executed: permission to execute is asked for, then it is read.
    pub execute: bool,
    /// Cut to no length first; needs permission to write.
    pub truncate: bool,
}

impl OpenMode {
    /// Whether the file `name`, which is only to be read, may be opened so.
    ///
    /// # Errors
    /// Anything but reading is asked for.
    pub fn only_reads(self, name: &str) -> Result<(), FsError> {
        match self {
            Self { write: false, execute: false, truncate: false, .. } => Ok(()),
            _ => Err(FsError::new(Kind::Permission, name)),
        }
    }
}

/// Reads what a file holds, `bytes`, from `offset` on.
pub fn read_from(bytes: &[u8], offset: u64, into: &mut [u8]) -> usize {
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let rest = bytes.get(from..).unwrap_or_default();
    let len = rest.len().min(into.len());
    into.iter_mut().zip(rest).for_each(|(to, byte)| *to = *byte);
    len
}

/// A file or directory of a server. Kept, it stays the same file, whatever is
/// renamed or removed meanwhile: what is asked of it then may be refused.
pub trait Node: Send + Sync {
    /// What is known of it now.
    fn stat(&self) -> Answer<'_, Info>;

    /// Its entry `name`, which is never `.` or `..`, and has no `/`.
    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        now(Err(FsError::new(Kind::NotDirectory, name)))
    }

    /// Opens it. Permission is checked here and nowhere else.
    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>>;

    /// Makes the entry `name`, a directory if `permissions` has
    /// [`ninep::kind::DIRECTORY`], and opens it.
    fn create<'a>(
        &'a self,
        name: &'a str,
        permissions: u32,
        mode: OpenMode,
    ) -> Answer<'a, (Arc<dyn Node>, Arc<dyn OpenFile>)> {
        let _ = (permissions, mode);
        now(Err(FsError::new(Kind::Permission, name)))
    }

    /// Removes it; a directory only if it is empty.
    fn remove(&self) -> Answer<'_, ()> {
        now(Err(FsError::new(Kind::Permission, "remove")))
    }

    /// Changes what is known of it: all that is asked for, or nothing.
    fn wstat<'a>(&'a self, change: &'a Change) -> Answer<'a, ()> {
        let _ = change;
        now(Err(FsError::new(Kind::Permission, "wstat")))
    }
}

/// A file or directory that is open. The last reference dropped closes it.
pub trait OpenFile: Send + Sync {
    /// Its qid now; the version changes with the contents.
    fn qid(&self) -> Qid;

    /// Reads up to `into.len()` bytes at `offset`: 0 at the end of the file. May wait.
    fn read<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> Answer<'a, usize>;

    /// Writes `data` at `offset`, of an append-only file at its end. May wait.
    /// How many bytes were written: less than all only of a pipe or a full disk.
    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> Answer<'a, usize> {
        let _ = (offset, data);
        now(Err(FsError::new(Kind::BadMode, "write")))
    }

    /// Of a directory: up to `max` entries from the `from`-th on, in an order that
    /// stays while it is open; none at the end. What was made or removed since it
    /// was opened may be there or not, everything else once.
    fn entries(&self, from: u64, max: usize) -> Answer<'_, Vec<Info>> {
        let _ = (from, max);
        now(Err(FsError::new(Kind::NotDirectory, "readdir")))
    }

    /// Whoever had it open has gone without closing it: a client whose connection ended.
    fn lost(&self) {}

    /// Where its bytes lie, if that is in memory: then they are copied from
    /// there, without a call for each read.
    fn memory(&self) -> Option<Arc<dyn FileMemory>> {
        None
    }
}
