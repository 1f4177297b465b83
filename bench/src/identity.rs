//! The Identity Tests of the paper on prefetching schemes (section 4.1, Tables
//! 1, 2 and 5, Figure 3): what it costs to read a file on the host and on
//! accelerators, set-up included, through the page cache.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use cellway::accel::{self, Config, Region, Tag};
use clap::Args;

use crate::args::{Rounds, parse_block_bytes, parse_bytes, parse_threads, show_bytes};
use crate::coldfile::ColdFile;
use crate::machine::Machine;
use crate::measure::Spread;
use crate::table::{Cell, Table};

/// Arguments of `bench identity`.
#[derive(Args, Clone, Debug)]
pub struct IdentityArgs {
    /// Bytes that are read
    #[arg(long, default_value = "512M", value_parser = parse_bytes, value_name = "BYTES")]
    pub bytes: u64,
    /// Block lengths, powers of two
    #[arg(long, value_delimiter = ',', value_parser = parse_block_bytes, value_name = "BYTES,..",
          default_value = "4K,16K,64K,512K")]
    pub sizes: Vec<usize>,
    /// Numbers of accelerators that read, each a file of its own [default: 1 to
    /// those there are cores for]
    #[arg(long, value_delimiter = ',', value_parser = parse_threads, value_name = "N,..")]
    pub accelerators: Vec<usize>,
    /// Folder for the files
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// How often, and whether in earnest.
    #[command(flatten)]
    pub rounds: Rounds,
}

/// The block of the paper's tables.
const BLOCK_BYTES: usize = 16 << 10;

/// How long each part of a reading took.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    /// Until the accelerator's first thread ran.
    creation: Duration,
    allocation: Duration,
    reading: Duration,
    total: Duration,
}

pub(crate) fn run(args: &IdentityArgs, machine: &Machine) -> anyhow::Result<Vec<Table>> {
    let mut args = args.clone();
    if args.rounds.quick {
        (args.bytes, args.sizes) = (1 << 20, vec![4 << 10, 16 << 10]);
    }
    if args.accelerators.is_empty() {
        args.accelerators = (1..=Config::default().accelerators).collect();
    }
    let file = ColdFile::create(&args.dir, args.bytes)?;
    let test = Test { file: &file, rounds: args.rounds.count() };
    Ok(vec![
        test.set_up(machine)?,
        test.by_block(&args, machine)?,
        by_readers(&args, machine)?,
        test.cached(machine)?,
    ])
}

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Host,
    Accelerator,
}

struct Test<'t> {
    file: &'t ColdFile,
    rounds: usize,
}

impl Test<'_> {
    fn read(&self, reader: Reader, block_bytes: usize) -> anyhow::Result<Parts> {
        let file = Arc::new(File::open(self.file.path())?);
        match reader {
            Reader::Host => by_host(&file, self.file.bytes(), block_bytes),
            Reader::Accelerator => by_accelerators(&[file], self.file.bytes(), block_bytes),
        }
    }

    /// The median of every part, each time from the disk.
    fn cold(&self, reader: Reader, block_bytes: usize) -> anyhow::Result<Parts> {
        let mut all = Vec::new();
        for _ in 0..self.rounds {
            self.file.drop_cached()?;
            all.push(self.read(reader, block_bytes)?);
        }
        Ok(median(&all))
    }

    fn set_up(&self, machine: &Machine) -> anyhow::Result<Table> {
        let host = self.cold(Reader::Host, BLOCK_BYTES)?;
        let accelerator = self.cold(Reader::Accelerator, BLOCK_BYTES)?;
        let columns = [("part", ""), ("host", "us"), ("accelerator", "us")];
        let title = "identity: parts of reading a file in blocks of 16 KiB (Table 1)";
        let mut table = Table::new(title, machine, &columns);
        for (part, of) in [
            ("accelerator creation", (|parts| parts.creation) as fn(&Parts) -> Duration),
            ("buffer allocation", |parts| parts.allocation),
            ("file reading", |parts| parts.reading),
            ("total", |parts| parts.total),
        ] {
            let host = (part != "accelerator creation").then(|| micros(of(&host)));
            table.row([part.into(), host.into(), micros(of(&accelerator)).into()]);
        }
        table
            .note("accelerator creation: its thread, ring and local store, until its program runs");
        Ok(table)
    }

    fn by_block(&self, args: &IdentityArgs, machine: &Machine) -> anyhow::Result<Table> {
        let columns = [("block", "B"), ("host", "MB/s"), ("accelerator", "MB/s")];
        let title = "identity: a file from the disk, by block length (Table 2)";
        let mut table = Table::new(title, machine, &columns);
        for &size in &args.sizes {
            let rate = |reader| Ok(rate(self.file.bytes(), self.cold(reader, size)?.reading));
            let (host, accelerator): (anyhow::Result<f64>, _) =
                (rate(Reader::Host), rate(Reader::Accelerator));
            table.row([show_bytes(size as u64).into(), host?.into(), accelerator?.into()]);
        }
        table.note("one thread each, one block at a time, through the page cache");
        Ok(table)
    }

    fn cached(&self, machine: &Machine) -> anyhow::Result<Table> {
        let columns = [("first", ""), ("second", ""), ("first", "ms"), ("second", "ms")];
        let title = "identity: a file from the disk, and read again (Table 5)";
        let mut table = Table::new(title, machine, &columns);
        for (first, second) in [
            (Reader::Host, Reader::Host),
            (Reader::Host, Reader::Accelerator),
            (Reader::Accelerator, Reader::Accelerator),
            (Reader::Accelerator, Reader::Host),
        ] {
            let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
            for _ in 0..self.rounds {
                self.file.drop_cached()?;
                firsts.push(self.read(first, BLOCK_BYTES)?);
                seconds.push(self.read(second, BLOCK_BYTES)?);
            }
            let millis = |all: &[Parts]| Cell::from(micros(median(all).reading) / 1e3);
            let name = |reader| Cell::from(format!("{reader:?}").to_lowercase());
            table.row([name(first), name(second), millis(&firsts), millis(&seconds)]);
        }
        Ok(table)
    }
}

