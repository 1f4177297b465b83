//! The memory engine: prefetch now, copy when the thread has its next turn.
//!
//! There is no device that copies in the background; the processor's own
//! prefetch is the DMA engine, and a turn of the other threads is the time it
//! gets. Where that cannot win (near data, sequential or long blocks) the copy
//! is made at once.

use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::copy::{LINE_BYTES, copy_quiet, copy_racing, copy_racing_by, moves_whole_lines};
use crate::arena::Arena;
use crate::queue::Tag;
use crate::store::Buf;

/// Where a prefetched line goes, as the instruction's hint: the first-level cache.
const INTO_L1: i32 = 3;
/// The second-level cache: where many lines are under way, the first has too
/// few buffers for misses, and evicts what came early.
const INTO_L2: i32 = 2;

/// Asks for the cache line at `address`.
#[inline(always)]
fn prefetch<const INTO: i32>(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<INTO>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for all lines of a range.
#[inline(always)]
fn prefetch_range(start: *const u8, len: usize) {
    let end = start.wrapping_add(len);
    if len <= LINE_BYTES {
        prefetch::<INTO_L1>(start);
    } else {
        let mut at = start;
        while at < end {
            prefetch::<INTO_L2>(at);
            at = at.wrapping_add(LINE_BYTES);
        }
    }
    // The end may lie one line further when the start is not aligned.
    if !(start as usize).is_multiple_of(LINE_BYTES) {
        prefetch::<INTO_L1>(end.wrapping_sub(1));
    }
}

/// Asks for all lines of an item, which mostly are known to be one.
#[inline(always)]
pub(crate) fn prefetch_item<T: ?Sized>(item: &T) {
    let (start, len) = (ptr::from_ref(item).cast(), size_of_val(item));
    // An item no larger than its alignment does not cross a line.
    if len <= align_of_val(item).min(LINE_BYTES) {
        prefetch::<INTO_L1>(start);
    } else {
        prefetch_range(start, len);
    }
}

/// How memory transfers are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryPath {
    /// Prefetch and yield where the region exceeds the near cache and access
    /// is irregular, else straight.
    #[default]
    Auto,
    /// Always prefetch and yield.
    Interleave,
    /// Always copy at once.
    Straight,
}

/// A block this long occupies the processor's own prefetchers by itself.
const STRAIGHT_FROM_BYTES: usize = 4096;

/// How far ahead of sequential copies lines are asked for. Like the time of a
/// miss, it does not depend on the blocks: 16 of 128 bytes, or 2 of 1 KiB.
const AHEAD_BYTES: usize = 4096;

/// Long copies ask for lines ahead every so many bytes.
const LONG_PIECE_BYTES: usize = 1024;

/// How much of a block is asked for before its thread gives way. A core keeps
/// about so many lines under way; what is asked for beyond them is dropped or
/// holds up the others, and the copy's own stream brings it sooner.
const ASKED_BYTES_MAX: usize = 768;

/// A copy into a local store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) source: *const u8,
    pub(crate) target: *mut u8,
    pub(crate) len: usize,
    /// Others may write the source meanwhile.
    pub(crate) racing: bool,
}

/// Copies a sequential block, line by line, and with each line asks for the one
/// `AHEAD_BYTES` further on: asked for all at once they would stand in
/// the way of the copy's own.
///
/// # Safety
/// As `copy_racing`.
#[inline(always)]
unsafe fn copy_asking(copy: Copy) {
    let Copy { source, target, len, .. } = copy;
    let lines = len - len % LINE_BYTES;
    for done in (0..lines).step_by(LINE_BYTES) {
        prefetch::<INTO_L2>(source.wrapping_add(done + AHEAD_BYTES));
        // SAFETY: a line of the caller's ranges.
        unsafe { copy_racing(source.add(done), target.add(done), LINE_BYTES) };
    }
    // SAFETY: what is left of them.
    unsafe { copy_racing(source.add(lines), target.add(lines), len - lines) };
}

/// # Safety
/// As `MemoryEngine::carry_out`, and as `copy_racing_by` for `whole`.
#[inline(always)]
unsafe fn carry_out_by(copy: Copy, whole: bool) {
    let Copy { source, target, len, racing } = copy;
    // SAFETY: the caller's conditions.
    unsafe {
        if racing {
            copy_racing_by(source, target, len, whole);
        } else {
            copy_quiet(source, target, len);
        }
    }
}

/// A prefetched get whose copy is still to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefetched(pub(crate) u32);

/// No entry.
const NONE: u32 = u32::MAX;

/// What was prefetched: all in cells, because every transfer passes here.
struct Entry {
    /// Null once the copy was made or withdrawn.
    source: Cell<*const u8>,
    target: Cell<*mut u8>,
    len: Cell<usize>,
    next_free: Cell<u32>,
    tag: Cell<Tag>,
    racing: Cell<bool>,
    barrier: Cell<bool>,
    /// Of blocks longer than a line: may exchange its target for another.
    may_move: Cell<bool>,
}

