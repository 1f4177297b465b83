//! Carries a plan out: on every accelerator, a few threads each do the naive
//! loop of getting a unit, computing, and putting it back.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use accel::{Buf, Config, Cx, Region, Tag, TransferError, TransferFault};
use storage::{Input, InputError, Kind, Output, OutputError, SequentialWriter};

use crate::error::StreamError;
use crate::gate::{Gate, lock};
use crate::kernel::{Block, Effect, Head, Kernel, MergeOrder, Unit};
use crate::memory::{peak_rss_bytes, rss_bytes};
use crate::paths::Path;
use crate::plan::{Options, Plan, Shape};
use crate::source::{Parts, Source, Window, fill, surroundings};

/// Bytes done so far, for whoever shows progress.
#[derive(Debug, Default)]
pub struct Progress {
    done_bytes: AtomicU64,
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
    pub engine: String,
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
struct Tally {
    bytes_in: u64,
    bytes_out: u64,
    spent: Spent,
    engine: String,
}

/// Lays a run out without starting it: asks the kernel, cuts, and adds memory up.
///
/// # Errors
/// An input the kernel refuses, or options that do not fit.
pub fn plan<K: Kernel>(kernel: &mut K, input: &Input, options: &Options) -> Result<Plan, StreamError> {
    layout(kernel, input, options).map(|(plan, _)| plan)
}

/// A plan, and how the input is reached.
fn layout<K: Kernel>(kernel: &mut K, input: &Input, options: &Options) -> Result<(Plan, Path), StreamError> {
    let refused = |error| StreamError::Kernel { input: input.name().to_owned(), error };
    let body = kernel.open(&InputHead(input)).map_err(refused)?;
    let path = Path::of_input(input, options.direct)?;
    let default = Config::default();
    let accelerators = options.accelerators.unwrap_or(default.accelerators);
    let shape = Shape {
        body,
        sized: input.kind() != Kind::Stream,
        cut: kernel.cut(),
        direct_align_bytes: path.align_bytes(),
        kernel_bytes: kernel.memory_bytes(accelerators),
        cores: default.accelerators,
    };
    Ok((Plan::new(options, shape)?, path))
}

struct InputHead<'i>(&'i Input);

impl Head for InputHead<'_> {
    fn len_bytes(&self) -> Option<u64> {
        self.0.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        use std::os::unix::fs::FileExt as _;
        if self.0.kind() == Kind::Stream {
            return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "a pipe cannot be read out of order"));
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
    input_name: &'j str,
    source: Source,
    input: &'j Region<'static>,
    sink: Option<Sink<'j>>,
    /// One part per accelerator, or a single one merged in order.
    parts: Vec<Mutex<K::Part>>,
    merge_gate: Gate,
    write_gate: Gate,
    progress: &'j Progress,
    failure: Mutex<Option<StreamError>>,
    failed: AtomicBool,
}

/// Where a transform's blocks go.
enum Sink<'j> {
    /// By offset; a last piece too odd for direct I/O goes through the page cache.
    Offsets { output: &'j Output, main: &'j Region<'static>, tail: &'j Region<'static>, align_bytes: u64 },
    /// One after the other.
    Stream(Mutex<SequentialWriter>),
}

