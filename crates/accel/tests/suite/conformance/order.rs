//! Order within a tag group, depth, and waiting for a group.

use cellway_accel::{Config, Cx, Region, Tag, Transfer};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::Bed;
use super::round_trips::{filled, roomy};
use crate::harness::pattern;

/// Each of two tag groups has a half of this for itself.
const HALF_BYTES: usize = 32 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Plain,
    Fenced,
    Barrier,
}

/// A transfer that is started, and awaited only when all are started.
#[derive(Clone, Debug)]
struct Started {
    half: usize,
    at: usize,
    len: usize,
    /// A put of these bytes, or a get.
    put: Option<u64>,
    order: Order,
    /// Awaited in this order.
    rank: u64,
}

fn started() -> impl Strategy<Value = Started> {
    let order =
        prop_oneof![2 => Just(Order::Fenced), 1 => Just(Order::Barrier), 1 => Just(Order::Plain)];
    let len = prop_oneof![Just(0usize), 1usize..3000];
    (0usize..2, 0..HALF_BYTES, len, any::<Option<u64>>(), order, any::<u64>()).prop_map(
        |(half, at, len, put, order, rank)| {
            let len = len.min(HALF_BYTES - at);
            Started { half, at: half * HALF_BYTES + at, len, put, order, rank }
        },
    )
}

/// Moves puts to sectors, and makes plain what has one meaning only: a get
/// that follows a barrier of its group, with nothing but gets like it between.
fn with_one_meaning(mut program: Vec<Started>, align: usize) -> Vec<Started> {
    let mut after_barrier = [false; 2];
    for one in &mut program {
        if one.put.is_some() {
            one.at = one.at / align * align;
            let room = (one.half + 1) * HALF_BYTES - one.at;
            one.len = one.len.next_multiple_of(align).min(room);
        }
        if one.order == Order::Plain && (one.put.is_some() || !after_barrier[one.half]) {
            one.order = Order::Fenced;
        }
        match one.order {
            Order::Plain => {}
            Order::Fenced => after_barrier[one.half] = false,
            Order::Barrier => after_barrier[one.half] = true,
        }
    }
    program
}

fn start<'c, 'env>(
    cx: &'c Cx<'env>,
    region: &'env Region<'env>,
    align: usize,
    one: &Started,
) -> Transfer<'c, 'env> {
    let (place, tag) = (region.at(one.at as u64), Tag::new(one.half));
    match one.put {
        Some(seed) => {
            let buf = filled(cx, &pattern(seed, one.len), align);
            match one.order {
                Order::Plain => cx.put(buf, place, tag),
                Order::Fenced => cx.put_fenced(buf, place, tag),
                Order::Barrier => cx.put_barrier(buf, place, tag),
            }
        }
        None => {
            let buf = roomy(cx, one.len, align);
            match one.order {
                Order::Plain => cx.get(buf, place, one.len, tag),
                Order::Fenced => cx.get_fenced(buf, place, one.len, tag),
                Order::Barrier => cx.get_barrier(buf, place, one.len, tag),
            }
        }
    }
}

/// Fences and barriers alone make a program that awaits nothing before its
/// end equal to one that awaits every transfer.
pub(super) fn ordered_programs(bed: &Bed<'_>) {
    let cases = if bed.is_file() { 16 } else { 60 };
    let mut runner = TestRunner::new(ProptestConfig::with_cases(cases));
    let programs = (prop::collection::vec(started(), 1..40), 1usize..20);
    let ran = runner.run(&programs, |(program, depth)| {
        let mut model = pattern(20, 2 * HALF_BYTES);
        let mut backed = bed.back(&model);
        let align = backed.align;
        let program = &with_one_meaning(program, align);
        let region = &backed.region();
        let config = Config { depth, ..bed.config.clone() };
        let got = bed.run_with(&config, |cx, _| async move {
            let mut transfers: Vec<_> = program.iter().enumerate().collect();
            let mut started: Vec<_> =
                transfers.iter().map(|(_, one)| Some(start(&cx, region, align, one))).collect();
            transfers.sort_by_key(|(_, one)| one.rank);
            let mut got = vec![Vec::new(); program.len()];
            for (number, _) in transfers {
                let transfer = started[number].take().expect("awaited once");
                got[number] = transfer.await.unwrap().to_vec();
            }
            got
        });
        for (one, got) in program.iter().zip(got.unwrap().pop().unwrap()) {
            let here = &mut model[one.at..one.at + one.len];
            if let Some(seed) = one.put {
                here.copy_from_slice(&pattern(seed, one.len));
            }
            prop_assert!(got == *here, "{one:?}");
        }
        prop_assert!(backed.content() == model);
        Ok(())
    });
    ran.unwrap();
}

