//! Carries a plan out: on every accelerator, a few threads each do the naive
//! loop of getting a unit, computing, and putting it back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use accel::{Buf, Config, Cx, RunError, Tag, TransferError, TransferFault};
use storage::{Input, InputError, Kind, Output};

use crate::error::{Failure, StreamError, as_io};
use crate::gate::lock;
use crate::kernel::{Block, Effect, Head, Kernel, MergeOrder, Unit};
use crate::memory::{peak_rss_bytes, rss_bytes};
use crate::merge::{EARLY_PARTS_MAX, Parts};
use crate::paths::Path;
use crate::plan::{BUF_ALIGN_BYTES, Options, Plan, PlanError, Shape};
use crate::sink::Sink;
use crate::source::{Extent, Source, surroundings};
use crate::stats::{Outcome, Progress, Stats, Tally};

/// Lays a run out without starting it: asks the kernel, cuts, and adds memory up.
///
/// # Errors
/// An input the kernel refuses, or options that do not fit.
pub fn plan<K: Kernel>(
    kernel: &mut K,
    input: &Input,
    options: &Options,
) -> Result<Plan, StreamError> {
    layout(kernel, input, options).map(|(plan, _)| plan)
}

/// A plan, and how the input is reached.
fn layout<K: Kernel>(
    kernel: &mut K,
    input: &Input,
    options: &Options,
) -> Result<(Plan, Path), StreamError> {
    let refused = |error| StreamError::Kernel { input: input.name().to_owned(), error };
    let body = kernel.open(&InputHead(input)).map_err(refused)?;
    let path = Path::of_input(input, options.direct, kernel.effect())?;
    let shape = Shape {
        body,
        len_bytes: input.len_bytes(),
        cut: kernel.cut(),
        direct_align_bytes: path.align_bytes,
        writes: kernel.effect() == Effect::Transform,
        cores: Config::default().accelerators,
    };
    let waiting = match kernel.merge_order() {
        MergeOrder::Any => 0,
        MergeOrder::ByUnit => (EARLY_PARTS_MAX * size_of::<K::Part>()) as u64,
    };
    let plan =
        Plan::new(options, shape, |accelerators| kernel.memory_bytes(accelerators) + waiting)?;
    Ok((plan, path))
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

/// Everything the threads of a run share.
struct Job<'j, K: Kernel> {
    kernel: &'j K,
    plan: &'j Plan,
    input: &'j Input,
    source: Source,
    sink: Option<Sink<'j>>,
    parts: Parts<K::Part>,
    progress: &'j Progress,
    failure: Mutex<Option<Failure>>,
    failed: AtomicBool,
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
    kernel: &mut K,
    input: &Input,
    output: Option<&Output>,
    options: &Options,
    progress: &Progress,
) -> Result<Outcome<K::Part>, StreamError> {
    let rss_before = rss_bytes().unwrap_or(0);
    let (plan, path) = layout(kernel, input, options)?;
    let kernel = &*kernel;
    if output.is_some() && kernel.effect() == Effect::Reduce {
        return Err(PlanError::NoOutput { kernel: kernel.name().to_owned() }.into());
    }
    let sink = output.map(|output| Sink::open(output, &plan, options.direct)).transpose()?;
    let source = Source::of(input, &path, &plan);
    let job = Job::new(kernel, &plan, input, source, sink, progress);
    let started = Instant::now();
    let tally = job.stream(options)?;
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

impl<'j, K: Kernel> Job<'j, K> {
    fn new(
        kernel: &'j K,
        plan: &'j Plan,
        input: &'j Input,
        source: Source,
        sink: Option<Sink<'j>>,
        progress: &'j Progress,
    ) -> Self {
        Self {
            kernel,
            plan,
            input,
            source,
            sink,
            parts: Parts::new(kernel, plan.accelerators),
            progress,
            failure: Mutex::new(None),
            failed: AtomicBool::new(false),
        }
    }

    /// Starts the threads and waits for all of them.
    fn stream(&self, options: &Options) -> Result<Tally, RunError> {
        let config = Config {
            accelerators: self.plan.accelerators,
            threads: self.plan.threads,
            local_store_bytes: self.plan.local_store_bytes as usize,
            depth: (self.plan.threads * 4).max(16),
            engine: options.engine,
            faults: options.faults,
            ..Config::default()
        };
        let tallies = accel::run(&config, |cx, at| async move {
            let mut tally = Tally::default();
            if at.index() == 0 {
                tally.engine = Some(cx.engine());
            }
            if let Err(failure) = self.work(&cx, at.accelerator, &mut tally).await {
                self.fail(failure);
            }
            tally
        })?;
        let mut all = Tally::default();
        tallies.into_iter().for_each(|tally| all += tally);
        Ok(all)
    }

    /// Says what failed, or merges the parts of an input that is still the same.
    fn end(self) -> Result<K::Part, StreamError> {
        if let Some(failure) = self.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(failure.error);
        }
        let name = self.input.name();
        if let Some(what) = self.input.changed()? {
            return Err(InputError::changed(name, what).into());
        }
        let refused = |error| StreamError::Kernel { input: name.to_owned(), error };
        self.parts.end(self.kernel).map_err(refused)
    }

    /// The naive loop of one thread.
    async fn work<'env>(
        &'env self,
        cx: &Cx<'env>,
        accelerator: usize,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        // The plan made the store large enough for every thread's buffer.
        let mut buf = cx
            .alloc_aligned(self.plan.buffer_bytes as usize, BUF_ALIGN_BYTES as usize)
            .expect("the plan fits the buffers into the store");
        loop {
            let before = Instant::now();
            let (unit, extent) = match self.get(cx, buf).await? {
                (got, Some(next)) => {
                    buf = got;
                    next
                }
                (_, None) => return Ok(()),
            };
            let got = Instant::now();
            tally.spent.get += got - before;
            self.compute(&unit, extent, &mut buf, accelerator).await?;
            let computed = Instant::now();
            tally.spent.compute += computed - got;
            tally.bytes_in += extent.data as u64;
            if let Some(sink) = &self.sink {
                let start = buf.view().start + extent.before;
                buf.set_view(start..start + extent.data);
                buf = sink.put(cx, &unit, buf).await.map_err(Failure::of(unit.index))?;
                tally.spent.put += computed.elapsed();
                tally.bytes_out += extent.data as u64;
            }
            self.progress.done_bytes.fetch_add(extent.data as u64, Ordering::Relaxed);
        }
    }

    /// Takes the next unit and gets it, surroundings included; `None` at the end.
    async fn get<'env>(
        &'env self,
        cx: &Cx<'env>,
        mut buf: Buf,
    ) -> Result<(Buf, Option<(Unit, Extent)>), Failure> {
        if self.failed.load(Ordering::Relaxed) {
            return Ok((buf, None));
        }
        let (region, unit, len) = match &self.source {
            Source::Offsets { region, next } => {
                match self.plan.unit(next.fetch_add(1, Ordering::Relaxed)) {
                    Some((unit, len)) => (region, unit, len),
                    None => return Ok((buf, None)),
                }
            }
            Source::Stream(window) => {
                buf.set_view(0..buf.capacity_bytes());
                let next = lock(window).fill(self.plan.block_bytes as usize, &mut buf)?;
                if let Some((_, extent)) = next {
                    buf.set_view(0..extent.sum());
                }
                return Ok((buf, next));
            }
        };
        let extent = surroundings(self.plan.cut, &unit, len);
        let from = unit.offset - extent.before as u64;
        match cx.get(buf, region.at(from), extent.sum(), Tag::new(0)).await {
            Ok(buf) => Ok((buf, Some((unit, extent)))),
            Err(error) => {
                let error = self.read_error(&error, from + extent.sum() as u64);
                Err(Failure { unit: unit.index, error: error.into() })
            }
        }
    }

    async fn compute(
        &self,
        unit: &Unit,
        extent: Extent,
        buf: &mut Buf,
        accelerator: usize,
    ) -> Result<(), Failure> {
        let refused = |(unit, error)| {
            let input = self.input.name().to_owned();
            Failure { unit, error: StreamError::Kernel { input, error } }
        };
        let own = |error| refused((unit.index, error));
        let (before, rest) = buf.split_at_mut(extent.before);
        let (data, after) = rest.split_at_mut(extent.data);
        let block = Block { before, data, after };
        match &self.parts {
            Parts::Any(parts) => {
                self.kernel.block(unit, block, &mut lock(&parts[accelerator])).map_err(own)
            }
            Parts::ByUnit(in_order) => {
                let mut part = self.kernel.part(self.plan.accelerators);
                self.kernel.block(unit, block, &mut part).map_err(own)?;
                match in_order.take(self.kernel, unit.index, part).await.map_err(refused) {
                    // A later unit's part, merged on the way: this unit goes on.
                    Err(failure) if failure.unit > unit.index => {
                        self.fail(failure);
                        Ok(())
                    }
                    taken => taken,
                }
            }
        }
    }

    /// What went wrong with a get of the bytes before `end`.
    fn read_error(&self, error: &TransferError, end: u64) -> InputError {
        let offset = match error.fault {
            TransferFault::Ended { missing_bytes } => end.saturating_sub(missing_bytes as u64),
            _ => error.offset,
        };
        InputError::read(self.input.name(), offset, &as_io(error))
    }

    /// Keeps the failure that is earliest in the input, and ends the run: no
    /// unit is taken any more, and those before this one, which all are, go on.
    fn fail(&self, failure: Failure) {
        let unit = failure.unit;
        let mut first = lock(&self.failure);
        if first.as_ref().is_none_or(|known| unit < known.unit) {
            *first = Some(failure);
        }
        drop(first);
        self.failed.store(true, Ordering::Relaxed);
        self.parts.close_from(unit);
        if let Some(sink) = &self.sink {
            sink.close_from(unit);
        }
    }
}
