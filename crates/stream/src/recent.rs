//! What each thread of a run did last, for whoever looks into the run.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::gate::lock;
use crate::plan::Plan;
use crate::stats::Step;

/// Steps of a thread that are kept.
const STEPS_MAX: usize = 32;

/// A step that a thread has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Which one.
    pub step: Step,
    /// On which unit.
    pub unit: u64,
    /// When it began, from when the run was laid out.
    pub from: Duration,
    /// How long it took.
    pub took: Duration,
}

/// A thread, and its last steps, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadSteps {
    /// Number of its accelerator.
    pub accelerator: usize,
    /// Its number there.
    pub thread: usize,
    /// What it did last; empty before its first step is done.
    pub steps: Vec<Done>,
}

/// The last steps of all threads: of a fixed size, whatever the input's.
#[derive(Debug)]
pub(crate) struct Recent {
    start: Instant,
    /// By accelerator and thread.
    rows: Mutex<Vec<Vec<VecDeque<Done>>>>,
}

impl Recent {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), rows: Mutex::default() }
    }

    /// Of a run, or a part of it, that is laid out so.
    pub(crate) fn starts(&self, plan: &Plan) {
        let row = vec![VecDeque::with_capacity(STEPS_MAX); plan.threads];
        *lock(&self.rows) = vec![row; plan.accelerators];
    }

    pub(crate) fn add(
        &self,
        (accelerator, thread): (usize, usize),
        step: Step,
        (from, until): (Instant, Instant),
        unit: u64,
    ) {
        let mut rows = lock(&self.rows);
        let Some(row) = rows.get_mut(accelerator).and_then(|row| row.get_mut(thread)) else {
            return;
        };
        if row.len() == STEPS_MAX {
            row.pop_front();
        }
        let since = from.saturating_duration_since(self.start);
        row.push_back(Done { step, unit, from: since, took: until - from });
    }

    pub(crate) fn threads(&self) -> Vec<ThreadSteps> {
        let rows = lock(&self.rows);
        let of_one = |(accelerator, row): (usize, &Vec<VecDeque<Done>>)| {
            let steps = row.iter().map(|steps| steps.iter().copied().collect()).enumerate();
            steps
                .map(|(thread, steps)| ThreadSteps { accelerator, thread, steps })
                .collect::<Vec<_>>()
        };
        rows.iter().enumerate().flat_map(of_one).collect()
    }
}
