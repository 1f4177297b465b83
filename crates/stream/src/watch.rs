//! What one thread of a run does, told to whoever watches it.

use std::time::Instant;

use accel::{Cx, Place};

use crate::pipeline::Stand;
use crate::plan::{Piece, Plan};
use crate::stats::{Progress, Spent, Step, Tally};
use crate::trace::{InFlight, Log};

/// What all threads of a run are watched by.
pub(crate) struct Watches<'w> {
    progress: &'w Progress,
    plan: &'w Plan,
    /// Whether what is computed is done, and nobody else says so.
    is_whole: bool,
    /// By accelerator.
    in_flight: Vec<InFlight>,
}

impl<'w> Watches<'w> {
    pub(crate) fn new(progress: &'w Progress, plan: &'w Plan, is_whole: bool) -> Self {
        progress.starts(plan);
        let in_flight = (0..plan.accelerators).map(|_| InFlight::default()).collect();
        Self { progress, plan, is_whole, in_flight }
    }

    /// The watch of one thread; the first one tells the engine.
    pub(crate) fn start(&'w self, cx: &Cx<'_>, at: Place) -> Watch<'w> {
        let trace = self.progress.trace.as_ref();
        let engine = (at.index() == 0 || trace.is_some()).then(|| cx.engine());
        let name = engine.as_ref().map_or("", |engine| engine.name);
        let stand = Stand::of(self.plan, at);
        Watch {
            progress: self.progress,
            is_whole: self.is_whole,
            stand,
            log: Log::new(trace, &self.in_flight[at.accelerator], name, stand),
            tally: Tally { engine: engine.filter(|_| at.index() == 0), ..Tally::default() },
            of_unit: Spent::default(),
        }
    }
}

/// What one thread does, and how long each step takes.
pub(crate) struct Watch<'w> {
    progress: &'w Progress,
    is_whole: bool,
    stand: Stand,
    pub(crate) tally: Tally,
    pub(crate) log: Log<'w>,
    /// The unit that is worked on.
    of_unit: Spent,
}

impl Watch<'_> {
    /// A step of `piece` ends that began at `from`; when the next may begin.
    pub(crate) fn step(&mut self, step: Step, from: Instant, piece: &Piece) -> Instant {
        let now = Instant::now();
        *self.of_unit.of(step) += now - from;
        if self.progress.trace.is_none() && self.progress.recent.is_none() {
            return now;
        }
        self.log.step(step, (from, now), (piece.index, piece.data));
        if let Some(recent) = &self.progress.recent {
            let row = (self.stand.accelerator, self.stand.thread as usize);
            recent.add(row, step, (from, now), piece.index);
        }
        // To tell of it is no part of either.
        Instant::now()
    }

    /// Something ends that began at `from` and belongs to no unit.
    pub(crate) fn besides(&mut self, step: Step, from: Instant) {
        *self.tally.spent.of(step) += from.elapsed();
    }

    /// `piece` is done here.
    pub(crate) fn unit(&mut self, piece: &Piece) {
        let spent = std::mem::take(&mut self.of_unit);
        let computed_bytes = if self.stand.is_last() { piece.data } else { 0 };
        self.tally.add(self.stand.stage, spent);
        self.tally.bytes_in += computed_bytes as u64;
        self.progress.add(self.stand.stage, computed_bytes, spent);
        if self.is_whole {
            self.progress.add_done(computed_bytes as u64);
        }
    }
}
