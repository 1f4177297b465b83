//! `#R`: the system's files below one directory, with changes that are the job's own.
//!
//! All that is read comes from the disk, as by `#U`, until it is changed. What is
//! written stays in memory, for all who use the server, and goes with it: pages of files,
//! names made and names gone, renames and modes. The disk is never written to.
//!
//! Memory is limited: pages count, and each name that was changed. Beyond the limit calls
//! fail for lack of space; what is removed or cut gives its memory back.
//!
//! What others change on the disk meanwhile may show or not; what was changed
//! here stays. Two names of one file (hard links) are two files. Permission is decided by mode
//! and owner, as the kernel would. Who read a file when is not kept.

mod entry;
mod file;
mod memory;
mod names;
mod node;
mod pages;

use std::hash::Hash;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::FsError;
use crate::name::only_tree;
use crate::server::{Answer, FileServer, Node, now};
use crate::unix::UnixServer;

use entry::Entry;
use memory::Memory;
use node::PrivateNode;

/// Serves the files below one directory, and keeps what is changed to itself.
pub struct PrivateServer {
    tree: Arc<Tree>,
}

/// What the nodes have in common.
struct Tree {
    root: Arc<Entry>,
    base: UnixServer,
    memory: Arc<Memory>,
    /// Changes made so far: each gives a version.
    changes: AtomicU32,
    /// Files made so far: each gives a path.
    made: AtomicU64,
}

impl PrivateServer {
    /// Of the files below `root`, a directory, with changes that take up to
    /// `memory_bytes_max` bytes.
    ///
    /// # Errors
    /// As [`UnixServer::new`].
    pub fn new(root: &Path, memory_bytes_max: u64) -> Result<Self, FsError> {
        let base = UnixServer::new(root, true)?;
        let root = Entry::root(base.root().clone());
        let memory = Memory::up_to(memory_bytes_max);
        let (changes, made) = (AtomicU32::new(0), AtomicU64::new(0));
        Ok(Self { tree: Arc::new(Tree { root, base, memory, changes, made }) })
    }

    /// What the changes take by now, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.tree.memory.used_bytes()
    }
}

impl Tree {
    fn version(&self) -> u32 {
        self.changes.fetch_add(1, Ordering::Relaxed)
    }

    fn made_path(&self) -> u64 {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        self.hash(("made", number))
    }

    fn hash(&self, what: impl Hash) -> u64 {
        self.base.root().hash(what)
    }
}

impl Drop for Tree {
    /// Entries keep the directories above them, and those what was changed in them:
    /// a circle, which ends here.
    fn drop(&mut self) {
        let mut left = vec![self.root.clone()];
        while let Some(entry) = left.pop() {
            left.extend(entry.forget_names());
        }
    }
}

impl FileServer for PrivateServer {
    fn attach<'a>(&'a self, _user: &'a str, tree: &'a str) -> Answer<'a, Arc<dyn Node>> {
        let root = || PrivateNode::new(self.tree.clone(), self.tree.root.clone());
        now(only_tree(tree).map(|()| Arc::new(root()) as Arc<dyn Node>))
    }
}
