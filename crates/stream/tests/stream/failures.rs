//! Runs that fail: the first cause in the input is told, and nothing remains.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use accel::{EngineChoice, Faults};
use cellway_stream::{
    Effect, KernelError, MergeOrder, Options, PlanError, Progress, Scheme, StreamError, run,
};
use proptest::prelude::*;
use storage::{InputErrorKind, Output, OutputErrorKind};

use crate::probe::{Deed, Probe, transformed};
use crate::setting::{From, SCHEMES, Setting, To, has_uring, names};
use crate::spread::probe_behind;

const BLOCK_BYTES: u64 = 1000;
const UNITS: u64 = 40;

/// Refuses the units in `refused`; `says_where` puts the offset into the error too.
fn refuse(deed: &'static str, refused: &BTreeSet<u64>, says_where: bool) -> Deed {
    let refused = refused.clone();
    Box::new(move |offset| {
        if !refused.contains(&(offset / BLOCK_BYTES)) {
            return Ok(());
        }
        let error = KernelError::new(format!("{deed} {offset}"), "try another");
        Err(if says_where { error.at(offset) } else { error })
    })
}

fn setting(from: From, to: To, machine: (usize, usize)) -> Setting {
    let mut setting = Setting::of_file(UNITS * BLOCK_BYTES - 1, BLOCK_BYTES, to);
    setting.from = from;
    setting.at(machine.0, machine.1)
}

/// Some numbers of units, and whether their errors say where.
fn refusals() -> impl Strategy<Value = (BTreeSet<u64>, bool)> {
    (prop::collection::btree_set(0..UNITS, 0..4), any::<bool>())
}

