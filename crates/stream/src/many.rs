//! Many inputs in one run: the large ones one after the other, each by all
//! accelerators; small ones that stand side by side in the list as a *batch*,
//! each by one accelerator.
//!
//! Parts live through the whole run. Those that are merged in order are so
//! within each input, and the inputs in the order of the list.

mod batch;

use std::ops::Range;
use std::time::Instant;

use accel::{Config, EngineChoice};
use storage::{Input, Listed, OutDir, Output, Partial};

use crate::error::StreamError;
use crate::journal::Journal;
use crate::kernel::Kernel;
use crate::leases::{self, Lease};
use crate::memory::{floor_bytes, free_bytes, peak_rss_bytes};
use crate::merge::Parts;
use crate::paths::Direct;
use crate::pipeline::Pipeline;
use crate::plan::{BUF_ALIGN_BYTES, Options, Plan, PlanError, Shape, accelerators};
use crate::run::{
    Ends, Streamed, check_journaled, check_kernel_looks, check_output, layout, parts_bytes,
    stream_one, trace_bytes,
};
use crate::scheme::Scheme;
use crate::stats::{Outcome, Progress, Tally};
use batch::Batch;

/// A longer file is worth all accelerators.
const SMALL_BYTES_MAX: u64 = 4 << 20;

/// Where a run over many inputs writes what it makes of each.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'o> {
    /// Prepared for these inputs.
    pub dir: &'o OutDir,
    /// Bring each output to the disk.
    pub sync: bool,
}

/// Inputs that are streamed together.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// One, by all accelerators.
    Alone(usize),
    /// Small files side by side, each by one accelerator.
    Batch(Range<usize>),
}

impl Segment {
    /// The number behind its last input.
    fn end(&self) -> usize {
        match self {
            Self::Alone(number) => number + 1,
            Self::Batch(range) => range.end,
        }
    }
}

/// An input of which no more counts yet than its length in bytes, if it has one.
trait Length {
    fn len_bytes(&self) -> Option<u64>;
}

impl Length for Listed {
    fn len_bytes(&self) -> Option<u64> {
        self.len_bytes()
    }
}

impl Length for u64 {
    fn len_bytes(&self) -> Option<u64> {
        Some(*self)
    }
}

/// Cuts the list. What was asked for by name (an engine, direct I/O, a spread
/// chain, faults) is for inputs that are streamed alone, so all of them are then.
fn segments<I: Length>(inputs: &[I], options: &Options) -> impl Iterator<Item = Segment> {
    let batches = are_batched(options);
    let is_small =
        move |input: &I| batches && input.len_bytes().is_some_and(|len| len <= SMALL_BYTES_MAX);
    let mut from = 0;
    // No inputs are an empty batch, which tells of its engine too.
    let mut begun = false;
    std::iter::from_fn(move || {
        if from == inputs.len() && begun {
            return None;
        }
        begun = true;
        let small = inputs[from..].iter().take_while(|input| is_small(input)).count();
        let until = from + small.max(1).min(inputs.len() - from);
        let segment = if small == 0 && from < until {
            Segment::Alone(from)
        } else {
            Segment::Batch(from..until)
        };
        from = until;
        Some(segment)
    })
}

/// Whether small inputs are streamed in batches.
pub(crate) fn are_batched(options: &Options) -> bool {
    matches!(options.engine, EngineChoice::Auto | EngineChoice::Pread)
        && options.direct != Direct::On
        && options.scheme.resolved() == Scheme::Direct
        && options.pipeline == Pipeline::Fused
        && options.faults.is_none()
}

/// How all inputs are laid out.
struct Plans {
    /// Lanes of accelerators that share the parts.
    lanes: usize,
    batch: Option<Plan>,
    /// No input that is streamed alone takes more memory, unless its header asks for it.
    alone: Option<Plan>,
}

