use std::collections::BTreeMap;
use std::future::Future as _;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Condvar, Mutex, mpsc};
use std::task::{Context, Waker};
use std::thread;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use ninep::{Qid, Qids, Stat, Tag, VERSION, kind};
use pollster::block_on;
use proptest::prelude::*;
use tempfile::TempDir;

mod bytes;

use super::*;
use crate::server::{Change, OpenFile as _, OpenMode};

const READ_WRITE: OpenMode = OpenMode { read: true, write: true, execute: false, truncate: false };

/// Ends the process if the test that holds the result hangs.
fn watch() -> mpsc::Sender<()> {
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let (leash, called_off) = mpsc::channel();
    thread::spawn(move || {
        let patience = Duration::from_secs(300);
        if called_off.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Not by `eprintln`, which the test harness would swallow.
            let _ = writeln!(std::io::stderr(), "{name} hangs: nothing for {patience:?}");
            std::process::abort();
        }
    });
    leash
}

/// One file, `f`, that some server has.
#[derive(Default)]
struct Model {
    content: Vec<u8>,
    /// Whether it is a stream: it tells no length.
    is_stream: bool,
    fids: BTreeMap<Fid, bool>,
    flushed: usize,
    most_waiting: usize,
}

fn read_frame(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let mut frame = vec![0; 4];
    stream.read_exact(&mut frame).ok()?;
    frame.resize(ninep::frame_bytes(&frame).unwrap(), 0);
    stream.read_exact(&mut frame[4..]).ok()?;
    Some(frame)
}

fn write_frame(stream: &mut UnixStream, tag: Tag, reply: Reply<'_>) {
    let mut frame = Vec::new();
    reply.encode(tag, &mut frame).unwrap();
    // The client may have gone.
    let _ = stream.write_all(&frame);
}

/// A socket, and its address.
fn socket() -> (TempDir, UnixListener, Address) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    (dir, listener, Address::unix(path).unwrap())
}

/// Takes one client and agrees on a version.
fn accept(listener: &UnixListener, msize: u32) -> UnixStream {
    let (mut stream, _) = listener.accept().unwrap();
    let asked = read_frame(&mut stream).unwrap();
    assert!(matches!(Request::decode(&asked).unwrap().1, Request::Version { .. }));
    write_frame(&mut stream, Tag::NONE, Reply::Version { msize, version: VERSION });
    stream
}

fn qid(is_file: bool) -> Qid {
    let kind = if is_file { 0 } else { (kind::DIRECTORY >> 24) as u8 };
    Qid { kind, version: 0, path: is_file.into() }
}

impl Model {
    fn answer(&mut self, tag: Tag, request: Request<'_>, stream: &mut UnixStream) {
        let part = |offset: u64, len: usize, content: &[u8]| {
            let start = content.len().min(offset as usize);
            start..content.len().min(start + len)
        };
        let mut text = Vec::new();
        let reply = match request {
            Request::Attach { fid, .. } => {
                self.fids.insert(fid, false);
                Reply::Attach { qid: qid(false) }
            }
            Request::Walk { fid, newfid, names } => {
                let is_file = self.fids[&fid];
                match &names[..] {
                    [] => _ = self.fids.insert(newfid, is_file),
                    ["f"] if !is_file => _ = self.fids.insert(newfid, true),
                    _ => {
                        let ename = "file does not exist";
                        return write_frame(stream, tag, Reply::Error { ename });
                    }
                }
                Reply::Walk { qids: Qids::of(&vec![qid(true); names.len()]).unwrap() }
            }
            Request::Open { .. } => Reply::Open { qid: qid(true), iounit: 0 },
            Request::Read { offset, count, .. } if self.is_stream => {
                assert_eq!(offset, 0, "one after the other");
                text = self.content.drain(..self.content.len().min(count as usize)).collect();
                Reply::Read { data: &text }
            }
            Request::Read { offset, count, .. } => {
                Reply::Read { data: &self.content[part(offset, count as usize, &self.content)] }
            }
            Request::Write { data, .. } if self.is_stream => {
                self.content.extend(data);
                Reply::Write { count: data.len() as u32 }
            }
            Request::Write { offset, data, .. } => {
                let end = offset as usize + data.len();
                self.content.resize(end.max(self.content.len()), 0);
                self.content[offset as usize..end].copy_from_slice(data);
                Reply::Write { count: data.len() as u32 }
            }
            Request::Stat { .. } => {
                let length = if self.is_stream { 0 } else { self.content.len() as u64 };
                Reply::Stat { stat: Stat { length, name: "f", ..Stat::DONT_TOUCH } }
            }
            Request::Clunk { fid } => {
                self.fids.remove(&fid).expect("a fid that is there");
                Reply::Clunk
            }
            Request::Remove { fid } => {
                self.fids.remove(&fid).expect("a fid that is there");
                let ename = "permission denied: not here";
                return write_frame(stream, tag, Reply::Error { ename });
            }
            Request::Wstat { .. } => Reply::Wstat,
            other => unreachable!("{other:?}"),
        };
        write_frame(stream, tag, reply);
        drop(text);
    }
}