/// The memory engine of one accelerator.
pub(crate) struct MemoryEngine {
    arena: Arc<Arena>,
    path: MemoryPath,
    /// Memory up to this length is read without a prefetch.
    near_bytes: u64,
    /// As `moves_whole_lines`.
    whole_lines: bool,
    last_end: Cell<*const u8>,
    entries: Box<[Entry]>,
    free: Cell<u32>,
    in_flight: Cell<usize>,
    /// Gets in flight that later ones of their tag must not pass.
    barriers: Cell<usize>,
    /// The last get begun that may move, unless it has landed: its target was
    /// computed on just now, and nothing there is wanted any more.
    warm: Cell<u32>,
}

impl MemoryEngine {
    pub(crate) fn new(depth: usize, path: MemoryPath, near_bytes: u64, arena: Arc<Arena>) -> Self {
        let depth = depth.max(1) as u32;
        let entry = |index: u32| Entry {
            source: Cell::new(ptr::null()),
            target: Cell::new(ptr::null_mut()),
            len: Cell::new(0),
            next_free: Cell::new(if index + 1 < depth { index + 1 } else { NONE }),
            tag: Cell::new(Tag::new(0)),
            racing: Cell::new(false),
            barrier: Cell::new(false),
            may_move: Cell::new(false),
        };
        let near_bytes = match path {
            MemoryPath::Auto => near_bytes,
            MemoryPath::Interleave => 0,
            MemoryPath::Straight => u64::MAX,
        };
        Self {
            arena,
            path,
            near_bytes,
            whole_lines: moves_whole_lines(),
            last_end: Cell::new(ptr::null()),
            entries: (0..depth).map(entry).collect(),
            free: Cell::new(0),
            in_flight: Cell::new(0),
            barriers: Cell::new(0),
            warm: Cell::new(NONE),
        }
    }

    /// Whether memory of this length is near enough to be read without a prefetch.
    #[inline(always)]
    pub(crate) fn is_near(&self, len_bytes: u64) -> bool {
        len_bytes <= self.near_bytes
    }

    /// Makes a copy at once where that is best: of near, long or sequential
    /// blocks, that is, those that start where the last copy of all ended, or that
    /// `goes_on` knows, which is told this one's end. Whether it did.
    ///
    /// # Safety
    /// As `carry_out`.
    #[inline(always)]
    pub(crate) unsafe fn copy_straight(
        &self,
        region_bytes: u64,
        copy: Copy,
        goes_on: impl FnOnce(*const u8) -> bool,
    ) -> bool {
        if region_bytes > self.near_bytes {
            if self.path == MemoryPath::Interleave {
                return false;
            }
            let end = copy.source.wrapping_add(copy.len);
            let known = self.last_end.replace(end) == copy.source;
            let goes_on = goes_on(end) || known;
            if copy.len >= STRAIGHT_FROM_BYTES {
                // SAFETY: the caller's conditions.
                unsafe {
                    let Copy { source, target, len, racing } = copy;
                    self.carry_out_long(source, target, len, racing, goes_on);
                }
                return true;
            }
            if !goes_on {
                return false;
            }
            if copy.len >= LINE_BYTES {
                // SAFETY: the caller's conditions.
                unsafe { copy_asking(copy) };
                return true;
            }
        }
        // SAFETY: the caller's conditions.
        unsafe { self.carry_out(copy) };
        true
    }

    /// As `carry_out`, with the lines further on asked for on the way: those of
    /// the copy, and behind its end if it goes on there. Takes the copy's fields
    /// apart: as one it would be written to the stack in every short get.
    ///
    /// # Safety
    /// As `carry_out`.
    #[cold]
    #[inline(never)]
    unsafe fn carry_out_long(
        &self,
        source: *const u8,
        target: *mut u8,
        len: usize,
        racing: bool,
        goes_on: bool,
    ) {
        for done in (0..len).step_by(LONG_PIECE_BYTES) {
            let piece = LONG_PIECE_BYTES.min(len - done);
            let (source, target) = (source.wrapping_add(done), target.wrapping_add(done));
            if goes_on || done + AHEAD_BYTES < len {
                prefetch_range(source.wrapping_add(AHEAD_BYTES), piece);
            }
            // SAFETY: pieces of the caller's ranges.
            unsafe { self.carry_out_asked(Copy { source, target, len: piece, racing }) };
        }
    }

    /// Asks for the source of a copy that is to be made after a turn.
    #[inline(always)]
    pub(crate) fn ask(&self, source: *const u8, len: usize) {
        prefetch_range(source, len.min(ASKED_BYTES_MAX));
    }

    #[inline(always)]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    #[inline(always)]
    pub(crate) fn has_barriers(&self) -> bool {
        self.barriers.get() > 0
    }

    /// Carries a copy out.
    ///
    /// # Safety
    /// `len` bytes are readable at `source` and writable at `target`, the
    /// ranges do not overlap, and nobody writes the source unless `racing`.
    #[inline(always)]
    pub(crate) unsafe fn carry_out(&self, copy: Copy) {
        // SAFETY: the caller's conditions.
        unsafe { carry_out_by(copy, false) };
    }

