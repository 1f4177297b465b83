//! `#U`: the system's files below one directory.
//!
//! Nothing outside that directory is reached, whoever renames or links what meanwhile.
//! A walk is one step of one name from a descriptor the server holds, by `openat2`: it
//! follows no symbolic link and enters no other file system, and `..` is the caller's,
//! who keeps the nodes it came by. A node is such a descriptor (`O_PATH`). It is opened
//! through `/proc/self/fd`, which gives the file it refers to and no other, renamed
//! or removed as it may be; the rival, the name once more and a comparison afterwards, loses
//! a file that was renamed, and opens what may not be opened to find that out.
//! A directory that somebody moves out of the tree stays one for who holds it.
//!
//! Regular files and directories are shown. Links, fifos, sockets, devices, roots of other
//! file systems and names that are not UTF-8 are not, and cannot be walked to. What a file is
//! is known before it is opened, so no open waits for a fifo's other end.
//!
//! Files are those of the process, whoever attaches: the kernel checks permission, users
//! and groups are told as numbers. Calls wait for the disk; they are not called off.
//!
//! A node costs a descriptor, as each directory above it does, shared by those that came the
//! same way; a file that is open one more. A server takes up to three quarters of
//! those its process may have, and refuses more.

mod file;
mod held;
mod listing;
mod node;
mod numbers;
mod step;
mod wstat;

use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{FsError, Kind};
use crate::name::only_tree;
use crate::server::{Answer, FileServer, Node, now};

pub(crate) use file::{END_MAX, UnixFile};
pub(crate) use listing::Names;
pub(crate) use node::{DEPTH_MAX, PERMISSIONS, UnixNode, permissions_below};
pub(crate) use wstat::check as check_change;

use held::{Held, Seats};
use numbers::Numbers;

/// Serves the files below one directory.
pub struct UnixServer {
    root: UnixNode,
}

/// What the nodes of a tree have in common.
struct Export {
    /// `/proc/self/fd`.
    numbered: Held,
    numbers: Numbers,
    seats: Arc<Seats>,
    read_only: bool,
}

impl UnixServer {
    /// Of the files below `root`, a directory; of `read_only` ones nothing is changed.
    ///
    /// # Errors
    /// `root` is no directory or cannot be opened, or the system lacks `openat2`
    /// (Linux 5.6) or `/proc`.
    pub fn new(root: &Path, read_only: bool) -> Result<Self, FsError> {
        Self::with(root, read_only, Seats::of_process())
    }

    fn with(root: &Path, read_only: bool, seats: Arc<Seats>) -> Result<Self, FsError> {
        let told = root.to_string_lossy();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let held = seats.hold(&told, || rustix::fs::openat(CWD, root, flags, Mode::empty()))?;
        step::probe(&held).map_err(|error| no_openat2(&told, error))?;
        let numbered = seats.hold("/proc/self/fd", || {
            rustix::fs::openat(CWD, "/proc/self/fd", flags, Mode::empty())
        })?;
        let magic = rustix::fs::fstatfs(&numbered).map(|found| found.f_type);
        if magic.is_ok_and(|magic| magic != rustix::fs::PROC_SUPER_MAGIC) {
            let what = "is not the system's; mount proc at /proc";
            return Err(FsError::because(Kind::Unsupported, "/proc/self/fd", what));
        }
        let export = Export { numbered, numbers: Numbers::new(), seats, read_only };
        Ok(Self { root: UnixNode::root(Arc::new(export), held)? })
    }

    /// The directory that is served.
    pub(crate) fn root(&self) -> &UnixNode {
        &self.root
    }
}

fn no_openat2(root: &str, error: Errno) -> FsError {
    let why = match error {
        Errno::NOSYS => "the kernel lacks openat2 (Linux 5.6), or a filter hides it",
        Errno::PERM => "a filter of system calls forbids openat2; allow it",
        _ => return step::told(root, error),
    };
    let what = format!("cannot be served without openat2, which keeps walks below it: {why}");
    FsError::because(Kind::Unsupported, root, what)
}

impl FileServer for UnixServer {
    fn attach<'a>(&'a self, _user: &'a str, tree: &'a str) -> Answer<'a, Arc<dyn Node>> {
        now(only_tree(tree).map(|()| Arc::new(self.root.clone()) as Arc<dyn Node>))
    }
}

#[cfg(test)]
mod tests;
