//! What is put at a place is what is got from there.

use cellway_accel::{Buf, Config, Cx, Region, Tag};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::Bed;
use crate::harness::{Backed, Backing, pattern};

const TAG: Tag = Tag::new(5);

/// A buffer for `len` bytes anywhere, which direct I/O widens to sectors.
pub(super) fn roomy(cx: &Cx<'_>, len: usize, align: usize) -> Buf {
    cx.alloc_aligned(len + 2 * align, align).unwrap()
}

/// A buffer that shows `bytes`.
pub(super) fn filled(cx: &Cx<'_>, bytes: &[u8], align: usize) -> Buf {
    let mut buf = roomy(cx, bytes.len(), align);
    buf.set_view(0..bytes.len());
    buf.copy_from_slice(bytes);
    buf
}

/// Every size around a boundary, at odd places; above 1 MiB it is split inside.
pub(super) fn any_size_and_offset(bed: &Bed<'_>) {
    const MIB: usize = 1 << 20;
    let sizes = [0, 1, 15, 16, 17, 127, 128, 129, 511, 2047, 2048, 4095, 4096, 4097, 65_537];
    let sizes: Vec<_> =
        sizes.into_iter().chain([MIB - 1, MIB, MIB + 1, 2 * MIB + 12_345]).collect();
    let before = &pattern(1, 3 * MIB);
    let (mut backed, sizes) = (bed.back(before), &sizes);
    let align = backed.align;
    let region = &backed.region();
    let model = bed.run(|cx| async move {
        let mut model = before.clone();
        for &len in sizes {
            for offset in [0, 1, 63, 4095, 8192, 12_345] {
                one_round_trip(&cx, region, align, &mut model, (offset, len)).await;
            }
        }
        model
    });
    assert!(backed.content() == model);
}

/// Every short length, from memory that is lent for reading, and from memory
/// that others may write: they are copied in different ways.
pub(super) fn short_and_lent(bed: &Bed<'_>) {
    if bed.is_file() {
        return;
    }
    let content = &pattern(13, 1 << 16);
    let mut writable = content.clone();
    let regions = [&Region::memory(content), &Region::memory_mut(&mut writable)];
    bed.run(|cx| async move {
        for len in (0..300).chain([1000, 2047, 2048, 2049, 5000]) {
            for (number, region) in regions.into_iter().enumerate() {
                let at = (len * 163 + 7) % 60_000;
                let mut buf = cx.alloc(len + 1).unwrap();
                buf.fill(0x5A);
                let mut buf = cx.get(buf, region.at(at as u64), len, TAG).await.unwrap();
                assert!(*buf == content[at..at + len], "{len} bytes of region {number}");
                buf.set_view(0..len + 1);
                assert_eq!(buf[len], 0x5A, "{len} bytes, not one more");
            }
        }
    });
}

/// Gets a place, puts to it or to the sectors next to it, and gets it again.
async fn one_round_trip<'env>(
    cx: &Cx<'env>,
    region: &'env Region<'env>,
    align: usize,
    model: &mut [u8],
    (at, len): (usize, usize),
) {
    let place = region.at(at as u64);
    let buf = cx.get(roomy(cx, len, align), place, len, TAG).await.unwrap();
    assert!(*buf == model[at..at + len], "get of {len} bytes at {at}");
    drop(buf);
    let (put_at, put_len) = (at.next_multiple_of(align), len.next_multiple_of(align));
    let bytes = pattern((len * 31 + at) as u64, put_len);
    let buf = filled(cx, &bytes, align);
    let buf = cx.put(buf, region.at(put_at as u64), TAG).await.unwrap();
    assert!(*buf == *bytes, "a put leaves its buffer as it is");
    drop(buf);
    model[put_at..put_at + put_len].copy_from_slice(&bytes);
    let buf = cx.get(roomy(cx, len, align), place, len, TAG).await.unwrap();
    assert!(*buf == model[at..at + len], "get of {len} bytes at {at} after the put");
}

