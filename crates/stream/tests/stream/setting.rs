//! Where the runs of these tests read from and write to, and how.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use accel::{EngineChoice, Faults};
use cellway_stream::{
    Direct, Effect, Kernel, MergeOrder, Options, Outcome, Pipeline, Progress, Scheme, StreamError,
    run,
};
use storage::{Input, Output};
use tempfile::TempDir;

use crate::probe::{Probe, Seen, byte_at, content};

/// Says that a check cannot run here; in CI that is a failure.
pub(crate) fn skip(what: &str, reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{what}: {reason}");
    println!("SKIP {what}: {reason}");
}

/// Where files lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    /// tmpfs.
    Memory,
    /// Whatever holds the build.
    Real,
}

impl Disk {
    pub(crate) fn folder(self) -> Option<TempDir> {
        if self == Self::Real {
            let exe = std::env::current_exe().unwrap();
            return Some(tempfile::tempdir_in(exe.parent().unwrap()).unwrap());
        }
        let folder = tempfile::tempdir_in("/dev/shm");
        folder.inspect_err(|error| skip("files in memory", &format!("/dev/shm: {error}"))).ok()
    }
}

/// Whether io_uring works here.
pub(crate) fn has_uring() -> bool {
    let probed = accel::probe(EngineChoice::Uring, 1 << 20);
    probed.inspect_err(|error| skip("io_uring", &error.to_string())).is_ok()
}

/// Whether the folder of the build has direct I/O.
pub(crate) fn has_direct() -> bool {
    let dir = Disk::Real.folder().unwrap();
    std::fs::write(dir.path().join("in"), "abc").unwrap();
    let input = Input::open(&dir.path().join("in")).unwrap();
    let opened = input.open_direct();
    opened.inspect_err(|refused| skip("direct I/O", &refused.to_string())).is_ok()
}

/// The names in a folder, sorted.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = dir.read_dir().unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    File,
    Pipe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// Only the result counts.
    Nothing,
    File,
    Pipe,
    Null,
}

/// One run: what is streamed, from where to where, and how.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) seed: u64,
    /// Bytes before, in and after the body; a pipe has only a body.
    pub(crate) sizes: (u64, u64, u64),
    pub(crate) disk: Disk,
    pub(crate) from: From,
    pub(crate) to: To,
    pub(crate) options: Options,
}

/// All schemes that transfer, the accelerators' own I/O first.
pub(crate) const SCHEMES: [Scheme; 7] = [
    Scheme::Direct,
    Scheme::Assisted,
    Scheme::ReadAhead,
    Scheme::Prefetch,
    Scheme::Whole,
    Scheme::Signalled,
    Scheme::Staged,
];

/// What came of a run.
pub(crate) struct Ran<P = Vec<Seen>> {
    pub(crate) outcome: Result<Outcome<P>, StreamError>,
    /// What the output holds, or a pipe's reader got.
    pub(crate) written: Option<Vec<u8>>,
    /// The folder of input and output.
    pub(crate) dir: TempDir,
}

impl Setting {
    /// A body of `len_bytes` in a file, blocks of `block_bytes`; nothing else asked for.
    pub(crate) fn of_file(len_bytes: u64, block_bytes: u64, to: To) -> Self {
        let options = Options { block_bytes: Some(block_bytes), ..Options::default() };
        let sizes = (0, len_bytes, 0);
        Self { seed: len_bytes, sizes, disk: Disk::Real, from: From::File, to, options }
    }

    pub(crate) fn at(mut self, accelerators: usize, threads: usize) -> Self {
        self.options.accelerators = Some(accelerators);
        self.options.threads = Some(threads);
        self
    }

    pub(crate) fn direct(mut self, direct: Direct) -> Self {
        self.options.direct = direct;
        self
    }

    pub(crate) fn faults(mut self, faults: Faults) -> Self {
        self.options.faults = Some(faults);
        self
    }

    pub(crate) fn scheme(mut self, scheme: Scheme) -> Self {
        self.options.scheme = scheme;
        self
    }

    /// For a chain of `early` kernels and one more, each on as many accelerators
    /// as there were; as it is without.
    pub(crate) fn spread(mut self, early: usize) -> Self {
        if early > 0 {
            self.options.pipeline = Pipeline::Spread;
            self.options.accelerators = self.options.accelerators.map(|n| n * (early + 1));
        }
        self
    }

