//! Lets units through one by one in their order, whichever accelerator holds them.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the whole run; until then the others may finish their step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A gate that opens for unit 0, then 1, then 2, ... Every unit has a thread
/// that will pass or fail, so nobody waits for ever; each waits with one unit
/// only, so what is held back is bounded by the number of threads.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    waiting: BTreeMap<u64, Waker>,
    /// From this unit on nobody passes any more.
    closed_from: Option<u64>,
}

impl Gate {
    /// Waits for unit `index`'s turn, to be ended by [`Gate::pass_on`]; `false`
    /// if this unit or an earlier one failed and no turn will come.
    #[must_use]
    pub(crate) async fn turn(&self, index: u64) -> bool {
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            let closed = state.closed_from.is_some_and(|from| from <= index);
            if closed || state.next >= index {
                return Poll::Ready(!closed);
            }
            state.waiting.insert(index, cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Unit `index` is through: the next one may pass.
    pub(crate) fn pass_on(&self, index: u64) {
        self.open_until(index + 1);
    }

    /// All units up to and with `next` may pass.
    pub(crate) fn open_until(&self, next: u64) {
        let passing = {
            let mut state = lock(&self.state);
            state.next = state.next.max(next);
            let next = state.next;
            let later = state.waiting.split_off(&(next + 1));
            std::mem::replace(&mut state.waiting, later)
        };
        passing.into_values().for_each(Waker::wake);
    }

    /// Unit `index` has failed: it and those after it are sent away. Those
    /// before it still pass, so that what fails first in the input is found
    /// whatever the timing.
    pub(crate) fn close_from(&self, index: u64) {
        let sent_away = {
            let mut state = lock(&self.state);
            state.closed_from = Some(state.closed_from.map_or(index, |from| from.min(index)));
            state.waiting.split_off(&index)
        };
        sent_away.into_values().for_each(Waker::wake);
    }
}
