//! The synthetic benchmark's compute: a fixed number of cycles for each byte
//! of a block (the paper's `cycles_per_byte`), the same for every version.
//!
//! Each 8-byte word goes through `8 * CYCLES` instructions that wait for one
//! another and take one cycle each. Words wait for one another too, and so do
//! blocks and threads that share a [`Chain`]: out-of-order execution cannot
//! shorten it, so that versions differ only in how they move the data. What a
//! word becomes still depends on the word alone: results can be checked in any order.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::measure::{Sample, Spread, clock_ns};

/// Cycles per byte that exist as compiled functions (Figures 5-9's axis).
pub const CYCLES_PER_BYTE: [usize; 8] = [0, 1, 2, 4, 8, 16, 32, 64];

const ADDEND: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes between two words that the cheapest kernel touches.
const LINE_BYTES: usize = 64;

/// The order in which one accelerator computes, as data: every word's result
/// goes into the next word's computation, where a zero mask cancels it.
#[derive(Debug)]
pub struct Chain {
    last: AtomicU64,
    mask: u64,
    addend: u64,
}

impl Default for Chain {
    fn default() -> Self {
        // Hidden from the compiler, which would shorten the chain otherwise.
        Self { last: AtomicU64::new(0), mask: black_box(0), addend: black_box(ADDEND) }
    }
}

impl Chain {
    /// Reads a block; the sum of what its words become. 0 cycles per byte
    /// touches each cache line.
    #[inline]
    pub fn read<const CYCLES: usize>(&self, block: &[u8]) -> u64 {
        if CYCLES == 0 {
            return block
                .chunks(LINE_BYTES)
                .fold(0, |sum, line| sum.wrapping_add(first_word(line)));
        }
        let (words, _) = block.as_chunks::<8>();
        let (mut last, mut sum) = (self.last.load(Relaxed), 0_u64);
        for word in words {
            last = self.word::<CYCLES>(u64::from_le_bytes(*word), last);
            sum = sum.wrapping_add(last);
        }
        self.last.store(last, Relaxed);
        sum
    }

    /// Replaces each word of a block by what it becomes; their sum.
    /// 0 cycles per byte touches each cache line and changes nothing.
    #[inline]
    pub fn rewrite<const CYCLES: usize>(&self, block: &mut [u8]) -> u64 {
        if CYCLES == 0 {
            return self.read::<0>(block);
        }
        let (words, _) = block.as_chunks_mut::<8>();
        let (mut last, mut sum) = (self.last.load(Relaxed), 0_u64);
        for word in words {
            last = self.word::<CYCLES>(u64::from_le_bytes(*word), last);
            sum = sum.wrapping_add(last);
            *word = last.to_le_bytes();
        }
        self.last.store(last, Relaxed);
        sum
    }

    /// `8 * CYCLES` dependent instructions: and, xor, then pairs of rotate and add.
    #[inline(always)]
    fn word<const CYCLES: usize>(&self, word: u64, last: u64) -> u64 {
        let mut x = (last & self.mask) ^ word;
        for _ in 0..(8 * CYCLES - 2) / 2 {
            x = x.rotate_left(23).wrapping_add(self.addend);
        }
        x
    }
}

#[inline(always)]
fn first_word(line: &[u8]) -> u64 {
    line.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// What a word becomes: the plain reference.
#[must_use]
pub fn expected_word(cycles_per_byte: usize, word: u64) -> u64 {
    let pairs = (8 * cycles_per_byte).saturating_sub(2) / 2;
    (0..pairs).fold(word, |x, _| x.rotate_left(23).wrapping_add(ADDEND))
}

/// Calls a function that is generic over the cycles per byte with a value that
/// is only known when running; `None` for one that is not compiled.
macro_rules! with_cycles {
    ($cycles:expr, $function:ident $(:: $method:ident)* ($($argument:expr),* $(,)?)) => {
        match $cycles {
            0 => Some($function$(::$method)*::<0>($($argument),*)),
            1 => Some($function$(::$method)*::<1>($($argument),*)),
            2 => Some($function$(::$method)*::<2>($($argument),*)),
            4 => Some($function$(::$method)*::<4>($($argument),*)),
            8 => Some($function$(::$method)*::<8>($($argument),*)),
            16 => Some($function$(::$method)*::<16>($($argument),*)),
            32 => Some($function$(::$method)*::<32>($($argument),*)),
            64 => Some($function$(::$method)*::<64>($($argument),*)),
            _ => None,
        }
    };
}
pub(crate) use with_cycles;

/// What a compute function costs on a block in the first-level cache.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// Wanted cycles per byte.
    pub cycles_per_byte: usize,
    /// Measured cycles per byte of [`Chain::read`].
    pub read: f64,
    /// Measured cycles per byte of [`Chain::rewrite`].
    pub rewrite: f64,
}

