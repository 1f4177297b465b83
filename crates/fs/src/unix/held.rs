//! Descriptors, counted: a server leaves some for the rest of its process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Resource;

use super::step::told;
use crate::error::{FsError, Kind};

/// How many descriptors a server has, and may have.
pub(super) struct Seats {
    taken: AtomicUsize,
    max: usize,
}

/// A descriptor that is counted while it is open.
pub(super) struct Held {
    fd: OwnedFd,
    _seat: Seat,
}

struct Seat(Arc<Seats>);

impl Seats {
    /// Three quarters of what the process may have.
    pub(super) fn of_process() -> Arc<Self> {
        let limit = rustix::process::getrlimit(Resource::Nofile).current;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        Self::up_to(limit - limit / 4)
    }

    pub(super) fn up_to(max: usize) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), max })
    }

    /// What `open` gives, if one more may be had.
    pub(super) fn hold(
        self: &Arc<Self>,
        name: &str,
        open: impl FnOnce() -> rustix::io::Result<OwnedFd>,
    ) -> Result<Held, FsError> {
        let one_more = |taken: usize| (taken < self.max).then_some(taken + 1);
        if self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            let what = format!(
                "{} files and directories are in use, as many as this server may; \
                 close some, or raise the limit on open files (ulimit -n)",
                self.max
            );
            return Err(FsError::because(Kind::Io, name, what));
        }
        let _seat = Seat(self.clone());
        open().map(|fd| Held { fd, _seat }).map_err(|error| told(name, error))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
