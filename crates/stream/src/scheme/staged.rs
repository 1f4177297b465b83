//! Memory that host threads fill and drain while accelerators transfer from
//! and to it: schemes 4, 6 and staged. The reader's and the writer's status
//! locations are gates: a unit passes once it is read, or has room.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use accel::{Buf, Cx, HostIo, Region, Tag};
use storage::{Input, InputError, Kind, Output, OutputError, SequentialWriter};

use super::assisted::read_error;
use super::host::Clock;
use super::{PIPE_BYTES, Staging};
use crate::error::{Failure, StreamError, as_io};
use crate::gate::{Gate, lock};
use crate::plan::{Piece, Plan, PlanError};
use crate::source::Window;

/// The reader reads so much at once, unless a unit is longer or a buffer ends.
const READ_BYTES: u64 = 1 << 18;

/// Buffers in turn between files and accelerators.
pub(crate) struct Staged<'j> {
    plan: &'j Plan,
    pub(super) layout: &'j Staging,
    input: &'j Input,
    output: Option<&'j Output>,
    /// Of an input that is a pipe.
    window: Option<Mutex<Window<'static>>>,
    in_memory: Region<'static>,
    out_memory: Region<'static>,
    /// Lets unit `index` through as its turn `index + 1`: once it is read.
    read: Gate,
    /// Lets through what has a place for output.
    room: Gate,
    state: Mutex<State>,
    changed: Condvar,
    pub(super) clock: Clock,
}

struct State {
    /// Units got from each buffer since it was filled.
    got: Vec<u64>,
    /// Of a pipe: the unit in each buffer.
    came: Vec<Option<Piece>>,
    /// What is put and not written, for each place.
    put: Vec<Option<Put>>,
    /// Places given out to what a rewrite made.
    places: u64,
    /// From this unit on nothing is wanted.
    stop_from: u64,
    /// All that will be put is.
    all_is_put: bool,
    /// What the reader ran into, told to whoever has that unit.
    fault: Option<(u64, StreamError)>,
}

/// What lies in a place for output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Put {
    unit: u64,
    len: usize,
}

impl<'j> Staged<'j> {
    pub(super) fn new(
        plan: &'j Plan,
        layout: &'j Staging,
        input: &'j Input,
        output: Option<&'j Output>,
    ) -> Result<Self, PlanError> {
        let map = |count: u64, each: u64| {
            let bytes = count.saturating_mul(each);
            let mapped = usize::try_from(bytes).map_err(|_| std::io::ErrorKind::OutOfMemory.into());
            mapped.and_then(Region::staging).map_err(|error| PlanError::Scheme {
                scheme: plan.scheme,
                why: format!("{bytes} bytes of memory cannot be had: {error}"),
                cure: "take --scheme direct",
            })
        };
        let out_slots = if output.is_some() { layout.out_slots } else { 0 };
        let in_memory = map(layout.buffers, layout.in_bytes)?;
        let out_memory = map(out_slots, layout.out_bytes)?;
        // Memory was mapped for more bytes than that.
        let state = State {
            got: vec![0; layout.buffers as usize],
            came: vec![None; if plan.units.is_none() { layout.buffers as usize } else { 0 }],
            put: vec![None; out_slots as usize],
            places: 0,
            stop_from: u64::MAX,
            all_is_put: false,
            fault: None,
        };
        let window = plan.units.is_none().then(|| Mutex::new(Window::of(input, plan.cut)));
        let (read, room, changed, clock) = Default::default();
        let staged = Self {
            plan,
            layout,
            input,
            output,
            window,
            in_memory,
            out_memory,
            read,
            room,
            state: Mutex::new(state),
            changed,
            clock,
        };
        staged.room.open_until(layout.out_slots.saturating_sub(1));
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

    fn slot(&self, place: u64) -> usize {
        (place % self.layout.out_slots) as usize
    }

    pub(super) async fn get<'env>(
        &'env self,
        cx: &Cx<'env>,
        index: u64,
        buf: Buf,
    ) -> Result<(Buf, Option<Piece>), Failure> {
        let known = self.plan.piece(index);
        if known.is_none() && self.window.is_none() {
            return Ok((buf, None));
        }
        let started = Instant::now();
        let turn = self.read.turn(index + 1).await;
        self.clock.wait.add_since(started);
        if !turn {
            return Ok((buf, None));
        }
        let (filling, buffer) = self.place(index);
        let piece = {
            let mut state = lock(&self.state);
            if let Some((_, error)) = state.fault.take_if(|(unit, _)| *unit == index) {
                return Err(Failure::of(index)(error));
            }
            known.or_else(|| state.came.get_mut(buffer as usize)?.take())
        };
        let Some(piece) = piece else { return Ok((buf, None)) };
        let start = self.first(filling).map_or(piece.start(), |first| first.start());
        let at = buffer * self.layout.in_bytes + (piece.start() - start);
        let got = cx.get(buf, self.in_memory.at(at), piece.len(), Tag::new(0)).await;
        let buf = got.map_err(|error| {
            let told = InputError::read(self.input.name(), piece.start(), &as_io(&error));
            Failure::of(index)(told)
        })?;
        let mut state = lock(&self.state);
        state.got[buffer as usize] += 1;
        if state.got[buffer as usize] == self.layout.buffer_units {
            self.changed.notify_all();
        }
        drop(state);
        Ok((buf, Some(piece)))
    }

