//! Who does the I/O of a run: the schemes of the paper on I/O prefetching
//! (Figure 4, Table 6) and CellStream's rotating buffers, against accelerators
//! that do their own. Encrypts a cold file into a new one, on disk at the end.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use cellway::Options;
use cellway::accel::Config;
use cellway::kernels::{Aes256Ctr, Identity, Iv128, Key256};
use cellway::storage::{self, Input, Output};
use cellway::stream::{self, Direct, Progress, Scheme, Transform};
use clap::{Args, ValueEnum};

use crate::args::{Rounds, parse_block_bytes, parse_bytes, parse_threads, show_bytes};
use crate::coldfile::ColdFile;
use crate::machine::Machine;
use crate::measure::{Paired, Sample, Spread, Version, paired_on_stretches};
use crate::table::{Cell, Table};

/// Arguments of `bench schemes`.
#[derive(Args, Clone, Debug)]
pub struct SchemesArgs {
    /// Length of the test file
    #[arg(long, default_value = "256M", value_parser = parse_bytes, value_name = "BYTES")]
    pub bytes: u64,
    /// Folder for the test file and what is written
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// What is computed
    #[arg(long, value_enum, default_value_t = KernelArg::Aes256Ctr)]
    pub kernel: KernelArg,
    /// Numbers of accelerators; without it 1 and all cores
    #[arg(long, value_delimiter = ',', value_parser = parse_threads, value_name = "N,..")]
    pub accelerators: Vec<usize>,
    /// Threads on each
    #[arg(long, default_value_t = 4, value_parser = parse_threads, value_name = "N")]
    pub threads: usize,
    /// Blocks, powers of two, of which each scheme takes its best
    #[arg(long, value_delimiter = ',', value_parser = parse_block_bytes, value_name = "BYTES,..",
          default_value = "64K,256K,1M")]
    pub blocks: Vec<usize>,
    /// Buffers of the scheme with rotating ones
    #[arg(long, default_value_t = stream::STAGING_DEFAULT, value_parser = parse_threads, value_name = "N")]
    pub staging: usize,
    /// How often, and whether in earnest.
    #[command(flatten)]
    pub rounds: Rounds,
}

/// What is computed on each block.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelArg {
    /// The paper's workload, with today's cipher
    Aes256Ctr,
    /// Nothing
    Identity,
}

impl KernelArg {
    fn kernel(self) -> Transform {
        match self {
            Self::Aes256Ctr => Box::new(Aes256Ctr::new(&Key256::new([7; 32]), Iv128(9))),
            Self::Identity => Box::new(Identity),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Aes256Ctr => "aes256-ctr",
            Self::Identity => "identity",
        }
    }
}

/// A scheme, whether to go past the page cache, and with how many threads.
#[derive(Clone, Copy)]
struct Way(Scheme, Direct, Threads);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Threads {
    /// One on each accelerator, as the paper's programs have: it waits for each
    /// of its calls.
    One,
    AsAsked,
}

/// The first one, the paper's, is what the others are compared with.
const WAYS: [Way; 9] = [
    Way(Scheme::Assisted, Direct::Off, Threads::One),
    Way(Scheme::Assisted, Direct::Off, Threads::AsAsked),
    Way(Scheme::ReadAhead, Direct::Off, Threads::AsAsked),
    Way(Scheme::Prefetch, Direct::Off, Threads::AsAsked),
    Way(Scheme::Whole, Direct::Off, Threads::AsAsked),
    Way(Scheme::Signalled, Direct::Off, Threads::AsAsked),
    Way(Scheme::Staged, Direct::Off, Threads::AsAsked),
    Way(Scheme::Direct, Direct::Off, Threads::AsAsked),
    Way(Scheme::Direct, Direct::Auto, Threads::AsAsked),
];

impl Way {
    fn name(self) -> String {
        match self {
            Self(scheme, _, Threads::One) => format!("{scheme}, 1 thread"),
            Self(Scheme::Direct, Direct::Off, _) => "direct, cached".to_owned(),
            Self(scheme, ..) => scheme.to_string(),
        }
    }
}

/// Where a run's time went, in seconds.
#[derive(Clone, Copy, Debug)]
struct Steps {
    host_read: f64,
    transfer: f64,
    compute: f64,
    host_write: f64,
    wait: f64,
    sync: f64,
    total: f64,
}

/// What all runs of a table have in common.
struct Bench<'a> {
    args: &'a SchemesArgs,
    file: &'a ColdFile,
    kernel: Transform,
    accelerators: usize,
    out: PathBuf,
}

