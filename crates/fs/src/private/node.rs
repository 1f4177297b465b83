//! What callers hold of an entry, and what they may do.

use std::sync::Arc;

use ninep::kind;
use rustix::thread::CapabilitySet;

use super::Tree;
use super::entry::{Entry, Own};
use super::file::{PrivateFile, PrivateListing};
use crate::error::{FsError, Kind};
use crate::name::checked_name;
use crate::server::{Answer, Change, Info, Node, OpenFile, OpenMode, now};
use crate::unix::{PERMISSIONS, check_change, permissions_below};

const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;

#[derive(Clone)]
pub(super) struct PrivateNode {
    tree: Arc<Tree>,
    entry: Arc<Entry>,
}

impl PrivateNode {
    pub(super) fn new(tree: Arc<Tree>, entry: Arc<Entry>) -> Self {
        Self { tree, entry }
    }

    fn beside(&self, entry: Arc<Entry>) -> Self {
        Self { tree: self.tree.clone(), entry }
    }

    fn opened(&self, mode: OpenMode) -> Result<Arc<dyn OpenFile>, FsError> {
        check_mode(mode, self.entry.is_directory(), &self.entry.name())?;
        let mut needed = 0;
        for (is_asked, bit) in
            [(mode.read, READ), (mode.write || mode.truncate, WRITE), (mode.execute, EXECUTE)]
        {
            needed |= if is_asked { bit } else { 0 };
        }
        may(&self.entry.info(&self.tree)?, needed)?;
        self.opened_unchecked(mode)
    }

    fn opened_unchecked(&self, mode: OpenMode) -> Result<Arc<dyn OpenFile>, FsError> {
        let (tree, entry) = (self.tree.clone(), self.entry.clone());
        if entry.is_directory() {
            return Ok(Arc::new(PrivateListing::open(tree, entry)?));
        }
        Ok(Arc::new(PrivateFile::open(tree, entry, mode)?))
    }

    fn make(
        &self,
        name: &str,
        permissions: u32,
        mode: OpenMode,
    ) -> Result<(Self, Arc<dyn OpenFile>), FsError> {
        checked_name(name)?;
        if !self.entry.is_directory() {
            return Err(FsError::new(Kind::NotDirectory, name));
        }
        let is_directory = permissions & kind::DIRECTORY != 0;
        check_mode(mode, is_directory, name)?;
        let info = self.entry.info(&self.tree)?;
        let permissions = permissions_below(name, permissions, info.mode)?;
        may(&info, WRITE | EXECUTE)?;
        let own = Own::new(permissions & PERMISSIONS, info.gid, self.tree.version());
        let node = self.beside(self.entry.make(&self.tree, name, own, is_directory)?);
        let open = node.opened_unchecked(mode)?;
        Ok((node, open))
    }

    /// Of the directory it is in.
    fn may_change_above(&self) -> Result<(), FsError> {
        self.entry
            .above
            .as_ref()
            .map_or(Ok(()), |above| may(&above.info(&self.tree)?, WRITE | EXECUTE))
    }

    fn change(&self, change: &Change) -> Result<(), FsError> {
        let is_directory = self.entry.is_directory();
        check_change(change, &self.entry.name(), is_directory)?;
        if *change == Change::default() {
            return Ok(());
        }
        let info = self.entry.info(&self.tree)?;
        if change.length.is_some() && !is_directory {
            may(&info, WRITE)?;
        }
        if change.mode.is_some() || change.mtime.is_some() || change.gid.is_some() {
            must_own(&info)?;
        }
        // Whatever may fail comes before the first change.
        self.entry.change(&self.tree, |_| Ok(()))?;
        if let Some(name) = change.name.as_deref().filter(|name| *name != info.name) {
            self.may_change_above()?;
            self.entry.rename(&self.tree, name)?;
        }
        self.entry.change(&self.tree, |own| {
            if let Some(length) = change.length.filter(|_| !is_directory) {
                own.pages.set_length(length);
                own.written(&self.tree);
            }
            own.mode = change.mode.map_or(own.mode, |mode| mode & PERMISSIONS);
            own.mtime = change.mtime.unwrap_or(own.mtime);
            own.gid = change.gid.clone().unwrap_or(std::mem::take(&mut own.gid));
            Ok(())
        })
    }
}

fn check_mode(mode: OpenMode, is_directory: bool, name: &str) -> Result<(), FsError> {
    if is_directory && (mode.write || mode.truncate || mode.execute) {
        return Err(FsError::new(Kind::IsDirectory, name));
    }
    if !(mode.read || mode.write || mode.execute) {
        return Err(FsError::new(Kind::BadMode, name));
    }
    Ok(())
}

/// Whether this process may do all of `needed`, as the kernel would decide.
fn may(info: &Info, needed: u32) -> Result<(), FsError> {
    let is_numbered = |text: &str, number: u32| text.parse() == Ok(number);
    let is_in_group = || {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let own = rustix::process::getegid();
        groups.into_iter().chain([own]).any(|group| is_numbered(&info.gid, group.as_raw()))
    };
    let granted = match is_numbered(&info.uid, rustix::process::geteuid().as_raw()) {
        true => info.mode >> 6,
        false if is_in_group() => info.mode >> 3,
        false => info.mode,
    };
    let is_directory = info.mode & kind::DIRECTORY != 0;
    let overrides = || {
        // A file that nobody may execute is no program.
        let is_program = is_directory || info.mode & 0o111 != 0;
        has(CapabilitySet::DAC_OVERRIDE) && (needed & EXECUTE == 0 || is_program)
    };
    if granted & needed == needed || overrides() {
        return Ok(());
    }
    Err(FsError::new(Kind::Permission, &*info.name))
}

fn must_own(info: &Info) -> Result<(), FsError> {
    let is_own = info.uid.parse() == Ok(rustix::process::geteuid().as_raw());
    if is_own || has(CapabilitySet::FOWNER) {
        return Ok(());
    }
    Err(FsError::new(Kind::Permission, &*info.name))
}

fn has(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

impl Node for PrivateNode {
    fn stat(&self) -> Answer<'_, Info> {
        now(self.entry.info(&self.tree))
    }

    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        let walked = checked_name(name).and_then(|()| self.entry.walk(name));
        now(walked.map(|entry| Arc::new(self.beside(entry)) as Arc<dyn Node>))
    }

    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        now(self.opened(mode))
    }

    fn create<'a>(
        &'a self,
        name: &'a str,
        permissions: u32,
        mode: OpenMode,
    ) -> Answer<'a, (Arc<dyn Node>, Arc<dyn OpenFile>)> {
        let made = self.make(name, permissions, mode);
        now(made.map(|(node, open)| (Arc::new(node) as Arc<dyn Node>, open)))
    }

    fn remove(&self) -> Answer<'_, ()> {
        now(self.may_change_above().and_then(|()| self.entry.remove(&self.tree)))
    }

    fn wstat<'a>(&'a self, change: &'a Change) -> Answer<'a, ()> {
        now(self.change(change))
    }
}