/// One transfer of a random program. Places and lengths of puts are rounded
/// to what direct I/O asks for.
#[derive(Clone, Debug)]
enum Move {
    Get { at: usize, len: usize },
    Put { at: usize, len: usize, seed: u64 },
    PutThenGet { put: (usize, usize), seed: u64, get: (usize, usize) },
    GetList(Vec<(usize, usize)>),
    PutList(Vec<(usize, usize)>, u64),
}

/// The region's length in random programs.
const REGION_BYTES: usize = 256 << 10;

fn place() -> impl Strategy<Value = (usize, usize)> + Clone {
    let len = prop_oneof![0usize..300, 0usize..40_000];
    (0..REGION_BYTES, len).prop_map(|(at, len)| (at, len.min(REGION_BYTES - at)))
}

fn a_move() -> impl Strategy<Value = Move> {
    let list = prop::collection::vec(place(), 0..6);
    let seed = any::<u64>();
    prop_oneof![
        4 => place().prop_map(|(at, len)| Move::Get { at, len }),
        4 => (place(), seed).prop_map(|((at, len), seed)| Move::Put { at, len, seed }),
        2 => (place(), seed, place()).prop_map(|(put, seed, get)| Move::PutThenGet { put, seed, get }),
        2 => list.clone().prop_map(Move::GetList),
        2 => (list, seed).prop_map(|(list, seed)| Move::PutList(list, seed)),
    ]
}

/// `(at, len)` moved to sectors.
fn to_sectors((at, len): (usize, usize), align: usize) -> (usize, usize) {
    let at = at / align * align;
    (at, len.next_multiple_of(align).min(REGION_BYTES - at))
}

/// Each transfer awaited before the next: what comes and what stays must be
/// what a plain array would give.
pub(super) fn random_programs(bed: &Bed<'_>) {
    let cases = if bed.is_file() { 12 } else { 40 };
    let mut runner = TestRunner::new(ProptestConfig::with_cases(cases));
    let moves = prop::collection::vec(a_move(), 1..40);
    let ran = runner.run(&moves, |moves| {
        let mut model = pattern(3, REGION_BYTES);
        let mut backed = bed.back(&model);
        let align = backed.align;
        let region = &backed.region();
        let moves = &moves;
        model = {
            let model = &model;
            bed.run(|cx| async move {
                let mut model = model.clone();
                for one in moves {
                    carry_out(&cx, region, align, &mut model, one).await;
                }
                assert_eq!(cx.local_store().used_bytes(), 0);
                model
            })
        };
        prop_assert!(backed.content() == model);
        Ok(())
    });
    ran.unwrap();
}

async fn carry_out<'env>(
    cx: &Cx<'env>,
    region: &'env Region<'env>,
    align: usize,
    model: &mut [u8],
    one: &Move,
) {
    match one {
        Move::Get { at, len } => {
            let buf = roomy(cx, *len, align);
            let buf = cx.get(buf, region.at(*at as u64), *len, TAG).await.unwrap();
            assert!(*buf == model[*at..at + len], "{one:?}");
        }
        Move::Put { at, len, seed } => {
            let (at, len) = to_sectors((*at, *len), align);
            let bytes = pattern(*seed, len);
            model[at..at + len].copy_from_slice(&bytes);
            cx.put(filled(cx, &bytes, align), region.at(at as u64), TAG).await.unwrap();
        }
        Move::PutThenGet { put, seed, get } => {
            let (at, len) = to_sectors(*put, align);
            let bytes = pattern(*seed, len);
            model[at..at + len].copy_from_slice(&bytes);
            let mut buf = roomy(cx, len.max(get.1), align);
            buf.set_view(0..len);
            buf.copy_from_slice(&bytes);
            let chain =
                cx.put(buf, region.at(at as u64), TAG).then_get(region.at(get.0 as u64), get.1);
            assert!(*chain.await.unwrap() == model[get.0..get.0 + get.1], "{one:?}");
        }
        Move::GetList(list) => {
            let list: Vec<_> = list.iter().map(|place| to_sectors(*place, align)).collect();
            let eas: Vec<_> = list.iter().map(|(at, len)| (region.at(*at as u64), *len)).collect();
            let total = list.iter().map(|(_, len)| len).sum();
            let buf = cx.get_list(roomy(cx, total, align), &eas, TAG).await.unwrap();
            let expected: Vec<u8> =
                list.iter().flat_map(|(at, len)| &model[*at..at + len]).copied().collect();
            assert!(*buf == expected, "{one:?}");
        }
        Move::PutList(list, seed) => put_list(cx, region, align, model, list, *seed).await,
    }
}

