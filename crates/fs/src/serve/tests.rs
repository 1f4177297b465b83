use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use ninep::{Fid, NOFID, Names, Reply, Request, Tag, mode};

use super::conversation::Conversation;
use super::*;
use crate::error::Kind;
use crate::ram::RamServer;

mod conform;
mod many;
mod pipe;

pub(crate) use self::conform::conforms;

/// Instead of a hang.
const LATE: Duration = Duration::from_secs(30);

fn ram() -> Arc<dyn FileServer> {
    Arc::new(RamServer::new(64 << 20))
}

/// The client's end, which waits no longer than for [`LATE`].
struct Client<S> {
    stream: S,
    bytes: Vec<u8>,
}

impl Client<UnixStream> {
    fn of(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(LATE)).unwrap();
        stream.set_write_timeout(Some(LATE)).unwrap();
        Self { stream, bytes: Vec::new() }
    }

    /// Attached to the root by fid 0.
    fn attached(stream: UnixStream, msize: u32) -> Self {
        let mut client = Self::of(stream);
        let version = Request::Version { msize, version: "9P2000" };
        client.asks(Tag::NONE, version, |reply| matches!(reply, Reply::Version { .. }));
        let attach = Request::Attach { fid: 0, afid: NOFID, uname: "u", aname: "" };
        client.asks(Tag(0), attach, |reply| matches!(reply, Reply::Attach { .. }));
        client
    }
}

impl<S: Read + Write> Client<S> {
    fn send(&mut self, tag: Tag, request: Request<'_>) {
        self.bytes.clear();
        request.encode(tag, &mut self.bytes).unwrap();
        self.stream.write_all(&self.bytes).unwrap();
    }

    /// The next message.
    fn try_receive(&mut self) -> std::io::Result<&[u8]> {
        let mut size = [0; 4];
        self.stream.read_exact(&mut size)?;
        self.bytes = size.to_vec();
        self.bytes.resize(u32::from_le_bytes(size) as usize, 0);
        self.stream.read_exact(&mut self.bytes[4..])?;
        Ok(&self.bytes)
    }

    fn receive(&mut self) -> &[u8] {
        self.try_receive().unwrap()
    }

    #[track_caller]
    fn asks(&mut self, tag: Tag, request: Request<'_>, is: impl Fn(&Reply<'_>) -> bool) -> &[u8] {
        self.send(tag, request);
        let shown = format!("{request:?}");
        self.receive();
        let (to, reply) = Reply::decode(&self.bytes).unwrap();
        assert!(to == tag && is(&reply), "{shown}: {to:?} {reply:?}");
        &self.bytes
    }

    #[track_caller]
    fn walk(&mut self, newfid: Fid, name: &str) {
        let walk = Request::Walk { fid: 0, newfid, names: Names::of(&[name]).unwrap() };
        self.asks(Tag(1), walk, |reply| matches!(reply, Reply::Walk { .. }));
    }

    #[track_caller]
    fn open(&mut self, fid: Fid, mode: u8) {
        let open = Request::Open { fid, mode };
        self.asks(Tag(1), open, |reply| matches!(reply, Reply::Open { .. }));
    }

    /// Whether nothing comes but the end of the stream.
    fn ends(&mut self) -> bool {
        let end = self.stream.read(&mut [0; 1]);
        // What it sent may not have been read.
        let reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        matches!(&end, Ok(0)) || end.as_ref().is_err_and(reset)
    }

    #[track_caller]
    fn is_hung_up(&mut self) {
        assert!(self.ends());
    }
}

#[test]
fn errors_say_their_kind_and_what_is_more_to_say() {
    let (stream, _connection) = Connection::pair(ram(), ServeOptions::default()).unwrap();
    let mut client = Client::attached(stream, 8192);
    let attach = Request::Attach { fid: 1, afid: NOFID, uname: "u", aname: "none" };
    let ename = "file does not exist: none: #r has one tree, without a name";
    client.asks(Tag(1), attach, |reply| *reply == Reply::Error { ename });
    let walk = Request::Walk { fid: 0, newfid: 1, names: Names::of(&["none"]).unwrap() };
    client.asks(Tag(1), walk, |reply| *reply == Reply::Error { ename: "file does not exist" });
}

