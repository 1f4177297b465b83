use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use proptest::prelude::*;
use rustix::fs::CWD;

use super::*;
use crate::Input;
use crate::testing::{disk_dir, names, obeying_permissions, skip};

mod processes;

const NEW: Options = Options { force: false, len_bytes: None };
const FORCE: Options = Options { force: true, len_bytes: None };

fn refused(path: &Path, options: &Options) -> OutputError {
    Output::create(path, options).unwrap_err()
}

/// Writes and commits `bytes`, with and without files without names.
fn write(path: &Path, options: &Options, unnamed: bool, bytes: &[u8]) -> Result<(), OutputError> {
    let output = Output::create_by(path, options, unnamed)?;
    output.file().write_all_at(bytes, 0).unwrap();
    output.commit(false)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn an_output_appears_at_the_commit() {
    for unnamed in [true, false] {
        let dir = disk_dir();
        let path = dir.path().join("out");
        let output = Output::create_by(&path, &NEW, unnamed).unwrap();
        assert_eq!(output.kind(), Kind::File);
        assert_eq!(output.name(), path.to_str().unwrap());
        output.file().write_all_at(b"whole", 0).unwrap();
        let during = names(dir.path());
        match during.as_slice() {
            [] => assert!(unnamed),
            // Some file systems have no files without a name.
            [hidden] => assert!(hidden.starts_with(".out.cellway-"), "{hidden}"),
            more => panic!("{more:?}"),
        }
        output.commit(true).unwrap();
        assert_eq!(names(dir.path()), ["out"]);
        assert_eq!(fs::read(&path).unwrap(), b"whole");
    }
}

#[test]
fn the_fallback_copes_with_the_longest_name() {
    let dir = disk_dir();
    let name = "ä".repeat(127);
    let path = dir.path().join(&name);
    write(&path, &NEW, false, b"x").unwrap();
    write(&path, &FORCE, true, b"y").unwrap();
    assert_eq!(names(dir.path()), [name]);
}

#[test]
fn an_existing_output_needs_force() {
    for unnamed in [true, false] {
        let dir = disk_dir();
        let path = dir.path().join("out");
        fs::write(&path, b"old").unwrap();
        let error = write(&path, &NEW, unnamed, b"new").unwrap_err();
        assert_eq!(error.kind(), OutputErrorKind::Exists);
        let path_shown = path.display();
        assert_eq!(
            error.to_string(),
            format!("{path_shown}: exists already; give --force to replace it, or another name")
        );
        assert_eq!(fs::read(&path).unwrap(), b"old");
        write(&path, &FORCE, unnamed, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(dir.path()), ["out"]);
    }
}

#[test]
fn a_name_taken_during_the_run_needs_force() {
    for unnamed in [true, false] {
        for force in [false, true] {
            let dir = disk_dir();
            let path = dir.path().join("out");
            let options = Options { force, len_bytes: None };
            let output = Output::create_by(&path, &options, unnamed).unwrap();
            output.file().write_all_at(b"new", 0).unwrap();
            fs::write(&path, b"theirs").unwrap();
            let result = output.commit(false);
            assert_eq!(result.is_ok(), force);
            if let Err(error) = result {
                assert_eq!(error.kind(), OutputErrorKind::Exists);
            }
            assert_eq!(fs::read(&path).unwrap(), if force { &b"new"[..] } else { b"theirs" });
            assert_eq!(names(dir.path()), ["out"]);
        }
    }
}

#[test]
fn a_directory_in_the_way_at_the_end_leaves_nothing() {
    for unnamed in [true, false] {
        let dir = disk_dir();
        let path = dir.path().join("out");
        let output = Output::create_by(&path, &FORCE, unnamed).unwrap();
        fs::create_dir(&path).unwrap();
        let error = output.commit(false).unwrap_err();
        assert!(error.to_string().contains("has become a directory"), "{error}");
        assert_eq!(names(dir.path()), ["out"]);
        assert!(names(&path).is_empty());
    }
}

#[test]
fn of_many_with_one_name_one_wins() {
    for unnamed in [true, false] {
        let dir = disk_dir();
        let path = dir.path().join("out");
        let outputs: Vec<_> =
            (0..8).map(|_| Output::create_by(&path, &NEW, unnamed).unwrap()).collect();
        let results: Vec<_> = thread::scope(|scope| {
            let commits: Vec<_> =
                outputs.into_iter().map(|out| scope.spawn(move || out.commit(false))).collect();
            commits.into_iter().map(|commit| commit.join().unwrap()).collect()
        });
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        let exist = |result: &Result<(), OutputError>| {
            result.as_ref().err().map(OutputError::kind) == Some(OutputErrorKind::Exists)
        };
        assert_eq!(results.iter().filter(|result| exist(result)).count(), 7);
        assert_eq!(names(dir.path()), ["out"]);
    }
}

#[test]
fn who_reads_meanwhile_reads_a_whole_one() {
    let dir = disk_dir();
    let path = dir.path().join("out");
    fs::write(&path, [0; 10_000]).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for byte in 1..100 {
                write(&path, &FORCE, byte % 2 == 0, &[byte; 10_000]).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let bytes = fs::read(&path).unwrap();
            assert_eq!(bytes.len(), 10_000);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        }
    });
    assert_eq!(names(dir.path()), ["out"]);
}