fn machines() -> impl Strategy<Value = (usize, usize)> {
    (1usize..4, 1usize..7)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_refusal_that_is_first_in_the_input_is_told(
        blocks in refusals(), merges in refusals(), machine in machines(), by_unit in any::<bool>(),
        from in prop::sample::select(&[From::File, From::Pipe]),
        to in prop::sample::select(&[To::Nothing, To::File, To::Pipe]),
        scheme in prop::sample::select(&SCHEMES),
    ) {
        let setting = setting(from, to, machine).scheme(scheme).suited();
        let (from, to) = (setting.from, setting.to);
        let order = if by_unit { MergeOrder::ByUnit } else { MergeOrder::Any };
        let merges = if by_unit { merges } else { (BTreeSet::new(), false) };
        let mut kernel = setting.probe(order);
        kernel.at_block = refuse("block", &blocks.0, blocks.1);
        kernel.at_merge = refuse("merge", &merges.0, merges.1);
        let ran = setting.run(&kernel).unwrap();

        let (block, merge) = (blocks.0.first(), merges.0.first());
        let first = [(block, "block", blocks.1), (merge, "merge", merges.1)];
        // Within a unit the block comes before the merge.
        let first = first.into_iter().filter_map(|(unit, deed, at)| Some((*unit?, deed, at))).min();
        let Some((unit, deed, says_where)) = first else {
            prop_assert!(ran.outcome.is_ok());
            return Ok(());
        };
        let error = ran.outcome.unwrap_err();
        prop_assert!(matches!(error, StreamError::Kernel { .. }), "{}", error);
        let offset = unit * BLOCK_BYTES;
        let place = if says_where { format!(" at byte {offset}") } else { String::new() };
        let told = format!(": {deed} {offset}{place}; try another");
        prop_assert!(error.to_string().ends_with(&told), "{} is not {}", error, told);
        prop_assert!(error.to_string().starts_with('/'), "{}", error);
        // A pipe has got what came before, and nothing of what is wrong.
        let got = (to == To::Pipe).then(|| transformed(setting.seed, 0..offset));
        prop_assert_eq!(ran.written, got);
        let left: &[&str] = if from == From::File { &["in"] } else { &[] };
        prop_assert_eq!(names(ran.dir.path()), left);
    }

    #[test]
    fn a_broken_device_is_told_with_its_place(
        seed in any::<u64>(), machine in machines(), to in prop::sample::select(&[To::Nothing, To::File]),
        uring in any::<bool>(), scheme in prop::sample::select(&SCHEMES), early in 0_usize..3,
    ) {
        let faults = Faults { seed, short: 100, interrupted: 100, broken: 200, delayed: 500 };
        let mut setting = setting(From::File, to, machine).faults(faults).scheme(scheme);
        setting.options.engine = EngineChoice::Pread;
        if uring && has_uring() {
            setting.options.engine = EngineChoice::Uring;
        }
        let setting = setting.spread(early);
        let ran = setting.run(&probe_behind(early, setting.probe(MergeOrder::Any))).unwrap();
        // That none of 40 gets or more is hit has a chance of 0.0001.
        let Err(error) = ran.outcome else { return Ok(()) };
        let (name, offset) = match &error {
            StreamError::Input(error) => {
                prop_assert_eq!(error.kind(), InputErrorKind::Read);
                ("in", error.offset())
            }
            StreamError::Output(error) => {
                prop_assert_eq!(error.kind(), OutputErrorKind::Write);
                ("out", error.offset())
            }
            other => panic!("{other}"),
        };
        let offset = offset.expect("the error says where");
        prop_assert_eq!(offset % BLOCK_BYTES, 0);
        let message = error.to_string();
        prop_assert!(message.contains(&format!("/{name} at byte {offset}: cannot be ")), "{}", message);
        prop_assert!(message.contains("Input/output error"), "{}", message);
        prop_assert_eq!(ran.written, None);
        prop_assert_eq!(names(ran.dir.path()), ["in"]);
    }

    #[test]
    fn a_panic_is_passed_on(
        unit in 0..UNITS, machine in machines(), in_merge in any::<bool>(), by_unit in any::<bool>(),
        from in prop::sample::select(&[From::File, From::Pipe]), to in prop::sample::select(&[To::File, To::Pipe]),
        scheme in prop::sample::select(&SCHEMES),
    ) {
        let in_merge = in_merge && by_unit;
        let setting = setting(from, to, machine).scheme(scheme).suited();
        let order = if by_unit { MergeOrder::ByUnit } else { MergeOrder::Any };
        let panicking: Deed = Box::new(move |offset| match offset / BLOCK_BYTES == unit {
            // Without the hook, which would print it.
            true => std::panic::resume_unwind(Box::new("the kernel panics")),
            false => Ok(()),
        });
        let mut kernel = setting.probe(order);
        *(if in_merge { &mut kernel.at_merge } else { &mut kernel.at_block }) = panicking;
        let dir = setting.disk.folder().unwrap();
        let path = dir.path().to_owned();
        let ran = catch_unwind(AssertUnwindSafe(|| setting.run_in(dir, &kernel).outcome.map(drop)));
        let panic = ran.expect_err("the panic was swallowed");
        prop_assert_eq!(*panic.downcast::<&str>().unwrap(), "the kernel panics");
        prop_assert!(!path.exists());
    }
}

fn with_schemes<T: Copy>(one: T) -> impl Iterator<Item = (T, Scheme)> {
    SCHEMES.into_iter().map(move |scheme| (one, scheme))
}

/// Every first operation fails: there is no other place to tell.
#[test]
fn a_device_that_is_quite_broken_fails_at_the_start() {
    let faults = Faults { seed: 1, short: 0, interrupted: 0, broken: 1000, delayed: 500 };
    for (machine, scheme) in [(1, 1), (2, 4), (3, 2)].into_iter().flat_map(with_schemes) {
        let setting = setting(From::File, To::File, machine).faults(faults).scheme(scheme);
        let ran = setting.run(&setting.probe(MergeOrder::Any)).unwrap();
        let StreamError::Input(error) = ran.outcome.unwrap_err() else {
            panic!("the input is broken")
        };
        assert_eq!((error.kind(), error.offset()), (InputErrorKind::Read, Some(0)));
        assert_eq!(names(ran.dir.path()), ["in"]);
    }
}

