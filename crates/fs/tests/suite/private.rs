//! `#R`: what is shared, what it takes, and what stays as it was.

use std::fs;
use std::sync::Arc;
use std::thread;

use cellway_fs::{Change, Kind, PrivateServer};

use crate::conformance::{Subject, conforms};
use crate::harness::{BOTH, READ, Tree, WRITE, content, get, kind, pattern, watch};
use crate::unix::disk_dir;

pub(crate) fn subject() -> Subject {
    let dir = disk_dir();
    let server = Arc::new(PrivateServer::new(dir.path(), 64 << 20).unwrap());
    Subject { server, _keep: Some(dir) }
}

#[test]
fn conforms_to_the_suite() {
    conforms(&subject);
}

#[test]
fn all_who_attach_see_the_same_and_the_disk_nothing() {
    let _dog = watch();
    let dir = disk_dir();
    fs::write(dir.path().join("a"), pattern(1, 200_000)).unwrap();
    let server = &PrivateServer::new(dir.path(), 1 << 20).unwrap();
    let other = PrivateServer::new(dir.path(), 1 << 20).unwrap();
    let before = Tree::of(server).open("a", READ).unwrap();
    thread::scope(|scope| {
        for block in 0..8_u64 {
            scope.spawn(move || {
                let open = Tree::of(server).open("a", BOTH).unwrap();
                // Blocks of 10000 bytes share pages.
                get(open.write(block * 10_000, &[block as u8; 10_000])).unwrap();
            });
        }
    });
    let mut expected = pattern(1, 200_000);
    for (block, bytes) in expected.chunks_mut(10_000).take(8).enumerate() {
        bytes.fill(block as u8);
    }
    assert!(Tree::of(server).content("a").unwrap() == expected);
    assert!(content(&*before).unwrap() == expected);
    assert!(Tree::of(&other).content("a").unwrap() == pattern(1, 200_000));
    assert!(fs::read(dir.path().join("a")).unwrap() == pattern(1, 200_000));
}

