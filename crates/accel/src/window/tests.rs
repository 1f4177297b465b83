use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use super::*;

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("room for it");
    file
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 + 1).collect()
}

#[test]
fn shows_what_the_file_holds_wherever_it_is_looked_at() {
    let bytes = pattern(3 * 4096 + 17);
    let file = file(&bytes);
    for together_bytes in [1, 1 << 20] {
        let mut window = FileWindow::new(&file, together_bytes).expect("SIGBUS is handled");
        for (offset, len) in
            [(0, 0), (0, 1), (5, 4096), (4095, 2), (8192, 4113), (3, 6000), (0, bytes.len())]
        {
            let seen = window.look(offset as u64, len, |seen| seen.to_vec());
            assert_eq!(seen.expect("it is there"), &bytes[offset..offset + len]);
        }
    }
}

#[test]
fn what_is_looked_at_in_turn_is_mapped_together() {
    const PAGE: usize = 4096;
    let bytes = pattern(100 * PAGE + 1);
    let file = file(&bytes);
    // The lengths of what is mapped in turn, where so many pages lie from one look to the next.
    let mapped_bytes = |step| {
        let mut window = FileWindow::new(&file, 16 * PAGE).expect("SIGBUS is handled");
        let mut mapped = Vec::new();
        for (at, block) in bytes.chunks(PAGE).enumerate().step_by(step) {
            let seen = window.look((at * PAGE) as u64, block.len(), |seen| seen == block);
            assert!(seen.expect("it is there"));
            let shown = window.shown.as_ref().map(|shown| (shown.offset, shown.mapped_bytes));
            if mapped.last() != shown.as_ref() {
                mapped.extend(shown);
            }
        }
        mapped.into_iter().map(|(_, len)| len).collect::<Vec<_>>()
    };
    let grows = [PAGE, 2 * PAGE, 4 * PAGE, 8 * PAGE];
    let [all, last] = [16 * PAGE, 5 * PAGE + 1];
    assert_eq!(mapped_bytes(1), [&grows[..], &[all; 5], &[last]].concat());
    // Once 16 pages are mapped, two looks are in them.
    assert_eq!(mapped_bytes(8), [&grows[..], &[all; 4], &[4 * PAGE + 1]].concat());
    // They would never be.
    assert_eq!(mapped_bytes(9), [PAGE; 12]);
    // Elsewhere no more than what is looked at.
    let mut window = FileWindow::new(&file, 16 * PAGE).expect("SIGBUS is handled");
    for (at, mapped) in [(3, 1), (4, 2), (2, 1), (2, 1), (90, 1)] {
        window.look(at * PAGE as u64, PAGE, |_| ()).expect("it is there");
        assert_eq!(window.shown.as_ref().map(|it| it.mapped_bytes), Some(mapped * PAGE));
    }
}

#[test]
fn what_is_changed_in_a_window_stays_there() {
    let bytes = pattern(5000);
    let file = file(&bytes);
    let mut window = FileWindow::new(&file, 5000).expect("SIGBUS is handled");
    window.look(0, 5000, |seen| seen.fill(0)).expect("it is there");
    let mut there = vec![0; 5000];
    file.read_exact_at(&mut there, 0).expect("it is there");
    assert_eq!(there, bytes);
}

#[test]
fn a_file_that_shrinks_under_a_window_is_told() {
    let bytes = pattern(16 * 4096);
    let file = file(&bytes);
    let mut window = FileWindow::new(&file, 1 << 20).expect("SIGBUS is handled");
    let seen = window.look(0, bytes.len(), |seen| {
        file.set_len(4096).expect("it can be cut");
        assert_eq!(seen[..4096], bytes[..4096]);
        assert!(seen[4096..].iter().all(|byte| *byte == 0));
    });
    let fault = seen.expect_err("most of it is gone");
    assert_eq!((fault.error.kind(), fault.offset), (io::ErrorKind::UnexpectedEof, 4096));
    // Before it is looked at, too; and the window is as good as new.
    let fault = window.look(4096, 1, |_| ()).expect_err("this is gone");
    assert_eq!(fault.error.kind(), io::ErrorKind::UnexpectedEof);
    window.look(0, 4096, |seen| assert_eq!(seen, &bytes[..4096])).expect("this is left");
}

#[test]
fn a_file_that_shrinks_between_two_looks_at_a_window_is_told() {
    for cut_bytes in [4096, 2 * 4096, 2 * 4096 + 5] {
        let bytes = pattern(16 * 4096);
        let file = file(&bytes);
        let mut window = FileWindow::new(&file, 1 << 20).expect("SIGBUS is handled");
        for block in 0..2 {
            window.look(block * 4096, 4096, |_| ()).expect("it is there");
        }
        // The one after them is mapped by now.
        file.set_len(cut_bytes).expect("it can be cut");
        let fault = window.look(2 * 4096, 4096, |seen| seen[0]).expect_err("this is gone");
        let found = (fault.error.kind(), fault.offset);
        assert_eq!(found, (io::ErrorKind::UnexpectedEof, cut_bytes.max(2 * 4096)));
        window.look(0, 4096, |seen| assert_eq!(seen, &bytes[..4096])).expect("this is left");
    }
}

