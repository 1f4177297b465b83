//! What the tests share.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::thread::CapabilitySet;
use tempfile::TempDir;

/// Tells the same test in a child process which folder to work in.
const CHILD: &str = "CELLWAY_STORAGE_CHILD";

/// A folder on the disk that holds the build, as /tmp may be memory.
pub(crate) fn disk_dir() -> TempDir {
    let exe = std::env::current_exe().unwrap();
    tempfile::tempdir_in(exe.parent().unwrap()).unwrap()
}

/// The names in a folder, sorted.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = dir.read_dir().unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Says that a test cannot run here; in CI that is a failure.
pub(crate) fn skip(what: &str, reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{what}: {reason}");
    println!("SKIP {what}: {reason}");
}

/// Runs `test` on a thread that obeys permission bits even as root.
pub(crate) fn obeying_permissions(test: impl FnOnce() + Send) {
    let obey = || {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        rustix::thread::set_capabilities(None, sets).unwrap();
        test();
    };
    std::thread::scope(|scope| scope.spawn(obey).join()).unwrap();
}

/// In a child made by [`child`], the folder to work in.
pub(crate) fn child_dir() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// A command that runs `test` of this program again in a process of its own,
/// after the shell did `setup`, in which `$DIR` is `dir`.
pub(crate) fn child(test: &str, dir: &Path, wrapper: &[&str], setup: &str) -> Command {
    child_of(&std::env::current_exe().unwrap(), test, dir, wrapper, setup)
}

/// The same with a copy of this program.
pub(crate) fn child_of(
    exe: &Path,
    test: &str,
    dir: &Path,
    wrapper: &[&str],
    setup: &str,
) -> Command {
    let script = format!("{setup} exec \"$@\"");
    let mut words: Vec<_> = wrapper.iter().map(Path::new).collect();
    words.extend(["sh", "-c", &script, "sh"].map(Path::new));
    words.push(exe);
    words.extend(["--exact", "--nocapture", "--test-threads=1", test].map(Path::new));
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env(CHILD, dir).env("DIR", dir);
    command
}
