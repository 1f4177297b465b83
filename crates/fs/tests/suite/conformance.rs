//! What holds of every file server on which files can be made.

use std::sync::Arc;

use cellway_fs::{Change, FileServer, Kind, OpenMode};

use crate::harness::{
    BOTH, CUT, DIRECTORY, READ, Tree, WRITE, content, entries, get, is_elsewhere, kind,
    obeying_permissions, pattern, watch,
};

/// An empty tree that may be written to, and what keeps it there.
pub(crate) struct Subject {
    pub(crate) server: Arc<dyn FileServer>,
    pub(crate) _keep: Option<tempfile::TempDir>,
}

/// A name, and what is checked on an empty tree.
type Check = (&'static str, fn(&Tree));

/// Runs the suite on trees that `make` gives.
pub(crate) fn conforms(make: &(dyn Fn() -> Subject + Sync)) {
    let _dog = watch();
    let checks: [Check; 13] = [
        ("names", names),
        ("create", create),
        ("permissions of what is made", made_permissions),
        ("open modes", modes),
        ("permissions at an open", permissions),
        ("offsets", offsets),
        ("append", append),
        ("directories", directories),
        ("a directory that changes while it is read", changing_directory),
        ("remove", remove),
        ("what wstat changes", wstat),
        ("wstat changes all or nothing", wstat_atomic),
        ("qids", qids),
    ];
    for (name, check) in checks {
        println!("{name}");
        check(&Tree::of(&*make().server));
    }
}

fn names(tree: &Tree) {
    assert_eq!(tree.stat("").unwrap().name, "/");
    assert_ne!(tree.stat("").unwrap().mode & DIRECTORY, 0);
    for bad in ["", ".", "..", "a/b", "/", "a\0b"] {
        assert_eq!(kind(get(tree.0.create(bad, 0o644, BOTH))), Kind::BadName, "{bad:?}");
        assert!(get(tree.0.walk(bad)).is_err(), "{bad:?}");
    }
    let long = "n".repeat(255);
    for good in ["a", "a b", "...", "ä€𝄞", "-", "~", "\u{1}\n", &long] {
        tree.put(good, good.as_bytes()).unwrap();
        assert_eq!(tree.content(good).unwrap(), good.as_bytes());
        assert_eq!(tree.stat(good).unwrap().name, good);
    }
    assert_eq!(tree.names("").unwrap().len(), 8);
    assert_eq!(kind(tree.walk("b")), Kind::NotFound);
    assert_eq!(kind(tree.walk("a/b")), Kind::NotDirectory);
    assert_eq!(kind(tree.create("a/b", 0o644, BOTH)), Kind::NotDirectory);
}

fn create(tree: &Tree) {
    let (node, open) = tree.create("a", 0o644, BOTH).unwrap();
    assert_eq!(get(open.write(0, b"one")).unwrap(), 3);
    assert_eq!(content(&*open).unwrap(), b"one");
    let info = get(node.stat()).unwrap();
    assert_eq!((info.name.as_str(), info.length, info.qid.kind), ("a", 3, 0));
    assert_eq!(info, tree.stat("a").unwrap());
    // A file or a directory of the name is in the way of both.
    tree.make_dir("d").unwrap();
    for name in ["a", "d"] {
        assert_eq!(kind(tree.create(name, 0o644, BOTH)), Kind::Exists);
        assert_eq!(kind(tree.create(name, DIRECTORY | 0o755, READ)), Kind::Exists);
    }
    assert_eq!(tree.content("a").unwrap(), b"one");
    // Opened as asked, whatever the permissions are from then on.
    let (_, open) = tree.create("writeonly", 0o000, WRITE).unwrap();
    assert_eq!(get(open.write(0, b"x")).unwrap(), 1);
    assert_eq!(kind(get(open.read(0, &mut [0]))), Kind::BadMode);
    for mode in [WRITE, BOTH, CUT] {
        assert!(tree.create("d2", DIRECTORY | 0o755, mode).is_err());
        assert_eq!(kind(tree.walk("d2")), Kind::NotFound, "made and refused");
    }
}

fn made_permissions(tree: &Tree) {
    let bits = |path: &str| tree.stat(path).unwrap().mode & 0o777;
    tree.make_dir("d").unwrap();
    for (above, file, asked, got) in [
        (0o777, true, 0o666, 0o666),
        (0o777, true, 0o777, 0o777),
        (0o755, true, 0o666, 0o644),
        (0o700, true, 0o777, 0o711),
        (0o700, false, 0o777, 0o700),
        (0o755, false, 0o777, 0o755),
    ] {
        let mode = Change { mode: Some(DIRECTORY | above), ..Change::default() };
        tree.wstat("d", &mode).unwrap();
        let asked = if file { asked } else { DIRECTORY | asked };
        tree.create("d/new", asked, READ).unwrap();
        assert_eq!(bits("d/new"), got, "{asked:o} in {above:o}");
        tree.remove("d/new").unwrap();
    }
}

fn modes(tree: &Tree) {
    tree.put("a", b"content").unwrap();
    let open = tree.open("a", READ).unwrap();
    assert_eq!(kind(get(open.write(0, b"x"))), Kind::BadMode);
    let open = tree.open("a", WRITE).unwrap();
    assert_eq!(kind(get(open.read(0, &mut [0; 4]))), Kind::BadMode);
    // What is open sees what others do.
    let read = tree.open("a", READ).unwrap();
    get(open.write(0, b"C")).unwrap();
    assert_eq!(content(&*read).unwrap(), b"Content");
    let cut = tree.open("a", CUT).unwrap();
    assert_eq!(content(&*read).unwrap(), b"");
    get(cut.write(2, b"x")).unwrap();
    assert_eq!(content(&*read).unwrap(), b"\0\0x");
    assert_eq!(kind(get(read.entries(0, 1))), Kind::NotDirectory);
}

fn permissions(tree: &Tree) {
    tree.make_dir("d").unwrap();
    tree.put("d/a", b"content").unwrap();
    let execute = OpenMode { execute: true, ..OpenMode::default() };
    let mode = |mode: u32| Change { mode: Some(mode), ..Change::default() };
    obeying_permissions(|| {
        for bits in 0..8 {
            tree.wstat("d/a", &mode(bits << 6)).unwrap();
            let asked = [(READ, 4), (WRITE, 2), (BOTH, 6), (CUT, 2), (execute, 1)];
            for (mode, needed) in asked {
                // To execute is to read, for a system that sees no difference.
                if mode.execute && bits & 4 == 0 {
                    continue;
                }
                let opened = tree.open("d/a", mode);
                match bits & needed == needed {
                    true => drop(opened.unwrap_or_else(|error| panic!("{bits} {error}"))),
                    false => assert_eq!(kind(opened), Kind::Permission, "{bits} {mode:?}"),
                }
            }
        }
        tree.wstat("d/a", &mode(0o600)).unwrap();
        tree.put("d/a", b"content").unwrap();
        tree.wstat("d", &mode(0o500)).unwrap();
        assert_eq!(kind(tree.create("d/b", 0o644, READ)), Kind::Permission);
        assert_eq!(kind(tree.remove("d/a")), Kind::Permission);
        let renamed = Change { name: Some("b".into()), length: Some(1), ..Change::default() };
        assert_eq!(kind(tree.wstat("d/a", &renamed)), Kind::Permission);
        assert_eq!(tree.content("d/a").unwrap(), b"content");
    });
}

fn offsets(tree: &Tree) {
    tree.put("a", b"").unwrap();
    let open = tree.open("a", BOTH).unwrap();
    let mut piece = [9; 4];
    assert_eq!(get(open.read(0, &mut piece)).unwrap(), 0);
    get(open.write(200_000, b"end")).unwrap();
    let mut all = vec![0; 200_000];
    all.extend(b"end");
    assert_eq!(content(&*open).unwrap(), all);
    get(open.write(65_530, &pattern(1, 70_000))).unwrap();
    all[65_530..135_530].copy_from_slice(&pattern(1, 70_000));
    assert_eq!(content(&*open).unwrap(), all);
    // Across the end, at it, and where no file is.
    assert_eq!(get(open.read(200_001, &mut piece)).unwrap(), 2);
    for offset in [200_003, 1 << 40, i64::MAX as u64 - 1, 1 << 63, u64::MAX] {
        assert_eq!(get(open.read(offset, &mut piece)).unwrap(), 0, "{offset}");
    }
    for offset in [i64::MAX as u64, 1 << 63, u64::MAX] {
        assert_eq!(kind(get(open.write(offset, b"x"))), Kind::TooLarge, "{offset}");
    }
    assert_eq!(get(open.read(0, &mut [])).unwrap(), 0);
    assert_eq!(get(open.write(300_000, b"")).unwrap(), 0);
    assert_eq!(tree.stat("a").unwrap().length, 200_003);
}

/// A server that has no append-only files says so.
fn append(tree: &Tree) {
    let (_, open) = match tree.create("log", ninep::kind::APPEND | 0o644, BOTH) {
        Err(error) => return assert_eq!(error.kind(), Kind::Unsupported),
        Ok(made) => made,
    };
    get(open.write(0, b"one")).unwrap();
    get(open.write(0, b"two")).unwrap();
    assert_eq!(content(&*open).unwrap(), b"onetwo");
}

fn directories(tree: &Tree) {
    tree.make_dir("d").unwrap();
    tree.make_dir("d/e").unwrap();
    for number in 0..40 {
        tree.put(&format!("d/{number}"), &vec![0; number]).unwrap();
    }
    let open = tree.open("d", READ).unwrap();
    assert_eq!(open.qid(), tree.stat("d").unwrap().qid);
    let mut all = entries(&*open, 1000).unwrap();
    // In the same order in pieces, and again from anywhere.
    for max in [1, 3, 41] {
        assert_eq!(entries(&*open, max).unwrap(), all);
    }
    for from in [0, 5, 40, 41, 42, u64::MAX] {
        let rest = all.get(from.min(41) as usize..).unwrap();
        assert_eq!(get(open.entries(from, 1000)).unwrap(), rest);
    }
    assert_eq!(get(open.entries(0, 0)).unwrap(), []);
    all.sort_by_key(|info| info.name.parse().unwrap_or(1000));
    let e = all.pop().unwrap();
    assert_eq!((e.name.as_str(), e.length, e.qid.kind), ("e", 0, 0x80));
    assert_eq!(e, tree.stat("d/e").unwrap());
    for (number, info) in all.iter().enumerate() {
        assert_eq!((info.name.clone(), info.length), (number.to_string(), number as u64));
        assert_eq!(*info, tree.stat(&format!("d/{number}")).unwrap());
    }
    // A directory is no file.
    for mode in [WRITE, BOTH, CUT] {
        assert_eq!(kind(tree.open("d", mode)), Kind::IsDirectory);
    }
    let cut = Change { length: Some(1), ..Change::default() };
    assert_eq!(kind(tree.wstat("d", &cut)), Kind::IsDirectory);
    assert_eq!(kind(get(open.write(0, b"x"))), Kind::BadMode);
    assert!(get(open.read(0, &mut [0; 100])).is_err());
    // What was read of a directory that is renamed stays true below it.
    let below = tree.walk("d/e").unwrap();
    let renamed = Change { name: Some("D".into()), ..Change::default() };
    tree.wstat("d", &renamed).unwrap();
    get(below.create("f", 0o644, WRITE)).unwrap();
    assert_eq!(tree.names("D/e").unwrap(), ["f"]);
}

fn changing_directory(tree: &Tree) {
    let kept = |number: usize| format!("kept-{number}");
    for number in 0..200 {
        tree.put(&kept(number), b"").unwrap();
        tree.put(&format!("gone-{number}"), b"").unwrap();
    }
    let open = tree.open("", READ).unwrap();
    let mut seen = Vec::new();
    for round in 0.. {
        let some = get(open.entries(seen.len() as u64, 9)).unwrap();
        if some.is_empty() {
            break;
        }
        seen.extend(some.into_iter().map(|info| info.name));
        for number in [round * 7 % 200, (round * 7 + 3) % 200] {
            // Each at most once; later rounds find it gone.
            let _ = tree.remove(&format!("gone-{number}"));
        }
        tree.put(&format!("new-{round}"), b"").unwrap();
    }
    // From the beginning again, without what is gone.
    let again = entries(&*open, 50).unwrap();
    let again = again.iter().filter(|info| info.name.starts_with("kept"));
    assert_eq!(again.count(), 200);
    for number in 0..200 {
        let times = seen.iter().filter(|name| **name == kept(number)).count();
        assert_eq!(times, 1, "of {}", kept(number));
    }
    let len = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), len, "a name twice");
}

