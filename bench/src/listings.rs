//! The paper's listings as programs for an accelerator, through the same calls
//! any user has. With `WRITE` false blocks are read only (section 5.2).

use std::ops::Range;

use anyhow::anyhow;
use cellway::accel::{Buf, Cx, Ea, Lent, NoSpace, Place, Region, StackCx, Tag, TransferResult};

use crate::arrival::Arrival;
use crate::blocks::Blocks;

/// What a program works on.
#[derive(Clone, Copy)]
pub(crate) struct Work<'env> {
    pub(crate) region: &'env Region<'env>,
    pub(crate) blocks: Blocks,
    /// Alignment of buffers: 1 in memory, the device's for direct I/O.
    pub(crate) align_bytes: usize,
    pub(crate) arrival: &'env Arrival,
}

impl<'env> Work<'env> {
    /// Where block `number` lies.
    #[inline(always)]
    fn place(&self, number: u64) -> Ea<'env> {
        self.region.at(self.arrival.before(self.blocks.offset(number)))
    }

    /// The block of a get that is over, waited for.
    #[inline(always)]
    fn arrived(&self, result: TransferResult) -> anyhow::Result<Buf> {
        let buf = buf_of(result)?;
        self.arrival.wait(&buf);
        Ok(buf)
    }

    fn buffer(&self, cx: &Cx<'_>) -> Result<Buf, NoSpace> {
        cx.alloc_aligned(self.blocks.block_bytes, self.align_bytes)
    }
}

/// A thread's share of `count` blocks: a stretch of its own.
fn share(at: Place, count: u64) -> Range<u64> {
    let (index, threads) = (at.index() as u64, at.count() as u64);
    count * index / threads..count * (index + 1) / threads
}

/// A failed transfer holds a buffer, which stays on its accelerator: keep the text.
fn buf_of(result: TransferResult) -> anyhow::Result<Buf> {
    result.map_err(|error| anyhow!("{error}"))
}

/// Listing 1, simple buffering: get, wait, compute, put. The blocks are dealt
/// out to the threads: by one it is the simple version, by many the paper's
/// proposal. `compute` yields the block's part of the check sum.
#[inline(always)]
pub(crate) async fn listing1<'env, const WRITE: bool>(
    cx: Cx<'env>,
    at: Place,
    work: Work<'env>,
    compute: impl Fn(&mut [u8]) -> u64,
) -> anyhow::Result<u64> {
    let (block_bytes, tag) = (work.blocks.block_bytes, Tag::new(0));
    let mut buf = work.buffer(&cx)?;
    let mut sum = 0_u64;
    for number in share(at, work.blocks.count) {
        let place = work.place(number);
        buf = work.arrived(cx.get(buf, place, block_bytes, tag).await)?;
        sum = sum.wrapping_add(compute(&mut buf));
        if WRITE {
            buf = buf_of(cx.put(buf, place, tag).await)?;
        }
    }
    Ok(sum)
}

/// Listing 1 without a local store: blocks are loaded into the core's cache and
/// read in place.
#[inline(always)]
pub(crate) async fn listing1_in_place<'env>(
    cx: Cx<'env>,
    at: Place,
    memory: Lent<'_, u8>,
    blocks: Blocks,
    arrival: &Arrival,
    compute: impl Fn(&[u8]) -> u64,
) -> anyhow::Result<u64> {
    let mut sum = 0_u64;
    for number in share(at, blocks.count) {
        let start = arrival.before(blocks.offset(number)) as usize;
        let block = cx.load_slice(&memory, start..start + blocks.block_bytes).await;
        arrival.wait(block);
        sum = sum.wrapping_add(compute(block));
    }
    Ok(sum)
}

