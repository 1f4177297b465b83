//! `#r` against a list of what was done to a file, and its tree by hand.

use proptest::prelude::*;

use super::*;
use crate::memory::Stretch;
use crate::server::Node;

const READ_WRITE: OpenMode = OpenMode { read: true, write: true, execute: false, truncate: false };
const READ: OpenMode = OpenMode { read: true, write: false, execute: false, truncate: false };

fn wait<T>(answer: Answer<'_, T>) -> Result<T, FsError> {
    pollster::block_on(answer)
}

fn root(server: &RamServer, user: &str) -> Arc<dyn Node> {
    wait(server.attach(user, "")).expect("it has a root")
}

fn file(server: &RamServer) -> (Arc<dyn Node>, Arc<dyn OpenFile>) {
    wait(root(server, "ann").create("file", 0o644, READ_WRITE)).expect("there is room")
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    Cut(u64),
}

/// What a file holds at `offset` after `steps`, and its length.
fn expected(steps: &[Step], offset: u64, len: usize) -> (Vec<u8>, u64) {
    let (mut bytes, mut length) = (vec![0_u8; len], 0_u64);
    for step in steps {
        match step {
            Step::Write(at, data) => {
                for (index, byte) in data.iter().enumerate() {
                    let place = (at + index as u64).checked_sub(offset).map(|place| place as usize);
                    if let Some(known) = place.and_then(|place| bytes.get_mut(place)) {
                        *known = *byte;
                    }
                }
                length = if data.is_empty() { length } else { length.max(at + data.len() as u64) };
            }
            Step::Cut(to) => {
                let kept = to.saturating_sub(offset).min(len as u64) as usize;
                bytes[kept..].fill(0);
                length = *to;
            }
        }
    }
    bytes.truncate(length.saturating_sub(offset).min(len as u64) as usize);
    (bytes, length)
}

/// Places around the ends of segments, and far away.
fn place() -> impl Strategy<Value = u64> {
    let near = prop::sample::select(vec![
        0,
        4096,
        65_536,
        196_608,
        458_752,
        1 << 20,
        134_152_192,
        201_261_056,
        1 << 40,
    ]);
    (near, 0_u64..10_000).prop_map(|(near, more)| (near + more).saturating_sub(5000))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let data = prop::collection::vec(any::<u8>(), 0..9000);
    let step = prop_oneof![
        4 => (place(), data).prop_map(|(at, data)| Step::Write(at, data)),
        1 => place().prop_map(Step::Cut),
    ];
    prop::collection::vec(step, 1..12)
}

fn apply(node: &Arc<dyn Node>, open: &Arc<dyn OpenFile>, step: &Step) {
    match step {
        Step::Write(at, data) => {
            assert_eq!(wait(open.write(*at, data)), Ok(data.len()));
        }
        Step::Cut(to) => {
            let change = Change { length: Some(*to), ..Change::default() };
            wait(node.wstat(&change)).expect("it may be cut");
        }
    }
}

proptest! {
    #[test]
    fn a_file_holds_what_was_written(
        steps in steps(), looks in prop::collection::vec((place(), 0_usize..20_000), 4),
        huge in any::<bool>(),
    ) {
        let room = 64 << 20;
        let server =
            if huge { RamServer::in_huge_pages(room) } else { RamServer::new(room) };
        let (node, open) = file(&server);
        for (index, step) in steps.iter().enumerate() {
            let version = open.qid().version;
            apply(&node, &open, step);
            let done = &steps[..=index];
            let changed = !matches!(step, Step::Write(_, data) if data.is_empty());
            prop_assert_eq!(changed, open.qid().version != version);
            prop_assert_eq!(wait(node.stat()).unwrap().length, expected(done, 0, 0).1);
            for (offset, len) in looks.iter().copied().chain(match step {
                Step::Write(at, data) => [(at.saturating_sub(1), data.len() + 2)],
                Step::Cut(to) => [(to.saturating_sub(3), 9000)],
            }) {
                let mut seen = vec![7; len];
                let count = wait(open.read(offset, &mut seen)).unwrap();
                let wanted = expected(done, offset, len).0;
                prop_assert!(seen[..count] == wanted[..], "at {} after {:?}", offset, done);
            }
        }
        drop(open);
        wait(node.remove()).unwrap();
        drop(node);
        prop_assert_eq!(server.memory_bytes(), 0);
    }
}

