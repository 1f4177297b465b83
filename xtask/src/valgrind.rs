//! `cargo xtask valgrind`: tests about memory safety, run under valgrind.

use anyhow::{Result, bail};

use crate::peers;
use crate::step::Report;
use crate::workspace::cargo;

/// Package, and what the names of its tests contain that are worth the wait:
/// valgrind is some 50 times slower than the plain run.
const CHECKED: &[(&str, &str)] = &[("cellway-accel", "drop")];

/// Random drops that the tests make then, instead of a million.
const DROPS: (&str, &str) = ("CELLWAY_DROPS", "20000");

/// Every program that cargo runs, runs in this. Without fair scheduling a
/// thread that yields in a loop can starve the pool it waits for.
const RUNNER: &str = "target.'cfg(all())'.runner = [\
    'valgrind', '--quiet', '--fair-sched=yes', '--error-exitcode=99', '--leak-check=full', \
    '--show-leak-kinds=definite', '--errors-for-leak-kinds=definite', '--num-callers=30']";

/// Runs the checks and reports.
pub(crate) fn run() -> Result<()> {
    let mut report = Report::default();
    check(&mut report)?;
    report.finish()
}

/// Runs the checks, or notes that valgrind is missing.
pub(crate) fn check(report: &mut Report) -> Result<()> {
    if peers::find("valgrind").is_none() {
        report.skipped.insert("memory checks: valgrind is not installed".into());
        return Ok(());
    }
    for (package, filter) in CHECKED {
        let passed_before = report.passed;
        let mut command = cargo(&["test", "--package", package, "--lib", "--tests"]);
        command.args(["--config", RUNNER, filter, "--", "--show-output"]);
        command.env(DROPS.0, DROPS.1);
        report.run(&format!("valgrind: tests of {package} named *{filter}*"), command)?;
        if report.passed == passed_before {
            bail!("no test of {package} is named *{filter}*: nothing was checked");
        }
    }
    Ok(())
}
