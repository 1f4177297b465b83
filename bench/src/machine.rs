//! Where a figure was measured: what a reader needs to compare it.

use std::fs;

use cellway::accel::Topology;
use serde::Serialize;

use crate::measure::{Spread, clock_ns};

/// The machine as it presents itself (`/proc`, `/sys`).
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// Model name of the processor.
    pub cpu: String,
    /// Processors this process may run on.
    pub cpus: usize,
    /// Measured core frequency in GHz while one core is busy.
    pub core_ghz: f64,
    /// Second-level cache of a core, in bytes.
    pub l2_bytes: u64,
    /// Last-level cache, in bytes.
    pub llc_bytes: u64,
    /// Main memory, in bytes.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: String,
    /// Whether the benchmark was compiled without optimization: figures mean nothing then.
    pub debug_build: bool,
}

impl Machine {
    /// Looks at this machine; what it does not say stays empty or 0.
    #[must_use]
    pub fn here() -> Self {
        let topology = Topology::read();
        let l2_bytes = topology.l2_bytes.unwrap_or(0) as u64;
        Self {
            cpu: cpu_model().unwrap_or_default(),
            cpus: topology.cores_allowed.len(),
            core_ghz: 1.0 / Spread::of((0..9).map(|_| clock_ns())).median,
            l2_bytes,
            llc_bytes: l2_bytes.max(topology.l3_bytes.unwrap_or(0) as u64),
            memory_bytes: topology.memory_bytes.unwrap_or(0),
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            huge_pages: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
            debug_build: cfg!(debug_assertions),
        }
    }

    /// Nanoseconds as core cycles.
    #[must_use]
    pub fn cycles(&self, ns: f64) -> f64 {
        ns * self.core_ghz
    }

    /// The two lines printed above the tables.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mib = |bytes: u64| bytes >> 20;
        let debug = if self.debug_build { "\ndebug build: the figures mean nothing" } else { "" };
        format!(
            "{}, {} CPUs at {:.2} GHz, L2 {} MiB, LLC {} MiB, memory {} MiB\nLinux {}, huge pages: {}{debug}\n",
            self.cpu,
            self.cpus,
            self.core_ghz,
            mib(self.l2_bytes),
            mib(self.llc_bytes),
            mib(self.memory_bytes),
            self.kernel,
            self.huge_pages,
        )
    }
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn cpu_model() -> Option<String> {
    let text = read("/proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The word in brackets, as in `always [madvise] never`.
fn chosen(path: &str) -> String {
    let text = read(path).unwrap_or_default();
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    word.map_or(String::from("unknown"), |(word, _)| word.to_owned())
}
