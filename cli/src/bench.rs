//! `cellway bench`: the experiments, which live in a crate of their own.

use std::path::PathBuf;

use cellway_bench::{Bench, Format};
use clap::Args;

/// Run an experiment of the papers on this machine
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    experiment: Bench,
    /// How results are printed
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t)]
    format: Format,
    /// Also write a page with plots to FILE, which is replaced
    #[arg(long, global = true, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) fn bench(args: &BenchArgs) -> anyhow::Result<()> {
    cellway_bench::run(&args.experiment, args.format, args.html.as_deref())
}
