//! CellMT's synthetic benchmark (section 5): get blocks, compute so many
//! cycles on each byte, put them back or not. Simple and double buffering
//! against cooperative threads, in memory and in a file.
//!
//! In memory there are two disciplines, never mixed. *Waited*: nothing goes on
//! before a transfer's block is there, as on the Cell, whose cores run in
//! order; by a load fence, or by making the next address depend on the block.
//! *Plain*: the processor overlaps what it can by itself.

mod raw;
mod report;
mod versions;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use self::report::{Outcome, Setting};
use self::versions::{Case, FIO_DEPTH, Medium};
use crate::args::{
    Discipline, Order, PagesArg, Rounds, parse_block_bytes, parse_bytes, parse_threads,
};
use crate::chain::{CYCLES_PER_BYTE, Chain};
use crate::coldfile::ColdFile;
use crate::fio::Fio;
use crate::hw::{Mem, Pages};
use crate::machine::Machine;
use crate::measure::paired_on_stretches;
use crate::program::on_one_core;
use crate::table::Table;

/// Bytes between blocks' lengths in files: what direct I/O can move.
const FILE_BLOCK_BYTES_MIN: usize = 4096;
/// Length of a run in memory, in ns: long against its start.
const MEMORY_RUN_NS: f64 = 15e6;
const MEMORY_BLOCKS_MIN: f64 = 128.0;
/// Blocks of a run by one thread over a file, and the ns of compute it may hold.
const FILE_BLOCKS: f64 = 1000.0;
const FILE_COMPUTE_NS: f64 = 20e6;

/// Arguments of `bench synthetic`.
#[derive(Args, Clone, Debug)]
pub struct SyntheticArgs {
    /// Where the blocks lie
    #[arg(long, value_enum, default_value_t = MediumArg::Both)]
    pub medium: MediumArg,
    /// Memory that the blocks lie in
    #[arg(long, default_value = "1G", value_parser = parse_bytes, value_name = "BYTES")]
    pub bytes: u64,
    /// Page size of that memory
    #[arg(long, value_enum, default_value_t = PagesArg::Small)]
    pub pages: PagesArg,
    /// Length of the test file
    #[arg(long, default_value = "2G", value_parser = parse_bytes, value_name = "BYTES")]
    pub file_bytes: u64,
    /// Folder for the test file
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// Block lengths, powers of two; in a file those from 4K on
    #[arg(long, value_delimiter = ',', value_parser = parse_block_bytes, value_name = "BYTES,..",
          default_value = "16,32,64,128,256,512,1K,2K,4K,8K,16K")]
    pub sizes: Vec<usize>,
    /// Cycles of compute per byte: 0, 1, 2, 4, .. 64
    #[arg(long, value_delimiter = ',', default_value = "0,1,2,4,8,16,32,64", value_name = "N,..",
          value_parser = parse_cycles)]
    pub cycles: Vec<usize>,
    /// Get and compute only, or put back too
    #[arg(long, value_enum, default_value_t = ModeArg::Both)]
    pub mode: ModeArg,
    /// Order of the blocks; without it both
    #[arg(long, value_enum)]
    pub order: Option<Order>,
    /// In memory: how a transfer's end is waited for; without it all three
    #[arg(long, value_enum, value_delimiter = ',')]
    pub discipline: Vec<Discipline>,
    /// Threads that are compared with the other versions (15 in the paper)
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = parse_threads)]
    pub threads: usize,
    /// Further numbers of threads, for reading at 0 cycles per byte (Figures 3, 4)
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,8,15,16,32", value_name = "N,..",
          value_parser = parse_threads)]
    pub more_threads: Vec<usize>,
    /// Depths of the loop with prefetches by hand
    #[arg(long, value_delimiter = ',', default_value = "4,16", value_name = "N,..",
          value_parser = parse_threads)]
    pub ahead: Vec<usize>,
    /// How often, and whether in earnest.
    #[command(flatten)]
    pub rounds: Rounds,
}

/// Where the blocks lie.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumArg {
    /// In main memory
    Memory,
    /// In a file that no cache holds, by direct I/O
    File,
    /// One after the other
    Both,
}

/// What is done with a block.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeArg {
    /// Get, compute
    Read,
    /// Get, compute, put
    Write,
    /// One after the other
    Both,
}

fn parse_cycles(text: &str) -> Result<usize, String> {
    let cycles = text.parse().ok().filter(|cycles| CYCLES_PER_BYTE.contains(cycles));
    cycles.ok_or_else(|| format!("compiled in are {CYCLES_PER_BYTE:?} cycles per byte"))
}

impl SyntheticArgs {
    /// The same with tiny parameters where `--quick` asks for them.
    fn effective(&self) -> Self {
        let mut args = self.clone();
        if args.rounds.quick {
            (args.bytes, args.file_bytes) = (8 << 20, 1 << 20);
            (args.sizes, args.cycles) = (vec![64, 4096], vec![0, 1]);
            (args.more_threads, args.ahead) = (vec![2], vec![2]);
        }
        args
    }

    fn orders(&self) -> Vec<Order> {
        self.order.map_or(vec![Order::Sequential, Order::Random], |order| vec![order])
    }

    fn writes(&self) -> &'static [bool] {
        match self.mode {
            ModeArg::Read => &[false],
            ModeArg::Write => &[true],
            ModeArg::Both => &[false, true],
        }
    }

    fn disciplines(&self) -> &[Discipline] {
        if self.discipline.is_empty() { Discipline::value_variants() } else { &self.discipline }
    }

    /// Numbers of threads for a cell: more of them where Figures 3 and 4 want them.
    fn threads_for(&self, write: bool, cycles: usize) -> Vec<usize> {
        let mut threads = vec![self.threads];
        if !write && cycles == 0 {
            threads.extend(&self.more_threads);
        }
        threads.sort_unstable();
        threads.dedup();
        threads
    }
}

