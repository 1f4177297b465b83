//! Copies between memory and local stores, by instructions the compiler does
//! not see through where others may write the same memory.

use std::ptr;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Copies from memory nobody writes.
///
/// # Safety
/// 1. `len` bytes are readable at `source` and writable at `target`.
/// 2. The ranges do not overlap, and nobody writes either meanwhile.
#[inline(always)]
pub(crate) unsafe fn copy_quiet(source: *const u8, target: *mut u8, len: usize) {
    const CHUNK: usize = 16;
    // SAFETY: the caller's conditions are those of the copy; the chunks below
    // may overlap each other, and lie in the ranges.
    unsafe {
        if !(CHUNK..=4 * CHUNK).contains(&len) {
            return ptr::copy_nonoverlapping(source, target, len);
        }
        // Short blocks without a call: two or four chunks, from both ends.
        let chunk = |at: usize| ptr::copy_nonoverlapping(source.add(at), target.add(at), CHUNK);
        chunk(0);
        if len > 2 * CHUNK {
            chunk(CHUNK);
            chunk(len - 2 * CHUNK);
        }
        chunk(len - CHUNK);
    }
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
    // SAFETY: the caller's conditions.
    unsafe { copy_racing_by(source, target, len, false) };
}

/// As `copy_racing`; `whole` is `moves_whole_lines`, asked before.
///
/// # Safety
/// As `copy_racing`; `whole` only where the processor can.
#[inline(always)]
pub(crate) unsafe fn copy_racing_by(source: *const u8, target: *mut u8, len: usize, whole: bool) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's conditions; every access of the assembly lies in
    // the two ranges.
    unsafe {
        copy_x86(source, target, len, whole);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as above, byte by byte.
    unsafe {
        use std::sync::atomic::{AtomicU8, Ordering};
        let _ = whole;
        for i in 0..len {
            let byte = AtomicU8::from_ptr(source.add(i).cast_mut()).load(Ordering::Relaxed);
            AtomicU8::from_ptr(target.add(i)).store(byte, Ordering::Relaxed);
        }
    }
}

/// Zeros in memory that others may copy from or to at the same time.
///
/// # Safety
/// `len` bytes are writable at `target`.
pub(crate) unsafe fn zero_racing(target: *mut u8, len: usize) {
    const ZEROS: [u8; 4096] = [0; 4096];
    for done in (0..len).step_by(ZEROS.len()) {
        let piece = ZEROS.len().min(len - done);
        // SAFETY: a piece of the caller's range.
        unsafe { copy_racing(ZEROS.as_ptr(), target.add(done), piece) };
    }
}

/// Whether one instruction moves a line, which is worth while for what was
/// prefetched: a prefetch whose page is not in the TLB is not retired before its
/// page walk is over, and the next thread's walk begins meanwhile only if all
/// between the two fits in the reorder buffer. Elsewhere narrow loads are better:
/// one that spans several of the program's last stores waits for them.
#[inline(always)]
pub(crate) fn moves_whole_lines() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Copies the line `ON` bytes on, by one load and one store if `whole`, which is
/// `moves_whole_lines`.
///
/// # Safety
/// As `copy_racing`, for `LINE_BYTES`; `whole` only where the processor can.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_line<const ON: usize>(source: *const u8, target: *mut u8, whole: bool) {
    use std::arch::asm;
    // SAFETY: the caller's conditions: 64 bytes of both are touched. The wide
    // register is one that SSE does not have: written, it slows no SSE
    // instruction that follows.
    unsafe {
        if whole {
            asm!("vmovdqu64 zmm16, [{s} + {on}]", "vmovdqu64 [{t} + {on}], zmm16",
                 s = in(reg) source, t = in(reg) target, on = const ON,
                 out("xmm16") _, options(nostack, preserves_flags));
        } else {
            asm!(
                "movdqu {a}, [{s} + {on}]", "movdqu {b}, [{s} + {on} + 16]",
                "movdqu {c}, [{s} + {on} + 32]", "movdqu {d}, [{s} + {on} + 48]",
                "movdqu [{t} + {on}], {a}", "movdqu [{t} + {on} + 16], {b}",
                "movdqu [{t} + {on} + 32], {c}", "movdqu [{t} + {on} + 48], {d}",
                s = in(reg) source, t = in(reg) target, on = const ON,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack, preserves_flags));
        }
    }
}

/// As `copy_racing`; `whole` as in `copy_line`.
///
/// # Safety
/// As both.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_x86(mut source: *const u8, mut target: *mut u8, mut len: usize, whole: bool) {
    use std::arch::asm;
    /// From here on the string move, made for it, is as fast.
    const STRING_MOVE_BYTES: usize = 2048;
    /// As far, where only one of the two is at the start of a line: it starts 130 ns later.
    const ODD_STRING_MOVE_BYTES: usize = 16 << 10;
    const FOUR_LINES: usize = 4 * LINE_BYTES;
    if len >= STRING_MOVE_BYTES {
        let head = target.align_offset(LINE_BYTES);
        if head != 0 && head <= LINE_BYTES {
            // SAFETY: both ranges hold a line and more.
            unsafe {
                copy_line::<0>(source, target, whole);
                (source, target) = (source.add(head), target.add(head));
            }
            len -= head;
        }
        if (source as usize).is_multiple_of(LINE_BYTES) || len >= ODD_STRING_MOVE_BYTES {
            // SAFETY: moves exactly `len` bytes upwards; the ranges are disjoint.
            unsafe {
                asm!("rep movsb", inout("rcx") len => _, inout("rsi") source => _, inout("rdi") target => _,
                     options(nostack, preserves_flags));
            }
            return;
        }
    }
    while len >= FOUR_LINES {
        // SAFETY: four lines are left in both ranges.
        unsafe {
            copy_line::<0>(source, target, whole);
            copy_line::<LINE_BYTES>(source, target, whole);
            copy_line::<{ 2 * LINE_BYTES }>(source, target, whole);
            copy_line::<{ 3 * LINE_BYTES }>(source, target, whole);
            (source, target) = (source.add(FOUR_LINES), target.add(FOUR_LINES));
        }
        len -= FOUR_LINES;
    }
    while len >= LINE_BYTES {
        // SAFETY: a line is left in both ranges.
        unsafe {
            copy_line::<0>(source, target, whole);
            (source, target) = (source.add(LINE_BYTES), target.add(LINE_BYTES));
        }
        len -= LINE_BYTES;
    }
    if len == 0 {
        return;
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
