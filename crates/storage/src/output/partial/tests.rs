use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use super::*;
use crate::testing::{disk_dir, names};

const NEW: Options = Options { force: false, len_bytes: None };

fn identity(output: &Output) -> (u64, u64) {
    let found = output.file().metadata().unwrap();
    (found.dev(), found.ino())
}

#[test]
fn a_partial_output_stays_and_is_gone_on_with() {
    let dir = disk_dir();
    let path = dir.path().join("out");
    let partial = Partial::choose(&path, false).unwrap();
    assert_eq!(names(dir.path()), [""; 0]);
    let output = partial.create(&NEW).unwrap();
    output.file().write_all_at(b"abcdef", 0).unwrap();
    let was = identity(&output);
    drop(output);
    assert_eq!(names(dir.path()), [partial.name().to_str().unwrap()]);
    let again = Partial::named(partial.path(), partial.name());
    let output = again.reopen(&NEW, was, 4).unwrap().unwrap();
    output.file().write_all_at(b"X", 4).unwrap();
    output.commit(false).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"abcdX");
    assert_eq!(names(dir.path()), ["out"]);
    // Complete: there is nothing to go on with.
    assert!(again.reopen(&NEW, was, 4).unwrap().is_none());
}

#[test]
fn a_known_length_is_claimed_and_kept() {
    let dir = disk_dir();
    let partial = Partial::choose(&dir.path().join("out"), false).unwrap();
    let options = Options { len_bytes: Some(10_000), ..NEW };
    let output = partial.create(&options).unwrap();
    let was = identity(&output);
    assert_eq!(output.file().metadata().unwrap().len(), 10_000);
    drop(output);
    let output = partial.reopen(&options, was, 4096).unwrap().unwrap();
    assert_eq!(output.file().metadata().unwrap().len(), 10_000);
}

#[test]
fn what_is_not_ours_is_refused_and_left() {
    let dir = disk_dir();
    let path = dir.path().join("out");
    let partial = Partial::choose(&path, false).unwrap();
    let was = identity(&partial.create(&NEW).unwrap());
    let hidden = dir.path().join(partial.name());
    let refused = |identity, len_bytes, what: &str| {
        let error = partial.reopen(&NEW, identity, len_bytes).unwrap_err();
        assert_eq!(error.kind(), OutputErrorKind::Lost, "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    refused(was, 1, "shorter");
    refused((was.0 + 1, was.1), 0, "another file");
    fs::rename(&hidden, dir.path().join("away")).unwrap();
    refused(was, 0, "missing");
    fs::create_dir(&hidden).unwrap();
    assert!(partial.reopen(&NEW, was, 0).is_err());
    fs::remove_dir(&hidden).unwrap();
    std::os::unix::fs::symlink("away", &hidden).unwrap();
    assert!(partial.reopen(&NEW, was, 0).is_err());
    for name in ["away", "../away", ".x/../.out.cellway-0123456789abcdef"] {
        let other = Partial::named(&path, OsStr::new(name));
        assert!(other.reopen(&NEW, was, 0).is_err(), "{name}");
        other.discard(Some(was));
    }
    partial.discard(Some((was.0 + 1, was.1)));
    assert_eq!(names(dir.path()), [partial.name().to_str().unwrap(), "away"]);
}

#[test]
fn an_old_output_is_replaced_only_by_force() {
    let dir = disk_dir();
    let path = dir.path().join("out");
    fs::write(&path, "old").unwrap();
    assert_eq!(Partial::choose(&path, false).unwrap_err().kind(), OutputErrorKind::Exists);
    let (partial, force) = (Partial::choose(&path, true).unwrap(), Options { force: true, ..NEW });
    let was = identity(&partial.create(&force).unwrap());
    assert_eq!(partial.reopen(&NEW, was, 0).unwrap_err().kind(), OutputErrorKind::Exists);
    let output = partial.reopen(&force, was, 0).unwrap().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old");
    output.commit(true).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    assert_eq!(names(dir.path()), ["out"]);
}

#[test]
fn what_is_written_straight_has_no_partial() {
    for name in ["-", "/dev/stdout", "/dev/null", "/"] {
        let error = Partial::choose(Path::new(name), true).unwrap_err();
        assert_eq!(error.kind(), OutputErrorKind::Unwritable, "{error}");
    }
}