/// A long put as barrier: later gets of its group see all of it, whoever is
/// awaited first.
pub(super) fn barrier_holds_back_later_ones(bed: &Bed<'_>) {
    let mut backed = bed.back(&pattern(21, 3 << 20));
    let align = backed.align;
    let (region, bytes) = (&backed.region(), &pattern(22, 3 << 20));
    bed.run(|cx| async move {
        let tag = Tag::new(31);
        let put = cx.put_barrier(filled(&cx, bytes, align), region.at(0), tag);
        let ends = [0, 100, (3 << 20) - 50];
        let gets = ends.map(|at| cx.get(roomy(&cx, 50, align), region.at(at), 50, tag));
        for (get, at) in gets.into_iter().zip(ends) {
            assert!(*get.await.unwrap() == bytes[at as usize..][..50], "at {at}");
        }
        put.await.unwrap();
        // Also lists, which have no order of their own.
        let before = cx.get_barrier(roomy(&cx, 9, align), region.at(7), 9, tag);
        let list = [(region.at(0), align), (region.at(align as u64), 15 * align)];
        let scatter = cx.put_list(filled(&cx, &pattern(25, 16 * align), align), &list, tag);
        let after = cx.get_fenced(roomy(&cx, 9, align), region.at(7), 9, tag);
        assert!(*before.await.unwrap() == bytes[7..16], "not overtaken");
        assert!(*after.await.unwrap() == pattern(25, 16)[7..]);
        scatter.await.unwrap();
        let bytes = &[&pattern(25, 16 * align), &bytes[16 * align..]].concat();
        let first = cx.get_barrier(roomy(&cx, 9, align), region.at(7), 9, tag);
        let second = cx.get(roomy(&cx, 9, align), region.at(9000), 9, tag);
        assert!(*second.await.unwrap() == bytes[9000..9009]);
        assert!(*first.await.unwrap() == bytes[7..16]);
    });
}

/// A chain is a barrier as a whole, wherever its first step goes: what comes
/// later does not overtake its second.
pub(super) fn barrier_chain_holds_back_later_ones(bed: &Bed<'_>) {
    let unit = 64 << 10;
    for first_is_memory in [true, false] {
        let mut backed = bed.back(&pattern(26, 2 * unit));
        let align = backed.align;
        let region = &backed.region();
        let mut bytes = vec![0; unit];
        let memory = &Region::memory_mut(&mut bytes);
        bed.run(|cx| async move {
            let tag = Tag::new(3);
            for round in 0..20 {
                let before = pattern(round, unit);
                let put = cx.put(filled(&cx, &before, align), region.at(0), tag);
                put.await.unwrap();
                let first = if first_is_memory { memory.at(0) } else { region.at(unit as u64) };
                let chain = cx.put_barrier(filled(&cx, &pattern(27, unit), align), first, tag);
                let chain = chain.then_get(region.at(0), unit);
                let after = filled(&cx, &pattern(round + 1, unit), align);
                let later = cx.put(after, region.at(0), tag);
                assert!(*chain.await.unwrap() == before, "overtaken in round {round}");
                later.await.unwrap();
            }
        });
    }
}

/// One thread starts many times the depth without awaiting any.
pub(super) fn more_transfers_than_depth(bed: &Bed<'_>) {
    let before = &pattern(23, 1 << 20);
    for depth in [1, 2, 3, 16, 64] {
        let mut backed = bed.back(before);
        let align = backed.align;
        let unit = align.max(512);
        let region = &backed.region();
        let config = Config { depth, ..bed.config.clone() };
        let count = 4 * depth.min(16) + 3;
        let ran = bed.run_with(&config, |cx, _| async move {
            // Puts to odd units, gets of even ones.
            let puts: Vec<_> = (0..count)
                .map(|n| {
                    let buf = filled(&cx, &pattern(n as u64, unit), align);
                    cx.put(buf, region.at(((2 * n + 1) * unit) as u64), Tag::new(n))
                })
                .collect();
            let gets: Vec<_> = (0..count)
                .map(|n| {
                    cx.get(
                        roomy(&cx, unit, align),
                        region.at((2 * n * unit) as u64),
                        unit,
                        Tag::new(n),
                    )
                })
                .collect();
            let long = cx.get(roomy(&cx, 1 << 20, align), region.at(0), 1 << 20, Tag::new(0));
            for (n, get) in gets.into_iter().enumerate().rev() {
                assert!(*get.await.unwrap() == before[2 * n * unit..][..unit]);
            }
            assert_eq!(long.await.unwrap().len(), 1 << 20);
            for put in puts.into_iter().rev() {
                put.await.unwrap();
            }
            assert_eq!(cx.local_store().used_bytes(), 0);
        });
        ran.unwrap();
        let after = backed.content();
        for n in 0..count {
            let odd = (2 * n + 1) * unit;
            assert!(after[odd..odd + unit] == pattern(n as u64, unit), "depth {depth}, put {n}");
        }
    }
}

/// After `wait_tag` nothing of the group is under way.
pub(super) fn wait_for_a_tag_group(bed: &Bed<'_>) {
    let mut backed = bed.back(&pattern(24, 1 << 20));
    let align = backed.align;
    let unit = align.max(1000).next_multiple_of(align);
    let region = &backed.region();
    bed.run(|cx| async move {
        let (waited, other) = (Tag::new(3), Tag::new(4));
        cx.wait_tag(waited).await;
        let transfers: Vec<_> = (0..40)
            .map(|n| {
                let place = region.at(((n % 20) * unit) as u64);
                match n {
                    0..20 => cx.put(filled(&cx, &pattern(n as u64, unit), align), place, waited),
                    _ => cx.get_fenced(roomy(&cx, unit, align), place, unit, waited),
                }
            })
            .collect();
        let unawaited = cx.get(roomy(&cx, unit, align), region.at(0), unit, other);
        cx.wait_tag(waited).await;
        // Done and dropped, a transfer gives its buffer back at once.
        let used = cx.local_store().used_bytes();
        let bytes = 40 * (unit + 2 * align).next_multiple_of(128);
        drop(transfers);
        assert_eq!(used - cx.local_store().used_bytes(), bytes);
        unawaited.await.unwrap();
        for n in 0..20 {
            let buf = cx.get(roomy(&cx, unit, align), region.at((n * unit) as u64), unit, waited);
            assert!(*buf.await.unwrap() == pattern(n as u64, unit));
        }
    });
}
