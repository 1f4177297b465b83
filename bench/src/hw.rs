//! What safe Rust cannot say: prefetch, the load fence, a chain of one-cycle
//! instructions, memory with or without huge pages, and page cache residency.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// The page size asked of the kernel for a [`Mem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB pages (`MADV_NOHUGEPAGE`).
    Small,
    /// 2 MiB pages where the kernel has them (`MADV_HUGEPAGE`).
    Huge,
}

impl Pages {
    /// The name used in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Pages::Small => "4k",
            Pages::Huge => "huge",
        }
    }
}

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Asks for the cache line of `place`; no effect on what the program computes.
#[inline(always)]
pub(crate) fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; SSE is part of x86_64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Name of the instruction behind `load_fence`.
pub const LOAD_FENCE: &str = if cfg!(target_arch = "x86_64") { "lfence" } else { "fence(SeqCst)" };

/// Lets nothing after it start before every load before it has arrived: what
/// an in-order core does by itself.
#[inline(always)]
pub(crate) fn load_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: lfence has no operands and touches no memory; SSE2 is part of x86_64.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Runs `rounds` x 64 instructions that each wait for the one before and take
/// one cycle. Register to register: recent cores fold small constants away.
#[inline(never)]
pub(crate) fn one_cycle_chain(rounds: u64) -> u64 {
    let (mut x, k) = (1_u64, std::hint::black_box(3_u64));
    for _ in 0..rounds {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: adds two registers, no memory, no stack.
        unsafe {
            std::arch::asm!(
                ".rept 64", "add {x}, {k}", ".endr",
                x = inout(reg) x, k = in(reg) k, options(pure, nomem, nostack)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        for _ in 0..32 {
            x = x.rotate_left(7).wrapping_add(k);
        }
    }
    x
}

/// A slice in its own mapping, with the page size asked for, every page
/// touched, aligned to 2 MiB. Elements are not dropped.
#[derive(Debug)]
pub struct Mem<T> {
    map: NonNull<c_void>,
    map_bytes: usize,
    first: NonNull<T>,
    len: usize,
    pages: Pages,
}

// SAFETY: Mem owns its mapping and hands out its elements as a Vec does.
unsafe impl<T: Send> Send for Mem<T> {}
// SAFETY: as above; a shared Mem gives shared references only.
unsafe impl<T: Sync> Sync for Mem<T> {}

impl<T> Mem<T> {
    /// Maps room for `len` elements and fills it with `element(index)`.
    ///
    /// # Errors
    /// When the kernel has not that much memory, or refuses the page size.
    pub fn from_fn(
        len: usize,
        pages: Pages,
        mut element: impl FnMut(usize) -> T,
    ) -> io::Result<Self> {
        const { assert!(!std::mem::needs_drop::<T>() && align_of::<T>() <= HUGE_PAGE_BYTES) };
        let too_large =
            || io::Error::new(io::ErrorKind::OutOfMemory, "more than the address space");
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(too_large)?.max(1);
        let map_bytes = bytes.checked_add(2 * HUGE_PAGE_BYTES).ok_or_else(too_large)?;
        // SAFETY: a private anonymous mapping at an address the kernel picks overlays nothing.
        let map = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                map_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let first = map.wrapping_byte_add(map.align_offset_bytes(HUGE_PAGE_BYTES)).cast::<T>();
        let (Some(map), Some(first)) = (NonNull::new(map), NonNull::new(first)) else {
            return Err(io::Error::other("the kernel mapped memory at address 0"));
        };
        let memory = Self { map, map_bytes, first, len, pages };
        let advice = match pages {
            Pages::Small => Advice::LinuxNoHugepage,
            Pages::Huge => Advice::LinuxHugepage,
        };
        let whole_pages = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        // SAFETY: the range lies inside the mapping just made, which is two
        // huge pages longer than asked for; the advice only picks page sizes.
        let advised = unsafe { madvise(first.as_ptr().cast(), whole_pages, advice) };
        if advised.is_err() && pages == Pages::Huge {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel has no transparent huge pages; use --pages 4k",
            ));
        }
        for index in 0..len {
            // SAFETY: index < len, and the mapping holds len elements from `first` on.
            unsafe { memory.first.add(index).write(element(index)) };
        }
        Ok(memory)
    }

    /// How much of it lies in huge pages, in bytes; `None` when the kernel does not say.
    #[must_use]
    pub fn huge_bytes(&self) -> Option<u64> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let (from, to) = (self.map.addr().get(), self.map.addr().get() + self.map_bytes);
        Some(huge_bytes_between(&smaps, from, to))
    }

    /// The page size asked for.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }
}

