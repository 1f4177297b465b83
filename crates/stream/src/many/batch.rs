//! Small files: each accelerator takes a few that follow one another, and reads
//! one after the other with plain reads, which for small and cached files cost
//! less than anything that waits.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use accel::{Buf, Config, Cx, EngineChoice};
use storage::{Input, InputError, Listed, Output, SequentialWriter};

use super::Outputs;
use crate::error::{Failure, StreamError};
use crate::gate::lock;
use crate::kernel::{Block, Body, Kernel, KernelError, Out, OutState, Unit};
use crate::leases::Lease;
use crate::merge::Parts;
use crate::plan::{BUF_ALIGN_BYTES, Piece, Plan};
use crate::run::InputHead;
use crate::sink::ROOM_FROM;
use crate::source::Window;
use crate::stats::{Progress, Step, Tally};
use crate::watch::{Watch, Watches};

/// Files that are open at once on an accelerator, at most: those of a claim.
const CLAIM_FILES_MAX: usize = 8;

/// Bytes of a claim, about: few files make one where they are long.
const CLAIM_BYTES: u64 = 1 << 20;

/// Everything the accelerators share.
pub(super) struct Batch<'b, K: Kernel> {
    kernel: &'b K,
    plan: &'b Plan,
    inputs: &'b [Listed],
    outputs: Option<&'b Outputs<'b>>,
    parts: &'b Parts<K::Part>,
    progress: &'b Progress,
    claim_files: usize,
    next: AtomicU64,
    /// How long claims are taken; `None`: to the last.
    pub(super) lease: Option<Lease>,
    /// The failure of the earliest claim that has one, and that claim's number.
    failure: Mutex<Option<Failure>>,
    failed_from: AtomicU64,
}

/// What an accelerator works with.
struct Bench<'t, 'w, P> {
    buf: Buf,
    /// Where a rewrite writes to.
    out: Option<Buf>,
    part: &'t mut P,
    /// Whether each unit has a part of its own, merged into `part`.
    by_unit: bool,
    watch: &'t mut Watch<'w>,
}

impl<'b, K: Kernel> Batch<'b, K> {
    pub(super) fn new(
        kernel: &'b K,
        plan: &'b Plan,
        inputs: &'b [Listed],
        outputs: Option<&'b Outputs<'b>>,
        parts: &'b Parts<K::Part>,
        progress: &'b Progress,
    ) -> Self {
        Self {
            kernel,
            plan,
            inputs,
            outputs,
            parts,
            progress,
            claim_files: claim_files(inputs),
            next: AtomicU64::new(0),
            lease: None,
            failure: Mutex::new(None),
            failed_from: AtomicU64::new(u64::MAX),
        }
    }

    /// The next claim to be taken is `claim`.
    pub(super) fn start_from(&self, claim: u64) {
        self.next.store(claim, Ordering::Relaxed);
    }

    /// The claim that begins with a file.
    pub(super) fn claim_at(&self, file: usize) -> Option<u64> {
        file.is_multiple_of(self.claim_files).then_some((file / self.claim_files) as u64)
    }

    /// Claims that were taken, and their files; `None` if those are all.
    pub(super) fn taken(&self) -> Option<(u64, usize)> {
        let claims = self.next.load(Ordering::Relaxed);
        let files = usize::try_from(claims).ok()?.checked_mul(self.claim_files)?;
        (files < self.inputs.len()).then_some((claims, files))
    }

    /// Streams all of them, or as many as the lease allows, or says what failed first.
    pub(super) fn stream(&self) -> Result<Tally, StreamError> {
        let config = Config {
            accelerators: self.plan.accelerators,
            threads: 1,
            local_store_bytes: self.plan.local_store_bytes as usize,
            depth: 1,
            // Nothing is transferred by it; this one costs nothing to set up.
            engine: EngineChoice::Pread,
            ..Config::default()
        };
        let watches = &Watches::new(self.progress, self.plan, true);
        let tallies = accel::run(&config, |cx, at| {
            let batch = self;
            async move {
                let mut watch = watches.start(&cx, at);
                if let Err(failure) = batch.work(&cx, at.accelerator, &mut watch).await {
                    batch.fail(failure);
                }
                watch.tally
            }
        })?;
        if let Some(failure) = lock(&self.failure).take() {
            return Err(failure.error);
        }
        let mut all = Tally::default();
        tallies.into_iter().for_each(|tally| all += tally);
        Ok(all)
    }