/// Nobody takes another unit after a failure.
#[test]
fn a_failure_ends_the_run() {
    let ways = [(From::File, To::Nothing), (From::File, To::File), (From::Pipe, To::Pipe)];
    for ((from, to), scheme) in ways.into_iter().flat_map(with_schemes) {
        let setting = setting(from, to, (1, 3)).scheme(scheme).suited();
        let mut kernel = setting.probe(MergeOrder::Any);
        let calls = Arc::new(AtomicU64::new(0));
        let counted = calls.clone();
        kernel.at_block = Box::new(move |_| match counted.fetch_add(1, Ordering::Relaxed) {
            2 => Err(KernelError::new("enough", "try another")),
            _ => Ok(()),
        });
        let ran = setting.run(&kernel).unwrap();
        assert!(ran.outcome.unwrap_err().to_string().ends_with(": enough; try another"));
        // The other two threads may have had a unit each.
        assert!((3..=5).contains(&calls.load(Ordering::Relaxed)));
    }
}

/// A first unit that takes long: the parts of the others wait for it, then
/// their threads. All of them must hear of a merge that fails at last.
#[test]
fn a_merge_refused_late_lets_everybody_go() {
    for refuses in [false, true] {
        // Three for the threads that the first unit keeps, 64 that wait alone,
        // and three that wait with their threads; none is left to stir them.
        let setting = Setting::of_file(70 * BLOCK_BYTES, BLOCK_BYTES, To::Nothing).at(2, 3);
        let mut kernel = setting.probe(MergeOrder::ByUnit);
        let begun = Arc::new((Mutex::new((0, 0)), Condvar::new()));
        let last = begun.clone();
        kernel.at_block = Box::new(move |offset| {
            let (begun, changed) = &*begun;
            let mut begun = begun.lock().unwrap();
            *begun = (begun.0 + 1, offset.max(begun.1));
            changed.notify_all();
            if offset == 0 {
                drop(changed.wait_while(begun, |(units, _)| *units < 1 + 67).unwrap());
            }
            Ok(())
        });
        kernel.at_merge = Box::new(move |offset| match last.0.lock().unwrap().1 == offset {
            true if refuses => Err(KernelError::new("too late", "try another")),
            _ => Ok(()),
        });
        let outcome = setting.run(&kernel).unwrap().outcome;
        assert_eq!(outcome.err().is_some_and(|e| e.to_string().contains("too late")), refuses);
    }
}

/// Whoever merges a later unit's part and is refused still writes its own block.
#[test]
fn a_part_refused_in_passing_spares_the_block_at_hand() {
    let setting = setting(From::File, To::Pipe, (2, 3));
    let mut kernel = setting.probe(MergeOrder::ByUnit);
    let begun = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
    let seen = begun.clone();
    kernel.at_block = Box::new(move |offset| {
        let (begun, changed) = &*begun;
        let mut begun = begun.lock().unwrap();
        begun.push(offset);
        changed.notify_all();
        if offset == 0 {
            // The other accelerator comes to its second unit, and has given the first one's part.
            let others = |begun: &mut Vec<u64>| begun.iter().filter(|other| **other > 0).count();
            drop(changed.wait_while(begun, |begun| others(begun) < 2).unwrap());
        }
        Ok(())
    });
    let refused = Arc::new(AtomicU64::new(u64::MAX));
    let told = refused.clone();
    kernel.at_merge = Box::new(move |offset| {
        let first_other = seen.0.lock().unwrap().iter().copied().find(|other| *other > 0);
        if first_other != Some(offset) {
            return Ok(());
        }
        told.store(offset, Ordering::Relaxed);
        Err(KernelError::new("refused", "try another").at(offset))
    });
    let ran = setting.run(&kernel).unwrap();
    let refused = refused.load(Ordering::Relaxed);
    let error = ran.outcome.unwrap_err().to_string();
    assert!(error.ends_with(&format!("refused at byte {refused}; try another")), "{error}");
    assert!(ran.written.unwrap() == transformed(setting.seed, 0..refused));
}

