//! How long to wait between two looks at an MPI that has nothing.

use std::thread;
use std::time::{Duration, Instant};

/// Looks follow each other at once for so long: an answer comes within a few microseconds.
const SPIN: Duration = Duration::from_micros(50);
/// Then other threads of this core go first, for so long.
const YIELD: Duration = Duration::from_micros(200);
/// Then this sleeps, longer and longer.
const NAP_MIN: Duration = Duration::from_micros(10);
const NAP_MAX: Duration = Duration::from_micros(200);

/// One wait.
#[derive(Debug, Default)]
pub(super) struct Pause {
    began: Option<Instant>,
    nap: Duration,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Spin,
    Yield,
    Nap(Duration),
}

impl Pause {
    /// Waits a little, sleeping by `nap`; false at once if the time is over.
    pub(super) fn wait(&mut self, until: Option<Instant>, nap: impl FnOnce(Duration)) -> bool {
        let now = Instant::now();
        let left = until.map(|until| until.saturating_duration_since(now));
        if left == Some(Duration::ZERO) {
            return false;
        }
        match self.step(now) {
            Step::Spin => std::hint::spin_loop(),
            Step::Yield => thread::yield_now(),
            Step::Nap(time) => nap(left.map_or(time, |left| time.min(left))),
        }
        true
    }

    fn step(&mut self, now: Instant) -> Step {
        let waited = now.saturating_duration_since(*self.began.get_or_insert(now));
        if waited < SPIN {
            return Step::Spin;
        }
        if waited < SPIN + YIELD {
            return Step::Yield;
        }
        self.nap = (self.nap * 2).clamp(NAP_MIN, NAP_MAX);
        Step::Nap(self.nap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_to_their_limit() {
        let (mut pause, began) = (Pause::default(), Instant::now());
        let mut after = |us| pause.step(began + Duration::from_micros(us));
        assert_eq!(after(0), Step::Spin);
        assert_eq!(after(49), Step::Spin);
        assert_eq!(after(50), Step::Yield);
        assert_eq!(after(249), Step::Yield);
        for us in [10, 20, 40, 80, 160, 200, 200] {
            assert_eq!(after(1000 + us), Step::Nap(Duration::from_micros(us)));
        }
    }

    #[test]
    fn a_time_that_is_over_ends_it() {
        let now = Instant::now();
        assert!(!Pause::default().wait(Some(now), thread::sleep));
        assert!(Pause::default().wait(Some(now + Duration::from_secs(60)), thread::sleep));
        assert!(Pause::default().wait(None, thread::sleep));
    }
}
