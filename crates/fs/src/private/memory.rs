//! What changes may take, and take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{FsError, Kind};

/// The memory of one server.
pub(super) struct Memory {
    used: AtomicU64,
    max: u64,
}

impl Memory {
    pub(super) fn up_to(max: u64) -> Arc<Self> {
        Arc::new(Self { used: AtomicU64::new(0), max })
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// `bytes` of it, for the file `name`.
    pub(super) fn take(self: &Arc<Self>, name: &str, bytes: usize) -> Result<Share, FsError> {
        let more = |used: u64| used.checked_add(bytes as u64).filter(|used| *used <= self.max);
        if self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            let what = format!(
                "no space left: changes that stay in memory may take {} bytes; give more, \
                 or remove some files",
                self.max
            );
            return Err(FsError::because(Kind::NoSpace, name, what));
        }
        Ok(Share { memory: self.clone(), bytes: bytes as u64 })
    }
}

/// A part of it, given back when dropped.
pub(super) struct Share {
    memory: Arc<Memory>,
    bytes: u64,
}

impl Share {
    /// One more part, given back with this one.
    pub(super) fn join(&mut self, mut other: Share) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
