//! Where the kernels of a chain work: all on every accelerator, or each on
//! accelerators of its own, which hand the blocks on from store to store.
//!
//! Accelerators that stand side by side are a *lane*: the first reads, the last
//! writes. A thread of one stage sends to the thread with its number in the
//! next, so the blocks of such a *column* stay in order and what waits at a
//! gate for an earlier block never stands in that block's way.

use std::fmt;
use std::str::FromStr;

use accel::{Buf, Cx, Place};

use crate::kernel::Kernel;
use crate::plan::{Piece, Plan, PlanError};
use crate::stats::Step;

/// Where the kernels of a chain work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pipeline {
    /// Every accelerator takes a block through all of them.
    #[default]
    Fused,
    /// Each has accelerators of its own, which send their blocks to those of
    /// the next one; the first reads, the last writes.
    Spread,
}

impl FromStr for Pipeline {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "fused" => Ok(Self::Fused),
            "spread" => Ok(Self::Spread),
            other => Err(format!("'{other}' is none of fused, spread")),
        }
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fused => "fused",
            Self::Spread => "spread",
        })
    }
}

impl Pipeline {
    /// Accelerators that a block goes through.
    pub(crate) fn stages<K: Kernel>(self, kernel: &K) -> Result<usize, PlanError> {
        match (self, kernel.stages()) {
            (Self::Fused, _) => Ok(1),
            (Self::Spread, 0 | 1) => Err(PlanError::Pipeline {
                why: format!("{} is one kernel, with nothing to hand on", kernel.name()),
                cure: "name a chain A,B, or take --pipeline fused".to_owned(),
            }),
            (Self::Spread, stages) => Ok(stages),
        }
    }
}

/// What a block has behind its bytes on the way to the next stage: which one
/// it is, and how its bytes lie.
pub(crate) const TRAILER_BYTES: usize = 4 * size_of::<u64>();

/// Where a thread stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stand {
    pub(crate) stage: usize,
    pub(crate) stages: usize,
    pub(crate) accelerator: usize,
    /// Number of its column, on every accelerator of its lane.
    pub(crate) thread: u32,
}

impl Stand {
    pub(crate) fn of(plan: &Plan, at: Place) -> Self {
        let (stages, accelerator) = (plan.stages, at.accelerator);
        // A store has fewer buffers than that.
        let thread = at.thread as u32;
        Self { stage: accelerator % stages, stages, accelerator, thread }
    }

    pub(crate) fn is_first(self) -> bool {
        self.stage == 0
    }

    pub(crate) fn is_last(self) -> bool {
        self.stage + 1 == self.stages
    }

    pub(crate) fn lane(self) -> usize {
        self.accelerator / self.stages
    }

    /// How it comes to its blocks.
    pub(crate) fn takes_by(self) -> Step {
        if self.is_first() { Step::Get } else { Step::Receive }
    }

    /// Waits for the next block; `None` if no more will come.
    pub(crate) async fn receive(self, cx: &Cx<'_>, buf: Buf) -> (Buf, Option<Piece>) {
        let received = cx.recv_on(self.thread, buf).await;
        let (mut buf, _) = received.expect("all buffers of a run have the same length");
        let piece = unseal(&mut buf);
        (buf, piece)
    }

    /// Hands the block over to the next stage, and waits until it has it.
    pub(crate) async fn send(self, cx: &Cx<'_>, mut buf: Buf, piece: &Piece) -> Buf {
        seal(&mut buf, piece);
        self.offer(cx, buf).await
    }

    async fn offer(self, cx: &Cx<'_>, buf: Buf) -> Buf {
        let sent = cx.send_on(self.thread, buf, self.accelerator + 1).await;
        sent.expect("a lane has an accelerator for each stage")
    }

    /// Ends a thread's part, which has no buffer any more: it takes what still
    /// comes if it `failed`, so that nobody waits for it, and says that nothing
    /// more will come from it.
    pub(crate) async fn leave(self, cx: &Cx<'_>, failed: bool, buffer: impl FnOnce() -> Buf) {
        if self.stages == 1 {
            return;
        }
        let mut buf = buffer();
        while failed && !self.is_first() {
            let piece;
            (buf, piece) = self.receive(cx, buf).await;
            if piece.is_none() {
                break;
            }
        }
        if !self.is_last() {
            buf.set_view(0..0);
            self.offer(cx, buf).await;
        }
    }
}

/// Puts the trailer behind the view.
fn seal(buf: &mut Buf, piece: &Piece) {
    let (view, len) = (buf.view(), buf.len());
    buf.set_view(view.start..view.end + TRAILER_BYTES);
    let numbers = [piece.index, piece.offset, piece.before as u64, piece.data as u64];
    for (place, number) in buf[len..].chunks_exact_mut(size_of::<u64>()).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
}

/// Takes the trailer off the view; `None` of an empty parcel, which says that
/// no more will come.
fn unseal(buf: &mut Buf) -> Option<Piece> {
    let len = buf.len().checked_sub(TRAILER_BYTES)?;
    let (numbers, _) = buf[len..].as_chunks();
    let &[index, offset, before, data] = numbers else { return None };
    let [index, offset, before, data] = [index, offset, before, data].map(u64::from_le_bytes);
    let (before, data) = (before as usize, data as usize);
    let view = buf.view();
    buf.set_view(view.start..view.start + len);
    Some(Piece { index, offset, before, data, after: len - before - data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use accel::LocalStore;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_block_arrives_as_it_was(
            index in any::<u64>(), offset in any::<u64>(), start in 0..200_usize,
            before in 0..100_usize, data in 0..1000_usize, after in 0..100_usize,
        ) {
            let store = LocalStore::new(1 << 16).unwrap();
            let piece = Piece { index, offset, before, data, after };
            let mut buf = store.alloc(start + piece.len() + TRAILER_BYTES).unwrap();
            buf.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
            buf.set_view(start..start + piece.len());
            let sent = buf.to_vec();
            seal(&mut buf, &piece);
            prop_assert_eq!(buf.len(), piece.len() + TRAILER_BYTES);
            prop_assert_eq!(unseal(&mut buf), Some(piece));
            prop_assert_eq!(&buf[..], &sent[..]);
        }
    }

    #[test]
    fn an_empty_parcel_is_the_end() {
        let store = LocalStore::new(1 << 12).unwrap();
        let mut buf = store.alloc(100).unwrap();
        buf.set_view(0..0);
        assert_eq!(unseal(&mut buf), None);
    }

    #[test]
    fn names_are_read_as_they_are_shown() {
        for pipeline in [Pipeline::Fused, Pipeline::Spread] {
            assert_eq!(pipeline.to_string().parse(), Ok(pipeline));
        }
        assert_eq!("both".parse::<Pipeline>().unwrap_err(), "'both' is none of fused, spread");
    }
}
