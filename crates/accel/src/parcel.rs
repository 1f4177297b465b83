//! A buffer on its way from one local store to another.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::arena::Arena;
use crate::engine::memory;
use crate::store::Buf;

/// A buffer offered by another accelerator; copied out under the lock of the
/// parcels, so that taking an offer back is a matter of removing it.
pub(crate) struct Parcel {
    pub(crate) from: usize,
    pub(crate) number: u64,
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
    /// Keeps the bytes mapped even if the sender is gone.
    pub(crate) _arena: Arc<Arena>,
    pub(crate) taken: Arc<AtomicBool>,
}

// SAFETY: the bytes belong to a buffer its sender does not touch before
// `taken` is set or the parcel is removed, both under the parcels' lock.
unsafe impl Send for Parcel {}

impl Parcel {
    /// Copies the parcel into `buf`, which is large enough.
    pub(crate) fn open(&self, buf: &mut Buf) {
        buf.set_view(0..self.len);
        // SAFETY: the sender keeps the bytes mapped (`arena`) and untouched
        // until `taken`; another local store's bytes cannot be this buffer's
        // unless an accelerator sends to itself, from another buffer.
        unsafe { memory::copy_racing(self.start.as_ptr(), buf.as_mut_ptr(), self.len) };
        self.taken.store(true, Ordering::SeqCst);
    }
}
