use std::fs::{self, File};

use super::numbers::Identity;
use super::*;
use crate::server::OpenMode;

const READ: OpenMode = OpenMode { read: true, write: false, execute: false, truncate: false };

#[test]
fn a_path_is_not_used_again_though_the_clock_stands_still() {
    let seen = step::look(tempfile::tempfile().unwrap(), "").unwrap();
    let (numbers, identity) = (Numbers::new(), Identity::of(&seen));
    let mut paths = Vec::new();
    for _ in 0..100 {
        paths.push(numbers.path(identity));
        assert_eq!(numbers.path(identity), paths[paths.len() - 1], "while it is there");
        numbers.removed(identity);
    }
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), 100);
}

#[test]
fn removed_files_are_remembered_up_to_a_limit() {
    let (numbers, dir) = (Numbers::new(), tempfile::tempdir().unwrap());
    let identities: Vec<_> = (0..3)
        .map(|number| {
            let file = File::create(dir.path().join(number.to_string())).unwrap();
            Identity::of(&step::look(file, "").unwrap())
        })
        .collect();
    for identity in identities {
        for number in 0..numbers::REMOVED_MAX as u64 {
            numbers.removed(identity.with_inode(number));
            assert!(numbers.removed_count() <= numbers::REMOVED_MAX);
        }
    }
}

#[test]
fn a_write_is_another_version_though_the_clock_stands_still() {
    let seen = step::look(tempfile::tempfile().unwrap(), "").unwrap();
    let numbers = Numbers::new();
    let before = numbers.qid(7, &seen);
    assert_eq!(numbers.qid(7, &seen), before);
    numbers.wrote(7);
    assert_ne!(numbers.qid(7, &seen).version, before.version);
    assert_eq!(numbers.qid(7, &seen).path, before.path);
}

#[test]
fn descriptors_end_with_an_error_and_for_this_server_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/a"), "content").unwrap();
    // The root, /proc/self/fd, d, a, and a when it is open.
    let server = UnixServer::with(dir.path(), false, Seats::up_to(5)).unwrap();
    let node = server.root().step("d").unwrap().step("a").unwrap();
    let open = node.open_file(READ).unwrap();
    let both = OpenMode { write: true, ..READ };
    for refused in [
        server.root().step("d").map(drop),
        node.open_file(READ).map(drop),
        server.root().make("new", 0o644, both).map(drop),
    ] {
        let told = refused.unwrap_err().to_string();
        assert!(told.contains("5 files") && told.contains("ulimit -n"), "{told}");
    }
    // What is open goes on, and so do others.
    let mut into = [0; 7];
    assert_eq!(open.read_at(0, &mut into).unwrap(), 7);
    assert!(UnixServer::new(dir.path(), false).unwrap().root().step("d").is_ok());
    // One short of a file's two: nothing is made by halves.
    drop(open);
    assert!(server.root().make("new", 0o644, both).is_err());
    assert!(!dir.path().join("new").exists());
    drop(node);
    server.root().make("new", 0o644, both).unwrap();
    for _ in 0..100 {
        let node = server.root().step("d").unwrap().step("a").unwrap();
        assert_eq!(node.open_file(READ).unwrap().read_at(0, &mut into).unwrap(), 7);
    }
}

#[test]
fn a_failed_step_of_a_change_undoes_those_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    fs::write(&path, "content").unwrap();
    let server = UnixServer::new(dir.path(), false).unwrap();
    let node = server.root().step("a").unwrap();
    // Renamed away behind the server's back: the last step but one fails.
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::rename(&path, dir.path().join("d/a")).unwrap();
    let before = node.info().unwrap();
    let change = crate::server::Change {
        name: Some("b".into()),
        length: Some(1),
        mode: Some(0o600),
        mtime: Some(5),
        gid: None,
    };
    assert_eq!(wstat::apply(&node, &change).unwrap_err().kind(), Kind::NotFound);
    let after = node.info().unwrap();
    assert_eq!((after.mode, after.mtime, after.length), (before.mode, before.mtime, 7));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn what_is_answered_by_9p_is_what_the_table_says() {
    use std::cell::RefCell;

    use crate::private::PrivateServer;
    use crate::serve::tests::conforms;

    let kept = RefCell::new(Vec::new());
    let folder = || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        kept.borrow_mut().push(dir);
        path
    };
    conforms("files", || Arc::new(UnixServer::new(&folder(), false).unwrap()));
    conforms("files", || Arc::new(PrivateServer::new(&folder(), 64 << 20).unwrap()));
}
