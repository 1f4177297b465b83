//! The files in memory and their directories: who may do what with which.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use ninep::{Qid, kind};

use super::account::Account;
use super::contents::{Contents, FILE_BYTES_MAX};
use crate::error::{FsError, Kind};
use crate::name::checked_name;
use crate::server::{Change, Info, OpenMode, seconds_now};

/// The root's number.
pub(super) const ROOT: u64 = 0;
/// What a file costs besides its bytes.
pub(super) const INODE_BYTES: u64 = 2 << 10;
/// Bits of a mode that a client chooses.
const CHOSEN: u32 = 0o777 | kind::APPEND | kind::EXCLUSIVE | kind::TEMPORARY;

const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;

struct Inode {
    parent: u64,
    name: String,
    mode: u32,
    atime: u32,
    uid: Arc<str>,
    gid: Arc<str>,
    body: Body,
}

enum Body {
    File(Arc<Contents>),
    Directory { entries: BTreeMap<String, u64>, version: u32, mtime: u32 },
}

/// What an open finds.
pub(super) enum Found {
    File(Arc<Contents>),
    Directory,
}

pub(super) struct Tree {
    /// By the number in their qids.
    inodes: HashMap<u64, Inode>,
    next_path: u64,
    account: Arc<Account>,
}

impl Inode {
    fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    /// Whether `user` may do what `bits` say: as anybody, one of the group, or its owner.
    fn allow(&self, user: &str, bits: u32) -> Result<(), FsError> {
        let mut allowed = self.mode;
        if *self.gid == *user {
            allowed |= self.mode >> 3;
        }
        if *self.uid == *user {
            allowed |= self.mode >> 6;
        }
        let denied = || FsError::new(Kind::Permission, &self.name);
        (allowed & bits == bits).then_some(()).ok_or_else(denied)
    }

    fn entries(&mut self) -> Result<&mut BTreeMap<String, u64>, FsError> {
        match &mut self.body {
            Body::Directory { entries, .. } => Ok(entries),
            Body::File(_) => Err(FsError::new(Kind::NotDirectory, &self.name)),
        }
    }

    /// Entries came or went.
    fn touched(&mut self) {
        if let Body::Directory { version, mtime, .. } = &mut self.body {
            *version = version.wrapping_add(1);
            *mtime = seconds_now();
        }
    }

    fn qid(&self, path: u64) -> Qid {
        let version = match &self.body {
            Body::File(contents) => contents.version(),
            Body::Directory { version, .. } => *version,
        };
        Qid { kind: (self.mode >> 24) as u8, version, path }
    }

    fn info(&self, path: u64) -> Info {
        let (length, mtime) = match &self.body {
            Body::File(contents) => (contents.length(), contents.mtime()),
            Body::Directory { mtime, .. } => (0, *mtime),
        };
        Info {
            qid: self.qid(path),
            mode: self.mode,
            atime: self.atime,
            mtime,
            length,
            name: self.name.clone(),
            uid: self.uid.to_string(),
            gid: self.gid.to_string(),
            muid: String::new(),
        }
    }
}

impl Tree {
    /// A root for everybody.
    pub(super) fn new(account: &Arc<Account>) -> Self {
        let nobody: Arc<str> = "ram".into();
        let root = Inode {
            parent: ROOT,
            name: "/".into(),
            mode: kind::DIRECTORY | 0o777,
            atime: seconds_now(),
            uid: nobody.clone(),
            gid: nobody,
            body: directory(),
        };
        Self {
            inodes: HashMap::from([(ROOT, root)]),
            next_path: ROOT + 1,
            account: account.clone(),
        }
    }

    fn inode(&mut self, path: u64) -> Result<&mut Inode, FsError> {
        let gone = || FsError::because(Kind::NotFound, "file", "was removed");
        self.inodes.get_mut(&path).ok_or_else(gone)
    }

    pub(super) fn info(&mut self, path: u64) -> Result<Info, FsError> {
        self.inode(path).map(|inode| inode.info(path))
    }

    pub(super) fn walk(&mut self, path: u64, name: &str, user: &str) -> Result<u64, FsError> {
        let inode = self.inode(path)?;
        if inode.is_directory() {
            inode.allow(user, EXECUTE)?;
        }
        let found = inode.entries()?.get(name).copied();
        found.ok_or_else(|| FsError::new(Kind::NotFound, name))
    }

    /// Numbers of a directory's entries, by name.
    pub(super) fn list(&mut self, path: u64) -> Result<Vec<u64>, FsError> {
        Ok(self.inode(path)?.entries()?.values().copied().collect())
    }

    /// The only place where permission to read, write or execute is checked.
    pub(super) fn open(&mut self, path: u64, mode: OpenMode, user: &str) -> Result<Found, FsError> {
        let inode = self.inode(path)?;
        let writes = mode.write || mode.truncate;
        let asked = [(mode.read, READ), (writes, WRITE), (mode.execute, EXECUTE)];
        inode.allow(
            user,
            asked.iter().filter(|(is_asked, _)| *is_asked).map(|(_, bit)| bit).sum(),
        )?;
        let contents = match &inode.body {
            Body::Directory { .. } if writes => {
                return Err(FsError::new(Kind::IsDirectory, &inode.name));
            }
            Body::Directory { .. } => return Ok(Found::Directory),
            Body::File(contents) => contents.clone(),
        };
        if inode.mode & kind::EXCLUSIVE != 0 && contents.opens.load(Relaxed) > 0 {
            return Err(FsError::new(Kind::Busy, &inode.name));
        }
        // What is for appending is not cut (Plan 9 manual, section 5, `open`).
        if mode.truncate && inode.mode & kind::APPEND == 0 {
            contents.set_length(0)?;
        }
        inode.atime = seconds_now();
        contents.opens.fetch_add(1, AcqRel);
        Ok(Found::File(contents))
    }

