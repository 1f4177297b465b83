//! What fails says where and why, and gives the buffer back.

use cellway_accel::{
    Buf, Config, Direction, Region, Tag, TransferError, TransferFault, TransferResult,
};

use super::Bed;
use super::round_trips::{filled, roomy};
use crate::harness::{Backed, Backing, pattern};

const TAG: Tag = Tag::new(2);

/// The error, and the buffer that came with it.
fn failed(result: TransferResult) -> (TransferError, Buf) {
    let mut error = *result.expect_err("must fail");
    let buf = error.buf.take().expect("a failed transfer gives its buffer back");
    (error, buf)
}

/// Transfers end where their region or buffer ends.
pub(super) fn bounds(bed: &Bed<'_>) {
    let len = 1 << 20;
    let content = pattern(40, len);
    let mut backed = bed.back(&content);
    let (align, name) = (backed.align, if bed.is_file() { "the-file" } else { "memory" });
    let unit = align.max(100);
    let region = &backed.region();
    bed.run(|cx| async move {
        let mut buf = filled(&cx, &pattern(1, unit), align);
        let end = len as u64;
        for at in [end - unit as u64 + 1, end, end + 1, u64::MAX - 5, u64::MAX] {
            let (error, back) = failed(cx.get(buf, region.at(at), unit, TAG).await);
            assert!(matches!(error.fault, TransferFault::OutsideRegion { len_bytes, region_bytes }
                if len_bytes == unit && region_bytes == end));
            assert_eq!((error.direction, &*error.region, error.offset), (Direction::Get, name, at));
            buf = back;
            buf.set_view(0..unit);
            let (error, back) = failed(cx.put(buf, region.at(at), TAG).await);
            assert!(matches!(error.fault, TransferFault::OutsideRegion { .. }));
            assert_eq!(error.direction, Direction::Put);
            let list = [(region.at(0), unit), (region.at(at), unit)];
            let (error, back) = failed(cx.get_list(back, &list, TAG).await);
            assert!(matches!(error.fault, TransferFault::OutsideRegion { .. }));
            let (error, mut back) = failed(cx.put_list(back, &list[1..], TAG).await);
            assert_eq!(error.offset, at);
            assert!(matches!(error.fault, TransferFault::OutsideRegion { .. }));
            back.set_view(0..unit);
            let chain =
                cx.put(back, region.at(0), TAG).then_get(region.at(at), unit).await.unwrap_err();
            assert!(matches!(chain.fault, TransferFault::OutsideRegion { .. }));
            cx.wait_tag(TAG).await;
            buf = filled(&cx, &pattern(1, unit), align);
        }
        buffer_bounds(&cx, region, align).await;
        drop(buf);
        assert_eq!(cx.local_store().used_bytes(), 0);
    });
    let after = backed.content();
    assert!(after[..unit] == pattern(1, unit), "the first half of the chains");
    assert!(after[unit..] == content[unit..]);
}

async fn buffer_bounds<'env>(
    cx: &cellway_accel::Cx<'env>,
    region: &'env Region<'env>,
    align: usize,
) {
    let room = align.max(128);
    let buf = cx.alloc_aligned(room, align).unwrap();
    let (error, buf) = failed(cx.get(buf, region.at(0), room + 1, TAG).await);
    let told = error.to_string();
    assert!(
        matches!(error.fault, TransferFault::OutsideBuf { capacity_bytes, .. } if capacity_bytes == room)
    );
    assert!(
        told.contains("at byte 0") && told.contains(&format!("buffer of {room} bytes")),
        "{told}"
    );
    let (error, mut buf) =
        failed(cx.get_list(buf, &[(region.at(0), room), (region.at(0), align)], TAG).await);
    assert!(matches!(error.fault, TransferFault::OutsideBuf { .. }));
    // What a list scatters is the view, not the slot.
    buf.set_view(0..0);
    let (error, mut buf) = failed(cx.put_list(buf, &[(region.at(0), align)], TAG).await);
    assert!(matches!(error.fault, TransferFault::OutsideBuf { .. }));
    if align > 1 {
        // Direct I/O reads a sector more, which has no place in the buffer.
        let (error, back) = failed(cx.get(buf, region.at(1), room, TAG).await);
        assert!(matches!(error.fault, TransferFault::OutsideBuf { .. }));
        buf = back;
    }
    drop(cx.get(buf, region.at(0), room, TAG).await.unwrap());
}

