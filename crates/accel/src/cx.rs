//! What a program sees of its accelerator.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::engine::{EngineReport, memory};
use crate::machine::{Machine, Post};
use crate::queue::{Direction, Order, Tag};
use crate::region::{Ea, Lent, Region};
use crate::sched::{Leaves, Scheduler, SpawnError, Waiter, Waiters};
use crate::store::{Buf, LocalStore, NoSpace};
use crate::transfer::{CopyTo, Load, Transfer, Turn, YieldNow};
use crate::transfers::Transfers;

/// One accelerator's state, shared by its threads.
pub(crate) struct Core<'env> {
    pub(crate) number: usize,
    pub(crate) sched: Scheduler<'env>,
    pub(crate) transfers: Transfers<'env>,
    pub(crate) store: LocalStore,
    pub(crate) machine: Arc<Machine>,
    pub(crate) post: Arc<Post>,
    /// Threads that wait for mail, signals or parcels.
    pub(crate) post_waiters: Waiters,
    pub(crate) parcels_sent: Cell<u64>,
    stacks_made: Cell<usize>,
}

impl<'env> Core<'env> {
    pub(crate) fn new(
        number: usize,
        sched: Scheduler<'env>,
        transfers: Transfers<'env>,
        store: LocalStore,
        machine: Arc<Machine>,
    ) -> Self {
        let post = machine.posts[number].clone();
        let (post_waiters, parcels_sent, stacks_made) = Default::default();
        Self {
            number,
            sched,
            transfers,
            store,
            machine,
            post,
            post_waiters,
            parcels_sent,
            stacks_made,
        }
    }

    #[inline(always)]
    pub(crate) fn start_get(
        &self,
        buf: Buf,
        ea: Ea<'env>,
        len: usize,
        tag: Tag,
        order: Order,
    ) -> Transfer<'_, 'env> {
        let started = self.transfers.get(buf, ea, len, tag, order);
        Transfer::new(self, started, tag, order)
    }

    pub(crate) fn wait_for_post(&self, cx: &Context<'_>, what: &'static str) {
        let waiter = self.sched.waiter(cx, what);
        self.post_waiters.add(waiter);
    }
}

/// A program's handle to its accelerator: local store, transfers, threads,
/// mailboxes. Cheap to clone; it stays on its accelerator.
#[derive(Clone)]
pub struct Cx<'env> {
    pub(crate) core: Rc<Core<'env>>,
}

impl<'env> Cx<'env> {
    /// A buffer of `len_bytes` in the local store, 128-byte aligned.
    ///
    /// # Errors
    /// [`NoSpace`] shows the sum that does not fit.
    pub fn alloc(&self, len_bytes: usize) -> Result<Buf, NoSpace> {
        self.core.store.alloc(len_bytes)
    }

    /// As [`Cx::alloc`], aligned to `align_bytes` (for direct I/O).
    ///
    /// # Errors
    /// [`NoSpace`] shows the sum that does not fit.
    pub fn alloc_aligned(&self, len_bytes: usize, align_bytes: usize) -> Result<Buf, NoSpace> {
        self.core.store.alloc_aligned(len_bytes, align_bytes)
    }

    /// The local store.
    #[must_use]
    pub fn local_store(&self) -> &LocalStore {
        &self.core.store
    }

    /// Starts to get `len` bytes at `ea` into `buf`, whose view becomes those
    /// bytes. Unordered within its tag group but for barriers (MFC `get`).
    /// A get from memory that fills the whole slot may bring the buffer back at
    /// another place of the local store, as aligned: one still in the cache.
    #[inline(always)]
    pub fn get(&self, buf: Buf, ea: Ea<'env>, len: usize, tag: Tag) -> Transfer<'_, 'env> {
        self.core.start_get(buf, ea, len, tag, Order::Plain)
    }

    /// A get after all earlier transfers of its tag (MFC `getf`).
    pub fn get_fenced(&self, buf: Buf, ea: Ea<'env>, len: usize, tag: Tag) -> Transfer<'_, 'env> {
        self.core.start_get(buf, ea, len, tag, Order::Fenced)
    }

    /// A get after all earlier and before all later transfers of its tag (MFC `getb`).
    #[inline]
    pub fn get_barrier(&self, buf: Buf, ea: Ea<'env>, len: usize, tag: Tag) -> Transfer<'_, 'env> {
        self.core.start_get(buf, ea, len, tag, Order::Barrier)
    }

    /// Starts to put the buffer's view to `ea` (MFC `put`).
    #[inline(always)]
    pub fn put(&self, buf: Buf, ea: Ea<'env>, tag: Tag) -> Transfer<'_, 'env> {
        self.start_put(buf, ea, tag, Order::Plain)
    }

    /// A put after all earlier transfers of its tag (MFC `putf`).
    pub fn put_fenced(&self, buf: Buf, ea: Ea<'env>, tag: Tag) -> Transfer<'_, 'env> {
        self.start_put(buf, ea, tag, Order::Fenced)
    }

    /// A put after all earlier and before all later transfers of its tag (MFC `putb`).
    pub fn put_barrier(&self, buf: Buf, ea: Ea<'env>, tag: Tag) -> Transfer<'_, 'env> {
        self.start_put(buf, ea, tag, Order::Barrier)
    }

    #[inline(always)]
    fn start_put(&self, buf: Buf, ea: Ea<'env>, tag: Tag, order: Order) -> Transfer<'_, 'env> {
        Transfer::new(&self.core, self.core.transfers.put(buf, ea, tag, order), tag, order)
    }

