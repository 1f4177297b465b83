//! The memory engine: prefetch now, copy when the thread has its next turn.
//!
//! There is no device that copies in the background; the processor's own
//! prefetch is the DMA engine, and a turn of the other threads is the time it
//! gets. Where that cannot win (near data, sequential or long blocks) the copy
//! is made at once.

use std::ptr;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Asks for the cache line at `address`.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for all lines of a range.
#[inline(always)]
pub(crate) fn prefetch_range(start: *const u8, len: usize) {
    let mut at = start;
    let end = start.wrapping_add(len);
    loop {
        prefetch(at);
        at = at.wrapping_add(LINE_BYTES);
        if at >= end {
            break;
        }
    }
    // The last byte may lie one line further when the start is not aligned.
    prefetch(end.wrapping_sub(1));
}

/// Waits until all loads so far are done: stands for the Cell's in-order core
/// in the *waited* discipline of the experiments (LFENCE).
#[inline(always)]
pub(crate) fn wait_for_loads() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: LFENCE is part of SSE2, which every x86-64 has.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Copies from memory nobody writes.
///
/// # Safety
/// 1. `len` bytes are readable at `source` and writable at `target`.
/// 2. The ranges do not overlap, and nobody writes either meanwhile.
#[inline(always)]
pub(crate) unsafe fn copy_quiet(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's conditions are those of the copy.
    unsafe { ptr::copy_nonoverlapping(source, target, len) };
}

/// Copies between a local store and memory that other accelerators may write
/// at the same time. Racing copies leave a mixture of bytes, nothing worse:
/// the copy is done by instructions the compiler does not see through.
///
/// # Safety
/// `len` bytes are readable at `source` and writable at `target`, and the
/// ranges do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_racing(source: *const u8, target: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's conditions; every access of the assembly lies in
    // the two ranges.
    unsafe {
        copy_sse2(source, target, len);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as above, byte by byte.
    unsafe {
        use std::sync::atomic::{AtomicU8, Ordering};
        for i in 0..len {
            let byte = AtomicU8::from_ptr(source.add(i).cast_mut()).load(Ordering::Relaxed);
            AtomicU8::from_ptr(target.add(i)).store(byte, Ordering::Relaxed);
        }
    }
}

/// # Safety
/// As `copy_racing`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_sse2(mut source: *const u8, mut target: *mut u8, mut len: usize) {
    use std::arch::asm;
    /// From here on the string move, made for it, is as fast.
    const STRING_MOVE_BYTES: usize = 2048;
    if len >= STRING_MOVE_BYTES {
        // SAFETY: moves exactly `len` bytes upwards; the ranges are disjoint.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rsi") source => _, inout("rdi") target => _,
                 options(nostack, preserves_flags));
        }
        return;
    }
    while len >= 64 {
        // SAFETY: 64 bytes are left in both ranges.
        unsafe {
            asm!("movdqu {a}, [{s}]", "movdqu {b}, [{s} + 16]", "movdqu {c}, [{s} + 32]", "movdqu {d}, [{s} + 48]",
                 "movdqu [{t}], {a}", "movdqu [{t} + 16], {b}", "movdqu [{t} + 32], {c}", "movdqu [{t} + 48], {d}",
                 s = in(reg) source, t = in(reg) target, a = out(xmm_reg) _, b = out(xmm_reg) _,
                 c = out(xmm_reg) _, d = out(xmm_reg) _, options(nostack, preserves_flags));
            source = source.add(64);
            target = target.add(64);
        }
        len -= 64;
    }
    while len >= 16 {
        // SAFETY: 16 bytes are left in both ranges.
        unsafe {
            asm!("movdqu {a}, [{s}]", "movdqu [{t}], {a}", s = in(reg) source, t = in(reg) target,
                 a = out(xmm_reg) _, options(nostack, preserves_flags));
            source = source.add(16);
            target = target.add(16);
        }
        len -= 16;
    }
    while len > 0 {
        // SAFETY: a byte is left in both ranges.
        unsafe {
            asm!("mov {a}, byte ptr [{s}]", "mov byte ptr [{t}], {a}", s = in(reg) source, t = in(reg) target,
                 a = out(reg_byte) _, options(nostack, preserves_flags));
            source = source.add(1);
            target = target.add(1);
        }
        len -= 1;
    }
}
