//! Reads that wait.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, atomic::AtomicUsize, atomic::Ordering::SeqCst};
use std::task::{Poll, Waker};

use ninep::{Qid, kind};

use super::*;
use crate::error::FsError;
use crate::server::{Answer, Info, Node, OpenFile, OpenMode, now};

/// A tree whose one file, `p`, gives what was written into it, and waits for it.
#[derive(Default)]
pub(super) struct PipeTree {
    bytes: Mutex<VecDeque<u8>>,
    readers: Mutex<Vec<Waker>>,
    /// Reads that wait now.
    pub(super) waiting: AtomicUsize,
}

impl PipeTree {
    pub(super) fn write(&self, data: &[u8]) {
        self.bytes.lock().unwrap().extend(data);
        self.readers.lock().unwrap().drain(..).for_each(Waker::wake);
    }
}

#[derive(Clone)]
struct PipeNode {
    tree: Arc<PipeTree>,
    root: bool,
}

/// Served as `Arc<Pipe>`, so that tests hold the same tree.
pub(super) struct Pipe(pub(super) Arc<PipeTree>);

impl FileServer for Pipe {
    fn attach<'a>(&'a self, _: &'a str, _: &'a str) -> Answer<'a, Arc<dyn Node>> {
        now(Ok(Arc::new(PipeNode { tree: Arc::clone(&self.0), root: true })))
    }
}

impl Node for PipeNode {
    fn stat(&self) -> Answer<'_, Info> {
        let mode = if self.root { kind::DIRECTORY | 0o777 } else { 0o666 };
        now(Ok(Info {
            qid: self.qid(),
            mode,
            atime: 0,
            mtime: 0,
            length: 0,
            name: if self.root { "/" } else { "p" }.into(),
            uid: "u".into(),
            gid: "u".into(),
            muid: String::new(),
        }))
    }

    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        if name == "p" {
            return now(Ok(Arc::new(PipeNode { root: false, ..self.clone() })));
        }
        now(Err(FsError::new(Kind::NotFound, name)))
    }

    fn open(&self, _: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        now(Ok(Arc::new(self.clone())))
    }
}

/// Counts as long as it is there.
struct Wait<'a>(&'a AtomicUsize);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl OpenFile for PipeNode {
    fn qid(&self) -> Qid {
        let kind = if self.root { kind::of(kind::DIRECTORY) } else { 0 };
        Qid { kind, version: 0, path: self.root.into() }
    }

    fn read<'a>(&'a self, _: u64, into: &'a mut [u8]) -> Answer<'a, usize> {
        Box::pin(async move {
            self.tree.waiting.fetch_add(1, SeqCst);
            let _wait = Wait(&self.tree.waiting);
            let read = poll_fn(|cx| {
                let mut bytes = self.tree.bytes.lock().unwrap();
                if bytes.is_empty() {
                    self.tree.readers.lock().unwrap().push(cx.waker().clone());
                    return Poll::Pending;
                }
                let len = bytes.len().min(into.len());
                into.iter_mut().zip(bytes.drain(..len)).for_each(|(to, from)| *to = from);
                Poll::Ready(len)
            });
            Ok(read.await)
        })
    }

    fn write<'a>(&'a self, _: u64, data: &'a [u8]) -> Answer<'a, usize> {
        self.tree.write(data);
        now(Ok(data.len()))
    }
}

/// A client with the pipe opened as fid 1.
fn opened() -> (Client<UnixStream>, Connection, Arc<PipeTree>) {
    let tree = Arc::new(PipeTree::default());
    let root = Arc::new(Pipe(Arc::clone(&tree)));
    let (stream, connection) = Connection::pair(root, ServeOptions::default()).unwrap();
    let mut client = Client::attached(stream, 8192);
    client.walk(1, "p");
    client.open(1, mode::READ_WRITE);
    (client, connection, tree)
}

const READ: Request<'static> = Request::Read { fid: 1, offset: 0, count: 3 };

#[test]
fn a_read_that_waits_is_answered_after_later_requests() {
    let (mut client, _connection, tree) = opened();
    client.send(Tag(5), READ);
    client.asks(Tag(6), Request::Stat { fid: 1 }, |reply| matches!(reply, Reply::Stat { .. }));
    // By another thread, then by the client itself.
    let writer = std::thread::spawn(move || tree.write(b"abc"));
    assert_eq!(Reply::decode(client.receive()), Ok((Tag(5), Reply::Read { data: b"abc" })));
    writer.join().unwrap();
    client.send(Tag(5), READ);
    client.send(Tag(6), Request::Write { fid: 1, offset: 0, data: b"de" });
    let mut replies: Vec<_> = (0..2).map(|_| client.receive().to_vec()).collect();
    replies.sort_by_key(|reply| ninep::frame_tag(reply));
    let replies: Vec<_> = replies.iter().map(|reply| Reply::decode(reply).unwrap().1).collect();
    assert_eq!(replies, [Reply::Read { data: b"de" }, Reply::Write { count: 2 }]);
}

#[test]
fn a_read_that_was_woken_for_nothing_is_woken_again() {
    let (mut client, _connection, tree) = opened();
    client.send(Tag(5), READ);
    client.send(Tag(6), READ);
    client.asks(Tag(7), Request::Stat { fid: 1 }, |reply| matches!(reply, Reply::Stat { .. }));
    // Each wakes all that wait.
    let mut tags = [b"abc", b"def"].map(|data| {
        tree.write(data);
        let (tag, reply) = Reply::decode(client.receive()).unwrap();
        assert_eq!(reply, Reply::Read { data });
        // When this is answered, all that were woken have been polled.
        client.asks(Tag(7), Request::Stat { fid: 1 }, |reply| matches!(reply, Reply::Stat { .. }));
        tag
    });
    tags.sort();
    assert_eq!(tags, [Tag(5), Tag(6)]);
}

#[test]
fn a_flushed_read_takes_nothing_and_its_tag_is_free() {
    let (mut client, _connection, tree) = opened();
    client.send(Tag(5), READ);
    for flush in [7, 8, 9] {
        let request = Request::Flush { oldtag: Tag(if flush == 9 { 8 } else { 5 }) };
        client.asks(Tag(flush), request, |reply| *reply == Reply::Flush);
        assert_eq!(tree.waiting.load(SeqCst), 0);
    }
    tree.write(b"abc");
    client.asks(Tag(5), READ, |reply| *reply == Reply::Read { data: b"abc" });
}

#[test]
fn what_waits_is_called_off_by_a_version_and_when_the_client_leaves() {
    let (mut client, connection, tree) = opened();
    client.send(Tag(5), READ);
    client.send(Tag(6), READ);
    let version = Request::Version { msize: 8192, version: "9P2000" };
    client.asks(Tag::NONE, version, |reply| matches!(reply, Reply::Version { .. }));
    assert_eq!(tree.waiting.load(SeqCst), 0);
    let attach = Request::Attach { fid: 0, afid: NOFID, uname: "u", aname: "" };
    client.asks(Tag(5), attach, |reply| matches!(reply, Reply::Attach { .. }));
    client.walk(1, "p");
    client.open(1, mode::READ);
    client.send(Tag(5), READ);
    client.asks(Tag(6), Request::Stat { fid: 1 }, |reply| matches!(reply, Reply::Stat { .. }));
    assert_eq!(tree.waiting.load(SeqCst), 1);
    drop(client);
    let end = Instant::now() + LATE;
    while !connection.is_finished() {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    assert_eq!(tree.waiting.load(SeqCst), 0);
}