    /// Keeps the failure that is earliest in the list. No claim is taken any
    /// more; those before this one, which all are, go on.
    fn fail(&self, failure: Failure) {
        let claim = failure.unit;
        let mut first = lock(&self.failure);
        if first.as_ref().is_none_or(|known| claim < known.unit) {
            *first = Some(failure);
        }
        drop(first);
        self.failed_from.fetch_min(claim, Ordering::Relaxed);
        self.parts.close_from(claim);
    }

    /// Takes claims until none is left.
    async fn work(
        &self,
        cx: &Cx<'_>,
        accelerator: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Failure> {
        let alloc = |bytes: u64| {
            cx.alloc_aligned(bytes as usize, BUF_ALIGN_BYTES as usize)
                .expect("the plan fits the buffers into the store")
        };
        let mut buf = Some(alloc(self.plan.buffer_bytes));
        let mut out = (self.plan.out_bytes > 0).then(|| alloc(self.plan.out_bytes));
        loop {
            if self.lease.is_some_and(|lease| lease.is_over(self.next.load(Ordering::Relaxed))) {
                return Ok(());
            }
            if !self.progress.control().may_go_on().await {
                let unit = self.next.load(Ordering::Relaxed);
                return Err(Failure { unit, error: StreamError::Cancelled });
            }
            let claim = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(files) = self.files(claim) else { return Ok(()) };
            let mut bench = |part: &mut K::Part, by_unit: bool| -> Result<(), Failure> {
                let own = buf.take().expect("each claim gives it back");
                let mut bench =
                    Bench { buf: own, out: out.take(), part, by_unit, watch: &mut *watch };
                let done = self.claim(claim, files, &mut bench);
                (buf, out) = (Some(bench.buf), bench.out);
                done.map_err(Failure::of(claim))
            };
            match self.parts {
                Parts::Any(parts) => bench(&mut lock(&parts[accelerator]), false)?,
                Parts::ByUnit(in_order) => {
                    let mut part = self.kernel.part(self.plan.accelerators);
                    bench(&mut part, true)?;
                    let taken = in_order.take(self.kernel, claim, part).await;
                    taken.map_err(|(claim, error)| {
                        // Of the files of that claim no single one is to blame.
                        let first = self.files(claim).and_then(|files| files.first());
                        let error = refused(first.map(Listed::shown).unwrap_or_default())(error);
                        Failure { unit: claim, error }
                    })?;
                }
            }
        }
    }

    /// The files of a claim; `None` behind the last one, and after a failure before it.
    fn files(&self, claim: u64) -> Option<&'b [Listed]> {
        let start = usize::try_from(claim).ok()?.checked_mul(self.claim_files)?;
        if self.failed_from.load(Ordering::Relaxed) < claim || start >= self.inputs.len() {
            return None;
        }
        Some(&self.inputs[start..self.inputs.len().min(start + self.claim_files)])
    }

    fn claim(
        &self,
        claim: u64,
        files: &[Listed],
        bench: &mut Bench<'_, '_, K::Part>,
    ) -> Result<(), StreamError> {
        let opened: Vec<_> = files.iter().map(|file| Input::open(file.path())).collect();
        let mut inputs = opened.iter().flatten();
        if inputs.clone().find(|input| input.len_bytes() > Some(0)).is_some_and(Input::is_cold) {
            inputs.by_ref().for_each(Input::read_ahead);
        }
        for (listed, input) in files.iter().zip(opened) {
            if self.failed_from.load(Ordering::Relaxed) < claim {
                return Ok(());
            }
            self.file(listed, &input?, bench)?;
        }
        Ok(())
    }

    /// Streams one file, and gives its output a name.
    fn file(
        &self,
        listed: &Listed,
        input: &Input,
        bench: &mut Bench<'_, '_, K::Part>,
    ) -> Result<(), StreamError> {
        let body = self.kernel.open(&InputHead(input)).map_err(refused(input.name().to_owned()))?;
        let cut = self.kernel.cut(&body.header);
        let plan = self.plan.of_input(body.range.clone(), input.len_bytes(), cut)?;
        let create = |outputs: &Outputs<'_>| outputs.dir.create(listed, plan.output_bytes());
        let output = self.outputs.map(create).transpose()?;
        let mut writer = output.as_ref().map(Output::sequential);
        let mut pieces = Pieces::of(input, &plan);
        loop {
            let before = Instant::now();
            bench.buf.set_view(0..bench.buf.capacity_bytes());
            let piece = pieces.next(&mut bench.buf)?;
            let Some(piece) = piece else {
                bench.watch.besides(Step::Get, before);
                break;
            };
            bench.watch.step(Step::Get, before, &piece);
            self.compute(&body, piece, input, bench, writer.as_mut())?;
            bench.watch.unit(&piece);
        }
        if let Some(what) = input.changed()? {
            return Err(InputError::changed(input.name(), what).into());
        }
        let before = Instant::now();
        if let (Some(output), Some(outputs)) = (output, self.outputs) {
            outputs.dir.commit(listed, output, outputs.sync)?;
            bench.watch.besides(Step::Put, before);
        }
        Ok(())
    }

