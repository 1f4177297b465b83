//! What a run tells about itself, while it goes on and afterwards.

use std::ops::AddAssign;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use accel::EngineReport;

use crate::control::Control;
use crate::gate::lock;
use crate::memory::{floor_bytes, peak_rss_bytes};
use crate::plan::Plan;
use crate::recent::{Recent, ThreadSteps};
use crate::trace::Trace;

/// What a run has done so far, for whoever watches it.
#[derive(Debug, Default)]
pub struct Progress {
    done_bytes: AtomicU64,
    /// In this process: what the times are of.
    computed_bytes: AtomicU64,
    get_ns: AtomicU64,
    /// Of each stage.
    compute: Mutex<Vec<Duration>>,
    put_ns: AtomicU64,
    lanes: AtomicU64,
    threads: AtomicU64,
    pub(crate) trace: Option<Trace>,
    pub(crate) recent: Option<Recent>,
    control: Control,
}

impl Progress {
    /// Of a run whose steps are written to `trace`.
    #[must_use]
    pub fn traced(trace: Trace) -> Self {
        Self { trace: Some(trace), ..Self::default() }
    }

    /// Keeps what each thread does last ([`Progress::threads`]).
    #[must_use]
    pub fn observed(self) -> Self {
        Self { recent: Some(Recent::new()), ..self }
    }

    /// The trace, to be ended once the run is over.
    #[must_use]
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// What each thread did last, if that is kept.
    #[must_use]
    pub fn threads(&self) -> Vec<ThreadSteps> {
        self.recent.as_ref().map(Recent::threads).unwrap_or_default()
    }

    /// Asks the run to pause, to go on, to end.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Input bytes that are computed (and put, if there is an output).
    #[must_use]
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// So many bytes more are done: by an earlier run, or as shares ([`run_shares`](crate::run_shares)),
    /// of which their giver alone knows how many machines computed them.
    pub fn add_done(&self, done_bytes: u64) {
        self.done_bytes.fetch_add(done_bytes, Ordering::Relaxed);
    }

    /// How fast each step has been so far.
    #[must_use]
    pub fn rates(&self) -> Rates {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let time = |ns: &AtomicU64| Duration::from_nanos(load(ns));
        let (get, put) = (time(&self.get_ns), time(&self.put_ns));
        let spent = Spent { get, put, ..Spent::default() };
        let stages = &lock(&self.compute)[..];
        let bytes = load(&self.computed_bytes);
        Rates::new(bytes, spent, stages, load(&self.lanes), load(&self.threads))
    }

    pub(crate) fn starts(&self, plan: &Plan) {
        self.lanes.store(plan.lanes() as u64, Ordering::Relaxed);
        self.threads.store(plan.threads as u64, Ordering::Relaxed);
        if let Some(recent) = &self.recent {
            recent.starts(plan);
        }
    }

    /// A unit has gone through a stage, which took so long; after the last one
    /// `bytes` are computed.
    pub(crate) fn add(&self, stage: usize, bytes: usize, spent: Spent) {
        let add = |sum: &AtomicU64, more: u64| sum.fetch_add(more, Ordering::Relaxed);
        add(&self.get_ns, spent.get.as_nanos() as u64);
        add_stage(&mut lock(&self.compute), stage, spent.compute);
        add(&self.put_ns, spent.put.as_nanos() as u64);
        add(&self.computed_bytes, bytes as u64);
    }
}

/// Adds to the time of one stage.
fn add_stage(stages: &mut Vec<Duration>, stage: usize, time: Duration) {
    if stages.len() <= stage {
        stages.resize(stage + 1, Duration::ZERO);
    }
    stages[stage] += time;
}

/// A step of the naive loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Getting a block, or waiting for it.
    Get,
    /// Computing.
    Compute,
    /// Putting a block, or waiting for that.
    Put,
    /// Waiting for a block of the stage before, and copying it.
    Receive,
    /// Waiting until the next stage has copied a block.
    Send,
}

impl Step {
    /// The step's name, as in statistics and traces.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Compute => "compute",
            Self::Put => "put",
            Self::Receive => "receive",
            Self::Send => "send",
        }
    }
}

/// Input bytes per second that each step allows by itself: what it did, over
/// its time, with as many at it as can be: every accelerator computes, every
/// thread waits for transfers of its own. Of a spread chain the slowest stage counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Bytes per second by getting; `None` if that took no time.
    pub get: Option<f64>,
    /// Bytes per second by computing.
    pub compute: Option<f64>,
    /// Bytes per second by putting.
    pub put: Option<f64>,
}