/// No length makes it panic.
pub(super) fn absurd_lengths(bed: &Bed<'_>) {
    let mut backed = bed.back(&pattern(41, 4096));
    let align = backed.align;
    let region = &if bed.is_file() { backed.region_of(3, u64::MAX) } else { backed.region() };
    bed.run(|cx| async move {
        let mut buf = cx.alloc_aligned(4096, align).unwrap();
        for len in
            [usize::MAX, usize::MAX - 1, usize::MAX - 3, usize::MAX - 4096, usize::MAX / 2, 1 << 40]
        {
            for at in [0, 1, 511, 4096, u64::MAX - 3, u64::MAX] {
                buf = failed(cx.get(buf, region.at(at), len, TAG).await).1;
                buf = failed(cx.get_list(buf, &[(region.at(at), len)], TAG).await).1;
                buf =
                    failed(cx.get_list(buf, &[(region.at(0), 0), (region.at(at), len)], TAG).await)
                        .1;
            }
        }
        let far = region.at(u64::MAX - 3) + 100;
        assert_eq!(far.offset(), u64::MAX, "addresses do not wrap around");
        assert_eq!(buf.capacity_bytes(), 4096);
    });
}

/// Memory lent for reading cannot be put to.
pub(super) fn lent_for_reading(bed: &Bed<'_>) {
    if bed.is_file() {
        return;
    }
    let content = pattern(42, 4096);
    let region = &Region::memory(&content);
    bed.run(|cx| async move {
        let (error, buf) = failed(cx.put(filled(&cx, b"no", 1), region.at(5), TAG).await);
        assert!(matches!(error.fault, TransferFault::ReadOnly));
        assert_eq!(
            error.to_string(),
            "put to memory at byte 5: the region is lent for reading only"
        );
        let (error, buf) = failed(cx.put_fenced(buf, region.at(5), TAG).await);
        assert!(matches!(error.fault, TransferFault::ReadOnly));
        let (error, buf) = failed(cx.put_list(buf, &[(region.at(5), 2)], TAG).await);
        assert!(matches!(error.fault, TransferFault::ReadOnly));
        drop(cx.get(buf, region.at(5), 2, TAG).await.unwrap());
    });
    assert!(content == pattern(42, 4096));
}

/// A direct put whose place, length or buffer is odd says so.
pub(super) fn direct_puts_are_aligned(bed: &Bed<'_>) {
    let content = pattern(43, 1 << 20);
    let mut backed = bed.back(&content);
    let align = backed.align;
    if align == 1 {
        return;
    }
    let region = &backed.region_of(align as u64 / 2, 1 << 20);
    let half = align / 2;
    bed.run(|cx| async move {
        // What counts is the place in the file: half a sector before the region.
        for (at, view) in [(0, 0..align), (half, 0..half), (half, 128..align + 128)] {
            let mut buf = cx.alloc_aligned(2 * align, align).unwrap();
            buf.set_view(view.clone());
            let (error, buf) = failed(cx.put(buf, region.at(at as u64), TAG).await);
            let told = error.to_string();
            assert!(told.contains(&format!("aligned to {align} bytes")), "{at}, {view:?}: {told}");
            let (error, _) =
                failed(cx.put_list(buf, &[(region.at(at as u64), view.len())], TAG).await);
            assert!(
                matches!(error.fault, TransferFault::Unaligned { .. }),
                "list {at}, {view:?}: {error}"
            );
        }
    });
    assert!(backed.content() == content);
}

/// A file that is shorter than its region was when it was opened.
pub(super) fn truncated_file(bed: &Bed<'_>) {
    if !bed.is_file() {
        return;
    }
    let content = &pattern(44, 3 << 20);
    let mut backed = bed.back(content);
    // Bytes left, less each time, and a get: where and how long.
    let cases = [
        ((2 << 20) + 5, 77, (3 << 20) - 77),
        (1 << 20, 0, (2 << 20) + 7),
        (500_000, 0, 3 << 20),
        (4096, 4095, 4098),
        (1000, 999, 2),
        (1000, 1000, 1),
        (1000, 5000, 7),
        (0, 0, 1),
    ];
    for (left, at, len) in cases {
        backed.set_len(left);
        let align = backed.align;
        let region = &backed.region_of(0, content.len() as u64);
        bed.run(|cx| async move {
            let result = cx.get(roomy(&cx, len, align), region.at(at), len, TAG).await;
            let (error, buf) = failed(result);
            let told = error.to_string();
            let missing = at + len as u64 - left.max(at);
            assert!(
                matches!(error.fault, TransferFault::Ended { missing_bytes } if missing_bytes as u64 == missing),
                "{left} bytes left, {len} wanted at {at}: {told}"
            );
            assert!(told.starts_with(&format!("get from the-file at byte {at}: it ends")), "{told}");
            // What is there can still be had.
            if at < left {
                let len = (left - at) as usize;
                let buf = cx.get(buf, region.at(at), len, TAG).await.unwrap();
                assert!(*buf == content[at as usize..left as usize]);
            }
        });
    }
}

