//! A file or directory that is open.

use std::sync::{Arc, Mutex, OnceLock};

use ninep::{Qid, kind};

use super::Tree;
use super::entry::Entry;
use crate::error::{FsError, Kind};
use crate::server::{Answer, Info, OpenFile, OpenMode, now};
use crate::sync::lock;
use crate::unix::{Names, UnixFile};

/// How the disk is read.
const FROM_DISK: OpenMode = OpenMode { read: true, write: false, execute: false, truncate: false };

pub(super) struct PrivateFile {
    tree: Arc<Tree>,
    entry: Arc<Entry>,
    mode: OpenMode,
    /// What the disk holds; opened when it is needed.
    base: OnceLock<UnixFile>,
}

impl PrivateFile {
    /// Opens it, if the caller may.
    pub(super) fn open(
        tree: Arc<Tree>,
        entry: Arc<Entry>,
        mode: OpenMode,
    ) -> Result<Self, FsError> {
        let file = Self { tree, entry, mode, base: OnceLock::new() };
        if mode.truncate {
            file.entry.change(&file.tree, |own| {
                own.pages.set_length(0);
                own.written(&file.tree);
                Ok(())
            })?;
        }
        let reads_disk = file.entry.with_own(|own| own.is_none_or(|own| own.pages.has_base()));
        if (mode.read || mode.execute) && reads_disk {
            file.base()?;
        }
        Ok(file)
    }

    fn base(&self) -> Result<&UnixFile, FsError> {
        if let Some(base) = self.base.get() {
            return Ok(base);
        }
        let missing = || FsError::new(Kind::NotFound, self.entry.name());
        let opened = self.entry.base.as_ref().ok_or_else(missing)?.open_file(FROM_DISK)?;
        Ok(self.base.get_or_init(|| opened))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, FsError> {
        if !self.mode.read && !self.mode.execute {
            return Err(FsError::new(Kind::BadMode, self.entry.name()));
        }
        self.entry.with_own(|own| match own {
            None => self.base()?.read_at(offset, into),
            Some(own) => {
                own.pages.read(offset, into, &mut |at, into| self.base()?.read_at(at, into))
            }
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize, FsError> {
        if !self.mode.write {
            return Err(FsError::new(Kind::BadMode, self.entry.name()));
        }
        self.entry.change(&self.tree, |own| {
            let name = self.entry.name();
            let base = &mut |at, into: &mut [u8]| self.base()?.read_at(at, into);
            let written = own.pages.write(offset, data, &self.tree.memory, &name, base)?;
            own.written(&self.tree);
            Ok(written)
        })
    }
}

fn qid_of(entry: &Entry, tree: &Tree) -> Qid {
    let kind = if entry.is_directory() { kind::DIRECTORY } else { 0 };
    let unknown = Qid { kind: (kind >> 24) as u8, version: 0, path: entry.path };
    entry.info(tree).map_or(unknown, |info| info.qid)
}

impl OpenFile for PrivateFile {
    fn qid(&self) -> Qid {
        qid_of(&self.entry, &self.tree)
    }

    fn read<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> Answer<'a, usize> {
        now(self.read_at(offset, into))
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> Answer<'a, usize> {
        now(self.write_at(offset, data))
    }
}

pub(super) struct PrivateListing {
    tree: Arc<Tree>,
    entry: Arc<Entry>,
    names: Mutex<Names>,
}

impl PrivateListing {
    pub(super) fn open(tree: Arc<Tree>, entry: Arc<Entry>) -> Result<Self, FsError> {
        let names = Mutex::new(Names::of(entry.all_names()?));
        Ok(Self { tree, entry, names })
    }
}

impl OpenFile for PrivateListing {
    fn qid(&self) -> Qid {
        qid_of(&self.entry, &self.tree)
    }

    fn read<'a>(&'a self, _offset: u64, _into: &'a mut [u8]) -> Answer<'a, usize> {
        now(Err(FsError::new(Kind::IsDirectory, self.entry.name())))
    }

    fn entries(&self, from: u64, max: usize) -> Answer<'_, Vec<Info>> {
        let mut names = lock(&self.names);
        now(names.entries(from, max, |name| self.entry.look_at(&self.tree, name)))
    }
}
