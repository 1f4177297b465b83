//! How a run went, as `--stats` writes it.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use cellway::stream::{self, Stats, Step};
use serde::Serialize;

use super::beside::{Beside, Closed};
use super::window::Window;

/// What was read and written.
#[derive(Debug, Serialize)]
pub(super) struct Files {
    /// Of several the first that was asked for, which may be a directory.
    pub(super) input: String,
    /// How many were read.
    pub(super) inputs: usize,
    /// `null` for a reduction; the directory of several.
    pub(super) output: Option<String>,
}

/// One JSON object. Scripts rely on these names: they are only ever added to.
#[derive(Debug, Serialize)]
pub(super) struct StatsJson<'a> {
    kernel: &'a str,
    #[serde(flatten)]
    files: Files,
    /// As `--engine` takes it.
    engine: &'static str,
    engine_detail: &'a str,
    /// Through the page cache or past it, and why.
    input_path: &'a str,
    output_path: Option<&'a str>,
    accelerators: usize,
    threads: usize,
    block_bytes: u64,
    local_store_bytes: u64,
    bytes_in: u64,
    bytes_out: u64,
    /// Wall time of the streaming, without `commit_seconds`.
    seconds: f64,
    /// Summed over all threads, as are the next two.
    get_seconds: f64,
    compute_seconds: f64,
    put_seconds: f64,
    /// As `--scheme` takes it.
    scheme: String,
    /// By threads of the host, as is the next one.
    host_read_seconds: f64,
    host_write_seconds: f64,
    /// What of get and put was waiting for the host.
    wait_seconds: f64,
    /// As `--pipeline` takes it.
    pipeline: String,
    /// Accelerators that a block goes through.
    stages: usize,
    /// What of `compute_seconds` each stage took.
    stage_compute_seconds: Vec<f64>,
    /// Waiting for blocks of the stage before, and until the next one has them.
    receive_seconds: f64,
    send_seconds: f64,
    /// Input bytes per second that each step allowed by itself; `null` if it took no time.
    get_bytes_per_second: Option<f64>,
    compute_bytes_per_second: Option<f64>,
    put_bytes_per_second: Option<f64>,
    /// The slowest of them: get, compute or put.
    bottleneck: Option<&'static str>,
    /// Giving the output its name; with `--sync`, bringing it to the disk. With
    /// an output directory that is in `put_seconds`.
    commit_seconds: f64,
    /// Of the whole process up to here; `null` where /proc does not tell.
    peak_rss_bytes: Option<u64>,
    memory_bound_bytes: u64,
}

impl<'a> StatsJson<'a> {
    pub(super) fn new(kernel: &'a str, files: Files, stats: &'a Stats, commit: Duration) -> Self {
        let rates = stats.rates();
        Self {
            kernel,
            files,
            engine: stats.engine.name,
            engine_detail: &stats.engine.detail,
            input_path: &stats.input_path,
            output_path: stats.output_path.as_deref(),
            accelerators: stats.plan.accelerators,
            threads: stats.plan.threads,
            block_bytes: stats.plan.block_bytes,
            local_store_bytes: stats.plan.local_store_bytes,
            bytes_in: stats.bytes_in,
            bytes_out: stats.bytes_out,
            seconds: stats.elapsed.as_secs_f64(),
            get_seconds: stats.spent.get.as_secs_f64(),
            compute_seconds: stats.spent.compute.as_secs_f64(),
            put_seconds: stats.spent.put.as_secs_f64(),
            scheme: stats.plan.scheme.to_string(),
            host_read_seconds: stats.spent.host_read.as_secs_f64(),
            host_write_seconds: stats.spent.host_write.as_secs_f64(),
            wait_seconds: stats.spent.wait.as_secs_f64(),
            pipeline: stats.plan.pipeline().to_string(),
            stages: stats.plan.stages,
            stage_compute_seconds: stats.stages.iter().map(Duration::as_secs_f64).collect(),
            receive_seconds: stats.spent.receive.as_secs_f64(),
            send_seconds: stats.spent.send.as_secs_f64(),
            get_bytes_per_second: rates.get,
            compute_bytes_per_second: rates.compute,
            put_bytes_per_second: rates.put,
            bottleneck: rates.bottleneck().map(Step::name),
            commit_seconds: commit.as_secs_f64(),
            peak_rss_bytes: stream::peak_rss_bytes(),
            memory_bound_bytes: stats.memory_bound_bytes,
        }
    }

    pub(super) fn write(&self, mut out: impl Write) -> anyhow::Result<()> {
        serde_json::to_writer(&mut out, self)?;
        writeln!(out)?;
        Ok(out.flush()?)
    }
}

/// A file for statistics.
pub(super) struct StatsFile(Beside);

impl StatsFile {
    pub(super) fn create(window: &Window, path: &Path) -> anyhow::Result<Self> {
        Ok(Self(Beside::create(window, path)?))
    }

    pub(super) fn write(self, stats: &StatsJson<'_>) -> anyhow::Result<Closed> {
        let mut line = Vec::new();
        stats.write(&mut line)?;
        let written = self.0.sequential().write_all(&line);
        self.0.close(written)
    }
}