#[test]
fn an_input_can_be_its_own_output() {
    let dir = disk_dir();
    let path = dir.path().join("file");
    fs::write(&path, b"abc").unwrap();
    let input = Input::open(&path).unwrap();
    let options = Options { force: true, len_bytes: input.len_bytes() };
    let output = Output::create(&path, &options).unwrap();
    output.file().write_all_at(b"xyz", 0).unwrap();
    let mut read = [0; 3];
    input.file().read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"abc");
    assert_eq!(input.changed().unwrap(), None);
    output.commit(false).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"xyz");
}

#[test]
fn what_a_link_stands_for_is_replaced() {
    for unnamed in [true, false] {
        let dir = disk_dir();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("sub/file"), b"old").unwrap();
        symlink("sub/file", at("near")).unwrap();
        symlink(at("near"), at("far")).unwrap();
        symlink("../sub", at("sub/up")).unwrap();

        assert_eq!(refused(&at("far"), &NEW).kind(), OutputErrorKind::Exists);
        write(&at("far"), &FORCE, unnamed, b"new").unwrap();
        assert_eq!(fs::read(at("sub/file")).unwrap(), b"new");
        write(&at("sub/up/file"), &FORCE, unnamed, b"newer").unwrap();
        assert_eq!(fs::read(at("sub/file")).unwrap(), b"newer");
        assert_eq!(fs::read_link(at("far")).unwrap(), at("near"));
        assert_eq!(fs::read_link(at("near")).unwrap(), Path::new("sub/file"));
        assert_eq!(names(dir.path()), ["far", "near", "sub"]);
        assert_eq!(names(&at("sub")), ["file", "up"]);
    }
}

#[test]
fn a_dangling_link_gets_its_file_and_a_loop_is_refused() {
    let dir = disk_dir();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    symlink("sub/new", at("link")).unwrap();
    write(&at("link"), &NEW, true, b"made").unwrap();
    assert_eq!(fs::read(at("sub/new")).unwrap(), b"made");
    assert!(at("link").is_symlink());

    symlink("b", at("a")).unwrap();
    symlink("a", at("b")).unwrap();
    let error = refused(&at("a"), &FORCE);
    assert!(error.to_string().contains("symbolic links"), "{error}");

    symlink("none/new", at("lost")).unwrap();
    let error = refused(&at("lost"), &NEW);
    assert!(error.to_string().contains("none does not exist; mkdir -p "), "{error}");
}

#[test]
fn directories_and_missing_folders_are_refused() {
    let dir = disk_dir();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), b"").unwrap();
    let shown = dir.path().display();
    for (path, message) in [
        (dir.path().to_owned(), format!("{shown}: is a directory; name a file in it, ")),
        (at("new/"), format!("{shown}/new/: names a directory; name a file in it, ")),
        (at("none/x"), format!("{shown}/none/x: folder {shown}/none does not exist; mkdir -p ")),
        (at("file/x"), format!("{shown}/file/x: {shown}/file is not a folder; check the name")),
        (PathBuf::from(""), "\"\": names a directory".to_owned()),
        (PathBuf::from(".."), "..: is a directory".to_owned()),
        (at("long").join("x".repeat(300)), format!("{shown}/long/")),
        (at(&"x".repeat(300)), format!("{shown}/xxx")),
    ] {
        let error = refused(&path, &FORCE);
        assert!(error.to_string().starts_with(&message), "{error}");
        assert!(!error.to_string().contains('\n'));
    }
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn a_folder_without_permission_is_refused() {
    obeying_permissions(|| {
        let dir = disk_dir();
        for mode in [0o555, 0o666] {
            set_mode(dir.path(), mode);
            let error = refused(&dir.path().join("out"), &NEW);
            assert_eq!(error.kind(), OutputErrorKind::Unwritable, "{error}");
            assert!(error.to_string().contains("Permission denied"), "{error}");
        }
        set_mode(dir.path(), 0o755);
        assert!(names(dir.path()).is_empty());
    });
}

