//! `cargo xtask test`: everything that must pass, and nothing skipped in silence.

use std::process::Command;

use anyhow::Result;

use crate::bench::EXPERIMENTS;
use crate::peers;
use crate::step::{Report, is_ci};
use crate::valgrind;
use crate::workspace::cargo;

/// Programs run once, besides the experiments: package and arguments.
const SMOKE: &[(&str, &[&str])] = &[
    ("cellway-cli", &["info"]),
    ("cellway-cli", &["kernels"]),
    ("cellway-cli", &["demo"]),
    ("average", &[]),
    ("entropy", &["Cargo.lock"]),
    ("factors", &["60"]),
];

/// How much some tests do with CI=true: elsewhere a part will do. Whoever sets these is heeded.
const IN_FULL: &[(&str, &str)] =
    &[("CELLWAY_BIG_FILES", "1"), ("CELLWAY_MESSAGES", "1000000"), ("CELLWAY_RACE_SECONDS", "60")];

/// Runs all of it; the first step that fails ends the run.
pub(crate) fn run() -> Result<()> {
    let mut report = Report::default();
    peers::prepare(&mut report);
    let mut tests = cargo(&["test", "--workspace", "--no-fail-fast"]);
    tests.args(["--", "--show-output"]);
    let unset = |(name, _): &&(&str, &str)| std::env::var_os(name).is_none();
    if is_ci() {
        tests.envs(IN_FULL.iter().filter(unset).copied());
    }
    report.run("cargo test --workspace", tests)?;
    report.run("the fuzz targets compile", fuzz_targets())?;
    for (package, arguments) in SMOKE {
        smoke(&mut report, package, arguments)?;
    }
    // Small experiments: they are checked for running, not for speed.
    for experiment in EXPERIMENTS {
        smoke(&mut report, "cellway-cli", &["bench", experiment, "--quick"])?;
    }
    valgrind::check(&mut report)?;
    report.finish()
}

/// Checks what cargo-fuzz builds, in the way it does; proptests run the same bodies.
fn fuzz_targets() -> Command {
    let mut check = cargo(&["clippy", "--manifest-path", "fuzz/Cargo.toml"]);
    check.args(["--no-default-features", "--", "-D", "warnings"]).env("RUSTFLAGS", "--cfg fuzzing");
    check
}

/// Runs a program as its users do: built for release.
fn smoke(report: &mut Report, package: &str, arguments: &[&str]) -> Result<()> {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", package, "--"]);
    command.args(arguments);
    report.run(&format!("{package} {}", arguments.join(" ")), command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn every_example_is_run() {
        for package in Workspace::read().unwrap().packages {
            let run = SMOKE.iter().any(|(name, _)| *name == package.name);
            assert!(run || !package.dir.starts_with("examples/"), "{} is not run", package.name);
        }
    }
}
