//! CellStream's experiments: how fast blocks stream through local stores, by
//! transfer size and number of accelerators (Figures 5 and 6), and what the
//! model costs against a pipeline written by hand; and chains of kernels, fused
//! and spread.

mod byhand;
mod chains;

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Context as _;
use cellway::accel::{self, Config, Cx, Region, Tag};
use cellway::kernels::Identity;
use cellway::storage::{self, Input, Output};
use cellway::stream::{self, Options, Plan};
use clap::Args;

use crate::args::{Rounds, parse_block_bytes, parse_bytes, parse_threads, show_bytes};
use crate::coldfile::ColdFile;
use crate::machine::Machine;
use crate::measure::{Sample, Spread, Version, paired};
use crate::table::{Cell, Table};

/// Arguments of `bench stream`.
#[derive(Args, Clone, Debug)]
pub struct StreamArgs {
    /// Memory that is streamed through the local stores
    #[arg(long, default_value = "16M", value_parser = parse_bytes, value_name = "BYTES")]
    pub bytes: u64,
    /// Transfer sizes, powers of two
    #[arg(long, value_delimiter = ',', value_parser = parse_block_bytes, value_name = "BYTES,..",
          default_value = "128,256,512,1K,2K,4K,8K,16K")]
    pub sizes: Vec<usize>,
    /// Numbers of accelerators [default: 1 to those there are cores for]
    #[arg(long, value_delimiter = ',', value_parser = parse_threads, value_name = "N,..")]
    pub accelerators: Vec<usize>,
    /// Length of the file that is copied
    #[arg(long, default_value = "1G", value_parser = parse_bytes, value_name = "BYTES")]
    pub file_bytes: u64,
    /// Folder for that file and its copies
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// How often, and whether in earnest.
    #[command(flatten)]
    pub rounds: Rounds,
}

pub(crate) fn run(args: &StreamArgs, machine: &Machine) -> anyhow::Result<Vec<Table>> {
    let mut args = args.clone();
    if args.rounds.quick {
        (args.bytes, args.file_bytes, args.sizes) = (1 << 20, 5 << 20, vec![128, 4096]);
    }
    if args.accelerators.is_empty() {
        args.accelerators = (1..=Config::default().accelerators).collect();
    }
    let mut tables = Vec::new();
    for (border_bytes, figure) in [(16, "Figure 5"), (128, "Figure 6")] {
        tables.push(in_memory(&args, border_bytes, figure, machine)?);
    }
    tables.push(of_a_file(&args, machine)?);
    tables.push(chains::table(&args, machine)?);
    Ok(tables)
}

/// Where each of `count` equal shares of `bytes` begins, and the end: on
/// multiples of `border_bytes`, and as in the paper not of more.
fn borders(bytes: u64, count: usize, border_bytes: u64) -> Vec<u64> {
    let odd = |place: u64| {
        // 16-byte borders that happen to be on a cache line show nothing.
        let shift = if border_bytes < 128 && place.is_multiple_of(128) { border_bytes } else { 0 };
        place - place % border_bytes + shift
    };
    let inner = (1..count as u64).map(|share| odd(bytes * share / count as u64));
    std::iter::once(0).chain(inner).chain([bytes]).collect()
}

/// Rates by transfer size, for each number of accelerators and each of them.
fn in_memory(
    args: &StreamArgs,
    border_bytes: u64,
    figure: &str,
    machine: &Machine,
) -> anyhow::Result<Table> {
    let mut columns = vec![("size".to_owned(), "B")];
    for &count in &args.accelerators {
        columns.push((format!("{count} acc"), "MB/s"));
        if count > 1 {
            columns.extend((0..count).map(|one| (format!("{one} of {count}"), "MB/s")));
        }
    }
    let columns: Vec<_> = columns.iter().map(|(name, unit)| (name.as_str(), *unit)).collect();
    let title = format!(
        "stream: memory through local stores and back, shares on {border_bytes}-byte borders ({figure})"
    );
    let mut table = Table::new(title, machine, &columns);
    let source: Vec<u8> = (0..args.bytes).map(|at| (at * 7 / 3 % 251) as u8).collect();
    for &size in &args.sizes {
        let mut row = vec![Cell::from(show_bytes(size as u64))];
        for &count in &args.accelerators {
            let (all, each) = streamed(args, &source, size, count, border_bytes)?;
            row.push(all.into());
            if count > 1 {
                row.extend(each.into_iter().map(Cell::from));
            }
        }
        table.row(row);
    }
    table
        .note("each accelerator streams its share with two buffers: get, put, get again behind it");
    table.note("after each round the copy is compared with its source");
    Ok(table)
}

/// Megabytes per second of all accelerators together, and of each.
fn streamed(
    args: &StreamArgs,
    source: &[u8],
    size: usize,
    count: usize,
    border_bytes: u64,
) -> anyhow::Result<(f64, Vec<f64>)> {
    let borders = &borders(source.len() as u64, count, border_bytes);
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); count + 1];
    for _ in 0..args.rounds.count() {
        let mut copy = vec![0; source.len()];
        let (from, to) = (&Region::memory(source), &Region::memory_mut(&mut copy));
        let config = Config { accelerators: count, threads: 1, ..Config::default() };
        let starts = &Mutex::new(Vec::new());
        let laps = accel::run(&config, |cx, at| async move {
            let share = borders[at.accelerator]..borders[at.accelerator + 1];
            let started = Instant::now();
            starts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(started);
            copy_share(&cx, from, to, share.clone(), size).await?;
            anyhow::Ok((share.end - share.start, started, Instant::now()))
        })?;
        let laps = laps.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        anyhow::ensure!(copy == source, "the copy differs from its source: data was lost");
        let rate =
            |bytes: u64, from: Instant, to: Instant| bytes as f64 / (to - from).as_secs_f64() / 1e6;
        for (one, (bytes, from, to)) in laps.iter().enumerate() {
            rates[one + 1].push(rate(*bytes, *from, *to));
        }
        let first = laps.iter().map(|lap| lap.1).min().context("no accelerator ran")?;
        let last = laps.iter().map(|lap| lap.2).max().context("no accelerator ran")?;
        rates[0].push(rate(source.len() as u64, first, last));
    }
    let mut medians = rates.into_iter().map(|rates| Spread::of(rates).median);
    let all = medians.next().unwrap_or(0.0);
    Ok((all, medians.collect()))
}

