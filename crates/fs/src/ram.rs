//! `#r`: files in main memory (CellFS, Table 1).
//!
//! A file lies in segments of 64 KiB, 128 KiB, and so on, which stay where they
//! are as long as it lives: accelerators copy from them without a lock. What
//! was never written takes no memory.

mod account;
mod contents;
mod tree;

use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex, MutexGuard};

use ninep::Qid;

use self::account::Account;
use self::contents::Contents;
use self::tree::{Found, ROOT, Tree};
use crate::error::{FsError, Kind};
use crate::memory::FileMemory;
use crate::name::checked_name;
use crate::server::{Answer, Change, FileServer, Info, Node, OpenFile, OpenMode, now};
use crate::sync::lock;

/// A file server whose files lie in main memory, and go with it.
///
/// Owners and groups are names; a group is whoever is called like it. The root
/// is everybody's.
pub struct RamServer {
    ram: Arc<Ram>,
}

struct Ram {
    tree: Mutex<Tree>,
    account: Arc<Account>,
}

impl RamServer {
    /// Files that take up to `memory_bytes_max` bytes together: the pages
    /// written to, and some 2 KiB for each file.
    #[must_use]
    pub fn new(memory_bytes_max: u64) -> Self {
        Self::of(Account::new(memory_bytes_max, false))
    }

    /// As [`RamServer::new`]; what lies beyond a file's first 2 MiB lies in huge
    /// pages, where the system has them, and takes memory by so much.
    #[must_use]
    pub fn in_huge_pages(memory_bytes_max: u64) -> Self {
        Self::of(Account::new(memory_bytes_max, true))
    }

    fn of(account: Account) -> Self {
        let account = Arc::new(account);
        let tree = Mutex::new(Tree::new(&account));
        Self { ram: Arc::new(Ram { tree, account }) }
    }

    /// What its files take now, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.ram.account.used()
    }
}

impl FileServer for RamServer {
    fn attach<'a>(&'a self, user: &'a str, tree: &'a str) -> Answer<'a, Arc<dyn Node>> {
        let attach = || {
            checked_name(user)?;
            if !tree.is_empty() {
                return Err(FsError::because(
                    Kind::NotFound,
                    tree,
                    "#r has one tree, without a name",
                ));
            }
            Ok(RamNode::at(&self.ram, ROOT, &user.into()))
        };
        now(attach())
    }
}

/// A file or directory, as one user sees it.
struct RamNode {
    ram: Arc<Ram>,
    path: u64,
    user: Arc<str>,
}

impl RamNode {
    fn at(ram: &Arc<Ram>, path: u64, user: &Arc<str>) -> Arc<dyn Node> {
        Arc::new(Self { ram: ram.clone(), path, user: user.clone() })
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        lock(&self.ram.tree)
    }

    fn opened(&self, path: u64, found: Found, mode: OpenMode) -> Arc<dyn OpenFile> {
        match found {
            Found::File(contents) => Arc::new(OpenRam { contents, path, mode }),
            Found::Directory => {
                let listing = Mutex::new(None);
                Arc::new(OpenDirectory { ram: self.ram.clone(), path, listing })
            }
        }
    }
}

impl Node for RamNode {
    fn stat(&self) -> Answer<'_, Info> {
        now(self.tree().info(self.path))
    }

    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        let found = self.tree().walk(self.path, name, &self.user);
        now(found.map(|path| Self::at(&self.ram, path, &self.user)))
    }

    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        let found = self.tree().open(self.path, mode, &self.user);
        now(found.map(|found| self.opened(self.path, found, mode)))
    }

    fn create<'a>(
        &'a self,
        name: &'a str,
        permissions: u32,
        mode: OpenMode,
    ) -> Answer<'a, (Arc<dyn Node>, Arc<dyn OpenFile>)> {
        let made = self.tree().create(self.path, name, permissions, mode, &self.user);
        now(made.map(|(path, found)| {
            (Self::at(&self.ram, path, &self.user), self.opened(path, found, mode))
        }))
    }

    fn remove(&self) -> Answer<'_, ()> {
        now(self.tree().remove(self.path, &self.user))
    }

    fn wstat<'a>(&'a self, change: &'a Change) -> Answer<'a, ()> {
        now(self.tree().wstat(self.path, change, &self.user))
    }
}

struct OpenRam {
    contents: Arc<Contents>,
    path: u64,
    mode: OpenMode,
}

impl OpenFile for OpenRam {
    fn qid(&self) -> Qid {
        let kind = (self.contents.flags() >> 24) as u8;
        Qid { kind, version: self.contents.version(), path: self.path }
    }

    fn read<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> Answer<'a, usize> {
        if !(self.mode.read || self.mode.execute) {
            return now(Err(FsError::new(Kind::BadMode, "read")));
        }
        now(Ok(self.contents.read(offset, into)))
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> Answer<'a, usize> {
        if !self.mode.write {
            return now(Err(FsError::new(Kind::BadMode, "write")));
        }
        now(self.contents.write(offset, data))
    }

    fn memory(&self) -> Option<Arc<dyn FileMemory>> {
        Some(self.contents.clone())
    }
}

impl Drop for OpenRam {
    fn drop(&mut self) {
        self.contents.opens.fetch_sub(1, AcqRel);
    }
}

struct OpenDirectory {
    ram: Arc<Ram>,
    path: u64,
    /// Made by the first look, so that the order stays.
    listing: Mutex<Option<Listing>>,
}

/// Files' numbers, charged.
struct Listing {
    paths: Vec<u64>,
    charged: u64,
    account: Arc<Account>,
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.account.give(self.charged);
    }
}

impl OpenDirectory {
    fn list(&self, tree: &mut Tree) -> Result<Listing, FsError> {
        let paths = tree.list(self.path)?;
        let (charged, account) = (size_of_val(&*paths) as u64, self.ram.account.clone());
        account.take(charged).ok_or_else(|| FsError::new(Kind::NoSpace, "readdir"))?;
        Ok(Listing { paths, charged, account })
    }
}

impl OpenFile for OpenDirectory {
    fn qid(&self) -> Qid {
        let gone = Qid { kind: (ninep::kind::DIRECTORY >> 24) as u8, version: 0, path: self.path };
        lock(&self.ram.tree).info(self.path).map_or(gone, |info| info.qid)
    }

    fn read<'a>(&'a self, _: u64, _: &'a mut [u8]) -> Answer<'a, usize> {
        now(Err(FsError::new(Kind::IsDirectory, "read")))
    }

    fn entries(&self, from: u64, max: usize) -> Answer<'_, Vec<Info>> {
        let entries = || {
            let (tree, mut listing) = (&mut *lock(&self.ram.tree), lock(&self.listing));
            let listing = match &mut *listing {
                Some(listing) => listing,
                none => none.insert(self.list(tree)?),
            };
            let from = usize::try_from(from).unwrap_or(usize::MAX).min(listing.paths.len());
            // What was removed before anybody saw it has no place in the order.
            let mut rest = listing.paths.split_off(from);
            rest.retain(|path| tree.info(*path).is_ok());
            let infos = rest.iter().take(max).filter_map(|path| tree.info(*path).ok()).collect();
            listing.paths.append(&mut rest);
            Ok(infos)
        };
        now(entries())
    }
}

#[cfg(test)]
mod tests;
