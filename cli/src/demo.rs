//! `cellway demo`: the main job on made-up data, checked and explained.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use cellway::Options;
use cellway::kernels::{Aes256Ctr, Iv128, Key256};
use cellway::storage::{self, Input, Output};
use cellway::stream::{self, Progress, Spent, Stats};
use cellway_bench::args::parse_bytes;
use clap::Args;

use crate::signals;
use crate::size::Size;
use crate::stdout::Stdout;

/// What is made and compared at once.
const PIECE_BYTES: usize = 1 << 20;
/// The data, encrypted, and back.
const FILES: u64 = 3;

/// Make data, stream it through AES-256-CTR and back, check it, and explain
///
/// Shows on made-up data what `run` does: how fast, in how much memory, and
/// how much of the time for transfers the threads of a core hide.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// How much data to make (4096, 256K, 1M, 1MiB; powers of 1024)
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_bytes)]
    bytes: u64,
    /// Where to put three files of that size, removed at the end [default:
    /// $TMPDIR or /tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn demo(args: &DemoArgs) -> anyhow::Result<()> {
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    check_room(&dir, args.bytes)?;
    let folder = tempfile::Builder::new().prefix("cellway-demo-").tempdir_in(&dir);
    let folder = folder.map_err(|error| elsewhere(&dir, "no folder can be made", &error))?;
    signals::remove_at_exit(folder.path().to_owned());
    let [made, encrypted, back] =
        ["made", "encrypted", "back"].map(|name| folder.path().join(name));
    make(&made, args.bytes).map_err(|error| elsewhere(&dir, "no data can be made", &error))?;
    let mut out = Stdout::lock();
    let size = Size(args.bytes);
    writeln!(
        out,
        "Made {size} of data in {}, to be encrypted by AES-256-CTR and back.",
        dir.display()
    )?;

    let bound_bytes = announce(&mut out, &made)?;
    writeln!(
        out,
        "\n{:27} {:>8} {:>12}  {:>9} {:>9} {:>9}",
        "", "time", "rate", "get", "compute", "put"
    )?;
    let alone = stream_once(&mut out, "encrypt", &made, &encrypted, Some(1))?;
    let shared = stream_once(&mut out, "encrypt", &made, &encrypted, None)?;
    let decrypted = stream_once(&mut out, "decrypt", &encrypted, &back, None)?;
    if shared.plan.threads > 1 {
        explain(&mut out, &alone, &shared)?;
    }

    verify([&made, &encrypted, &back])?;
    writeln!(out, "\nVerified: what came back equals what was made, byte for byte.")?;
    let peak = stream::peak_rss_bytes().map_or("unknown".into(), |peak| Size(peak).to_string());
    writeln!(out, "Memory:   {peak} at the peak, {} was the bound.", Size(bound_bytes))?;
    writeln!(out, "Engine:   {} (chosen by auto).", shared.engine.detail)?;
    for (what, stats) in [("Encrypt:", &shared), ("Decrypt:", &decrypted)] {
        let output = stats.output_path.as_deref().unwrap_or("none");
        writeln!(out, "{what}  input: {}; output: {output}.", stats.input_path)?;
    }
    out.flush()?;
    folder.close().with_context(|| format!("files are left in {}; remove them", dir.display()))
}

fn elsewhere(dir: &Path, what: &str, error: &io::Error) -> anyhow::Error {
    anyhow!("{}: {what}: {error}; name another folder by --dir", dir.display())
}

fn check_room(dir: &Path, bytes: u64) -> anyhow::Result<()> {
    let free =
        storage::free_bytes(dir).map_err(|error| elsewhere(dir, "cannot be used", &error))?;
    let needed = bytes.saturating_mul(FILES);
    if free < needed {
        let (needed, free) = (Size(needed), Size(free));
        let dir = dir.display();
        bail!(
            "{dir}: {needed} are needed, {free} are free; \
             name another folder by --dir, or give fewer --bytes"
        );
    }
    Ok(())
}

/// The cipher of the demo; its key is no secret.
fn cipher() -> Aes256Ctr {
    Aes256Ctr::new(&Key256::new([7; 32]), Iv128(1))
}

