use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::thread;

use rustix::fs::{Advice, CWD, Mode};

use super::*;
use crate::testing::{disk_dir, obeying_permissions, skip};

#[test]
fn a_file_is_known_by_length_and_identity() {
    let dir = disk_dir();
    let path = dir.path().join("in");
    fs::write(&path, b"hello").unwrap();
    fs::hard_link(&path, dir.path().join("same")).unwrap();
    fs::write(dir.path().join("other"), b"hello").unwrap();

    let input = Input::open(&path).unwrap();
    assert_eq!(input.kind(), Kind::File);
    assert_eq!(input.len_bytes(), Some(5));
    assert_eq!(input.name(), path.to_str().unwrap());
    let mut buf = [0; 3];
    input.file().read_exact_at(&mut buf, 2).unwrap();
    assert_eq!(&buf, b"llo");
    let same = Input::open(&dir.path().join("same")).unwrap();
    let other = Input::open(&dir.path().join("other")).unwrap();
    assert_eq!(input.identity(), same.identity());
    assert_ne!(input.identity(), other.identity());
}

#[test]
fn an_empty_file_is_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let input = Input::open(file.path()).unwrap();
    assert_eq!((input.kind(), input.len_bytes()), (Kind::File, Some(0)));
    assert_eq!(input.resident_share(), None);
    assert_eq!(input.sequential().fill(&mut [0]).unwrap(), 0);
}

#[test]
fn a_file_of_sys_is_a_stream() {
    let Ok(input) = Input::open(Path::new("/sys/kernel/mm/transparent_hugepage/enabled")) else {
        return skip("a file of /sys", "it is not there");
    };
    assert_eq!((input.kind(), input.len_bytes()), (Kind::Stream, None));
}

#[test]
fn a_file_of_proc_is_a_stream() {
    let input = Input::open(Path::new("/proc/self/maps")).unwrap();
    assert_eq!((input.kind(), input.len_bytes()), (Kind::Stream, None));
    assert!(input.sequential().fill(&mut [0; 100]).unwrap() > 0);
}

#[test]
fn devices_and_fifos_are_streams() {
    let input = Input::open(Path::new("/dev/zero")).unwrap();
    assert_eq!((input.kind(), input.len_bytes()), (Kind::Stream, None));
    assert_eq!(input.sequential().fill(&mut [1; 10]).unwrap(), 10);
    assert_eq!(input.resident_share(), None);
    assert_eq!(input.changed().unwrap(), None);
    let refused = input.open_direct().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "/dev/zero: no direct I/O: only files and block devices have it"
    );

    let dir = disk_dir();
    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(CWD, &fifo, Mode::RWXU).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| File::options().write(true).open(&fifo).unwrap().write_all(b"through"));
        let input = Input::open(&fifo).unwrap();
        assert_eq!((input.kind(), input.len_bytes()), (Kind::Stream, None));
        let mut buf = [0; 100];
        assert_eq!(input.sequential().fill(&mut buf).unwrap(), 7);
        assert_eq!(&buf[..7], b"through");
    });
}

fn refused(path: &Path) -> InputError {
    Input::open(path).unwrap_err()
}

#[test]
fn a_directory_and_a_socket_are_refused() {
    let dir = disk_dir();
    let path = dir.path().display();
    let error = refused(dir.path());
    assert_eq!(error.kind(), InputErrorKind::NotAFile);
    assert_eq!(
        error.to_string(),
        format!("{path}: is a directory; name a file, a device or a pipe")
    );

    let short = tempfile::tempdir().unwrap();
    let socket = short.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    let error = refused(&socket);
    assert_eq!(error.kind(), InputErrorKind::NotAFile);
    assert!(error.to_string().contains("is a socket"), "{error}");
}

#[test]
fn a_missing_file_names_a_similar_one() {
    let dir = disk_dir();
    let at = |name: &str| dir.path().join(name);
    for name in ["measurements.csv", "other.bin", "README"] {
        fs::write(at(name), "").unwrap();
    }
    let error = refused(&at("mesurements.csv"));
    assert_eq!(error.kind(), InputErrorKind::Missing);
    let (wrong, right) = (at("mesurements.csv"), at("measurements.csv"));
    assert_eq!(
        error.to_string(),
        format!("{}: no such file; did you mean {}?", wrong.display(), right.display())
    );
    assert!(refused(&at("readme")).to_string().ends_with("README?"));
    let error = refused(&at("x"));
    assert!(error.to_string().ends_with(": no such file; check the name"), "{error}");
    let error = refused(&at("nowhere/x"));
    assert!(error.to_string().ends_with(": no such file; check the name"), "{error}");
    assert_eq!(refused(Path::new("")).to_string(), "\"\": no such file; check the name");

    std::os::unix::fs::symlink("gone", at("link")).unwrap();
    let error = refused(&at("link"));
    assert!(error.to_string().contains("is a link to gone, which does not exist"), "{error}");
}

