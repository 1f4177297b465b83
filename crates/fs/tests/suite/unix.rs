//! `#U`: what is not served, what changes while it is open, and what fails.

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cellway_fs::{
    Change, FileServer, Files, FsError, Kind, OpenMode, PrivateServer, Stretch, UnixServer, wait,
};
use rustix::fs::{CWD, FileType, Mode};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use tempfile::TempDir;

use crate::conformance::{Subject, conforms};
use crate::harness::{
    BOTH, CUT, DIRECTORY, READ, Tree, WRITE, content, entries, get, kind, obeying_permissions,
    on_a_small_disk, pattern, watch,
};

pub(crate) fn subject() -> Subject {
    let dir = disk_dir();
    let server = Arc::new(UnixServer::new(dir.path(), false).unwrap());
    Subject { server, _keep: Some(dir) }
}

/// A folder on the disk that holds the build, as /tmp may be memory.
pub(crate) fn disk_dir() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn serve(dir: &Path) -> Tree {
    Tree::of(&UnixServer::new(dir, false).unwrap())
}

/// Both servers of a directory.
fn both(dir: &Path) -> [(&'static str, Tree); 2] {
    let private = PrivateServer::new(dir, 1 << 20).unwrap();
    [("#U", serve(dir)), ("#R", Tree::of(&private))]
}

#[test]
fn conforms_to_the_suite() {
    conforms(&subject);
}

#[test]
fn conforms_to_the_suite_in_memory() {
    conforms(&|| {
        let dir = TempDir::new_in("/dev/shm").unwrap();
        let server = Arc::new(UnixServer::new(dir.path(), false).unwrap());
        Subject { server, _keep: Some(dir) }
    });
}

#[test]
fn only_files_and_directories_are_served_and_nothing_waits() {
    let _dog = watch();
    let dir = disk_dir();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("file"), "inside").unwrap();
    fs::hard_link(at("file"), at("hard")).unwrap();
    rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let device = rustix::fs::makedev(1, 3);
    // For root only; the others do.
    let _ = rustix::fs::mknodat(CWD, at("null"), FileType::CharacterDevice, Mode::RWXU, device);
    let _socket = UnixListener::bind(at("socket")).unwrap();
    for (name, target) in [
        ("link", "file"),
        ("up", ".."),
        ("root", "/"),
        ("self", "/proc/self/root"),
        ("loop", "loop"),
        ("nowhere", "nothing"),
        ("to-dir", "dir"),
    ] {
        symlink(target, at(name)).unwrap();
    }
    let bytes = std::os::unix::ffi::OsStrExt::from_bytes(b"no\xFFtext");
    fs::write(dir.path().join(Path::new::<std::ffi::OsStr>(bytes)), "").unwrap();
    for (server, tree) in both(dir.path()) {
        assert_eq!(tree.names("").unwrap(), ["dir", "file", "hard"], "{server}");
        for hidden in ["link", "up", "root", "self", "loop", "nowhere", "to-dir", "fifo", "socket"]
        {
            assert_eq!(kind(tree.walk(hidden)), Kind::Permission, "{server} {hidden}");
            // In the way, and left alone.
            assert_eq!(kind(tree.create(hidden, 0o644, BOTH)), Kind::Exists);
            assert_eq!(kind(tree.create(hidden, DIRECTORY | 0o755, READ)), Kind::Exists);
            let rename = Change { name: Some(hidden.into()), ..Change::default() };
            assert_eq!(kind(tree.wstat("file", &rename)), Kind::Exists);
        }
        assert!(tree.walk("null").is_err());
        assert_eq!(kind(tree.open("file", OpenMode::default())), Kind::BadMode);
        let directory = Change { mode: Some(DIRECTORY | 0o700), ..Change::default() };
        assert_eq!(kind(tree.wstat("file", &directory)), Kind::Permission);
        assert_eq!(kind(tree.walk("to-dir/x")), Kind::Permission);
        assert_eq!(tree.content("hard").unwrap(), b"inside");
    }
    assert!(at("fifo").exists() && at("link").is_symlink());
}