#[test]
fn memory_is_bounded_and_comes_back() {
    let server = RamServer::new(1 << 20);
    let (node, open) = file(&server);
    let data = vec![1; 300_000];
    let mut written = 0;
    let error = loop {
        match wait(open.write(written, &data)) {
            Ok(count) => written += count as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!((900_000..1 << 20).contains(&written), "{written}");
    assert!(server.memory_bytes() <= 1 << 20);
    // A hole takes no memory, what is cut off gives it back.
    wait(node.wstat(&Change { length: Some(10), ..Change::default() })).expect("it may be cut");
    assert!(server.memory_bytes() < 16 << 10, "{}", server.memory_bytes());
    assert_eq!(wait(open.write(1 << 40, b"far")), Ok(3));
    assert!(server.memory_bytes() < 512 << 10, "{}", server.memory_bytes());
    assert_eq!(wait(open.write(u64::MAX, b"x")).map_err(|error| error.kind()), Err(Kind::TooLarge));
    // Files without bytes are bounded too.
    let root = root(&server, "ann");
    let full =
        (0..10_000).find_map(|number| wait(root.create(&number.to_string(), 0o644, READ)).err());
    assert_eq!(full.map(|error| error.kind()), Some(Kind::NoSpace));
}

#[test]
fn a_removed_file_that_is_open_keeps_its_bytes() {
    let server = RamServer::new(1 << 20);
    let (node, open) = file(&server);
    wait(open.write(0, b"still here")).expect("there is room");
    let memory = open.memory().expect("it lies in memory");
    let generation = memory.generation();
    wait(node.remove()).expect("it is ann's");
    assert_ne!(memory.generation(), generation);
    let mut seen = [0; 10];
    assert_eq!(wait(open.read(0, &mut seen)), Ok(10));
    assert_eq!(&seen, b"still here");
    assert_eq!(wait(node.stat()).map_err(|error| error.kind()), Err(Kind::NotFound));
    let error = wait(root(&server, "ann").walk("file")).err().map(|error| error.kind());
    assert_eq!(error, Some(Kind::NotFound));
    // Its number is never used again.
    let (other, _) = wait(root(&server, "ann").create("file", 0o644, READ)).expect("there is room");
    assert_ne!(wait(other.stat()).unwrap().qid.path, open.qid().path);
    drop((open, memory));
    assert!(server.memory_bytes() < 4096);
}

#[test]
fn what_was_copied_while_the_file_was_cut_does_not_count() {
    let server = RamServer::new(8 << 20);
    let (node, open) = file(&server);
    wait(open.write(0, &[0xAA; 100])).unwrap();
    let memory = open.memory().expect("it lies in memory");
    let Stretch::Bytes { region, at, len_bytes: 100, generation } = memory.stretch(0) else {
        panic!("100 bytes were written");
    };
    let mut seen = [1; 100];
    region.drain(at, &mut seen).unwrap();
    assert!(seen == [0xAA; 100] && memory.counts(generation, 0, &seen));
    wait(node.wstat(&Change { length: Some(50), ..Change::default() })).unwrap();
    region.drain(at, &mut seen).unwrap();
    assert!(seen[50..] == [0; 50] && !memory.counts(generation, 0, &seen));
    assert!(matches!(memory.stretch(50), Stretch::End));
}

#[test]
fn reads_see_no_half_of_a_cut() {
    let server = RamServer::new(8 << 20);
    let (node, open) = file(&server);
    let full = vec![0xAA; 200_000];
    wait(open.write(0, &full)).expect("there is room");
    std::thread::scope(|scope| {
        let cutter = scope.spawn(|| {
            for _ in 0..3000 {
                wait(node.wstat(&Change { length: Some(0), ..Change::default() })).unwrap();
                wait(open.write(0, &full)).unwrap();
            }
        });
        while !cutter.is_finished() {
            let mut seen = vec![0; 200_000];
            let count = wait(open.read(0, &mut seen)).unwrap();
            assert!(seen[..count].iter().all(|byte| *byte == 0xAA), "zeros that nobody wrote");
        }
    });
}

#[test]
fn directories_list_their_entries_once_whatever_comes_and_goes() {
    let server = RamServer::new(1 << 20);
    let root = root(&server, "ann");
    for name in ["c", "a", "d", "b", "e"] {
        wait(root.create(name, 0o644, READ)).expect("there is room");
    }
    let open = wait(root.open(READ)).expect("it is everybody's");
    let names = |from, max| -> Vec<String> {
        wait(open.entries(from, max)).unwrap().into_iter().map(|info| info.name).collect()
    };
    assert_eq!(names(0, 2), ["a", "b"]);
    wait(wait(root.walk("a")).unwrap().remove()).unwrap();
    wait(wait(root.walk("c")).unwrap().remove()).unwrap();
    wait(root.create("aa", 0o644, READ)).unwrap();
    assert_eq!(names(2, 10), ["d", "e"]);
    assert_eq!(names(4, 10), Vec::<String>::new());
    let again = wait(root.open(READ)).unwrap();
    let names: Vec<_> =
        wait(again.entries(0, 10)).unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["aa", "b", "d", "e"]);
}

#[test]
fn modes_say_who_may_do_what() {
    let server = RamServer::new(1 << 20);
    let (ann, bob) = (root(&server, "ann"), root(&server, "bob"));
    let kind = |result: Result<(), FsError>| result.err().map(|error| error.kind());
    wait(ann.create("own", 0o640, READ)).unwrap();
    let (anns, bobs) = (wait(ann.walk("own")).unwrap(), wait(bob.walk("own")).unwrap());
    assert!(wait(anns.open(READ_WRITE)).is_ok());
    assert_eq!(kind(wait(bobs.open(READ)).map(drop)), Some(Kind::Permission));
    let mode = |mode| Change { mode: Some(mode), ..Change::default() };
    assert_eq!(kind(wait(bobs.wstat(&mode(0o666)))), Some(Kind::Permission));
    wait(anns.wstat(&mode(0o604))).unwrap();
    assert!(wait(bobs.open(READ)).is_ok());
    let truncate = OpenMode { truncate: true, ..READ };
    assert_eq!(kind(wait(bobs.open(truncate)).map(drop)), Some(Kind::Permission));
    let execute = OpenMode { execute: true, ..OpenMode::default() };
    assert_eq!(kind(wait(anns.open(execute)).map(drop)), Some(Kind::Permission));
    // What a file was opened for counts, not what its mode says later.
    let open = wait(bobs.open(READ)).unwrap();
    wait(anns.wstat(&mode(0))).unwrap();
    assert_eq!(wait(open.read(0, &mut [0; 4])), Ok(0));
    assert_eq!(kind(wait(open.write(0, b"x")).map(drop)), Some(Kind::BadMode));
    // A directory of somebody else's.
    let (dir, _) = wait(ann.create("dir", ninep::kind::DIRECTORY | 0o755, READ)).unwrap();
    wait(dir.create("file", 0o666, READ)).unwrap();
    let bobs = wait(bob.walk("dir")).unwrap();
    assert_eq!(kind(wait(bobs.create("new", 0o666, READ)).map(drop)), Some(Kind::Permission));
    assert_eq!(kind(wait(wait(bobs.walk("file")).unwrap().remove())), Some(Kind::Permission));
    assert_eq!(kind(wait(dir.remove())), Some(Kind::NotEmpty));
    assert_eq!(kind(wait(dir.open(READ_WRITE)).map(drop)), Some(Kind::IsDirectory));
    // A directory's mode limits those of what is made in it.
    let (inner, _) = wait(dir.create("inner", ninep::kind::DIRECTORY | 0o777, READ)).unwrap();
    assert_eq!(wait(inner.stat()).unwrap().mode, ninep::kind::DIRECTORY | 0o755);
}

#[test]
fn a_change_is_made_whole_or_not_at_all() {
    let server = RamServer::new(1 << 20);
    let (node, open) = file(&server);
    wait(open.write(0, b"12345")).unwrap();
    wait(root(&server, "ann").create("other", 0o644, READ)).unwrap();
    let before = wait(node.stat()).unwrap();
    let both = Change { name: Some("other".into()), length: Some(2), ..Change::default() };
    assert_eq!(wait(node.wstat(&both)).map_err(|error| error.kind()), Err(Kind::Exists));
    assert_eq!(wait(node.stat()).unwrap(), before);
    for name in ["", ".", "..", "a/b", "a\0b", &"x".repeat(256)] {
        let change = Change { name: Some(name.into()), length: Some(2), ..Change::default() };
        assert_eq!(wait(node.wstat(&change)).map_err(|error| error.kind()), Err(Kind::BadName));
        let made = wait(root(&server, "ann").create(name, 0o644, READ)).err();
        assert_eq!(made.map(|error| error.kind()), Some(Kind::BadName));
    }
    let all = Change {
        name: Some("new".into()),
        length: Some(2),
        mode: Some(0o600),
        mtime: Some(7),
        gid: Some("ann".into()),
    };
    wait(node.wstat(&all)).unwrap();
    let after = wait(node.stat()).unwrap();
    let known = (after.name.as_str(), after.length, after.mode, after.mtime, after.gid.as_str());
    assert_eq!(known, ("new", 2, 0o600, 7, "ann"));
    assert_eq!(wait(wait(root(&server, "ann").walk("new")).unwrap().stat()).unwrap(), after);
}

#[test]
fn appends_of_many_threads_are_all_there() {
    let server = RamServer::new(4 << 20);
    let append = ninep::kind::APPEND | 0o666;
    let (node, open) = wait(root(&server, "ann").create("log", append, READ_WRITE)).unwrap();
    std::thread::scope(|scope| {
        for own in 0..4_u8 {
            let open = &open;
            scope.spawn(move || {
                for _ in 0..500 {
                    assert_eq!(wait(open.write(0, &[own; 100])), Ok(100));
                }
            });
        }
    });
    let mut seen = vec![0; 200_001];
    assert_eq!(wait(open.read(0, &mut seen)), Ok(200_000));
    let mut counts = [0; 4];
    for line in seen[..200_000].chunks(100) {
        assert!(line.iter().all(|byte| *byte == line[0]), "two lines in one");
        counts[usize::from(line[0])] += 1;
    }
    assert_eq!(counts, [500; 4]);
    // It is not cut by an open.
    wait(node.open(OpenMode { truncate: true, ..READ_WRITE })).unwrap();
    assert_eq!(wait(node.stat()).unwrap().length, 200_000);
}

#[test]
fn an_exclusive_file_is_open_once() {
    let server = RamServer::new(1 << 20);
    let exclusive = ninep::kind::EXCLUSIVE | 0o666;
    let (node, open) = wait(root(&server, "ann").create("lock", exclusive, READ)).unwrap();
    assert_eq!(wait(node.open(READ)).err().map(|error| error.kind()), Some(Kind::Busy));
    drop(open);
    assert!(wait(node.open(READ)).is_ok());
}