#[test]
fn a_folder_that_cannot_be_listed_is_written_and_synced() {
    obeying_permissions(|| {
        let dir = disk_dir();
        set_mode(dir.path(), 0o333);
        let output = Output::create(&dir.path().join("out"), &NEW).unwrap();
        let result = output.commit(true);
        set_mode(dir.path(), 0o755);
        result.unwrap();
        assert_eq!(names(dir.path()), ["out"]);
    });
}

#[test]
fn a_folder_that_moves_is_followed() {
    for unnamed in [true, false] {
        let dir = disk_dir();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fs::create_dir(&old).unwrap();
        let output = Output::create_by(&old.join("out"), &NEW, unnamed).unwrap();
        fs::rename(&old, &new).unwrap();
        output.commit(false).unwrap();
        assert_eq!(names(&new), ["out"]);
    }
}

#[test]
fn the_mode_is_the_old_one_or_the_umask_decides() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    let umask = u32::from_str_radix(umask.trim(), 8).unwrap();
    let root = rustix::process::geteuid().is_root();
    for unnamed in [true, false] {
        let dir = disk_dir();
        let path = dir.path().join("out");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        write(&path, &NEW, unnamed, b"1").unwrap();
        assert_eq!(mode(), 0o666 & !umask);
        for old in [0o600, 0o640, 0o444, 0o4755, 0o777, 0o000] {
            set_mode(&path, old);
            let output = Output::create_by(&path, &FORCE, unnamed).unwrap();
            let during = output.file().metadata().unwrap().mode() & 0o077;
            assert_eq!(during, 0, "others may not look at what replaces a private file");
            output.commit(false).unwrap();
            assert_eq!(mode(), old, "{old:o} became {:o}", mode());
        }
        if root {
            std::os::unix::fs::chown(&path, Some(1234), Some(5678)).unwrap();
            set_mode(&path, 0o2640);
            write(&path, &FORCE, unnamed, b"3").unwrap();
            let meta = fs::metadata(&path).unwrap();
            assert_eq!((meta.uid(), meta.gid(), mode()), (1234, 5678, 0o2640));
        }
    }
}

#[test]
fn a_known_length_is_kept_whatever_was_written() {
    let dir = disk_dir();
    for unnamed in [true, false] {
        for (written, len_bytes) in [(5_u64, 3), (3, 5), (0, 0), (9, 0), (0, 4097)] {
            let path = dir.path().join("out");
            let options = Options { force: true, len_bytes: Some(len_bytes) };
            write(&path, &options, unnamed, &vec![7; written as usize]).unwrap();
            let mut expected = vec![7; written.min(len_bytes) as usize];
            expected.resize(len_bytes as usize, 0);
            assert_eq!(fs::read(&path).unwrap(), expected);
        }
    }
}

#[test]
fn space_that_is_not_there_is_missed_at_once() {
    for dir in [disk_dir(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        let path = dir.path().join("out");
        let len_bytes = i64::MAX as u64 / 2;
        for unnamed in [true, false] {
            let options = Options { force: false, len_bytes: Some(len_bytes) };
            let error = Output::create_by(&path, &options, unnamed).unwrap_err();
            assert_eq!(error.kind(), OutputErrorKind::NoSpace);
            let text = error.to_string();
            assert!(text.contains(&format!(": needs {len_bytes} bytes, ")), "{text}");
            assert!(text.contains(&format!(" are free in {}; ", dir.path().display())), "{text}");
        }
        assert!(names(dir.path()).is_empty());
    }
}

#[test]
fn direct_writes_reach_the_same_file() {
    for dir in [disk_dir(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        for unnamed in [true, false] {
            let path = dir.path().join("out");
            let options = Options { force: true, len_bytes: Some(10_000) };
            let output = Output::create_by(&path, &options, unnamed).unwrap();
            let direct = match output.open_direct() {
                Ok(direct) => direct,
                Err(refused) if dir.path().starts_with("/dev/shm") => {
                    println!("{refused}");
                    continue;
                }
                Err(refused) => return skip("direct writes", &refused.to_string()),
            };
            let len = 10_000_usize.next_multiple_of(direct.offset_align_bytes);
            let mut space = vec![7; len + direct.memory_align_bytes];
            let start = space.as_ptr().align_offset(direct.memory_align_bytes);
            let buf = &mut space[start..start + len];
            assert_eq!(direct.file.write_at(buf, 0).unwrap(), len);
            output.commit(true).unwrap();
            assert!(fs::read(&path).unwrap() == vec![7; 10_000]);
        }
    }
}

#[test]
fn devices_and_fifos_are_written_straight() {
    let null = Output::create(Path::new("/dev/null"), &NEW).unwrap();
    assert_eq!(null.kind(), Kind::Stream);
    null.sequential().write_all(b"gone").unwrap();
    assert!(null.open_direct().is_err());
    null.commit(true).unwrap();

    let full = Output::create(Path::new("/dev/full"), &NEW).unwrap();
    let error = full.sequential().write_all(b"x").unwrap_err();
    assert_eq!((error.kind(), error.offset()), (OutputErrorKind::NoSpace, Some(0)));

    let dir = disk_dir();
    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(CWD, &fifo, Mode::RWXU).unwrap();
    let got = thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read(&fifo).unwrap());
        let output = Output::create(&fifo, &NEW).unwrap();
        output.sequential().write_all(b"through").unwrap();
        output.commit(true).unwrap();
        reader.join().unwrap()
    });
    assert_eq!(got, b"through");

    let short = tempfile::tempdir().unwrap();
    let socket = short.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let error = refused(&socket, &FORCE);
    assert!(error.to_string().contains("is a socket"), "{error}");
}

