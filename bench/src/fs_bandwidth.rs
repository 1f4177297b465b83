//! The bandwidth of file calls (CellFS, Table 3): accelerators x coroutines that
//! read a file in memory in blocks of 8 KiB, against double buffering by hand
//! from the memory the file lies in, `#r`'s or a mapping of a cached file as in `#U`;
//! and what one read costs.

mod cost;
mod socket;

use std::path::PathBuf;

use anyhow::Context as _;
use cellway::accel::{Config, Cx, Ea, Tag};
use clap::Args;
use fs::{File, FileMemory, Files, Handle, OpenMode, wait};

use crate::args::{PagesArg, Rounds, parse_block_bytes, parse_bytes, parse_threads, show_bytes};
use crate::cachedfile::CachedFile;
use crate::filemem::{Ram, Unix, make, places};
use crate::hw::Pages;
use crate::machine::Machine;
use crate::measure::{Sample, Version, paired};
use crate::program::run_timed;
use crate::table::{Cell, Table};

/// `#U` maps no shorter files.
const MAPPED_BYTES_MIN: u64 = 1 << 20;

/// Arguments of `bench fs-bandwidth`.
#[derive(Args, Clone, Debug)]
pub struct FsBandwidthArgs {
    /// Length of the file; of one of 1M or more also in #U
    #[arg(long, default_value = "128M", value_parser = parse_bytes, value_name = "BYTES")]
    pub bytes: u64,
    /// Bytes of one read, a power of two
    #[arg(long, default_value = "8K", value_parser = parse_block_bytes, value_name = "BYTES")]
    pub block: usize,
    /// Numbers of accelerators [default: 1 to those there are cores for]
    #[arg(long, value_delimiter = ',', value_parser = parse_threads, value_name = "N,..")]
    pub accelerators: Vec<usize>,
    /// Numbers of threads that read on each
    #[arg(long, value_delimiter = ',', value_parser = parse_threads, value_name = "N,..",
          default_value = "1,2,3,4,5,6,7")]
    pub threads: Vec<usize>,
    /// Page size of the file's memory; a file of #U has small pages
    #[arg(long, value_enum, default_value_t = PagesArg::Both)]
    pub pages: PagesArg,
    /// Folder for the file of #U
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// How often the file is read in one run
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub passes: u64,
    /// How often, and whether in earnest.
    #[command(flatten)]
    pub rounds: Rounds,
}

pub(crate) fn run(args: &FsBandwidthArgs, machine: &Machine) -> anyhow::Result<Vec<Table>> {
    let mut args = args.clone();
    if args.rounds.quick {
        (args.bytes, args.threads, args.passes) = (1 << 20, vec![1, 3], 1);
    }
    if args.accelerators.is_empty() {
        args.accelerators = (1..=Config::default().accelerators).collect();
    }
    let block = args.block as u64;
    anyhow::ensure!(
        args.bytes >= 2 * block && args.bytes.is_multiple_of(block) && block <= 64 << 10,
        "--bytes must be at least two blocks, and a multiple of --block, which is 64K at most"
    );
    let mut tables = Vec::new();
    for &pages in args.pages.list() {
        tables.push(in_ram(&args, pages, machine)?);
    }
    if args.pages != PagesArg::Huge && args.bytes >= MAPPED_BYTES_MIN {
        tables.push(in_unix(&args, machine)?);
    }
    tables.push(cost::table(&args.rounds, machine)?);
    tables.push(socket::table(&args.rounds, machine)?);
    tables.push(cost::footprint(machine)?);
    Ok(tables)
}

fn in_ram(args: &FsBandwidthArgs, pages: Pages, machine: &Machine) -> anyhow::Result<Table> {
    let ram = Ram::new(pages, args.bytes)?;
    make(&ram.files, "#r/data", args.bytes, |at| (at * 7 / 3 % 251) as u8)?;
    let (file, memory) = (wait(ram.files.open("#r/data", OpenMode::READ))?, ram.memory("data")?);
    let title = format!(
        "fs-bandwidth: reads of {} from a file of {} in memory, {} pages (Table 3)",
        show_bytes(args.block as u64),
        show_bytes(args.bytes),
        pages.name()
    );
    let read = (args, &ram.files, &file);
    let mut table = bandwidth(read, &*memory, title, machine)?;
    table.note("double: double buffering by hand, one thread, gets from the memory of the file");
    Ok(table)
}

fn in_unix(args: &FsBandwidthArgs, machine: &Machine) -> anyhow::Result<Table> {
    let on_disk = CachedFile::create(&args.dir, args.bytes)?;
    let cached = Unix::new(on_disk.folder())?;
    let name = format!("#U/{}", CachedFile::NAME);
    let file = wait(cached.files.open(&name, OpenMode::READ))?;
    let memory = cached.memory(CachedFile::NAME)?;
    let title = format!(
        "fs-bandwidth: reads of {} from a file of {} in #U, cached, 4k pages (Table 3)",
        show_bytes(args.block as u64),
        show_bytes(args.bytes),
    );
    let mut table = bandwidth((args, &cached.files, &file), &*memory, title, machine)?;
    on_disk.check_cached()?;
    table
        .note("double: double buffering by hand, one thread, gets from a mapping of the same file");
    table.note("both mappings are made, and their pages brought, before the time starts");
    table.note("a file in the page cache has small pages, so there is no table for huge ones");
    Ok(table)
}

