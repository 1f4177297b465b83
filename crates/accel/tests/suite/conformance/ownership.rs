//! A buffer in flight belongs to its transfer, which may be dropped or
//! forgotten.

use cellway_accel::{Config, Tag};

use super::Bed;
use super::round_trips::{filled, roomy};
use crate::harness::pattern;

const TAG: Tag = Tag::new(9);

/// A dropped transfer goes on, also when its thread ends before it; its buffer
/// returns to the store when it is done.
pub(super) fn dropped_transfers_go_on(bed: &Bed<'_>) {
    let before = pattern(30, 1 << 20);
    let mut backed = bed.back(&before);
    let align = backed.align;
    let unit = align.max(700).next_multiple_of(align);
    let region = &backed.region();
    bed.run(|cx| async move {
        for n in 0..40 {
            let buf = filled(&cx, &pattern(n, unit), align);
            drop(cx.put(buf, region.at(n * unit as u64), TAG));
            drop(cx.get(roomy(&cx, unit, align), region.at(500_000), unit, TAG));
        }
        cx.wait_tag(TAG).await;
        assert_eq!(cx.local_store().used_bytes(), 0);
        for n in 40..80 {
            let buf = filled(&cx, &pattern(n, unit), align);
            drop(cx.put(buf, region.at(n * unit as u64), TAG));
        }
    });
    let expected: Vec<u8> = (0..80).flat_map(|n| pattern(n, unit)).collect();
    let after = backed.content();
    assert!(after[..80 * unit] == expected);
    assert!(after[80 * unit..] == before[80 * unit..]);
}

/// A forgotten transfer keeps its buffer for good, and nothing else happens.
pub(super) fn forgotten_transfers(bed: &Bed<'_>) {
    let before = &pattern(31, 1 << 20);
    let mut backed = bed.back(before);
    let align = backed.align;
    let unit = align.max(700).next_multiple_of(align);
    let region = &backed.region();
    let config = Config { depth: 4, ..bed.config.clone() };
    let ran = bed.run_with(&config, |cx, _| async move {
        for n in 0..20 {
            let place = region.at(n * unit as u64);
            std::mem::forget(cx.get(roomy(&cx, unit, align), place, unit, TAG));
            std::mem::forget(cx.put(filled(&cx, &pattern(n, unit), align), place, TAG));
        }
        let kept = cx.local_store().used_bytes();
        cx.wait_tag(TAG).await;
        let buf = cx.get(roomy(&cx, unit, align), region.at(900_000), unit, TAG).await.unwrap();
        assert!(*buf == before[900_000..][..unit]);
        drop(buf);
        (kept, cx.local_store().used_bytes())
    });
    let (kept, in_the_end) = ran.unwrap()[0];
    // A put to memory is over at once: what is forgotten then is its result.
    assert!(in_the_end <= kept && in_the_end >= 20 * unit, "{in_the_end} of {kept} bytes");
    let expected: Vec<u8> = (0..20).flat_map(|n| pattern(n, unit)).collect();
    assert!(backed.content()[..20 * unit] == expected);
}

/// Threads whose gets are in flight together each find their own bytes, at the
/// alignment they asked for; in memory, what a get did not replace is still there.
pub(super) fn each_its_own_bytes(bed: &Bed<'_>) {
    let content = &pattern(33, 1 << 20);
    let mut backed = bed.back(content);
    let align = backed.align;
    let tag = |thread: usize| Tag::new(thread % 3);
    let unit = 8 * align.max(512);
    let region = &backed.region();
    let config =
        Config { threads: 8, depth: 16, local_store_bytes: 512 << 10, ..bed.config.clone() };
    let ran = bed.run_with(&config, |cx, at| async move {
        // But for two, the threads' slots are the same apart from the place.
        let align = if at.thread == 3 { 4096 } else { align };
        let len = if at.thread == 0 { unit } else { unit / 4 };
        let mut buf = cx.alloc_aligned(len, align).unwrap();
        let mut expected = buf.to_vec();
        for (round, dice) in pattern(34 + at.thread as u64, 400).into_iter().enumerate() {
            let part = if dice % 3 == 0 { len / 2 } else { len };
            let from = (at.thread * 31 + round * 17) % (content.len() / unit) * unit;
            if dice % 4 == 0 {
                // The get of the thread before ends here, others go on, and
                // no get begins in the same turn.
                cx.yield_now().await;
                cx.wait_tag(tag(at.thread + 2)).await;
                cx.yield_now().await;
            }
            let place = region.at(from as u64);
            if dice % 13 == 1 {
                // Also where one that was dropped has lain.
                drop(cx.get(buf, place, part, tag(at.thread)));
                buf = cx.alloc_aligned(len, align).unwrap();
                buf.fill(round as u8);
                expected.fill(round as u8);
            }
            buf = match dice % 11 {
                0 => cx.get_fenced(buf, place, part, tag(at.thread)).await.unwrap(),
                _ => cx.get(buf, place, part, tag(at.thread)).await.unwrap(),
            };
            expected[..part].copy_from_slice(&content[from..][..part]);
            if !bed.is_file() {
                buf.set_view(0..len);
            }
            assert!(*buf == expected[..buf.len()], "thread {}, round {round}", at.thread);
            assert!((buf.as_ptr() as usize).is_multiple_of(align));
            buf.iter_mut().zip(&mut expected).for_each(|(byte, expected)| {
                *byte ^= round as u8;
                *expected = *byte;
            });
        }
        cx.wait_tag(tag(at.thread)).await;
        (cx.local_store().used_bytes(), len)
    });
    // The last thread to end has its own buffer alone, and the rest is free again.
    let ends = ran.unwrap();
    assert!(ends.iter().any(|(used, len)| used == len), "{ends:?}");
}

/// A full store says what does not fit, and has room again later.
pub(super) fn full_store(bed: &Bed<'_>) {
    let mut backed = bed.back(&pattern(32, 1 << 20));
    let align = backed.align;
    let region = &backed.region();
    let config = Config { local_store_bytes: 64 << 10, ..bed.config.clone() };
    let ran = bed.run_with(&config, |cx, _| async move {
        let buf = cx.alloc_aligned(40 << 10, align).unwrap();
        let get = cx.get(buf, region.at(0), 32 << 10, TAG);
        let full = cx.alloc(24 * 1024 + 1).unwrap_err();
        assert_eq!((full.used_bytes, full.wanted_bytes), (40_960, 24_704));
        assert_eq!((full.store_bytes, full.largest_free_bytes), (65_536, 24_576));
        let told = full.to_string();
        assert!(told.contains("40960 bytes in use + 24704 wanted > 65536"), "{told}");
        assert!(told.contains("smaller or fewer buffers, or a larger local store"), "{told}");
        drop(get.await.unwrap());
        assert_eq!(cx.alloc(64 << 10).unwrap().len(), 65_536);
    });
    ran.unwrap();
}
