//! A machine's share of a run over many: it computes ranges of units as it is
//! given them, each with a part of its own, in one run that goes on from range
//! to range without a pause.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Mutex;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use accel::Step;
use storage::{Input, InputError, Kind, Output};

use crate::error::{Failure, StreamError};
use crate::fold::Fold;
use crate::gate::lock;
use crate::job::{Found, Job};
use crate::kernel::{Effect, Kernel, KernelError, MergeOrder};
use crate::memory::floor_bytes;
use crate::merge::{EARLY_PARTS_MAX, merge_order};
use crate::plan::{Options, Plan, PlanError};
use crate::run::{Ends, Streamed, check_output, layout, parts_bytes, trace_bytes};
use crate::scheme::Host;
use crate::sink::Sink;
use crate::source::Source;
use crate::stats::{Progress, Stats, Tally};

/// Ranges that are computed at a time, so that nobody waits between two: a
/// kernel's memory is shared by the parts of so many.
pub const RANGES_OPEN: usize = 2;

/// A range is of the input that was opened; whether the name still leads to that one is
/// asked no more often.
const NAME_AFTER: Duration = Duration::from_millis(1);

/// Why there is no part of a range.
#[derive(Debug)]
pub enum Unfound {
    /// It was not wanted any more ([`Shares::stop`]).
    Stopped,
    /// A unit of it failed.
    Failed {
        /// Which one.
        unit: u64,
        /// How.
        error: StreamError,
    },
}

/// What was found of a range.
#[derive(Debug)]
pub struct Part<P> {
    /// All of its units together.
    pub part: P,
    /// From when its first unit was taken until its last one was done.
    pub took: Duration,
}

/// Takes what was found of a range, by its number.
type Tell<'t, P> = Box<dyn Fn(u64, Result<Part<P>, Unfound>) + Send + Sync + 't>;

/// Ranges of units to be computed, from any thread.
pub struct Shares<'t, P> {
    state: Mutex<State<P>>,
    tell: Tell<'t, P>,
}

struct State<P> {
    /// By their first units; none has units of another.
    ranges: BTreeMap<u64, Share<P>>,
    /// First units of those that have units to be taken, in their order.
    open: VecDeque<u64>,
    waiting: Vec<Waker>,
    /// No unit is taken until the run has begun again.
    halted: bool,
    /// None will be given any more.
    closed: bool,
    in_order: bool,
    lanes: usize,
    /// When the input's name was looked at last.
    named: Option<Instant>,
}

/// A range and what was found of it so far.
struct Share<P> {
    number: u64,
    units: Range<u64>,
    /// The next unit to be taken.
    next: u64,
    /// When the first one was.
    began: Option<Instant>,
    done: u64,
    wanted: bool,
    /// By lane; or else
    lanes: Vec<Option<P>>,
    /// in order: of units that have others before them, and of those before.
    early: BTreeMap<u64, P>,
    merged: u64,
    fold: Fold<P>,
}

impl<P> Share<P> {
    fn new(number: u64, units: Range<u64>) -> Self {
        Self {
            number,
            next: units.start,
            began: None,
            done: 0,
            wanted: true,
            lanes: Vec::new(),
            early: BTreeMap::new(),
            merged: units.start,
            fold: Fold::default(),
            units,
        }
    }

    fn under_way(&self) -> u64 {
        self.next - self.units.start - self.done
    }

    fn is_over(&self) -> bool {
        self.under_way() == 0 && (!self.wanted || self.next == self.units.end)
    }
}

impl<'t, P> Shares<'t, P> {
    /// None yet. `tell` is called for each range once, on the accelerator that
    /// ended it, or the thread that stopped it: it should be short.
    pub fn new(tell: impl Fn(u64, Result<Part<P>, Unfound>) + Send + Sync + 't) -> Self {
        let state = State {
            ranges: BTreeMap::new(),
            open: VecDeque::new(),
            waiting: Vec::new(),
            halted: false,
            closed: false,
            in_order: false,
            lanes: 1,
            named: None,
        };
        Self { state: Mutex::new(state), tell: Box::new(tell) }
    }

    /// Computes `units`, at least one and none of a range that is not over, and
    /// calls that `number`. Ranges are begun in the order in which they are given.
    pub fn give(&self, number: u64, units: Range<u64>) {
        let mut state = lock(&self.state);
        state.open.push_back(units.start);
        state.ranges.insert(units.start, Share::new(number, units));
        state.wake();
    }