/// Serves the model to one client, whose requests are answered in an order that
/// `order` picks, once `least` of them wait (or all that will come).
fn serve(
    listener: &UnixListener,
    model: &Mutex<Model>,
    (msize, least): (u32, usize),
    mut order: impl FnMut(usize) -> usize + Send,
) {
    let mut stream = accept(listener, msize);
    let mut replies = stream.try_clone().unwrap();
    let waiting = (Mutex::new((Vec::<Vec<u8>>::new(), false)), Condvar::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Some(frame) = read_frame(&mut stream) {
                let (tag, request) = Request::decode(&frame).unwrap();
                let mut queue = waiting.0.lock().unwrap();
                if let Request::Flush { oldtag } = request {
                    queue.0.retain(|frame| ninep::frame_tag(frame) != Some(oldtag));
                    model.lock().unwrap().flushed += 1;
                    write_frame(&mut stream, tag, Reply::Flush);
                } else {
                    queue.0.push(frame);
                }
                waiting.1.notify_all();
            }
            waiting.0.lock().unwrap().1 = true;
            waiting.1.notify_all();
        });
        loop {
            let mut queue = waiting.0.lock().unwrap();
            while queue.0.len() < least && !queue.1 {
                queue = waiting.1.wait(queue).unwrap();
            }
            if queue.0.is_empty() {
                return;
            }
            let mut model = model.lock().unwrap();
            model.most_waiting = model.most_waiting.max(queue.0.len());
            let place = order(queue.0.len());
            let frame = queue.0.swap_remove(place);
            drop(queue);
            let (tag, request) = Request::decode(&frame).unwrap();
            model.answer(tag, request, &mut replies);
        }
    });
}

/// Runs `user` against a model, which is returned with what it became.
fn with_model(model: Model, msize: u32, seed: u64, user: impl FnOnce(&Remote)) -> Model {
    let _dog = watch();
    let (_dir, listener, address) = socket();
    let model = Mutex::new(model);
    let mut state = seed | 1;
    let order = move |count: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as usize % count
    };
    thread::scope(|scope| {
        scope.spawn(|| serve(&listener, &model, (msize, 1), order));
        let remote = Remote::connect(&address, Remote::PATIENCE).unwrap();
        user(&remote);
    });
    model.into_inner().unwrap()
}

async fn open(remote: &Remote) -> RemoteFile {
    let root = remote.root("u", "").await.unwrap();
    root.walk_to(&["f"]).await.unwrap().open_file(READ_WRITE).await.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn long_reads_and_writes_are_those_of_the_file(
        content in prop::collection::vec(any::<u8>(), 0..20_000),
        data in prop::collection::vec(any::<u8>(), 0..20_000),
        at in 0_u64..25_000, from in 0_u64..25_000, len in 0_usize..25_000,
        msize in 256_u32..3000, seed: u64,
    ) {
        let mut expected = content.clone();
        let end = at as usize + data.len();
        if !data.is_empty() {
            expected.resize(end.max(expected.len()), 0);
            expected[at as usize..end].copy_from_slice(&data);
        }
        let model = Model { content, ..Model::default() };
        let model = with_model(model, msize, seed, |remote| block_on(async {
            let file = open(remote).await;
            assert_eq!(file.write_at(at, &data).await.unwrap(), data.len());
            let mut into = vec![0; len];
            let read = file.read_at(from, &mut into).await.unwrap();
            let start = expected.len().min(from as usize);
            assert_eq!(&into[..read], &expected[start..expected.len().min(start + len)]);
        }));
        // An empty file grows by an empty write at an offset; which is no matter here.
        if !data.is_empty() {
            prop_assert_eq!(model.content, expected);
        }
    }

    #[test]
    fn a_stream_is_read_and_written_in_order(
        data in prop::collection::vec(any::<u8>(), 1..20_000), msize in 256_u32..3000, seed: u64,
    ) {
        let model = Model { is_stream: true, ..Model::default() };
        with_model(model, msize, seed, |remote| block_on(async {
            let file = open(remote).await;
            assert_eq!(file.write_at(0, &data).await.unwrap(), data.len());
            let (mut read, mut into) = (Vec::<u8>::new(), vec![0; data.len()]);
            while read.len() < data.len() {
                let len = file.read_at(0, &mut into).await.unwrap();
                read.extend(&into[..len]);
            }
            assert_eq!(read, data);
        }));
    }
}