    /// Carries a copy out whose source was asked for before.
    ///
    /// # Safety
    /// As `carry_out`.
    #[inline(always)]
    pub(crate) unsafe fn carry_out_asked(&self, copy: Copy) {
        // SAFETY: the caller's conditions; `whole_lines` is this processor's.
        unsafe { carry_out_by(copy, self.whole_lines) };
    }

    /// Prefetches the source of a copy into `buf`; `None` if all entries are taken.
    ///
    /// # Safety
    /// The conditions of `carry_out` hold until the copy is landed or
    /// withdrawn, or for good if it never is. The target is the start of `buf`.
    #[inline(always)]
    pub(crate) unsafe fn begin(
        &self,
        copy: Copy,
        tag: Tag,
        barrier: bool,
        buf: &Buf,
    ) -> Option<Prefetched> {
        let index = self.free.get();
        let entry = self.entries.get(index as usize)?;
        self.free.set(entry.next_free.get());
        if copy.len > LINE_BYTES {
            let may_move = buf.may_move(&self.arena, copy.len);
            entry.may_move.set(may_move);
            self.warm.set(if may_move { index } else { NONE });
        }
        self.ask(copy.source, copy.len);
        entry.source.set(copy.source);
        entry.target.set(copy.target);
        entry.len.set(copy.len);
        entry.tag.set(tag);
        entry.racing.set(copy.racing);
        entry.barrier.set(barrier);
        self.in_flight.set(self.in_flight.get() + 1);
        if barrier {
            self.barriers.set(self.barriers.get() + 1);
        }
        Some(Prefetched(index))
    }

    /// Makes the copy, unless an ordered transfer had it made before; `buf` is
    /// the one it was begun with.
    #[inline(always)]
    pub(crate) fn land(&self, prefetched: Prefetched, buf: &mut Buf) {
        if self.warm.get() != NONE {
            self.move_to_warm(prefetched);
        }
        self.release(prefetched, buf, true);
    }

    /// Forgets the copy; `buf` is the one it was begun with.
    pub(crate) fn withdraw(&self, prefetched: Prefetched, buf: &mut Buf) {
        self.warm.set(NONE);
        self.release(prefetched, buf, false);
    }

    /// Exchanges the target for that of the last get, where both may move and
    /// are as long: of many threads' buffers only the last few are in the
    /// first-level cache.
    #[cold]
    #[inline(never)]
    fn move_to_warm(&self, prefetched: Prefetched) {
        let warm = self.warm.replace(NONE);
        let entries = (self.entries.get(prefetched.0 as usize), self.entries.get(warm as usize));
        let (Some(entry), Some(warm)) = entries else { return };
        let is_open = !entry.source.get().is_null() && entry.may_move.get();
        if is_open && entry.len.get() > LINE_BYTES && entry.len == warm.len {
            // Not `swap`, which looks whether the two overlap.
            let target = entry.target.replace(warm.target.get());
            warm.target.set(target);
        }
    }

    #[inline(always)]
    fn release(&self, prefetched: Prefetched, buf: &mut Buf, copied: bool) {
        // The number came from `begin`.
        let Some(entry) = self.entries.get(prefetched.0 as usize) else { return };
        self.end(entry, copied);
        if let Some(start) = NonNull::new(entry.target.get()) {
            // SAFETY: the buffer's own slot, or one for which `move_to_warm`
            // exchanged it with another of the arena and as long.
            unsafe { buf.set_start(start) };
        }
        entry.next_free.set(self.free.replace(prefetched.0));
    }

    #[inline(always)]
    fn end(&self, entry: &Entry, copied: bool) {
        let source = entry.source.replace(ptr::null());
        if source.is_null() {
            return;
        }
        self.in_flight.set(self.in_flight.get() - 1);
        if entry.barrier.get() {
            self.barriers.set(self.barriers.get() - 1);
        }
        if copied {
            let (target, len, racing) = (entry.target.get(), entry.len.get(), entry.racing.get());
            // SAFETY: `begin`'s conditions still hold: this is the one time
            // that the copy is landed, withdrawn or settled.
            unsafe { self.carry_out_asked(Copy { source, target, len, racing }) };
        }
    }

    /// Makes every copy of `tag` now, so that an ordered transfer may follow.
    #[cold]
    pub(crate) fn settle(&self, tag: Tag) {
        self.warm.set(NONE);
        if self.in_flight.get() > 0 {
            self.entries
                .iter()
                .filter(|entry| entry.tag.get() == tag)
                .for_each(|entry| self.end(entry, true));
        }
    }

    /// Makes one copy now, so that something else may start.
    #[cold]
    pub(crate) fn settle_one(&self) {
        self.warm.set(NONE);
        if let Some(entry) = self.entries.iter().find(|entry| !entry.source.get().is_null()) {
            self.end(entry, true);
        }
    }
}
