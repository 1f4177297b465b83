//! Host-issued transfers: into memory for staging, and into buffers that were
//! handed over.

use std::fs::File;
use std::future::Future as _;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc;
use std::task::{Context, Waker};

use cellway_accel::{Accelerator, Config, Faults, HandedOver, HostIo, Region, Step, Tag, run};

use crate::harness::{pattern, small, watch};

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn staging_is_filled_transferred_and_drained() {
    let _dog = watch();
    let bytes = pattern(1, 300_000);
    let (from, to) = (file_of(&bytes), file_of(&[]));
    for faults in [None, Some(Faults::survivable(7))] {
        let mut io = HostIo::new(faults);
        let memory = &Region::staging(200_000).unwrap();
        memory.read_from(&mut io, &from, 50_000, 1000, 150_000).unwrap();
        run(&small(), |cx, _| async move {
            let buf = cx.alloc(150_000).unwrap();
            let mut buf = cx.get(buf, memory.at(1000), 150_000, Tag::new(0)).await.unwrap();
            buf.iter_mut().for_each(|byte| *byte ^= 0x55);
            cx.put(buf, memory.at(1000), Tag::new(0)).await.unwrap();
        })
        .unwrap();
        memory.write_to(&mut io, &to, 10, 1000, 150_000).unwrap();
        let mut written = vec![0; 150_000];
        to.read_exact_at(&mut written, 10).unwrap();
        assert!(written.iter().zip(&bytes[50_000..]).all(|(w, b)| *w == b ^ 0x55));
    }
}

#[test]
fn the_host_copies_into_staging_and_out_of_it() {
    let memory = Region::staging(10_000).unwrap();
    for (at, len) in [(0, 10_000), (1, 0), (10_000, 0), (17, 33), (5000, 5000)] {
        let (bytes, mut back) = (pattern(at, len), vec![0; len]);
        memory.fill(at, &bytes).unwrap();
        memory.drain(at, &mut back).unwrap();
        assert_eq!(back, bytes);
    }
}

#[test]
fn a_host_transfer_says_where_it_failed() {
    let file = file_of(&[7; 10_000]);
    let memory = Region::staging(20_000).unwrap();
    let mut io = HostIo::new(None);
    let fault = memory.read_from(&mut io, &file, 4000, 0, 20_000).unwrap_err();
    assert_eq!((fault.offset, fault.error.kind()), (10_000, ErrorKind::UnexpectedEof));
    // Places outside, and memory that is lent for reading, which can be drained.
    let read_only = Region::memory(&[0; 100]);
    for (region, at, len) in [(&memory, 1, 20_000), (&memory, u64::MAX, 1), (&read_only, 0, 1)] {
        let fault = region.read_from(&mut io, &file, 0, at, len).unwrap_err();
        assert_eq!(fault.error.kind(), ErrorKind::InvalidInput, "{region:?}");
        assert_eq!(region.fill(at, &vec![0; len]).unwrap_err().kind(), ErrorKind::InvalidInput);
        let drained = region.drain(at, &mut vec![0; len]).map_err(|error| error.kind());
        let is_outside = std::ptr::eq(region, &memory);
        assert_eq!(drained, if is_outside { Err(ErrorKind::InvalidInput) } else { Ok(()) });
    }
    let broken = Faults { seed: 1, short: 0, interrupted: 0, broken: 1000, delayed: 0 };
    let fault = memory.write_to(&mut HostIo::new(Some(broken)), &file, 33, 0, 5).unwrap_err();
    assert_eq!((fault.offset, fault.error.raw_os_error()), (33, Some(libc::EIO)));
    let always = Faults { broken: 0, interrupted: 1000, ..broken };
    let fault = memory.write_to(&mut HostIo::new(Some(always)), &file, 33, 0, 5).unwrap_err();
    assert_eq!(fault.error.kind(), ErrorKind::Interrupted);
}

