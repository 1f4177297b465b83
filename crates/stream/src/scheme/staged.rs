//! Memory that host threads fill and drain while accelerators transfer from
//! and to it: schemes 4, 6 and staged. The reader's and the writer's status
//! locations are gates: a unit passes once it is read, or has room.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use accel::{Buf, Cx, HostIo, Region, Tag};
use storage::{Input, InputError, Output, OutputError};

use super::assisted::read_error;
use super::host::Clock;
use super::{OWN_ONLY, Staging};
use crate::error::{Failure, as_io};
use crate::gate::{Gate, lock};
use crate::plan::{Piece, Plan, PlanError};

/// The reader reads so much at once, unless a unit is longer or a buffer ends.
const READ_BYTES: u64 = 1 << 18;

/// Buffers in turn between files and accelerators.
pub(crate) struct Staged<'j> {
    plan: &'j Plan,
    pub(super) layout: &'j Staging,
    input: &'j Input,
    output: Option<&'j Output>,
    in_memory: Region<'static>,
    out_memory: Region<'static>,
    /// Lets unit `index` through as its turn `index + 1`: once it is read.
    read: Gate,
    /// Lets units through that have room in a buffer for output.
    room: Gate,
    state: Mutex<State>,
    changed: Condvar,
    pub(super) clock: Clock,
}

struct State {
    /// Units got from each buffer since it was filled.
    got: Vec<u64>,
    /// Units put and not written: a note for each place of each buffer.
    put: Vec<bool>,
    /// From this unit on nothing is wanted.
    stop_from: u64,
    /// What the reader ran into, told to whoever has that unit.
    fault: Option<(u64, InputError)>,
}

impl<'j> Staged<'j> {
    pub(super) fn new(
        plan: &'j Plan,
        layout: &'j Staging,
        input: &'j Input,
        output: Option<&'j Output>,
    ) -> Result<Self, PlanError> {
        let map = |each: u64| {
            let bytes = layout.buffers.saturating_mul(each);
            let mapped = usize::try_from(bytes).map_err(|_| std::io::ErrorKind::OutOfMemory.into());
            mapped.and_then(Region::staging).map_err(|error| PlanError::Scheme {
                scheme: plan.scheme,
                why: format!("{bytes} bytes of memory cannot be had: {error}"),
                cure: OWN_ONLY,
            })
        };
        let (in_memory, out_memory) =
            (map(layout.in_bytes)?, map(if output.is_some() { layout.out_bytes } else { 0 })?);
        // Memory was mapped for more bytes than that.
        let places = layout.buffers * layout.buffer_units;
        let put = vec![false; if output.is_some() { places as usize } else { 0 }];
        let got = vec![0; layout.buffers as usize];
        let state = Mutex::new(State { got, put, stop_from: u64::MAX, fault: None });
        let (read, room, changed, clock) = Default::default();
        let staged = Self {
            plan,
            layout,
            input,
            output,
            in_memory,
            out_memory,
            read,
            room,
            state,
            changed,
            clock,
        };
        staged.room.open_until(places - 1);
        Ok(staged)
    }

    /// Which filling of a buffer unit `index` is in, and which buffer.
    fn place(&self, index: u64) -> (u64, u64) {
        let filling = index / self.layout.buffer_units;
        (filling, filling % self.layout.buffers)
    }

    /// The first unit of a filling.
    fn first(&self, filling: u64) -> Option<Piece> {
        self.plan.piece(filling.checked_mul(self.layout.buffer_units)?)
    }

    fn note(&self, index: u64) -> usize {
        (index % (self.layout.buffers * self.layout.buffer_units)) as usize
    }

