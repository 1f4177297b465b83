//! Pinned-address memory behind a local store.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

/// Every buffer starts on a multiple of this: the Cell's cache line, two of
/// today's, and the unit its DMA engine moved fastest (CellStream, Figure 6).
pub const BUF_ALIGN_BYTES: usize = 128;

/// A page-aligned, zeroed mapping that never moves and is unmapped on drop.
#[derive(Debug)]
pub(crate) struct Arena {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: an arena is only an address range; all access to its bytes goes
// through buffers, of which each byte has one owner at a time.
unsafe impl Send for Arena {}
// SAFETY: as above; a shared arena gives out addresses, never bytes.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `len_bytes`, rounded up to whole pages.
    pub(crate) fn new(len_bytes: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let len_bytes = len_bytes
            .max(1)
            .checked_next_multiple_of(page)
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let prot = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: a new anonymous private mapping at an address of the
        // kernel's choice touches no existing memory.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len_bytes,
                prot,
                rustix::mm::MapFlags::PRIVATE,
            )?
        };
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { start, len_bytes })
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Asks for huge pages, or for none. An advice: what the kernel refuses stays as it was.
    pub(crate) fn advise_huge_pages(&self, wanted: bool) {
        use rustix::mm::Advice;
        let advice = if wanted { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: this arena's own mapping; the advice only picks page sizes.
        let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len_bytes, advice) };
    }

    /// Gives the pages back that lie in `range` whole; they are zeros then.
    ///
    /// # Safety
    /// Nobody has a reference to bytes of them.
    pub(crate) unsafe fn discard(&self, range: Range<usize>) -> io::Result<()> {
        let page = rustix::param::page_size();
        let first = range.start.checked_next_multiple_of(page).unwrap_or(self.len_bytes);
        let end = range.end.min(self.len_bytes);
        let end = end - end % page;
        if first >= end {
            return Ok(());
        }
        let advice = rustix::mm::Advice::LinuxDontNeed;
        // SAFETY: whole pages of this arena's own anonymous mapping, which read
        // as zeros afterwards; nobody holds references, as the caller says.
        unsafe { rustix::mm::madvise(self.at(first).as_ptr().cast(), end - first, advice)? };
        Ok(())
    }

    /// The address `offset` bytes in; `offset` is at most the length.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(
            offset <= self.len_bytes,
            "offset {offset} outside an arena of {} bytes",
            self.len_bytes
        );
        // SAFETY: inside the mapping or one past its end, by the check above.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and nobody holds a buffer or
        // a transfer in it any more: both keep the arena alive.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len_bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping an arena cannot fail");
    }
}
