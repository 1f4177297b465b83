//! Files of more than 4 GiB, near the offsets where a number of 32 bits ends.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use cellway_fs::{
    Address, Change, Files, NetServer, OpenFile, OpenMode, PrivateServer, RamServer, Remote,
    Stretch, UnixServer, wait,
};
use proptest::prelude::*;
use rustix::fs::FallocateFlags;
use tempfile::TempDir;

use crate::harness::{BOTH, READ, Tree, get, may_wait, pattern, skip, watch};
use crate::remote::{PATIENCE, net_name, served};
use crate::unix::disk_dir;

const EDGE: u64 = 1 << 32;

/// The file's length at first: it holds nothing, so it takes no room.
const LEN: u64 = 5 << 30;

/// What is called for lies about these: where offsets and lengths change their size, and where
/// those would be that were cut to 32 bits.
const ABOUT: [u64; 5] = [0, LEN - EDGE, EDGE / 2, EDGE, LEN];

/// So far from them.
const NEAR: u64 = 100_000;

/// Longest reads and writes: several messages where the file is elsewhere.
const LONGEST: usize = 3 << 20;

#[derive(Clone, Debug)]
enum Call {
    Read(u64, usize),
    Write(u64, usize),
    /// Where the file's length says that it ends.
    Append(usize),
    SetLength(u64),
}

fn call() -> impl Strategy<Value = Call> {
    let at = || {
        let near = -(NEAR as i64)..NEAR as i64;
        (prop::sample::select(&ABOUT), near).prop_map(|(at, by)| at.saturating_add_signed(by))
    };
    let len = || prop_oneof![4 => 0..100usize, 4 => 0..200_000usize, 1 => LONGEST - 100..LONGEST];
    prop_oneof![
        3 => (at(), len()).prop_map(|(at, len)| Call::Read(at, len)),
        5 => (at(), len()).prop_map(|(at, len)| Call::Write(at, len)),
        2 => len().prop_map(Call::Append),
        1 => at().prop_map(Call::SetLength),
    ]
}

fn read(open: &dyn OpenFile, at: u64, len: usize) -> Vec<u8> {
    let (mut into, mut done) = (vec![9; len], 0);
    while done < len {
        match get(open.read(at + done as u64, &mut into[done..])).unwrap() {
            0 => break,
            count => done += count,
        }
    }
    into.truncate(done);
    into
}

fn write(open: &dyn OpenFile, at: u64, data: &[u8]) {
    let mut done = 0;
    while done < data.len() {
        done += get(open.write(at + done as u64, &data[done..])).unwrap();
    }
}

/// What a file of the system holds there.
fn reference(file: &fs::File, at: u64, len: usize) -> Vec<u8> {
    let len = file.metadata().unwrap().len().saturating_sub(at).min(len as u64);
    let mut into = vec![0; len as usize];
    file.read_exact_at(&mut into, at).unwrap();
    into
}

/// Does to the file `a` what is done to a file of the system.
fn run(tree: &Tree, calls: &[Call]) {
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(LEN).unwrap();
    let length = |length| Change { length: Some(length), ..Change::default() };
    if tree.walk("a").is_err() {
        tree.put("a", b"").unwrap();
        tree.wstat("a", &length(LEN)).unwrap();
    }
    let (node, open) = (tree.walk("a").unwrap(), tree.open("a", BOTH).unwrap());
    let bytes = pattern(calls.len() as u64, LONGEST + 64);
    for (number, call) in calls.iter().enumerate() {
        let data = |len: usize| &bytes[number..number + len];
        match *call {
            Call::Read(at, len) => {
                assert!(read(&*open, at, len) == reference(&file, at, len), "{call:?}");
            }
            Call::Write(at, len) => {
                write(&*open, at, data(len));
                file.write_all_at(data(len), at).unwrap();
            }
            Call::Append(len) => {
                let at = get(node.stat()).unwrap().length;
                write(&*open, at, data(len));
                file.write_all_at(data(len), at).unwrap();
            }
            Call::SetLength(len) => {
                get(node.wstat(&length(len))).unwrap();
                file.set_len(len).unwrap();
            }
        }
        let len = file.metadata().unwrap().len();
        assert_eq!(get(node.stat()).unwrap().length, len, "after {call:?}");
    }
    for at in ABOUT {
        let (at, len) = (at.saturating_sub(NEAR), LONGEST + 3 * NEAR as usize);
        assert!(read(&*open, at, len) == reference(&file, at, len), "about {at}");
    }
}