#[test]
fn an_unreadable_file_is_refused() {
    obeying_permissions(|| {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o000)).unwrap();
        let error = refused(file.path());
        assert_eq!(error.kind(), InputErrorKind::Denied);
        assert!(error.to_string().contains(": permission denied; "), "{error}");
    });
}

#[test]
fn direct_reads_give_the_same_bytes() {
    let dir = disk_dir();
    let path = dir.path().join("in");
    let bytes: Vec<u8> = (0..100_001_u32).map(|i| (i % 251) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    let input = Input::open(&path).unwrap();
    let direct = match input.open_direct() {
        Ok(direct) => direct,
        Err(refused) => return skip("direct reads", &refused.to_string()),
    };
    let (memory, offset) = (direct.memory_align_bytes, direct.offset_align_bytes);
    assert!(memory.is_power_of_two() && offset.is_power_of_two());
    let len = bytes.len().next_multiple_of(offset);
    let mut space = vec![0; len + memory];
    let start = space.as_ptr().align_offset(memory);
    let buf = &mut space[start..start + len];
    assert_eq!(direct.file.read_at(buf, 0).unwrap(), bytes.len());
    assert!(buf[..bytes.len()] == bytes);
    let flags = rustix::fs::fcntl_getfl(&direct.file).unwrap();
    assert!(flags.contains(OFlags::DIRECT));
}

#[test]
fn a_memory_file_system_is_resident_and_may_refuse_direct() {
    let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") else {
        return skip("tmpfs", "/dev/shm cannot be written");
    };
    fs::write(file.path(), [7; 10_000]).unwrap();
    let input = Input::open(file.path()).unwrap();
    assert_eq!(input.resident_share(), Some(1.0));
    if let Err(refused) = input.open_direct() {
        assert!(refused.to_string().ends_with("its file system refuses it"), "{refused}");
    }
}

#[test]
fn the_cached_share_is_estimated() {
    const LEN_BYTES: u64 = 16 << 20;
    let dir = disk_dir();
    let path = dir.path().join("in");
    fs::write(&path, vec![1; LEN_BYTES as usize]).unwrap();
    let input = Input::open(&path).unwrap();
    input.file().sync_all().unwrap();
    match input.resident_share() {
        None => return skip("cached share", "the kernel does not tell"),
        Some(share) => assert!(share > 0.9, "written just now: {share}"),
    }
    rustix::fs::fadvise(input.file(), 0, None, Advice::DontNeed).unwrap();
    // Asked often: the asking must not warm the file by itself.
    let cold: Vec<_> = (0..5).map(|_| input.resident_share().unwrap()).collect();
    if cold[0] == 1.0 {
        return skip("cached share", "the file system keeps its pages");
    }
    assert!(cold.iter().all(|share| *share < 0.3), "{cold:?}");

    rustix::fs::fadvise(input.file(), 0, None, Advice::Random).unwrap();
    let mut half = vec![0; LEN_BYTES as usize / 2];
    input.file().read_exact_at(&mut half, 0).unwrap();
    let share = input.resident_share().unwrap();
    assert!((0.3..0.8).contains(&share), "half of it: {share}");
}

#[test]
fn a_change_during_the_run_is_seen() {
    let dir = disk_dir();
    let path = dir.path().join("in");
    let opened = || {
        fs::write(&path, b"12345678").unwrap();
        let past = std::time::SystemTime::UNIX_EPOCH;
        File::options().write(true).open(&path).unwrap().set_modified(past).unwrap();
        Input::open(&path).unwrap()
    };
    let changed = |input: &Input| input.changed().unwrap();

    let input = opened();
    assert_eq!(changed(&input), None);
    File::options().write(true).open(&path).unwrap().set_len(3).unwrap();
    assert_eq!(changed(&input).unwrap(), "went from 8 to 3 bytes while it was read");
    assert_eq!(changed(&input), input.written().unwrap());

    let input = opened();
    File::options().write(true).open(&path).unwrap().write_all(b"x").unwrap();
    assert_eq!(changed(&input).unwrap(), "was written to while it was read");
    assert_eq!(changed(&input), input.written().unwrap());

    let input = opened();
    fs::write(dir.path().join("new"), b"12345678").unwrap();
    fs::rename(dir.path().join("new"), &path).unwrap();
    assert_eq!(input.written().unwrap(), None);
    let what = changed(&input).unwrap();
    let error = InputError::changed("in", what);
    assert_eq!(error.kind(), InputErrorKind::Changed);
    assert_eq!(
        error.to_string(),
        "in: was replaced by another file while it was read; run again when nothing writes to it"
    );

    let input = opened();
    fs::remove_file(&path).unwrap();
    assert_eq!(changed(&input), None);
}