#[test]
fn a_tree_for_reading_is_not_changed() {
    let _dog = watch();
    let dir = disk_dir();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/a"), "content").unwrap();
    let tree = Tree::of(&UnixServer::new(dir.path(), true).unwrap());
    assert_eq!(tree.content("d/a").unwrap(), b"content");
    let execute = cellway_fs::OpenMode { truncate: true, ..READ };
    for mode in [WRITE, BOTH, CUT, execute] {
        assert_eq!(kind(tree.open("d/a", mode)), Kind::Permission);
    }
    assert_eq!(kind(tree.create("d/b", 0o644, READ)), Kind::Permission);
    assert_eq!(kind(tree.create("e", DIRECTORY | 0o755, READ)), Kind::Permission);
    assert_eq!(kind(tree.remove("d/a")), Kind::Permission);
    for change in [
        Change { name: Some("b".into()), ..Change::default() },
        Change { length: Some(0), ..Change::default() },
        Change { mode: Some(0), ..Change::default() },
        Change { mtime: Some(0), ..Change::default() },
    ] {
        assert_eq!(kind(tree.wstat("d/a", &change)), Kind::Permission);
    }
    assert_eq!(fs::read(dir.path().join("d/a")).unwrap(), b"content");
    assert_eq!(tree.names("").unwrap(), ["d"]);
}

#[test]
fn a_long_file_is_read_as_it_is_now() {
    const LEN: usize = (5 << 20) + 77;
    let _dog = watch();
    let dir = disk_dir();
    let path = dir.path().join("a");
    let mut bytes = pattern(3, LEN);
    fs::write(&path, &bytes).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for (server, tree) in both(dir.path()) {
        let open = &*tree.open("a", READ).unwrap();
        assert!(content(open).unwrap() == bytes, "{server}");
        // What others write shows.
        file.write_all_at(b"new", 3_000_000).unwrap();
        bytes[3_000_000..3_000_003].copy_from_slice(b"new");
        assert!(content(open).unwrap() == bytes, "{server}");
        // Longer, then shorter, within a page and at its end, then as long again.
        file.write_all_at(b"tail", LEN as u64).unwrap();
        bytes.extend(b"tail");
        assert!(content(open).unwrap() == bytes, "{server}");
        for len in [4_000_001, 2_000_000, 8192, 0] {
            file.set_len(len).unwrap();
            assert!(content(open).unwrap() == bytes[..len as usize], "{server} {len}");
        }
        file.set_len(LEN as u64).unwrap();
        assert!(content(open).unwrap() == vec![0; LEN], "{server}");
        bytes = pattern(4, LEN);
        file.write_all_at(&bytes, 0).unwrap();
        assert!(content(open).unwrap() == bytes, "{server}");
        // One that is cut before the first read, and one that is removed.
        let open = &*tree.open("a", READ).unwrap();
        file.set_len(10).unwrap();
        assert!(content(open).unwrap() == bytes[..10], "{server}");
        file.write_all_at(&bytes, 0).unwrap();
    }
    let opens = both(dir.path()).map(|(_, tree)| tree.open("a", READ).unwrap());
    fs::remove_file(&path).unwrap();
    assert!(opens.iter().all(|open| content(&**open).unwrap() == bytes));
}

#[test]
fn file_calls_copy_from_the_mapping_and_see_cuts() {
    const LEN: usize = (2 << 20) + 77;
    let _dog = watch();
    let dir = disk_dir();
    let path = dir.path().join("a");
    let bytes = pattern(3, LEN);
    fs::write(&path, &bytes).unwrap();
    fs::write(dir.path().join("short"), "content").unwrap();
    let server = Arc::new(UnixServer::new(dir.path(), false).unwrap());
    let open = Tree::of(&*server).open("a", READ).unwrap();
    let is_mapped = |offset| {
        let memory = open.memory().unwrap();
        matches!(memory.stretch(offset), Stretch::Bytes { .. })
    };
    assert!(is_mapped(0) && is_mapped(LEN as u64 - 1) && !is_mapped(LEN as u64));
    let files = Files::new("glenda").with("#U", server).unwrap();
    let file = wait(files.open("#U/a", BOTH)).unwrap();
    let read = |offset: u64, len: usize| {
        let mut into = vec![9; len];
        let count = wait(file.pread(offset, &mut into)).unwrap();
        into.truncate(count);
        into
    };
    for (offset, len) in [(0, LEN + 1), (8191, 8192), (LEN - 10, 10), (LEN - 10, 50), (LEN, 1)] {
        let expected = &bytes[offset..(offset + len).min(LEN)];
        assert!(read(offset as u64, len) == expected, "{offset} {len}");
    }
    assert!(read(u64::MAX, 1).is_empty());
    wait(file.pwrite(5, b"new")).unwrap();
    assert_eq!(read(5, 3), b"new");
    // Written behind the mapping's end; cut within a page, and before it.
    wait(file.pwrite(LEN as u64, b"tail")).unwrap();
    assert_eq!(read(LEN as u64, 10), b"tail");
    let disk = fs::OpenOptions::new().write(true).open(&path).unwrap();
    disk.set_len(1_000_003).unwrap();
    assert!(read(1_000_000, 100) == bytes[1_000_000..1_000_003]);
    assert!(read(1_500_000, 100).is_empty());
    disk.write_all_at(&bytes, 0).unwrap();
    assert!(read(0, LEN) == bytes && !is_mapped(LEN as u64));
    let short = wait(files.open("#U/short", READ)).unwrap();
    let mut into = [0; 10];
    assert_eq!(wait(short.pread(3, &mut into)).unwrap(), 4);
    assert_eq!(&into[..4], b"tent");
}