/// In lists and chains, what is named is what failed.
pub(super) fn errors_name_the_place(bed: &Bed<'_>) {
    let (mut backed, mut short) =
        (bed.back(&pattern(45, 1 << 20)), Backed::new(Backing::Buffered, b"0123456789"));
    let align = backed.align;
    let unit = align.max(100);
    let (region, short) = (&backed.region(), &short.region_of(0, 1000));
    bed.run(|cx| async move {
        let list = [(region.at(0), unit), (region.at(0), unit), (short.at(3), 7), (short.at(8), 4)];
        let (error, buf) = failed(cx.get_list(roomy(&cx, 4 * unit, align), &list, TAG).await);
        assert_eq!(
            error.to_string(),
            "get from the-file at byte 8: it ends 2 bytes early; was it truncated meanwhile?"
        );
        drop(buf);
        let buf = filled(&cx, &pattern(1, unit), align);
        let (error, _) = failed(cx.put(buf, region.at(0), TAG).then_get(short.at(9), 3).await);
        assert_eq!((error.direction, error.offset), (Direction::Get, 9), "{error}");
        assert!(matches!(error.fault, TransferFault::Ended { missing_bytes: 2 }), "{error}");
        let chain =
            cx.get(roomy(&cx, unit, align), region.at(0), unit, TAG).then_get(short.at(20), 1);
        let (error, _) = failed(chain.then_get(region.at(7), 5).await);
        assert_eq!((&*error.region, error.offset), ("the-file", 20), "{error}");
    });
}

/// What fails in a chain is the end of it.
pub(super) fn failed_chain(bed: &Bed<'_>) {
    let content = pattern(46, 1 << 20);
    let (mut backed, mut short) =
        (bed.back(&content), Backed::new(Backing::Buffered, b"0123456789"));
    let align = backed.align;
    let (region, short) = (&backed.region(), &short.region_of(0, 1000));
    bed.run(|cx| async move {
        let first = cx.get(roomy(&cx, align.max(100), align), short.at(5), 50, TAG);
        let (error, buf) = failed(first.then_get(region.at(0), 50).await);
        assert!(matches!(error.fault, TransferFault::Ended { missing_bytes: 45 }), "{error}");
        assert_eq!(error.offset, 5, "{error}");
        // Later transfers of the group go on, ordered ones too.
        drop(cx.get_barrier(buf, region.at(0), 50, TAG).await.unwrap());
        let outside =
            cx.get(roomy(&cx, 50, align), short.at(5000), 1, TAG).then_get(region.at(0), 50);
        assert!(matches!(failed(outside.await).0.fault, TransferFault::OutsideRegion { .. }));
    });
}

/// Runs on a device that fails a fifth of all operations.
pub(super) fn broken_device(bed: &Bed<'_>) {
    let before = &pattern(47, 1 << 20);
    let mut backed = bed.back(before);
    let align = backed.align;
    let unit = 8192;
    let region = &backed.region();
    let config = Config { threads: 4, ..bed.config.clone() };
    let ran = bed.run_with(&config, |cx, at| async move {
        let mut failures = 0;
        for number in (at.thread..(1 << 20) / unit).step_by(at.threads) {
            let place = region.at((number * unit) as u64);
            let mut buf = roomy(&cx, unit, align);
            loop {
                match cx.get(buf, place, unit, TAG).await {
                    Ok(got) => break buf = got,
                    Err(error) => buf = broken(Err(error), &mut failures),
                }
            }
            assert!(*buf == before[number * unit..][..unit]);
            buf.iter_mut().for_each(|byte| *byte ^= 0xFF);
            loop {
                match cx.put_fenced(buf, place, TAG).await {
                    Ok(_) => break,
                    Err(error) => buf = broken(Err(error), &mut failures),
                }
            }
        }
        failures
    });
    assert!(ran.unwrap().into_iter().sum::<usize>() > 0, "faults were injected");
    let flipped: Vec<u8> = before.iter().map(|byte| byte ^ 0xFF).collect();
    assert!(backed.content() == flipped);
}

fn broken(result: TransferResult, failures: &mut usize) -> Buf {
    let (error, buf) = failed(result);
    let TransferFault::Io(cause) = &error.fault else { panic!("{error}") };
    assert_eq!(cause.raw_os_error(), Some(libc::EIO), "{error}");
    *failures += 1;
    buf
}
