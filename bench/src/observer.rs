//! What others who look into a run cost it: `#job` over a unix socket, as
//! `cellway run --serve` gives it, with nobody attached, with a client that only
//! is there, and with one that reads the progress once a second.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cellway::Options;
use cellway::kernels::{Aes256Ctr, Blake3, Crc32c, Finish as _, Iv128, Key256};
use cellway::storage::{self, Input, Output};
use cellway::stream::{self, Progress};
use clap::{Args, ValueEnum};
use fs::{
    Address, Exports, FileServer, JobServer, OpenMode, Remote, RemoteFile, RemoteNode,
    ServeOptions, Serving, Shown, wait,
};
use tempfile::TempDir;

use crate::args::{Rounds, parse_bytes, show_bytes};
use crate::cachedfile::CachedFile;
use crate::machine::Machine;
use crate::measure::{Sample, Spread, Version, paired};
use crate::table::{Cell, Table};

/// Arguments of `bench observer`.
#[derive(Args, Clone, Debug)]
pub struct ObserverArgs {
    /// Length of the input, which the page cache holds; a multiple of 8
    #[arg(long, default_value = "2G", value_parser = parse_bytes, value_name = "BYTES")]
    pub bytes: u64,
    /// Folder for the input
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// What is computed
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "KERNEL,..",
        default_value = "blake3,crc32c,aes256-ctr"
    )]
    pub kernels: Vec<KernelArg>,
    /// How long one run lasts, about: it streams the input as often as that takes. Many
    /// short runs tell small differences, long ones what it costs to be read
    #[arg(long, default_value_t = 3.0, value_parser = parse_seconds, value_name = "N")]
    pub seconds: f64,
    /// How often, and whether in earnest.
    #[command(flatten)]
    pub rounds: Rounds,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "not a number from 0.01 to 3600".into())
}

/// What is computed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelArg {
    /// A reduction that looks at its input in place
    Blake3,
    /// The fastest one
    Crc32c,
    /// A transform; its output goes to /dev/null
    Aes256Ctr,
}

impl KernelArg {
    fn name(self) -> &'static str {
        match self {
            Self::Blake3 => "blake3",
            Self::Crc32c => "crc32c",
            Self::Aes256Ctr => "aes256-ctr",
        }
    }

    /// Streams `input` once; a part of the result, if there is one.
    fn stream(self, input: &Input, progress: &Progress) -> anyhow::Result<Option<u64>> {
        let options = &Options::default();
        Ok(match self {
            Self::Blake3 => {
                let part = stream::run(&Blake3::new(), input, None, options, progress)?.part;
                let hash = Blake3::new().finish(part)?.hash;
                hash.first_chunk().map(|word| u64::from_le_bytes(*word))
            }
            Self::Crc32c => {
                let part = stream::run(&Crc32c::new(), input, None, options, progress)?.part;
                Some(Crc32c::new().finish(part)?.crc.into())
            }
            Self::Aes256Ctr => {
                let kernel = Aes256Ctr::new(&Key256::new([7; 32]), Iv128(9));
                let output = Output::create(Path::new("/dev/null"), &storage::Options::default())?;
                stream::run(&kernel, input, Some(&output), options, progress)?;
                output.commit(false)?;
                None
            }
        })
    }
}

/// Who looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Observer {
    /// Nobody could.
    NotServed,
    Nobody,
    Idle,
    Reading,
}

/// The first one is what the others are compared with; the last one tells how far
/// equal runs differ.
const OBSERVERS: [(&str, Observer); 5] = [
    ("not served", Observer::NotServed),
    ("served, nobody attached", Observer::Nobody),
    ("served, idle client", Observer::Idle),
    ("progress read once a second", Observer::Reading),
    ("not served, again", Observer::NotServed),
];

/// Between two reads of the progress.
const READ_EVERY: Duration = Duration::from_secs(1);

const USER: &str = "bench";

pub(crate) fn run(args: &ObserverArgs, machine: &Machine) -> anyhow::Result<Vec<Table>> {
    let mut args = args.clone();
    if args.rounds.quick {
        args.bytes = 1 << 20;
    }
    anyhow::ensure!(args.bytes.is_multiple_of(8), "--bytes must be a multiple of 8");
    let file = CachedFile::create(&args.dir, args.bytes)?;
    args.kernels.iter().map(|&kernel| table(&args, kernel, &file, machine)).collect()
}