    /// Computes a unit, in as many calls as its output takes, and writes that.
    fn compute(
        &self,
        body: &Body<K::Header>,
        piece: Piece,
        input: &Input,
        bench: &mut Bench<'_, '_, K::Part>,
        mut writer: Option<&mut SequentialWriter>,
    ) -> Result<(), StreamError> {
        let unit = &Unit { index: piece.index, offset: piece.offset, body };
        let data = piece.before..piece.before + piece.data;
        let mut goes_on_from = None;
        loop {
            let started = Instant::now();
            let mut state = OutState { goes_on_from, ..OutState::default() };
            let (before, rest) = bench.buf[..piece.len()].split_at_mut(data.start);
            let (inside, after) = rest.split_at_mut(piece.data);
            let out = match &mut bench.out {
                Some(room) => Out::new(&mut room[ROOM_FROM..], &mut state),
                None => Out::default(),
            };
            let block = Block { before, data: inside, after, out };
            let done = if bench.by_unit {
                let mut own = self.kernel.part(self.plan.accelerators);
                let done = self.kernel.block(unit, block, &mut own);
                done.and_then(|()| self.kernel.merge(bench.part, own))
            } else {
                self.kernel.block(unit, block, bench.part)
            };
            done.map_err(|error: KernelError| refused(input.name().to_owned())(error))?;
            let computed = bench.watch.step(Step::Compute, started, &piece);
            let made: &[u8] = match &bench.out {
                Some(room) => &room[ROOM_FROM..ROOM_FROM + state.len],
                None if self.kernel.effect().writes() => &bench.buf[data.clone()],
                None => &[],
            };
            if let Some(writer) = &mut writer {
                writer.write_all(made)?;
                bench.watch.tally.bytes_out += made.len() as u64;
                bench.watch.step(Step::Put, computed, &piece);
            }
            if state.stopped.is_none() {
                return Ok(());
            }
            goes_on_from = state.stopped;
        }
    }
}

/// How many files a claim has: it depends on the list alone, as results may
/// depend on which files' parts are merged first.
fn claim_files(inputs: &[Listed]) -> usize {
    let bytes: u64 = inputs.iter().filter_map(Listed::len_bytes).sum();
    let mean_bytes = (bytes / inputs.len().max(1) as u64).max(1);
    ((CLAIM_BYTES / mean_bytes) as usize).clamp(1, CLAIM_FILES_MAX)
}

fn refused(input: String) -> impl FnOnce(KernelError) -> StreamError {
    move |error| StreamError::Kernel { input, error }
}

/// The units of one input, one after the other.
enum Pieces<'p> {
    Offsets {
        input: &'p Input,
        plan: &'p Plan,
        indices: Range<u64>,
    },
    /// A file of /proc, whose length shows at its end.
    Stream {
        window: Window<'static>,
        block_bytes: usize,
    },
}

impl<'p> Pieces<'p> {
    fn of(input: &'p Input, plan: &'p Plan) -> Self {
        match plan.units {
            Some(units) => Self::Offsets { input, plan, indices: 0..units },
            None => Self::Stream {
                window: Window::of(input, plan.cut),
                block_bytes: plan.block_bytes as usize,
            },
        }
    }

    /// Reads the next one into `buf`, surroundings included.
    fn next(&mut self, buf: &mut [u8]) -> Result<Option<Piece>, StreamError> {
        match self {
            Self::Stream { window, block_bytes } => {
                window.fill(*block_bytes, buf).map_err(|failure| failure.error)
            }
            Self::Offsets { input, plan, indices } => {
                let Some(piece) = indices.next().and_then(|index| plan.piece(index)) else {
                    return Ok(None);
                };
                input.read_exact_at(&mut buf[..piece.len()], piece.start())?;
                Ok(Some(piece))
            }
        }
    }
}
