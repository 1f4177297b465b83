//! The synthetic benchmark without an accelerator: what a loop over a slice
//! gets, plain or with prefetches some blocks ahead.

use std::hint::black_box;

use crate::args::Discipline;
use crate::blocks::Blocks;
use crate::chain::Chain;
use crate::hw::{load_fence, prefetch};

const LINE_BYTES: usize = 64;

/// Copies each block into a buffer, computes there, and copies it back if
/// `WRITE`. Prefetches the block `ahead` places further on (0: none).
/// Each copy is waited for as `discipline` says.
pub(crate) fn block_loop<const CYCLES: usize, const WRITE: bool>(
    memory: &mut [u8],
    blocks: &Blocks,
    chain: &Chain,
    ahead: u64,
    discipline: Discipline,
) -> u64 {
    // `hold` is zero, and known only when the block before has arrived.
    let (zero, mut hold) = (black_box(0), 0);
    let range = |number: u64, hold: usize| {
        let start = blocks.offset(number) as usize + hold;
        start..start + blocks.block_bytes
    };
    let ask = |memory: &[u8], number: u64, hold: usize| {
        memory[range(number, hold)].iter().step_by(LINE_BYTES).for_each(prefetch);
    };
    let mut local = vec![0; blocks.block_bytes];
    let mut sum = 0_u64;
    if ahead > 0 {
        (0..ahead.min(blocks.count)).for_each(|number| ask(memory, number, 0));
    }
    for number in 0..blocks.count {
        if ahead > 0 && number + ahead < blocks.count {
            ask(memory, number + ahead, hold);
        }
        let block = &mut memory[range(number, hold)];
        local.copy_from_slice(block);
        match discipline {
            Discipline::Fence => load_fence(),
            Discipline::Dependency => hold = usize::from(local[blocks.block_bytes - 1]) & zero,
            Discipline::Plain => {}
        }
        if WRITE {
            sum = sum.wrapping_add(chain.rewrite::<CYCLES>(&mut local));
            block.copy_from_slice(&local);
        } else {
            sum = sum.wrapping_add(chain.read::<CYCLES>(&local));
        }
    }
    sum
}