/// Where parts are merged at the end, whatever their order.
#[test]
fn a_refused_last_merge_fails_the_run() {
    let setting = setting(From::File, To::Nothing, (3, 1));
    let mut kernel = setting.probe(MergeOrder::Any);
    // Nobody goes on before all three have a unit, so there are parts to merge.
    let all_have_one = std::sync::Barrier::new(3);
    kernel.at_block = Box::new(move |offset| {
        if offset < 3 * BLOCK_BYTES {
            all_have_one.wait();
        }
        Ok(())
    });
    kernel.at_merge = Box::new(|_| Err(KernelError::new("cannot be merged", "try another")));
    let error = setting.run(&kernel).unwrap().outcome.unwrap_err();
    assert!(error.to_string().ends_with("/in: cannot be merged; try another"), "{error}");
}

#[test]
fn an_output_that_is_dropped_leaves_nothing() {
    let setting = setting(From::File, To::File, (2, 2));
    let dir = setting.disk.folder().unwrap();
    let (input, _) = setting.input(dir.path());
    let output = Output::create(&dir.path().join("out"), &Default::default()).unwrap();
    let (kernel, progress) = (setting.probe(MergeOrder::Any), Progress::default());
    run(&kernel, &input, Some(&output), &setting.options, &progress).unwrap();
    drop(output);
    assert_eq!(names(dir.path()), ["in"]);
}

#[test]
fn a_reduction_has_no_output() {
    let setting = setting(From::File, To::File, (1, 1));
    let mut kernel = setting.probe(MergeOrder::Any);
    kernel.effect = Effect::Reduce;
    let ran = setting.run(&kernel).unwrap();
    let error = ran.outcome.unwrap_err();
    assert_eq!(error.to_string(), "probe yields a result and no output; leave the output out");
    assert_eq!(names(ran.dir.path()), ["in"]);
}

/// A header may lie about the size.
#[test]
fn a_body_outside_the_input_is_refused() {
    let setting = setting(From::File, To::Nothing, (1, 1));
    let len = setting.sizes.1;
    #[expect(clippy::reversed_empty_ranges, reason = "what a wrong kernel may say")]
    for body in [0..len + 1, len + 1..len + 1, 7..3] {
        let kernel = Probe::new(Effect::Reduce, MergeOrder::Any, setting.seed, body.clone());
        let error = setting.run(&kernel).unwrap().outcome.unwrap_err();
        assert!(matches!(&error, StreamError::Plan(PlanError::Body { .. })), "{error}");
        let told = format!("bytes {} to {} of an input of {len} bytes;", body.start, body.end);
        assert!(error.to_string().contains(&told), "{error}");
    }
}

/// Numbers from a command line that nobody can mean.
#[test]
fn absurd_options_are_refused_with_their_sum() {
    for from in [From::File, From::Pipe] {
        let mut setting = setting(from, To::Nothing, (1, 1));
        setting.options = Options {
            block_bytes: Some(u64::MAX),
            threads: Some(usize::MAX),
            accelerators: Some(4096),
            ..Options::default()
        };
        let ran = setting.run(&setting.probe(MergeOrder::Any)).unwrap();
        match ran.outcome {
            // One unit needs one thread and no more room than itself.
            Ok(outcome) => {
                assert_eq!((from, outcome.stats.plan.buffer_bytes), (From::File, 40_960))
            }
            Err(error) => {
                assert_eq!(from, From::Pipe);
                assert!(error.to_string().contains("do not fit a local store"), "{error}");
            }
        }
    }
}