/// What one run does to its output.
#[derive(Clone, Debug)]
struct Run {
    unnamed: bool,
    force: bool,
    len_bytes: Option<u64>,
    writes: Vec<(u64, Vec<u8>)>,
    /// Somebody else takes the name during the run.
    taken: bool,
    commit: bool,
}

fn runs() -> impl Strategy<Value = Run> {
    let bytes = prop::collection::vec(any::<u8>(), 0..5000);
    let writes = prop::collection::vec((0..20_000_u64, bytes), 0..6);
    let len = prop::option::of(0..30_000_u64);
    (any::<bool>(), any::<bool>(), len, writes, prop::bool::weighted(0.2), any::<bool>()).prop_map(
        |(unnamed, force, len_bytes, writes, taken, commit)| Run {
            unnamed,
            force,
            len_bytes,
            writes,
            taken,
            commit,
        },
    )
}

/// What the file would be, written by a plain reference.
fn written(run: &Run) -> Vec<u8> {
    let mut bytes = vec![0; run.len_bytes.unwrap_or(0) as usize];
    for (offset, piece) in &run.writes {
        let (start, end) = (*offset as usize, *offset as usize + piece.len());
        if bytes.len() < end && !piece.is_empty() {
            bytes.resize(end, 0);
        }
        if !piece.is_empty() {
            bytes[start..end].copy_from_slice(piece);
        }
    }
    bytes.truncate(run.len_bytes.map_or(usize::MAX, |len_bytes| len_bytes as usize));
    bytes
}

proptest! {
    #[test]
    fn after_any_runs_the_name_has_one_whole_content(
        runs in prop::collection::vec(runs(), 1..6),
    ) {
        let dir = disk_dir();
        let path = dir.path().join("out");
        let mut expected: Option<Vec<u8>> = None;
        for run in runs {
            let options = Options { force: run.force, len_bytes: run.len_bytes };
            let output = Output::create_by(&path, &options, run.unnamed);
            prop_assert_eq!(output.is_ok(), run.force || expected.is_none());
            if let Ok(output) = output {
                for (offset, piece) in &run.writes {
                    output.file().write_all_at(piece, *offset).unwrap();
                }
                if run.taken {
                    fs::write(&path, b"taken").unwrap();
                    expected = Some(b"taken".to_vec());
                }
                if run.commit {
                    let may = run.force || !run.taken;
                    prop_assert_eq!(output.commit(false).is_ok(), may);
                    if may {
                        expected = Some(written(&run));
                    }
                }
            }
            let found = names(dir.path());
            match &expected {
                None => prop_assert!(found.is_empty(), "{:?}", found),
                Some(bytes) => {
                    prop_assert_eq!(found, ["out"]);
                    prop_assert!(fs::read(&path).unwrap() == *bytes);
                }
            }
        }
    }
}

#[test]
fn what_was_shared_is_made_ones_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let options = Options { len_bytes: Some(10), ..Options::default() };
    let mut output = Output::create_shared(&path, &options).unwrap();
    let other = Output::join(&output.shared_path().unwrap()).unwrap();
    output.file().write_all_at(b"01234", 0).unwrap();
    other.file().write_all_at(b"56789", 5).unwrap();
    output.unshare().unwrap();
    other.file().write_all_at(b"xxxxxxxxxx", 0).unwrap();
    output.commit(false).unwrap();
    other.file().write_all_at(b"yyyyyyyyyy", 0).unwrap();
    drop(other);
    assert_eq!(std::fs::read(&path).unwrap(), b"0123456789");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    for straight in ["-", "/dev/null"] {
        assert!(Output::create_shared(Path::new(straight), &options).is_err());
    }
}