impl Plans {
    fn new<K: Kernel, I: Length>(
        kernel: &K,
        inputs: &[I],
        options: &Options,
    ) -> Result<Self, PlanError> {
        if inputs.len() > 1 {
            let refused = |error| PlanError::Many { kernel: kernel.name().to_owned(), error };
            kernel.check_many().map_err(refused)?;
        }
        if options.scheme == Scheme::Mapped {
            check_kernel_looks(kernel)?;
        }
        let cores = Config::default().accelerators;
        let stages = options.pipeline.stages(kernel)?;
        let lanes = accelerators(options.accelerators, cores, stages)? / stages;
        let plan = |batch: Option<usize>, len_bytes: Option<u64>| {
            let direct = batch.is_none() && options.direct != Direct::Off;
            let shape = Shape {
                body: 0..len_bytes.unwrap_or(u64::MAX),
                len_bytes,
                cut: kernel.cut(&K::Header::default()),
                direct_align_bytes: if direct { BUF_ALIGN_BYTES } else { 1 },
                effect: kernel.effect(),
                cores,
                stages,
                batch,
                mapped: batch.is_none() && options.scheme == Scheme::Mapped,
            };
            let plan = Plan::new(options, shape, |_| parts_bytes(kernel, lanes))?;
            plan.io.check(&plan, free_bytes)?;
            Ok(plan)
        };
        let (mut alone, mut batch) = (None, None);
        for segment in segments(inputs, options) {
            match segment {
                Segment::Alone(number) => {
                    let len = inputs[number].len_bytes().unwrap_or(u64::MAX);
                    alone = alone.max(Some(len));
                }
                Segment::Batch(range) => {
                    let (files, len) = batch.unwrap_or_default();
                    let longest = inputs[range.clone()].iter().filter_map(I::len_bytes).max();
                    batch = Some((range.len().max(files), longest.unwrap_or(0).max(len)));
                }
            }
        }
        let known = |len: u64| (len < u64::MAX).then_some(len);
        Ok(Self {
            lanes,
            batch: batch.map(|(files, len)| plan(Some(files), Some(len))).transpose()?,
            alone: alone.map(|len| plan(None, known(len))).transpose()?,
        })
    }

    /// The one that takes more memory.
    fn largest(&self) -> &Plan {
        let plans = self.batch.iter().chain(&self.alone);
        plans.max_by_key(|plan| plan.memory_bytes).expect("each segment has a plan")
    }
}

/// Lays a run over many inputs out without starting it: the plan of those that
/// take most memory.
///
/// # Errors
/// A kernel that does not take several inputs, or options that do not fit.
pub fn plan_all<K: Kernel>(
    kernel: &K,
    inputs: &[Listed],
    options: &Options,
) -> Result<Plan, StreamError> {
    Ok(Plans::new(kernel, inputs, options)?.largest().clone())
}

/// As [`plan_all`], of inputs of which this process knows the lengths in bytes only.
///
/// # Errors
/// As [`plan_all`].
pub fn plan_lens<K: Kernel>(
    kernel: &K,
    lens: &[u64],
    options: &Options,
) -> Result<Plan, StreamError> {
    Ok(Plans::new(kernel, lens, options)?.largest().clone())
}

/// Streams `inputs` through `kernel`, in their order, and for a transform or
/// rewrite each into an output of its own; without `outputs` what it makes is
/// dropped. A reduction's result is that of all of them.
///
/// [`Outcome::stats`] has the plan of [`plan_all`], and sums.
///
/// # Errors
/// See [`StreamError`]; of several failures, the one earliest in the list.
/// Outputs that were finished before stay, each whole.
///
/// # Panics
/// A panic of the kernel is passed on.
pub fn run_all<K: Kernel>(
    kernel: &K,
    inputs: &[Listed],
    outputs: Option<&Outputs<'_>>,
    options: &Options,
    progress: &Progress,
) -> Result<Outcome<K::Part>, StreamError> {
    run_all_journaled(kernel, inputs, outputs, options, progress, None)
}