fn remove(tree: &Tree) {
    tree.make_dir("d").unwrap();
    tree.put("d/a", b"content").unwrap();
    assert_eq!(kind(tree.remove("d")), Kind::NotEmpty);
    let node = tree.walk("d/a").unwrap();
    let open = tree.open("d/a", BOTH).unwrap();
    tree.remove("d/a").unwrap();
    assert_eq!(kind(tree.walk("d/a")), Kind::NotFound);
    assert_eq!(tree.names("d").unwrap(), [""; 0]);
    // What is open stays, or says that it is gone.
    if let Ok(content) = content(&*open) {
        assert_eq!(content, b"content");
    }
    // A new file of the name is another, which the old node does not reach.
    tree.put("d/a", b"new").unwrap();
    assert!(get(node.remove()).is_err());
    let _ = get(open.write(0, b"OLD"));
    let _ = get(node.wstat(&Change { length: Some(0), ..Change::default() }));
    assert!(get(node.wstat(&Change { name: Some("b".into()), ..Change::default() })).is_err());
    assert_eq!(tree.content("d/a").unwrap(), b"new");
    assert_eq!(tree.names("d").unwrap(), ["a"]);
    let d = tree.walk("d").unwrap();
    tree.remove("d/a").unwrap();
    tree.remove("d").unwrap();
    assert_eq!(kind(get(d.create("b", 0o644, READ))), Kind::NotFound);
    assert!(get(tree.0.remove()).is_err(), "the root stays");
    assert_eq!(tree.names("").unwrap(), [""; 0]);
}