    /// Makes a file or directory and opens it, whatever its permissions.
    pub(super) fn create(
        &mut self,
        path: u64,
        name: &str,
        permissions: u32,
        mode: OpenMode,
        user: &Arc<str>,
    ) -> Result<(u64, Found), FsError> {
        checked_name(name)?;
        let is_directory = permissions & kind::DIRECTORY != 0;
        let parent = self.inode(path)?;
        let (inherited, gid) = (parent.mode, parent.gid.clone());
        if parent.entries()?.contains_key(name) {
            return Err(FsError::new(Kind::Exists, name));
        }
        parent.allow(user, WRITE)?;
        if is_directory && (mode.write || mode.truncate) {
            return Err(FsError::new(Kind::IsDirectory, name));
        }
        self.account.take(INODE_BYTES).ok_or_else(|| FsError::new(Kind::NoSpace, name))?;
        // As the manual has it (section 5, `open`).
        let kept = if is_directory { !0o777 } else { !0o666 } | inherited & 0o777;
        let mode = permissions & kept & CHOSEN | permissions & kind::DIRECTORY;
        let number = self.next_path;
        self.next_path += 1;
        let (body, found) = if is_directory {
            (directory(), Found::Directory)
        } else {
            let contents = Arc::new(Contents::new(&self.account));
            contents.set_flags(mode);
            contents.opens.store(1, Relaxed);
            (Body::File(contents.clone()), Found::File(contents))
        };
        let inode = Inode {
            parent: path,
            name: name.to_owned(),
            mode,
            atime: seconds_now(),
            uid: user.clone(),
            gid,
            body,
        };
        self.inodes.insert(number, inode);
        let parent = self.inode(path)?;
        parent.entries()?.insert(name.to_owned(), number);
        parent.touched();
        Ok((number, found))
    }

    pub(super) fn remove(&mut self, path: u64, user: &str) -> Result<(), FsError> {
        let inode = self.inode(path)?;
        let (parent, name) = (inode.parent, inode.name.clone());
        if path == ROOT {
            return Err(FsError::new(Kind::Permission, name));
        }
        if matches!(&inode.body, Body::Directory { entries, .. } if !entries.is_empty()) {
            return Err(FsError::new(Kind::NotEmpty, name));
        }
        let directory = self.inode(parent)?;
        directory.allow(user, WRITE)?;
        directory.entries()?.remove(&name);
        directory.touched();
        if let Some(Inode { body: Body::File(contents), .. }) = self.inodes.remove(&path) {
            contents.renew();
        }
        self.account.give(INODE_BYTES);
        Ok(())
    }

    /// Checks all of `change`, then makes it.
    pub(super) fn wstat(&mut self, path: u64, change: &Change, user: &str) -> Result<(), FsError> {
        self.check_change(path, change, user)?;
        let inode = self.inode(path)?;
        let parent = inode.parent;
        if let (Some(length), Body::File(contents)) = (change.length, &inode.body) {
            contents.set_length(length)?;
        }
        if let Some(mode) = change.mode {
            inode.mode = mode & CHOSEN | inode.mode & kind::DIRECTORY;
            if let Body::File(contents) = &inode.body {
                contents.set_flags(inode.mode);
            }
        }
        if let Some(seconds) = change.mtime {
            match &mut inode.body {
                Body::File(contents) => contents.set_mtime(seconds),
                Body::Directory { mtime, .. } => *mtime = seconds,
            }
        }
        if let Some(gid) = &change.gid {
            inode.gid = gid.as_str().into();
        }
        let renamed = change.name.as_ref().filter(|name| **name != inode.name);
        if let Some(name) = renamed {
            let before = std::mem::replace(&mut inode.name, name.clone());
            let directory = self.inode(parent)?;
            directory.entries()?.remove(&before);
            directory.entries()?.insert(name.clone(), path);
            directory.touched();
        }
        Ok(())
    }

    /// Who may change what: the manual's section 5, `stat`.
    fn check_change(&mut self, path: u64, change: &Change, user: &str) -> Result<(), FsError> {
        let inode = self.inode(path)?;
        let (parent, name) = (inode.parent, inode.name.clone());
        let owns = *inode.uid == *user;
        let refused = |what: &str| Err(FsError::because(Kind::Permission, name.as_str(), what));
        if (change.mode.is_some() || change.mtime.is_some()) && !owns {
            return refused("mode and time are for its owner to change");
        }
        if let Some(gid) = change.gid.as_deref().filter(|gid| **gid != *inode.gid) {
            checked_name(gid)?;
            if !owns || gid != user {
                return refused("its owner may give it to a group of theirs, nobody else");
            }
        }
        if let Some(length) = change.length.filter(|length| *length > 0 || !inode.is_directory()) {
            if inode.is_directory() {
                return Err(FsError::new(Kind::IsDirectory, name));
            }
            inode.allow(user, WRITE)?;
            if length > FILE_BYTES_MAX {
                return Err(FsError::new(Kind::TooLarge, name));
            }
        }
        if let Some(new) = change.name.as_deref().filter(|new| **new != name) {
            checked_name(new)?;
            if path == ROOT {
                return refused("a root has no other name");
            }
            let directory = self.inode(parent)?;
            directory.allow(user, WRITE)?;
            if directory.entries()?.contains_key(new) {
                return Err(FsError::new(Kind::Exists, new));
            }
        }
        Ok(())
    }
}

fn directory() -> Body {
    Body::Directory { entries: BTreeMap::new(), version: 0, mtime: seconds_now() }
}