impl Bench<'_> {
    /// One run over the cold file into a file that was not there.
    fn run(&self, Way(scheme, direct, threads): Way, block_bytes: usize) -> anyhow::Result<Steps> {
        if self.out.exists() {
            std::fs::remove_file(&self.out)?;
        }
        self.file.drop_cached()?;
        let options = Options {
            scheme,
            direct,
            accelerators: Some(self.accelerators),
            threads: Some(if threads == Threads::One { 1 } else { self.args.threads }),
            block_bytes: Some(block_bytes as u64),
            staging: (scheme == Scheme::Staged).then_some(self.args.staging),
            ..Options::default()
        };
        let input = Input::open(&self.file.path())?;
        let made = storage::Options { force: false, len_bytes: input.len_bytes() };
        let output = Output::create(&self.out, &made)?;
        let started = Instant::now();
        let progress = Progress::default();
        let stats = stream::run(&self.kernel, &input, Some(&output), &options, &progress)?.stats;
        let streamed = started.elapsed();
        output.commit(true)?;
        let total = started.elapsed();
        let spent = stats.spent;
        let transfer = (spent.get + spent.put).saturating_sub(spent.wait);
        Ok(Steps {
            host_read: spent.host_read.as_secs_f64(),
            transfer: transfer.as_secs_f64(),
            compute: spent.compute.as_secs_f64(),
            host_write: spent.host_write.as_secs_f64(),
            wait: spent.wait.as_secs_f64(),
            sync: (total - streamed).as_secs_f64(),
            total: total.as_secs_f64(),
        })
    }

    /// The block with which a scheme is fastest, and the sum over what it wrote.
    fn best_block(&self, way: Way) -> anyhow::Result<(usize, u64)> {
        let mut best: Option<(f64, usize)> = None;
        for &block_bytes in &self.args.blocks {
            let Steps { total, .. } = self.run(way, block_bytes)?;
            if best.is_none_or(|(least, _)| total < least) {
                best = Some((total, block_bytes));
            }
        }
        let (_, block_bytes) = best.context("no block to try; give --blocks")?;
        Ok((block_bytes, sum(&self.out)?))
    }

    /// Each scheme at its best block, in turn.
    fn measure(&self) -> anyhow::Result<(Vec<usize>, Vec<Vec<Steps>>, Paired)> {
        let mut blocks = Vec::new();
        let mut agreed = None;
        for way in WAYS {
            let (block_bytes, sum) = self.best_block(way)?;
            anyhow::ensure!(
                *agreed.get_or_insert(sum) == sum,
                "schemes disagree: {} writes {sum:#x}; this is a bug in the benchmark or below it",
                way.name()
            );
            blocks.push(block_bytes);
        }
        let steps: Vec<_> = WAYS.iter().map(|_| RefCell::new(Vec::new())).collect();
        let ways = WAYS.into_iter().zip(blocks.iter().copied()).zip(&steps);
        let mut versions: Vec<_> = ways
            .map(|((way, block_bytes), steps)| {
                Version::new(way.name(), self.accelerators, move || {
                    let run = self.run(way, block_bytes)?;
                    steps.borrow_mut().push(run);
                    Ok(Sample { seconds: run.total, items: self.file.bytes(), check: None })
                })
            })
            .collect();
        let costs = paired_on_stretches(self.args.rounds.count(), &mut versions)?;
        drop(versions);
        Ok((blocks, steps.into_iter().map(RefCell::into_inner).collect(), costs))
    }
}

/// Depends on every byte and its place.
fn sum(path: &Path) -> anyhow::Result<u64> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let (words, rest) = bytes.as_chunks::<8>();
    let last = rest.iter().fold(0, |sum: u64, byte| (sum << 8) | u64::from(*byte));
    let word = |sum: u64, word: &[u8; 8]| {
        (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x100_0000_01B3).rotate_left(29)
    };
    Ok(words.iter().fold(last, word))
}

/// Runs every scheme on each number of accelerators.
pub(crate) fn run(args: &SchemesArgs, machine: &Machine) -> anyhow::Result<Vec<Table>> {
    let mut args = args.clone();
    if args.rounds.quick {
        (args.bytes, args.blocks) = (1 << 20, vec![16 << 10, 64 << 10]);
    }
    if args.accelerators.is_empty() {
        args.accelerators = vec![1, Config::default().accelerators];
        args.accelerators.dedup();
    }
    let file = ColdFile::create(&args.dir, args.bytes)?;
    let folder = tempfile::Builder::new().prefix("cellway-bench-").tempdir_in(&args.dir)?;
    let mut tables = Vec::new();
    for &accelerators in &args.accelerators {
        let (kernel, out) = (args.kernel.kernel(), folder.path().join("out"));
        let bench = Bench { args: &args, file: &file, kernel, accelerators, out };
        tables.push(table(&bench, machine)?);
    }
    Ok(tables)
}

fn table(bench: &Bench<'_>, machine: &Machine) -> anyhow::Result<Table> {
    let (args, count) = (bench.args, bench.accelerators);
    let size = show_bytes(bench.file.bytes());
    let title = format!(
        "Schemes of I/O: {} over {size} from a cold file to a new one, {count} x {} threads",
        args.kernel.name(),
        args.threads
    );
    let columns = [
        ("scheme", ""),
        ("block", ""),
        ("host read", "s"),
        ("transfer", "s"),
        ("compute", "s"),
        ("host write", "s"),
        ("wait", "s"),
        ("sync", "s"),
        ("total", "s"),
        ("least", "s"),
        ("faster than the first", "x"),
    ];
    let mut table = Table::new(title, machine, &columns);
    let (blocks, steps, costs) = bench.measure()?;
    for (version, (way, block_bytes)) in WAYS.into_iter().zip(blocks).enumerate() {
        // The first run of each only warms up.
        let runs = &steps[version][1..];
        let seconds = |step: fn(&Steps) -> f64| Spread::of(runs.iter().map(step));
        let median = |step| Cell::from(seconds(step).median);
        table.row([
            way.name().into(),
            show_bytes(block_bytes as u64).into(),
            median(|steps| steps.host_read),
            median(|steps| steps.transfer),
            median(|steps| steps.compute),
            median(|steps| steps.host_write),
            median(|steps| steps.wait),
            median(|steps| steps.sync),
            median(|steps| steps.total),
            seconds(|steps| steps.total).min.into(),
            costs.speedup(version, 0).median.into(),
        ]);
    }
    table.note("medians; transfer, compute and wait are sums over all threads of the accelerators");
    table.note(
        "transfer: gets and puts without waits; by schemes 1-3 the same calls as the host's \
         reads and writes. sync: fsync of the output, part of the total",
    );
    table.note("all go through the page cache but direct, which goes past it");
    Ok(table)
}