fn wstat(tree: &Tree) {
    tree.put("a", b"content").unwrap();
    let node = tree.walk("a").unwrap();
    let open = tree.open("a", BOTH).unwrap();
    let old = get(node.stat()).unwrap();
    get(node.wstat(&Change::default())).unwrap();
    assert_eq!(get(node.stat()).unwrap(), old, "nothing was to be changed");
    let change = Change {
        name: Some("b".into()),
        length: Some(3),
        mode: Some(0o640),
        mtime: Some(1_000_000),
        gid: Some(old.gid.clone()),
    };
    get(node.wstat(&change)).unwrap();
    let new = get(node.stat()).unwrap();
    assert_eq!((new.name.as_str(), new.length, new.mode), ("b", 3, 0o640));
    assert_eq!((new.mtime, new.gid, new.qid.path), (1_000_000, old.gid, old.qid.path));
    assert_eq!(tree.stat("b").unwrap().qid, new.qid);
    assert_eq!(content(&*open).unwrap(), b"con");
    // Filled up with zeros, also where there was something once.
    get(node.wstat(&Change { length: Some(5), ..Change::default() })).unwrap();
    assert_eq!(content(&*open).unwrap(), b"con\0\0");
    // To the name it has: nothing.
    get(node.wstat(&Change { name: Some("b".into()), ..Change::default() })).unwrap();
    // A directory with what is in it.
    tree.make_dir("d").unwrap();
    tree.put("d/x", b"below").unwrap();
    let below = tree.walk("d/x").unwrap();
    let mode = Change { name: Some("e".into()), mode: Some(0o750), ..Change::default() };
    tree.wstat("d", &mode).unwrap();
    assert_eq!(tree.stat("e").unwrap().mode, DIRECTORY | 0o750);
    assert_eq!(tree.content("e/x").unwrap(), b"below");
    assert_eq!(get(below.stat()).unwrap().name, "x");
    // Renamed through another node, it goes by its new name.
    let node = tree.walk("b").unwrap();
    tree.wstat("b", &Change { name: Some("c".into()), ..Change::default() }).unwrap();
    assert_eq!(get(node.stat()).unwrap().name, "c");
    get(node.remove()).unwrap();
    assert_eq!(tree.names("").unwrap(), ["e"]);
}