fn unix(directory: &Path, name: &str) -> Address {
    Address::unix(directory.join(name)).unwrap()
}

fn refused(at: &Address, options: ServeOptions) -> FsError {
    match serve(at, ram(), options) {
        Ok(_) => panic!("{at} is served"),
        Err(error) => error,
    }
}

#[test]
fn a_socket_is_its_owner_s_and_goes_with_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let at = unix(dir.path(), "s");
    let serving = serve(&at, ram(), ServeOptions::default()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(serving.address(), &at);
    let mut client = Client::attached(UnixStream::connect(&path).unwrap(), 8192);
    // One that is served is not taken away from.
    let error = refused(&at, ServeOptions::default());
    assert_eq!(error.kind(), Kind::Busy, "{error}");
    client.asks(Tag(1), Request::Stat { fid: 0 }, |reply| matches!(reply, Reply::Stat { .. }));
    drop(serving);
    client.is_hung_up();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn what_a_dead_server_left_is_taken_over_and_other_files_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let at = unix(dir.path(), "s");
    // It has a name, and nobody listens.
    drop(UnixListener::bind(dir.path().join("s")).unwrap());
    let serving = serve(&at, ram(), ServeOptions::default()).unwrap();
    Client::attached(UnixStream::connect(dir.path().join("s")).unwrap(), 8192);
    // Another's socket of that name stays when this server goes.
    std::fs::remove_file(dir.path().join("s")).unwrap();
    let other = UnixListener::bind(dir.path().join("s")).unwrap();
    drop(serving);
    UnixStream::connect(dir.path().join("s")).unwrap();
    drop(other);
    std::fs::write(dir.path().join("file"), "kept").unwrap();
    let error = refused(&unix(dir.path(), "file"), ServeOptions::default());
    assert_eq!(error.kind(), Kind::Exists, "{error}");
    assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"kept");
}

#[test]
fn other_machines_are_let_in_only_if_that_is_said() {
    let any = Address::tcp("0.0.0.0", 0).unwrap();
    let error = refused(&any, ServeOptions::default());
    assert_eq!(error.kind(), Kind::Permission, "{error}");
    assert!(error.to_string().contains("take 127.0.0.1"), "{error}");
    serve(&any, ram(), ServeOptions { remote: true, ..ServeOptions::default() }).unwrap();
}

#[test]
fn a_port_is_served_too() {
    let at = Address::tcp("127.0.0.1", 0).unwrap();
    let serving = serve(&at, ram(), ServeOptions::default()).unwrap();
    let Address::Tcp { host, port } = serving.address() else { panic!("no port") };
    let stream = TcpStream::connect((host.as_str(), *port)).unwrap();
    stream.set_read_timeout(Some(LATE)).unwrap();
    let mut client = Client { stream, bytes: Vec::new() };
    let version = Request::Version { msize: 8192, version: "9P2000" };
    client.asks(Tag::NONE, version, |reply| matches!(reply, Reply::Version { msize: 8192, .. }));
    let attach = Request::Attach { fid: 0, afid: NOFID, uname: "u", aname: "" };
    client.asks(Tag(0), attach, |reply| matches!(reply, Reply::Attach { .. }));
    drop(serving);
    client.is_hung_up();
}

#[test]
fn clients_beyond_the_limit_are_hung_up_until_one_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let handshake = Duration::from_secs(3600);
    let options = ServeOptions { connections: 2, handshake, ..ServeOptions::default() };
    let _serving = serve(&unix(dir.path(), "s"), ram(), options).unwrap();
    let connect = || UnixStream::connect(&path).unwrap();
    let (first, _second) = (Client::attached(connect(), 8192), Client::attached(connect(), 8192));
    Client::of(connect()).is_hung_up();
    drop(first);
    // Until its thread has ended.
    let end = Instant::now() + LATE;
    loop {
        assert!(Instant::now() < end);
        let mut third = Client::of(connect());
        let version = Request::Version { msize: 8192, version: "9P2000" };
        version.encode(Tag::NONE, &mut third.bytes).unwrap();
        if third.stream.write_all(&third.bytes).is_ok()
            && third.stream.read(&mut [0; 19]).is_ok_and(|read| read > 0)
        {
            break;
        }
    }
}