/// As [`run_all`]; a journal that is new, or that [`Journal::check_all`] found
/// to be this run's, is gone on with, and told every while how far the run has
/// come: inputs, and units of a large one. The outputs of one that is gone on
/// with come from [`OutDir::go_on`]. The caller removes it at last.
///
/// # Errors
/// Those of [`run_all`], and where the journal cannot be written.
///
/// # Panics
/// A panic of the kernel is passed on.
pub fn run_all_journaled<K: Kernel>(
    kernel: &K,
    inputs: &[Listed],
    outputs: Option<&Outputs<'_>>,
    options: &Options,
    progress: &Progress,
    mut journal: Option<&mut Journal>,
) -> Result<Outcome<K::Part>, StreamError> {
    // What finding the inputs took for a while counts too.
    let peak_before = peak_rss_bytes().unwrap_or(0);
    let floor_bytes = floor_bytes();
    check_output(kernel, outputs.is_some())?;
    let mut options =
        journal.as_ref().map_or_else(|| options.clone(), |journal| journal.options(options));
    // One layout holds for all inputs, whatever is cached of each.
    options.scheme = options.scheme.resolved();
    let options = &options;
    let plans = Plans::new(kernel, inputs, options)?;
    let mut plan = plans.largest().clone();
    plan.memory_bytes += trace_bytes(&plan, progress);
    let run = Run { kernel, inputs, outputs, options, progress, plans: &plans };
    let mut parts = Parts::new(kernel, plans.lanes);
    let (mut tally, mut ways) = (Tally::default(), (Vec::new(), Vec::new()));
    let started = Instant::now();
    let done = run.done(journal.as_deref())?;
    progress.add_done(inputs[..done].iter().filter_map(Listed::len_bytes).sum());
    for segment in segments(inputs, options) {
        if done > 0 && segment.end() <= done {
            continue;
        }
        parts.restart();
        let journal = journal.as_deref_mut();
        let streamed = match segment {
            Segment::Alone(number) => {
                let (streamed, own) = run.alone(number, &parts, journal)?;
                plan.memory_bytes = plan.memory_bytes.max(own.memory_bytes);
                streamed
            }
            Segment::Batch(range) => run.batch(range, &parts, journal)?,
        };
        tally += streamed.tally;
        add_way(&mut ways.0, Some(streamed.input_path));
        add_way(&mut ways.1, streamed.output_path);
    }
    let refused = |error| StreamError::Kernel { input: names(inputs), error };
    let part = parts.end(kernel).map_err(refused)?;
    let output_path = outputs.map(|_| ways.1.join(", "));
    let input_path = ways.0.join(", ");
    let streamed = Streamed { tally, input_path, output_path, elapsed: started.elapsed() };
    let mut stats = streamed.into_stats(plan, floor_bytes);
    stats.memory_bound_bytes = stats.memory_bound_bytes.max(peak_before);
    Ok(Outcome { part, stats })
}

/// Notes a way that inputs or outputs took; how many there are is bounded.
fn add_way(ways: &mut Vec<String>, way: Option<String>) {
    const SHOWN_MAX: usize = 4;
    if let Some(way) = way.filter(|way| !ways.contains(way)) {
        match ways.len() {
            SHOWN_MAX => ways.push("and others".to_owned()),
            0..SHOWN_MAX => ways.push(way),
            _ => {}
        }
    }
}

/// The inputs for a message about all of them.
fn names(inputs: &[Listed]) -> String {
    match inputs {
        [] => "no input".to_owned(),
        [one] => one.shown(),
        [first, more @ ..] => format!("{} and {} more", first.shown(), more.len()),
    }
}

/// What all segments share.
struct Run<'r, K> {
    kernel: &'r K,
    inputs: &'r [Listed],
    outputs: Option<&'r Outputs<'r>>,
    options: &'r Options,
    progress: &'r Progress,
    plans: &'r Plans,
}