fn wstat_atomic(tree: &Tree) {
    tree.put("a", b"content").unwrap();
    tree.put("b", b"other").unwrap();
    tree.make_dir("d").unwrap();
    let before = tree.stat("a").unwrap();
    let all = Change {
        name: Some("c".into()),
        length: Some(2),
        mode: Some(0o600),
        mtime: Some(5),
        gid: None,
    };
    let named = |name: &str| Some(name.to_owned());
    for (change, expected) in [
        (Change { name: named("b"), ..all.clone() }, Kind::Exists),
        (Change { name: named("d"), ..all.clone() }, Kind::Exists),
        (Change { name: named("x/y"), ..all.clone() }, Kind::BadName),
        (Change { name: named(".."), ..all.clone() }, Kind::BadName),
        (Change { name: named("\0"), ..all.clone() }, Kind::BadName),
        (Change { name: Some("n".repeat(256)), ..all.clone() }, Kind::BadName),
        (Change { length: Some(1 << 63), ..all.clone() }, Kind::TooLarge),
        (Change { length: Some(u64::MAX), ..all.clone() }, Kind::TooLarge),
    ] {
        assert_eq!(kind(tree.wstat("a", &change)), expected, "{change:?}");
        let after = tree.stat("a").unwrap();
        assert_eq!((&*after.name, after.length, after.mode), ("a", 7, before.mode));
        assert_eq!((after.mtime, &after.gid), (before.mtime, &before.gid));
        assert_eq!(tree.content("a").unwrap(), b"content");
        assert_eq!(tree.content("b").unwrap(), b"other");
        assert_eq!(tree.names("").unwrap(), ["a", "b", "d"]);
    }
    let group = Change { gid: named("no such group"), ..all };
    assert!(tree.wstat("a", &group).is_err());
    assert_eq!(tree.names("").unwrap(), ["a", "b", "d"]);
    assert_eq!(tree.stat("a").unwrap().mode, before.mode);
    assert!(get(tree.0.wstat(&Change { name: named("r"), ..Change::default() })).is_err());
}

