//! `cargo xtask bench`: runs the experiments and records them.

use std::fs;
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;
use serde_json::{Value, json};

use crate::workspace::{Workspace, cargo};

/// The experiments: what `cellway bench` knows.
pub(crate) const EXPERIMENTS: &[&str] = &[
    "threads",
    "listrank",
    "walk",
    "probe",
    "search",
    "synthetic",
    "aes",
    "schemes",
    "fs-bandwidth",
    "matmul",
    "observer",
    "cluster",
];

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Experiments to run (default: all of them)
    #[arg(value_parser = PossibleValuesParser::new(EXPERIMENTS))]
    experiments: Vec<String>,
    /// Arguments handed on to each experiment
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Runs the experiments one after the other and writes each one's result, with
/// its command and the machine, to `bench/results/NAME.json`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let all = || EXPERIMENTS.iter().map(|name| (*name).to_owned()).collect();
    let experiments = if args.experiments.is_empty() { all() } else { args.experiments.clone() };
    let results = Workspace::read()?.root.join("bench/results");
    fs::create_dir_all(&results).with_context(|| format!("{}", results.display()))?;
    let machine = cellway(&["info".into()])?;
    for name in experiments {
        let mut command = vec!["bench".to_owned(), name.clone()];
        command.extend(args.arguments.iter().cloned());
        let result = cellway(&command)?;
        let record = json!({
            "command": format!("cellway {}", command.join(" ")),
            "unix_seconds": SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
            "machine": machine,
            "result": result,
        });
        let path = results.join(format!("{name}.json"));
        fs::write(&path, format!("{record:#}\n")).with_context(|| format!("{}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// What the released program answers in JSON.
fn cellway(arguments: &[String]) -> Result<Value> {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", "cellway-cli", "--"]);
    command.args(arguments).args(["--format", "json"]).stderr(Stdio::inherit());
    let what = format!("cellway {}", arguments.join(" "));
    eprintln!("== {what}");
    let output = command.output().with_context(|| format!("{what} does not start"))?;
    if !output.status.success() {
        bail!("{what} failed ({})", output.status);
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("{what} did not answer in JSON"))
}
