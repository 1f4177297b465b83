//! Offloading in the paper on prefetching schemes (section 4.2.2, Tables 3 and
//! 4): the host owns the data in main memory, accelerators get a buffer,
//! decrypt it and put it back.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use cellway::accel::{self, Config, Cx, Region, Tag};
use cellway::kernels::{Aes256Ctr, Iv128, Key256};
use cellway::{Block, Body, Kernel as _, Out, Unit};
use clap::Args;

use crate::args::{Rounds, parse_block_bytes, parse_bytes, parse_threads, show_bytes};
use crate::machine::Machine;
use crate::measure::Spread;
use crate::table::{Cell, Table};

/// Arguments of `bench offload`.
#[derive(Args, Clone, Debug)]
pub struct OffloadArgs {
    /// Bytes that are decrypted
    #[arg(long, default_value = "64M", value_parser = parse_bytes, value_name = "BYTES")]
    pub bytes: u64,
    /// Lengths of the buffers handed over, powers of two
    #[arg(long, value_delimiter = ',', value_parser = parse_block_bytes, value_name = "BYTES,..",
          default_value = "1K,2K,4K,8K,16K")]
    pub sizes: Vec<usize>,
    /// Numbers of accelerators [default: 1 to those there are cores for]
    #[arg(long, value_delimiter = ',', value_parser = parse_threads, value_name = "N,..")]
    pub accelerators: Vec<usize>,
    /// Folder for the files
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// How often, and whether in earnest.
    #[command(flatten)]
    pub rounds: Rounds,
}

/// The buffers that the paper takes apart.
const LOADED_BYTES: [usize; 2] = [4 << 10, 16 << 10];

pub(crate) fn run(args: &OffloadArgs, machine: &Machine) -> anyhow::Result<Vec<Table>> {
    let mut args = args.clone();
    if args.rounds.quick {
        (args.bytes, args.sizes) = (256 << 10, vec![1 << 10, 16 << 10]);
    }
    if args.accelerators.is_empty() {
        args.accelerators = (1..=Config::default().accelerators).collect();
    }
    Ok(vec![by_buffer(&args, machine)?, loaded(&args, machine)?])
}

fn cipher() -> Aes256Ctr {
    Aes256Ctr::new(&Key256::new([7; 32]), Iv128(1))
}

/// Decrypts `data`, which starts `offset` bytes into the message.
fn decrypt(cipher: &Aes256Ctr, offset: u64, data: &mut [u8]) -> anyhow::Result<()> {
    let body = &Body { range: 0..u64::MAX, header: () };
    let unit = Unit { index: 0, offset, body };
    let block = Block { before: &mut [], data, after: &mut [], out: Out::default() };
    Ok(cipher.block(&unit, block, &mut ())?)
}

/// Decrypts bytes `share` of a region in place, a buffer at a time.
async fn decrypt_share<'env>(
    cx: &Cx<'env>,
    cipher: &Aes256Ctr,
    region: &'env Region<'env>,
    share: std::ops::Range<u64>,
    size: usize,
    message_offset: u64,
) -> anyhow::Result<()> {
    let lost = |error: Box<accel::TransferError>| anyhow!("{error}");
    let mut buf = cx.alloc(size)?;
    for at in share.clone().step_by(size) {
        let len = size.min((share.end - at) as usize);
        buf = cx.get(buf, region.at(at), len, Tag::new(0)).await.map_err(lost)?;
        decrypt(cipher, message_offset + at, &mut buf)?;
        buf = cx.put(buf, region.at(at), Tag::new(0)).await.map_err(lost)?;
    }
    Ok(())
}

/// Time by buffer length and number of accelerators.
fn by_buffer(args: &OffloadArgs, machine: &Machine) -> anyhow::Result<Table> {
    let sizes: Vec<String> = args.sizes.iter().map(|&size| show_bytes(size as u64)).collect();
    let mut columns = vec![("accelerators", "")];
    columns.extend(sizes.iter().map(|size| (size.as_str(), "ms")));
    let mib = args.bytes >> 20;
    let title = format!("offload: {mib} MiB through accelerators and back, by buffer (Table 3)");
    let mut table = Table::new(title, machine, &columns);
    let (cipher, plain) = (&cipher(), vec![5_u8; args.bytes as usize]);
    let mut wanted = plain.clone();
    decrypt(cipher, 0, &mut wanted)?;
    for &count in &args.accelerators {
        let mut row = vec![Cell::from(count)];
        for &size in &args.sizes {
            let mut seconds = Vec::new();
            for _ in 0..args.rounds.count() {
                let mut memory = plain.clone();
                let region = &Region::memory_mut(&mut memory);
                let config = Config { accelerators: count, threads: 1, ..Config::default() };
                let buffers = args.bytes.div_ceil(size as u64);
                let started = Instant::now();
                let done = accel::run(&config, |cx, at| async move {
                    let border = |one: usize| buffers * one as u64 / count as u64 * size as u64;
                    let end = if at.accelerator + 1 == count {
                        args.bytes
                    } else {
                        border(at.accelerator + 1)
                    };
                    decrypt_share(&cx, cipher, region, border(at.accelerator)..end, size, 0).await
                })?;
                seconds.push(started.elapsed().as_secs_f64());
                done.into_iter().collect::<anyhow::Result<()>>()?;
                anyhow::ensure!(memory == wanted, "decrypted wrongly: data was lost");
            }
            row.push((Spread::of(seconds).median * 1e3).into());
        }
        table.row(row);
    }
    table.note("one thread on each accelerator, which waits for each transfer");
    Ok(table)
}

