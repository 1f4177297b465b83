//! Runs a command, shows what it prints, and remembers what was skipped.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Whether all must be run, and nothing skipped.
pub(crate) fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|ci| ci == "true")
}

/// What the steps of a run told.
#[derive(Default)]
pub(crate) struct Report {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// What was not done, and why.
    pub(crate) skipped: BTreeSet<String>,
}

impl Report {
    /// Runs one step to its end, printing its output. Fails when it fails.
    pub(crate) fn run(&mut self, title: &str, command: Command) -> Result<()> {
        self.run_into(&mut std::io::stdout(), title, command)
    }

    fn run_into(&mut self, out: &mut impl Write, title: &str, mut command: Command) -> Result<()> {
        writeln!(out, "\n== {title}")?;
        let start = Instant::now();
        // One pipe for both streams keeps their lines in order.
        let (reader, writer) = std::io::pipe()?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().with_context(|| format!("{title} does not start"))?;
        // The command holds the pipe's other end, which must not stay open.
        drop(command);
        let mut lines = Lines::default();
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            if lines.take(&String::from_utf8_lossy(&line), self) {
                out.write_all(&line)?;
            }
            line.clear();
        }
        let status = child.wait()?;
        writeln!(out, "== {title}: {status}, {:.1} s", start.elapsed().as_secs_f64())?;
        if !status.success() {
            bail!("{title} failed ({status})");
        }
        Ok(())
    }

    /// Names what was skipped; with CI=true that is a failure.
    pub(crate) fn finish(self) -> Result<()> {
        println!("\n{} tests passed, {} things skipped", self.passed, self.skipped.len());
        for skip in &self.skipped {
            println!("SKIP {skip}");
        }
        if !self.skipped.is_empty() && is_ci() {
            bail!("{} things were skipped, and with CI=true nothing may be", self.skipped.len());
        }
        Ok(())
    }
}

/// Reads the output line by line. With `--show-output` the test harness prints
/// what passed tests printed, which hides the rest: only skips are kept of it.
#[derive(Default)]
struct Lines {
    in_successes: bool,
}

impl Lines {
    /// Notes what `line` tells; true when it is worth showing.
    fn take(&mut self, line: &str, report: &mut Report) -> bool {
        let line = line.trim();
        if line == "successes:" {
            self.in_successes = true;
        } else if line == "failures:" || line.starts_with("test result:") {
            self.in_successes = false;
        }
        if let Some(skip) = line.strip_prefix("SKIP ") {
            report.skipped.insert(skip.to_owned());
            return true;
        }
        if let Some((test, reason)) = line.split_once(" ... ignored") {
            report.skipped.insert(format!("{test}: ignored{reason}"));
        }
        if let Some(counts) = line.strip_prefix("test result: ok. ") {
            let passed = counts.split(' ').next().and_then(|count| count.parse().ok());
            report.passed += passed.unwrap_or(0);
        }
        !self.in_successes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "running 3 tests
test a ... ok
test b ... ignored, needs 16 GiB
test c ... ok

successes:

---- a stdout ----
chatter
SKIP uring: ENOSYS

successes:
    a
    c

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out
   Doc-tests accel
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out
SKIP uring: ENOSYS
";

    #[test]
    fn skips_are_kept_and_chatter_is_not() {
        let (mut report, mut lines) = (Report::default(), Lines::default());
        let shown: Vec<_> = OUTPUT.lines().filter(|line| lines.take(line, &mut report)).collect();
        assert_eq!(report.passed, 5);
        let skipped: Vec<_> = report.skipped.iter().collect();
        assert_eq!(skipped, ["test b: ignored, needs 16 GiB", "uring: ENOSYS"]);
        assert!(!shown.contains(&"chatter") && shown.contains(&"SKIP uring: ENOSYS"));
        assert!(shown.contains(&"   Doc-tests accel"), "{shown:?}");
    }

    #[test]
    fn what_failed_tests_printed_is_shown() {
        let (mut report, mut lines) = (Report::default(), Lines::default());
        let output =
            "successes:\nchatter\nfailures:\nthread panicked\ntest result: FAILED. 1 passed";
        let shown: Vec<_> = output.lines().filter(|line| lines.take(line, &mut report)).collect();
        assert_eq!(shown, ["failures:", "thread panicked", "test result: FAILED. 1 passed"]);
        assert_eq!(report.passed, 0);
    }

    #[test]
    fn a_step_is_heard_on_both_streams_and_its_failure_told() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        // Not to standard output: a run around this one would hear the skips.
        let (mut report, mut out) = (Report::default(), Vec::new());
        let both = shell("echo SKIP a: x; echo SKIP b: y >&2");
        report.run_into(&mut out, "both", both).unwrap();
        assert_eq!(report.skipped.len(), 2);
        let text = String::from_utf8(out.clone()).unwrap();
        assert!(text.starts_with("\n== both\nSKIP a: x\nSKIP b: y\n== both: exit"), "{text}");
        let error = report.run_into(&mut out, "bad", shell("exit 3")).unwrap_err().to_string();
        assert!(error.starts_with("bad failed") && error.contains('3'), "{error}");
    }
}