fn table(
    args: &ObserverArgs,
    kernel: KernelArg,
    file: &CachedFile,
    machine: &Machine,
) -> anyhow::Result<Table> {
    let mut work =
        Work { kernel, path: file.folder().join(CachedFile::NAME), bytes: args.bytes, passes: 1 };
    if !args.rounds.quick {
        work.passes = work.passes_of(Duration::from_secs_f64(args.seconds))?;
    }
    let reads = OBSERVERS.map(|_| RefCell::new(Vec::new()));
    let mut versions: Vec<_> = OBSERVERS
        .iter()
        .zip(&reads)
        .map(|(&(name, observer), reads)| {
            let work = &work;
            Version::new(name, 1, move || {
                let run = work.run(observer)?;
                reads.borrow_mut().extend(run.reads.map(|count| count as f64));
                Ok(run.sample)
            })
        })
        .collect();
    let costs = paired(args.rounds.count(), &mut versions)?;
    drop(versions);
    file.check_cached()?;
    let columns = [
        ("run", ""),
        ("rate", "GB/s"),
        ("rate / not served", "x"),
        ("from", "x"),
        ("to", "x"),
        ("reads", ""),
    ];
    let (name, size) = (kernel.name(), show_bytes(args.bytes));
    let title = format!("observer: {name}, {} x {size} of the page cache", work.passes);
    let mut table = Table::new(title, machine, &columns);
    for (version, (name, _)) in OBSERVERS.into_iter().enumerate() {
        let ratio = costs.speedup(version, 0);
        let (from, to) = costs.speedup_interval(version, 0);
        // The first run of each only warms up.
        let reads = Spread::of(reads[version].borrow().iter().skip(1).copied());
        table.row([
            name.into(),
            (1.0 / costs.item_ns(version).median).into(),
            ratio.median.into(),
            from.into(),
            to.into(),
            Cell::from(reads.median),
        ]);
    }
    table.note(
        "medians; ratios are of the runs of one round, below 1 where the run took longer; from, to: \
         where the median of all such ratios lies, in 95 of 100 tables",
    );
    table.note(
        "served, as by run --serve: #job at a unix socket, and what each thread does last is kept; servers and \
         clients are this process's, made before the time starts",
    );
    table.note("reads: of the progress during a run; its file is opened for each");
    table.note("again: the first once more in each round: what differs there is the machine");
    Ok(table)
}

/// What every version does.
struct Work {
    kernel: KernelArg,
    path: PathBuf,
    bytes: u64,
    passes: u64,
}

/// A run, and how often its progress was read meanwhile.
struct Run {
    sample: Sample,
    reads: Option<u64>,
}

impl Work {
    /// How often the input is streamed in `time`.
    fn passes_of(&self, time: Duration) -> anyhow::Result<u64> {
        let mut seconds = f64::INFINITY;
        for _ in 0..3 {
            seconds = seconds.min(self.run(Observer::NotServed)?.sample.seconds);
        }
        Ok((time.as_secs_f64() / seconds).ceil() as u64)
    }

    fn total_bytes(&self) -> u64 {
        self.bytes * self.passes
    }

    fn run(&self, observer: Observer) -> anyhow::Result<Run> {
        if observer == Observer::NotServed {
            let sample = self.stream(&Progress::default())?;
            return Ok(Run { sample, reads: None });
        }
        let progress = Arc::new(Progress::default().observed());
        let window = Window::open(&progress, self.total_bytes())?;
        if observer == Observer::Nobody {
            return Ok(Run { sample: self.stream(&progress)?, reads: None });
        }
        let client = Client::attach(&window)?;
        let (sample, reads) = if observer == Observer::Idle {
            (self.stream(&progress)?, None)
        } else {
            self.read_meanwhile(&client, &progress)?
        };
        let (seen, total) = (client.done_bytes()?, self.total_bytes());
        anyhow::ensure!(
            seen == total,
            "the client sees {seen} bytes done of {total}; this is a bug in the benchmark or below"
        );
        drop(client);
        Ok(Run { sample, reads })
    }

    fn stream(&self, progress: &Progress) -> anyhow::Result<Sample> {
        let input = Input::open(&self.path)?;
        let mut check = None;
        let timed = Sample::timed(self.total_bytes(), || {
            for _ in 0..self.passes {
                check = self.kernel.stream(&input, progress)?;
            }
            Ok(())
        })?;
        Ok(Sample { check, ..timed })
    }

    fn read_meanwhile(
        &self,
        client: &Client,
        progress: &Progress,
    ) -> anyhow::Result<(Sample, Option<u64>)> {
        thread::scope(|scope| {
            let (ends, ended) = mpsc::channel();
            let read = || client.done_bytes().map(drop);
            let reader = scope.spawn(move || repeat(READ_EVERY, &ended, read));
            let sample = self.stream(progress);
            drop(ends);
            let reads = reader.join().map_err(|_| anyhow::anyhow!("the reader has panicked"))?;
            Ok((sample?, Some(reads?)))
        })
    }
}