/// What the host does, where it loads the accelerator anew for each buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Shares {
    loads: u64,
    loading: Duration,
    execution: Duration,
    read: Duration,
    write: Duration,
    total: Duration,
}

fn loaded(args: &OffloadArgs, machine: &Machine) -> anyhow::Result<Table> {
    let sizes: Vec<String> = LOADED_BYTES.iter().map(|&size| show_bytes(size as u64)).collect();
    let columns: Vec<_> =
        std::iter::once(("part", "")).chain(sizes.iter().map(|s| (s.as_str(), ""))).collect();
    let title = "offload: an accelerator loaded anew for each buffer of a file (Table 4)";
    let mut table = Table::new(title, machine, &columns);
    let each = LOADED_BYTES.map(|size| {
        let rounds = (0..args.rounds.count()).map(|_| load_each(args, size));
        Ok(median(&rounds.collect::<anyhow::Result<Vec<_>>>()?))
    });
    let each = each.into_iter().collect::<anyhow::Result<Vec<Shares>>>()?;
    let mut row = |part: &str, of: &dyn Fn(&Shares) -> Cell| {
        table.row(std::iter::once(part.into()).chain(each.iter().map(of)));
    };
    row("times loaded", &|shares| Cell::Count(shares.loads));
    type Part = fn(&Shares) -> Duration;
    let parts: [(&str, Part); 5] = [
        ("loading without execution, ms", |shares| shares.loading),
        ("execution with loading, ms", |shares| shares.loading + shares.execution),
        ("file read, ms", |shares| shares.read),
        ("file write, ms", |shares| shares.write),
        ("total, ms", |shares| shares.total),
    ];
    for (name, part) in parts {
        row(name, &|shares| (part(shares).as_secs_f64() * 1e3).into());
    }
    table.note("the file is cached, the output goes to the page cache");
    Ok(table)
}

fn load_each(args: &OffloadArgs, size: usize) -> anyhow::Result<Shares> {
    let (input, output) = (tempfile::tempfile_in(&args.dir)?, tempfile::tempfile_in(&args.dir)?);
    input.write_all_at(&vec![5; args.bytes as usize], 0)?;
    let (cipher, mut shares) = (&cipher(), Shares::default());
    let mut memory = vec![0; size];
    let config = Config { accelerators: 1, threads: 1, ..Config::default() };
    let started = Instant::now();
    for at in (0..args.bytes).step_by(size) {
        let len = size.min((args.bytes - at) as usize);
        let reading = Instant::now();
        input.read_exact_at(&mut memory[..len], at)?;
        let loading = Instant::now();
        shares.read += loading - reading;
        let region = &Region::memory_mut(&mut memory);
        let ran = accel::run(&config, |cx, _| async move {
            let runs = Instant::now();
            decrypt_share(&cx, cipher, region, 0..len as u64, size, at).await?;
            anyhow::Ok(runs.elapsed())
        })?;
        let executed = ran.into_iter().sum::<anyhow::Result<Duration>>()?;
        let writing = Instant::now();
        shares.loads += 1;
        shares.execution += executed;
        shares.loading += writing - loading - executed;
        output.write_all_at(&memory[..len], at)?;
        shares.write += writing.elapsed();
    }
    shares.total = started.elapsed();
    Ok(shares)
}

fn median(all: &[Shares]) -> Shares {
    let of = |part: fn(&Shares) -> Duration| {
        let seconds = all.iter().map(|shares| part(shares).as_secs_f64());
        Duration::from_secs_f64(Spread::of(seconds).median)
    };
    Shares {
        loads: all.first().map_or(0, |shares| shares.loads),
        loading: of(|shares| shares.loading),
        execution: of(|shares| shares.execution),
        read: of(|shares| shares.read),
        write: of(|shares| shares.write),
        total: of(|shares| shares.total),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_tables_have_every_row() {
        let rounds = Rounds { rounds: 1, quick: true };
        let (dir, accelerators) = (std::env::temp_dir(), vec![1, 3]);
        let args = OffloadArgs { bytes: 0, sizes: Vec::new(), accelerators, dir, rounds };
        let tables = run(&args, &Machine::default()).unwrap();
        assert_eq!(tables.iter().map(|table| table.rows.len()).collect::<Vec<_>>(), [2, 6]);
        assert_eq!(tables[1].rows[0][1..], [Cell::Count(64), Cell::Count(16)]);
    }
}
