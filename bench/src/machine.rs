//! Where a figure was measured: what a reader needs to compare it.

use std::fs;

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
        let cache = |level: u32| cache_bytes(level).unwrap_or(0);
        Self {
            cpu: proc_value("/proc/cpuinfo", "model name").unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            core_ghz: 1.0 / Spread::of((0..9).map(|_| clock_ns())).median,
            l2_bytes: cache(2),
            llc_bytes: cache(3).max(cache(2)),
            memory_bytes: memory_bytes().unwrap_or(0),
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

fn proc_value(path: &str, key: &str) -> Option<String> {
    let text = read(path)?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_bytes() -> Option<u64> {
    let kib: u64 = proc_value("/proc/meminfo", "MemTotal")?.split(' ').next()?.parse().ok()?;
    Some(kib * 1024)
}

fn cache_bytes(level: u32) -> Option<u64> {
    (0..8).find_map(|index| {
        let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let value = |name| read(&format!("{folder}/{name}"));
        let wanted = value("level")? == level.to_string() && value("type")? != "Instruction";
        let kib: u64 = value("size")?.strip_suffix('K')?.parse().ok()?;
        wanted.then_some(kib * 1024)
    })
}

/// The word in brackets, as in `always [madvise] never`.
fn chosen(path: &str) -> String {
    let text = read(path).unwrap_or_default();
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    word.map_or(String::from("unknown"), |(word, _)| word.to_owned())
}
