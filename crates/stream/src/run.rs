//! Lays a run out, and carries it out.

use std::time::Instant;

use accel::Config;
use storage::{Input, Kind, Output};

use crate::error::StreamError;
use crate::job::Job;
use crate::journal::Journal;
use crate::kernel::{Body, Head, Kernel, MergeOrder};
use crate::leases;
use crate::memory::{peak_rss_bytes, rss_bytes};
use crate::merge::{EARLY_PARTS_MAX, merge_order};
use crate::paths::Path;
use crate::plan::{Options, Plan, PlanError, Shape};
use crate::sink::Sink;
use crate::source::Source;
use crate::stats::{Outcome, Progress, Stats};
use crate::trace;

/// Lays a run out without starting it: asks the kernel, cuts, and adds memory up.
///
/// # Errors
/// An input the kernel refuses, or options that do not fit.
pub fn plan<K: Kernel>(kernel: &K, input: &Input, options: &Options) -> Result<Plan, StreamError> {
    layout(kernel, input, options).map(|(plan, ..)| plan)
}

/// A plan, what is streamed, and how the input is reached.
fn layout<K: Kernel>(
    kernel: &K,
    input: &Input,
    options: &Options,
) -> Result<(Plan, Body<K::Header>, Path), StreamError> {
    let refused = |error| StreamError::Kernel { input: input.name().to_owned(), error };
    let body = kernel.open(&InputHead(input)).map_err(refused)?;
    let path = Path::of_input(input, options.direct, kernel.effect())?;
    let shape = Shape {
        body: body.range.clone(),
        len_bytes: input.len_bytes(),
        cut: kernel.cut(&body.header),
        direct_align_bytes: path.align_bytes,
        effect: kernel.effect(),
        cores: Config::default().accelerators,
    };
    let waiting = match merge_order(kernel) {
        MergeOrder::Any => 0,
        MergeOrder::ByUnit => (EARLY_PARTS_MAX * size_of::<K::Part>()) as u64,
    };
    let plan =
        Plan::new(options, shape, |accelerators| kernel.memory_bytes(accelerators) + waiting)?;
    Ok((plan, body, path))
}

struct InputHead<'i>(&'i Input);

impl Head for InputHead<'_> {
    fn len_bytes(&self) -> Option<u64> {
        self.0.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        use std::os::unix::fs::FileExt as _;
        if self.0.kind() == Kind::Stream {
            return Err(std::io::Error::new(
                std::io::ErrorKind::Unsupported,
                "a pipe cannot be read out of order",
            ));
        }
        let mut filled = 0;
        while filled < buf.len() {
            match self.0.file().read_at(&mut buf[filled..], offset + filled as u64) {
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
    let rss_before = rss_bytes().unwrap_or(0);
    let (mut plan, body, path) = layout(kernel, input, options)?;
    if progress.trace.is_some() {
        plan.memory_bytes += (plan.accelerators * plan.threads) as u64 * trace::THREAD_BYTES;
    }
    if output.is_some() && !kernel.effect().writes() {
        return Err(PlanError::NoOutput { kernel: kernel.name().to_owned() }.into());
    }
    let sink = output.map(|output| Sink::open(output, &plan, options.direct)).transpose()?;
    let source = Source::of(input, &path, &plan);
    let mut job = Job::new(kernel, &plan, &body, input, source, sink, progress);
    let started = Instant::now();
    let tally = match journal {
        Some(journal) => leases::stream(&mut job, options, journal)?,
        None => job.stream(options)?,
    };
    let elapsed = started.elapsed();
    let output_path = job.sink.as_ref().map(|sink| sink.why.clone());
    let part = job.end()?;
    let stats = Stats {
        engine: tally.engine.expect("a run has a first thread, which tells its engine"),
        input_path: path.why,
        output_path,
        bytes_in: tally.bytes_in,
        bytes_out: tally.bytes_out,
        elapsed,
        peak_rss_bytes: peak_rss_bytes(),
        memory_bound_bytes: rss_before.saturating_add(plan.memory_bytes),
        spent: tally.spent,
        plan,
    };
    Ok(Outcome { part, stats })
}
