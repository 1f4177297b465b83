//! What a program sees of its accelerator.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use crate::engine::memory::{self, Prefetched};
use crate::fault::{TransferError, TransferResult};
use crate::machine::{Machine, Parcel, Post, lock};
use crate::queue::{Direction, OpId, Order, Tag};
use crate::region::{Ea, Lent};
use crate::sched::{Scheduler, SpawnError, Waiter, Waiters};
use crate::store::{Buf, LocalStore, NoSpace};
use crate::transfers::{Started, Transfers};

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
    parcels_sent: Cell<u64>,
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

    fn wait_for_post(&self, cx: &Context<'_>, what: &'static str) {
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
    #[inline(always)]
    pub fn get(&self, buf: Buf, ea: Ea<'env>, len: usize, tag: Tag) -> Transfer<'_, 'env> {
        self.start_get(buf, ea, len, tag, Order::Plain)
    }

    /// A get after all earlier transfers of its tag (MFC `getf`).
    pub fn get_fenced(&self, buf: Buf, ea: Ea<'env>, len: usize, tag: Tag) -> Transfer<'_, 'env> {
        self.start_get(buf, ea, len, tag, Order::Fenced)
    }

    /// A get after all earlier and before all later transfers of its tag (MFC `getb`).
    #[inline]
    pub fn get_barrier(&self, buf: Buf, ea: Ea<'env>, len: usize, tag: Tag) -> Transfer<'_, 'env> {
        self.start_get(buf, ea, len, tag, Order::Barrier)
    }

    #[inline(always)]
    fn start_get(
        &self,
        buf: Buf,
        ea: Ea<'env>,
        len: usize,
        tag: Tag,
        order: Order,
    ) -> Transfer<'_, 'env> {
        let started = self.core.transfers.get(buf, ea, len, tag, order, self.core.sched.current());
        Transfer::new(self, started, tag)
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
        Transfer::new(self, self.core.transfers.put(buf, ea, tag, order), tag)
    }

    /// Gathers stretches from several places back to back into `buf` (MFC `getl`).
    pub fn get_list(&self, buf: Buf, list: &[(Ea<'env>, usize)], tag: Tag) -> Transfer<'_, 'env> {
        Transfer::new(self, self.core.transfers.list(buf, list, tag, Direction::Get), tag)
    }

    /// Scatters the buffer's view to several places (MFC `putl`).
    pub fn put_list(&self, buf: Buf, list: &[(Ea<'env>, usize)], tag: Tag) -> Transfer<'_, 'env> {
        Transfer::new(self, self.core.transfers.list(buf, list, tag, Direction::Put), tag)
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
    ///
    /// # Panics
    /// If `index` is outside the slice, as with slices.
    #[inline(always)]
    pub fn load<'t, T>(&self, lent: &Lent<'t, T>, index: usize) -> Load<'_, 'env, 't, T> {
        let memory = self.core.transfers.memory();
        let item = memory.after_arrival(&lent.items()[index]);
        let near = memory.is_near(lent.len_bytes());
        if !near {
            memory::prefetch_item(item);
        }
        Load { core: &self.core, item, over: near }
    }

    /// Gives the other threads a turn (the paper's `yield`).
    #[inline(always)]
    pub fn yield_now(&self) -> YieldNow<'_, 'env> {
        YieldNow { core: &self.core, over: false }
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
    pub fn engine_detail(&self) -> String {
        self.core.transfers.engine_detail()
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
        self.core.sched.spawn(Box::new(async move {
            let result = body.await;
            *theirs.result.borrow_mut() = Some(result);
            if let Some(waiter) = theirs.waiter.take() {
                core.sched.wake(waiter);
            }
        }))?;
        Ok(Thread { join, core: self.core.clone() })
    }

    /// Waits for a thread's end and takes its result (the paper's `wait_for`).
    pub async fn wait_for<T: 'env>(&self, thread: Thread<'env, T>) -> T {
        thread.await
    }

    /// Reads the inbound mailbox; an empty one makes the thread wait.
    pub async fn read_mailbox(&self) -> u32 {
        let word = self.when_posted("its mailbox", |post| lock(&post.inbound).pop_front()).await;
        self.core.machine.notify_host();
        word
    }

    /// Writes the outbound mailbox; a full one makes the thread wait.
    pub async fn write_mailbox(&self, word: u32) {
        let room = self.core.machine.mailbox_entries;
        self.when_posted("room in its outbound mailbox", |post| {
            let mut outbound = lock(&post.outbound);
            (outbound.len() < room).then(|| outbound.push_back(word))
        })
        .await;
        self.core.machine.notify_host();
    }

    /// Takes the signals OR-ed in so far; none makes the thread wait.
    pub async fn read_signals(&self) -> u32 {
        self.when_posted("a signal", |post| match post.signals.swap(0, Ordering::SeqCst) {
            0 => None,
            bits => Some(bits),
        })
        .await
    }

    /// ORs `bits` into another accelerator's signals.
    pub fn signal(&self, accelerator: usize, bits: u32) {
        if let Some(post) = self.core.machine.posts.get(accelerator) {
            post.signals.fetch_or(bits, Ordering::SeqCst);
            post.notify();
        }
    }

    /// Offers the buffer's view to another accelerator and waits until it has
    /// copied it into a buffer of its own store. Dropped before that, the
    /// offer is taken back. `Err` gives the buffer back if there is no such accelerator.
    pub async fn send(&self, buf: Buf, accelerator: usize) -> Result<Buf, Buf> {
        let core = &*self.core;
        let Some(post) = core.machine.posts.get(accelerator) else { return Err(buf) };
        let number = core.parcels_sent.get();
        core.parcels_sent.set(number + 1);
        let taken = Arc::new(AtomicBool::new(false));
        let parcel = Parcel {
            from: core.number,
            number,
            start: std::ptr::NonNull::from(&buf[..]).cast(),
            len: buf.len(),
            arena: buf.arena().clone(),
            taken: taken.clone(),
        };
        lock(&post.parcels).push_back(parcel);
        post.notify();
        let offer = Offer { post, from: core.number, number, buf: Some(buf) };
        self.when_posted("a receiver of its parcel", |_| {
            taken.load(Ordering::SeqCst).then_some(())
        })
        .await;
        offer.accepted()
    }

    /// Waits for a parcel and copies it into `buf`, whose view becomes it.
    /// Returns the buffer and the sender's number; `Err` if it does not fit
    /// (the parcel stays).
    pub async fn recv(&self, buf: Buf) -> Result<(Buf, usize), (Buf, NoFit)> {
        let mut buf = Some(buf);
        let copied = self
            .when_posted("a parcel", |post| {
                let mut parcels = lock(&post.parcels);
                let parcel = parcels.front()?;
                let buf = buf.as_mut()?;
                if parcel.len > buf.capacity_bytes() {
                    return Some(Err(NoFit {
                        parcel_bytes: parcel.len,
                        capacity_bytes: buf.capacity_bytes(),
                    }));
                }
                parcel.open(buf);
                Some(Ok(parcels.pop_front()?.from))
            })
            .await;
        let buf = buf.take().expect("only lent to the closure above");
        match copied {
            Ok(from) => {
                self.core.machine.posts[from].notify();
                Ok((buf, from))
            }
            Err(no_fit) => Err((buf, no_fit)),
        }
    }

    /// Counts stacks, to stagger them.
    pub(crate) fn stacks_made(&self) -> usize {
        self.core.stacks_made.replace(self.core.stacks_made.get() + 1)
    }

    async fn when_posted<R>(
        &self,
        what: &'static str,
        mut look: impl FnMut(&Post) -> Option<R>,
    ) -> R {
        std::future::poll_fn(move |cx| match look(&self.core.post) {
            Some(found) => Poll::Ready(found),
            None => {
                self.core.wait_for_post(cx, what);
                Poll::Pending
            }
        })
        .await
    }
}

/// A parcel is larger than the buffer it should go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a parcel of {parcel_bytes} bytes does not fit a buffer of {capacity_bytes} bytes")]
pub struct NoFit {
    /// The parcel's length.
    pub parcel_bytes: usize,
    /// What the buffer holds.
    pub capacity_bytes: usize,
}

impl Parcel {
    fn open(&self, buf: &mut Buf) {
        buf.set_view(0..self.len);
        // SAFETY: the sender keeps the bytes mapped (`arena`) and untouched
        // until `taken`; another local store's bytes cannot be this buffer's
        // unless an accelerator sends to itself, from another buffer.
        unsafe { memory::copy_racing(self.start.as_ptr(), buf.as_mut_ptr(), self.len) };
        debug_assert!(self.arena.len_bytes() >= self.len);
        self.taken.store(true, Ordering::SeqCst);
    }
}

/// A parcel on offer; dropping it takes the offer back.
struct Offer<'p> {
    post: &'p Post,
    from: usize,
    number: u64,
    buf: Option<Buf>,
}

impl Offer<'_> {
    fn accepted(mut self) -> Result<Buf, Buf> {
        Ok(self.buf.take().expect("an offer holds its buffer until it is accepted or dropped"))
    }
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        // The receiver copies under this lock: after it, nobody reads the buffer.
        lock(&self.post.parcels).retain(|p| (p.from, p.number) != (self.from, self.number));
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

/// A transfer: started when it was made; the future of its buffer. Dropped,
/// it goes on detached, and the buffer returns to the store when it is done.
#[must_use = "a transfer dropped at once gives its buffer back to the store unseen"]
pub struct Transfer<'c, 'env> {
    // Single fields rather than an enum with payloads, which would be moved
    // as a whole at every turn.
    cx: &'c Cx<'env>,
    // Dropped by hand, because every await ends in a drop of nothing.
    buf: ManuallyDrop<Option<Buf>>,
    error: ManuallyDrop<Option<Box<TransferError>>>,
    /// Number of the queue's transfer, or of the prefetched get.
    number: u32,
    phase: Phase,
    tag: Tag,
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
    fn new(cx: &'c Cx<'env>, started: Started, tag: Tag) -> Self {
        let (buf, error, number, phase) = match started {
            Started::Over(Ok(buf)) => (Some(buf), None, 0, Phase::Over),
            Started::Over(Err(error)) => (None, Some(error), 0, Phase::Over),
            Started::Prefetched(get, buf) => (Some(buf), None, get.0, Phase::Prefetched),
            Started::Flies(op) => (None, None, op.0, Phase::Flies),
        };
        let (buf, error) = (ManuallyDrop::new(buf), ManuallyDrop::new(error));
        Self { cx, buf, error, number, phase, tag }
    }

    /// Gets `len` bytes at `ea` into the same buffer right after this
    /// transfer, without a wait between: a chain within the tag group.
    /// If this one fails, the get does not happen.
    #[inline]
    pub fn then_get(mut self, ea: Ea<'env>, len: usize) -> Self {
        let transfers = &self.cx.core.transfers;
        match self.phase {
            Phase::Taken => return self,
            Phase::Over => {}
            Phase::Prefetched | Phase::Ripe => transfers.land(Prefetched(self.number)),
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
        match self.buf.take() {
            Some(buf) => self.cx.start_get(buf, ea, len, self.tag, Order::Plain),
            None => self,
        }
    }

    /// Takes the result out.
    #[inline(always)]
    fn result(&mut self) -> Poll<TransferResult> {
        self.phase = Phase::Taken;
        match (self.buf.take(), self.error.take()) {
            (Some(buf), _) => Poll::Ready(Ok(buf)),
            (None, Some(error)) => Poll::Ready(Err(error)),
            (None, None) => Poll::Pending,
        }
    }
}

impl Future for Transfer<'_, '_> {
    type Output = TransferResult;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TransferResult> {
        let this = &mut *self;
        let core = &*this.cx.core;
        match this.phase {
            Phase::Prefetched => {
                this.phase = Phase::Ripe;
                core.sched.wait_turn(cx);
            }
            Phase::Ripe => {
                core.transfers.land(Prefetched(this.number));
                return this.result();
            }
            Phase::Over if core.transfers.may_go_on() => return this.result(),
            Phase::Over => core.sched.wait_turn(cx),
            Phase::Flies => {
                match core.transfers.take(OpId(this.number)) {
                    Some(Ok(buf)) => *this.buf = Some(buf),
                    Some(Err(error)) => *this.error = Some(error),
                    None => {
                        core.transfers.tell(&core.sched);
                        core.transfers
                            .set_waiter(OpId(this.number), core.sched.waiter(cx, "a transfer"));
                        return Poll::Pending;
                    }
                }
                return this.result();
            }
            Phase::Taken => {}
        }
        Poll::Pending
    }
}

impl Transfer<'_, '_> {
    /// The end of a transfer whose result nobody took.
    #[cold]
    fn abandon(&mut self) {
        let transfers = &self.cx.core.transfers;
        match self.phase {
            Phase::Flies => transfers.detach(OpId(self.number)),
            Phase::Prefetched | Phase::Ripe => transfers.withdraw(Prefetched(self.number)),
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

/// A prefetched item; see [`Cx::load`].
pub struct Load<'c, 'env, 't, T> {
    core: &'c Core<'env>,
    item: &'t T,
    over: bool,
}

impl<'t, T> Future for Load<'_, '_, 't, T> {
    type Output = &'t T;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<&'t T> {
        if self.over {
            self.core.transfers.memory().wait_for(self.item);
            return Poll::Ready(self.item);
        }
        self.over = true;
        self.core.sched.wait_turn(cx);
        Poll::Pending
    }
}

/// See [`Cx::yield_now`].
pub struct YieldNow<'c, 'env> {
    core: &'c Core<'env>,
    over: bool,
}

impl Future for YieldNow<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.over {
            return Poll::Ready(());
        }
        self.over = true;
        self.core.sched.wait_turn(cx);
        Poll::Pending
    }
}
