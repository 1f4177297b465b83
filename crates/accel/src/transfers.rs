//! The transfers of one accelerator: the queue, its engine, and the buffers in
//! flight.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::io;

use crate::engine::copy::copy_racing;
use crate::engine::memory::{Copy, MemoryEngine, Prefetched};
use crate::engine::{Engine, EngineReport, IoOp, Wait};
use crate::fault::{TransferError, TransferFault, TransferResult};
use crate::queue::{Address, Direction, Element, Failure, OpId, Order, PieceId, Queue, Step, Tag};
use crate::region::{Ea, Kind, Region};
use crate::sched::{Scheduler, Waiter, Waiters};
use crate::store::Buf;

/// The largest operation handed to a file engine.
const FILE_PIECE_BYTES_MAX: usize = 1 << 20;

/// Bytes of straight transfers in a row before a thread gives way to the others,
/// some 0.2 ms: what comes after a turn is a stream that starts anew.
const STRAIGHT_IN_A_ROW_BYTES: usize = 2 << 20;
/// What a short transfer counts as.
const STRAIGHT_BYTES_MIN: usize = 128;

impl Address for Ea<'_> {
    fn advance(self, bytes: usize) -> Self {
        // A widened get may start before its region, at a wrapped offset.
        Self { offset: self.offset.wrapping_add(bytes as u64), ..self }
    }

    fn piece_bytes_max(self) -> usize {
        match &self.region.kind {
            Kind::Memory { .. } => usize::MAX,
            Kind::File(_) => FILE_PIECE_BYTES_MAX,
        }
    }
}

/// What the queue keeps with a transfer in flight.
#[derive(Debug, Default)]
struct InFlight {
    buf: Option<Buf>,
    detached: bool,
    waiter: Option<Waiter>,
}

pub(crate) struct Transfers<'env> {
    /// First, so that it is dropped, and the device stopped, before the buffers.
    engine: RefCell<Box<dyn Engine>>,
    queue: UnsafeCell<Queue<Ea<'env>, InFlight>>,
    stopped: Cell<bool>,
    tag_waiters: Waiters,
    file_pieces: Cell<usize>,
    memory: MemoryEngine,
    depth: usize,
    straight_left: Cell<usize>,
}

/// A transfer that may already be over.
pub(crate) enum Started {
    Over(TransferResult),
    /// Prefetched; `land` makes the copy.
    Prefetched(Prefetched, Buf),
    Flies(OpId),
}

impl<'env> Transfers<'env> {
    pub(crate) fn new(engine: Box<dyn Engine>, depth: usize, memory: MemoryEngine) -> Self {
        Self {
            engine: RefCell::new(engine),
            queue: UnsafeCell::new(Queue::new(depth)),
            stopped: Cell::new(false),
            tag_waiters: Waiters::default(),
            file_pieces: Cell::new(0),
            memory,
            depth: depth.max(1),
            straight_left: Cell::new(STRAIGHT_IN_A_ROW_BYTES),
        }
    }