/// A folder with a file `a` in which nothing was written.
fn sparse() -> TempDir {
    let dir = disk_dir();
    fs::File::create(dir.path().join("a")).unwrap().set_len(LEN).unwrap();
    dir
}

fn unix(dir: &Path) -> Arc<UnixServer> {
    Arc::new(UnixServer::new(dir, false).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn on_this_machine(calls in prop::collection::vec(call(), 1..24)) {
        let _dog = watch();
        let dir = sparse();
        let private = PrivateServer::new(dir.path(), 1 << 30).unwrap();
        run(&Tree::of(&private), &calls);
        run(&Tree::of(&*unix(dir.path())), &calls);
        run(&Tree::of(&RamServer::new(1 << 30)), &calls);
    }

    #[test]
    fn elsewhere(calls in prop::collection::vec(call(), 1..24)) {
        let _dog = watch();
        may_wait(|| {
            let (dir, sockets) = (sparse(), TempDir::new().unwrap());
            let address = Address::unix(sockets.path().join("socket")).unwrap();
            let _serving = served(&address, unix(dir.path()));
            run(&Tree::of(&Remote::connect(&address, PATIENCE).unwrap()), &calls);
        });
    }

    #[test]
    fn by_the_name_of_their_server(calls in prop::collection::vec(call(), 1..24)) {
        let _dog = watch();
        may_wait(|| {
            let dir = sparse();
            let serving = served(&Address::tcp("127.0.0.1", 0).unwrap(), unix(dir.path()));
            let net = Tree::of(&NetServer::new(PATIENCE));
            let root = net.walk(&net_name(serving.address())).unwrap();
            run(&Tree(root), &calls);
        });
    }
}

#[test]
fn by_a_mapping_and_by_file_calls() {
    let _dog = watch();
    let dir = disk_dir();
    let path = dir.path().join("a");
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    // Room that is claimed and not written: only a file without holes is mapped.
    let len = EDGE + (2 << 20) + 77;
    if let Err(error) = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
        return skip("a mapped file of 4 GiB", &error.to_string());
    }
    let bytes = pattern(1, 1 << 20);
    file.write_all_at(&bytes, EDGE - (1 << 19)).unwrap();
    file.write_all_at(b"tail", len - 4).unwrap();
    file.write_all_at(b"head", 0).unwrap();
    let server = unix(dir.path());
    let open = Tree::of(&*server).open("a", READ).unwrap();
    let memory = open.memory().unwrap();
    assert!(matches!(memory.stretch(EDGE + 1), Stretch::Bytes { .. }));
    let sockets = TempDir::new().unwrap();
    let address = Address::unix(sockets.path().join("socket")).unwrap();
    let _serving = served(&address, unix(dir.path()));
    let remote = Arc::new(Remote::connect(&address, PATIENCE).unwrap());
    let files = Files::new("glenda").with("#U", server).unwrap().with("#far", remote).unwrap();
    for name in ["#U/a", "#far/a"] {
        let mut file = wait(files.open(name, OpenMode::READ)).unwrap();
        let mut into = vec![0; bytes.len()];
        for (at, from, count) in [(-(1 << 19), 0, 1 << 20), (-1, (1 << 19) - 1, 2), (0, 1 << 19, 9)]
        {
            let at = EDGE.saturating_add_signed(at);
            wait(file.seek(std::io::SeekFrom::Start(at))).unwrap();
            wait(file.read_exact(&mut into[..count])).unwrap();
            assert!(into[..count] == bytes[from..from + count], "{name} at {at}");
        }
        assert_eq!(wait(file.seek(std::io::SeekFrom::End(-4))).unwrap(), len - 4);
        assert_eq!(wait(file.read(&mut into)).unwrap(), 4);
        assert_eq!(&into[..4], b"tail");
        assert_eq!(wait(file.read(&mut into)).unwrap(), 0);
    }
}