/// Writes bytes without a pattern (xorshift).
fn make(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    let mut piece = vec![0; PIECE_BYTES];
    let (mut state, mut left) = (0x9e37_79b9_7f4a_7c15_u64, bytes);
    while left > 0 {
        for word in piece.as_chunks_mut::<8>().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        let len = left.min(PIECE_BYTES as u64);
        file.write_all(&piece[..len as usize])?;
        left -= len;
    }
    Ok(())
}

/// Says how the runs will be laid out, and the memory they stay under.
fn announce(out: &mut impl Write, made: &Path) -> anyhow::Result<u64> {
    let plan = stream::plan(&cipher(), &Input::open(made)?, &Options::default())?;
    let bound_bytes = stream::floor_bytes() + plan.memory_bytes;
    let (block, bound) = (Size(plan.block_bytes), Size(bound_bytes));
    writeln!(out, "Blocks of {block}, {} cores x {} threads.", plan.accelerators, plan.threads)?;
    writeln!(out, "Memory will stay under {bound}, however large the data is.")?;
    out.flush()?;
    Ok(bound_bytes)
}

/// Streams a file through the cipher and adds a line to the table.
fn stream_once(
    out: &mut impl Write,
    what: &str,
    from: &Path,
    to: &Path,
    threads: Option<usize>,
) -> anyhow::Result<Stats> {
    let input = Input::open(from)?;
    // The comparison with one thread is replaced by the run proper.
    let output =
        Output::create(to, &storage::Options { force: true, len_bytes: input.len_bytes() })?;
    let options = Options { threads, ..Options::default() };
    let kernel = cipher();
    let stats = stream::run(&kernel, &input, Some(&output), &options, &Progress::default())?.stats;
    output.commit(false)?;
    let threads = stats.plan.threads;
    let plural = if threads == 1 { "" } else { "s" };
    let rate = Size((stats.bytes_in as f64 / stats.elapsed.as_secs_f64()) as u64).to_string();
    let [get, compute, put] = per_core(&stats);
    writeln!(
        out,
        "{:27} {:6.3} s {:>12}  {get:7.3} s {compute:7.3} s {put:7.3} s",
        format!("{what}, {threads} thread{plural} a core"),
        stats.elapsed.as_secs_f64(),
        rate + "/s",
    )?;
    out.flush()?;
    Ok(stats)
}

/// Seconds spent in each step by the threads of a core together.
fn per_core(stats: &Stats) -> [f64; 3] {
    let Spent { get, compute, put, .. } = stats.spent;
    [get, compute, put].map(|time| time.as_secs_f64() / stats.plan.accelerators as f64)
}

/// What the table means.
fn explain(out: &mut impl Write, alone: &Stats, shared: &Stats) -> io::Result<()> {
    let (time, steps) = (shared.elapsed.as_secs_f64(), per_core(shared).iter().sum::<f64>());
    let threads = shared.plan.threads;
    writeln!(
        out,
        "One thread gets a block, computes, puts it back: the steps add up to the time."
    )?;
    writeln!(
        out,
        "The steps of {threads} threads add up to {steps:.3} s a core and took {time:.3} s: while one"
    )?;
    writeln!(
        out,
        "computed, the blocks of the others travelled, {:.1} steps at once.",
        steps / time
    )?;
    let gain = alone.elapsed.as_secs_f64() / time;
    if gain > 1.05 {
        writeln!(out, "That is {gain:.1}x as fast as waiting for each block.")
    } else {
        writeln!(out, "Here that is no faster: there was hardly anything to wait for.")
    }
}

/// Whether the third file equals the first, and the second does not.
fn verify(paths: [&Path; 3]) -> anyhow::Result<()> {
    let open = |path: &Path| File::open(path).with_context(|| path.display().to_string());
    let [made, encrypted, back] = paths.map(open);
    let mut files = [made?, encrypted?, back?];
    let mut pieces = [const { Vec::new() }; FILES as usize];
    for offset in (0u64..).step_by(PIECE_BYTES) {
        for (file, piece) in files.iter_mut().zip(&mut pieces) {
            piece.clear();
            file.take(PIECE_BYTES as u64).read_to_end(piece)?;
        }
        let [made, encrypted, back] = &pieces;
        if made != back || (made == encrypted && !made.is_empty()) {
            bail!(
                "within 1 MiB after byte {offset}, what came back is wrong; this is a fault of cellway or of the memory"
            );
        }
        if made.is_empty() {
            break;
        }
    }
    Ok(())
}
