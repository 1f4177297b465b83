//! Qids: which file, and which contents.
//!
//! A path is a keyed hash of what tells a file from all others: device, inode, and the time
//! it was made, for inodes are used again. Clocks tick slower than files are made, so the
//! server counts what it removed, as long as the clock says the same. A file that somebody
//! else removes, with another made of its inode in the same tick, is taken for the old one.
//!
//! A version is a hash of length and times, which every change by others moves (within
//! a tick, on kernels before 6.13, it may not), and of the server's own writes.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use ninep::{Qid, kind};
use rustix::fs::{Statx, StatxFlags};

use super::step::is_directory;
use crate::server::seconds_now;
use crate::sync::lock;

/// Counters of writes; files share them, which changes a version too often.
const COUNTERS: usize = 4096;

/// Removed files that are remembered, at most.
pub(super) const REMOVED_MAX: usize = 1 << 16;

/// No clock of a file system stands still for so many seconds.
const TICK_SECONDS_MAX: i64 = 2;

/// What tells a file from all others there are at a time, and almost all there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    device: (u32, u32),
    inode: u64,
    /// Seconds and nanoseconds, where the file system knows.
    born: Option<(i64, u32)>,
}

impl Identity {
    pub(super) fn of(seen: &Statx) -> Self {
        let is_known = seen.stx_mask & StatxFlags::BTIME.bits() != 0;
        Self {
            device: (seen.stx_dev_major, seen.stx_dev_minor),
            inode: seen.stx_ino,
            born: is_known.then_some((seen.stx_btime.tv_sec, seen.stx_btime.tv_nsec)),
        }
    }

    /// Whether another file may still get the same.
    fn may_return(&self, now_seconds: i64) -> bool {
        self.born.is_none_or(|(born, _)| born.saturating_add(TICK_SECONDS_MAX) >= now_seconds)
    }
}

/// Files of one identity that are gone, and whether there is another.
#[derive(Default)]
struct Removed {
    count: u32,
    is_back: bool,
}

/// Makes the qids of one server.
pub(super) struct Numbers {
    key: RandomState,
    writes: Box<[AtomicU32]>,
    removed: Mutex<HashMap<Identity, Removed>>,
}

impl Numbers {
    pub(super) fn new() -> Self {
        Self {
            key: RandomState::new(),
            writes: std::iter::repeat_with(AtomicU32::default).take(COUNTERS).collect(),
            removed: Mutex::default(),
        }
    }

    /// A number that `what` has and nobody can find out without the key.
    pub(super) fn hash(&self, what: impl Hash) -> u64 {
        self.key.hash_one(what)
    }

    pub(super) fn path(&self, identity: Identity) -> u64 {
        let mut removed = lock(&self.removed);
        let before = removed.get_mut(&identity).map_or(0, |removed| {
            removed.is_back = true;
            removed.count
        });
        self.hash((identity, before))
    }

    /// The qid of the file with that path, as it was seen.
    pub(super) fn qid(&self, path: u64, seen: &Statx) -> Qid {
        let writes = self.counter(path).map_or(0, |counter| counter.load(Ordering::Acquire));
        let times = [seen.stx_mtime, seen.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec));
        let kind = if is_directory(seen) { kind::DIRECTORY >> 24 } else { 0 };
        let version = self.hash((seen.stx_size, times, writes)) as u32;
        Qid { kind: kind as u8, version, path }
    }

    /// Takes note of a change, once it is made.
    pub(super) fn wrote(&self, path: u64) {
        if let Some(counter) = self.counter(path) {
            counter.fetch_add(1, Ordering::Release);
        }
    }

    fn counter(&self, path: u64) -> Option<&AtomicU32> {
        self.writes.get(path as usize % COUNTERS)
    }

    /// Takes note of a file that is gone.
    pub(super) fn removed(&self, identity: Identity) {
        let now = seconds_now().into();
        let mut removed = lock(&self.removed);
        if removed.len() >= REMOVED_MAX {
            removed.retain(|identity, removed| removed.is_back || identity.may_return(now));
        }
        if removed.len() >= REMOVED_MAX {
            removed.clear();
        }
        let removed = removed.entry(identity).or_default();
        removed.count = removed.count.wrapping_add(1);
        removed.is_back = false;
    }
}

#[cfg(test)]
impl Identity {
    pub(super) fn with_inode(self, inode: u64) -> Self {
        Self { inode, ..self }
    }
}

#[cfg(test)]
impl Numbers {
    pub(super) fn removed_count(&self) -> usize {
        self.removed.lock().unwrap().len()
    }
}