/// Does `work` each time `every` has passed, until the other end is dropped; how often.
fn repeat(
    every: Duration,
    ended: &Receiver<()>,
    mut work: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let (start, mut times) = (Instant::now(), 0);
    loop {
        let next = every * (times + 1);
        match ended.recv_timeout(next.saturating_sub(start.elapsed())) {
            Err(RecvTimeoutError::Timeout) => work()?,
            _ => return Ok(times.into()),
        }
        times += 1;
    }
}

/// A run that others can look into.
struct Window {
    // In the order in which they go.
    shown: Shown,
    serving: Serving,
    _folder: TempDir,
}

impl Window {
    fn open(progress: &Arc<Progress>, total_bytes: u64) -> anyhow::Result<Self> {
        let (folder, jobs) = (tempfile::tempdir()?, JobServer::new());
        let at = Address::unix(folder.path().join("socket"))?;
        let trees = vec![("job".to_owned(), Arc::new(jobs.clone()) as Arc<dyn FileServer>)];
        let serving = fs::serve(&at, Arc::new(Exports::new(trees)?), ServeOptions::default())?;
        let parameters = serde_json::Value::Null;
        let shown = jobs.show(progress.clone(), Some(total_bytes), parameters, || ());
        Ok(Self { shown, serving, _folder: folder })
    }
}

/// Who is attached, and has the progress open.
struct Client {
    progress: RemoteNode,
    _open: RemoteFile,
    _remote: Remote,
}

impl Client {
    fn attach(window: &Window) -> anyhow::Result<Self> {
        let remote = Remote::connect(window.serving.address(), Remote::PATIENCE)?;
        wait(async {
            let root = remote.root(USER, "").await?;
            let progress = root.walk_to(&["job", window.shown.name(), "progress"]).await?;
            let open = progress.open_file(OpenMode::READ).await?;
            Ok(Self { progress, _open: open, _remote: remote })
        })
    }

    /// What the run has done, by its progress as it is now.
    fn done_bytes(&self) -> anyhow::Result<u64> {
        let mut text = vec![0; 4096];
        let len = wait(async {
            // What is made up is made up when it is opened.
            self.progress.open_file(OpenMode::READ).await?.read_at(0, &mut text).await
        })?;
        let told: serde_json::Value = serde_json::from_slice(&text[..len])?;
        told["done_bytes"].as_u64().with_context(|| format!("the progress is no number: {told}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_streams_as_often_as_asked_and_its_client_sees_that() {
        let file = match CachedFile::create(Path::new("/var/tmp"), 1 << 20) {
            Ok(file) => file,
            Err(error) => return crate::skip("a test file", &format!("{error:#}")),
        };
        let path = file.folder().join(CachedFile::NAME);
        for kernel in [KernelArg::Blake3, KernelArg::Crc32c, KernelArg::Aes256Ctr] {
            let work = Work { kernel, path: path.clone(), bytes: 1 << 20, passes: 3 };
            let runs = OBSERVERS.map(|(_, observer)| work.run(observer).unwrap());
            for (run, (_, observer)) in runs.iter().zip(OBSERVERS) {
                assert_eq!(run.sample.items, 3 << 20);
                assert_eq!(run.sample.check, runs[0].sample.check);
                assert_eq!(run.reads.is_some(), observer == Observer::Reading);
            }
        }
    }

    #[test]
    fn a_client_sees_a_run_until_that_is_closed() {
        let progress = Arc::new(Progress::default().observed());
        let window = Window::open(&progress, 1 << 20).unwrap();
        let client = Client::attach(&window).unwrap();
        assert_eq!(client.done_bytes().unwrap(), 0);
        drop(window);
        assert!(client.done_bytes().is_err());
    }

    #[test]
    fn what_is_repeated_ends_with_the_run_or_an_error() {
        let (ends, ended) = mpsc::channel();
        let (mut ends, mut times) = (Some(ends), 0);
        let work = || {
            times += 1;
            drop(if times == 3 { ends.take() } else { None });
            Ok(())
        };
        assert_eq!(repeat(Duration::ZERO, &ended, work).unwrap(), 3);
        let (_ends, ended) = mpsc::channel();
        assert!(repeat(Duration::ZERO, &ended, || anyhow::bail!("the server is gone")).is_err());
    }
}