    /// Gives out the places for output in the order of the calls.
    pub(super) fn next_place(&self) -> u64 {
        let mut state = lock(&self.state);
        state.places += 1;
        state.places - 1
    }

    pub(super) async fn put<'env>(
        &'env self,
        cx: &Cx<'env>,
        (unit, place): (u64, u64),
        at: u64,
        buf: Buf,
    ) -> Result<Buf, OutputError> {
        let Some(output) = self.output else { return Ok(buf) };
        let started = Instant::now();
        let turn = self.room.turn(place).await;
        self.clock.wait.add_since(started);
        if !turn {
            return Ok(buf);
        }
        let (slot, len) = (self.slot(place), buf.len());
        let put = cx.put(buf, self.out_memory.at(self.out_at(slot)), Tag::new(0)).await;
        let buf = put.map_err(|error| OutputError::write(output.name(), at, &as_io(&error)))?;
        lock(&self.state).put[slot] = Some(Put { unit, len });
        self.changed.notify_all();
        Ok(buf)
    }

    /// Where a place for output lies in memory.
    fn out_at(&self, slot: usize) -> u64 {
        slot as u64 * self.layout.out_bytes
    }

    /// The reader: fills buffers in turn until the input's end, a fault, or
    /// the unit from which on nothing is wanted.
    pub(super) fn read(&self, io: &mut HostIo) {
        if let Some(window) = &self.window {
            return self.read_pipe(&mut lock(window));
        }
        let mut filling = 0;
        while let Some(first) = self.first(filling)
            && self.wait_until_free(filling, first.index)
            && self.fill(io, filling, first)
        {
            filling += 1;
        }
    }

    /// The reader of a pipe: a unit for each buffer.
    fn read_pipe(&self, window: &mut Window<'_>) {
        let mut unit = vec![0; self.layout.in_bytes as usize];
        for index in 0.. {
            let buffer = index % self.layout.buffers;
            if !self.wait_until_free(index, index) {
                return;
            }
            let started = Instant::now();
            let filled = window.fill(self.plan.block_bytes as usize, &mut unit);
            self.clock.read.add_since(started);
            let came = filled.and_then(|piece| {
                let Some(piece) = piece else { return Ok(None) };
                let at = buffer * self.layout.in_bytes;
                let copied = self.in_memory.fill(at, &unit[..piece.len()]);
                copied.map_err(|error| {
                    let told = InputError::read(self.input.name(), piece.start(), &error);
                    Failure::of(index)(told)
                })?;
                Ok(Some(piece))
            });
            match came {
                Ok(Some(piece)) => lock(&self.state).came[buffer as usize] = Some(piece),
                Ok(None) => return self.read.close_from(index + 1),
                Err(Failure { error, .. }) => {
                    // Whoever takes this unit tells, as below.
                    lock(&self.state).fault = Some((index, error));
                    return self.read.open_until(index + 1);
                }
            }
            self.read.open_until(index + 1);
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
            let error = read_error(self.input, piece, found).into();
            lock(&self.state).fault = Some((piece.index, error));
            self.read.open_until(piece.index + 1);
            return false;
        }
        true
    }

    /// The writer: writes what is put in its order, as it comes.
    pub(super) fn write(&self, io: &mut HostIo) -> Result<(), Failure> {
        let Some(output) = self.output else { return Ok(()) };
        let mut pipe = (output.kind() == Kind::Stream).then(|| output.sequential());
        let (mut next, mut offset) = (0, 0);
        while let Some((places, len)) = self.wait_until_put(next) {
            let slot = self.slot(next);
            let started = Instant::now();
            let written = match &mut pipe {
                Some(writer) => {
                    self.append(output.name(), writer, slot, len).map_err(|error| (slot, error))
                }
                None => {
                    let (file, at) = (output.file(), self.out_at(slot));
                    let written = self.out_memory.write_to(io, file, offset, at, len);
                    written.map_err(|fault| {
                        let done = (fault.offset - offset) / self.layout.out_bytes;
                        let from = offset + done * self.layout.out_bytes;
                        let error = OutputError::write(output.name(), from, &fault.error);
                        (slot + done as usize, error)
                    })
                }
            };
            self.clock.write.add_since(started);
            if let Err((slot, error)) = written {
                self.room.close_from(next);
                let unit = lock(&self.state).put[slot].map_or(0, |put| put.unit);
                return Err(Failure::of(unit)(error));
            }
            lock(&self.state).put[slot..slot + places as usize].fill(None);
            (next, offset) = (next + places, offset + len as u64);
            self.room.open_until(next.saturating_add(self.layout.out_slots) - 1);
        }
        Ok(())
    }

    /// Appends what lies from a place on.
    fn append(
        &self,
        name: &str,
        writer: &mut SequentialWriter,
        slot: usize,
        len: usize,
    ) -> Result<(), OutputError> {
        let mut some = vec![0; PIPE_BYTES.min(len)];
        for done in (0..len).step_by(PIPE_BYTES) {
            let some = &mut some[..PIPE_BYTES.min(len - done)];
            let copied = self.out_memory.drain(self.out_at(slot) + done as u64, some);
            copied.map_err(|error| OutputError::write(name, writer.offset(), &error))?;
            writer.write_all(some)?;
        }
        Ok(())
    }

    /// How many places from `next` on are put and lie side by side, and their
    /// bytes; waits for the first. `None` at the output's end, or if it will not come.
    fn wait_until_put(&self, next: u64) -> Option<(u64, usize)> {
        let slot = self.slot(next);
        let mut state = lock(&self.state);
        while state.stop_from > 0 {
            let (mut places, mut len) = (0, 0);
            let side_by_side = state.put[slot..].iter().take(self.layout.buffer_units as usize);
            // A unit that failed may have been put before that showed.
            let is_wanted = |put: &&Put| put.unit < state.stop_from;
            for put in side_by_side.map_while(|put| put.as_ref().filter(is_wanted)) {
                // Behind one that is not full there is a gap.
                if len as u64 != places * self.layout.out_bytes {
                    break;
                }
                (places, len) = (places + 1, len + put.len);
            }
            if places > 0 {
                return Some((places, len));
            }
            if state.all_is_put {
                return None;
            }
            state = self.wait(state);
        }
        None
    }

    /// The accelerators have ended.
    pub(super) fn no_more_is_put(&self) {
        lock(&self.state).all_is_put = true;
        self.changed.notify_all();
    }

    /// Unit `index` failed: it and those after it are not wanted any more.
    pub(super) fn close_from(&self, index: u64) {
        let mut state = lock(&self.state);
        state.stop_from = state.stop_from.min(index);
        drop(state);
        self.changed.notify_all();
        self.read.close_from(index.saturating_add(1));
        // What a rewrite puts is not numbered by units; it comes in their order.
        if self.plan.out_bytes == 0 {
            self.room.close_from(index);
        }
    }

    /// Nothing is wanted any more.
    pub(super) fn end(&self) {
        self.close_from(0);
        self.room.close_from(0);
    }
}
