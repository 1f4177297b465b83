//! Ranges of units that are given while a run goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;

use accel::Step;
use cellway_stream::{
    Drive, Effect, KernelError, MergeOrder, Options, Part, PlanError, Progress, Scheme, Shares,
    StreamError, Unfound, plan_shares, run_shares, step_shares,
};
use proptest::prelude::*;
use storage::{Input, Output};

use crate::probe::{Probe, Seen, content, expected, transformed};
use crate::setting::{Disk, Setting, To};

const BLOCK_BYTES: u64 = 1000;

/// What became of ranges, by their numbers.
type Told = BTreeMap<usize, Result<Vec<Seen>, Unfound>>;

/// What is done to ranges, by their numbers, right after they were given.
#[derive(Clone, Debug, Default)]
struct Orders {
    stopped: BTreeSet<usize>,
    /// To so many units.
    shortened: BTreeMap<usize, u64>,
}

/// What became of each range, until all are told of. One that was shortened is shorter.
fn share(
    setting: &Setting,
    kernel: &Probe,
    ranges: &mut [Range<u64>],
    orders: &Orders,
    in_steps: bool,
) -> (Told, Option<Vec<u8>>) {
    let dir = setting.disk.folder().unwrap();
    let (path, to) = (dir.path().join("in"), dir.path().join("out"));
    std::fs::write(&path, content(setting.seed, 0..setting.sizes.1)).unwrap();
    let input = Input::open(&path).unwrap();
    let output = (kernel.effect == Effect::Transform)
        .then(|| Output::create(&to, &storage::Options::default()).unwrap());
    let (tells, told) = mpsc::channel();
    let tell = move |number, found: Result<Part<_>, _>| {
        tells.send((number as usize, found.map(|found| found.part))).unwrap();
    };
    let shares = Shares::new(tell);
    let mut found = BTreeMap::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (progress, output, options) =
                (Progress::default(), output.as_ref(), &setting.options);
            let ran = match in_steps {
                true => {
                    let mut drive: Box<Drive<'_>> =
                        Box::new(|step| while step().unwrap() != Step::Ended {});
                    step_shares(kernel, &input, output, options, &progress, &shares, &mut drive)
                }
                false => run_shares(kernel, &input, output, options, &progress, &shares),
            };
            ran.unwrap();
            assert_eq!(progress.done_bytes(), 0, "who gave them counts");
        });
        for (number, range) in ranges.iter_mut().enumerate() {
            shares.give(number as u64, range.clone());
            if let Some(units) = orders.shortened.get(&number)
                && shares.shorten(number as u64, *units)
            {
                assert!(range.start + units < range.end);
                range.end = range.start + units;
            }
            if orders.stopped.contains(&number) {
                shares.stop(number as u64);
            }
        }
        for (number, what) in told.iter().take(ranges.len()) {
            assert!(found.insert(number, what).is_none(), "range {number} is told of twice");
        }
        shares.close();
    });
    assert!(told.try_recv().is_err());
    let written = output.map(|output| {
        output.commit(false).unwrap();
        std::fs::read(&to).unwrap()
    });
    (found, written)
}

/// All units, cut in some places, in some order.
fn ranges(units: u64) -> impl Strategy<Value = Vec<Range<u64>>> {
    prop::collection::btree_set(1..units, 0..8)
        .prop_map(move |cuts| {
            let ends = cuts.iter().copied().chain([units]);
            let starts = [0].into_iter().chain(cuts.iter().copied());
            starts.zip(ends).map(|(start, end)| start..end).collect::<Vec<_>>()
        })
        .prop_shuffle()
}

