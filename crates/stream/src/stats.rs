//! What a run tells about itself, while it goes on and afterwards.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use accel::EngineReport;

use crate::plan::Plan;

/// Bytes done so far, for whoever shows progress.
#[derive(Debug, Default)]
pub struct Progress {
    pub(crate) done_bytes: AtomicU64,
}

impl Progress {
    /// Input bytes that are computed (and put, if there is an output).
    #[must_use]
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Outcome<P> {
    /// The merged partial result.
    pub part: P,
    /// How it went.
    pub stats: Stats,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Stats {
    /// The layout.
    pub plan: Plan,
    /// The engine and how it works here.
    pub engine: EngineReport,
    /// How the input was read, and why so.
    pub input_path: String,
    /// How the output was written, and why so.
    pub output_path: Option<String>,
    /// Bytes of the body that were read as units.
    pub bytes_in: u64,
    /// Bytes written.
    pub bytes_out: u64,
    /// Wall time of the streaming, without the output's commit.
    pub elapsed: Duration,
    /// Most resident memory of this process so far.
    pub peak_rss_bytes: Option<u64>,
    /// What the plan allowed the process to reach.
    pub memory_bound_bytes: u64,
    /// Time spent in each step, summed over threads: where it exceeds the
    /// wall time, steps overlapped.
    pub spent: Spent,
}

/// Time in each step, summed over all threads of all accelerators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// From a get's start to its end.
    pub get: Duration,
    /// In the kernel.
    pub compute: Duration,
    /// From a put's start to its end.
    pub put: Duration,
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.get += other.get;
        self.compute += other.compute;
        self.put += other.put;
    }
}

/// What one thread did.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) spent: Spent,
    /// Told by the first thread alone.
    pub(crate) engine: Option<EngineReport>,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.spent += other.spent;
        self.engine = self.engine.take().or(other.engine);
    }
}
