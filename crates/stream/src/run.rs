//! Lays a run out, and carries it out.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use accel::{Config, FileWindow};
use storage::{Input, Kind, Output};

use crate::error::StreamError;
use crate::job::{Found, Job};
use crate::journal::Journal;
use crate::kernel::{Body, Effect, Head, Kernel, MergeOrder};
use crate::leases;
use crate::memory::{floor_bytes, free_bytes, peak_rss_bytes};
use crate::merge::{EARLY_PARTS_MAX, Parts, merge_order};
use crate::paths::{Direct, Path};
use crate::plan::{Options, Plan, PlanError, Shape};
use crate::scheme::{Host, Scheme};
use crate::sink::Sink;
use crate::source::Source;
use crate::stats::{Outcome, Progress, Stats, Tally};
use crate::trace;

/// Lays a run out without starting it: asks the kernel, cuts, and adds memory up.
///
/// # Errors
/// An input the kernel refuses, or options that do not fit.
pub fn plan<K: Kernel>(kernel: &K, input: &Input, options: &Options) -> Result<Plan, StreamError> {
    layout(kernel, input, options, None).map(|laid| laid.plan)
}

/// A plan, what is streamed, and how the input is reached.
pub(crate) struct Layout<H> {
    pub(crate) plan: Plan,
    pub(crate) body: Body<H>,
    pub(crate) path: Path,
}

/// Parts are shared by `sharing` lanes, or else by those that work.
pub(crate) fn layout<K: Kernel>(
    kernel: &K,
    input: &Input,
    options: &Options,
    sharing: Option<usize>,
) -> Result<Layout<K::Header>, StreamError> {
    let refused = |error| StreamError::Kernel { input: input.name().to_owned(), error };
    let body = kernel.open(&InputHead(input)).map_err(refused)?;
    let mut path = match options.scheme.resolved() {
        Scheme::Direct => Path::of_input(input, options.direct, kernel.effect())?,
        scheme if options.direct == Direct::On => {
            let why = "it reads and writes through the page cache".to_owned();
            return Err(PlanError::Scheme { scheme, why, cure: "take --direct auto" }.into());
        }
        Scheme::Mapped => Path::cached("looked at in place, as asked for"),
        scheme => Path::by_host(input.kind(), "reads", scheme),
    };
    let mut options = Cow::Borrowed(options);
    if options.scheme == Scheme::Mapped {
        check_in_place(kernel, input)?;
    } else if options.leaves_transfers_open()
        && path.all_cached
        && check_in_place(kernel, input).is_ok()
    {
        options.to_mut().scheme = Scheme::Mapped;
        path.why.push_str(", looked at in place");
    }
    let shape = Shape {
        body: body.range.clone(),
        len_bytes: input.len_bytes(),
        cut: kernel.cut(&body.header),
        direct_align_bytes: path.align_bytes,
        effect: kernel.effect(),
        cores: Config::default().accelerators,
        stages: options.pipeline.stages(kernel)?,
        batch: None,
        mapped: options.scheme == Scheme::Mapped,
    };
    let plan = Plan::new(&options, shape, |lanes| parts_bytes(kernel, sharing.unwrap_or(lanes)))?;
    plan.io.check(&plan, free_bytes)?;
    Ok(Layout { plan, body, path })
}

/// Whether a kernel may look at the page cache's own pages.
pub(crate) fn check_kernel_looks<K: Kernel>(kernel: &K) -> Result<(), PlanError> {
    if kernel.effect() == Effect::Reduce && kernel.looks_in_place() {
        return Ok(());
    }
    let why = format!("{} wants blocks of its own to write to or rely on", kernel.name());
    Err(PlanError::Scheme { scheme: Scheme::Mapped, why, cure: TRANSFER })
}

const TRANSFER: &str = "take --scheme direct";

/// Whether it may, and the input's can be looked at.
fn check_in_place<K: Kernel>(kernel: &K, input: &Input) -> Result<(), PlanError> {
    check_kernel_looks(kernel)?;
    let refused = |why| PlanError::Scheme { scheme: Scheme::Mapped, why, cure: TRANSFER };
    if input.len_bytes().is_some_and(|len| len > 0) {
        let seen = FileWindow::new(input.file(), 1).and_then(|mut window| {
            window.look(input.start_bytes(), 1, |_| ()).map_err(|fault| fault.error)
        });
        seen.map_err(|error| refused(format!("{} cannot be mapped: {error}", input.name())))?;
    }
    Ok(())
}

/// Most memory of a run's parts, in bytes, those that wait for others included.
pub(crate) fn parts_bytes<K: Kernel>(kernel: &K, accelerators: usize) -> u64 {
    let waiting = match merge_order(kernel) {
        MergeOrder::Any => 0,
        MergeOrder::ByUnit => (EARLY_PARTS_MAX * size_of::<K::Part>()) as u64,
    };
    kernel.memory_bytes(accelerators).saturating_add(waiting)
}

pub(crate) struct InputHead<'i>(pub(crate) &'i Input);

