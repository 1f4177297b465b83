//! What the files in memory may take together.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

pub(super) struct Account {
    bytes_max: u64,
    used: AtomicU64,
    pub(super) page_bytes: u64,
    /// Long files lie in huge pages where the system has them.
    pub(super) huge_pages: bool,
}

impl Account {
    pub(super) fn new(bytes_max: u64, huge_pages: bool) -> Self {
        let page_bytes = rustix::param::page_size() as u64;
        Self { bytes_max, used: AtomicU64::new(0), page_bytes, huge_pages }
    }

    /// `None` if there is no room for so many bytes more.
    pub(super) fn take(&self, bytes: u64) -> Option<()> {
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        self.used.fetch_update(Relaxed, Relaxed, more).ok().map(|_| ())
    }

    pub(super) fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }
}