/// Measures each of [`CYCLES_PER_BYTE`].
#[must_use]
pub fn calibrate() -> Vec<Calibration> {
    let measure = |&cycles: &usize| with_cycles!(cycles, calibration());
    CYCLES_PER_BYTE.iter().filter_map(measure).collect()
}

/// The clock is taken beside each run, because a core's frequency drifts.
fn calibration<const CYCLES: usize>() -> Calibration {
    const BLOCK_BYTES: usize = 4096;
    let chain = Chain::default();
    let mut block = vec![1_u8; BLOCK_BYTES];
    let blocks = (1_000_000 / (BLOCK_BYTES * CYCLES.max(1))).max(4) as u64;
    let bytes = blocks * BLOCK_BYTES as u64;
    let (mut reads, mut rewrites) = (Vec::new(), Vec::new());
    for _ in 0..15 {
        let cycle_ns = clock_ns();
        let read = |_| chain.read::<CYCLES>(black_box(&block));
        let read = Sample::of(bytes, || (0..blocks).map(read).fold(0, u64::wrapping_add));
        let rewrite = |_| chain.rewrite::<CYCLES>(black_box(&mut block));
        let rewrite = Sample::of(bytes, || (0..blocks).map(rewrite).fold(0, u64::wrapping_add));
        reads.push(read.item_ns() / cycle_ns);
        rewrites.push(rewrite.item_ns() / cycle_ns);
    }
    let (read, rewrite) = (Spread::of(reads).median, Spread::of(rewrites).median);
    Calibration { cycles_per_byte: CYCLES, read, rewrite }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const CYCLES: usize>() {
        let words = [0, 1, 0x0123_4567_89ab_cdef, u64::MAX];
        let block: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let wanted: Vec<u64> = words.iter().map(|&word| expected_word(CYCLES, word)).collect();
        let sum = wanted.iter().fold(0, |sum: u64, &word| sum.wrapping_add(word));
        let chain = Chain::default();
        // Twice: what was computed before must not matter.
        for _ in 0..2 {
            let mut rewritten = block.clone();
            assert_eq!(chain.rewrite::<CYCLES>(&mut rewritten), sum, "{CYCLES}");
            assert_eq!(chain.read::<CYCLES>(&block), sum, "{CYCLES}");
            let (rewritten, _) = rewritten.as_chunks::<8>();
            assert!(rewritten.iter().map(|&word| u64::from_le_bytes(word)).eq(wanted.clone()));
        }
    }

    #[test]
    fn words_become_what_the_reference_says() {
        for cycles in CYCLES_PER_BYTE.into_iter().filter(|&cycles| cycles > 0) {
            assert_eq!(with_cycles!(cycles, check()), Some(()));
        }
        assert_eq!(with_cycles!(3, check()), None);
    }

    #[test]
    fn every_word_waits_for_the_one_before() {
        // A mask of ones instead of zeros shows what a word's result goes into.
        let block = [7; 16];
        let results = [0_u64, 1].map(|before| {
            let chain = Chain { last: before.into(), mask: u64::MAX, addend: ADDEND };
            let mut blocks = [block, block];
            let sums = blocks.each_mut().map(|block| chain.rewrite::<1>(block));
            (sums, blocks.concat(), chain.read::<1>(&block), chain.read::<1>(&block))
        });
        assert_ne!(results[0].0, results[1].0);
        assert_ne!(results[0].1[..8], results[0].1[8..16]);
        assert_ne!(results[0].1[..16], results[0].1[16..]);
        assert_ne!(results[0].2, results[0].3);
    }

    #[test]
    fn nothing_to_compute_touches_each_line_and_changes_nothing() {
        let mut block = vec![0_u8; 200];
        (block[0], block[64], block[128], block[192], block[100]) = (1, 2, 3, 4, 99);
        let before = block.clone();
        assert_eq!(Chain::default().rewrite::<0>(&mut block), 10);
        assert_eq!(block, before);
    }
}