    pub(super) async fn get<'env>(
        &'env self,
        cx: &Cx<'env>,
        piece: Piece,
        buf: Buf,
    ) -> Result<(Buf, bool), InputError> {
        let started = Instant::now();
        let turn = self.read.turn(piece.index + 1).await;
        self.clock.wait.add_since(started);
        if !turn {
            return Ok((buf, false));
        }
        if let Some((_, error)) = lock(&self.state).fault.take_if(|(unit, _)| *unit == piece.index)
        {
            return Err(error);
        }
        let (filling, buffer) = self.place(piece.index);
        let start = self.first(filling).map_or(piece.start(), |first| first.start());
        let at = buffer * self.layout.in_bytes + (piece.start() - start);
        let got = cx.get(buf, self.in_memory.at(at), piece.len(), Tag::new(0)).await;
        let failed = |error: Box<accel::TransferError>| {
            InputError::read(self.input.name(), piece.start(), &as_io(&error))
        };
        let buf = got.map_err(failed)?;
        let mut state = lock(&self.state);
        state.got[buffer as usize] += 1;
        if state.got[buffer as usize] == self.layout.buffer_units {
            self.changed.notify_all();
        }
        drop(state);
        Ok((buf, true))
    }

    pub(super) async fn put<'env>(
        &'env self,
        cx: &Cx<'env>,
        index: u64,
        at: u64,
        buf: Buf,
    ) -> Result<Buf, OutputError> {
        let Some(output) = self.output else { return Ok(buf) };
        let started = Instant::now();
        let turn = self.room.turn(index).await;
        self.clock.wait.add_since(started);
        if !turn {
            return Ok(buf);
        }
        let put = cx.put(buf, self.out_memory.at(self.out_at(index, at)), Tag::new(0)).await;
        let buf = put.map_err(|error| OutputError::write(output.name(), at, &as_io(&error)))?;
        let note = self.note(index);
        lock(&self.state).put[note] = true;
        self.changed.notify_all();
        Ok(buf)
    }

    /// Where the output's byte `at`, which is in unit `index`, lies in memory.
    fn out_at(&self, index: u64, at: u64) -> u64 {
        let (filling, buffer) = self.place(index);
        let start = filling * self.layout.buffer_units * self.plan.block_bytes;
        buffer * self.layout.out_bytes + (at - start)
    }

    /// The reader: fills buffers in turn until the input's end, a fault, or
    /// the unit from which on nothing is wanted.
    pub(super) fn read(&self, io: &mut HostIo) {
        let mut filling = 0;
        while let Some(first) = self.first(filling)
            && self.wait_until_free(filling, first.index)
            && self.fill(io, filling, first)
        {
            filling += 1;
        }
    }

    /// Waits until all that was in the buffer has been got.
    fn wait_until_free(&self, filling: u64, first_index: u64) -> bool {
        if filling < self.layout.buffers {
            return true;
        }
        let buffer = (filling % self.layout.buffers) as usize;
        let mut state = lock(&self.state);
        while state.stop_from > first_index {
            if state.got[buffer] == self.layout.buffer_units {
                state.got[buffer] = 0;
                return true;
            }
            state = self.wait(state);
        }
        false
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills a buffer; units pass as they come. `false` if reading ends here.
    fn fill(&self, io: &mut HostIo, filling: u64, first: Piece) -> bool {
        let (start, buffer) = (first.start(), filling % self.layout.buffers);
        let units = first.index..first.index + self.layout.buffer_units;
        let pieces = || units.clone().map_while(|index| self.plan.piece(index));
        let end = |piece: Piece| piece.start() + piece.len() as u64 - start;
        let len = pieces().last().map_or(0, end);
        let (mut filled, mut fault) = (0, None);
        for piece in pieces() {
            if lock(&self.state).stop_from <= piece.index {
                return false;
            }
            if filled < end(piece) && fault.is_none() {
                let until = (filled + READ_BYTES).min(len).max(end(piece));
                let (offset, at) = (start + filled, buffer * self.layout.in_bytes + filled);
                let started = Instant::now();
                let (file, bytes) = (self.input.file(), (until - filled) as usize);
                match self.in_memory.read_from(io, file, offset, at, bytes) {
                    Ok(()) => filled = until,
                    Err(found) => {
                        filled = found.offset.saturating_sub(start);
                        fault = Some(found);
                    }
                }
                self.clock.read.add_since(started);
            }
            let Some(found) = fault.as_ref().filter(|_| filled < end(piece)) else {
                self.read.open_until(piece.index + 1);
                continue;
            };
            // Whoever takes this unit tells, so that what failed before it is told first.
            let error = read_error(self.input, piece, found);
            lock(&self.state).fault = Some((piece.index, error));
            self.read.open_until(piece.index + 1);
            return false;
        }
        true
    }

    /// The writer: writes units in their order, as they come.
    pub(super) fn write(&self, io: &mut HostIo) -> Result<(), Failure> {
        let (Some(output), Some(body_bytes)) = (self.output, self.plan.body_bytes()) else {
            return Ok(());
        };
        let block_bytes = self.plan.block_bytes;
        let mut next = 0;
        while let Some(until) = self.wait_until_put(next) {
            let offset = next * block_bytes;
            let len = until.saturating_mul(block_bytes).min(body_bytes) - offset;
            let started = Instant::now();
            let at = self.out_at(next, offset);
            let written = self.out_memory.write_to(io, output.file(), offset, at, len as usize);
            self.clock.write.add_since(started);
            written.map_err(|fault| {
                let unit = fault.offset / block_bytes;
                Failure::of(unit)(OutputError::write(
                    output.name(),
                    unit * block_bytes,
                    &fault.error,
                ))
            })?;
            next = until;
            // The buffer is free once its last unit is written.
            let (filling, _) = self.place(next);
            let fillings = filling + self.layout.buffers;
            self.room.open_until(fillings.saturating_mul(self.layout.buffer_units) - 1);
        }
        Ok(())
    }

    /// The end of the units from `next` on that lie in one buffer and are put;
    /// waits for the first. `None` at the output's end, or if it will not come.
    fn wait_until_put(&self, next: u64) -> Option<u64> {
        let (filling, _) = self.place(next);
        let end = ((filling + 1) * self.layout.buffer_units).min(self.plan.units.unwrap_or(0));
        let mut state = lock(&self.state);
        while next < end && state.stop_from > next {
            let until = (next..end).find(|unit| !state.put[self.note(*unit)]).unwrap_or(end);
            if until > next {
                (next..until).for_each(|unit| state.put[self.note(unit)] = false);
                return Some(until);
            }
            state = self.wait(state);
        }
        None
    }

    /// Unit `index` failed: it and those after it are not wanted any more.
    pub(super) fn close_from(&self, index: u64) {
        let mut state = lock(&self.state);
        state.stop_from = state.stop_from.min(index);
        drop(state);
        self.changed.notify_all();
        self.read.close_from(index.saturating_add(1));
        self.room.close_from(index);
    }
}
