//! The local store: a fixed arena that lends out owned, aligned buffers.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use crate::arena::{Arena, BUF_ALIGN_BYTES};

/// A local store has no room for a buffer. Shows the sum that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no space in the local store: {used_bytes} bytes in use + {wanted_bytes} wanted > {store_bytes} \
     (largest free piece: {largest_free_bytes}); use smaller or fewer buffers, or a larger local store"
)]
pub struct NoSpace {
    /// Bytes asked for, rounded up to the buffer alignment.
    pub wanted_bytes: usize,
    /// Bytes in use when asked.
    pub used_bytes: usize,
    /// The store's size.
    pub store_bytes: usize,
    /// The largest contiguous free piece.
    pub largest_free_bytes: usize,
}

/// A fixed arena, the accelerator's fast memory: the Cell's 256 KiB, here any
/// size. Memory for buffers is taken first-fit and given back on drop.
#[derive(Clone, Debug)]
pub struct LocalStore {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    arena: Arc<Arena>,
    space: RefCell<FreeList>,
}

impl LocalStore {
    /// Maps a store of `len_bytes` (rounded up to whole pages).
    pub fn new(len_bytes: usize) -> io::Result<Self> {
        let arena = Arc::new(Arena::new(len_bytes)?);
        let space = RefCell::new(FreeList::new(arena.len_bytes()));
        Ok(Self { inner: Rc::new(Inner { arena, space }) })
    }

    /// A buffer of `len_bytes`, aligned to 128 bytes.
    pub fn alloc(&self, len_bytes: usize) -> Result<Buf, NoSpace> {
        self.alloc_aligned(len_bytes, BUF_ALIGN_BYTES)
    }

    /// A buffer of `len_bytes` whose start is a multiple of `align_bytes`
    /// (a power of two; at least 128 is used, at most a page is kept).
    /// Its content is whatever was there before, or zero.
    pub fn alloc_aligned(&self, len_bytes: usize, align_bytes: usize) -> Result<Buf, NoSpace> {
        let align = align_bytes.min(rustix::param::page_size()).next_power_of_two();
        let align = align.max(BUF_ALIGN_BYTES);
        let mut space = self.inner.space.borrow_mut();
        let range = space.take(len_bytes, align)?;
        let start = self.inner.arena.at(range.start);
        let store = self.inner.clone();
        let inner = BufInner {
            start,
            view_start: 0,
            view_len: len_bytes,
            capacity_bytes: range.end - range.start,
            got_until: std::ptr::null(),
            is_movable: align == BUF_ALIGN_BYTES,
            is_abandoned: false,
            store,
        };
        Ok(Buf { inner: Box::new(inner) })
    }

    /// The store's size in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.inner.arena.len_bytes()
    }

    /// Bytes lent out.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.inner.space.borrow().used
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.inner.arena
    }
}

/// An owned piece of a local store: a slot of memory and a view into it.
/// It derefs to the view. It stays on its accelerator's OS thread.
pub struct Buf {
    /// Boxed, because buffers are moved at every transfer: one register.
    inner: Box<BufInner>,
}

struct BufInner {
    start: NonNull<u8>,
    view_start: usize,
    view_len: usize,
    capacity_bytes: usize,
    /// Where in main memory the last get into this buffer ended; never read from.
    got_until: *const u8,
    /// Aligned no more than every slot is.
    is_movable: bool,
    /// Its slot is not to be lent again.
    is_abandoned: bool,
    store: Rc<Inner>,
}

impl Buf {
    /// Bytes the slot holds, whatever the view.
    #[must_use]
    #[inline]
    pub fn capacity_bytes(&self) -> usize {
        self.inner.capacity_bytes
    }

    /// Where the view lies in the slot.
    #[must_use]
    pub fn view(&self) -> Range<usize> {
        self.inner.view_start..self.inner.view_start + self.inner.view_len
    }

    /// Moves the view: `range` counts from the slot's start.
    ///
    /// # Panics
    /// If `range` leaves the slot.
    #[inline]
    pub fn set_view(&mut self, range: Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.capacity_bytes(),
            "view {range:?} leaves a slot of {} bytes",
            self.capacity_bytes()
        );
        self.inner.view_start = range.start;
        self.inner.view_len = range.end - range.start;
    }

    /// Moves the view to the slot's first `len` bytes.
    ///
    /// # Safety
    /// `len` is at most the capacity.
    #[inline(always)]
    pub(crate) unsafe fn set_view_len(&mut self, len: usize) {
        debug_assert!(len <= self.inner.capacity_bytes);
        (self.inner.view_start, self.inner.view_len) = (0, len);
    }

    /// Remembers where a get from main memory ends; where the last one did.
    #[inline(always)]
    pub(crate) fn replace_got_until(&mut self, end: *const u8) -> *const u8 {
        std::mem::replace(&mut self.inner.got_until, end)
    }

    fn slot(&self) -> Range<usize> {
        let start = self.inner.start.addr().get() - self.arena().start().addr().get();
        start..start + self.inner.capacity_bytes
    }

    /// Whether it may exchange its slot for another one of `arena`'s that is as
    /// long, when all its content is replaced by `len` bytes.
    #[inline]
    pub(crate) fn may_move(&self, arena: &Arena, len: usize) -> bool {
        let is_whole = len == self.inner.capacity_bytes;
        is_whole && self.inner.is_movable && std::ptr::eq(&**self.arena(), arena)
    }

    /// Takes another slot.
    ///
    /// # Safety
    /// The slot is as long, of the same arena, and nobody else's from now on.
    #[inline(always)]
    pub(crate) unsafe fn set_start(&mut self, start: NonNull<u8>) {
        self.inner.start = start;
    }

    /// The slot's first byte, which transfers count from.
    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.inner.start
    }

    #[inline]
    pub(crate) fn view_start(&self) -> usize {
        self.inner.view_start
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.inner.store.arena
    }

    /// Drops the buffer without giving its slot back: somebody else still uses it.
    pub(crate) fn abandon(mut self) {
        self.inner.is_abandoned = true;
    }
}

