use std::task::Context;
use std::thread;

use pollster::block_on;
use proptest::prelude::*;

use super::*;

const READ: OpenMode = OpenMode { read: true, write: false, execute: false, truncate: false };
const WRITE: OpenMode = OpenMode { read: false, write: true, ..READ };

/// A pipe that holds so many bytes, and its two ends.
fn pipe(room_bytes: usize) -> (PipeServer, Arc<dyn OpenFile>, Arc<dyn OpenFile>) {
    let server = PipeServer::new(room_bytes);
    let (node, write) = block_on(server.create("pipe", 0o600, WRITE)).unwrap();
    let read = block_on(node.open(READ)).unwrap();
    (server, read, write)
}

fn is_pending<T>(answer: &mut Answer<'_, T>) -> bool {
    answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

proptest! {
    #[test]
    fn what_goes_in_comes_out_in_order(
        data: Vec<u8>, room in 1_usize..64, writes in 1_usize..40, reads in 1_usize..40,
    ) {
        let (_server, read, write) = pipe(room);
        let sent = data.clone();
        let writer = thread::spawn(move || {
            for part in sent.chunks(writes) {
                let mut part = part;
                while !part.is_empty() {
                    part = &part[block_on(write.write(0, part)).unwrap()..];
                }
            }
        });
        let (mut got, mut part) = (Vec::<u8>::new(), vec![0; reads]);
        loop {
            match block_on(read.read(0, &mut part)).unwrap() {
                0 => break,
                len => got.extend(&part[..len]),
            }
        }
        writer.join().unwrap();
        prop_assert_eq!(got, data);
    }
}

#[test]
fn a_pipe_is_bounded_and_both_ends_wait() {
    let (server, read, write) = pipe(3);
    let mut into = [0; 8];
    assert!(is_pending(&mut read.read(0, &mut into)));
    assert_eq!(block_on(write.write(0, b"abcde")).unwrap(), 3);
    assert!(is_pending(&mut write.write(0, b"de")));
    assert_eq!(block_on(read.read(0, &mut into[..2])).unwrap(), 2);
    assert_eq!(block_on(write.write(0, b"de")).unwrap(), 2);
    drop(write);
    let watch = server.watch("pipe").unwrap();
    assert!(is_pending(&mut (Box::pin(watch.finished()) as Answer<'_, ()>)));
    assert_eq!(block_on(read.read(0, &mut into)).unwrap(), 3);
    assert_eq!(&into[..3], b"cde");
    assert_eq!(block_on(read.read(0, &mut into)).unwrap(), 0);
    drop(read);
    block_on(watch.finished()).unwrap();
    assert_eq!(server.watch("tube").err().unwrap().kind(), Kind::NotFound);
}

#[test]
fn a_read_that_is_called_off_takes_nothing() {
    let (_server, read, write) = pipe(8);
    let mut into = [0; 8];
    {
        let mut called_off = read.read(0, &mut into);
        assert!(is_pending(&mut called_off));
        block_on(write.write(0, b"abc")).unwrap();
    }
    assert_eq!(block_on(read.read(0, &mut into)).unwrap(), 3);
}

#[test]
fn who_writes_to_nobody_is_told() {
    let (server, read, write) = pipe(8);
    block_on(write.write(0, b"a")).unwrap();
    drop(read);
    assert_eq!(block_on(write.write(0, b"a")).unwrap_err().kind(), Kind::Closed);
    let watch = server.watch("pipe").unwrap();
    assert_eq!(block_on(watch.finished()).unwrap_err().kind(), Kind::Closed);
}

#[test]
fn who_goes_without_closing_breaks_the_pipe() {
    let (server, read, write) = pipe(3);
    block_on(write.write(0, b"ab")).unwrap();
    write.lost();
    drop(write);
    let mut into = [0; 8];
    assert_eq!(block_on(read.read(0, &mut into)).unwrap(), 2);
    assert_eq!(block_on(read.read(0, &mut into)).unwrap_err().kind(), Kind::Closed);
    let (server_too, read, write) = pipe(3);
    let watch = server_too.watch("pipe").unwrap();
    block_on(write.write(0, b"abc")).unwrap();
    let mut waits = write.write(0, b"d");
    assert!(is_pending(&mut waits));
    server_too.break_off();
    assert_eq!(block_on(waits).unwrap_err().kind(), Kind::Closed);
    read.lost();
    drop((read, server));
    assert_eq!(block_on(watch.finished()).unwrap_err().kind(), Kind::Closed);
}

#[test]
fn those_called_off_are_forgotten() {
    let (server, read, _write) = pipe(8);
    for _ in 0..100 {
        assert!(is_pending(&mut read.read(0, &mut [0])));
    }
    let pipe = server.pipes().get("pipe").unwrap().clone();
    assert_eq!(pipe.lock().waiting.len(), 0);
}

#[test]
fn a_reader_waits_for_the_first_writer() {
    let server = PipeServer::new(8);
    let (node, read) = block_on(server.create("pipe", 0o600, READ)).unwrap();
    let mut into = [0; 8];
    assert!(is_pending(&mut read.read(0, &mut into)));
    drop(block_on(node.open(WRITE)).unwrap());
    assert_eq!(block_on(read.read(0, &mut into)).unwrap(), 0);
}

#[test]
fn names_are_made_once_renamed_and_removed() {
    let (server, ..) = pipe(8);
    let exists = block_on(server.create("pipe", 0o600, READ)).err().unwrap();
    assert_eq!(exists.kind(), Kind::Exists);
    let made = block_on(server.create("dir", kind::DIRECTORY | 0o700, READ)).err().unwrap();
    assert_eq!(made.kind(), Kind::Unsupported);
    let node = block_on(server.walk("pipe")).unwrap();
    let change = Change { name: Some("tube".into()), ..Change::default() };
    block_on(node.wstat(&change)).unwrap();
    let names = |server: &PipeServer| {
        let some = block_on(server.entries(0, 9)).unwrap();
        some.into_iter().map(|info| info.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&server), ["tube"]);
    let long = Change { length: Some(1), name: Some("x".into()), ..Change::default() };
    assert_eq!(block_on(node.wstat(&long)).unwrap_err().kind(), Kind::Unsupported);
    block_on(node.remove()).unwrap();
    assert_eq!(block_on(node.remove()).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(names(&server), [""; 0]);
}