    /// Gathers stretches from several places back to back into `buf` (MFC `getl`).
    pub fn get_list(&self, buf: Buf, list: &[(Ea<'env>, usize)], tag: Tag) -> Transfer<'_, 'env> {
        self.start_list(buf, list, tag, Direction::Get)
    }

    /// Scatters the buffer's view to several places (MFC `putl`).
    pub fn put_list(&self, buf: Buf, list: &[(Ea<'env>, usize)], tag: Tag) -> Transfer<'_, 'env> {
        self.start_list(buf, list, tag, Direction::Put)
    }

    fn start_list(
        &self,
        buf: Buf,
        list: &[(Ea<'env>, usize)],
        tag: Tag,
        direction: Direction,
    ) -> Transfer<'_, 'env> {
        let started = self.core.transfers.list(buf, list, tag, direction);
        Transfer::new(&self.core, started, tag, Order::Plain)
    }

    /// Waits until all transfers of `tag` that were started are done
    /// (the paper's `mfc_mt_wait_all`).
    pub async fn wait_tag(&self, tag: Tag) {
        std::future::poll_fn(|cx| {
            let core = &*self.core;
            if core.transfers.tag_is_quiet(tag) {
                core.transfers.tell(&core.sched);
                return Poll::Ready(());
            }
            core.transfers.wait_for_tag(core.sched.waiter(cx, "transfers of a tag group"));
            Poll::Pending
        })
        .await;
    }

    /// Item `index` of a slice in main memory, in place: prefetches all of it
    /// and gives the other threads a turn, unless the slice is near. A get
    /// whose local store is the core's own cache: no copy, no buffer, no tag.
    /// Where the slice is near nobody gets a turn: a long loop yields by itself.
    ///
    /// # Panics
    /// If `index` is outside the slice, as with slices.
    #[inline(always)]
    pub fn load<'t, T>(&self, lent: &Lent<'t, T>, index: usize) -> Load<'_, 'env, 't, T> {
        self.load_in_place(&lent.items()[index], lent.len_bytes())
    }

    /// As [`Cx::load`], several items.
    ///
    /// # Panics
    /// If `range` leaves the slice, as with slices.
    #[inline(always)]
    pub fn load_slice<'t, T>(
        &self,
        lent: &Lent<'t, T>,
        range: Range<usize>,
    ) -> Load<'_, 'env, 't, [T]> {
        self.load_in_place(&lent.items()[range], lent.len_bytes())
    }

    #[inline(always)]
    fn load_in_place<'t, T: ?Sized>(&self, item: &'t T, of_bytes: u64) -> Load<'_, 'env, 't, T> {
        let over = self.core.transfers.memory().is_near(of_bytes);
        if !over {
            memory::prefetch_item(item);
        }
        Load { item, turn: Turn { core: &self.core, over } }
    }

    /// Copies memory, from `at` in `region` on, to `into`, as a get would: short
    /// irregular copies give the other threads a turn while their lines come.
    /// It is made while this is polled, so neither has to outlive the run. With
    /// `goes_on` it starts where the caller's last one ended. Gives `into` back.
    ///
    /// Its error is a place outside the region, or in a file.
    #[inline]
    pub fn copy<'c>(
        &'c self,
        region: &'c Region<'_>,
        at: u64,
        into: &'c mut [u8],
        goes_on: bool,
    ) -> CopyTo<'c, 'env> {
        CopyTo { core: &self.core, region, at, into, goes_on, asked: None }
    }

    /// Gives the other threads a turn (the paper's `yield`).
    #[inline(always)]
    pub fn yield_now(&self) -> YieldNow<'_, 'env> {
        YieldNow { turn: Turn { core: &self.core, over: false } }
    }

    /// This thread's number on its accelerator.
    #[must_use]
    pub fn thread_id(&self) -> usize {
        self.core.sched.current() as usize
    }

    /// This accelerator's number in its run.
    #[must_use]
    pub fn accelerator(&self) -> usize {
        self.core.number
    }

    /// The engine that moves file data here, and how.
    #[must_use]
    pub fn engine(&self) -> EngineReport {
        self.core.transfers.engine_report()
    }

    /// Starts another thread on this accelerator (the paper's `run_thread`).
    ///
    /// # Errors
    /// [`SpawnError`] at the limit of threads.
    pub fn spawn<T: 'env>(
        &self,
        body: impl Future<Output = T> + 'env,
    ) -> Result<Thread<'env, T>, SpawnError> {
        let join = Rc::new(Join { result: RefCell::new(None), waiter: RefCell::new(None) });
        let (theirs, core) = (join.clone(), self.core.clone());
        let leave = move |result| {
            *theirs.result.borrow_mut() = Some(result);
            if let Some(waiter) = theirs.waiter.take() {
                core.sched.wake(waiter);
            }
        };
        self.core.sched.spawn(Box::new(Leaves::new(body, leave)))?;
        Ok(Thread { join, core: self.core.clone() })
    }

    /// Waits for a thread's end and takes its result (the paper's `wait_for`).
    pub async fn wait_for<T: 'env>(&self, thread: Thread<'env, T>) -> T {
        thread.await
    }

    /// Counts stacks, to stagger them.
    pub(crate) fn stacks_made(&self) -> usize {
        self.core.stacks_made.replace(self.core.stacks_made.get() + 1)
    }
}

/// A running thread; await it, or pass it to [`Cx::wait_for`].
pub struct Thread<'env, T> {
    join: Rc<Join<T>>,
    core: Rc<Core<'env>>,
}

struct Join<T> {
    result: RefCell<Option<T>>,
    waiter: RefCell<Option<Waiter>>,
}

impl<T> Future for Thread<'_, T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.join.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                *self.join.waiter.borrow_mut() = Some(self.core.sched.waiter(cx, "a thread's end"));
                Poll::Pending
            }
        }
    }
}