/// Listing 3 without a local store: the next block is loaded while this one is read.
#[inline(always)]
pub(crate) async fn listing3_in_place(
    cx: Cx<'_>,
    memory: Lent<'_, u8>,
    blocks: Blocks,
    arrival: &Arrival,
    compute: impl Fn(&[u8]) -> u64,
) -> anyhow::Result<u64> {
    let load = |number| {
        let start = arrival.before(blocks.offset(number)) as usize;
        cx.load_slice(&memory, start..start + blocks.block_bytes)
    };
    let compute = |block: &[u8]| {
        arrival.wait(block);
        compute(block)
    };
    let mut sum = 0_u64;
    let (mut even, mut odd) = (load(0), load(1));
    for number in (2..blocks.count).step_by(2) {
        sum = sum.wrapping_add(compute(even.await));
        even = load(number);
        sum = sum.wrapping_add(compute(odd.await));
        odd = load(number + 1);
    }
    Ok(sum.wrapping_add(compute(even.await)).wrapping_add(compute(odd.await)))
}

/// Listing 1 as a plain function on a stack of its own: only the waiting call
/// is exchanged, as in Listing 2.
#[inline(always)]
pub(crate) fn listing1_stackful<'env, const WRITE: bool>(
    stack: &StackCx<'_, 'env>,
    at: Place,
    work: Work<'env>,
    compute: impl Fn(&mut [u8]) -> u64,
) -> anyhow::Result<u64> {
    let (cx, block_bytes, tag) = (stack.cx(), work.blocks.block_bytes, Tag::new(0));
    let mut buf = work.buffer(cx)?;
    let mut sum = 0_u64;
    for number in share(at, work.blocks.count) {
        let place = work.place(number);
        buf = work.arrived(stack.wait(cx.get(buf, place, block_bytes, tag)))?;
        sum = sum.wrapping_add(compute(&mut buf));
        if WRITE {
            buf = buf_of(stack.wait(cx.put(buf, place, tag)))?;
        }
    }
    Ok(sum)
}

/// Listing 3, double buffering by hand, by one thread. Two buffers with a tag
/// each; the loop is unrolled for the two, with a prologue and an epilogue.
/// The paper's `mfc_put` and `mfc_getb` of one tag are a chain here. The
/// number of blocks is even, and at least two.
#[inline(always)]
pub(crate) async fn listing3<'env, const WRITE: bool>(
    cx: Cx<'env>,
    work: Work<'env>,
    compute: impl Fn(&mut [u8]) -> u64,
) -> anyhow::Result<u64> {
    let (block_bytes, tags) = (work.blocks.block_bytes, [Tag::new(0), Tag::new(1)]);
    let place = |number: u64| work.place(number);
    let pairs = work.blocks.count / 2;
    let mut sum = 0_u64;
    let (first, second) = (work.buffer(&cx)?, work.buffer(&cx)?);
    let mut transfer0 = cx.get(first, place(0), block_bytes, tags[0]);
    let mut transfer1 = cx.get(second, place(1), block_bytes, tags[1]);
    for pair in 0..pairs - 1 {
        let mut buf = work.arrived(transfer0.await)?;
        sum = sum.wrapping_add(compute(&mut buf));
        transfer0 = if WRITE {
            cx.put(buf, place(2 * pair), tags[0]).then_get(place(2 * pair + 2), block_bytes)
        } else {
            cx.get(buf, place(2 * pair + 2), block_bytes, tags[0])
        };
        let mut buf = work.arrived(transfer1.await)?;
        sum = sum.wrapping_add(compute(&mut buf));
        transfer1 = if WRITE {
            cx.put(buf, place(2 * pair + 1), tags[1]).then_get(place(2 * pair + 3), block_bytes)
        } else {
            cx.get(buf, place(2 * pair + 3), block_bytes, tags[1])
        };
    }
    let mut buf = work.arrived(transfer0.await)?;
    sum = sum.wrapping_add(compute(&mut buf));
    let last0 = WRITE.then(|| cx.put(buf, place(2 * pairs - 2), tags[0]));
    let mut buf = work.arrived(transfer1.await)?;
    sum = sum.wrapping_add(compute(&mut buf));
    let last1 = WRITE.then(|| cx.put(buf, place(2 * pairs - 1), tags[1]));
    for put in [last0, last1].into_iter().flatten() {
        buf_of(put.await)?;
    }
    Ok(sum)
}