/// Streams `input` through `kernel`, and for a transform into `output`, which
/// the caller commits. Every unit is computed exactly once.
///
/// # Errors
/// See [`StreamError`]; of several failures, the one earliest in the input.
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
    let output = output.filter(|_| kernel.effect() == Effect::Transform);
    let out_len = plan.units.is_some().then(|| plan.body.end - plan.body.start);
    let out_path = output.map(|output| Path::of_output(output, out_len, options.direct)).transpose()?;

    let input_region = path.region(input.file(), input.len_bytes().unwrap_or(u64::MAX), input.name());
    let out_regions = output.zip(out_path.as_ref()).map(|(output, path)| {
        let len = out_len.unwrap_or(u64::MAX);
        let tail = Region::file(output.file().clone(), 0..len, output.name());
        (path.region(output.file(), len, output.name()), tail, path.align_bytes())
    });
    let sink = output.zip(out_regions.as_ref()).map(|(output, (main, tail, align_bytes))| match output.kind() {
        Kind::Stream => Sink::Stream(Mutex::new(output.sequential())),
        Kind::File | Kind::BlockDevice => Sink::Offsets { output, main, tail, align_bytes: *align_bytes },
    });
    let part_count = if kernel.merge_order() == MergeOrder::ByUnit { 1 } else { plan.accelerators };
    let job = Job {
        kernel,
        plan: &plan,
        input_name: input.name(),
        source: match input.kind() {
            Kind::Stream => Source::Stream(Mutex::new(Window::new(input.sequential(), plan.cut))),
            Kind::File | Kind::BlockDevice => Source::Offsets(AtomicU64::new(0)),
        },
        input: &input_region,
        sink,
        parts: (0..part_count).map(|_| Mutex::new(kernel.part(plan.accelerators))).collect(),
        merge_gate: Gate::default(),
        write_gate: Gate::default(),
        progress,
        failure: Mutex::new(None),
        failed: AtomicBool::new(false),
    };
    let config = Config {
        accelerators: plan.accelerators,
        threads: plan.threads,
        local_store_bytes: plan.local_store_bytes as usize,
        depth: (plan.threads * 4).max(16),
        engine: options.engine,
        faults: options.faults,
        ..Config::default()
    };
    let started = Instant::now();
    let shared = &job;
    let tallies = accel::run(&config, |cx, at| async move {
        let mut tally = Tally::default();
        if at.index() == 0 {
            tally.engine = cx.engine_detail();
        }
        if let Err(error) = shared.work(&cx, at.accelerator, &mut tally).await {
            shared.fail(error);
        }
        tally
    })?;
    let elapsed = started.elapsed();
    if let Some(error) = job.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    if let Some(what) = input.changed()? {
        return Err(InputError::changed(input.name(), what).into());
    }
    let part = merge_all(kernel, input, job.parts)?;
    let mut stats = Stats {
        engine: String::new(),
        input_path: path.why,
        output_path: out_path.map(|path| path.why),
        bytes_in: 0,
        bytes_out: 0,
        elapsed,
        peak_rss_bytes: peak_rss_bytes(),
        memory_bound_bytes: rss_before + plan.memory_bytes,
        spent: Spent::default(),
        plan: plan.clone(),
    };
    for tally in tallies {
        stats.bytes_in += tally.bytes_in;
        stats.bytes_out += tally.bytes_out;
        stats.spent += tally.spent;
        stats.engine.push_str(&tally.engine);
    }
    Ok(Outcome { part, stats })
}

fn merge_all<K: Kernel>(kernel: &K, input: &Input, parts: Vec<Mutex<K::Part>>) -> Result<K::Part, StreamError> {
    let mut parts = parts.into_iter().map(|part| part.into_inner().unwrap_or_else(PoisonError::into_inner));
    let mut merged = parts.next().unwrap_or_else(|| kernel.part(1));
    for part in parts {
        let refused = |error| StreamError::Kernel { input: input.name().to_owned(), error };
        kernel.merge(&mut merged, part).map_err(refused)?;
    }
    Ok(merged)
}

