//! The futures a program awaits: transfers, loads in place, yields.

use std::future::Future;
use std::io;
use std::mem::{ManuallyDrop, take};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::cx::Core;
use crate::engine::memory::Prefetched;
use crate::fault::{TransferError, TransferResult};
use crate::queue::{OpId, Order, Tag};
use crate::region::{Ea, Region};
use crate::store::Buf;
use crate::transfers::Started;

/// A transfer: started when it was made; the future of its buffer. Dropped,
/// it goes on detached, and the buffer returns to the store when it is done.
#[must_use = "a transfer dropped at once gives its buffer back to the store unseen"]
pub struct Transfer<'c, 'env> {
    // Single fields rather than an enum with payloads, which would be moved
    // as a whole at every turn.
    core: &'c Core<'env>,
    // Dropped by hand, because every await ends in a drop of nothing.
    buf: ManuallyDrop<Option<Buf>>,
    error: ManuallyDrop<Option<Box<TransferError>>>,
    /// Number of the queue's transfer, or of the prefetched get.
    number: u32,
    phase: Phase,
    tag: Tag,
    order: Order,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// `buf` or `error` is the result.
    Over,
    /// Prefetched into nowhere yet; `buf` waits for its copy.
    Prefetched,
    /// Prefetched, and its thread has given the others a turn.
    Ripe,
    /// The queue has the buffer.
    Flies,
    Taken,
}

impl<'c, 'env> Transfer<'c, 'env> {
    #[inline(always)]
    pub(crate) fn new(core: &'c Core<'env>, started: Started, tag: Tag, order: Order) -> Self {
        let (buf, error, number, phase) = match started {
            Started::Over(Ok(buf)) => (Some(buf), None, 0, Phase::Over),
            Started::Over(Err(error)) => (None, Some(error), 0, Phase::Over),
            Started::Prefetched(get, buf) => (Some(buf), None, get.0, Phase::Prefetched),
            Started::Flies(op) => (None, None, op.0, Phase::Flies),
        };
        let (buf, error) = (ManuallyDrop::new(buf), ManuallyDrop::new(error));
        Self { core, buf, error, number, phase, tag, order }
    }

    /// Gets `len` bytes at `ea` into the same buffer right after this
    /// transfer, without a wait between: a chain within the tag group.
    /// If this one fails, the get does not happen.
    #[inline]
    pub fn then_get(mut self, ea: Ea<'env>, len: usize) -> Self {
        let transfers = &self.core.transfers;
        match self.phase {
            Phase::Taken => return self,
            Phase::Over => {}
            Phase::Prefetched | Phase::Ripe => {
                if let Some(buf) = &mut *self.buf {
                    transfers.land(Prefetched(self.number), buf);
                }
            }
            Phase::Flies => match transfers.take(OpId(self.number)) {
                Some(Ok(buf)) => *self.buf = Some(buf),
                Some(Err(error)) => *self.error = Some(error),
                None => match transfers.chain_get(OpId(self.number), ea, len) {
                    Ok(()) => return self,
                    Err(error) => {
                        transfers.detach(OpId(self.number));
                        *self.error = Some(error);
                    }
                },
            },
        }
        self.phase = Phase::Over;
        // The chain is one transfer, which as a whole may be a barrier.
        let after = if self.order == Order::Barrier { Order::Barrier } else { Order::Plain };
        match self.buf.take() {
            Some(buf) => self.core.start_get(buf, ea, len, self.tag, after),
            None => self,
        }
    }

    /// Takes the result out.
    #[inline(always)]
    fn result(&mut self) -> Poll<TransferResult> {
        self.phase = Phase::Taken;
        match self.buf.take() {
            Some(buf) => Poll::Ready(Ok(buf)),
            None => self.error.take().map_or(Poll::Pending, |error| Poll::Ready(Err(error))),
        }
    }

    /// A transfer that the queue carries out, or that gives way to others.
    #[cold]
    #[inline(never)]
    fn poll_queued(&mut self, cx: &Context<'_>) -> Poll<TransferResult> {
        let core = self.core;
        match self.phase {
            Phase::Flies => {
                match core.transfers.take(OpId(self.number)) {
                    Some(Ok(buf)) => *self.buf = Some(buf),
                    Some(Err(error)) => *self.error = Some(error),
                    None => {
                        core.transfers.tell(&core.sched);
                        core.transfers
                            .set_waiter(OpId(self.number), core.sched.waiter(cx, "a transfer"));
                        return Poll::Pending;
                    }
                }
                self.result()
            }
            Phase::Taken => Poll::Pending,
            Phase::Over | Phase::Prefetched | Phase::Ripe => {
                core.sched.wait_turn(cx);
                Poll::Pending
            }
        }
    }
}

