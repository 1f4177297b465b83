//! Descriptors, counted: servers leave some for the rest of their process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::process::Resource;

use super::step::told;
use crate::error::{FsError, Kind};

/// How many descriptors servers have, and may have.
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
    /// Those of all servers of this process: three quarters of what it could have when the
    /// first was made.
    pub(super) fn of_process() -> Arc<Self> {
        static ALL: OnceLock<Arc<Seats>> = OnceLock::new();
        ALL.get_or_init(Self::within_limit).clone()
    }

    fn within_limit() -> Arc<Self> {
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
                "{} files and directories are in use, as many as servers of this process may; \
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_servers_of_a_process_share() {
        assert!(Arc::ptr_eq(&Seats::of_process(), &Seats::of_process()));
    }
}
