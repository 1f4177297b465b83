//! Runs that succeed: any input, cut, machine and way there give the reference.

use accel::{EngineChoice, Faults};
use cellway_stream::{Cut, Direct, MergeOrder, Options, PlanError, Scheme, StreamError};
use proptest::prelude::*;

use crate::probe::{expected, transformed};
use crate::setting::{Disk, From, Ran, SCHEMES, Setting, To, has_uring};
use crate::spread::probe_behind;

/// Bytes of an input, at most: many short runs say more than a few long ones.
const LEN_BYTES_MAX: u64 = 300_000;

fn blocks() -> impl Strategy<Value = u64> {
    prop_oneof![
        1u64..300,
        Just(512),
        Just(1000),
        Just(4096),
        Just(4097),
        Just(65_536),
        300u64..70_000
    ]
}

fn cuts() -> impl Strategy<Value = Cut> {
    let align = prop_oneof![3 => Just(1), 2 => 2usize..60, 1 => Just(512)];
    let halo = || prop_oneof![2 => Just(0), 1 => 1usize..100, 1 => 100usize..6_000];
    let cut =
        |(align_bytes, before_bytes, after_bytes)| Cut { align_bytes, before_bytes, after_bytes };
    (align, halo(), halo()).prop_map(cut)
}

/// Lengths at and around every block boundary, 0 and 1 among them.
fn lengths(block_bytes: u64) -> impl Strategy<Value = u64> {
    let blocks_max = (LEN_BYTES_MAX / block_bytes).clamp(2, 40);
    let around = (0..=blocks_max, -1i64..=1);
    let around = around.prop_map(move |(n, more)| (n * block_bytes).saturating_add_signed(more));
    prop_oneof![3 => around, 1 => 0..=block_bytes * blocks_max]
}

fn machines() -> impl Strategy<Value = Options> {
    const ENGINES: [EngineChoice; 3] =
        [EngineChoice::Auto, EngineChoice::Uring, EngineChoice::Pread];
    const DIRECT: [Direct; 3] = [Direct::Auto, Direct::On, Direct::Off];
    let faults = prop::option::of(any::<u64>().prop_map(Faults::survivable));
    let schemes = (prop::sample::select(&SCHEMES), prop::option::of(1usize..=4));
    let machine = (1usize..=3, 1usize..=6, prop::sample::select(&ENGINES));
    (machine, prop::sample::select(&DIRECT), faults, schemes).prop_map(
        |((accelerators, threads, engine), direct, faults, (scheme, staging))| Options {
            accelerators: Some(accelerators),
            threads: Some(threads),
            engine,
            direct,
            scheme,
            staging: staging.filter(|_| scheme == Scheme::Staged),
            faults,
            ..Options::default()
        },
    )
}

fn settings() -> impl Strategy<Value = (Setting, Cut)> {
    let disks = prop::sample::select(&[Disk::Memory, Disk::Real]);
    let from = prop::sample::select(&[From::File, From::Pipe]);
    let to = prop::sample::select(&[To::Nothing, To::File, To::Pipe, To::Null]);
    let around = prop_oneof![Just((0, 0)), (0u64..100, 0u64..100), Just((4096, 0))];
    let how = (any::<u32>(), disks, from, to, around, machines());
    let size = (blocks(), cuts()).prop_flat_map(|(block, cut)| {
        let block = block.next_multiple_of(cut.align_bytes as u64);
        (Just(block), Just(cut), lengths(block))
    });
    (size, how).prop_map(|((block_bytes, cut, len), (seed, disk, from, to, around, options))| {
        let options = Options { block_bytes: Some(block_bytes), ..options };
        let sizes = (around.0, len, around.1);
        let setting = Setting { seed: u64::from(seed), sizes, disk, from, to, options };
        // Most by what their scheme can do.
        (if seed % 4 == 0 { setting } else { setting.suited() }, cut)
    })
}

/// Reductions of files that are looked at in place.
fn mapped() -> impl Strategy<Value = (Setting, Cut)> {
    settings().prop_map(|(mut setting, cut)| {
        (setting.from, setting.to) = (From::File, To::Nothing);
        setting.options.faults = None;
        setting.options.staging = None;
        setting.options.direct = Direct::Auto;
        (setting.scheme(Scheme::Mapped), cut)
    })
}