#[test]
fn memory_is_limited_and_given_back() {
    const MAX: u64 = 1 << 20;
    let _dog = watch();
    let dir = disk_dir();
    fs::write(dir.path().join("long"), pattern(1, 4 << 20)).unwrap();
    let server = PrivateServer::new(dir.path(), MAX).unwrap();
    let tree = Tree::of(&server);
    assert!(tree.content("long").unwrap() == pattern(1, 4 << 20));
    assert_eq!(server.memory_bytes(), 0, "what is only read is not kept");
    // A byte in a page takes the page, and no more.
    let open = tree.open("long", BOTH).unwrap();
    get(open.write(3 << 20, b"x")).unwrap();
    assert!((65_536..70_000).contains(&server.memory_bytes()), "{}", server.memory_bytes());
    // As much as there is room for, and what is there stays.
    let written = get(open.write(0, &vec![7; 2 << 20])).unwrap();
    assert!(written > 900_000 && written < MAX as usize, "{written}");
    let error = get(open.write(2 << 20, &[7])).unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(error.to_string().contains("may take 1048576 bytes"), "{error}");
    let mut expected = pattern(1, 4 << 20);
    expected[..written].fill(7);
    expected[3 << 20] = b'x';
    assert!(content(&*open).unwrap() == expected);
    // Cut, it gives its pages back; removed, the rest, once it is closed.
    tree.wstat("long", &Change { length: Some(1), ..Change::default() }).unwrap();
    assert!(server.memory_bytes() < 70_000, "{}", server.memory_bytes());
    tree.remove("long").unwrap();
    drop(open);
    assert!(server.memory_bytes() < 3000, "{}", server.memory_bytes());
    // Short files take little; names count.
    let made = (0..).take_while(|number| tree.put(&format!("short-{number}"), b"x").is_ok());
    let made = made.count();
    assert!(made > 150, "{made}");
    assert!(server.memory_bytes() <= MAX);
    // The last was made, and found no room for its byte, or was not made.
    for number in 0..made + 1 {
        let _ = tree.remove(&format!("short-{number}"));
    }
    assert!(server.memory_bytes() < 3000, "{}", server.memory_bytes());
    let made = (0..10_000).take_while(|n| tree.create(&format!("empty-{n}"), 0o644, READ).is_ok());
    assert!((500..10_000).contains(&made.count()), "names take memory");
    assert_eq!(kind(tree.make_dir("one-more")), Kind::NoSpace);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn without_memory_it_is_read_and_changes_nothing() {
    let _dog = watch();
    let dir = disk_dir();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/a"), "content").unwrap();
    let server = PrivateServer::new(dir.path(), 0).unwrap();
    let tree = Tree::of(&server);
    let before = tree.stat("d/a").unwrap();
    let open = tree.open("d/a", WRITE).unwrap();
    assert_eq!(kind(get(open.write(0, b"x"))), Kind::NoSpace);
    assert_eq!(kind(tree.open("d/a", crate::harness::CUT)), Kind::NoSpace);
    assert_eq!(kind(tree.create("d/b", 0o644, READ)), Kind::NoSpace);
    assert_eq!(kind(tree.remove("d/a")), Kind::NoSpace);
    for change in [
        Change { name: Some("b".into()), ..Change::default() },
        Change { length: Some(0), ..Change::default() },
        Change { mode: Some(0o600), ..Change::default() },
    ] {
        assert_eq!(kind(tree.wstat("d/a", &change)), Kind::NoSpace);
    }
    assert_eq!(tree.stat("d/a").unwrap(), before);
    assert_eq!(tree.content("d/a").unwrap(), b"content");
    assert_eq!(tree.names("d").unwrap(), ["a"]);
    assert_eq!(server.memory_bytes(), 0);
}

#[test]
fn what_is_removed_here_and_on_the_disk_is_gone() {
    let _dog = watch();
    let dir = disk_dir();
    fs::write(dir.path().join("a"), "content").unwrap();
    let server = PrivateServer::new(dir.path(), 1 << 20).unwrap();
    let tree = Tree::of(&server);
    let node = tree.walk("a").unwrap();
    fs::remove_file(dir.path().join("a")).unwrap();
    assert_eq!(content(&*get(node.open(READ)).unwrap()).unwrap(), b"content");
    get(node.remove()).unwrap();
    assert_eq!(kind(tree.walk("a")), Kind::NotFound);
    tree.put("a", b"new").unwrap();
    assert_eq!(tree.content("a").unwrap(), b"new");
}

#[test]
fn what_was_cut_does_not_come_back() {
    let _dog = watch();
    let dir = disk_dir();
    let server = PrivateServer::new(dir.path(), 1 << 20).unwrap();
    let tree = Tree::of(&server);
    fs::write(dir.path().join("a"), pattern(1, 200_000)).unwrap();
    let open = tree.open("a", BOTH).unwrap();
    get(open.write(70_000, &[7; 1000])).unwrap();
    let length = |length| Change { length: Some(length), ..Change::default() };
    for (cut, long) in [(150_000, 160_000), (70_500, 71_500), (10, 200_000)] {
        tree.wstat("a", &length(cut)).unwrap();
        let mut expected = content(&*open).unwrap();
        assert_eq!(expected.len() as u64, cut);
        tree.wstat("a", &length(long)).unwrap();
        expected.resize(long as usize, 0);
        assert!(content(&*open).unwrap() == expected, "{cut}");
    }
}

#[test]
fn directories_below_one_another_end_somewhere() {
    let _dog = watch();
    let dir = disk_dir();
    let server = PrivateServer::new(dir.path(), 64 << 20).unwrap();
    let mut node = Tree::of(&server).0;
    let mut depth = 0;
    let error = loop {
        match get(node.create("d", crate::harness::DIRECTORY | 0o755, READ)) {
            Ok((below, _)) => node = below,
            Err(error) => break error,
        }
        depth += 1;
    };
    assert!(error.to_string().contains("1000 directories"), "{depth}: {error}");
    // The last to let go is the deepest.
    drop(server);
    drop(node);
}