/// Elements of one list are not ordered among themselves: those that overlap
/// an earlier one are left out.
async fn put_list<'env>(
    cx: &Cx<'env>,
    region: &'env Region<'env>,
    align: usize,
    model: &mut [u8],
    list: &[(usize, usize)],
    seed: u64,
) {
    let mut apart: Vec<(usize, usize)> = Vec::new();
    for place in list {
        let (at, len) = to_sectors(*place, align);
        if apart.iter().all(|(other, other_len)| at + len <= *other || other + other_len <= at) {
            apart.push((at, len));
        }
    }
    let eas: Vec<_> = apart.iter().map(|(at, len)| (region.at(*at as u64), *len)).collect();
    let bytes = pattern(seed, apart.iter().map(|(_, len)| len).sum());
    let mut rest = &bytes[..];
    for (at, len) in apart {
        let (here, later) = rest.split_at(len);
        model[at..at + len].copy_from_slice(here);
        rest = later;
    }
    cx.put_list(filled(cx, &bytes, align), &eas, TAG).await.unwrap();
}

/// A region may start anywhere in its file, and a transfer of many pieces
/// anywhere in its region.
pub(super) fn odd_starts(bed: &Bed<'_>) {
    if !bed.is_file() {
        return;
    }
    let content = pattern(4, 5 << 20);
    let mut backed = bed.back(&content);
    let align = backed.align;
    for start in [1, 100, align + 7, 1_000_001] {
        for (offset, len) in [(0, 10), (0, 3 << 20), (3, 2_500_000), (4093, 100_000)] {
            let region = &backed.region_of(start as u64, content.len() as u64);
            let got = bed.run(|cx| async move {
                let buf = roomy(&cx, len, align);
                cx.get(buf, region.at(offset as u64), len, TAG).await.unwrap().to_vec()
            });
            assert!(got == content[start + offset..][..len], "{len} bytes at {start} + {offset}");
        }
    }
    odd_start_of_a_put(bed, &mut backed, content);
}

/// What counts for a put is where it lands in the file.
fn odd_start_of_a_put(bed: &Bed<'_>, backed: &mut Backed, mut content: Vec<u8>) {
    let (align, start) = (backed.align, 100usize);
    let at = align.max(start.next_multiple_of(align));
    let offset = at - start;
    let bytes = &pattern(5, 4 * align);
    let region = &backed.region_of(start as u64, content.len() as u64);
    let (first, second) = (region.at(offset as u64), region.at((offset + 2 * align) as u64));
    bed.run(|cx| async move {
        cx.put(filled(&cx, &bytes[..2 * align], align), first, TAG).await.unwrap();
        let list = [(second, align), (second + align as u64, align)];
        cx.put_list(filled(&cx, &bytes[2 * align..], align), &list, TAG).await.unwrap();
        let list = [(second, align), (first, align)];
        let got = cx.get_list(roomy(&cx, 2 * align, align), &list, TAG).await.unwrap();
        assert!(got[..align] == bytes[2 * align..3 * align] && got[align..] == bytes[..align]);
    });
    content[at..at + bytes.len()].copy_from_slice(bytes);
    assert!(backed.content() == content);
}