impl<K: Kernel> Run<'_, K> {
    /// How many inputs are done already.
    fn done(&self, journal: Option<&Journal>) -> Result<usize, StreamError> {
        let Some(journal) = journal else { return Ok(0) };
        check_journaled(self.plans.largest())?;
        match journal.inputs_done() {
            // What is done last is not told: then the run is complete.
            done if done > 0 && done >= self.inputs.len() => {
                Err(leases::unfit(journal, "it tells of more inputs than there are").into())
            }
            done => Ok(done),
        }
    }

    fn alone(
        &self,
        number: usize,
        parts: &Parts<K::Part>,
        mut journal: Option<&mut Journal>,
    ) -> Result<(Streamed, Plan), StreamError> {
        let (kernel, options, listed) = (self.kernel, self.options, &self.inputs[number]);
        let input = Input::open(listed.path())?;
        let laid = layout(kernel, &input, options, Some(self.plans.lanes))?;
        if let Some(journal) = journal.as_deref_mut() {
            check_journaled(&laid.plan)?;
            journal.turn_to(number, None);
            if let Some(units) = journal.of_input().map(|last| last.units) {
                leases::take_up(kernel, parts, self.plans.lanes, journal, units)?;
            }
        }
        let len_bytes = laid.plan.output_bytes();
        let output = match (self.outputs, journal.as_deref_mut()) {
            (None, _) => None,
            (Some(outputs), None) => Some(outputs.dir.create(listed, len_bytes)?),
            (Some(outputs), Some(journal)) => {
                self.unfinished(outputs.dir, number, len_bytes, parts, journal)?
            }
        };
        let ends = Ends { input: &input, output: output.as_ref() };
        let streamed = stream_one(kernel, ends, options, self.progress, laid, parts, journal)?;
        if let (Some(output), Some(outputs)) = (output, self.outputs) {
            output.commit(outputs.sync)?;
        }
        Ok(streamed)
    }

    /// An output that the journal tells of before it is made; `None` if it has
    /// its name already.
    fn unfinished(
        &self,
        dir: &OutDir,
        number: usize,
        len_bytes: Option<u64>,
        parts: &Parts<K::Part>,
        journal: &mut Journal,
    ) -> Result<Option<Output>, StreamError> {
        let how = storage::Options { force: dir.force(), len_bytes };
        if let (Some(partial), Some(_)) = (journal.partial(), journal.of_input()) {
            journal.turn_to(number, Some(&partial));
            return Ok(match journal.written() {
                Some((identity, len_bytes)) => partial.reopen(&how, identity, len_bytes)?,
                None => Some(partial.create(&how)?),
            });
        }
        // The journal is about to tell that the outputs before have their names.
        dir.settle()?;
        let partial = Partial::choose(&dir.place(&self.inputs[number]), dir.force())?;
        journal.turn_to(number, Some(&partial));
        let blank = journal.blank();
        leases::record(self.kernel, parts, journal, blank)?;
        Ok(Some(partial.create(&how)?))
    }

    /// Streams a batch in leases, each of whole claims.
    fn in_leases(
        &self,
        batch: &mut Batch<'_, K>,
        range: Range<usize>,
        parts: &Parts<K::Part>,
        journal: &mut Journal,
    ) -> Result<Tally, StreamError> {
        let done = journal.inputs_done();
        let mut from = 0;
        if journal.last().is_some() && range.contains(&done) {
            let units = journal.last().map_or(0, |last| last.units);
            let claim = batch.claim_at(done - range.start).filter(|_| units == 0);
            let other = "it was begun with other batches";
            from = claim.ok_or_else(|| leases::unfit(journal, other))?;
            leases::take_up(self.kernel, parts, self.plans.lanes, journal, from)?;
        }
        batch.start_from(from);
        let mut all = Tally::default();
        loop {
            batch.lease = Some(Lease { from, until: journal.due() });
            all += batch.stream()?;
            let Some((claim, files)) = batch.taken() else { return Ok(all) };
            let since = Instant::now();
            if let Some(outputs) = self.outputs {
                outputs.dir.settle()?;
            }
            journal.turn_to(range.start + files, None);
            let blank = journal.blank();
            leases::record(self.kernel, parts, journal, blank)?;
            journal.recorded(since);
            from = claim;
        }
    }

    fn batch(
        &self,
        range: Range<usize>,
        parts: &Parts<K::Part>,
        journal: Option<&mut Journal>,
    ) -> Result<Streamed, StreamError> {
        let plan = self.plans.batch.as_ref().expect("a run with batches has a plan for them");
        let inputs = &self.inputs[range.clone()];
        let mut batch = Batch::new(self.kernel, plan, inputs, self.outputs, parts, self.progress);
        let started = Instant::now();
        let tally = match journal {
            Some(journal) => self.in_leases(&mut batch, range, parts, journal)?,
            None => batch.stream()?,
        };
        let cached = || "page cache: small".to_owned();
        Ok(Streamed {
            tally,
            input_path: cached(),
            output_path: self.outputs.map(|_| cached()),
            elapsed: started.elapsed(),
        })
    }
}

#[cfg(test)]
mod tests;