impl Head for InputHead<'_> {
    fn len_bytes(&self) -> Option<u64> {
        self.0.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.0.kind() == Kind::Stream {
            return Err(std::io::Error::new(
                std::io::ErrorKind::Unsupported,
                "a pipe cannot be read out of order",
            ));
        }
        let mut filled = 0;
        while filled < buf.len() {
            match self.0.read_at(&mut buf[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// Streams `input` through `kernel`, and for a transform into `output`, which
/// the caller commits; a transform without an output drops its blocks. Every
/// unit is computed exactly once.
///
/// # Errors
/// See [`StreamError`]; of several failures, the one earliest in the input.
///
/// # Panics
/// A panic of the kernel is passed on.
pub fn run<K: Kernel>(
    kernel: &K,
    input: &Input,
    output: Option<&Output>,
    options: &Options,
    progress: &Progress,
) -> Result<Outcome<K::Part>, StreamError> {
    run_journaled(kernel, input, output, options, progress, None)
}

/// As [`run`]; a journal that is new, or that [`Journal::check`] found to be
/// this run's, is gone on with, and told every while how far the run has come.
/// The caller removes it once the result is out.
///
/// # Errors
/// Those of [`run`], and where the journal cannot be written.
///
/// # Panics
/// A panic of the kernel is passed on.
pub fn run_journaled<K: Kernel>(
    kernel: &K,
    input: &Input,
    output: Option<&Output>,
    options: &Options,
    progress: &Progress,
    journal: Option<&mut Journal>,
) -> Result<Outcome<K::Part>, StreamError> {
    let floor_bytes = floor_bytes();
    // Blocks are the journal's: what is cached now may suggest others.
    let of_journal = journal.as_ref().map(|journal| journal.options(options));
    let options = of_journal.as_ref().unwrap_or(options);
    let mut laid = layout(kernel, input, options, None)?;
    laid.plan.memory_bytes += trace_bytes(&laid.plan, progress);
    check_output(kernel, output.is_some())?;
    let parts = Parts::new(kernel, laid.plan.lanes());
    if let Some(journal) = &journal {
        check_journaled(&laid.plan)?;
        let units = journal.last().map_or(0, |last| last.units);
        leases::take_up(kernel, &parts, laid.plan.lanes(), journal, units)?;
    }
    let ends = Ends { input, output };
    let (streamed, plan) = stream_one(kernel, ends, options, progress, laid, &parts, journal)?;
    let refused = |error| StreamError::Kernel { input: input.name().to_owned(), error };
    let part = parts.end(kernel).map_err(refused)?;
    Ok(Outcome { part, stats: streamed.into_stats(plan, floor_bytes) })
}

pub(crate) fn check_output<K: Kernel>(kernel: &K, has_output: bool) -> Result<(), PlanError> {
    match has_output && !kernel.effect().writes() {
        true => Err(PlanError::NoOutput { kernel: kernel.name().to_owned() }),
        false => Ok(()),
    }
}

/// Whether a journal can tell how far a run like this has come.
pub(crate) fn check_journaled(plan: &Plan) -> Result<(), PlanError> {
    if !plan.io.is_by_host() {
        return Ok(());
    }
    let why = "a journal knows what accelerators wrote by themselves".to_owned();
    let cure = "take --scheme direct, or no journal";
    Err(PlanError::Scheme { scheme: plan.scheme, why, cure })
}

/// What came of streaming, but for the parts.
pub(crate) struct Streamed {
    pub(crate) tally: Tally,
    pub(crate) input_path: String,
    pub(crate) output_path: Option<String>,
    pub(crate) elapsed: Duration,
}

impl Streamed {
    pub(crate) fn into_stats(self, plan: Plan, floor_bytes: u64) -> Stats {
        let Tally { bytes_in, bytes_out, spent, stages, engine } = self.tally;
        Stats {
            engine: engine.expect("a run has a first thread, which tells its engine"),
            input_path: self.input_path,
            output_path: self.output_path,
            bytes_in,
            bytes_out,
            elapsed: self.elapsed,
            peak_rss_bytes: peak_rss_bytes(),
            memory_bound_bytes: floor_bytes.saturating_add(plan.memory_bytes),
            spent,
            stages,
            plan,
        }
    }
}

/// Most memory that tracing takes, in bytes.
pub(crate) fn trace_bytes(plan: &Plan, progress: &Progress) -> u64 {
    match progress.trace {
        Some(_) => (plan.accelerators * plan.threads) as u64 * trace::THREAD_BYTES,
        None => 0,
    }
}

/// Where a stream begins and ends.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'e> {
    pub(crate) input: &'e Input,
    pub(crate) output: Option<&'e Output>,
}

/// Streams one input into `parts` and the output.
pub(crate) fn stream_one<K: Kernel>(
    kernel: &K,
    Ends { input, output }: Ends<'_>,
    options: &Options,
    progress: &Progress,
    laid: Layout<K::Header>,
    parts: &Parts<K::Part>,
    journal: Option<&mut Journal>,
) -> Result<(Streamed, Plan), StreamError> {
    let (plan, path) = (&laid.plan, &laid.path);
    let host = Host::of(plan, input, output)?;
    let by_host = plan.io.is_by_host().then_some(&host);
    let sink =
        output.map(|output| Sink::open(output, plan, options.direct, by_host)).transpose()?;
    let source = Source::of(input, path, plan);
    let mut job =
        Job::new(kernel, &laid, (input, source), sink, &host, Found::Whole(parts), progress);
    let started = Instant::now();
    let tally = match journal {
        Some(journal) => leases::stream(&mut job, options, journal, parts)?,
        None => job.stream(options)?,
    };
    let elapsed = started.elapsed();
    let output_path = job.sink.as_ref().map(|sink| sink.why.clone());
    job.end()?;
    Ok((Streamed { tally, input_path: laid.path.why, output_path, elapsed }, laid.plan))
}