#[test]
fn users_have_names_that_can_be_kept() {
    let trees = vec![("a".to_owned(), ram())];
    let exports = Arc::new(crate::Exports::new(trees).unwrap());
    let (stream, _connection) = Connection::pair(exports.clone(), ServeOptions::default()).unwrap();
    let mut client = Client::attached(stream, 1 << 20);
    let long = "u".repeat(256);
    for uname in [&*long, "a/b", ".."] {
        let attach = Request::Attach { fid: 1, afid: NOFID, uname, aname: "" };
        client.asks(Tag(1), attach, |reply| matches!(reply, Reply::Error { .. }));
        assert!(pollster::block_on(exports.attach(uname, "")).is_err());
    }
    for (fid, uname) in [(1, &long[1..]), (2, "")] {
        let attach = Request::Attach { fid, afid: NOFID, uname, aname: "" };
        client.asks(Tag(1), attach, |reply| matches!(reply, Reply::Attach { .. }));
    }
}

#[test]
fn a_lock_that_others_keep_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let serving = serve(&unix(dir.path(), "s"), ram(), ServeOptions::default()).unwrap();
    let directory = std::fs::File::open(dir.path()).unwrap();
    directory.lock().unwrap();
    let error = serve(&unix(dir.path(), "t"), ram(), ServeOptions::default()).err().unwrap();
    assert!(error.to_string().contains("keeps a lock on the socket's directory"), "{error}");
    drop(serving);
    assert!(!dir.path().join("s").exists() && !dir.path().join("t").exists());
}

#[test]
fn clients_that_say_nothing_or_half_of_it_are_hung_up() {
    let soon = Duration::from_millis(50);
    let options = ServeOptions { handshake: soon, ..ServeOptions::default() };
    let (stream, _connection) = Connection::pair(ram(), options).unwrap();
    Client::of(stream).is_hung_up();

    let options = ServeOptions { frame: soon, ..ServeOptions::default() };
    let (stream, _connection) = Connection::pair(ram(), options).unwrap();
    let mut client = Client::attached(stream, 8192);
    // A message in two parts is one.
    let mut message = Vec::new();
    Request::Stat { fid: 0 }.encode(Tag(5), &mut message).unwrap();
    client.stream.write_all(&message[..3]).unwrap();
    client.stream.write_all(&message[3..]).unwrap();
    assert_eq!(ninep::frame_tag(client.receive()), Some(Tag(5)));
    client.stream.write_all(&message[..10]).unwrap();
    client.is_hung_up();
}

#[test]
fn who_does_not_read_holds_up_nobody_else_and_is_asked_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let _serving = serve(&unix(dir.path(), "s"), ram(), ServeOptions::default()).unwrap();
    let connect = || UnixStream::connect(&path).unwrap();
    let mut slow = Client::attached(connect(), 1 << 20);
    let create = Request::Create { fid: 0, name: "f", perm: 0o666, mode: mode::READ_WRITE };
    slow.asks(Tag(1), create, |reply| matches!(reply, Reply::Create { .. }));
    let data = vec![7; (1 << 20) - 24];
    let write = Request::Write { fid: 0, offset: 0, data: &data };
    slow.asks(Tag(1), write, |reply| matches!(reply, Reply::Write { .. }));
    // Until the server takes no more, whose replies nobody reads.
    slow.stream.set_nonblocking(true).unwrap();
    let mut asked = 0_u16;
    let mut full = false;
    while !full && asked < 60_000 {
        let mut message = Vec::new();
        let read = Request::Read { fid: 0, offset: 0, count: u32::MAX };
        read.encode(Tag(asked), &mut message).unwrap();
        match slow.stream.write(&message) {
            Ok(len) => {
                assert_eq!(len, message.len());
                asked += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                full = true;
            }
        }
    }
    assert!(full);
    let mut other = Client::attached(connect(), 8192);
    other.walk(1, "f");
    // All of it comes, in its order.
    slow.stream.set_nonblocking(false).unwrap();
    for tag in 0..asked.min(20) {
        let reply = slow.receive();
        assert_eq!(Reply::decode(reply).unwrap(), (Tag(tag), Reply::Read { data: &data }));
    }
}