/// Runs the synthetic benchmark.
pub(crate) fn run(args: &SyntheticArgs, machine: &Machine) -> anyhow::Result<Vec<Table>> {
    let args = args.effective();
    let longest = args.sizes.iter().max().copied().unwrap_or(0) as u64;
    let room = args.bytes.min(args.file_bytes);
    anyhow::ensure!(
        room >= 2 * longest,
        "memory or file holds no two of the longest blocks; use more --bytes and --file-bytes"
    );
    let mut outcomes = Vec::new();
    let mut notes = Vec::new();
    if args.medium != MediumArg::File {
        for &pages in args.pages.list() {
            on_one_core(|| in_memory(&args, machine, pages, &mut outcomes))?;
        }
    }
    if args.medium != MediumArg::Memory {
        in_file(&args, machine, &mut outcomes, &mut notes)?;
    }
    let mut tables = vec![report::calibration(machine)];
    tables.extend(report::tables(&outcomes, args.threads, machine));
    if let Some(last) = tables.last_mut() {
        last.notes.append(&mut notes);
    }
    Ok(tables)
}

fn in_memory(
    args: &SyntheticArgs,
    machine: &Machine,
    pages: Pages,
    outcomes: &mut Vec<Outcome>,
) -> anyhow::Result<()> {
    let bytes =
        usize::try_from(args.bytes).context("more memory than addresses; use fewer --bytes")?;
    let memory = Mem::from_fn(bytes, pages, |index| (index * 7 % 251) as u8 | 1)?;
    let medium = Medium::Memory(RefCell::new(memory));
    for &discipline in args.disciplines() {
        for &write in args.writes() {
            for order in args.orders() {
                let name = format!("memory, {} pages", pages.name());
                let setting = Setting { medium: name, discipline: Some(discipline), order, write };
                for &block_bytes in &args.sizes {
                    let cells =
                        Cells { args, machine, medium: &medium, setting: &setting, block_bytes };
                    cells.measure(outcomes)?;
                }
            }
        }
    }
    Ok(())
}

fn in_file(
    args: &SyntheticArgs,
    machine: &Machine,
    outcomes: &mut Vec<Outcome>,
    notes: &mut Vec<String>,
) -> anyhow::Result<()> {
    let file = ColdFile::create(&args.dir, args.file_bytes)?;
    let fio = Fio::find(&file.path());
    notes.push(match &fio {
        Ok(fio) => {
            format!("file peer: {} with {}, direct I/O, depth {FIO_DEPTH}", fio.version, fio.engine)
        }
        Err(error) => format!("SKIP fio: {error:#}"),
    });
    let medium = Medium::File(file, fio.ok());
    for &write in args.writes() {
        for order in args.orders() {
            let name = "file, direct I/O".to_owned();
            let setting = Setting { medium: name, discipline: None, order, write };
            for &block_bytes in args.sizes.iter().filter(|&&bytes| bytes >= FILE_BLOCK_BYTES_MIN) {
                let cells =
                    Cells { args, machine, medium: &medium, setting: &setting, block_bytes };
                cells.measure(outcomes)?;
            }
        }
    }
    if let Medium::File(file, _) = &medium {
        let resident_mib = file.resident_bytes()? >> 20;
        notes.push(format!("page cache held {resident_mib} MiB of the file at the end"));
    }
    Ok(())
}

/// The cells of one block length in one setting.
struct Cells<'a> {
    args: &'a SyntheticArgs,
    machine: &'a Machine,
    medium: &'a Medium,
    setting: &'a Setting,
    block_bytes: usize,
}

impl Cells<'_> {
    /// Measures each number of cycles per byte.
    fn measure(&self, outcomes: &mut Vec<Outcome>) -> anyhow::Result<()> {
        let (chain, tour) = (Chain::default(), Cell::new(0));
        for &cycles_per_byte in &self.args.cycles {
            let count = self.block_count(cycles_per_byte);
            let case = Case {
                medium: self.medium,
                order: self.setting.order,
                write: self.setting.write,
                block_bytes: self.block_bytes,
                cycles_per_byte,
                discipline: self.setting.discipline.unwrap_or(Discipline::Plain),
                count,
                tour: &tour,
                chain: &chain,
            };
            let threads = self.args.threads_for(self.setting.write, cycles_per_byte);
            let mut versions = case.versions(&self.args.ahead, &threads).with_context(|| {
                format!("{cycles_per_byte} cycles per byte are not compiled in")
            })?;
            let costs = paired_on_stretches(self.args.rounds.count(), &mut versions)?;
            let names =
                versions.iter().map(|version| (version.name.clone(), version.depth)).collect();
            let (setting, block_bytes) = (self.setting.clone(), self.block_bytes);
            outcomes.push(Outcome { setting, block_bytes, cycles_per_byte, names, costs });
        }
        Ok(())
    }

    /// Blocks of a run by one thread.
    fn block_count(&self, cycles_per_byte: usize) -> u64 {
        if self.args.rounds.quick {
            return 64;
        }
        let compute_ns = (self.block_bytes * cycles_per_byte) as f64 / self.machine.core_ghz;
        let blocks = match self.medium {
            Medium::Memory(_) => {
                let transfer_ns = 80.0 + 0.1 * self.block_bytes as f64;
                (MEMORY_RUN_NS / (transfer_ns + compute_ns)).max(MEMORY_BLOCKS_MIN)
            }
            Medium::File(..) => (FILE_COMPUTE_NS / compute_ns.max(1.0)).clamp(64.0, FILE_BLOCKS),
        };
        blocks as u64
    }
}