#[test]
fn fids_are_given_back_and_errors_have_a_kind() {
    let model = with_model(Model::default(), 8192, 1, |remote| {
        block_on(async {
            let root = remote.root("u", "").await.unwrap();
            let file = root.walk_to(&["f"]).await.unwrap();
            let name = file.stat().await.unwrap().name;
            assert_eq!(name, "f");
            let error = root.walk_to(&["g"]).await.unwrap_err();
            assert_eq!(error.kind(), Kind::NotFound);
            let address = remote.address();
            assert_eq!(error.to_string(), format!("{address}/g: file does not exist"));
            let error = file.remove().await.unwrap_err();
            assert_eq!(error.kind(), Kind::Permission);
            assert_eq!(error.to_string(), format!("{address}/f: permission denied: not here"));
            file.wstat(&Change::default()).await.unwrap();
            drop(file.open(READ_WRITE).await.unwrap());
            let long = "x".repeat(9000);
            assert_eq!(root.walk_to(&[&long]).await.unwrap_err().kind(), Kind::BadName);
            assert_eq!(
                open(remote).await.entries(0, 1).await.unwrap_err().kind(),
                Kind::NotDirectory
            );
            // Clunks are on their way before this is.
            drop((root, file));
            remote.root("u", "").await.unwrap();
        });
    });
    // The last one only: its clunk may have been overtaken by the end of the connection.
    assert!(model.fids.len() <= 1, "{:?}", model.fids);
}

#[test]
fn a_dropped_call_is_flushed_and_the_others_go_on() {
    let _dog = watch();
    let (_dir, listener, address) = socket();
    thread::scope(|scope| {
        let (told, tell) = mpsc::channel();
        scope.spawn(move || {
            let mut stream = accept(&listener, 8192);
            let mut read = None;
            while let Some(frame) = read_frame(&mut stream) {
                let (tag, request) = Request::decode(&frame).unwrap();
                match request {
                    Request::Read { .. } => read = Some(tag),
                    Request::Flush { oldtag } => {
                        assert_eq!(Some(oldtag), read);
                        // Answered late, before the flush is: nobody minds.
                        write_frame(&mut stream, oldtag, Reply::Read { data: b"late" });
                        write_frame(&mut stream, tag, Reply::Flush);
                        told.send(()).unwrap();
                    }
                    other => Model {
                        fids: [(0, false), (1, true), (2, true)].into(),
                        ..Model::default()
                    }
                    .answer(tag, other, &mut stream),
                }
            }
        });
        let remote = Remote::connect(&address, Remote::PATIENCE).unwrap();
        let file = block_on(open(&remote));
        let mut into = [0; 8];
        {
            let mut read = std::pin::pin!(file.read_at(0, &mut into));
            assert!(read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        tell.recv().unwrap();
        assert_eq!(block_on(file.write_at(0, b"abc")).unwrap(), 3);
        assert_eq!(into, [0; 8]);
    });
}

#[test]
fn more_calls_than_may_be_under_way_wait_for_room() {
    let _dog = watch();
    let (_dir, listener, address) = socket();
    let model = Mutex::new(Model::default());
    let (max, calls) = (usize::from(ninep::REQUESTS_MAX), 3000);
    thread::scope(|scope| {
        let (model, listener) = (&model, &listener);
        scope.spawn(move || serve(listener, model, (8192, 1), |count| count - 1));
        let remote = Remote::connect(&address, Remote::PATIENCE).unwrap();
        let file = block_on(open(&remote));
        // Nothing is answered until all that may be under way is.
        let held = model.lock().unwrap();
        let all: FuturesUnordered<_> =
            (0..calls).map(|_| async { file.write_at(0, b"x").await.unwrap() }).collect();
        let mut all = std::pin::pin!(all.collect::<Vec<_>>());
        assert!(all.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(held);
        assert_eq!(block_on(all).len(), calls);
    });
    let most = model.into_inner().unwrap().most_waiting;
    assert!(most <= max, "{most}");
}

#[test]
fn a_lost_connection_fails_every_call() {
    let _dog = watch();
    let garbage: &[u8] = &[7, 0, 0, 0, 9, 0, 0];
    let huge: &[u8] = &[0xFF; 4];
    let wrong_tag: &[u8] = &[7, 0, 0, 0, 127, 99, 0];
    for (sent, said) in [
        (&b""[..], "the server closed the connection"),
        (garbage, "no message has type 9"),
        (huge, "a message of 4294967295 bytes"),
        (wrong_tag, "answered tag 99, which asks for nothing"),
    ] {
        let (_dir, listener, address) = socket();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut stream = accept(&listener, 8192);
                let mut model = Model::default();
                while let Some(frame) = read_frame(&mut stream) {
                    let (tag, request) = Request::decode(&frame).unwrap();
                    if let Request::Stat { .. } = request {
                        let _ = stream.write_all(sent);
                        if sent.is_empty() {
                            return;
                        }
                    } else {
                        model.answer(tag, request, &mut stream);
                    }
                }
            });
            let remote = Remote::connect(&address, Remote::PATIENCE).unwrap();
            let root = block_on(remote.root("u", "")).unwrap();
            let (one, two) = block_on(futures::future::join(root.stat(), root.stat()));
            for error in [one.unwrap_err(), two.unwrap_err(), block_on(root.stat()).unwrap_err()] {
                assert_eq!(error.kind(), Kind::Closed, "{error}");
                let text = error.to_string();
                assert!(text.contains(said) && text.contains("; connect again"), "{text}");
            }
            assert!(remote.is_lost());
            assert!(block_on(remote.root("u", "")).is_err());
        });
    }
}

