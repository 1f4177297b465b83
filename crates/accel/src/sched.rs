//! Cooperative threads: first in first out, one OS thread, no locks.
//!
//! Runnable threads stand in a ring and get a turn each. A thread that only
//! waits for its turn (a yield, a memory transfer) stays in the ring: no
//! waker, no queue, no allocation. One that waits for something else leaves
//! the ring and comes back when it is woken.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use pin_project_lite::pin_project;

use crate::machine::{Post, lock};

/// More threads than the accelerator's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{threads_max} threads run already, which is the limit; join some first, or raise threads_max"
)]
pub struct SpawnError {
    /// The limit.
    pub threads_max: usize,
}

type Body<'env> = dyn Future<Output = ()> + 'env;

#[repr(C)]
struct Slot<'env> {
    /// First, so that its address is the slot's: `is_own` compares them.
    waker: Waker,
    /// Of that waker, made when a thread starts. Borrowed while its body is
    /// polled, so never borrow a slot whole, only field by field.
    context: MaybeUninit<Context<'static>>,
    /// From `Box::leak`; `None` when the slot is free.
    body: Option<NonNull<Body<'env>>>,
    /// Neighbours in the ring; dangling while not in it.
    next: SlotPtr<'env>,
    prev: SlotPtr<'env>,
    bell: Arc<Bell>,
    number: u32,
    in_ring: bool,
    waits_for: &'static str,
}

/// Slots are boxed and live as long as their scheduler.
type SlotPtr<'env> = NonNull<Slot<'env>>;

/// Wakes one thread from anywhere: the waker of its slot.
struct Bell {
    thread: u32,
    rung: AtomicBool,
    post: Arc<Post>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            lock(&self.post.woken).push(self.thread);
            self.post.notify();
        }
    }
}

pin_project! {
    /// A thread's body that leaves its result somewhere. A future of its own,
    /// because an async block around `body` would add a step to each of its turns.
    pub(crate) struct Leaves<F, L> {
        #[pin]
        body: F,
        leave: Option<L>,
    }
}

impl<F, L> Leaves<F, L> {
    pub(crate) fn new(body: F, leave: L) -> Self {
        Self { body, leave: Some(leave) }
    }
}

impl<F: Future, L: FnOnce(F::Output)> Future for Leaves<F, L> {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        /// Apart, so that turns save no registers for it.
        #[cold]
        #[inline(never)]
        fn end<T, L: FnOnce(T)>(leave: &mut Option<L>, result: T) {
            if let Some(leave) = leave.take() {
                leave(result);
            }
        }
        let this = self.project();
        let Poll::Ready(result) = this.body.poll(cx) else { return Poll::Pending };
        end(this.leave, result);
        Poll::Ready(())
    }
}

/// Who waits for something: a thread, and its waker if another executor
/// stands between (a foreign combinator with wakers of its own).
#[derive(Debug)]
pub(crate) struct Waiter {
    thread: u32,
    foreign: Option<Waker>,
}

/// Who waits for the same thing, each once: a thread that is polled often
/// while it waits, as in a race with other work, must not make the list grow.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    list: RefCell<Vec<Waiter>>,
    /// A bit for each thread in the list that is woken by its number.
    listed: RefCell<Vec<u64>>,
}

impl Waiters {
    pub(crate) fn add(&self, waiter: Waiter) {
        let known = match &waiter.foreign {
            None => self.mark(waiter.thread as usize),
            Some(waker) => {
                let wakes =
                    |known: &Waiter| known.foreign.as_ref().is_some_and(|w| w.will_wake(waker));
                self.list.borrow().iter().any(wakes)
            }
        };
        if !known {
            self.list.borrow_mut().push(waiter);
        }
    }

    /// Marks a thread as listed; tells whether it was before.
    fn mark(&self, thread: usize) -> bool {
        let (word, bit) = (thread / 64, 1 << (thread % 64));
        let mut listed = self.listed.borrow_mut();
        if listed.len() <= word {
            listed.resize(word + 1, 0);
        }
        let known = listed[word] & bit != 0;
        listed[word] |= bit;
        known
    }

    pub(crate) fn take(&self) -> Vec<Waiter> {
        let list = self.list.take();
        if !list.is_empty() {
            self.listed.borrow_mut().fill(0);
        }
        list
    }
}

pub(crate) struct Scheduler<'env> {
    /// All slots ever made; from `Box::leak`, freed by `Drop`.
    slots: RefCell<Vec<SlotPtr<'env>>>,
    free: RefCell<Vec<u32>>,
    post: Arc<Post>,
    /// The thread whose turn it is or will be; meaningless in an empty ring.
    cursor: Cell<SlotPtr<'env>>,
    runnable: Cell<usize>,
    live: Cell<usize>,
    threads_max: usize,
    /// No thread may start any more.
    closed: Cell<bool>,
    /// Set by whoever returned `Pending` only to wait for its turn.
    turn: Cell<bool>,
}

