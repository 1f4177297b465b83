//! What the threads of a run do: on every accelerator a few of them each do the
//! naive loop of getting a unit, computing, and putting it back.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use accel::{
    Accelerator, Buf, Config, Cx, EngineChoice, FileWindow, Place, Tag, TransferError,
    TransferFault,
};
use storage::{Input, InputError};

use crate::error::{Failure, StreamError, as_io};
use crate::gate::lock;
use crate::kernel::{Block, Body, Kernel, KernelError, Out, OutState, Unit};
use crate::leases::Lease;
use crate::merge::Parts;
use crate::pipeline::Stand;
use crate::plan::{BUF_ALIGN_BYTES, Options, Piece, Plan};
use crate::run::Layout;
use crate::scheme::{Host, Io, read_error};
use crate::share::{Drive, Shares};
use crate::sink::{ROOM_FROM, Sink};
use crate::source::Source;
use crate::stats::{Progress, Step, Tally};
use crate::watch::{Watch, Watches};

/// Which units are computed, and where their parts go.
pub(crate) enum Found<'j, P> {
    /// All of the input's.
    Whole(&'j Parts<P>),
    /// As they are asked for.
    Shares(&'j Shares<'j, P>),
}

impl<P> Clone for Found<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Found<'_, P> {}

/// Everything the threads of a run share.
pub(crate) struct Job<'j, K: Kernel> {
    pub(crate) kernel: &'j K,
    pub(crate) plan: &'j Plan,
    body: &'j Body<K::Header>,
    pub(crate) input: &'j Input,
    source: Source,
    pub(crate) sink: Option<Sink<'j>>,
    host: &'j Host<'j>,
    pub(crate) found: Found<'j, K::Part>,
    pub(crate) progress: &'j Progress,
    /// How long units are taken; `None`: to the input's end.
    pub(crate) lease: Option<Lease>,
    failure: Mutex<Option<Failure>>,
    failed: AtomicBool,
}

impl<'j, K: Kernel> Job<'j, K> {
    pub(crate) fn new(
        kernel: &'j K,
        laid: &'j Layout<K::Header>,
        (input, source): (&'j Input, Source),
        sink: Option<Sink<'j>>,
        host: &'j Host<'j>,
        found: Found<'j, K::Part>,
        progress: &'j Progress,
    ) -> Self {
        Self {
            kernel,
            plan: &laid.plan,
            body: &laid.body,
            input,
            source,
            sink,
            host,
            found,
            progress,
            lease: None,
            failure: Mutex::new(None),
            failed: AtomicBool::new(false),
        }
    }

    /// Starts the threads and waits for all of them.
    pub(crate) fn stream(&self, options: &Options) -> Result<Tally, StreamError> {
        let config = self.config(options);
        let watches = &self.watches();
        let fail = |failure| self.fail(failure);
        let tallies = self.host.beside(options.faults, &fail, || {
            accel::run(&config, |cx, at| self.thread(cx, at, watches))
        })?;
        let mut all = Tally { spent: self.host.spent(), ..Tally::default() };
        tallies.into_iter().for_each(|tally| all += tally);
        Ok(all)
    }

    /// The same with one thread, on the calling one, as `drive` steps it.
    pub(crate) fn step(
        &self,
        options: &Options,
        drive: &mut Drive<'_>,
    ) -> Result<Tally, StreamError> {
        let store = self.plan.local_store_bytes as usize / self.plan.threads.max(1);
        let engine = match options.engine {
            // Of short ranges all is cached, mostly: it copies that on the spot.
            EngineChoice::Auto => EngineChoice::Pread,
            named => named,
        };
        let config =
            Config { threads: 1, local_store_bytes: store, engine, ..self.config(options) };
        let watches = &self.watches();
        let tally = &Cell::new(None);
        let mut accelerator = Accelerator::new(&config)?;
        let at = Place { accelerator: 0, thread: 0, accelerators: 1, threads: 1 };
        let thread = self.thread(accelerator.cx(), at, watches);
        accelerator
            .cx()
            .spawn(async move { tally.set(Some(thread.await)) })
            .expect("an accelerator has room for its first thread");
        drive(&mut || Ok(accelerator.step()?));
        accelerator.run_to_end()?;
        Ok(tally.take().expect("a thread that ended has told what it did"))
    }

    fn watches(&self) -> Watches<'_> {
        let is_whole = matches!(self.found, Found::Whole(_));
        Watches::new(self.progress, self.plan, is_whole)
    }