fn setting(len_bytes: u64, machine: (usize, usize), scheme: Scheme) -> Setting {
    let mut setting = Setting::of_file(len_bytes, BLOCK_BYTES, To::Nothing).scheme(scheme);
    setting.options.accelerators = Some(machine.0);
    if scheme == Scheme::Direct {
        setting.options.threads = Some(machine.1);
    }
    setting
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn each_range_has_a_part_of_its_own(
        (len_bytes, mut ranges) in (2..200_u64).prop_flat_map(|units| {
            ((units - 1) * BLOCK_BYTES + 1..=units * BLOCK_BYTES, ranges(units))
        }),
        machine in (1..4_usize, 1..5_usize),
        order in prop::sample::select(&[MergeOrder::Any, MergeOrder::ByUnit]),
        scheme in prop::sample::select(&[Scheme::Direct, Scheme::Mapped]),
        stopped in prop::collection::btree_set(0..8_usize, 0..3),
        shortened in prop::collection::btree_map(0..8_usize, 0..50_u64, 0..6),
        writes in any::<bool>(), in_steps in any::<bool>(),
    ) {
        let effect = if writes { Effect::Transform } else { Effect::Reduce };
        let scheme = if writes { Scheme::Direct } else { scheme };
        let setting = setting(len_bytes, machine, scheme);
        let kernel = Probe::new(effect, order, setting.seed, 0..len_bytes);
        let all = expected(setting.seed, 0..len_bytes, BLOCK_BYTES);
        let orders = Orders { stopped, shortened };
        let (found, written) = share(&setting, &kernel, &mut ranges, &orders, in_steps);
        prop_assert_eq!(found.len(), ranges.len());
        let mut places = Vec::new();
        for (number, found) in found {
            let range = ranges[number].start as usize..ranges[number].end as usize;
            match found {
                Ok(mut part) => {
                    if order == MergeOrder::Any {
                        part.sort();
                    }
                    prop_assert_eq!(&part[..], &all[range.clone()]);
                    places.push(range);
                }
                Err(Unfound::Stopped) => prop_assert!(orders.stopped.contains(&number)),
                Err(Unfound::Failed { error, .. }) => prop_assert!(false, "{error}"),
            }
        }
        if let Some(written) = written {
            let wanted = transformed(setting.seed, 0..len_bytes);
            for place in places {
                let end = (place.end * BLOCK_BYTES as usize).min(len_bytes as usize);
                let bytes = place.start * BLOCK_BYTES as usize..end;
                prop_assert_eq!(&written[bytes.clone()], &wanted[bytes]);
            }
        }
    }

    #[test]
    fn a_unit_that_fails_takes_its_range_with_it_and_no_other(
        mut ranges in ranges(50), machine in (1..4_usize, 1..5_usize), by_unit in any::<bool>(),
        in_steps in any::<bool>(),
        shortened in prop::collection::btree_map(0..8_usize, 1..20_u64, 0..4),
        refused in prop::collection::btree_set(0..50_u64, 1..4), at_merge in any::<bool>(),
    ) {
        let order = if by_unit { MergeOrder::ByUnit } else { MergeOrder::Any };
        let at_merge = at_merge && by_unit;
        let setting = setting(50 * BLOCK_BYTES, machine, Scheme::Direct);
        let mut kernel = Probe::new(Effect::Reduce, order, setting.seed, 0..50 * BLOCK_BYTES);
        let of = refused.clone();
        let deed = Box::new(move |offset| match of.contains(&(offset / BLOCK_BYTES)) {
            true => Err(KernelError::new("refused", "try another").at(offset)),
            false => Ok(()),
        });
        if at_merge { kernel.at_merge = deed } else { kernel.at_block = deed }
        let (found, _) = {
            let orders = Orders { shortened, ..Orders::default() };
            share(&setting, &kernel, &mut ranges, &orders, in_steps)
        };
        let all = expected(setting.seed, 0..50 * BLOCK_BYTES, BLOCK_BYTES);
        for (number, found) in found {
            let range = ranges[number].clone();
            // What is merged is what is later of two.
            let from = range.start + u64::from(at_merge);
            let fails = refused.range(from..range.end.max(from)).next().is_some();
            match found {
                Ok(mut part) => {
                    part.sort();
                    prop_assert_eq!(&part[..], &all[range.start as usize..range.end as usize]);
                    prop_assert!(!fails);
                }
                Err(Unfound::Failed { unit, .. }) => prop_assert!(fails && range.contains(&unit)),
                Err(Unfound::Stopped) => prop_assert!(false, "nobody stopped it"),
            }
        }
    }
}