impl Deref for Buf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the view lies in this buffer's slot of a live, initialized
        // mapping, and no transfer runs in it: a buffer in flight is owned by
        // its transfer and cannot be reached through this type.
        unsafe {
            let BufInner { start, view_start, view_len, .. } = *self.inner;
            std::slice::from_raw_parts(start.as_ptr().add(view_start), view_len)
        }
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the access unique.
        unsafe {
            let BufInner { start, view_start, view_len, .. } = *self.inner;
            std::slice::from_raw_parts_mut(start.as_ptr().add(view_start), view_len)
        }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if self.inner.is_abandoned {
            return;
        }
        self.inner.store.space.borrow_mut().give(self.slot());
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("slot", &self.slot()).field("view", &self.view()).finish()
    }
}

/// First-fit allocator over `0..len`, free pieces sorted by offset.
#[derive(Debug)]
struct FreeList {
    free: Vec<Range<usize>>,
    used: usize,
    len: usize,
}

impl FreeList {
    fn new(len: usize) -> Self {
        let whole = 0..len;
        Self { free: Vec::from([whole]), used: 0, len }
    }

    fn take(&mut self, len: usize, align: usize) -> Result<Range<usize>, NoSpace> {
        let wanted = len.max(1).checked_next_multiple_of(BUF_ALIGN_BYTES).unwrap_or(usize::MAX);
        let fit = self.free.iter().position(|piece| {
            let start = piece.start.next_multiple_of(align);
            start.checked_add(wanted).is_some_and(|end| end <= piece.end)
        });
        let Some(index) = fit else {
            let largest = self.free.iter().map(|p| p.end - p.start).max().unwrap_or(0);
            return Err(NoSpace {
                wanted_bytes: wanted,
                used_bytes: self.used,
                store_bytes: self.len,
                largest_free_bytes: largest,
            });
        };
        let piece = self.free[index].clone();
        let start = piece.start.next_multiple_of(align);
        let taken = start..start + wanted;
        let rest = [piece.start..start, taken.end..piece.end];
        self.free.splice(index..=index, rest.into_iter().filter(|r| r.start < r.end));
        self.used += wanted;
        Ok(taken)
    }

    fn give(&mut self, slot: Range<usize>) {
        self.used -= slot.end - slot.start;
        let index = self.free.partition_point(|piece| piece.start < slot.start);
        self.free.insert(index, slot);
        if index + 1 < self.free.len() && self.free[index].end == self.free[index + 1].start {
            self.free[index].end = self.free.remove(index + 1).end;
        }
        if index > 0 && self.free[index - 1].end == self.free[index].start {
            self.free[index - 1].end = self.free.remove(index).end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn exhaustion_shows_the_sum() {
        let store = LocalStore::new(8192).unwrap();
        let held = store.alloc(5000).unwrap();
        let error = store.alloc(4000).unwrap_err();
        assert_eq!((error.used_bytes, error.wanted_bytes, error.store_bytes), (5120, 4096, 8192));
        assert!(error.to_string().contains("5120 bytes in use + 4096 wanted > 8192"), "{error}");
        drop(held);
        assert_eq!(store.alloc(8192).unwrap().len(), 8192);
    }

    #[test]
    fn absurd_sizes_are_errors() {
        let store = LocalStore::new(4096).unwrap();
        assert!(store.alloc(usize::MAX).is_err());
        assert!(store.alloc(usize::MAX - 200).is_err());
    }

    proptest! {
        #[test]
        fn buffers_never_overlap_and_all_space_returns(
            steps in prop::collection::vec((0usize..3000, 0u32..3, any::<bool>()), 1..200)
        ) {
            let store = LocalStore::new(32 * 1024).unwrap();
            let mut held: Vec<(Buf, u8)> = Vec::new();
            for (number, (len, align_log, drop_one)) in steps.into_iter().enumerate() {
                if drop_one && !held.is_empty() {
                    let (buf, mark) = held.swap_remove(number % held.len());
                    prop_assert!(buf.iter().all(|b| *b == mark));
                } else if let Ok(mut buf) = store.alloc_aligned(len, BUF_ALIGN_BYTES << align_log) {
                    prop_assert_eq!(buf.as_ptr() as usize % (BUF_ALIGN_BYTES << align_log), 0);
                    buf.fill(number as u8);
                    held.push((buf, number as u8));
                }
            }
            for (buf, mark) in &held {
                prop_assert!(buf.iter().all(|b| b == mark));
            }
            held.clear();
            prop_assert_eq!(store.used_bytes(), 0);
            prop_assert_eq!(store.inner.space.borrow().free.len(), 1);
        }
    }
}