/// Compares a run with the reference; `false` if it was refused for a reason that counts.
fn check(setting: &Setting, order: MergeOrder, ran: Ran) -> bool {
    let outcome = match ran.outcome {
        Ok(outcome) => outcome,
        Err(StreamError::Plan(PlanError::Direct { .. }))
            if setting.options.direct == Direct::On =>
        {
            return false;
        }
        Err(StreamError::Plan(PlanError::Scheme { .. })) if setting.is_unsuited() => return false,
        Err(error) => panic!("{error}"),
    };
    assert!(!setting.is_unsuited());
    let (body, stats) = (setting.body(), outcome.stats);
    let body_bytes = body.end - body.start;
    let mut seen = outcome.part;
    if order == MergeOrder::Any {
        seen.sort();
    }
    assert_eq!(seen, expected(setting.seed, body.clone(), stats.plan.block_bytes));
    assert_eq!(stats.bytes_in, body_bytes);
    assert_eq!(stats.plan.scheme, setting.options.scheme.resolved());
    assert_eq!(stats.plan.pipeline(), setting.options.pipeline);
    assert!(stats.stages.len() <= stats.plan.stages);
    assert_eq!(stats.stages.iter().sum::<std::time::Duration>(), stats.spent.compute);
    match setting.options.engine {
        EngineChoice::Uring => assert_eq!(stats.engine.name, "uring"),
        EngineChoice::Pread => assert_eq!(stats.engine.name, "pread"),
        EngineChoice::Auto => {}
    }
    assert_eq!(stats.bytes_out, if setting.to == To::Nothing { 0 } else { body_bytes });
    let written = match setting.to {
        To::File | To::Pipe => Some(transformed(setting.seed, body)),
        To::Nothing | To::Null => None,
    };
    assert!(ran.written == written, "the output is not the input transformed");
    true
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn every_run_matches_the_reference(
        (setting, cut) in prop_oneof![9 => settings(), 1 => mapped()], order in prop::sample::select(&[MergeOrder::Any, MergeOrder::ByUnit]),
        early in prop_oneof![Just(0), 1_usize..5], spread in any::<bool>(),
    ) {
        if setting.options.engine == EngineChoice::Uring && !has_uring() {
            return Ok(());
        }
        let mut kernel = setting.probe(order);
        kernel.cut = cut;
        // What goes through a transform is not the page cache's any more.
        let early = if setting.options.scheme == Scheme::Mapped { 0 } else { early };
        let setting = setting.spread(if spread { early } else { 0 });
        let Some(ran) = setting.run(&probe_behind(early, kernel)) else { return Ok(()) };
        check(&setting, order, ran);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn a_block_that_is_not_given_fits_the_store(
        store in 4096u64..200_000, threads in 1usize..6, len in 0..LEN_BYTES_MAX, cut in cuts(),
    ) {
        let mut setting = Setting::of_file(len, 1, To::File).at(2, threads);
        setting.options.block_bytes = None;
        setting.options.local_store_bytes = Some(store);
        let mut kernel = setting.probe(MergeOrder::ByUnit);
        kernel.cut = cut;
        let ran = setting.run(&kernel).unwrap();
        let halo = (cut.before_bytes + cut.after_bytes) as u64;
        let least = (cut.align_bytes as u64 + halo).next_multiple_of(4096) * threads as u64;
        match &ran.outcome {
            Err(StreamError::Plan(PlanError::Store { .. })) => prop_assert!(least > store),
            _ => prop_assert!(check(&setting, MergeOrder::ByUnit, ran)),
        }
    }
}

/// The order of merges is that of the input even where every unit is alone
/// on its thread.
#[test]
fn the_result_does_not_depend_on_the_machine() {
    let machines = [(1, 1), (1, 8), (2, 3), (3, 1), (3, 5)];
    let ways = machines.into_iter().flat_map(|at| SCHEMES.map(|scheme| (at, scheme)));
    let run = |((accelerators, threads), scheme)| {
        let setting = Setting::of_file(200_001, 1000, To::Nothing).at(accelerators, threads);
        let setting = setting.scheme(scheme);
        let ran = setting.run(&setting.probe(MergeOrder::ByUnit)).unwrap();
        ran.outcome.unwrap().part
    };
    let results: Vec<_> = ways.map(run).collect();
    assert!(results.iter().all(|result| *result == results[0]));
    assert_eq!(results[0].len(), 201);
}

#[test]
fn an_empty_input_gives_an_empty_output_and_part() {
    for from in [From::File, From::Pipe] {
        let mut setting = Setting::of_file(0, 4096, To::File);
        setting.from = from;
        let mut kernel = setting.probe(MergeOrder::Any);
        kernel.at_block = Box::new(|offset| panic!("a unit at {offset}"));
        let ran = setting.run(&kernel).unwrap();
        assert_eq!(ran.outcome.unwrap().part, []);
        assert_eq!(ran.written, Some(Vec::new()));
    }
}