    /// Nobody waits for that range any more. What is under way of it is ended first.
    pub fn stop(&self, number: u64) {
        let mut state = lock(&self.state);
        let Some(share) = state.ranges.values_mut().find(|share| share.number == number) else {
            return;
        };
        share.wanted = false;
        let first = share.units.start;
        let over = share.is_over();
        state.open.retain(|open| *open != first);
        if over {
            state.ranges.remove(&first);
            drop(state);
            (self.tell)(number, Err(Unfound::Stopped));
        }
    }

    /// Of that range only the first `units` are computed; whether that is so, for the next unit
    /// that is taken is one of them.
    pub fn shorten(&self, number: u64, units: u64) -> bool {
        let mut state = lock(&self.state);
        let mut shares = state.ranges.values_mut();
        let Some(share) = shares.find(|share| share.number == number && share.wanted) else {
            return false;
        };
        let end = share.units.start.saturating_add(units);
        let shortens = share.next < end && end < share.units.end;
        if shortens {
            share.units.end = end;
        }
        shortens
    }

    /// No more will be given: the run ends when those there are are over.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.wake();
    }

    /// Takes the next unit; waits for one. `None` if there will be none.
    pub(crate) async fn take(&self) -> Option<u64> {
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            if state.halted || (state.closed && state.open.is_empty()) {
                return Poll::Ready(None);
            }
            match state.take() {
                Some(unit) => Poll::Ready(Some(unit)),
                None => {
                    state.waiting.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Has `block` compute `unit` into the part that is its own.
    pub(crate) fn collect<K: Kernel<Part = P>>(
        &self,
        kernel: &K,
        unit: u64,
        lane: usize,
        block: impl FnOnce(&mut P) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (lanes, in_order, known) = {
            let mut state = lock(&self.state);
            let (lanes, in_order) = (state.lanes, state.in_order);
            let share = state.of(unit);
            let known = share.and_then(|share| share.lanes.get_mut(lane)?.take());
            (lanes, in_order, known)
        };
        // No other thread of this lane looks for it meanwhile: a block is computed at once.
        let mut part = known.unwrap_or_else(|| kernel.part(lanes * RANGES_OPEN));
        block(&mut part)?;
        let mut state = lock(&self.state);
        let Some(share) = state.of(unit) else { return Ok(()) };
        if in_order {
            share.early.insert(unit, part);
        } else {
            share.lanes.resize_with(lanes, || None);
            if let Some(place) = share.lanes.get_mut(lane) {
                *place = Some(part);
            }
        }
        Ok(())
    }

    /// `unit` is computed by `now`, and put if there is an output. If it is the last one
    /// of its range, and the input not changed, that is told of.
    pub(crate) fn done<K: Kernel<Part = P>>(
        &self,
        kernel: &K,
        (unit, now): (u64, Instant),
        input: &Input,
    ) -> Result<(), StreamError> {
        let refused = |error| StreamError::Kernel { input: input.name().to_owned(), error };
        let mut state = lock(&self.state);
        let Some(share) = state.of(unit) else { return Ok(()) };
        // One that is missing keeps the range from being over.
        share.catch_up(kernel).map_err(refused)?;
        share.done += 1;
        let (first, over) = (share.units.start, share.is_over());
        // Perhaps units were held back until now.
        state.wake();
        if !over {
            return Ok(());
        }
        let is_named = state.named.is_some_and(|named| now.duration_since(named) < NAME_AFTER);
        let changed = if is_named { input.written() } else { input.changed() };
        if let Some(what) = changed? {
            return Err(InputError::changed(input.name(), what).into());
        }
        if !is_named {
            state.named = Some(now);
        }
        // A unit of it was taken.
        let Some(share) = state.ranges.remove(&first) else { return Ok(()) };
        let took = share.began.map(|began| now.duration_since(began)).unwrap_or_default();
        let lanes = state.lanes;
        drop(state);
        let Share { number, wanted, .. } = share;
        let found = match wanted {
            true => share.end(kernel, lanes).map_err(|error| {
                let error = refused(error);
                Unfound::Failed { unit, error }
            }),
            false => Err(Unfound::Stopped),
        };
        (self.tell)(number, found.map(|part| Part { part, took }));
        Ok(())
    }

    /// No unit is taken any more.
    pub(crate) fn halt(&self) {
        let mut state = lock(&self.state);
        state.halted = true;
        state.wake();
    }

    /// The run has ended early: the range of the failure is told of, if it is of
    /// one. Those of which a unit is missing are begun again.
    fn restart(&self, failure: Failure) -> Result<(), StreamError> {
        let mut state = lock(&self.state);
        state.halted = false;
        let failed = match state.of(failure.unit) {
            Some(share) => share.units.start,
            None => return Err(failure.error),
        };
        let share = state.ranges.remove(&failed);
        let (mut stopped, mut open) = (Vec::new(), VecDeque::new());
        state.ranges.retain(|first, share| {
            if !share.wanted {
                stopped.push(share.number);
                return false;
            }
            if share.under_way() > 0 {
                *share = Share::new(share.number, share.units.clone());
            }
            open.push_back(*first);
            true
        });
        state.open = open;
        drop(state);
        if let Some(Share { number, .. }) = share {
            let Failure { unit, error } = failure;
            (self.tell)(number, Err(Unfound::Failed { unit, error }));
        }
        stopped.into_iter().for_each(|number| (self.tell)(number, Err(Unfound::Stopped)));
        Ok(())
    }
}

impl<P> State<P> {
    fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }

    /// The next unit of the first range that has one for now.
    fn take(&mut self) -> Option<u64> {
        for place in 0..self.open.len().min(RANGES_OPEN) {
            let first = *self.open.get(place)?;
            let share = self.ranges.get_mut(&first)?;
            // A thread may be slow with an earlier one.
            if self.in_order && share.next - share.merged >= (EARLY_PARTS_MAX / RANGES_OPEN) as u64
            {
                continue;
            }
            let unit = share.next;
            if unit == share.units.start {
                share.began = Some(Instant::now());
            }
            share.next += 1;
            if share.next >= share.units.end {
                self.open.remove(place);
            }
            return Some(unit);
        }
        None
    }

    fn of(&mut self, unit: u64) -> Option<&mut Share<P>> {
        let (_, share) = self.ranges.range_mut(..=unit).next_back()?;
        share.units.contains(&unit).then_some(share)
    }
}

impl<P> Share<P> {
    /// Puts the parts whose turn it is together.
    fn catch_up<K: Kernel<Part = P>>(&mut self, kernel: &K) -> Result<(), KernelError> {
        while let Some(part) = self.early.remove(&self.merged) {
            self.fold.push(part, |left, right| merge(kernel, left, right))?;
            self.merged += 1;
        }
        Ok(())
    }

    fn end<K: Kernel<Part = P>>(self, kernel: &K, lanes: usize) -> Result<P, KernelError> {
        let of_lanes = self.lanes.into_iter().flatten();
        let of_lanes = of_lanes.map(Ok).reduce(|left, right| merge(kernel, left?, right?));
        let in_order = self.fold.end(|left, right| merge(kernel, left, right))?;
        let found = in_order.map(Ok).or(of_lanes).transpose()?;
        Ok(found.unwrap_or_else(|| kernel.part(lanes * RANGES_OPEN)))
    }
}

fn merge<K: Kernel>(kernel: &K, mut left: K::Part, right: K::Part) -> Result<K::Part, KernelError> {
    kernel.merge(&mut left, right)?;
    Ok(left)
}

/// Computes the ranges of `input` that `shares` is given, by `options.block_bytes`,
/// until it is closed; what a transform makes goes to its place in `output`, which
/// the caller commits when all units are done by somebody. Parts of kernels with
/// [`MergeOrder::ByUnit`] are merged along [`Fold`].
///
/// # Errors
/// Where there is no unit that is to blame: else `shares` tells of the range.
///
/// # Panics
/// A panic of the kernel is passed on.
pub fn run_shares<K: Kernel>(
    kernel: &K,
    input: &Input,
    output: Option<&Output>,
    options: &Options,
    progress: &Progress,
    shares: &Shares<'_, K::Part>,
) -> Result<Stats, StreamError> {
    stream_shares(kernel, Ends { input, output }, options, progress, shares, |job| {
        job.stream(options)
    })
}

/// As [`run_shares`], on the calling thread alone, where that suffices: short ranges
/// are done sooner than others could be told of them. `drive` gets what does a step,
/// once and after each failure, and returns when that has [`Step::Ended`] or `shares`
/// is closed; what is left is done then. Never of a chain that is spread.
///
/// # Errors
/// As [`run_shares`].
///
/// # Panics
/// A panic of the kernel is passed on by the step.
pub fn step_shares<K: Kernel>(
    kernel: &K,
    input: &Input,
    output: Option<&Output>,
    options: &Options,
    progress: &Progress,
    shares: &Shares<'_, K::Part>,
    drive: &mut Drive<'_>,
) -> Result<Stats, StreamError> {
    stream_shares(kernel, Ends { input, output }, options, progress, shares, |job| {
        job.step(options, drive)
    })
}

/// Does steps of an accelerator, by calling what it gets, while it sees fit.
pub type Drive<'d> = dyn FnMut(&mut dyn FnMut() -> Result<Step, StreamError>) + 'd;

fn stream_shares<'s, K: Kernel>(
    kernel: &K,
    Ends { input, output }: Ends<'_>,
    options: &Options,
    progress: &Progress,
    shares: &'s Shares<'s, K::Part>,
    mut stream: impl FnMut(&Job<'_, K>) -> Result<Tally, StreamError>,
) -> Result<Stats, StreamError> {
    let (floor_bytes, started) = (floor_bytes(), Instant::now());
    let laid = lay_out(kernel, Ends { input, output }, options, progress)?;
    let plan = &laid.plan;
    {
        let mut state = lock(&shares.state);
        state.in_order = merge_order(kernel) == MergeOrder::ByUnit;
        state.lanes = plan.lanes();
    }
    let mut tally = Tally::default();
    loop {
        let host = Host::of(plan, input, output)?;
        let sink =
            output.map(|output| Sink::open(output, plan, options.direct, None)).transpose()?;
        let source = Source::of(input, &laid.path, plan);
        let found = Found::Shares(shares);
        let job = Job::new(kernel, &laid, (input, source), sink, &host, found, progress);
        tally += stream(&job)?;
        if let Some(failure) = job.failure() {
            shares.restart(failure)?;
            continue;
        }
        let output_path = job.sink.as_ref().map(|sink| sink.why.clone());
        job.end()?;
        let (input_path, elapsed) = (laid.path.why, started.elapsed());
        let streamed = Streamed { tally, input_path, output_path, elapsed };
        return Ok(streamed.into_stats(laid.plan, floor_bytes));
    }
}

/// Lays a share out without starting it; its memory is that of [`RANGES_OPEN`] ranges at a time.
///
/// # Errors
/// As [`plan`](crate::plan), and if the input or the kernel cannot be shared.
pub fn plan_shares<K: Kernel>(
    kernel: &K,
    input: &Input,
    output: Option<&Output>,
    options: &Options,
) -> Result<Plan, StreamError> {
    Ok(lay_out(kernel, Ends { input, output }, options, &Progress::default())?.plan)
}

fn lay_out<K: Kernel>(
    kernel: &K,
    Ends { input, output }: Ends<'_>,
    options: &Options,
    progress: &Progress,
) -> Result<crate::run::Layout<K::Header>, StreamError> {
    let mut laid = layout(kernel, input, options, None)?;
    let plan = &mut laid.plan;
    check_output(kernel, output.is_some())?;
    let refused = |why: String, cure| PlanError::Shares { why, cure };
    if plan.io.is_by_host() {
        let why = format!("--scheme {} has the host read units in their order", plan.scheme);
        return Err(refused(why, "take --scheme direct").into());
    }
    let is_stream = input.len_bytes().is_none().then(|| input.name());
    let put = output.filter(|output| output.kind() == Kind::Stream).map(Output::name);
    if let Some(name) = is_stream.or(put) {
        let why = format!(
            "{name} has no length: as a pipe it can only be read and written from its start"
        );
        return Err(refused(why, "name files").into());
    }
    if kernel.effect() == Effect::Rewrite {
        let why = format!("where a block goes shows when {} made those before", kernel.name());
        return Err(refused(why, "give it as a Spooled").into());
    }
    let lanes = plan.lanes();
    let of_one = parts_bytes(kernel, lanes);
    plan.memory_bytes += parts_bytes(kernel, lanes * RANGES_OPEN).saturating_sub(of_one);
    // One thread may work where the ranges come from.
    plan.memory_bytes += plan.thread_bytes();
    plan.memory_bytes += trace_bytes(plan, progress);
    Ok(laid)
}
