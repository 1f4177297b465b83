//! The peer for file blocks: `fio`, a load generator for disks.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde::Deserialize;

use crate::measure::Sample;

/// An fio that works here, with the engine it works with.
#[derive(Clone, Debug)]
pub struct Fio {
    /// As it calls itself.
    pub version: String,
    /// `io_uring`, or `libaio` where that is refused.
    pub engine: &'static str,
}

/// What to read.
#[derive(Clone, Copy, Debug)]
pub struct Reads {
    /// Bytes per read.
    pub block_bytes: usize,
    /// Number of reads.
    pub count: u64,
    /// Reads in flight.
    pub depth: usize,
    /// In random order, no block twice; else as they lie.
    pub random: bool,
    /// Where to start when not at random, in bytes.
    pub offset: u64,
}

#[derive(Deserialize)]
struct Report {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i32,
    read: Read,
}

#[derive(Deserialize)]
struct Read {
    io_bytes: u64,
    total_ios: u64,
    iops: f64,
}

impl Fio {
    /// Looks for fio and an engine that can read `path`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find(path: &Path) -> anyhow::Result<Self> {
        let output = Command::new("fio").arg("--version").output();
        let output = output.context("fio cannot be started; install it to compare with it")?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let attempt = |engine| {
            let fio = Self { version: version.clone(), engine };
            let reads = Reads { block_bytes: 4096, count: 16, depth: 4, random: true, offset: 0 };
            fio.read(path, reads).map(|_| fio)
        };
        attempt("io_uring").or_else(|_| attempt("libaio"))
    }

    /// Reads blocks of `path` with direct I/O; the items are bytes.
    ///
    /// # Errors
    /// When fio fails or reports what cannot be understood.
    pub fn read(&self, path: &Path, reads: Reads) -> anyhow::Result<Sample> {
        let output = Command::new("fio")
            .args(["--name=read", "--readonly", "--direct=1", "--thread", "--output-format=json"])
            .args(["--randrepeat=0", if reads.random { "--rw=randread" } else { "--rw=read" }])
            .arg(format!("--ioengine={}", self.engine))
            .arg(format!("--iodepth={}", reads.depth))
            .arg(format!("--bs={}", reads.block_bytes))
            .arg(format!("--number_ios={}", reads.count))
            .arg(format!("--offset={}", if reads.random { 0 } else { reads.offset }))
            .arg(format!("--filename={}", path.display()))
            .output()
            .context("fio cannot be started")?;
        let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
        anyhow::ensure!(output.status.success(), "fio with {} failed: {}", self.engine, said());
        sample_of(&output.stdout).with_context(said)
    }
}

/// fio's report as a sample. It gives a rate with more digits than its time.
fn sample_of(report: &[u8]) -> anyhow::Result<Sample> {
    let text = String::from_utf8_lossy(report);
    // Warnings may precede the JSON.
    let start = text.find('{').context("fio printed no report")?;
    let report: Report =
        serde_json::from_str(&text[start..]).context("fio's report has changed")?;
    let job = report.jobs.first().context("fio ran no job")?;
    anyhow::ensure!(job.error == 0, "fio met error {}", job.error);
    anyhow::ensure!(job.read.iops > 0.0, "fio read nothing");
    let seconds = job.read.total_ios as f64 / job.read.iops;
    Ok(Sample { seconds, items: job.read.io_bytes, check: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_after_a_warning_is_understood() {
        let text = br#"fio: note
{"fio version": "fio-3.33", "jobs": [{"error": 0, "read":
{"io_bytes": 8192000, "total_ios": 2000, "iops": 4000.5, "runtime": 500}}]}"#;
        let sample = sample_of(text).unwrap();
        assert_eq!(sample.items, 8_192_000);
        assert!((sample.seconds - 2000.0 / 4000.5).abs() < 1e-9);
        assert!(sample_of(b"nothing").is_err());
        assert!(sample_of(br#"{"jobs": [{"error": 5, "read": {"io_bytes": 0, "total_ios": 9, "iops": 9.0}}]}"#).is_err());
    }

    #[test]
    fn fio_reads_as_many_blocks_as_asked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let fio = match Fio::find(file.path()) {
            Ok(fio) => fio,
            Err(error) => return crate::skip("fio", &format!("{error:#}")),
        };
        let reads = Reads { block_bytes: 4096, count: 100, depth: 16, random: true, offset: 8192 };
        assert_eq!(fio.read(file.path(), reads).unwrap().items, 100 * 4096);
    }
}