    /// The queue, for the length of one short access.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "private; every use ends before the next begins")]
    fn queue(&self) -> &mut Queue<Ea<'env>, InFlight> {
        // SAFETY: stays on one OS thread (`UnsafeCell` makes it !Sync); of the
        // references from here no two are used at the same time, and the queue
        // calls nothing that could come back here.
        unsafe { &mut *self.queue.get() }
    }

    /// The memory engine.
    #[inline(always)]
    pub(crate) fn memory(&self) -> &MemoryEngine {
        &self.memory
    }

    /// Starts a get of `len` bytes at `ea` into `buf`.
    #[inline(always)]
    pub(crate) fn get(
        &self,
        mut buf: Buf,
        ea: Ea<'env>,
        len: usize,
        tag: Tag,
        order: Order,
    ) -> Started {
        let Kind::Memory { start, racing, .. } = ea.region.kind else {
            return self.get_slow(buf, ea, len, tag, order);
        };
        if !ea.holds(len) || len > buf.capacity_bytes() || !self.starts_now(tag, order) {
            return self.get_slow(buf, ea, len, tag, order);
        }
        // SAFETY: the capacity was checked.
        unsafe { buf.set_view_len(len) };
        let source = start.cast_const().wrapping_add(ea.offset as usize);
        let copy = Copy { source, target: buf.start().as_ptr(), len, racing };
        let region_bytes = ea.region.len_bytes();
        // SAFETY: the range was checked against region and buffer. The region
        // is lent for 'env; the buffer goes to the `Transfer`, which withdraws
        // the copy when it is dropped, and leaks the buffer when it is leaked.
        unsafe {
            let goes_on = |end| buf.replace_got_until(end) == source;
            if self.memory.copy_straight(region_bytes, copy, goes_on) {
                return Started::Over(Ok(buf));
            }
            match self.memory.begin(copy, tag, order == Order::Barrier, &buf) {
                Some(prefetched) => Started::Prefetched(prefetched, buf),
                None => self.get_slow(buf, ea, len, tag, order),
            }
        }
    }

    /// Copies memory of `region` to `into`, or only asks for its lines where a
    /// turn before the copy is better: whether it was copied.
    ///
    /// # Errors
    /// A place outside the region, or in a file.
    #[inline(always)]
    pub(crate) fn copy_or_ask(
        &self,
        region: &Region<'_>,
        at: u64,
        into: &mut [u8],
        goes_on: bool,
    ) -> io::Result<bool> {
        let (source, racing) = region.readable(at, into.len())?;
        let copy = Copy { source, target: into.as_mut_ptr(), len: into.len(), racing };
        // SAFETY: the range is the region's, whose memory is there while it is
        // borrowed; `into` is the caller's alone, so no region has it.
        let copied = unsafe { self.memory.copy_straight(region.len_bytes(), copy, |_| goes_on) };
        if !copied {
            self.memory.ask(source, copy.len);
        }
        Ok(copied)
    }

    /// Copies memory of `region` to `into`, whose lines were asked for.
    ///
    /// # Errors
    /// As `copy_or_ask`.
    #[inline]
    pub(crate) fn copy(&self, region: &Region<'_>, at: u64, into: &mut [u8]) -> io::Result<()> {
        let (source, racing) = region.readable(at, into.len())?;
        let copy = Copy { source, target: into.as_mut_ptr(), len: into.len(), racing };
        // SAFETY: as above.
        unsafe { self.memory.carry_out_asked(copy) };
        Ok(())
    }

    /// Whether a memory transfer may be carried out this moment.
    #[inline(always)]
    fn starts_now(&self, tag: Tag, order: Order) -> bool {
        // Without a queue only the memory engine's own table limits the depth.
        let free = order == Order::Plain && !self.memory.has_barriers() && self.queue().is_quiet();
        free || self.may_start(tag, order)
    }

    #[cold]
    #[inline(never)]
    fn may_start(&self, tag: Tag, order: Order) -> bool {
        if order != Order::Plain || self.memory.has_barriers() {
            self.memory.settle(tag);
        }
        let queue = self.queue();
        let room = queue.in_flight() + self.memory.in_flight() < self.depth;
        room && (queue.is_quiet() || queue.may_start(tag, order))
    }

    /// Ends a prefetched get.
    #[inline(always)]
    pub(crate) fn land(&self, prefetched: Prefetched, buf: &mut Buf) {
        self.memory.land(prefetched, buf);
        if self.queue().has_startable() {
            self.pump();
        }
    }

    /// Ends a prefetched get without its copy: nobody wants it any more.
    pub(crate) fn withdraw(&self, prefetched: Prefetched, buf: &mut Buf) {
        self.memory.withdraw(prefetched, buf);
        self.pump();
    }

    #[cold]
    #[inline(never)]
    fn get_slow(&self, mut buf: Buf, ea: Ea<'env>, len: usize, tag: Tag, order: Order) -> Started {
        match widen(&buf, ea, len) {
            Err(fault) => {
                Started::Over(Err(TransferError::new(Some(buf), Direction::Get, ea, fault)))
            }
            Ok((element, view)) => {
                buf.set_view(view);
                let step = Step { direction: Direction::Get, first: element, more: Vec::new() };
                self.begin(buf, tag, order, step)
            }
        }
    }

    /// Starts a put of the buffer's view to `ea`.
    #[inline(always)]
    pub(crate) fn put(&self, buf: Buf, ea: Ea<'env>, tag: Tag, order: Order) -> Started {
        match ea.region.kind {
            Kind::Memory { start, writable: true, .. }
                if ea.holds(buf.len()) && self.starts_now(tag, order) =>
            {
                let target = start.wrapping_add(ea.offset as usize);
                // SAFETY: the range was checked against the region, which is
                // writable and lent for 'env; the buffer is not part of it.
                unsafe { copy_racing(buf.as_ptr(), target, buf.len()) };
                Started::Over(Ok(buf))
            }
            _ => self.put_slow(buf, ea, tag, order),
        }
    }

    #[cold]
    fn put_slow(&self, buf: Buf, ea: Ea<'env>, tag: Tag, order: Order) -> Started {
        match check_put(&buf, ea) {
            Err(fault) => {
                Started::Over(Err(TransferError::new(Some(buf), Direction::Put, ea, fault)))
            }
            Ok(element) => {
                let step = Step { direction: Direction::Put, first: element, more: Vec::new() };
                self.begin(buf, tag, order, step)
            }
        }
    }

    /// Starts a scatter (put) or gather (get): elements lie back to back in the buffer.
    pub(crate) fn list(
        &self,
        mut buf: Buf,
        list: &[(Ea<'env>, usize)],
        tag: Tag,
        direction: Direction,
    ) -> Started {
        let base = if direction == Direction::Put { buf.view_start() } else { 0 };
        let room = if direction == Direction::Put { buf.len() } else { buf.capacity_bytes() };
        let mut elements = Vec::with_capacity(list.len());
        let mut used = 0;
        for &(ea, len) in list {
            let (start, align) = match &ea.region.kind {
                Kind::Memory { writable, .. } if !writable && direction == Direction::Put => {
                    return Started::Over(Err(TransferError::new(
                        Some(buf),
                        direction,
                        ea,
                        TransferFault::ReadOnly,
                    )));
                }
                Kind::Memory { .. } => (0, 1),
                Kind::File(file) => (file.start, file.align_bytes),
            };
            if !ea.holds(len) {
                let fault = TransferFault::OutsideRegion {
                    len_bytes: len,
                    region_bytes: ea.region.len_bytes(),
                };
                return Started::Over(Err(TransferError::new(Some(buf), direction, ea, fault)));
            }
            if len > room - used {
                let fault = TransferFault::OutsideBuf {
                    len_bytes: used.saturating_add(len),
                    capacity_bytes: room,
                };
                return Started::Over(Err(TransferError::new(Some(buf), direction, ea, fault)));
            }
            let inside = buf.start().addr().get() + base + used;
            if align > 1
                && !((start + ea.offset) | inside as u64 | len as u64).is_multiple_of(align)
            {
                return Started::Over(Err(TransferError::new(
                    Some(buf),
                    direction,
                    ea,
                    TransferFault::Unaligned { align_bytes: align },
                )));
            }
            elements.push(Element { ea, buf_offset: base + used, len, need: len, lead: 0 });
            used += len;
        }
        if direction == Direction::Get {
            buf.set_view(0..used);
        }
        let Some(&first) = elements.first() else { return Started::Over(Ok(buf)) };
        let step = Step { direction, first, more: elements.split_off(1) };
        self.begin(buf, tag, Order::Plain, step)
    }

    fn begin(&self, buf: Buf, tag: Tag, order: Order, step: Step<Ea<'env>>) -> Started {
        if order != Order::Plain || self.memory.has_barriers() {
            self.memory.settle(tag);
        }
        let flight = InFlight { buf: Some(buf), ..InFlight::default() };
        let op = self.queue().begin(tag, order, step, flight);
        if self.queue().in_flight() + self.memory.in_flight() >= self.depth {
            self.memory.settle_one();
        }
        self.pump();
        Started::Flies(op)
    }

    /// After `op`, which is not done, gets `len` bytes at `ea` into the same buffer.
    pub(crate) fn chain_get(
        &self,
        op: OpId,
        ea: Ea<'env>,
        len: usize,
    ) -> Result<(), Box<TransferError>> {
        let Some(buf) = &mut self.queue().payload(op).buf else { return Ok(()) };
        let (element, view) = widen(buf, ea, len)
            .map_err(|fault| TransferError::new(None, Direction::Get, ea, fault))?;
        // Nobody sees the view before the chain's end.
        buf.set_view(view);
        self.queue()
            .chain(op, Step { direction: Direction::Get, first: element, more: Vec::new() });
        Ok(())
    }

    /// The result of a transfer that is done.
    pub(crate) fn take(&self, op: OpId) -> Option<TransferResult> {
        let (load, failed) = self.queue().retire(op)?;
        let Some(failed) = failed else { return load.buf.map(Ok) };
        let fault = match failed.why {
            Failure::Io(error) => TransferFault::Io(error),
            Failure::Ended { missing } => TransferFault::Ended { missing_bytes: missing },
        };
        Some(Err(TransferError::new(load.buf, failed.direction, failed.ea, fault)))
    }

    /// Hands over all that may start. Memory pieces end at once.
    pub(crate) fn pump(&self) {
        while let Some(piece) = self.queue().next_piece(self.memory.in_flight()) {
            let Some(buf) = &self.queue().payload(piece.op).buf else { continue };
            let (buf_start, arena) = (buf.start(), buf.arena());
            match &piece.ea.region.kind {
                Kind::Memory { start, .. } => {
                    let outside = start.wrapping_add(piece.ea.offset as usize);
                    // SAFETY: the element was checked against region and
                    // buffer when the transfer began; the queue owns the buffer.
                    unsafe {
                        let inside = buf_start.as_ptr().add(piece.buf_offset);
                        match piece.direction {
                            Direction::Get => copy_racing(outside, inside, piece.len),
                            Direction::Put => copy_racing(inside, outside, piece.len),
                        }
                    }
                    self.queue().complete(piece.id, Ok(piece.len));
                }
                Kind::File(_) if self.stopped.get() => {
                    let gone = io::Error::other("its accelerator is gone");
                    self.queue().complete(piece.id, Err(gone));
                }
                Kind::File(file) => {
                    let op = IoOp {
                        id: piece.id.0,
                        direction: piece.direction,
                        file: file.file.clone(),
                        offset: file.start.wrapping_add(piece.ea.offset),
                        // SAFETY: the element was checked against the buffer.
                        memory: unsafe { buf_start.add(piece.buf_offset) },
                        len: piece.len,
                        align_bytes: file.align_bytes,
                        arena: arena.clone(),
                    };
                    self.file_pieces.set(self.file_pieces.get() + 1);
                    // SAFETY: the buffer stays in the queue, unused, until the
                    // piece completes, and its arena outlives the engine.
                    unsafe { self.engine.borrow_mut().submit(op) };
                }
            }
        }
    }

    /// File operations handed to the engine and not back yet.
    #[inline]
    pub(crate) fn file_pieces(&self) -> usize {
        self.file_pieces.get()
    }

    /// Takes completions in and wakes who waits for them.
    pub(crate) fn reap(&self, wait: Wait, sched: &Scheduler<'env>) -> io::Result<()> {
        let reaped = self.engine.borrow_mut().reap(wait, &mut |id, result| {
            self.file_pieces.set(self.file_pieces.get() - 1);
            self.queue().complete(PieceId(id), result);
        });
        self.pump();
        self.tell(sched);
        reaped
    }

    /// Tells waiters of transfers that ended.
    pub(crate) fn tell(&self, sched: &Scheduler<'env>) {
        let mut ended = false;
        while let Some(op) = self.queue().pop_finished() {
            ended = true;
            let load = self.queue().payload(op);
            let (waiter, detached) = (load.waiter.take(), load.detached);
            if detached {
                drop(self.queue().retire(op));
            }
            if let Some(waiter) = waiter {
                sched.wake(waiter);
            }
        }
        if ended {
            for waiter in self.tag_waiters.take() {
                sched.wake(waiter);
            }
        }
    }

    /// Remembers who waits for `op`.
    pub(crate) fn set_waiter(&self, op: OpId, waiter: Waiter) {
        let known = self.queue().payload(op).waiter.replace(waiter);
        // A waker's end may run foreign code, which may come back here.
        drop(known);
    }

    /// The transfer's future was dropped: it goes on, and nobody asks for it.
    pub(crate) fn detach(&self, op: OpId) {
        if self.queue().is_done(op) {
            drop(self.queue().retire(op));
        } else {
            let load = self.queue().payload(op);
            load.detached = true;
            let known = load.waiter.take();
            drop(known);
        }
    }

    /// Whether all transfers of `tag` are done; copies prefetched gets.
    pub(crate) fn tag_is_quiet(&self, tag: Tag) -> bool {
        self.memory.settle(tag);
        self.pump();
        self.queue().open(tag) == 0
    }

    pub(crate) fn wait_for_tag(&self, waiter: Waiter) {
        self.tag_waiters.add(waiter);
    }

    /// A straight transfer is over at once; every so often its thread gives way all the same.
    #[inline(always)]
    pub(crate) fn may_go_on(&self, len: usize) -> bool {
        let left = self.straight_left.get();
        // One longer than all of them goes on too, once the others had their turn.
        let rest = left.saturating_sub(len.max(STRAIGHT_BYTES_MIN));
        self.straight_left.set(if left == 0 { STRAIGHT_IN_A_ROW_BYTES } else { rest });
        left != 0
    }

    pub(crate) fn engine_report(&self) -> EngineReport {
        EngineReport::of(&**self.engine.borrow())
    }

    /// Stops the device; no transfer moves anything afterwards.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        self.engine.borrow_mut().stop();
    }
}