impl Future for Transfer<'_, '_> {
    type Output = TransferResult;

    // The frequent cases by themselves: each costs only its own test.
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TransferResult> {
        let this = &mut *self;
        let core = this.core;
        if this.phase == Phase::Ripe {
            if let Some(buf) = &mut *this.buf {
                core.transfers.land(Prefetched(this.number), buf);
            }
            return this.result();
        }
        if this.phase == Phase::Prefetched {
            this.phase = Phase::Ripe;
            core.sched.wait_turn(cx);
            return Poll::Pending;
        }
        if this.phase == Phase::Over {
            let len = this.buf.as_ref().map_or(0, |buf| buf.len());
            if core.transfers.may_go_on(len) {
                return this.result();
            }
        }
        this.poll_queued(cx)
    }
}

impl Transfer<'_, '_> {
    /// The end of a transfer whose result nobody took.
    #[cold]
    fn abandon(&mut self) {
        let transfers = &self.core.transfers;
        match self.phase {
            Phase::Flies => transfers.detach(OpId(self.number)),
            Phase::Prefetched | Phase::Ripe => {
                if let Some(buf) = &mut *self.buf {
                    transfers.withdraw(Prefetched(self.number), buf);
                }
            }
            Phase::Over | Phase::Taken => {}
        }
        drop((self.buf.take(), self.error.take()));
    }
}

impl Drop for Transfer<'_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.phase != Phase::Taken {
            self.abandon();
        }
    }
}

/// One turn of the other threads, still to come or over.
pub(crate) struct Turn<'c, 'env> {
    pub(crate) core: &'c Core<'env>,
    pub(crate) over: bool,
}

impl Turn<'_, '_> {
    #[inline(always)]
    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.over {
            return Poll::Ready(());
        }
        self.over = true;
        self.core.sched.wait_turn(cx);
        Poll::Pending
    }
}

/// A prefetched item; see [`Cx::load`](crate::Cx::load).
pub struct Load<'c, 'env, 't, T: ?Sized> {
    pub(crate) item: &'t T,
    pub(crate) turn: Turn<'c, 'env>,
}

impl<'t, T: ?Sized> Future for Load<'_, '_, 't, T> {
    type Output = &'t T;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<&'t T> {
        self.turn.poll(cx).map(|()| self.item)
    }
}

/// A copy out of memory; see [`Cx::copy`](crate::Cx::copy).
pub struct CopyTo<'c, 'env> {
    pub(crate) core: &'c Core<'env>,
    pub(crate) region: &'c Region<'c>,
    pub(crate) at: u64,
    pub(crate) into: &'c mut [u8],
    pub(crate) goes_on: bool,
    /// After the first turn: whether lines were asked for only.
    pub(crate) asked: Option<bool>,
}

impl<'c> CopyTo<'c, '_> {
    /// A copy that gave way.
    #[cold]
    #[inline(never)]
    fn after_turn(&mut self, asked: bool) -> io::Result<&'c mut [u8]> {
        if asked {
            self.core.transfers.copy(self.region, self.at, self.into)?;
        }
        Ok(take(&mut self.into))
    }
}

impl<'c> Future for CopyTo<'c, '_> {
    type Output = io::Result<&'c mut [u8]>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(asked) = this.asked {
            return Poll::Ready(this.after_turn(asked));
        }
        let transfers = &this.core.transfers;
        match transfers.copy_or_ask(this.region, this.at, this.into, this.goes_on) {
            Ok(true) if transfers.may_go_on(this.into.len()) => {
                return Poll::Ready(Ok(take(&mut this.into)));
            }
            Ok(copied) => this.asked = Some(!copied),
            Err(error) => return Poll::Ready(Err(error)),
        }
        this.core.sched.wait_turn(cx);
        Poll::Pending
    }
}

/// See [`Cx::yield_now`](crate::Cx::yield_now).
pub struct YieldNow<'c, 'env> {
    pub(crate) turn: Turn<'c, 'env>,
}

impl Future for YieldNow<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.turn.poll(cx)
    }
}
