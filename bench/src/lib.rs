//! The experiments of the papers on this machine: `cellway bench NAME`.
//!
//! Every experiment compares versions of the same work: they run in turn,
//! round by round, must agree on the result, and are reported as medians with
//! ratios formed within a round (see [`measure`]). `--quick` runs the same
//! code with tiny parameters, as a test.

#![deny(unsafe_code)]

pub mod aes;
pub mod args;
mod arrival;
mod blocks;
mod cachedfile;
pub mod chain;
pub mod cluster;
pub mod coldfile;
mod filemem;
pub mod fio;
pub mod fs_bandwidth;
#[allow(unsafe_code, reason = "prefetch, fences, page sizes: see its blocks")]
pub mod hw;
pub mod identity;
mod irregular;
mod listings;
mod listrank;
pub mod machine;
pub mod matmul;
pub mod measure;
pub mod observer;
pub mod offload;
mod page;
pub mod permutation;
mod probe;
mod program;
pub mod schemes;
mod search;
pub mod stream;
pub mod synthetic;
pub mod table;
pub mod threads;
mod walk;

use std::io::Write as _;
use std::path::Path;

use cellway::storage::{self, Output};
use clap::{Subcommand, ValueEnum};

use crate::aes::AesArgs;
use crate::args::IrregularArgs;
use crate::cluster::ClusterArgs;
use crate::fs_bandwidth::FsBandwidthArgs;
use crate::identity::IdentityArgs;
use crate::irregular::Irregular as _;
use crate::machine::Machine;
use crate::matmul::MatmulArgs;
use crate::observer::ObserverArgs;
use crate::offload::OffloadArgs;
use crate::schemes::SchemesArgs;
use crate::stream::StreamArgs;
use crate::synthetic::SyntheticArgs;
use crate::table::Table;
use crate::threads::ThreadsArgs;

/// A test that cannot run here says why; on CI that is a failure.
#[cfg(test)]
fn skip(what: &str, reason: &str) {
    println!("SKIP {what}: {reason}");
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{what}: {reason}");
}

/// The experiments, as subcommands.
#[derive(Subcommand, Clone, Debug)]
pub enum Bench {
    /// What a yield, a mailbox, a send and a get cost (Figure 2)
    Threads(ThreadsArgs),
    /// Pointer chase through a random cycle: serial, interleaved by hand, threads
    Walk(IrregularArgs),
    /// The rank of every node of a random list: serial, by sublists
    Listrank(IrregularArgs),
    /// Hash table probes along chains of 8-15 nodes
    Probe(IrregularArgs),
    /// Binary search in a sorted array
    Search(IrregularArgs),
    /// Blocks with so many cycles of compute per byte (the paper's section 5)
    Synthetic(SyntheticArgs),
    /// A file read by host and accelerators (prefetching, section 4.1)
    Identity(IdentityArgs),
    /// Buffers that the host hands to accelerators (prefetching, section 4.2.2)
    Offload(OffloadArgs),
    /// Memory and a file through local stores, unchanged (`CellStream`)
    Stream(StreamArgs),
    /// AES-128 as simple loop, double buffering and threads (Figure 10)
    Aes(AesArgs),
    /// Who does the I/O of a run: the schemes of the paper on I/O prefetching
    Schemes(SchemesArgs),
    /// Reads of a file in memory by many threads (`CellFS`, Table 3)
    FsBandwidth(FsBandwidthArgs),
    /// Products of matrices in files (`CellFS`, Table 4)
    Matmul(MatmulArgs),
    /// What others who look into a run cost it
    Observer(ObserverArgs),
    /// Many machines: units, nodes, leases (Cell Connector, chapter 5)
    Cluster(ClusterArgs),
}

/// How results are printed.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people and for `cut`
    #[default]
    Text,
    /// One JSON object, or an array
    Json,
}

/// Runs an experiment.
///
/// # Errors
/// When there is not enough memory or disk, a transfer fails, or two versions
/// of the same work disagree.
pub fn tables(bench: &Bench) -> anyhow::Result<Vec<Table>> {
    let machine = Machine::here();
    let mut tables = match bench {
        Bench::Threads(args) => threads::run(args, &machine)?,
        Bench::Aes(args) => aes::run(args, &machine)?,
        Bench::Identity(args) => identity::run(args, &machine)?,
        Bench::Offload(args) => offload::run(args, &machine)?,
        Bench::Stream(args) => stream::run(args, &machine)?,
        Bench::Schemes(args) => schemes::run(args, &machine)?,
        Bench::FsBandwidth(args) => fs_bandwidth::run(args, &machine)?,
        Bench::Matmul(args) => matmul::run(args, &machine)?,
        Bench::Observer(args) => observer::run(args, &machine)?,
        Bench::Cluster(args) => cluster::run(args, &machine)?,
        Bench::Walk(args) => vec![walk::Walk::run(args, &machine)?],
        Bench::Listrank(args) => vec![listrank::ListRank::run(args, &machine)?],
        Bench::Probe(args) => vec![probe::Probe::run(args, &machine)?],
        Bench::Search(args) => vec![search::Search::run(args, &machine)?],
        Bench::Synthetic(args) => synthetic::run(args, &machine)?,
    };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    for table in &mut tables {
        table.command = format!("cellway {}", arguments.join(" "));
    }
    Ok(tables)
}

/// Runs an experiment and prints what it found on standard output; with `html`
/// also as a page in that file, which appears whole and replaces an old one.
///
/// # Errors
/// As [`tables`], and when standard output or the page cannot be written.
pub fn run(bench: &Bench, format: Format, html: Option<&Path>) -> anyhow::Result<()> {
    let options = storage::Options { force: true, len_bytes: None };
    // Opened first: a wrong name must not show after an hour.
    let html = html.map(|path| Output::create(path, &options)).transpose()?;
    let tables = tables(bench)?;
    // A process that is not the first of many has nothing to say.
    if tables.is_empty() {
        return Ok(());
    }
    if let Some(output) = html {
        output.sequential().write_all(page::page(&tables)?.as_bytes())?;
        output.commit(false)?;
    }
    let mut out = std::io::stdout().lock();
    match format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &tables)?;
            writeln!(out)?;
        }
        Format::Text => {
            if let Some(first) = tables.first() {
                write!(out, "{}", first.machine.to_text())?;
            }
            for table in &tables {
                write!(out, "\n{}", table.to_text())?;
            }
        }
    }
    out.flush()?;
    Ok(())
}