/// What a get of `len` bytes at `ea` reads, and the view that shows them:
/// direct I/O reads whole sectors around them.
fn widen<'env>(
    buf: &Buf,
    ea: Ea<'env>,
    len: usize,
) -> Result<(Element<Ea<'env>>, std::ops::Range<usize>), TransferFault> {
    if !ea.holds(len) {
        return Err(TransferFault::OutsideRegion {
            len_bytes: len,
            region_bytes: ea.region.len_bytes(),
        });
    }
    let (head, wide) = match &ea.region.kind {
        Kind::Memory { .. } => (0, len),
        Kind::File(file) => {
            let align = file.align_bytes as usize;
            // `file.start` may be odd: sectors count from the file's start.
            let head = ((file.start + ea.offset) % file.align_bytes) as usize;
            let wide = head.checked_add(len).and_then(|end| end.checked_next_multiple_of(align));
            (head, wide.unwrap_or(usize::MAX))
        }
    };
    if wide > buf.capacity_bytes() {
        return Err(TransferFault::OutsideBuf {
            len_bytes: wide,
            capacity_bytes: buf.capacity_bytes(),
        });
    }
    let ea = Ea { offset: ea.offset.wrapping_sub(head as u64), ..ea };
    let view = head..head + len;
    Ok((Element { ea, buf_offset: 0, len: wide, need: view.end, lead: head }, view))
}

fn check_put<'env>(buf: &Buf, ea: Ea<'env>) -> Result<Element<Ea<'env>>, TransferFault> {
    let len = buf.len();
    if !ea.holds(len) {
        return Err(TransferFault::OutsideRegion {
            len_bytes: len,
            region_bytes: ea.region.len_bytes(),
        });
    }
    match &ea.region.kind {
        Kind::Memory { writable: false, .. } => return Err(TransferFault::ReadOnly),
        Kind::File(file) if file.align_bytes > 1 => {
            let all = (file.start + ea.offset) | len as u64 | buf.as_ptr() as u64;
            if !all.is_multiple_of(file.align_bytes) {
                return Err(TransferFault::Unaligned { align_bytes: file.align_bytes });
            }
        }
        _ => {}
    }
    Ok(Element { ea, buf_offset: buf.view_start(), len, need: len, lead: 0 })
}