/// Copies bytes `share` with two buffers, each put behind its get, and got
/// again behind its put.
async fn copy_share<'env>(
    cx: &Cx<'env>,
    from: &'env Region<'env>,
    to: &'env Region<'env>,
    share: std::ops::Range<u64>,
    size: usize,
) -> anyhow::Result<()> {
    let lost = |error: Box<accel::TransferError>| anyhow::anyhow!("{error}");
    let len = |at: u64| size.min(share.end.saturating_sub(at) as usize);
    let mut places = share.clone().step_by(size);
    let mut gets = std::collections::VecDeque::with_capacity(2);
    for tag in 0..2 {
        let Some(at) = places.next() else { break };
        let get = cx.get(cx.alloc(size)?, from.at(at), len(at), Tag::new(tag));
        gets.push_back((at, tag, get));
    }
    while let Some((at, tag, get)) = gets.pop_front() {
        let put = cx.put(get.await.map_err(lost)?, to.at(at), Tag::new(tag));
        match places.next() {
            Some(next) => {
                let get = put.then_get(from.at(next), len(next));
                gets.push_back((next, tag, get));
            }
            None => drop(put.await.map_err(lost)?),
        }
    }
    Ok(())
}

/// The identity stream against a pipeline by hand of the same depth.
fn of_a_file(args: &StreamArgs, machine: &Machine) -> anyhow::Result<Table> {
    let file = ColdFile::create(&args.dir, args.file_bytes)?;
    let input = Input::open(&file.path())?;
    // Both read what is cached.
    std::io::copy(&mut input.file().as_ref(), &mut std::io::sink())?;
    let options = Options::default();
    let plan = stream::plan(&Identity, &input, &options)?;
    let copy = args.dir.join(format!("cellway-bench-copy-{}", std::process::id()));
    let output = || {
        let options = storage::Options { force: true, len_bytes: Some(file.bytes()) };
        Output::create(&copy, &options)
    };
    let mut versions = [
        Version::new("by hand", depth(&plan), || {
            let output = output()?;
            Sample::timed(file.bytes(), || byhand::copy(&input, &output, &plan))
        }),
        Version::new("cellway", depth(&plan), || {
            let output = output()?;
            Sample::timed(file.bytes(), || {
                stream::run(&Identity, &input, Some(&output), &options, &Default::default())?;
                Ok(())
            })
        }),
    ];
    let costs = paired(args.rounds.count(), &mut versions)?;
    let columns = [("version", ""), ("blocks", ""), ("rate", "MB/s"), ("against hand", "x")];
    let size = show_bytes(plan.block_bytes);
    let title = format!("stream: a cached file copied to the disk, blocks of {size}");
    let mut table = Table::new(title, machine, &columns);
    for (index, version) in versions.iter().enumerate() {
        let rate = 1e3 / costs.item_ns(index).median;
        let against = (index > 0).then(|| costs.speedup(index, 0).median);
        table.row([
            version.name.as_str().into(),
            version.depth.into(),
            rate.into(),
            against.into(),
        ]);
    }
    table.note("by hand: a reading and a writing thread over so many rotating buffers");
    table.note("neither output gets a name; both are written past the page cache where that works");
    Ok(table)
}

/// Blocks that a run has under way.
fn depth(plan: &Plan) -> usize {
    plan.accelerators * plan.threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_on_their_borders() {
        for count in [1, 2, 3, 5, 6] {
            for border_bytes in [16, 128] {
                let places = borders(16 << 20, count, border_bytes);
                assert_eq!((places[0], places[count]), (0, 16 << 20));
                assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{places:?}");
                let inner = &places[1..count];
                assert!(inner.iter().all(|place| place.is_multiple_of(border_bytes)));
                let on_lines = inner.iter().all(|place| place.is_multiple_of(128));
                assert!(count == 1 || on_lines == (border_bytes == 128), "{places:?}");
            }
        }
    }

    #[test]
    fn quick_tables_have_every_row() {
        let rounds = Rounds { rounds: 1, quick: true };
        let dir = std::env::temp_dir();
        let (bytes, file_bytes, sizes) = (0, 0, Vec::new());
        let args = StreamArgs { bytes, sizes, accelerators: vec![1, 3], file_bytes, dir, rounds };
        let tables = match run(&args, &Machine::default()) {
            Ok(tables) => tables,
            Err(error) => return crate::skip("direct I/O", &format!("{error:#}")),
        };
        assert_eq!(tables.iter().map(|table| table.rows.len()).collect::<Vec<_>>(), [2, 2, 2, 4]);
        assert_eq!(tables[0].columns.len(), 1 + 1 + 4);
    }
}