#[test]
fn a_file_cut_and_refilled_under_readers_never_shows_what_it_never_held() {
    const LEN: usize = 2 << 20;
    let _dog = watch();
    let dir = disk_dir();
    let path = dir.path().join("a");
    fs::write(&path, vec![7; LEN]).unwrap();
    let tree = &serve(dir.path());
    let (is_done, reads) = (&AtomicBool::new(false), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                let mut into = vec![0; 8192];
                while !is_done.load(Ordering::Relaxed) {
                    let open = tree.open("a", READ).unwrap();
                    for block in 0..LEN as u64 / 8192 {
                        let count = get(open.read(block % 100 * 8192, &mut into)).unwrap();
                        // No byte of it ever was anything else.
                        assert!(into[..count].iter().all(|byte| *byte == 7), "{block}");
                        reads.fetch_add(u64::from(count > 0), Ordering::Relaxed);
                    }
                }
            });
        }
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for _ in 0..4000 {
            file.set_len(0).unwrap();
            file.write_all_at(&[7; LEN], 0).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert!(reads.load(Ordering::Relaxed) > 0, "nothing was read");
}

#[test]
fn a_node_is_its_file_whatever_is_called_so_now() {
    let _dog = watch();
    let dir = disk_dir();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("a"), "first").unwrap();
    let tree = serve(dir.path());
    let node = tree.walk("a").unwrap();
    fs::rename(at("a"), at("b")).unwrap();
    fs::write(at("a"), "second").unwrap();
    assert_eq!(content(&*get(node.open(READ)).unwrap()).unwrap(), b"first");
    assert_eq!(get(node.stat()).unwrap().name, "b");
    get(node.wstat(&Change { name: Some("c".into()), ..Change::default() })).unwrap();
    assert_eq!(tree.names("").unwrap(), ["a", "c", "d"]);
    // Elsewhere it can be read, and not be taken for an entry of where it was.
    fs::rename(at("c"), at("d/c")).unwrap();
    fs::write(at("c"), "third").unwrap();
    assert_eq!(kind(get(node.remove())), Kind::NotFound);
    assert_eq!(content(&*get(node.open(READ)).unwrap()).unwrap(), b"first");
    fs::remove_file(at("d/c")).unwrap();
    assert_eq!(content(&*get(node.open(READ)).unwrap()).unwrap(), b"first");
    assert_eq!(kind(get(node.remove())), Kind::NotFound);
    // A name that looks like one that is gone.
    fs::write(at("x (deleted)"), "").unwrap();
    assert_eq!(tree.stat("x (deleted)").unwrap().name, "x (deleted)");
    assert_eq!(tree.content("c").unwrap(), b"third");
}

#[test]
fn what_others_change_is_another_version() {
    let _dog = watch();
    let dir = disk_dir();
    let path = dir.path().join("a");
    fs::write(&path, "content").unwrap();
    for (server, tree) in both(dir.path()) {
        let mut versions = vec![tree.stat("a").unwrap().qid.version];
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for len in 1..5 {
            // Another length, for clocks that tick slowly.
            file.write_all_at(b"x", 10 * versions.len() as u64 + len).unwrap();
            versions.push(tree.stat("a").unwrap().qid.version);
        }
        let count = versions.len();
        versions.sort();
        versions.dedup();
        assert_eq!(versions.len(), count, "{server}");
    }
}

