//! The synthetic benchmark as programs for an accelerator, through the same
//! calls any user has. `WRITE` false is the paper's section 5.2, true its 5.3.

use accel::{Buf, Cx, NoSpace, Place, Region, Tag, TransferResult};
use anyhow::anyhow;

use super::blocks::Blocks;
use crate::chain::Chain;

/// What a program works on.
#[derive(Clone, Copy)]
pub(crate) struct Work<'env> {
    pub(crate) region: &'env Region<'env>,
    pub(crate) blocks: Blocks,
    pub(crate) chain: &'env Chain,
    /// Alignment of buffers: 1 in memory, the device's for direct I/O.
    pub(crate) align_bytes: usize,
}

impl Work<'_> {
    fn buffer(&self, cx: &Cx<'_>) -> Result<Buf, NoSpace> {
        cx.alloc_aligned(self.blocks.block_bytes, self.align_bytes)
    }

    #[inline(always)]
    fn compute<const CYCLES: usize, const WRITE: bool>(&self, buf: &mut Buf) -> u64 {
        if WRITE { self.chain.rewrite::<CYCLES>(buf) } else { self.chain.read::<CYCLES>(buf) }
    }
}

/// A failed transfer holds a buffer, which stays on its accelerator: keep the text.
pub(crate) fn arrived(result: TransferResult) -> anyhow::Result<Buf> {
    result.map_err(|error| anyhow!("{error}"))
}

/// Listing 1: get, wait, compute, put. By one thread it is the simple version,
/// by many it is the paper's proposal.
pub(crate) async fn simple<'env, const CYCLES: usize, const WRITE: bool>(
    cx: &Cx<'env>,
    at: Place,
    work: Work<'env>,
) -> anyhow::Result<u64> {
    let (block_bytes, tag) = (work.blocks.block_bytes, Tag::new(0));
    let mut buf = work.buffer(cx)?;
    let mut sum = 0_u64;
    for number in (at.index() as u64..work.blocks.count).step_by(at.count()) {
        let place = work.region.at(work.blocks.offset(number));
        buf = arrived(cx.get(buf, place, block_bytes, tag).await)?;
        sum = sum.wrapping_add(work.compute::<CYCLES, WRITE>(&mut buf));
        if WRITE {
            buf = arrived(cx.put(buf, place, tag).await)?;
        }
    }
    Ok(sum)
}

/// Listing 3: double buffering by hand. Two buffers with a tag each; the loop
/// is unrolled for the two, with a prologue and an epilogue. The paper's
/// `mfc_put` and `mfc_getb` of one tag are a chain here.
pub(crate) async fn double<'env, const CYCLES: usize, const WRITE: bool>(
    cx: &Cx<'env>,
    work: Work<'env>,
) -> anyhow::Result<u64> {
    let (block_bytes, tags) = (work.blocks.block_bytes, [Tag::new(0), Tag::new(1)]);
    let place = |number: u64| work.region.at(work.blocks.offset(number));
    let pairs = work.blocks.count / 2;
    let mut sum = 0_u64;
    let (first, second) = (work.buffer(cx)?, work.buffer(cx)?);
    let mut transfer0 = cx.get(first, place(0), block_bytes, tags[0]);
    let mut transfer1 = cx.get(second, place(1), block_bytes, tags[1]);
    for pair in 0..pairs - 1 {
        let mut buf = arrived(transfer0.await)?;
        sum = sum.wrapping_add(work.compute::<CYCLES, WRITE>(&mut buf));
        transfer0 = if WRITE {
            cx.put(buf, place(2 * pair), tags[0]).then_get(place(2 * pair + 2), block_bytes)
        } else {
            cx.get(buf, place(2 * pair + 2), block_bytes, tags[0])
        };
        let mut buf = arrived(transfer1.await)?;
        sum = sum.wrapping_add(work.compute::<CYCLES, WRITE>(&mut buf));
        transfer1 = if WRITE {
            cx.put(buf, place(2 * pair + 1), tags[1]).then_get(place(2 * pair + 3), block_bytes)
        } else {
            cx.get(buf, place(2 * pair + 3), block_bytes, tags[1])
        };
    }
    let mut buf = arrived(transfer0.await)?;
    sum = sum.wrapping_add(work.compute::<CYCLES, WRITE>(&mut buf));
    let last0 = WRITE.then(|| cx.put(buf, place(2 * pairs - 2), tags[0]));
    let mut buf = arrived(transfer1.await)?;
    sum = sum.wrapping_add(work.compute::<CYCLES, WRITE>(&mut buf));
    let last1 = WRITE.then(|| cx.put(buf, place(2 * pairs - 1), tags[1]));
    for put in [last0, last1].into_iter().flatten() {
        arrived(put.await)?;
    }
    Ok(sum)
}