fn qids(tree: &Tree) {
    tree.put("a", b"content").unwrap();
    tree.put("b", b"content").unwrap();
    tree.make_dir("d").unwrap();
    let qid = |path: &str| tree.stat(path).unwrap().qid;
    assert_eq!((qid("a").kind, qid("d").kind, qid("").kind), (0, 0x80, 0x80));
    let mut paths = vec![qid(""), qid("a"), qid("b"), qid("d")];
    // Unchanged, it stays; each change is another version.
    let open = tree.open("a", BOTH).unwrap();
    assert_eq!((open.qid(), qid("a")), (paths[1], paths[1]));
    let mut versions = vec![qid("a").version];
    for round in 0..50 {
        get(open.write(0, &[round])).unwrap();
        // What an open file elsewhere is now, only a stat tells.
        assert!(is_elsewhere() || open.qid() == qid("a"));
        versions.push(qid("a").version);
    }
    tree.open("a", CUT).unwrap();
    versions.push(qid("a").version);
    tree.wstat("a", &Change { length: Some(9), ..Change::default() }).unwrap();
    versions.push(qid("a").version);
    assert_eq!(qid("a").path, paths[1].path);
    let count = versions.len();
    versions.sort();
    versions.dedup();
    assert_eq!(versions.len(), count, "a version twice");
    let before = qid("d");
    tree.put("d/x", b"").unwrap();
    assert_ne!(qid("d").version, before.version);
    // A path is never used again.
    for round in 0..200 {
        let name = ["d/y", "d/z"][round % 2];
        match round % 3 {
            0 => drop(tree.make_dir(name).unwrap()),
            _ => tree.put(name, b"").unwrap(),
        }
        paths.push(qid(name));
        tree.remove(name).unwrap();
    }
    let mut paths: Vec<_> = paths.into_iter().map(|qid| qid.path).collect();
    let count = paths.len();
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), count, "a path twice");
}
