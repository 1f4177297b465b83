//! Chains that are spread over accelerators. Those that end in another test's
//! kernel do what that kernel does by itself.

use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use accel::Faults;
use cellway_stream::{
    Block, Body, Chain, Effect, Head, Kernel, KernelError, MergeOrder, Pipeline, PlanError,
    StreamError, Transform, Unit,
};
use proptest::prelude::*;

use crate::probe::{Deed, Probe, byte_at, transformed};
use crate::setting::{From, SCHEMES, Setting, To, names};

/// Masks each byte by its offset; a second time that is undone.
struct Mask {
    masks: bool,
    /// What is streamed of a file, if that is not all.
    body: Option<Range<u64>>,
    /// Done at the start of each unit, which is given its offset.
    at_block: Deed,
}

impl Kernel for Mask {
    type Part = ();
    type Header = ();

    fn name(&self) -> &str {
        "mask"
    }

    fn open(&self, head: &dyn Head) -> Result<Body, KernelError> {
        match (&self.body, head.len_bytes()) {
            (Some(body), Some(_)) => Ok(Body { range: body.clone(), header: () }),
            _ => Ok(Body::whole(head)),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Transform
    }

    fn part(&self, _accelerators: usize) {}

    fn block(&self, unit: &Unit<'_>, block: Block<'_>, (): &mut ()) -> Result<(), KernelError> {
        (self.at_block)(unit.offset)?;
        if self.masks {
            let bytes = block.data.iter_mut().zip(unit.offset..);
            bytes.for_each(|(byte, offset)| *byte ^= byte_at(0x5EED, offset));
        }
        Ok(())
    }

    fn merge(&self, (): &mut (), (): ()) -> Result<(), KernelError> {
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(Vec::new())
    }
}

/// `kernel` after so many others that leave it the input as it was.
pub(crate) fn behind<L: Kernel>(early: usize, kernel: L) -> Chain<L> {
    chain((0..early).map(|_| nothing()), None, kernel)
}

/// The same of a probe, whose body need not be all of the input.
pub(crate) fn probe_behind(early: usize, probe: Probe) -> Chain<Probe> {
    probe_behind_deeds((0..early).map(|_| nothing()), probe)
}

/// The same, with what each of those kernels does at its units.
fn probe_behind_deeds(
    deeds: impl ExactSizeIterator<Item = Deed>,
    mut probe: Probe,
) -> Chain<Probe> {
    probe.is_first = deeds.len() == 0;
    chain(deeds, Some(probe.body.clone()), probe)
}

fn nothing() -> Deed {
    Box::new(|_| Ok(()))
}

fn chain<L: Kernel>(
    deeds: impl ExactSizeIterator<Item = Deed>,
    mut body: Option<Range<u64>>,
    kernel: L,
) -> Chain<L> {
    let odd = deeds.len() % 2;
    let masks = deeds.enumerate().map(|(number, at_block)| {
        Box::new(Mask { masks: number >= odd, body: body.take(), at_block }) as Transform
    });
    Chain::new(masks.collect(), kernel).unwrap()
}

const BLOCK_BYTES: u64 = 1000;
const UNITS: u64 = 40;

fn setting(from: From, to: To, lanes: usize, threads: usize, early: usize) -> Setting {
    let mut setting = Setting::of_file(UNITS * BLOCK_BYTES - 1, BLOCK_BYTES, to);
    setting.from = from;
    setting.at(lanes, threads).spread(early)
}

fn refuse(stage: usize, refused: BTreeSet<u64>) -> Deed {
    Box::new(move |offset| match refused.contains(&(offset / BLOCK_BYTES)) {
        true => Err(KernelError::new(format!("stage {stage} at {offset}"), "try another")),
        false => Ok(()),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Whatever stage it comes from; a pipe gets what is before it and nothing else.
    #[test]
    fn the_refusal_that_is_first_in_the_input_is_told(
        refused in prop::collection::vec(prop::collection::btree_set(0..UNITS, 0..3), 2..5),
        from in prop::sample::select(&[From::File, From::Pipe]),
        to in prop::sample::select(&[To::Nothing, To::File, To::Pipe]),
        (lanes, threads) in (1_usize..3, 1_usize..6), by_unit in any::<bool>(),
        scheme in prop::sample::select(&SCHEMES),
    ) {
        let early = refused.len() - 1;
        let setting = setting(from, to, lanes, threads, early).scheme(scheme).suited();
        let order = if by_unit { MergeOrder::ByUnit } else { MergeOrder::Any };
        let mut deeds: Vec<_> = refused.iter().cloned().enumerate().map(|(n, r)| refuse(n, r)).collect();
        let mut probe = setting.probe(order);
        probe.at_block = deeds.pop().unwrap();
        let ran = setting.run(&probe_behind_deeds(deeds.into_iter(), probe)).unwrap();

        let firsts = refused.iter().enumerate().filter_map(|(n, units)| Some((*units.first()?, n)));
        let Some((unit, stage)) = firsts.min() else {
            prop_assert!(ran.outcome.is_ok());
            return Ok(());
        };
        let (error, offset) = (ran.outcome.unwrap_err().to_string(), unit * BLOCK_BYTES);
        let told = format!(": stage {stage} at {offset}; try another");
        prop_assert!(error.ends_with(&told), "{} is not {}", error, told);
        let got = (setting.to == To::Pipe).then(|| transformed(setting.seed, 0..offset));
        prop_assert_eq!(ran.written, got);
        let left: &[&str] = if setting.from == From::File { &["in"] } else { &[] };
        prop_assert_eq!(names(ran.dir.path()), left);
    }

    #[test]
    fn a_panic_in_any_stage_is_passed_on(
        unit in 0..UNITS, panicking in 0_usize..3, (lanes, threads) in (1_usize..3, 1_usize..6),
        from in prop::sample::select(&[From::File, From::Pipe]),
        to in prop::sample::select(&[To::File, To::Pipe]),
        scheme in prop::sample::select(&SCHEMES),
    ) {
        let setting = setting(from, to, lanes, threads, 2).scheme(scheme).suited();
        let mut deeds: Vec<_> = (0..3).map(|stage| -> Deed {
            Box::new(move |offset| match stage == panicking && offset / BLOCK_BYTES == unit {
                // Without the hook, which would print it.
                true => std::panic::resume_unwind(Box::new("the kernel panics")),
                false => Ok(()),
            })
        }).collect();
        let mut probe = setting.probe(MergeOrder::Any);
        probe.at_block = deeds.pop().unwrap();
        let chain = probe_behind_deeds(deeds.into_iter(), probe);
        let dir = setting.disk.folder().unwrap();
        let ran = catch_unwind(AssertUnwindSafe(|| setting.run_in(dir, &chain).outcome.map(drop)));
        let panic = ran.expect_err("the panic was swallowed");
        prop_assert_eq!(*panic.downcast::<&str>().unwrap(), "the kernel panics");
    }
}

/// Blocks that are got late, and waited for where all are written in order.
#[test]
fn a_late_block_is_not_behind_those_that_wait_for_it() {
    for seed in 0..40 {
        let faults = Faults { seed, short: 0, interrupted: 0, broken: 0, delayed: 500 };
        let setting = setting(From::File, To::Pipe, 1, 3, 1).faults(faults);
        let ran = setting.run(&probe_behind(1, setting.probe(MergeOrder::Any))).unwrap();
        ran.outcome.unwrap();
        assert!(ran.written.unwrap() == transformed(setting.seed, setting.body()), "{seed}");
    }
}

/// Each stage is computed by its own accelerators, and by no other.
#[test]
fn every_stage_has_accelerators_of_its_own() {
    const EARLY: usize = 2;
    let (seen, setting) = (Arc::default(), setting(From::File, To::File, 2, 2, EARLY));
    let note = |stage: usize| -> Deed {
        let seen: Arc<Mutex<BTreeSet<(String, usize)>>> = Arc::clone(&seen);
        Box::new(move |_| {
            let name = std::thread::current().name().unwrap().to_owned();
            seen.lock().unwrap().insert((name, stage));
            Ok(())
        })
    };
    let mut probe = setting.probe(MergeOrder::Any);
    probe.at_block = note(EARLY);
    let ran = setting.run(&probe_behind_deeds((0..EARLY).map(note), probe)).unwrap();
    let plan = ran.outcome.unwrap().stats.plan;
    assert_eq!((plan.accelerators, plan.stages, plan.pipeline()), (6, 3, Pipeline::Spread));
    for (name, stage) in seen.lock().unwrap().iter() {
        let number: usize = name.strip_prefix("accel-").unwrap().parse().unwrap();
        assert_eq!(number % 3, *stage, "{name}");
    }
}

#[test]
fn what_cannot_be_spread_is_refused() {
    let refused = |early: usize, accelerators: Option<usize>| {
        let mut setting = setting(From::File, To::Nothing, 1, 1, 1);
        setting.options.accelerators = accelerators;
        let ran = setting.run(&probe_behind(early, setting.probe(MergeOrder::Any))).unwrap();
        match ran.outcome {
            Err(StreamError::Plan(error @ PlanError::Pipeline { .. })) => Some(error.to_string()),
            Ok(outcome) => {
                assert_eq!(outcome.stats.plan.stages, early + 1);
                None
            }
            Err(other) => panic!("{other}"),
        }
    };
    let told = refused(0, None).unwrap();
    assert_eq!(
        told,
        "--pipeline spread: probe is one kernel, with nothing to hand on; \
         name a chain A,B, or take --pipeline fused"
    );
    for accelerators in [1, 2, 4, 5] {
        let told = refused(2, Some(accelerators)).unwrap();
        let why = format!("--accelerators {accelerators} cannot be shared out evenly to the 3");
        assert!(told.contains(&why) && told.ends_with("give a multiple of 3, or none"), "{told}");
    }
    assert_eq!((refused(2, Some(3)), refused(2, Some(6)), refused(9, None)), (None, None, None));
}
