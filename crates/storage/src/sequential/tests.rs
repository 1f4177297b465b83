use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::OwnedFd;
use std::thread;

use super::*;

fn reader(end: PipeReader) -> SequentialReader {
    SequentialReader::new("in", Arc::new(OwnedFd::from(end).into()))
}

fn writer(end: PipeWriter) -> SequentialWriter {
    SequentialWriter::new("out", Arc::new(OwnedFd::from(end).into()))
}

/// Many times what a pipe holds, so that both sides meet short transfers.
fn bytes() -> Vec<u8> {
    (0..1_000_003_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn round_trip(mut reader: SequentialReader, mut writer: SequentialWriter) {
    let sent = bytes();
    let got = thread::scope(|scope| {
        scope.spawn(move || {
            for piece in bytes().chunks(70_001) {
                writer.write_all(piece).unwrap();
            }
            assert_eq!(writer.offset(), 1_000_003);
        });
        let mut got = Vec::new();
        let mut buf = vec![0; 33_333];
        loop {
            let filled = reader.fill(&mut buf).unwrap();
            got.extend_from_slice(&buf[..filled]);
            if filled < buf.len() {
                break;
            }
        }
        assert_eq!(reader.fill(&mut buf).unwrap(), 0);
        got
    });
    assert_eq!(reader.offset(), 1_000_003);
    assert!(got == sent);
}

#[test]
fn a_pipe_fills_whole_buffers() {
    let (from, to) = pipe().unwrap();
    round_trip(reader(from), writer(to));
}

#[test]
fn a_non_blocking_pipe_is_waited_for() {
    let (from, to) = pipe().unwrap();
    for end in [rustix::fd::AsFd::as_fd(&from), rustix::fd::AsFd::as_fd(&to)] {
        rustix::fs::fcntl_setfl(end, rustix::fs::OFlags::NONBLOCK).unwrap();
    }
    round_trip(reader(from), writer(to));
}

#[test]
fn a_reader_that_left_is_told_from_a_failure() {
    let (from, to) = pipe().unwrap();
    drop(from);
    // More than a pipe holds: a process that another test is just starting may
    // keep the other end open a moment longer.
    let error = writer(to).write_all(&bytes()).unwrap_err();
    assert!(error.is_broken_pipe(), "{error}");

    let full = File::options().write(true).open("/dev/full").unwrap();
    let error = SequentialWriter::new("out", Arc::new(full)).write_all(b"x").unwrap_err();
    assert!(!error.is_broken_pipe());
    assert!(error.to_string().starts_with("out at byte 0: cannot be written: No space"), "{error}");
}

#[test]
fn a_read_that_fails_says_where() {
    let directory = File::open("/").unwrap();
    let error = SequentialReader::new("in", Arc::new(directory)).fill(&mut [0]).unwrap_err();
    assert_eq!(error.offset(), Some(0));
    assert!(error.to_string().starts_with("in at byte 0: cannot be read: "), "{error}");
}
