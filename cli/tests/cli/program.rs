//! Running the program, and folders for it to work in.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

pub(crate) const EXE: &str = env!("CARGO_BIN_EXE_cellway");

/// Of kernels that encrypt; the key is a file.
pub(crate) const CIPHER: &str = "--key-file {} --iv 00000000000000000000000000000001";

/// A test that cannot run here says why; on CI that is a failure.
pub(crate) fn skip(what: &str, reason: &str) {
    println!("SKIP {what}: {reason}");
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{what}: {reason}");
}

/// A folder on a disk (not in memory, where /tmp often is), removed at the end.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    /// One in memory, where what is not written in a file takes neither room nor time.
    pub(crate) fn in_memory() -> Self {
        Self(TempDir::new_in("/dev/shm").unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    pub(crate) fn fifo(&self, name: &str) -> PathBuf {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, self.path(name), kind, mode, 0).unwrap();
        self.path(name)
    }

    /// What is in it, hidden files too.
    pub(crate) fn names(&self) -> Vec<String> {
        names(self.0.path())
    }
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// The program with arguments, its streams caught.
pub(crate) fn command<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(EXE);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Splits at spaces; `{}` stands for the paths in their order.
pub(crate) fn arguments(line: &str, paths: &[&Path]) -> Vec<PathBuf> {
    let mut paths = paths.iter();
    let argument = |word: &str| match word {
        "{}" => paths.next().expect("a path for each {}").to_path_buf(),
        word => PathBuf::from(word),
    };
    line.split_whitespace().map(argument).collect()
}

/// Runs the program to its end.
pub(crate) fn cellway(line: &str, paths: &[&Path]) -> Outcome {
    finish(command(arguments(line, paths)).spawn().unwrap())
}

/// As [`cellway`], with standard input from a pipe.
pub(crate) fn cellway_fed(line: &str, paths: &[&Path], input: &[u8]) -> Outcome {
    let mut child = command(arguments(line, paths)).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A child that fails early leaves the rest unread.
        scope.spawn(move || drop(stdin.write_all(input)));
        finish(child)
    })
}

/// Longer than any run here takes on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Waits for its end. One that hangs is killed, and fails with what it said.
#[track_caller]
pub(crate) fn finish(child: Child) -> Outcome {
    finish_within(child, PATIENCE)
}

#[track_caller]
fn finish_within(child: Child, patience: Duration) -> Outcome {
    let watchdog = Watchdog::within(&child, patience);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    if watchdog.has_killed() {
        let stdout = output.stdout.get(..1000).unwrap_or(&output.stdout).escape_ascii();
        panic!("killed after {patience:?}; it said {stderr:?}, and began with \"{stdout}\"");
    }
    Outcome { code: output.status.code(), stdout: output.stdout, stderr }
}

/// Kills a program that hangs, unless it is dropped before: who reads from it finds the end.
pub(crate) struct Watchdog {
    ended: Sender<()>,
    has_killed: JoinHandle<bool>,
}

impl Watchdog {
    pub(crate) fn of(child: &Child) -> Self {
        Self::within(child, PATIENCE)
    }

    fn within(child: &Child, patience: Duration) -> Self {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
        let (ended, end) = mpsc::channel();
        let has_killed = std::thread::spawn(move || {
            let hangs = end.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
            hangs && pidfd_send_signal(&process, Signal::KILL).is_ok()
        });
        Self { ended, has_killed }
    }

    fn has_killed(self) -> bool {
        drop(self.ended);
        self.has_killed.join().unwrap()
    }
}

#[test]
#[should_panic(expected = "killed after 50ms; it said")]
fn a_program_that_hangs_fails_with_what_it_said() {
    let folder = Folder::new();
    let child = command(arguments("run crc32c {}", &[&folder.fifo("fifo")])).spawn().unwrap();
    finish_within(child, Duration::from_millis(50));
}

impl Outcome {
    /// It went well and had nothing to complain about; its standard output.
    #[track_caller]
    pub(crate) fn ok(self) -> Vec<u8> {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""));
        self.stdout
    }

    #[track_caller]
    pub(crate) fn ok_text(self) -> String {
        String::from_utf8(self.ok()).unwrap()
    }

    /// It failed with this code and one line that names what failed and the
    /// cure, and holds all `parts`.
    #[track_caller]
    pub(crate) fn failed(self, code: i32, parts: &[&str]) {
        let stderr = &self.stderr;
        assert_eq!(self.code, Some(code), "{stderr}");
        assert_eq!(String::from_utf8_lossy(&self.stdout), "", "{stderr}");
        assert_eq!(stderr.matches('\n').count(), 1, "{stderr:?}");
        assert!(stderr.starts_with("cellway: ") && stderr.ends_with('\n'), "{stderr:?}");
        assert!(stderr.contains("; "), "no cure: {stderr:?}");
        for part in parts {
            assert!(stderr.contains(part), "{part:?} is not in {stderr:?}");
        }
    }
}

/// Spins, giving way to others, until something is so.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !is_so() {
        assert!(started.elapsed().as_secs() < 120, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// Bytes without a pattern, the same for each seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A 24-bit bitmap without its pixels: `height < 0` means top down.
pub(crate) fn bmp_header(width: i32, height: i32) -> Vec<u8> {
    let stride_bytes = (width.unsigned_abs() * 3).next_multiple_of(4);
    let pixel_bytes = stride_bytes * height.unsigned_abs();
    let mut header = Vec::from(*b"BM");
    for field in [
        54 + pixel_bytes,
        0,
        54,
        40,
        width as u32,
        height as u32,
        1 | 24 << 16,
        0,
        pixel_bytes,
        0,
        0,
        0,
        0,
    ] {
        header.extend(field.to_le_bytes());
    }
    header
}