    /// Whether the host does the I/O, which takes the page cache.
    pub(crate) fn is_by_host(&self) -> bool {
        ![Scheme::Auto, Scheme::Direct].contains(&self.options.scheme)
    }

    /// The same as its scheme can do it.
    pub(crate) fn suited(mut self) -> Self {
        if self.is_by_host() {
            self.options.direct = Direct::Off;
        }
        if self.holds_all() {
            self.from = From::File;
        }
        self
    }

    fn holds_all(&self) -> bool {
        [Scheme::ReadAhead, Scheme::Whole].contains(&self.options.scheme)
    }

    /// Whether the scheme cannot do what is asked for.
    pub(crate) fn is_unsuited(&self) -> bool {
        let piped = self.holds_all() && self.from == From::Pipe;
        piped || self.is_by_host() && self.options.direct == Direct::On
    }

    pub(crate) fn body(&self) -> Range<u64> {
        let (before, body, _) = self.sizes;
        if self.from == From::Pipe { 0..body } else { before..before + body }
    }

    pub(crate) fn probe(&self, order: MergeOrder) -> Probe {
        let effect = if self.to == To::Nothing { Effect::Reduce } else { Effect::Transform };
        Probe::new(effect, order, self.seed, self.body())
    }

    /// Runs `kernel`; `None` where the disk is missing.
    pub(crate) fn run<K: Kernel>(&self, kernel: &K) -> Option<Ran<K::Part>> {
        Some(self.run_in(self.disk.folder()?, kernel))
    }

    /// The same in a folder that is there.
    pub(crate) fn run_in<K: Kernel>(&self, dir: TempDir, kernel: &K) -> Ran<K::Part> {
        let (input, feeder) = self.input(dir.path());
        let (output, drain) = self.output(dir.path(), kernel.effect());
        let progress = Progress::default();
        let outcome = run(kernel, &input, output.as_ref(), &self.options, &progress);
        drop(input);
        let path = dir.path().join("out");
        match (&outcome, output) {
            (Ok(outcome), Some(output)) => {
                assert!(!path.exists(), "the output has its name before it is committed");
                assert_eq!(progress.done_bytes(), outcome.stats.bytes_in);
                output.commit(false).unwrap();
            }
            (_, output) => drop(output),
        }
        let written = match drain {
            Some(drain) => Some(drain.join().unwrap()),
            None => std::fs::read(path).ok(),
        };
        feeder.into_iter().for_each(|feeder| feeder.join().unwrap());
        Ran { outcome, written, dir }
    }

    pub(crate) fn input(&self, dir: &Path) -> (Input, Option<JoinHandle<()>>) {
        let (before, body, after) = self.sizes;
        if self.from == From::File {
            let path = dir.join("in");
            std::fs::write(&path, content(self.seed, 0..before + body + after)).unwrap();
            return (Input::open(&path).unwrap(), None);
        }
        let (reader, writer) = std::io::pipe().unwrap();
        let input = Input::open(&fd_path(&reader)).unwrap();
        (input, Some(feed(writer, content(self.seed, 0..body))))
    }

    fn output(&self, dir: &Path, effect: Effect) -> (Option<Output>, Option<JoinHandle<Vec<u8>>>) {
        let body = self.body();
        let is_known = self.from == From::File && effect == Effect::Transform;
        let len_bytes = is_known.then_some(body.end - body.start);
        let options = storage::Options { force: false, len_bytes };
        let path = match self.to {
            To::Nothing => return (None, None),
            To::File => dir.join("out"),
            To::Null => PathBuf::from("/dev/null"),
            To::Pipe => {
                let (reader, writer) = std::io::pipe().unwrap();
                let output = Output::create(&fd_path(&writer), &options).unwrap();
                return (Some(output), Some(std::thread::spawn(|| drain(reader))));
            }
        };
        (Some(Output::create(&path, &options).unwrap()), None)
    }
}

pub(crate) fn fd_path(file: &impl AsRawFd) -> PathBuf {
    format!("/dev/fd/{}", file.as_raw_fd()).into()
}

/// Writes into a pipe in pieces of many lengths, until nobody reads any more.
pub(crate) fn feed(mut writer: PipeWriter, bytes: Vec<u8>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let drawn = usize::from(byte_at(1, rest.len() as u64));
            let piece = (1 + drawn * drawn).min(rest.len());
            if writer.write_all(&rest[..piece]).is_err() {
                return;
            }
            rest = &rest[piece..];
        }
    })
}

fn drain(mut reader: PipeReader) -> Vec<u8> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    bytes
}