/// One list gathers from, and scatters to, memory and files at once.
pub(super) fn lists_over_regions(bed: &Bed<'_>) {
    let (one, two) = (pattern(6, 64 << 10), pattern(7, 64 << 10));
    let (mut backed, mut other) = (bed.back(&one), Backed::new(Backing::Memory, &two));
    let unit = backed.align.max(100);
    let align = backed.align;
    let (region, memory) = (&backed.region(), &other.region());
    let got = bed.run(|cx| async move {
        let far = unit as u64 * 2;
        let list = [(memory.at(33), unit), (region.at(far), unit), (memory.at(0), unit)];
        let mut buf = cx.get_list(roomy(&cx, 3 * unit, align), &list, TAG).await.unwrap();
        let got = buf.to_vec();
        buf.reverse();
        let list = [(region.at(0), unit), (memory.at(5), unit), (region.at(far), unit)];
        cx.put_list(buf, &list, TAG).await.unwrap();
        got
    });
    let expected = [&two[33..33 + unit], &one[2 * unit..3 * unit], &two[..unit]].concat();
    assert!(got == expected);
    let backwards: Vec<u8> = expected.into_iter().rev().collect();
    let (mut one, mut two) = (one, two);
    one[..unit].copy_from_slice(&backwards[..unit]);
    two[5..5 + unit].copy_from_slice(&backwards[unit..2 * unit]);
    one[2 * unit..3 * unit].copy_from_slice(&backwards[2 * unit..]);
    assert!(backed.content() == one && other.content() == two);
}

/// A chain goes on in another region, as often as one likes.
pub(super) fn chains_over_regions(bed: &Bed<'_>) {
    let (one, two) = (&pattern(8, 64 << 10), &pattern(9, 64 << 10));
    let (mut backed, mut other) = (bed.back(one), Backed::new(Backing::Memory, two));
    let align = backed.align;
    let (region, memory) = (&backed.region(), &other.region());
    bed.run(|cx| async move {
        let buf = filled(&cx, &pattern(10, 4 * align), align);
        let chain = cx.put(buf, region.at(0), TAG).then_get(memory.at(77), 3);
        assert_eq!(*chain.await.unwrap(), two[77..80]);
        let buf = roomy(&cx, 5000, align);
        let chain = cx.get(buf, memory.at(9), 50, TAG).then_get(region.at(20_001), 999);
        let buf = chain.await.unwrap();
        assert!(*buf == one[20_001..21_000]);
        let chain = cx.get(buf, region.at(1), 5, TAG).then_get(memory.at(1), 6);
        let buf = chain.then_get(region.at(0), 4 * align).await.unwrap();
        assert!(*buf == pattern(10, 4 * align), "the put is seen");
    });
    assert!(backed.content()[..4 * align] == pattern(10, 4 * align));
    assert!(other.content() == *two);
}

/// Sixteen threads of two accelerators, each on stretches of its own.
pub(super) fn threads_side_by_side(bed: &Bed<'_>) {
    let content = pattern(11, 512 << 10);
    let mut backed = bed.back(&content);
    let (unit, align) = (4096, backed.align);
    let region = &backed.region();
    let config = Config { accelerators: 2, threads: 8, ..bed.config.clone() };
    let done = bed.run_with(&config, |cx, at| async move {
        let stretches = (at.index()..(512 << 10) / unit).step_by(at.count());
        for number in stretches.clone() {
            let place = region.at((number * unit) as u64);
            let mut buf = cx.get(roomy(&cx, unit, align), place, unit, TAG).await.unwrap();
            buf.iter_mut().for_each(|byte| *byte ^= 0xFF);
            cx.put(buf, place, TAG).await.unwrap();
        }
        stretches.count()
    });
    assert_eq!(done.unwrap().into_iter().sum::<usize>(), 128);
    let flipped: Vec<u8> = content.iter().map(|byte| byte ^ 0xFF).collect();
    assert!(backed.content() == flipped);
}