impl<'env> Scheduler<'env> {
    pub(crate) fn new(threads_max: usize, post: Arc<Post>) -> Self {
        Self {
            slots: RefCell::default(),
            free: RefCell::default(),
            post,
            cursor: Cell::new(NonNull::dangling()),
            runnable: Cell::new(0),
            live: Cell::new(0),
            threads_max,
            closed: Cell::new(false),
            turn: Cell::new(false),
        }
    }

    #[inline(always)]
    pub(crate) fn runnable(&self) -> usize {
        self.runnable.get()
    }

    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    /// Number of the thread that has its turn; outside any turn, of the next
    /// one that will, or 0.
    #[inline(always)]
    pub(crate) fn current(&self) -> u32 {
        if self.runnable.get() == 0 {
            return 0;
        }
        // SAFETY: in a ring that is not empty the cursor is one of its slots.
        unsafe { (*self.cursor.get().as_ptr()).number }
    }

    /// Adds a thread at the end of the ring.
    pub(crate) fn spawn(&self, body: Box<Body<'env>>) -> Result<u32, SpawnError> {
        if self.live.get() >= self.threads_max || self.closed.get() {
            return Err(SpawnError { threads_max: self.threads_max });
        }
        let reused = self.free.borrow_mut().pop();
        let number = reused.unwrap_or_else(|| self.new_slot());
        let slot = self.slots.borrow()[number as usize];
        // SAFETY: a slot stays where it is as long as its scheduler, and so as
        // the context in it; its waker is never changed; a free one is not polled.
        unsafe {
            let at = slot.as_ptr();
            (*at).context.write(Context::from_waker(&(*at).waker));
            (*at).body = Some(NonNull::from(Box::leak(body)));
        }
        self.live.set(self.live.get() + 1);
        self.enter_ring(number);
        Ok(number)
    }

    fn new_slot(&self) -> u32 {
        let number = self.slots.borrow().len() as u32;
        let bell = Arc::new(Bell {
            thread: number,
            rung: AtomicBool::new(false),
            post: self.post.clone(),
        });
        let slot = NonNull::from(Box::leak(Box::new(Slot {
            waker: Waker::from(bell.clone()),
            context: MaybeUninit::uninit(),
            body: None,
            next: NonNull::dangling(),
            prev: NonNull::dangling(),
            bell,
            number,
            in_ring: false,
            waits_for: "",
        })));
        self.slots.borrow_mut().push(slot);
        number
    }

    /// Puts a thread last in the ring, that is, just before the cursor.
    fn enter_ring(&self, number: u32) {
        let slot = self.slots.borrow()[number as usize];
        // SAFETY: slots live as long as their scheduler, neighbours in the
        // ring are slots, and no reference to a slot's ring fields is held.
        unsafe {
            let at = slot.as_ptr();
            if (*at).in_ring || (*at).body.is_none() {
                return;
            }
            (*at).in_ring = true;
            // Unless what it waits for next says so itself.
            (*at).waits_for = "a future that is not this accelerator's";
            if self.runnable.get() == 0 {
                (*at).next = slot;
                (*at).prev = slot;
                self.cursor.set(slot);
            } else {
                let next = self.cursor.get();
                let prev = (*next.as_ptr()).prev;
                (*at).next = next;
                (*at).prev = prev;
                (*prev.as_ptr()).next = slot;
                (*next.as_ptr()).prev = slot;
            }
        }
        self.runnable.set(self.runnable.get() + 1);
    }

    fn leave_ring(&self, slot: SlotPtr<'env>) {
        // SAFETY: as in `enter_ring`; the slot is in the ring.
        let next = unsafe {
            let at = slot.as_ptr();
            let (prev, next) = ((*at).prev, (*at).next);
            (*prev.as_ptr()).next = next;
            (*next.as_ptr()).prev = prev;
            (*at).in_ring = false;
            next
        };
        self.runnable.set(self.runnable.get() - 1);
        if self.cursor.get() == slot {
            self.cursor.set(next);
        }
    }

    /// Gives up to `count` turns, as long as a thread is runnable.
    #[inline]
    pub(crate) fn turns(&self, count: usize) {
        // Kept here and not read back from `cursor`: this is what a turn waits for.
        let mut slot = self.cursor.get();
        let mut left = if self.runnable.get() == 0 { 0 } else { count };
        while left > 0 {
            left -= 1;
            self.cursor.set(slot);
            self.turn.set(false);
            // SAFETY: in a ring that is not empty the cursor is a slot in it, so
            // it has a body: a leaked box that only `finish` frees,
            // never while it is polled. A box's content is pinned. The context
            // was made with the body, and is borrowed here only.
            let polled = unsafe {
                let mut body = (*slot.as_ptr()).body.unwrap_unchecked();
                let context = (*slot.as_ptr()).context.assume_init_mut();
                Pin::new_unchecked(body.as_mut()).poll(context)
            };
            if polled.is_pending() && self.turn.get() {
                // SAFETY: a thread that ran is still in the ring.
                slot = unsafe { (*slot.as_ptr()).next };
            } else {
                self.leave(slot, polled.is_ready());
                slot = self.cursor.get();
                if self.runnable.get() == 0 {
                    return;
                }
            }
        }
        self.cursor.set(slot);
    }

