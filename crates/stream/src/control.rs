//! What whoever watches a run may ask of it: to pause, to go on, to end.

use std::future::poll_fn;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::gate::lock;

/// What is asked of a run. It is looked at before a unit is taken: those under
/// way are done in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Wish {
    /// Take units.
    #[default]
    Run,
    /// Take no unit for now.
    Pause,
    /// Take no unit any more, and fail.
    Cancel,
}

/// Asks things of a run, from any thread.
#[derive(Debug, Default)]
pub struct Control {
    wish: AtomicU8,
    /// Whether it was ever asked to pause.
    was_paused: AtomicBool,
    paused: Mutex<Paused>,
}

#[derive(Debug, Default)]
struct Paused {
    wakers: Vec<Waker>,
    /// Of the pause under way, and how long those before took.
    since: Option<Instant>,
    before: Duration,
}

impl Control {
    /// No unit is taken until [`Control::resume`].
    pub fn pause(&self) {
        self.ask(Wish::Pause);
    }

    /// Units are taken again.
    pub fn resume(&self) {
        self.ask(Wish::Run);
    }

    /// The run ends with [`StreamError::Cancelled`](crate::StreamError), for good.
    pub fn cancel(&self) {
        self.ask(Wish::Cancel);
    }

    /// What was asked last.
    #[must_use]
    pub fn wish(&self) -> Wish {
        match self.wish.load(Ordering::Relaxed) {
            0 => Wish::Run,
            1 => Wish::Pause,
            _ => Wish::Cancel,
        }
    }

    /// How long it was paused in all, until now: time that is held against nobody.
    #[must_use]
    pub fn paused(&self) -> Duration {
        if !self.was_paused.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        let paused = lock(&self.paused);
        paused.before + paused.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn ask(&self, wish: Wish) {
        let mut paused = lock(&self.paused);
        // Cancelled is cancelled, whatever is asked afterwards.
        self.wish.fetch_max(wish as u8, Ordering::Relaxed);
        if wish == Wish::Run {
            let back = |now| (now == Wish::Pause as u8).then_some(Wish::Run as u8);
            let _ = self.wish.fetch_update(Ordering::Relaxed, Ordering::Relaxed, back);
        }
        let is_paused = self.wish() == Wish::Pause;
        if is_paused {
            paused.since.get_or_insert_with(Instant::now);
            self.was_paused.store(true, Ordering::Release);
        } else if let Some(since) = paused.since.take() {
            paused.before += since.elapsed();
        }
        let wakers = std::mem::take(&mut paused.wakers);
        drop(paused);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits while the run is paused; `false` if it is to end.
    #[must_use]
    pub(crate) async fn may_go_on(&self) -> bool {
        if self.wish() == Wish::Run {
            return true;
        }
        poll_fn(|cx| {
            let mut paused = lock(&self.paused);
            match self.wish() {
                Wish::Run => Poll::Ready(true),
                Wish::Cancel => Poll::Ready(false),
                Wish::Pause => {
                    paused.wakers.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_counted_until_they_end() {
        let control = Control::default();
        control.resume();
        assert_eq!(control.paused(), Duration::ZERO);
        for _ in 0..2 {
            let before = control.paused();
            control.pause();
            control.pause();
            while control.paused() == before {}
            control.resume();
            let after = control.paused();
            assert!(after > before && control.paused() == after);
        }
        control.pause();
        control.cancel();
        assert_eq!(control.paused(), control.paused());
    }

    #[test]
    fn cancelled_is_cancelled() {
        let control = Control::default();
        control.pause();
        assert_eq!(control.wish(), Wish::Pause);
        control.resume();
        assert_eq!(control.wish(), Wish::Run);
        control.cancel();
        control.resume();
        control.pause();
        assert_eq!(control.wish(), Wish::Cancel);
    }
}
