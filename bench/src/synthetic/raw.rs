//! The synthetic benchmark without an accelerator: what a loop over a slice
//! gets, plain or with prefetches some blocks ahead.

use crate::arrival::Arrival;
use crate::blocks::Blocks;
use crate::chain::Chain;
use crate::hw::prefetch;

const LINE_BYTES: usize = 64;

/// Copies each block into a buffer, computes there, and copies it back if
/// `WRITE`. Prefetches the block `ahead` places further on (0: none).
/// Each copy is waited for as `arrival` says.
pub(crate) fn block_loop<const CYCLES: usize, const WRITE: bool>(
    memory: &mut [u8],
    blocks: &Blocks,
    chain: &Chain,
    ahead: u64,
    arrival: &Arrival,
) -> u64 {
    let range = |number: u64| {
        let start = arrival.before(blocks.offset(number)) as usize;
        start..start + blocks.block_bytes
    };
    let ask = |memory: &[u8], number: u64| {
        memory[range(number)].iter().step_by(LINE_BYTES).for_each(prefetch);
    };
    let mut local = vec![0; blocks.block_bytes];
    let mut sum = 0_u64;
    if ahead > 0 {
        (0..ahead.min(blocks.count)).for_each(|number| ask(memory, number));
    }
    for number in 0..blocks.count {
        if ahead > 0 && number + ahead < blocks.count {
            ask(memory, number + ahead);
        }
        let block = &mut memory[range(number)];
        local.copy_from_slice(block);
        arrival.wait(&local);
        if WRITE {
            sum = sum.wrapping_add(chain.rewrite::<CYCLES>(&mut local));
            block.copy_from_slice(&local);
        } else {
            sum = sum.wrapping_add(chain.read::<CYCLES>(&local));
        }
    }
    sum
}