/// Sums the `AnonHugePages` lines of the mappings inside `from..to`.
fn huge_bytes_between(smaps: &str, from: usize, to: usize) -> u64 {
    let (mut inside, mut sum_kib) = (false, 0);
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or("");
        if let Some((low, high)) = first.split_once('-') {
            let hex = |text| usize::from_str_radix(text, 16);
            if let (Ok(low), Ok(high)) = (hex(low), hex(high)) {
                inside = low >= from && high <= to;
            }
        } else if inside && first == "AnonHugePages:" {
            let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok());
            sum_kib += kib.unwrap_or(0_u64);
        }
    }
    sum_kib * 1024
}

trait AlignOffset {
    fn align_offset_bytes(self, align: usize) -> usize;
}

impl AlignOffset for *mut c_void {
    fn align_offset_bytes(self, align: usize) -> usize {
        self.addr().next_multiple_of(align) - self.addr()
    }
}

impl<T> Deref for Mem<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: all len elements were written in from_fn; the mapping lives as long as self.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Mem<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in deref, and self is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl<T> Drop for Mem<T> {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in from_fn, and no reference outlives self.
        // An error would only leak it.
        let _ = unsafe { munmap(self.map.as_ptr(), self.map_bytes) };
    }
}

/// How much of a file's first `bytes` bytes the page cache holds, in bytes.
///
/// # Errors
/// When the file cannot be mapped or the kernel does not tell.
pub fn resident_bytes(file: &File, bytes: u64) -> io::Result<u64> {
    let page_bytes = rustix::param::page_size();
    let len = usize::try_from(bytes).map_err(io::Error::other)?;
    if len == 0 {
        return Ok(0);
    }
    // SAFETY: a fresh read-only mapping; its bytes are never looked at, so a
    // truncated file cannot hurt.
    let map =
        unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
    let mut pages = vec![0_u8; len.div_ceil(page_bytes)];
    // SAFETY: map is page aligned and len bytes long; pages has a byte for each of its pages.
    let failed = unsafe { libc::mincore(map, len, pages.as_mut_ptr().cast()) } != 0;
    let error = io::Error::last_os_error();
    // SAFETY: exactly the mapping made above, not used any more.
    unsafe { munmap(map, len) }?;
    if failed {
        return Err(error);
    }
    let resident = pages.iter().filter(|&&page| page & 1 == 1).count();
    Ok((resident * page_bytes) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_holds_what_was_put_in_and_is_aligned() {
        for pages in [Pages::Small, Pages::Huge] {
            let Ok(mut memory) = Mem::from_fn(300_000, pages, |index| index as u64) else {
                println!("SKIP {} pages: refused", pages.name());
                assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"));
                continue;
            };
            assert_eq!(memory.as_ptr().addr() % HUGE_PAGE_BYTES, 0);
            assert!(memory.iter().enumerate().all(|(index, &word)| word == index as u64));
            memory[7] = 1;
            assert_eq!((memory[6], memory[7], memory.len()), (6, 1, 300_000));
            if pages == Pages::Small {
                assert_eq!(memory.huge_bytes(), Some(0));
            }
        }
    }

    #[test]
    fn smaps_counts_only_the_range() {
        let smaps = "1000-3000 rw-p 0 0\nAnonHugePages: 2 kB\n3000-4000 rw-p\nAnonHugePages: 4 kB\n\
                     8000-9000 rw-p\nAnonHugePages: 8 kB\n";
        assert_eq!(huge_bytes_between(smaps, 0x1000, 0x4000), 6 * 1024);
        assert_eq!(huge_bytes_between(smaps, 0x3000, 0x9000), 12 * 1024);
    }

    #[test]
    fn the_chain_adds_64_times_a_round() {
        if cfg!(target_arch = "x86_64") {
            assert_eq!(one_cycle_chain(10), 1 + 10 * 64 * 3);
        }
    }
}