impl<K: Kernel> Job<'_, K> {
    /// The naive loop of one thread.
    async fn work<'env>(&'env self, cx: &Cx<'env>, accelerator: usize, tally: &mut Tally) -> Result<(), StreamError> {
        // The plan made the store large enough for every thread's buffer.
        let mut buf = cx
            .alloc_aligned(self.plan.buffer_bytes as usize, 4096)
            .expect("the plan fits the buffers into the store");
        loop {
            let before = Instant::now();
            let (unit, parts) = match self.get(cx, buf).await? {
                (got, Some(next)) => {
                    buf = got;
                    next
                }
                (_, None) => return Ok(()),
            };
            let got = Instant::now();
            tally.spent.get += got - before;
            self.compute(&unit, parts, &mut buf, accelerator).await?;
            let computed = Instant::now();
            tally.spent.compute += computed - got;
            tally.bytes_in += parts.data as u64;
            if self.sink.is_some() {
                buf = self.put(cx, &unit, parts, buf).await?;
                tally.spent.put += computed.elapsed();
                tally.bytes_out += parts.data as u64;
            }
            self.progress.done_bytes.fetch_add(parts.data as u64, Ordering::Relaxed);
        }
    }

    /// Takes the next unit and gets it, surroundings included; `None` at the end.
    async fn get<'env>(
        &'env self,
        cx: &Cx<'env>,
        mut buf: Buf,
    ) -> Result<(Buf, Option<(Unit, Parts)>), StreamError> {
        if self.failed.load(Ordering::Relaxed) {
            return Ok((buf, None));
        }
        if let Source::Stream(window) = &self.source {
            buf.set_view(0..buf.capacity_bytes());
            let next = fill(window, self.plan, &mut buf)?;
            if let Some((_, parts)) = next {
                buf.set_view(0..parts.before + parts.data + parts.after);
            }
            return Ok((buf, next));
        }
        let Some((unit, len)) = self.source.next(self.plan) else { return Ok((buf, None)) };
        let parts = surroundings(self.plan.cut, &unit, len);
        let from = unit.offset - parts.before as u64;
        let all = parts.before + parts.data + parts.after;
        match cx.get(buf, self.input.at(from), all, Tag::new(0)).await {
            Ok(buf) => Ok((buf, Some((unit, parts)))),
            Err(error) => Err(self.read_error(&error)),
        }
    }

    async fn compute(
        &self,
        unit: &Unit,
        parts: Parts,
        buf: &mut Buf,
        accelerator: usize,
    ) -> Result<(), StreamError> {
        let refused = |error| StreamError::Kernel { input: self.input_name.to_owned(), error };
        let (before, rest) = buf.split_at_mut(parts.before);
        let (data, after) = rest.split_at_mut(parts.data);
        let block = Block { before, data, after };
        if self.kernel.merge_order() == MergeOrder::Any {
            let mut part = lock(&self.parts[accelerator]);
            return self.kernel.block(unit, block, &mut part).map_err(refused);
        }
        let mut part = self.kernel.part(self.plan.accelerators);
        self.kernel.block(unit, block, &mut part).map_err(refused)?;
        if !self.merge_gate.turn(unit.index).await {
            return Ok(());
        }
        self.kernel.merge(&mut lock(&self.parts[0]), part).map_err(refused)?;
        self.merge_gate.pass_on(unit.index);
        Ok(())
    }

    async fn put<'env>(
        &'env self,
        cx: &Cx<'env>,
        unit: &Unit,
        parts: Parts,
        mut buf: Buf,
    ) -> Result<Buf, StreamError> {
        let start = buf.view().start + parts.before;
        buf.set_view(start..start + parts.data);
        match &self.sink {
            None => Ok(buf),
            Some(Sink::Stream(writer)) => {
                if self.write_gate.turn(unit.index).await {
                    lock(writer).write_all(&buf)?;
                    self.write_gate.pass_on(unit.index);
                }
                Ok(buf)
            }
            Some(Sink::Offsets { output, main, tail, align_bytes }) => {
                let at = unit.body_offset();
                let odd = (parts.data as u64 % align_bytes) as usize;
                let even = parts.data - odd;
                let put = if odd == 0 {
                    cx.put(buf, main.at(at), Tag::new(0)).await
                } else if even == 0 {
                    cx.put(buf, tail.at(at), Tag::new(0)).await
                } else {
                    let list = [(main.at(at), even), (tail.at(at + even as u64), odd)];
                    cx.put_list(buf, &list, Tag::new(0)).await
                };
                put.map_err(|error| OutputError::write(output.name(), error.offset, &as_io(&error)).into())
            }
        }
    }

    fn read_error(&self, error: &TransferError) -> StreamError {
        InputError::read(self.input_name, error.offset, &as_io(error)).into()
    }

    /// Keeps the failure that is earliest in the input, and ends the run.
    fn fail(&self, error: StreamError) {
        let mut failure = lock(&self.failure);
        if failure.as_ref().is_none_or(|known| error.offset() < known.offset()) {
            *failure = Some(error);
        }
        drop(failure);
        self.failed.store(true, Ordering::Relaxed);
        self.merge_gate.close();
        self.write_gate.close();
    }
}

fn as_io(error: &TransferError) -> std::io::Error {
    match &error.fault {
        TransferFault::Io(cause) => match cause.raw_os_error() {
            Some(code) => std::io::Error::from_raw_os_error(code),
            None => std::io::Error::new(cause.kind(), cause.to_string()),
        },
        TransferFault::Ended { .. } => std::io::ErrorKind::UnexpectedEof.into(),
        other => std::io::Error::other(other.to_string()),
    }
}