#[test]
fn what_fails_once_is_computed_when_it_is_given_again() {
    let setting = setting(20 * BLOCK_BYTES, (2, 2), Scheme::Direct);
    let mut kernel =
        Probe::new(Effect::Reduce, MergeOrder::ByUnit, setting.seed, 0..20 * BLOCK_BYTES);
    let failures = AtomicU64::new(1);
    kernel.at_block = Box::new(move |offset| {
        let fails = offset == 7 * BLOCK_BYTES && failures.fetch_min(0, Ordering::Relaxed) > 0;
        if fails { Err(KernelError::new("once", "again")) } else { Ok(()) }
    });
    let ranges = &mut [5..10, 0..5, 10..20];
    let (found, _) = share(&setting, &kernel, ranges, &Orders::default(), false);
    let names: Vec<_> = found.values().map(Result::is_ok).collect();
    assert_eq!(names, [false, true, true]);
}

#[test]
fn only_units_that_are_not_begun_are_left() {
    let setting = setting(20 * BLOCK_BYTES, (1, 1), Scheme::Direct);
    let (reached, waits) = (mpsc::channel(), mpsc::channel());
    let mut kernel = Probe::new(Effect::Reduce, MergeOrder::Any, setting.seed, 0..20 * BLOCK_BYTES);
    let (reaches, goes_on) = (reached.0, Mutex::new(waits.1));
    kernel.at_block = Box::new(move |offset| {
        if offset == 5 * BLOCK_BYTES {
            reaches.send(()).unwrap();
            goes_on.lock().unwrap().recv().unwrap();
        }
        Ok(())
    });
    let dir = setting.disk.folder().unwrap();
    let path = dir.path().join("in");
    std::fs::write(&path, content(setting.seed, 0..setting.sizes.1)).unwrap();
    let input = Input::open(&path).unwrap();
    let (tells, told) = mpsc::channel();
    let shares = Shares::new(move |number, found: Result<Part<Vec<Seen>>, _>| {
        tells.send((number, found.unwrap().part.len())).unwrap();
    });
    shares.give(3, 0..16);
    shares.give(4, 16..20);
    assert!(shares.shorten(4, 2), "nothing of it is begun");
    thread::scope(|scope| {
        scope.spawn(|| {
            let (progress, options) = (Progress::default(), &setting.options);
            run_shares(&kernel, &input, None, options, &progress, &shares).unwrap();
        });
        reached.1.recv().unwrap();
        for (number, units) in [(3, 0), (3, 5), (3, 16), (3, u64::MAX), (5, 1)] {
            assert!(!shares.shorten(number, units), "{number} to {units}");
        }
        assert!(shares.shorten(3, 8));
        waits.0.send(()).unwrap();
        shares.close();
    });
    assert_eq!(told.iter().take(2).collect::<Vec<_>>(), [(3, 8), (4, 2)]);
}

#[test]
fn what_goes_in_order_cannot_be_shared() {
    let dir = Disk::Memory.folder().unwrap();
    let path = dir.path().join("in");
    std::fs::write(&path, content(1, 0..10)).unwrap();
    let input = Input::open(&path).unwrap();
    let refused = |effect, scheme| {
        let kernel = Probe::new(effect, MergeOrder::Any, 1, 0..10);
        let options = Options { scheme, ..Options::default() };
        match plan_shares(&kernel, &input, None, &options) {
            Err(StreamError::Plan(PlanError::Shares { why, .. })) => why,
            other => panic!("{other:?}"),
        }
    };
    assert!(refused(Effect::Rewrite, Scheme::Direct).contains("probe"));
    assert!(refused(Effect::Reduce, Scheme::Staged).contains("--scheme staged"));
}