/// Accelerators read side by side, each a file of its own.
fn by_readers(args: &IdentityArgs, machine: &Machine) -> anyhow::Result<Table> {
    let columns = [("readers", ""), ("all", "MB/s"), ("each", "MB/s")];
    let title = "identity: files from the disk, by number of readers (Figure 3)";
    let mut table = Table::new(title, machine, &columns);
    for &count in &args.accelerators {
        let bytes = args.bytes / count as u64;
        let files = (0..count).map(|_| ColdFile::create(&args.dir, bytes));
        let files = files.collect::<anyhow::Result<Vec<_>>>()?;
        let mut all = Vec::new();
        for _ in 0..args.rounds.count() {
            files.iter().try_for_each(ColdFile::drop_cached)?;
            let open = |file: &ColdFile| File::open(file.path()).map(Arc::new);
            let opened = files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
            all.push(by_accelerators(&opened, files[0].bytes(), BLOCK_BYTES)?);
        }
        let rate = rate(files[0].bytes() * count as u64, median(&all).reading);
        table.row([count.into(), rate.into(), (rate / count as f64).into()]);
    }
    table.note("blocks of 16 KiB, one thread each, through the page cache");
    Ok(table)
}

fn by_host(file: &File, bytes: u64, block_bytes: usize) -> anyhow::Result<Parts> {
    let started = Instant::now();
    let mut block = vec![0_u8; block_bytes];
    let allocated = Instant::now();
    for at in (0..bytes).step_by(block_bytes) {
        let len = block_bytes.min((bytes - at) as usize);
        file.read_exact_at(&mut block[..len], at)?;
        std::hint::black_box(&block);
    }
    let (allocation, reading) = (allocated - started, allocated.elapsed());
    Ok(Parts { creation: Duration::ZERO, allocation, reading, total: started.elapsed() })
}

/// One thread on an accelerator for each file.
fn by_accelerators(files: &[Arc<File>], bytes: u64, block_bytes: usize) -> anyhow::Result<Parts> {
    let region = |file: &Arc<File>| Region::file(file.clone(), 0..bytes, "the test file");
    let regions: &Vec<Region<'_>> = &files.iter().map(region).collect();
    let default = Config::default();
    let local_store_bytes = default.local_store_bytes.max(block_bytes);
    let config = Config { accelerators: files.len(), threads: 1, local_store_bytes, ..default };
    let started = Instant::now();
    let laps = accel::run(&config, |cx, at| async move {
        let runs = Instant::now();
        let region = &regions[at.accelerator];
        let mut buf = cx.alloc(block_bytes)?;
        let allocated = Instant::now();
        for place in (0..bytes).step_by(block_bytes) {
            let len = block_bytes.min((bytes - place) as usize);
            let got = cx.get(buf, region.at(place), len, Tag::new(0)).await;
            buf = got.map_err(|error| anyhow!("{error}"))?;
            std::hint::black_box(&buf);
        }
        anyhow::Ok((runs, allocated, Instant::now()))
    })?;
    let laps = laps.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let total = started.elapsed();
    let &(runs, allocated, _) = laps.first().context("no accelerator ran")?;
    let first = laps.iter().map(|lap| lap.1).min().unwrap_or(allocated);
    let last = laps.iter().map(|lap| lap.2).max().unwrap_or(allocated);
    let (creation, allocation) = (runs - started, allocated - runs);
    Ok(Parts { creation, allocation, reading: last - first, total })
}

fn median(all: &[Parts]) -> Parts {
    let of = |part: fn(&Parts) -> Duration| {
        let seconds = all.iter().map(|parts| part(parts).as_secs_f64());
        Duration::from_secs_f64(Spread::of(seconds).median)
    };
    Parts {
        creation: of(|parts| parts.creation),
        allocation: of(|parts| parts.allocation),
        reading: of(|parts| parts.reading),
        total: of(|parts| parts.total),
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / micros(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_tables_have_every_row() {
        let rounds = Rounds { rounds: 1, quick: true };
        let (dir, accelerators) = (std::env::temp_dir(), vec![1, 2, 3]);
        let args = IdentityArgs { bytes: 0, sizes: Vec::new(), accelerators, dir, rounds };
        let tables = match run(&args, &Machine::default()) {
            Ok(tables) => tables,
            Err(error) => return crate::skip("direct I/O", &format!("{error:#}")),
        };
        assert_eq!(tables.iter().map(|table| table.rows.len()).collect::<Vec<_>>(), [4, 2, 3, 4]);
        let reading = |row: usize| match &tables[0].rows[row][2] {
            Cell::Number(micros) => *micros,
            other => panic!("{other:?} is no time"),
        };
        assert!(reading(2) > 0.0 && reading(2) <= reading(3), "reading is part of the total");
    }
}
