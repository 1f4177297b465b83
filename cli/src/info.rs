//! `cellway info`: what this machine has, and what Cellway makes of it.

use std::io::{self, Write};

use cellway::accel::{EngineChoice, EngineReport, Topology, probe};
use cellway::stream::Plan;
use cellway_bench::Format;
use clap::Args;
use serde::Serialize;

use crate::size::Size;
use crate::stdout::Stdout;

/// What is probed must work with the local store of a run.
const LOCAL_STORE_BYTES: usize = Plan::LOCAL_STORE_BYTES_DEFAULT as usize;

/// Show cores, caches, memory, and which engine works here and why
#[derive(Args, Debug)]
pub(crate) struct InfoArgs {
    /// How it is printed
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    format: Format,
}

pub(crate) fn info(args: &InfoArgs) -> anyhow::Result<()> {
    let info = Info::here();
    let mut out = Stdout::lock();
    match args.format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &info)?;
            writeln!(out)?;
        }
        Format::Text => info.write_text(&mut out)?,
    }
    Ok(out.flush()?)
}

/// What is not known is `null`.
#[derive(Serialize)]
struct Info {
    cores_allowed: Vec<usize>,
    cores_online: Option<usize>,
    cpu_quota_cores: Option<f64>,
    l1d_bytes: Option<usize>,
    l2_bytes: Option<usize>,
    l3_bytes: Option<usize>,
    memory_bytes: Option<u64>,
    page_bytes: usize,
    transparent_huge_pages: Option<String>,
    reserved_huge_pages_2mib: Option<usize>,
    io_uring: Feature,
    fixed_buffers: Feature,
    /// What `--engine auto` takes, and how it works.
    engine: String,
    engine_detail: String,
}

/// Whether something works here, and why.
#[derive(Serialize)]
struct Feature {
    works: bool,
    why: String,
}

impl Info {
    fn here() -> Self {
        let topology = Topology::read();
        let uring = probe(EngineChoice::Uring, LOCAL_STORE_BYTES);
        let fixed_buffers = fixed_buffers(uring.as_ref().ok());
        let (engine, engine_detail) = match probe(EngineChoice::Auto, LOCAL_STORE_BYTES) {
            Ok(report) => (report.name.to_owned(), report.detail),
            Err(error) => ("none".to_owned(), error.to_string()),
        };
        let io_uring = match uring {
            Ok(_) => Feature { works: true, why: "a ring was set up and passed a no-op".into() },
            Err(error) => {
                Feature { works: false, why: format!("{}: {}", error.what, error.source) }
            }
        };
        Self {
            cores_allowed: topology.cores_allowed,
            cores_online: topology.cores_online,
            cpu_quota_cores: topology.cpu_quota_cores,
            l1d_bytes: topology.l1d_bytes,
            l2_bytes: topology.l2_bytes,
            l3_bytes: topology.l3_bytes,
            memory_bytes: topology.memory_bytes,
            page_bytes: topology.page_bytes,
            transparent_huge_pages: topology
                .transparent_huge_pages
                .map(|when| format!("{when:?}").to_lowercase()),
            reserved_huge_pages_2mib: topology.reserved_huge_pages_2mib,
            io_uring,
            fixed_buffers,
            engine,
            engine_detail,
        }
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let mut line = |name: &str, value: String| writeln!(out, "{name:<14} {value}");
        let online =
            self.cores_online.map(|cores| format!(" of {cores} online")).unwrap_or_default();
        line("cores", format!("{} allowed{online}", self.cores_allowed.len()))?;
        let quota = self.cpu_quota_cores.map(|cores| format!("{cores} cores"));
        line("quota", quota.unwrap_or_else(|| "none".into()))?;
        let size =
            |bytes: Option<usize>| bytes.map_or("unknown".into(), |bytes| shown(bytes as u64));
        let (l1d, l2, l3) = (size(self.l1d_bytes), size(self.l2_bytes), size(self.l3_bytes));
        line("caches", format!("L1d {l1d}, L2 {l2} per core; L3 {l3}, shared"))?;
        let memory = self.memory_bytes.map_or("unknown".into(), shown);
        line("memory", format!("{memory}, pages of {}", shown(self.page_bytes as u64)))?;
        let transparent = self.transparent_huge_pages.as_deref().unwrap_or("unknown");
        let reserved =
            self.reserved_huge_pages_2mib.map_or("unknown".into(), |pages| pages.to_string());
        line("huge pages", format!("transparent: {transparent}; reserved (2 MiB): {reserved}"))?;
        line("io_uring", self.io_uring.to_string())?;
        line("fixed buffers", self.fixed_buffers.to_string())?;
        line("engine (auto)", format!("{}: {}", self.engine, self.engine_detail))
    }
}

fn shown(bytes: u64) -> String {
    Size(bytes).to_string()
}

impl std::fmt::Display for Feature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", if self.works { "yes" } else { "no" }, self.why)
    }
}

fn fixed_buffers(uring: Option<&EngineReport>) -> Feature {
    match uring.and_then(|uring| uring.fixed_buffers.as_ref()) {
        None => Feature { works: false, why: "they belong to io_uring".into() },
        Some(Ok(())) => Feature { works: true, why: "a local store was registered".into() },
        Some(Err(why)) => {
            Feature { works: false, why: format!("{why}; plain opcodes are used instead") }
        }
    }
}
