//! What all programs of the experiments share: one accelerator of so many
//! threads, timed from the first thread's start to the last one's end.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use cellway::accel::{Config, Cx, Place};
use pin_project_lite::pin_project;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::measure::Sample;

/// The MFC's transfers in flight, and the default of [`Config::depth`].
const DEPTH: usize = 16;

/// One accelerator with `threads` threads, each of which may have a transfer in flight.
pub(crate) fn one_accelerator(threads: usize) -> Config {
    Config { accelerators: 1, threads, depth: threads.max(DEPTH), ..Config::default() }
}

/// Runs `work` on the last core allowed, where one accelerator runs too: a core
/// may be slower than another all the time, and versions without an
/// accelerator must not be compared across them.
pub(crate) fn on_one_core<R>(work: impl FnOnce() -> R) -> R {
    let before = sched_getaffinity(None).ok();
    let is_allowed = |&core: &usize| before.is_some_and(|cores| cores.is_set(core));
    if let Some(last) = (0..CpuSet::MAX_CPU).rev().find(is_allowed) {
        let mut one = CpuSet::new();
        one.set(last);
        // Not being pinned makes figures noisier, not wrong.
        let _ = sched_setaffinity(None, &one);
    }
    let result = work();
    if let Some(before) = before {
        let _ = sched_setaffinity(None, &before);
    }
    result
}

/// When a thread began.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Ends a thread that computed `check`.
    pub(crate) fn stop(self, check: u64) -> Lap {
        Lap { start: self.0, end: Instant::now(), check }
    }
}

/// When a thread began and ended, and its share of the check sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lap {
    start: Instant,
    end: Instant,
    check: u64,
}

pin_project! {
    /// A thread's body and its time, as a future of its own: an async block
    /// around the body would add a step to each of its turns.
    struct Timed<F> {
        #[pin]
        body: F,
        watch: Stopwatch,
    }
}

impl<F: Future<Output = anyhow::Result<u64>>> Future for Timed<F> {
    type Output = anyhow::Result<Lap>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        /// Apart, so that turns save no registers for it.
        #[cold]
        #[inline(never)]
        fn end(watch: Stopwatch, check: anyhow::Result<u64>) -> anyhow::Result<Lap> {
            check.map(|check| watch.stop(check))
        }
        let this = self.project();
        let Poll::Ready(check) = this.body.poll(cx) else { return Poll::Pending };
        Poll::Ready(end(*this.watch, check))
    }
}

/// Runs a program whose threads together handle `items` items; each returns its
/// share of the check sum.
pub(crate) fn run_timed<'env, F, P>(
    config: &Config,
    items: u64,
    program: P,
) -> anyhow::Result<Sample>
where
    F: Future<Output = anyhow::Result<u64>> + 'env,
    P: Fn(Cx<'env>, Place) -> F + Sync,
{
    run_laps(config, items, |cx, at| {
        let watch = Stopwatch::start();
        Timed { body: program(cx, at), watch }
    })
}

/// As `run_timed`, for programs that start the watch themselves.
pub(crate) fn run_laps<'env, F, P>(
    config: &Config,
    items: u64,
    program: P,
) -> anyhow::Result<Sample>
where
    F: Future<Output = anyhow::Result<Lap>> + 'env,
    P: Fn(Cx<'env>, Place) -> F + Sync,
{
    let laps =
        cellway::accel::run(config, program)?.into_iter().collect::<anyhow::Result<Vec<Lap>>>()?;
    let (Some(start), Some(end)) =
        (laps.iter().map(|lap| lap.start).min(), laps.iter().map(|lap| lap.end).max())
    else {
        anyhow::bail!("a program without threads cannot be timed; use --threads 1 or more");
    };
    let check = laps.iter().fold(0_u64, |sum, lap| sum.wrapping_add(lap.check));
    Ok(Sample { seconds: (end - start).as_secs_f64(), items, check: Some(check) })
}