impl Rates {
    fn new(bytes: u64, spent: Spent, stages: &[Duration], lanes: u64, threads: u64) -> Self {
        let rate = |time: Duration, streams: u64| {
            (!time.is_zero()).then(|| bytes as f64 * streams as f64 / time.as_secs_f64())
        };
        let all = lanes * threads;
        let slowest = stages.iter().copied().max().unwrap_or_default();
        Self { get: rate(spent.get, all), compute: rate(slowest, lanes), put: rate(spent.put, all) }
    }

    /// The step that bounds the run: the slowest.
    #[must_use]
    pub fn bottleneck(&self) -> Option<Step> {
        let steps = [(self.get, Step::Get), (self.compute, Step::Compute), (self.put, Step::Put)];
        let known = steps.into_iter().filter_map(|(rate, step)| Some((rate?, step)));
        known.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, step)| step)
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
    /// What of [`Spent::compute`] each stage took: one, or those of a spread chain.
    pub stages: Vec<Duration>,
}

impl Stats {
    /// Of a run by `plan` in which this process has no part.
    #[must_use]
    pub fn planned(plan: Plan) -> Self {
        let engine = EngineReport {
            name: "none",
            detail: "nothing was computed here".to_owned(),
            fixed_buffers: None,
        };
        Self {
            engine,
            input_path: "not read here".to_owned(),
            output_path: None,
            bytes_in: 0,
            bytes_out: 0,
            elapsed: Duration::ZERO,
            peak_rss_bytes: peak_rss_bytes(),
            memory_bound_bytes: floor_bytes().saturating_add(plan.memory_bytes),
            spent: Spent::default(),
            stages: Vec::new(),
            plan,
        }
    }

    /// Adds what another node of this machine did at the same time.
    pub fn add(&mut self, other: &Self) {
        self.plan.accelerators += other.plan.accelerators;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.peak_rss_bytes = self.peak_rss_bytes.max(other.peak_rss_bytes);
        self.memory_bound_bytes = self.memory_bound_bytes.saturating_add(other.plan.memory_bytes);
        self.spent += other.spent;
        for (stage, time) in other.stages.iter().enumerate() {
            add_stage(&mut self.stages, stage, *time);
        }
    }

    /// How fast each step was.
    #[must_use]
    pub fn rates(&self) -> Rates {
        let (lanes, threads) = (self.plan.lanes() as u64, self.plan.threads as u64);
        Rates::new(self.bytes_in, self.spent, &self.stages, lanes, threads)
    }
}

/// Time in each step, summed over all threads of all accelerators, and of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// From a get's start to its end.
    pub get: Duration,
    /// In the kernel.
    pub compute: Duration,
    /// From a put's start to its end.
    pub put: Duration,
    /// From waiting for a block of the stage before to its copy's end.
    pub receive: Duration,
    /// From offering a block to the next stage until that has copied it.
    pub send: Duration,
    /// Reading by the host's threads.
    pub host_read: Duration,
    /// Writing by the host's threads.
    pub host_write: Duration,
    /// Of get and put, waiting for the host: until a unit is read, has room,
    /// or a call's turn comes.
    pub wait: Duration,
}

impl Spent {
    /// The time of one step.
    pub(crate) fn of(&mut self, step: Step) -> &mut Duration {
        match step {
            Step::Get => &mut self.get,
            Step::Compute => &mut self.compute,
            Step::Put => &mut self.put,
            Step::Receive => &mut self.receive,
            Step::Send => &mut self.send,
        }
    }
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.get += other.get;
        self.compute += other.compute;
        self.put += other.put;
        self.receive += other.receive;
        self.send += other.send;
        self.host_read += other.host_read;
        self.host_write += other.host_write;
        self.wait += other.wait;
    }
}

/// What one thread did.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) spent: Spent,
    /// What of `spent.compute` each stage took.
    pub(crate) stages: Vec<Duration>,
    /// Told by the first thread alone.
    pub(crate) engine: Option<EngineReport>,
}

impl Tally {
    /// A unit has gone through `stage`, which took so long.
    pub(crate) fn add(&mut self, stage: usize, spent: Spent) {
        self.spent += spent;
        add_stage(&mut self.stages, stage, spent.compute);
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.spent += other.spent;
        for (stage, time) in other.stages.into_iter().enumerate() {
            add_stage(&mut self.stages, stage, time);
        }
        self.engine = self.engine.take().or(other.engine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_did_is_no_part_of_the_rates_here() {
        let progress = Progress::default();
        progress.lanes.store(1, Ordering::Relaxed);
        progress.add_done(1000);
        progress.add(0, 10, Spent { compute: Duration::from_secs(1), ..Spent::default() });
        assert_eq!((progress.done_bytes(), progress.rates().compute), (1000, Some(10.0)));
    }
}