#[test]
fn a_last_page_that_is_cut_short_is_told() {
    let file = file(&pattern(8192));
    let mut window = FileWindow::new(&file, 8192).expect("SIGBUS is handled");
    let cut = |_: &mut [u8]| file.set_len(4100).expect("it can be cut");
    for see in [&cut as &dyn Fn(&mut [u8]), &|_| ()] {
        let fault = window.look(0, 8192, see).expect_err("half is gone");
        assert_eq!((fault.error.kind(), fault.offset), (io::ErrorKind::UnexpectedEof, 4100));
    }
    window.look(0, 4100, |_| ()).expect("this is left");
}

#[test]
fn windows_of_many_threads_are_told_apart() {
    std::thread::scope(|scope| {
        for own in 0..8_usize {
            scope.spawn(move || {
                let file = file(&[own as u8 + 1; 8192]);
                let mut window = FileWindow::new(&file, 8192).expect("SIGBUS is handled");
                for _ in 0..100 {
                    let cut = own % 2 == 0;
                    let seen = window.look(0, 8192, |seen| {
                        file.set_len(if cut { 0 } else { 8192 }).expect("it can be cut");
                        seen[8191]
                    });
                    match seen {
                        Ok(byte) => assert!(!cut && byte == own as u8 + 1),
                        Err(_) => assert!(cut),
                    }
                    file.set_len(0).expect("it can be cut");
                    file.write_all_at(&[own as u8 + 1; 8192], 0).expect("and made longer");
                }
            });
        }
    });
}

#[test]
fn a_mapped_file_is_read_like_the_file() {
    let bytes = pattern(PIECE_BYTES + 5000);
    let file = file(&bytes);
    let mapped = MappedFile::new(&file, bytes.len() as u64).expect("it can be mapped");
    let near_piece = PIECE_BYTES - 3000;
    for (offset, len) in [(0, 0), (0, 1), (4095, 8192), (near_piece, 8000), (near_piece, 1)] {
        let mut into = vec![0; len];
        assert!(mapped.read(&file, offset as u64, &mut into));
        assert_eq!(into, bytes[offset..offset + len]);
    }
    // By way of its region, which nobody can put to.
    let (mut into, region) = ([0; 100], mapped.region());
    assert!(mapped.begin(near_piece as u64) && !mapped.begin(bytes.len() as u64));
    region.drain(near_piece as u64, &mut into).expect("it is there");
    assert!(into == bytes[near_piece..near_piece + 100]);
    assert!(mapped.counts(&file, near_piece as u64, &into));
    assert!(region.fill(0, b"x").is_err() && region.discard(0, 1).is_err());
    // Beyond it, wherever that ends.
    for offset in [bytes.len() as u64 - 1, bytes.len() as u64, u64::MAX] {
        assert!(!mapped.read(&file, offset, &mut [0; 2]));
    }
    file.write_all_at(b"new", 1).expect("room for it");
    let mut into = [0; 5];
    assert!(mapped.read(&file, 0, &mut into));
    assert_eq!(into, [1, b'n', b'e', b'w', 5]);
    assert!(MappedFile::new(&file, 0).is_err() && MappedFile::new(&file, u64::MAX).is_err());
}

#[test]
fn a_mapped_file_that_was_cut_is_told_and_zeros_are_not() {
    let file = file(&[0; 3 * 4096]);
    let mapped = MappedFile::new(&file, 3 * 4096).expect("it can be mapped");
    let mut into = [1; 3000];
    assert!(mapped.read(&file, 4096, &mut into));
    assert_eq!(into, [0; 3000]);
    // Within a page: nothing is raised.
    file.set_len(5000).expect("it can be cut");
    assert!(!mapped.read(&file, 4096, &mut into));
    assert!(mapped.read(&file, 2000, &mut into));
    // Before a page: for good, even if the file gets longer again.
    assert!(!mapped.read(&file, 2 * 4096, &mut into));
    file.set_len(3 * 4096).expect("and made longer");
    assert!(!mapped.read(&file, 0, &mut into));
}

#[test]
fn a_file_cut_under_threads_that_read_it_is_told_to_each() {
    const LEN: usize = 64 * 4096;
    for round in 0..20 {
        let file = &file(&[7; LEN]);
        let mapped = &MappedFile::new(file, LEN as u64).expect("it can be mapped");
        let is_cut = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(move || {
                    let mut into = [0; 4096];
                    loop {
                        let was_cut = is_cut.load(Ordering::SeqCst);
                        let whole = mapped.read(file, LEN as u64 - 4096, &mut into);
                        assert!(!whole || into == [7; 4096], "zeros passed for bytes");
                        if was_cut {
                            return assert!(!whole);
                        }
                    }
                });
            }
            file.set_len(round * 1000).expect("it can be cut");
            is_cut.store(true, Ordering::SeqCst);
        });
    }
}
