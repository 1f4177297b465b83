//! Runs that somebody watches, pauses, ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cellway_stream::{
    Block, Effect, Kernel, KernelError, Options, Outcome, Progress, Scheme, Step, StreamError,
    Unit, Wish, run,
};
use storage::{Input, Output};

use crate::setting::{Disk, SCHEMES, names};

const BLOCK: u64 = 4096;
const UNITS: u64 = 64;
/// Threads of the run, in all.
const THREADS: u64 = 4;

/// Flips bytes, and does something at one unit.
struct Flip<F> {
    blocks: AtomicU64,
    at_third: F,
}

impl<F: Fn() + Send + Sync> Kernel for Flip<F> {
    type Part = ();
    type Header = ();

    fn name(&self) -> &str {
        "flip"
    }

    fn effect(&self) -> Effect {
        Effect::Transform
    }

    fn part(&self, _accelerators: usize) {}

    fn block(&self, _: &Unit<'_>, block: Block<'_>, (): &mut ()) -> Result<(), KernelError> {
        if self.blocks.fetch_add(1, Ordering::SeqCst) == 2 {
            (self.at_third)();
        }
        block.data.iter_mut().for_each(|byte| *byte = !*byte);
        Ok(())
    }

    fn merge(&self, (): &mut (), (): ()) -> Result<(), KernelError> {
        Ok(())
    }
}

/// Runs over a file of `UNITS` blocks; the output, if there is one, and the blocks done.
fn flip(
    scheme: Scheme,
    progress: &Progress,
    at_third: impl Fn() + Send + Sync,
    beside: impl FnOnce(&AtomicU64) + Send,
) -> (Result<Outcome<()>, StreamError>, Option<Vec<u8>>, u64) {
    let dir = Disk::Real.folder().unwrap();
    let (from, to) = (dir.path().join("in"), dir.path().join("out"));
    std::fs::write(&from, vec![7; (BLOCK * UNITS) as usize]).unwrap();
    let (input, output) =
        (Input::open(&from).unwrap(), Output::create(&to, &storage::Options::default()).unwrap());
    let kernel = Flip { blocks: AtomicU64::new(0), at_third };
    let options = Options {
        accelerators: Some(2),
        threads: Some(THREADS as usize / 2),
        block_bytes: Some(BLOCK),
        scheme,
        ..Options::default()
    };
    let outcome = thread::scope(|scope| {
        scope.spawn(|| beside(&kernel.blocks));
        run(&kernel, &input, Some(&output), &options, progress)
    });
    if outcome.is_ok() {
        output.commit(false).unwrap();
    } else {
        drop(output);
        assert_eq!(names(dir.path()), ["in"]);
    }
    (outcome, std::fs::read(&to).ok(), kernel.blocks.into_inner())
}

/// While a run is paused no unit begins but those that were taken; then it goes on.
#[test]
fn a_paused_run_waits_and_goes_on() {
    for scheme in SCHEMES {
        let progress = Progress::default();
        let control = progress.control();
        let (outcome, written, blocks) = flip(
            scheme,
            &progress,
            || control.pause(),
            |blocks| {
                while control.wish() != Wish::Pause {
                    thread::yield_now();
                }
                for _ in 0..2000 {
                    thread::yield_now();
                }
                let begun = blocks.load(Ordering::SeqCst);
                assert!(begun < 3 + THREADS, "{scheme}: {begun} units begun");
                control.resume();
            },
        );
        outcome.unwrap();
        assert_eq!(blocks, UNITS, "{scheme}");
        assert!(written.unwrap().iter().all(|byte| *byte == !7), "{scheme}");
    }
}

#[test]
fn a_cancelled_run_leaves_nothing() {
    for scheme in SCHEMES {
        let progress = Progress::default();
        let cancel = || progress.control().cancel();
        let (outcome, written, blocks) = flip(scheme, &progress, cancel, |_| {});
        assert!(matches!(outcome, Err(StreamError::Cancelled)), "{scheme}: {outcome:?}");
        assert!(blocks < 3 + THREADS, "{scheme}: {blocks} units");
        assert_eq!(written, None);
    }
}

#[test]
fn a_paused_run_can_be_cancelled() {
    let progress = Progress::default();
    let control = progress.control();
    let (outcome, ..) = flip(
        Scheme::Direct,
        &progress,
        || control.pause(),
        |_| {
            while control.wish() != Wish::Pause {
                thread::yield_now();
            }
            control.cancel();
        },
    );
    assert!(matches!(outcome, Err(StreamError::Cancelled)), "{outcome:?}");
}

#[test]
fn the_last_steps_of_each_thread_are_kept() {
    let progress = Progress::default().observed();
    flip(Scheme::Direct, &progress, || (), |_| {}).0.unwrap();
    let threads = progress.threads();
    let places: Vec<_> = threads.iter().map(|t| (t.accelerator, t.thread)).collect();
    assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    let steps = threads.iter().flat_map(|thread| &thread.steps);
    let mut put: Vec<_> = steps.filter(|done| done.step == Step::Put).collect();
    put.sort_by_key(|done| done.unit);
    put.dedup_by_key(|done| done.unit);
    assert_eq!(put.last().unwrap().unit, UNITS - 1);
    for thread in threads {
        assert!(thread.steps.len() <= 32);
        assert!(thread.steps.is_sorted_by_key(|done| done.from), "{thread:?}");
    }
    assert!(Progress::default().threads().is_empty());
}
