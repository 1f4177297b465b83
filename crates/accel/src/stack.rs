//! Stackful threads: plain functions on stacks of their own, in the same
//! scheduler as the stackless ones. To the scheduler a stack is a future
//! whose poll resumes it.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use corosensei::stack::{DefaultStack, Stack, StackPointer};
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::cx::{Cx, Thread};
use crate::sched::SpawnError;

/// Tops of successive stacks are moved down by a multiple of this, so that
/// their hottest lines do not all compete for the same sets of the L1 cache.
const STAGGER_BYTES: usize = 3 * 128;
const STAGGERS: usize = 16;

/// Smallest stack: below this not even a panic message can be formatted.
const STACK_BYTES_MIN: usize = 16 * 1024;

/// Larger ones no address space has room for.
const STACK_BYTES_MAX: usize = isize::MAX as usize / 2;

/// Why a stackful thread could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StackfulError {
    /// More threads than the limit.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// No memory for the stack.
    #[error(
        "cannot map a stack of {stack_bytes} bytes: {source}; use smaller stacks or fewer threads"
    )]
    Stack {
        /// The size asked for.
        stack_bytes: usize,
        /// What the kernel answered.
        source: io::Error,
    },
}

/// A guarded stack whose top is moved down a little.
struct Staggered {
    stack: DefaultStack,
    base: StackPointer,
}

impl Staggered {
    fn new(stack_bytes: usize, number: usize) -> io::Result<Self> {
        if stack_bytes > STACK_BYTES_MAX {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let shift = number % STAGGERS * STAGGER_BYTES;
        let stack = DefaultStack::new(stack_bytes.max(STACK_BYTES_MIN) + shift)?;
        let base = StackPointer::new(stack.base().get() - shift).unwrap_or_else(|| stack.base());
        Ok(Self { stack, base })
    }
}

// SAFETY: a mapped, guarded stack that lives as long as this value; its base
// is lowered by a multiple of the stack alignment and stays above its limit.
unsafe impl Stack for Staggered {
    #[inline]
    fn base(&self) -> StackPointer {
        self.base
    }

    #[inline]
    fn limit(&self) -> StackPointer {
        self.stack.limit()
    }
}

/// The waker of the poll that resumes a stack, valid while it runs.
#[derive(Clone, Copy)]
struct WakerPtr(*const Waker);

type Routine<T> = Coroutine<WakerPtr, (), T, Staggered>;

/// What a stackful thread sees: its accelerator, and ways to wait.
pub struct StackCx<'s, 'env> {
    cx: Cx<'env>,
    yielder: &'s Yielder<WakerPtr, ()>,
    waker: Cell<WakerPtr>,
    limit: usize,
}

impl<'env> StackCx<'_, 'env> {
    /// The accelerator.
    #[must_use]
    pub fn cx(&self) -> &Cx<'env> {
        &self.cx
    }

    /// Waits for a future (a transfer, a mailbox, a thread's end) while the
    /// other threads run: blocking in form, cooperative in fact.
    #[inline]
    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            // SAFETY: the waker of this thread's slot, which lives as long as
            // the scheduler: the scheduler polls a stack with no other.
            let waker = unsafe { &*self.waker.get().0 };
            match future.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => self.waker.set(self.yielder.suspend(())),
            }
        }
    }

    /// Gives the other threads a turn.
    #[inline]
    pub fn yield_now(&self) {
        self.wait(self.cx.yield_now());
    }

    /// Bytes left on this thread's stack (the paper's `get_free_stack_space`).
    #[must_use]
    pub fn free_stack_bytes(&self) -> usize {
        let here = 0u8;
        (std::ptr::from_ref(&here) as usize).saturating_sub(self.limit)
    }
}

/// A stack as the scheduler polls it.
struct Stackful<T> {
    routine: Routine<T>,
}

impl<T> Unpin for Stackful<T> {}

impl<T> Future for Stackful<T> {
    type Output = T;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.routine.resume(WakerPtr(cx.waker())) {
            CoroutineResult::Yield(()) => Poll::Pending,
            CoroutineResult::Return(value) => Poll::Ready(value),
        }
    }
}

impl<'env> Cx<'env> {
    /// Starts a thread with a stack of its own of about `stack_bytes`.
    ///
    /// # Errors
    /// The limit of threads, or no memory for the stack.
    pub fn spawn_stackful<T: 'env>(
        &self,
        stack_bytes: usize,
        body: impl FnOnce(&StackCx<'_, 'env>) -> T + 'env,
    ) -> Result<Thread<'env, T>, StackfulError> {
        let number = self.stacks_made();
        let stack = Staggered::new(stack_bytes, number)
            .map_err(|source| StackfulError::Stack { stack_bytes, source })?;
        // The lowest page is the guard.
        let limit = stack.limit().get() + rustix::param::page_size();
        let cx = self.clone();
        let entry = move |yielder: &Yielder<WakerPtr, ()>, waker| {
            body(&StackCx { cx, yielder, waker: Cell::new(waker), limit })
        };
        // SAFETY: everything the body captures lives for 'env. The routine is
        // owned by a scheduler of that lifetime, which drops it (unwinding its
        // stack) before 'env ends; leaked, it is never resumed again.
        let routine: Routine<T> = unsafe { Coroutine::with_stack_unchecked(stack, entry) };
        Ok(self.spawn(Stackful { routine })?)
    }
}