/// Files and one of them that is open, against transfers from its `memory`.
fn bandwidth(
    (args, files, file): (&FsBandwidthArgs, &Files, &File),
    memory: &dyn FileMemory,
    title: String,
    machine: &Machine,
) -> anyhow::Result<Table> {
    let places = places(memory, args.bytes, args.block as u64)?;
    let handle = file.handle().context("the file has no handle, for it does not lie in memory")?;
    let mut columns = vec![("accelerators".to_owned(), ""), ("double".to_owned(), "GB/s")];
    columns.extend(args.threads.iter().map(|threads| (format!("{threads} thr"), "GB/s")));
    columns.extend(args.threads.iter().map(|threads| (format!("{threads} / double"), "x")));
    columns.push(("double again / double".to_owned(), "x"));
    let columns: Vec<_> = columns.iter().map(|(name, unit)| (name.as_str(), *unit)).collect();
    let mut table = Table::new(title, machine, &columns);
    for &accelerators in &args.accelerators {
        let read = Read { args, accelerators, files, handle, places: &places };
        let mut versions = vec![Version::new("double", 2, || read.double())];
        versions.extend(args.threads.iter().map(|&threads| {
            let read = &read;
            Version::new("files", threads, move || read.files(threads))
        }));
        versions.push(Version::new("double again", 2, || read.double()));
        let costs = paired(args.rounds.count(), &mut versions)?;
        let last = versions.len() - 1;
        let rates = (0..last).map(|version| Cell::from(1.0 / costs.item_ns(version).median));
        let ratios = (1..=last).map(|version| Cell::from(costs.speedup(version, 0).median));
        let row: Vec<Cell> = rates.chain(ratios).collect();
        table.row(std::iter::once(accelerators.into()).chain(row));
    }
    table.note("thr: threads that read the file, which was opened before, by file calls");
    table.note("again: the same once more in each round: what differs there is the machine");
    Ok(table)
}

/// Reads of a file, one way or the other.
struct Read<'a> {
    args: &'a FsBandwidthArgs,
    accelerators: usize,
    files: &'a Files,
    handle: Handle,
    places: &'a [Ea<'a>],
}

/// A share of `count` blocks: a stretch of its own.
fn share(index: usize, of: usize, count: usize) -> std::ops::Range<usize> {
    count * index / of..count * (index + 1) / of
}

/// What a block adds to the check sum.
#[inline(always)]
fn check(block: &[u8]) -> u64 {
    block.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

impl Read<'_> {
    fn items(&self) -> u64 {
        self.args.bytes * self.args.passes
    }

    fn config(&self, threads: usize) -> Config {
        Config { accelerators: self.accelerators, threads, ..Config::default() }
    }

    fn files(&self, threads: usize) -> anyhow::Result<Sample> {
        let (args, files, handle) = (self.args, self.files, self.handle);
        let count = self.places.len();
        run_timed(&self.config(threads), self.items(), |cx, at| async move {
            let blocks = share(at.index(), at.count(), count);
            let mut buf = cx.alloc(args.block)?;
            let file = files.on(&cx).adopt(handle)?;
            let mut sum = 0_u64;
            for _ in 0..args.passes {
                for block in blocks.clone() {
                    let read = file.pread((block * args.block) as u64, &mut buf).await?;
                    anyhow::ensure!(read == args.block, "the file ends in block {block}");
                    sum = sum.wrapping_add(check(&buf));
                }
            }
            Ok(sum)
        })
    }

    fn double(&self) -> anyhow::Result<Sample> {
        let (args, places) = (self.args, self.places);
        run_timed(&self.config(1), self.items(), |cx, at| async move {
            let places = &places[share(at.index(), at.count(), places.len())];
            double(&cx, places, args).await
        })
    }
}

/// Listing 3 of CellMT: two buffers with a tag each, and a get ahead in one
/// while the other is looked at.
async fn double<'env>(
    cx: &Cx<'env>,
    places: &[Ea<'env>],
    args: &FsBandwidthArgs,
) -> anyhow::Result<u64> {
    let (len, tags) = (args.block, [Tag::new(0), Tag::new(1)]);
    let failed = |error| anyhow::anyhow!("{error}");
    anyhow::ensure!(places.len() > 1, "no two blocks for each accelerator; use more --bytes");
    let (mut at, mut sum) = (1, 0_u64);
    let mut next = || {
        at = if at + 1 < places.len() { at + 1 } else { 0 };
        places[at]
    };
    let mut even = cx.get(cx.alloc(len)?, places[0], len, tags[0]);
    let mut odd = cx.get(cx.alloc(len)?, places[1], len, tags[1]);
    let blocks = places.len() as u64 * args.passes;
    for _ in 1..blocks / 2 {
        let buf = even.await.map_err(failed)?;
        sum = sum.wrapping_add(check(&buf));
        even = cx.get(buf, next(), len, tags[0]);
        let buf = odd.await.map_err(failed)?;
        sum = sum.wrapping_add(check(&buf));
        odd = cx.get(buf, next(), len, tags[1]);
    }
    let mut buf = even.await.map_err(failed)?;
    sum = sum.wrapping_add(check(&buf));
    if !blocks.is_multiple_of(2) {
        buf = cx.get(buf, next(), len, tags[0]).await.map_err(failed)?;
        sum = sum.wrapping_add(check(&buf));
    }
    Ok(sum.wrapping_add(check(&odd.await.map_err(failed)?)))
}
