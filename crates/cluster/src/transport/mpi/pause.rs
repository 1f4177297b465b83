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

/// Who gives way for longer let another thread compute, not just look.
const AWAY: Duration = Duration::from_micros(20);
/// Then this sleeps at once for so long, and more and more: where accelerators have all cores,
/// each look takes some 20 us from them, and who gives way to one of them comes back after
/// its whole time slice.
const SHARED: Duration = Duration::from_millis(100);
const SHARED_NAP_MIN: Duration = Duration::from_micros(50);
const SHARED_NAP_MAX: Duration = Duration::from_millis(2);

/// One wait after another.
#[derive(Debug, Default)]
pub(super) struct Pause {
    began: Option<Instant>,
    nap: Duration,
    /// When another thread computed on this core.
    shared: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Spin,
    Yield,
    Nap(Duration),
}

impl Pause {
    /// Another wait begins.
    pub(super) fn begin(&mut self) {
        (self.began, self.nap) = (None, Duration::ZERO);
    }

    /// Waits a little, sleeping by `nap`; false at once if the time is over.
    pub(super) fn wait(&mut self, until: Option<Instant>, nap: impl FnOnce(Duration)) -> bool {
        let now = Instant::now();
        let left = until.map(|until| until.saturating_duration_since(now));
        if left == Some(Duration::ZERO) {
            return false;
        }
        match self.step(now) {
            Step::Spin => std::hint::spin_loop(),
            Step::Yield => {
                thread::yield_now();
                self.away(now, now.elapsed());
            }
            Step::Nap(time) => nap(left.map_or(time, |left| time.min(left))),
        }
        true
    }

    fn away(&mut self, since: Instant, time: Duration) {
        if time >= AWAY {
            self.shared = Some(since);
        }
    }

    fn step(&mut self, now: Instant) -> Step {
        let waited = now.saturating_duration_since(*self.began.get_or_insert(now));
        let is_shared =
            self.shared.is_some_and(|since| now.saturating_duration_since(since) < SHARED);
        if waited < SPIN && !is_shared {
            return Step::Spin;
        }
        if waited < SPIN + YIELD && !is_shared {
            return Step::Yield;
        }
        let (least, most) =
            if is_shared { (SHARED_NAP_MIN, SHARED_NAP_MAX) } else { (NAP_MIN, NAP_MAX) };
        self.nap = (self.nap * 2).clamp(least, most);
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
    fn it_sleeps_at_once_on_a_core_that_another_thread_wanted() {
        let (mut pause, began) = (Pause::default(), Instant::now());
        let nap = Step::Nap(SHARED_NAP_MIN);
        pause.away(began, AWAY - Duration::from_nanos(1));
        assert_eq!(pause.step(began), Step::Spin);
        pause.away(began, AWAY);
        pause.begin();
        assert_eq!(pause.step(began + SHARED - Duration::from_nanos(1)), nap);
        pause.begin();
        assert_eq!(pause.step(began + SHARED), Step::Spin);
    }

    #[test]
    fn a_time_that_is_over_ends_it() {
        let now = Instant::now();
        assert!(!Pause::default().wait(Some(now), thread::sleep));
        assert!(Pause::default().wait(Some(now + Duration::from_secs(60)), thread::sleep));
        assert!(Pause::default().wait(None, thread::sleep));
    }
}
