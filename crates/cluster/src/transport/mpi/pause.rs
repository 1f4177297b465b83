//! How long to wait between two looks at an MPI that has nothing.

use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Looks follow each other at once for so long: an answer comes within a few microseconds.
const SPIN: Duration = Duration::from_micros(50);
/// Then other threads of this core go first, for so long.
const YIELD: Duration = Duration::from_micros(200);
/// Then this sleeps, longer and longer.
const NAP_MIN: Duration = Duration::from_micros(10);
const NAP_MAX: Duration = Duration::from_micros(200);

/// Who gives way and does not run for longer let another thread compute, not just look, or the
/// system see to something.
const AWAY: Duration = Duration::from_micros(200);
/// Then this sleeps at once, more and more, in this wait and those that begin within this time:
/// where accelerators have all cores, each look takes some 20 us from them, and who gives way
/// to one of them comes back after its whole time slice.
const SHARED: Duration = Duration::from_millis(5);
const SHARED_NAP_MIN: Duration = Duration::from_micros(50);
const SHARED_NAP_MAX: Duration = Duration::from_millis(2);

/// One wait after another.
#[derive(Debug, Default)]
pub(super) struct Pause {
    began: Option<Instant>,
    nap: Duration,
    /// When another thread computed on this core.
    shared: Option<Instant>,
    /// This wait sleeps at once.
    sleeps: bool,
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
        (self.began, self.nap, self.sleeps) = (None, Duration::ZERO, false);
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
                let ran = ran();
                thread::yield_now();
                self.away(now, now.elapsed().saturating_sub(self::ran().saturating_sub(ran)));
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
        self.sleeps |=
            self.shared.is_some_and(|since| now.saturating_duration_since(since) < SHARED);
        if waited < SPIN && !self.sleeps {
            return Step::Spin;
        }
        if waited < SPIN + YIELD && !self.sleeps {
            return Step::Yield;
        }
        let (least, most) =
            if self.sleeps { (SHARED_NAP_MIN, SHARED_NAP_MAX) } else { (NAP_MIN, NAP_MAX) };
        self.nap = (self.nap * 2).clamp(least, most);
        Step::Nap(self.nap)
    }
}

/// How long this thread ran: a clock that stands still while others do, but not while the
/// machine takes the core's time.
fn ran() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
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
        // A wait goes on as it began.
        assert_eq!(pause.step(began + SHARED), Step::Nap(2 * SHARED_NAP_MIN));
        pause.begin();
        assert_eq!(pause.step(began + SHARED), Step::Spin);
    }

    #[test]
    fn a_thread_does_not_run_while_it_waits_for_one_that_does() {
        let computes = || {
            let began = ran();
            while ran() - began < Duration::from_millis(2) {
                std::hint::spin_loop();
            }
        };
        let (began, since) = (ran(), Instant::now());
        thread::scope(|scope| scope.spawn(computes).join().unwrap());
        assert!(since.elapsed() - (ran() - began) > Duration::from_millis(1));
    }

    #[test]
    fn a_time_that_is_over_ends_it() {
        let now = Instant::now();
        assert!(!Pause::default().wait(Some(now), thread::sleep));
        assert!(Pause::default().wait(Some(now + Duration::from_secs(60)), thread::sleep));
        assert!(Pause::default().wait(None, thread::sleep));
    }
}
