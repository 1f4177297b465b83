//! Many of everything.

use super::pipe::{Pipe, PipeTree};
use super::*;

/// Numbers that look random, the same from the same seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (number ^ (number >> 31)) % end
    }
}

const CLIENTS: u64 = 64;
const TAGS: u64 = 32;

/// Reads of a pipe on all tags, flushed or answered, at random: each request
/// has one reply, or none after its flush's.
fn reads_and_flushes(path: &Path, seed: u64) {
    let mut random = Random(seed);
    let mut client = Client::attached(UnixStream::connect(path).unwrap(), 8192);
    client.walk(1, "p");
    client.open(1, mode::READ_WRITE);
    let mut in_flight = [false; TAGS as usize];
    let (mut read, mut flushes) = (0, 0);
    for turn in 0..400 {
        let tag = random.below(TAGS) as u16;
        if in_flight[usize::from(tag)] {
            let flush = Tag(tag + 100);
            client.send(flush, Request::Flush { oldtag: Tag(tag) });
            // Whatever is answered before is answered, and then not any more.
            loop {
                let (to, reply) = Reply::decode(client.receive()).unwrap();
                if to == flush {
                    assert_eq!(reply, Reply::Flush, "seed {seed}, turn {turn}");
                    break;
                }
                assert!(matches!(reply, Reply::Read { .. }), "seed {seed}, turn {turn}: {reply:?}");
                assert!(std::mem::take(&mut in_flight[usize::from(to.0)]), "seed {seed}: {to:?}");
                read += 1;
            }
            in_flight[usize::from(tag)] = false;
            flushes += 1;
        } else {
            client.send(Tag(tag), Request::Read { fid: 1, offset: 0, count: 1 });
            in_flight[usize::from(tag)] = true;
        }
        if random.below(4) == 0 {
            client.send(Tag(99), Request::Write { fid: 1, offset: 0, data: b"xy" });
            loop {
                let (to, reply) = Reply::decode(client.receive()).unwrap();
                if to == Tag(99) {
                    assert_eq!(reply, Reply::Write { count: 2 }, "seed {seed}, turn {turn}");
                    break;
                }
                assert!(matches!(reply, Reply::Read { .. }), "seed {seed}, turn {turn}: {reply:?}");
                assert!(std::mem::take(&mut in_flight[usize::from(to.0)]), "seed {seed}: {to:?}");
                read += 1;
            }
        }
    }
    assert!(read > 0 && flushes > 0, "seed {seed}: {read} read, {flushes} flushed");
}

#[test]
fn sixty_four_clients_read_and_flush_on_thirty_two_tags() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let tree = Arc::new(PipeTree::default());
    let root = Arc::new(Pipe(Arc::clone(&tree)));
    let _serving = serve(&unix(dir.path(), "s"), root, ServeOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let path = &path;
            scope.spawn(move || reads_and_flushes(path, client));
        }
    });
}

#[test]
fn fids_come_back_when_they_are_clunked_and_end_cleanly_when_not() {
    let options = ServeOptions {
        client: ninep::Limits { fids: 1000, ..ninep::Limits::default() },
        ..ServeOptions::default()
    };
    let (stream, _connection) = Connection::pair(ram(), options).unwrap();
    let mut client = Client::attached(stream, 8192);
    let attach = |fid| Request::Attach { fid, afid: NOFID, uname: "u", aname: "" };
    for fid in 1..=65_536 {
        client.asks(Tag(1), attach(fid), |reply| matches!(reply, Reply::Attach { .. }));
        client.asks(Tag(1), Request::Clunk { fid }, |reply| *reply == Reply::Clunk);
    }
    // One is the root's.
    for fid in 1..1000 {
        client.asks(Tag(1), attach(fid), |reply| matches!(reply, Reply::Attach { .. }));
    }
    for fid in 1000..1100 {
        client.asks(
            Tag(1),
            attach(fid),
            |reply| matches!(reply, Reply::Error { ename } if ename.contains("clunk some")),
        );
    }
    client.asks(Tag(1), Request::Clunk { fid: 500 }, |reply| *reply == Reply::Clunk);
    client.asks(Tag(1), attach(1000), |reply| matches!(reply, Reply::Attach { .. }));
}

#[test]
fn a_large_directory_is_listed_without_loss() {
    const FILES: usize = 16_384;
    let root = Arc::new(RamServer::new(256 << 20));
    let (stream, _connection) = Connection::pair(root, ServeOptions::default()).unwrap();
    let mut client = Client::attached(stream, 8192);
    let copy = Request::Walk { fid: 0, newfid: 1, names: Names::none() };
    // Names of many lengths, in messages that are not waited for one by one.
    let name = |file: usize| format!("{file}-{}", "x".repeat(file % 61));
    for file in 0..FILES {
        client.send(Tag(1), copy);
        let (name, perm) = (name(file), 0o644);
        client.send(Tag(1), Request::Create { fid: 1, name: &name, perm, mode: mode::READ });
        client.send(Tag(1), Request::Clunk { fid: 1 });
        for _ in 0..3 {
            let (_, reply) = Reply::decode(client.receive()).unwrap();
            assert!(!matches!(reply, Reply::Error { .. }), "{name}: {reply:?}");
        }
    }
    for msize in [4096, 8192, 65_536] {
        let version = Request::Version { msize, version: "9P2000" };
        client.asks(Tag::NONE, version, |reply| matches!(reply, Reply::Version { .. }));
        let attach = Request::Attach { fid: 0, afid: NOFID, uname: "u", aname: "" };
        client.asks(Tag(0), attach, |reply| matches!(reply, Reply::Attach { .. }));
        client.open(0, mode::READ);
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            client.send(Tag(1), Request::Read { fid: 0, offset, count: u32::MAX });
            let (_, reply) = Reply::decode(client.receive()).unwrap();
            let Reply::Read { data: mut entries } = reply else { panic!("{reply:?}") };
            if entries.is_empty() {
                break;
            }
            offset += entries.len() as u64;
            while !entries.is_empty() {
                names.push(ninep::Stat::decode(&mut entries).unwrap().name.to_owned());
            }
        }
        let mut wanted: Vec<_> = (0..FILES).map(name).collect();
        wanted.sort();
        names.sort();
        assert!(names == wanted, "msize {msize}: {} of {FILES} entries", names.len());
    }
}