    fn config(&self, options: &Options) -> Config {
        Config {
            accelerators: self.plan.accelerators,
            threads: self.plan.threads,
            local_store_bytes: self.plan.local_store_bytes as usize,
            depth: (self.plan.threads * 4).max(16),
            engine: options.engine,
            pin: !options.unpinned,
            faults: options.faults,
            ..Config::default()
        }
    }

    /// What one thread does; its part of the tally.
    async fn thread<'env>(
        &'env self,
        cx: Cx<'env>,
        at: Place,
        watches: &'env Watches<'_>,
    ) -> Tally {
        let (mut watch, stand) = (watches.start(&cx, at), Stand::of(self.plan, at));
        let worked = match self.plan.io {
            Io::Mapped => self.look(stand, &mut watch).await,
            _ => self.work(&cx, stand, &mut watch).await,
        };
        let failed = worked.map_err(|failure| self.fail(failure)).is_err();
        stand.leave(&cx, failed, || self.buffer(&cx)).await;
        watch.tally
    }

    /// Units that were taken, or as many as there are; a stream does not tell.
    pub(crate) fn taken(&self) -> u64 {
        match &self.source {
            Source::Offsets { next, .. } | Source::Host { next } => next.load(Ordering::Relaxed),
            Source::Stream(_) => u64::MAX,
        }
    }

    /// The next unit to be taken is `unit`.
    pub(crate) fn take_from(&self, unit: u64) {
        if let Source::Offsets { next, .. } = &self.source {
            next.store(unit, Ordering::Relaxed);
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// What failed first.
    pub(crate) fn failure(&self) -> Option<Failure> {
        lock(&self.failure).take()
    }

    /// Says what failed, or that the input is still the same and the output written.
    pub(crate) fn end(self) -> Result<(), StreamError> {
        if let Some(failure) = self.failure() {
            return Err(failure.error);
        }
        let name = self.input.name();
        if let Some(what) = self.input.changed()? {
            return Err(InputError::changed(name, what).into());
        }
        if let Some(sink) = &self.sink {
            sink.finish()?;
        }
        Ok(())
    }

    /// The naive loop of one thread.
    async fn work<'env>(
        &'env self,
        cx: &Cx<'env>,
        stand: Stand,
        watch: &mut Watch<'_>,
    ) -> Result<(), Failure> {
        let mut buf = self.buffer(cx);
        let mut out = (self.plan.out_bytes > 0 && stand.is_last()).then(|| {
            cx.alloc_aligned(self.plan.out_bytes as usize, BUF_ALIGN_BYTES as usize)
                .expect("the plan fits these too")
        });
        loop {
            let taken;
            (buf, taken) = self.take(cx, buf, watch, stand).await?;
            let Some(taken) = taken else { return Ok(()) };
            let ended;
            match out.take() {
                Some(mut room) => {
                    (room, ended) = self.rewrite(cx, taken, &mut buf, room, watch, stand).await?;
                    out = Some(room);
                }
                None => (buf, ended) = self.in_place(cx, taken, buf, watch, stand).await?,
            }
            self.done((taken.0, ended), watch, stand)?;
        }
    }

    /// The buffer of one thread.
    fn buffer(&self, cx: &Cx<'_>) -> Buf {
        // The plan made the store large enough for every thread's.
        cx.alloc_aligned(self.plan.buffer_bytes as usize, BUF_ALIGN_BYTES as usize)
            .expect("the plan fits the buffers into the store")
    }

    /// Waits for the next unit, from the input or from the stage before; with when it was there.
    async fn take<'env>(
        &'env self,
        cx: &Cx<'env>,
        buf: Buf,
        watch: &mut Watch<'_>,
        stand: Stand,
    ) -> Result<(Buf, Option<(Piece, Instant)>), Failure> {
        let (before, step) = (Instant::now(), stand.takes_by());
        let (buf, piece) = if step == Step::Get {
            watch.log.starts();
            let got = self.get(cx, buf).await;
            watch.log.ends();
            got?
        } else {
            stand.receive(cx, buf).await
        };
        Ok((buf, piece.map(|piece| (piece, watch.step(step, before, &piece)))))
    }

    /// The loop of one thread that looks at the input where it lies.
    async fn look(&self, stand: Stand, watch: &mut Watch<'_>) -> Result<(), Failure> {
        let Source::Offsets { next, .. } = &self.source else { return Ok(()) };
        let failed = |error| InputError::read(self.input.name(), 0, &error);
        let window = FileWindow::new(self.input.file(), self.plan.buffer_bytes as usize);
        let mut window = window.map_err(failed).map_err(Failure::of(0))?;
        while self.may_go_on().await?
            && let Some(piece) = self.next_piece(next).await
        {
            let before = Instant::now();
            let mut ended = before;
            self.collect(piece, stand, |part| {
                let at = self.input.start_bytes() + piece.start();
                let seen = window.look(at, piece.len(), |bytes| {
                    let mapped = watch.step(Step::Get, before, &piece);
                    let computed = self.block(piece, bytes, Out::default(), part, stand);
                    ended = watch.step(Step::Compute, mapped, &piece);
                    computed
                });
                seen.map_err(|fault| {
                    Failure::of(piece.index)(read_error(self.input, piece, &fault))
                })?
            })
            .await?;
            self.done((piece, ended), watch, stand)?;
        }
        Ok(())
    }

    /// `piece` went through here by `ended`.
    fn done(
        &self,
        (piece, ended): (Piece, Instant),
        watch: &mut Watch<'_>,
        stand: Stand,
    ) -> Result<(), Failure> {
        watch.unit(&piece);
        match self.found {
            Found::Shares(shares) if stand.is_last() => {
                let done = shares.done(self.kernel, (piece.index, ended), self.input);
                done.map_err(Failure::of(piece.index))
            }
            _ => Ok(()),
        }
    }

    /// Before a unit is taken: waits while the run is paused. `false` if it failed.
    async fn may_go_on(&self) -> Result<bool, Failure> {
        if !self.progress.control().may_go_on().await {
            return Err(Failure { unit: self.taken(), error: StreamError::Cancelled });
        }
        Ok(!self.has_failed())
    }

    /// The next unit of an input with offsets; `None` at the end.
    async fn next_piece(&self, next: &AtomicU64) -> Option<Piece> {
        if let Found::Shares(shares) = self.found {
            return self.plan.piece(shares.take().await?);
        }
        let is_over = |lease: Lease| lease.is_over(next.load(Ordering::Relaxed));
        if self.lease.is_some_and(is_over) {
            return None;
        }
        self.plan.piece(next.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes the next unit and gets it, surroundings included; `None` at the end.
    async fn get<'env>(
        &'env self,
        cx: &Cx<'env>,
        mut buf: Buf,
    ) -> Result<(Buf, Option<Piece>), Failure> {
        if !self.may_go_on().await? {
            return Ok((buf, None));
        }
        let (region, piece) = match &self.source {
            Source::Offsets { region, next } => {
                let Some(piece) = self.next_piece(next).await else { return Ok((buf, None)) };
                (region, piece)
            }
            Source::Host { next } => {
                return self.host.get(cx, next.fetch_add(1, Ordering::Relaxed), buf).await;
            }
            Source::Stream(window) => {
                buf.set_view(0..buf.capacity_bytes());
                let next = lock(window).fill(self.plan.block_bytes as usize, &mut buf)?;
                if let Some(piece) = next {
                    buf.set_view(0..piece.len());
                }
                return Ok((buf, next));
            }
        };
        match cx.get(buf, region.at(piece.start()), piece.len(), Tag::new(0)).await {
            Ok(buf) => Ok((buf, Some(piece))),
            Err(error) => {
                let error = self.read_error(&error, piece.start() + piece.len() as u64);
                Err(Failure { unit: piece.index, error: error.into() })
            }
        }
    }

    /// Computes a unit that was there by `got`, and puts it where it was, or sends it to the next
    /// stage; with when that was done.
    async fn in_place<'env>(
        &'env self,
        cx: &Cx<'env>,
        (piece, got): (Piece, Instant),
        mut buf: Buf,
        watch: &mut Watch<'_>,
        stand: Stand,
    ) -> Result<(Buf, Instant), Failure> {
        self.compute(piece, &mut buf, Out::default(), stand).await?;
        let mut ended = watch.step(Step::Compute, got, &piece);
        if !stand.is_last() {
            buf = stand.send(cx, buf, &piece).await;
            ended = watch.step(Step::Send, ended, &piece);
        } else if let Some(sink) = &self.sink {
            let start = buf.view().start + piece.before;
            buf.set_view(start..start + piece.data);
            let at = piece.offset - self.body.range.start;
            watch.log.starts();
            let put = sink.put(cx, piece.index, at, buf).await;
            watch.log.ends();
            buf = put.map_err(Failure::of(piece.index))?;
            ended = watch.step(Step::Put, ended, &piece);
            watch.tally.bytes_out += piece.data as u64;
        }
        Ok((buf, ended))
    }

    /// Computes a unit that was there by `got`, in as many calls as its output takes, and appends
    /// that; with when that was done.
    async fn rewrite<'env>(
        &'env self,
        cx: &Cx<'env>,
        (piece, got): (Piece, Instant),
        buf: &mut Buf,
        mut out: Buf,
        watch: &mut Watch<'_>,
        stand: Stand,
    ) -> Result<(Buf, Instant), Failure> {
        let (mut goes_on_from, mut ended) = (None, got);
        loop {
            out.set_view(0..out.capacity_bytes());
            let mut state = OutState { goes_on_from, ..OutState::default() };
            let room = Out::new(&mut out[ROOM_FROM..], &mut state);
            self.compute(piece, buf, room, stand).await?;
            ended = watch.step(Step::Compute, ended, &piece);
            let OutState { len, stopped, .. } = state;
            watch.tally.bytes_out += len as u64;
            if let Some(sink) = &self.sink {
                watch.log.starts();
                let appended = sink.append(cx, piece.index, out, len, stopped.is_none()).await;
                watch.log.ends();
                out = appended.map_err(Failure::of(piece.index))?;
                ended = watch.step(Step::Put, ended, &piece);
            }
            if stopped.is_none() {
                return Ok((out, ended));
            }
            goes_on_from = stopped;
        }
    }

    async fn compute(
        &self,
        piece: Piece,
        buf: &mut [u8],
        out: Out<'_>,
        stand: Stand,
    ) -> Result<(), Failure> {
        if stand.is_last() {
            self.collect(piece, stand, |part| self.block(piece, buf, out, part, stand)).await
        } else {
            let (unit, block) = self.unit(piece, buf, out);
            let computed = self.kernel.early_stage(stand.stage, &unit, block);
            computed.map_err(|error| self.refused(piece.index, error))
        }
    }

    /// Has `block` compute a unit into the part that is its own.
    async fn collect(
        &self,
        piece: Piece,
        stand: Stand,
        block: impl FnOnce(&mut K::Part) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match self.found {
            Found::Shares(shares) => shares.collect(self.kernel, piece.index, stand.lane(), block),
            Found::Whole(Parts::Any(parts)) => block(&mut lock(&parts[stand.lane()])),
            Found::Whole(Parts::ByUnit(in_order)) => {
                let mut part = self.kernel.part(self.plan.lanes());
                block(&mut part)?;
                let taken = in_order.take(self.kernel, piece.index, part).await;
                match taken.map_err(|(unit, error)| self.refused(unit, error)) {
                    // A later unit's part, merged on the way: this unit goes on.
                    Err(failure) if failure.unit > piece.index => {
                        self.fail(failure);
                        Ok(())
                    }
                    taken => taken,
                }
            }
        }
    }

    /// The last kernel's call for a unit whose bytes, surroundings included, are these.
    fn block(
        &self,
        piece: Piece,
        bytes: &mut [u8],
        out: Out<'_>,
        part: &mut K::Part,
        stand: Stand,
    ) -> Result<(), Failure> {
        let (unit, block) = self.unit(piece, bytes, out);
        let compute = if stand.is_first() { K::block } else { K::last_stage };
        let computed = compute(self.kernel, &unit, block, part);
        computed.map_err(|error| self.refused(piece.index, error))
    }

    fn unit<'b>(
        &self,
        piece: Piece,
        bytes: &'b mut [u8],
        out: Out<'b>,
    ) -> (Unit<'j, K::Header>, Block<'b>) {
        let unit = Unit { index: piece.index, offset: piece.offset, body: self.body };
        let (before, rest) = bytes.split_at_mut(piece.before);
        let (data, after) = rest.split_at_mut(piece.data);
        (unit, Block { before, data, after, out })
    }

    fn refused(&self, unit: u64, error: KernelError) -> Failure {
        let input = self.input.name().to_owned();
        Failure { unit, error: StreamError::Kernel { input, error } }
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
        match self.found {
            Found::Whole(parts) => parts.close_from(unit),
            Found::Shares(shares) => shares.halt(),
        }
        if let Some(sink) = &self.sink {
            sink.close_from(unit);
        }
        self.host.close_from(unit);
    }
}