#[test]
fn many_entries_are_listed_while_others_come_and_go() {
    const KEPT: usize = 16_384;
    let _dog = watch();
    for dir in [disk_dir(), TempDir::new_in("/dev/shm").unwrap()] {
        let kept = |number: usize| format!("kept-{number:05}");
        for number in 0..KEPT {
            fs::write(dir.path().join(kept(number)), "").unwrap();
        }
        let is_done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    let path = dir.path().join(format!("other-{}", number % 50));
                    match number / 50 % 2 {
                        0 => fs::write(path, "").unwrap(),
                        _ => fs::remove_file(path).unwrap(),
                    }
                    if is_done.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            for (server, tree) in both(dir.path()) {
                let open = tree.open("", READ).unwrap();
                let mut names: Vec<_> =
                    entries(&*open, 300).unwrap().into_iter().map(|info| info.name).collect();
                names.retain(|name| name.starts_with("kept"));
                names.sort();
                assert!(names.into_iter().eq((0..KEPT).map(kept)), "{server}");
            }
            is_done.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn what_the_process_may_not_do_is_told() {
    let _dog = watch();
    let dir = disk_dir();
    fs::create_dir(dir.path().join("closed")).unwrap();
    fs::write(dir.path().join("closed/a"), "x").unwrap();
    fs::write(dir.path().join("secret"), "x").unwrap();
    let closed = || fs::Permissions::from_mode(0o000);
    fs::set_permissions(dir.path().join("closed"), closed()).unwrap();
    fs::set_permissions(dir.path().join("secret"), closed()).unwrap();
    obeying_permissions(|| {
        for (_, tree) in both(dir.path()) {
            let told = |result: Result<(), FsError>| result.unwrap_err().to_string();
            assert_eq!(told(tree.open("secret", READ).map(drop)), "secret: permission denied");
            assert_eq!(told(tree.open("secret", CUT).map(drop)), "secret: permission denied");
            assert_eq!(told(tree.walk("closed/a").map(drop)), "a: permission denied");
            assert_eq!(told(tree.open("closed", READ).map(drop)), "closed: permission denied");
        }
    });
    let missing = UnixServer::new(&dir.path().join("none"), false).map(drop);
    assert_eq!(kind(missing), Kind::NotFound);
    let file = UnixServer::new(&dir.path().join("secret"), false).map(drop);
    assert_eq!(kind(file), Kind::NotDirectory);
    let server = UnixServer::new(dir.path(), false).unwrap();
    assert_eq!(kind(get(server.attach("glenda", "other")).map(drop)), Kind::NotFound);
}

#[test]
fn without_openat2_nothing_is_served() {
    let _dog = watch();
    let dir = disk_dir();
    for (errno, reason) in [(libc::ENOSYS, "lacks openat2"), (libc::EPERM, "forbids openat2")] {
        let refused = || {
            let rules = [(libc::SYS_openat2, vec![])].into_iter().collect();
            let refuse = SeccompAction::Errno(errno as u32);
            let arch = std::env::consts::ARCH.try_into().unwrap();
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
            seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
            UnixServer::new(dir.path(), false).map(drop)
        };
        let told = std::thread::scope(|scope| scope.spawn(refused).join().unwrap()).unwrap_err();
        assert_eq!(told.kind(), Kind::Unsupported);
        assert!(told.to_string().contains(reason), "{told}");
    }
}

#[test]
fn a_full_disk_is_told_and_other_file_systems_are_not_entered() {
    on_a_small_disk("unix::a_full_disk_is_told_and_other_file_systems_are_not_entered", |disk| {
        let tree = serve(disk);
        let (_, open) = tree.create("a", 0o644, BOTH).unwrap();
        let piece = pattern(1, 100_000);
        let mut len = 0;
        let error = loop {
            match get(open.write(len as u64, &piece)) {
                Ok(count) => len += count,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), Kind::NoSpace);
        assert_eq!(error.to_string(), "a: no space left");
        assert_eq!(len, 1 << 20, "what fitted was written");
        assert_eq!(tree.stat("a").unwrap().length, 1 << 20);
        assert!(content(&*open).unwrap().chunks(100_000).all(|part| part == &piece[..part.len()]));
        tree.remove("a").unwrap();
        drop(open);
        tree.put("a", &piece).unwrap();
        // The folder around it is of another file system.
        let around = disk.parent().unwrap();
        let name = disk.file_name().unwrap().to_str().unwrap();
        for (server, tree) in both(around) {
            assert!(!tree.names("").unwrap().contains(&name.to_owned()), "{server}");
            let error = tree.walk(name).map(drop).unwrap_err();
            assert!(error.to_string().contains("another file system"), "{server} {error}");
        }
    });
}