#[test]
fn what_is_no_server_is_told() {
    let _dog = watch();
    let patience = Duration::from_millis(50);
    let (dir, listener, address) = socket();
    let connect = |address: &Address| Remote::connect(address, patience).unwrap_err().to_string();
    // Nobody answers.
    let error = connect(&address);
    assert_eq!(error, format!("{address}: no answer within 50ms; is that a 9P2000 server?"));
    drop(listener);
    assert!(connect(&address).contains("nobody listens there"));
    let missing = Address::unix(dir.path().join("no")).unwrap();
    assert!(connect(&missing).contains("there is no server"));
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    thread::scope(|scope| {
        scope.spawn(move || {
            for answer in ["HTTP/1.0 400 Bad Request\r\n\r\n", ""] {
                let (mut stream, _) = other.accept().unwrap();
                stream.read_exact(&mut [0; 19]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let address = Address::tcp("127.0.0.1", port).unwrap();
        let connect = || Remote::connect(&address, Remote::PATIENCE).unwrap_err().to_string();
        let error = connect();
        assert!(
            error.contains("the server sent a message of") && error.contains("9P2000"),
            "{error}"
        );
        assert!(connect().contains("closed before the session began"));
    });
}

#[test]
fn programs_on_accelerators_call_it() {
    let content: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
    let model = Model { content: content.clone(), ..Model::default() };
    with_model(model, 8192, 3, |remote| {
        let file = &block_on(open(remote));
        let config = accel::Config { threads: 4, ..accel::Config::default() };
        let content = &content;
        accel::run(&config, |_cx, at| async move {
            let mut into = vec![0; 20_000];
            let offset = at.thread * 20_000;
            let len = file.read_at(offset as u64, &mut into).await.unwrap();
            assert_eq!(into[..len], content[offset..offset + len]);
        })
        .unwrap();
    });
}

#[test]
fn errors_keep_their_kind() {
    for kind in [
        Kind::NotFound,
        Kind::Permission,
        Kind::Exists,
        Kind::NotDirectory,
        Kind::IsDirectory,
        Kind::NotEmpty,
        Kind::BadName,
        Kind::BadMode,
        Kind::Busy,
        Kind::NoSpace,
        Kind::TooLarge,
        Kind::Interrupted,
        Kind::Closed,
        Kind::Unsupported,
        Kind::Io,
    ] {
        assert_eq!(refused("f", &kind.to_string()), FsError::new(kind, "f"));
        // Whatever else is said.
        let said = format!("{kind}: x: not found, not empty");
        assert_eq!(refused("f", &said).to_string(), format!("f: {said}"));
        assert!(kind == Kind::Io || refused("f", &said).kind() == kind, "{said}");
    }
    for (said, kind) in [
        ("No such file or directory", Kind::NotFound),
        ("Operation not permitted", Kind::Permission),
        ("directory entry not found", Kind::NotFound),
        ("'x' file exists", Kind::Exists),
        ("phase error -- cannot happen", Kind::Io),
    ] {
        assert_eq!(refused("f", said), FsError::because(kind, "f", said));
    }
}