#[test]
fn the_host_fills_and_drains_buffers_that_are_handed_over() {
    const EACH: usize = 50;
    let _dog = watch();
    let bytes = pattern(3, 4 * EACH * 1000);
    let (from, to) = (&file_of(&bytes), &file_of(&vec![0; bytes.len()]));
    std::thread::scope(|scope| {
        let (calls, served) = mpsc::channel::<(bool, u64, HandedOver)>();
        scope.spawn(move || {
            let mut io = HostIo::new(Some(Faults::survivable(5)));
            for (is_read, offset, mut buf) in served {
                let result = match is_read {
                    true => buf.read_from(&mut io, from, offset),
                    false => buf.write_to(&mut io, to, offset),
                };
                buf.give_back(result);
            }
        });
        let config = Config { accelerators: 2, threads: 2, ..small() };
        let calls = &calls;
        run(&config, |cx, at| async move {
            for number in 0..EACH {
                let offset = ((number * at.count() + at.index()) * 1000) as u64;
                let mut buf = cx.alloc(1000).unwrap();
                for is_read in [true, false] {
                    let (handed, back) = buf.hand_over();
                    calls.send((is_read, offset, handed)).unwrap();
                    let (given, result) = back.await;
                    result.unwrap();
                    buf = given;
                    if is_read {
                        buf.reverse();
                    }
                }
            }
        })
        .unwrap();
    });
    let mut written = vec![0; bytes.len()];
    to.read_exact_at(&mut written, 0).unwrap();
    let reversed: Vec<u8> = bytes.chunks(1000).flat_map(|c| c.iter().rev().copied()).collect();
    assert!(written == reversed);
}

#[test]
fn a_host_that_goes_gives_buffers_back_with_an_error() {
    let _dog = watch();
    run(&small(), |cx, _| async move {
        let (handed, back) = cx.alloc(100).unwrap().hand_over();
        std::thread::spawn(move || drop(handed));
        let (buf, result) = back.await;
        assert!(result.unwrap_err().to_string().contains("the host has gone"));
        drop(buf);
        assert_eq!(cx.local_store().used_bytes(), 0);
    })
    .unwrap();
}

/// Else the host would write into somebody else's buffer.
#[test]
fn a_slot_the_host_still_has_is_not_lent_again() {
    let _dog = watch();
    let config = Config { local_store_bytes: 8192, ..small() };
    let mut accelerator = Accelerator::new(&config).unwrap();
    let cx = accelerator.cx();
    let (mut handed, back) = cx.alloc(4096).unwrap().hand_over();
    drop(back);
    assert_eq!(cx.local_store().used_bytes(), 4096);
    assert!(cx.alloc(8192).is_err());
    let other = cx.alloc(4096).unwrap();
    assert!(other.iter().all(|byte| *byte == 0));
    let file = file_of(&[9; 4096]);
    handed.read_from(&mut HostIo::new(None), &file, 0).unwrap();
    assert!(other.iter().all(|byte| *byte == 0));
    assert_eq!(accelerator.step().unwrap(), Step::Ended);
    drop((other, cx, accelerator));
    // The memory outlives its accelerator.
    handed.read_from(&mut HostIo::new(None), &file, 0).unwrap();
    handed.give_back(Ok(()));
}

#[test]
fn a_buffer_that_came_back_unseen_returns_to_its_store() {
    let config = Config { local_store_bytes: 8192, ..small() };
    let cx = Accelerator::new(&config).unwrap().cx();
    let (handed, mut back) = cx.alloc(4096).unwrap().hand_over();
    let mut context = Context::from_waker(Waker::noop());
    assert!(std::pin::Pin::new(&mut back).poll(&mut context).is_pending());
    handed.give_back(Ok(()));
    drop(back);
    assert_eq!(cx.local_store().used_bytes(), 0);
}

#[test]
fn what_is_discarded_of_staging_is_zeros() {
    let memory = Region::staging(40_000).unwrap().in_huge_pages(false);
    for (at, len) in [(0, 40_000), (5000, 10), (4096, 8192), (100, 20_000), (39_000, 1000), (7, 0)]
    {
        memory.fill(0, &[1; 40_000]).unwrap();
        memory.discard(at as u64, len).unwrap();
        let mut seen = vec![2; 40_000];
        memory.drain(0, &mut seen).unwrap();
        let mut wanted = vec![1; 40_000];
        wanted[at..at + len].fill(0);
        assert!(seen == wanted, "{len} bytes at {at}");
    }
    assert!(memory.discard(39_999, 2).is_err());
    let mut lent = [1; 10];
    assert!(Region::memory_mut(&mut lent).discard(0, 1).is_err());
}