    /// A thread ended, or waits for something else than its turn.
    #[cold]
    fn leave(&self, slot: SlotPtr<'env>, ended: bool) {
        self.leave_ring(slot);
        if ended {
            self.finish(slot);
            return;
        }
        // SAFETY: slots live as long as their scheduler.
        let rung = unsafe { &(*slot.as_ptr()).bell }.rung.load(Ordering::SeqCst);
        // A wake that came while the thread ran must not be lost.
        if rung {
            self.post.notify();
        }
    }

    fn finish(&self, slot: SlotPtr<'env>) {
        // SAFETY: as above; the slot has left the ring and is not polled.
        let (body, number) = unsafe { ((*slot.as_ptr()).body.take(), (*slot.as_ptr()).number) };
        let Some(body) = body else { return };
        self.live.set(self.live.get() - 1);
        // SAFETY: the box leaked by `spawn`, freed once: it was taken out of
        // its slot. Dropping it may run user code, which may spawn.
        drop(unsafe { Box::from_raw(body.as_ptr()) });
        self.free.borrow_mut().push(number);
    }

    /// Drops all threads, for the end of a run that failed. What they do as
    /// they go, and handles that outlive them, can start no others: those would
    /// hold what holds them.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        let mut number = 0;
        while let Some(slot) = self.slot(number) {
            // SAFETY: slots live as long as their scheduler.
            if unsafe { (*slot.as_ptr()).in_ring } {
                self.leave_ring(slot);
            }
            self.finish(slot);
            number += 1;
        }
    }

    fn slot(&self, number: u32) -> Option<SlotPtr<'env>> {
        self.slots.borrow().get(number as usize).copied()
    }

    /// Brings back the threads whose wakers were called.
    pub(crate) fn answer_bells(&self) {
        let woken = std::mem::take(&mut *lock(&self.post.woken));
        for number in woken {
            if let Some(slot) = self.slot(number) {
                // SAFETY: slots live as long as their scheduler.
                unsafe { &(*slot.as_ptr()).bell }.rung.store(false, Ordering::SeqCst);
                self.enter_ring(number);
            }
        }
    }

    /// How many wakers of this accelerator's threads others hold.
    pub(crate) fn outside_wakers(&self) -> usize {
        // Two are ours: the slot's bell and the slot's waker.
        // SAFETY: slots live as long as their scheduler.
        self.slots
            .borrow()
            .iter()
            .map(|slot| Arc::strong_count(unsafe { &(*slot.as_ptr()).bell }) - 2)
            .sum()
    }

    /// Whether a context is the one `turn` made, with no executor between.
    #[inline(always)]
    fn is_own(&self, cx: &Context<'_>) -> bool {
        // Only an address: outside any turn there may be no slot at all.
        std::ptr::eq(cx.waker(), self.cursor.get().as_ptr().cast_const().cast::<Waker>())
    }

    /// Marks the current thread as waiting for its turn only.
    #[inline(always)]
    pub(crate) fn wait_turn(&self, cx: &Context<'_>) {
        #[cold]
        #[inline(never)]
        fn wake(cx: &Context<'_>) {
            cx.waker().wake_by_ref();
        }
        self.turn.set(true);
        if !self.is_own(cx) {
            wake(cx);
        }
    }

    /// Whoever waits in the current poll, to be woken later; `what` is for
    /// the report of a deadlock.
    pub(crate) fn waiter(&self, cx: &Context<'_>, what: &'static str) -> Waiter {
        let slot = self.cursor.get().as_ptr();
        let foreign = (!self.is_own(cx)).then(|| cx.waker().clone());
        if self.runnable.get() == 0 {
            // Polled outside any turn, so by another executor.
            return Waiter { thread: u32::MAX, foreign };
        }
        // SAFETY: in a ring that is not empty the cursor is one of its slots;
        // its waker, which may be borrowed now, is another field.
        let thread = unsafe {
            (*slot).waits_for = what;
            (*slot).number
        };
        Waiter { thread, foreign }
    }

    pub(crate) fn wake(&self, waiter: Waiter) {
        match waiter.foreign {
            Some(waker) => waker.wake(),
            None => self.enter_ring(waiter.thread),
        }
    }

    /// What every blocked thread waits for.
    pub(crate) fn blocked(&self) -> Vec<(u32, &'static str)> {
        let slots = self.slots.borrow();
        let seen = slots.iter().map(|slot| slot.as_ptr()).map(|at| unsafe {
            // SAFETY: slots live as long as their scheduler.
            ((*at).body.is_some() && !(*at).in_ring, (*at).number, (*at).waits_for)
        });
        let blocked = seen.filter(|(blocked, ..)| *blocked);
        blocked.map(|(_, number, waits_for)| (number, waits_for)).collect()
    }
}

impl Drop for Scheduler<'_> {
    fn drop(&mut self) {
        self.close();
        for slot in self.slots.take() {
            // SAFETY: leaked by `new_slot`, freed once, and nothing runs any more.
            drop(unsafe { Box::from_raw(slot.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests;
