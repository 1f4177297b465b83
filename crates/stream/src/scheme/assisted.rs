//! The accelerators' calls, served by the host one at a time: schemes 1 to 3.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use accel::{Buf, Direction, HandedOver, HostFault, HostIo};
use storage::{Input, InputError, Kind, Output, OutputError, SequentialWriter};

use super::ahead::Ahead;
use super::host::Clock;
use super::{SCRATCH_BYTES, When};
use crate::error::Failure;
use crate::gate::lock;
use crate::plan::{Piece, Plan};
use crate::source::Window;

/// A host that serves calls.
pub(crate) struct Assisted<'j> {
    plan: &'j Plan,
    input: &'j Input,
    output: Option<&'j Output>,
    pub(super) prefetch: Option<When>,
    /// Of an input that is a pipe.
    pipe: Option<Pipe>,
    /// To an output that is a pipe, and why that failed.
    writer: Option<Mutex<SequentialWriter>>,
    write_error: Mutex<Option<OutputError>>,
    calls: Mutex<Calls>,
    came: Condvar,
    /// What the host and the calls took.
    pub(super) clock: Clock,
    /// What of that the host was busy with calls.
    pub(super) served: Clock,
}

/// An input that has an order and no offsets.
struct Pipe {
    window: Mutex<Window<'static>>,
    ahead: Option<Arc<Ahead>>,
    /// The units that calls got, by the calls' numbers; at most one of each thread.
    got: Mutex<BTreeMap<u64, Result<Option<Piece>, Failure>>>,
}

impl Pipe {
    fn new(plan: &Plan, input: &Input, is_ahead: bool) -> Self {
        let ahead = is_ahead.then(|| Arc::new(Ahead::new(input.sequential())));
        let window = match ahead.clone() {
            Some(ahead) => Window::new(Box::new(move |buf| ahead.fill(buf)), plan.cut),
            None => Window::of(input, plan.cut),
        };
        Self { window: Mutex::new(window), ahead, got: Mutex::default() }
    }
}

#[derive(Default)]
struct Calls {
    /// At most one of each thread.
    waiting: VecDeque<Call>,
    ended: bool,
}

struct Call {
    direction: Direction,
    buf: HandedOver,
    /// In the file; of a pipe's gets the number.
    offset: u64,
}

impl<'j> Assisted<'j> {
    pub(super) fn new(
        plan: &'j Plan,
        input: &'j Input,
        output: Option<&'j Output>,
        prefetch: Option<When>,
    ) -> Self {
        let is_ahead = prefetch == Some(When::Beside);
        let pipe = plan.units.is_none().then(|| Pipe::new(plan, input, is_ahead));
        let writer = output.filter(|output| output.kind() == Kind::Stream);
        let writer = writer.map(|output| Mutex::new(output.sequential()));
        let (write_error, calls, came, clock, served) = Default::default();
        Self {
            plan,
            input,
            output,
            prefetch,
            pipe,
            writer,
            write_error,
            calls,
            came,
            clock,
            served,
        }
    }

    /// Whether puts must be called in the order of the output.
    pub(super) fn writes_in_order(&self) -> bool {
        self.writer.is_some()
    }

    /// Hands a buffer over and waits until it comes back.
    async fn call(
        &self,
        direction: Direction,
        buf: Buf,
        offset: u64,
    ) -> (Buf, Result<(), HostFault>) {
        let started = Instant::now();
        let (handed, back) = buf.hand_over();
        self.enqueue(Call { direction, buf: handed, offset });
        let came_back = back.await;
        self.clock.wait.add_since(started);
        came_back
    }

    /// Of a host that has ended the buffer comes back at once.
    fn enqueue(&self, call: Call) {
        let mut calls = lock(&self.calls);
        if !calls.ended {
            calls.waiting.push_back(call);
            self.came.notify_one();
        }
    }

    pub(super) async fn get(
        &self,
        index: u64,
        mut buf: Buf,
    ) -> Result<(Buf, Option<Piece>), Failure> {
        let Some(pipe) = &self.pipe else {
            let Some(piece) = self.plan.piece(index) else { return Ok((buf, None)) };
            buf.set_view(0..piece.len());
            let (buf, got) = self.call(Direction::Get, buf, piece.start()).await;
            got.map_err(|fault| Failure::of(index)(read_error(self.input, piece, &fault)))?;
            return Ok((buf, Some(piece)));
        };
        buf.set_view(0..buf.capacity_bytes());
        let (mut buf, called) = self.call(Direction::Get, buf, index).await;
        if let Some(got) = lock(&pipe.got).remove(&index) {
            let piece = got?;
            if let Some(piece) = piece {
                buf.set_view(0..piece.len());
            }
            return Ok((buf, piece));
        }
        match called {
            Err(HostFault { error, .. }) => {
                Err(Failure::of(index)(InputError::read(self.input.name(), 0, &error)))
            }
            Ok(()) => Ok((buf, None)),
        }
    }

    pub(super) async fn put(&self, at: u64, buf: Buf) -> Result<Buf, OutputError> {
        let Some(output) = self.output else { return Ok(buf) };
        let (buf, put) = self.call(Direction::Put, buf, at).await;
        put.map_err(|fault| {
            let known = lock(&self.write_error).take();
            known.unwrap_or_else(|| OutputError::write(output.name(), at, &fault.error))
        })?;
        Ok(buf)
    }

    /// Serves calls, first come first served, until the accelerators have ended.
    pub(super) fn serve(&self, io: &mut HostIo) {
        while let Some(Call { direction, mut buf, offset }) = self.next_call() {
            let started = Instant::now();
            let result = match (direction, &self.pipe, &self.writer, self.output) {
                (Direction::Get, Some(pipe), ..) => {
                    let block_bytes = self.plan.block_bytes as usize;
                    let unit = lock(&pipe.window).fill(block_bytes, buf.bytes_mut());
                    lock(&pipe.got).insert(offset, unit);
                    Ok(())
                }
                (Direction::Get, None, ..) => buf.read_from(io, self.input.file(), offset),
                (Direction::Put, _, Some(writer), _) => self.append(writer, offset, &mut buf),
                (Direction::Put, _, None, Some(output)) => buf.write_to(io, output.file(), offset),
                (Direction::Put, _, None, None) => Ok(()),
            };
            let clock =
                if direction == Direction::Get { &self.clock.read } else { &self.clock.write };
            clock.add_since(started);
            self.served.wait.add_since(started);
            buf.give_back(result);
        }
    }

    fn append(
        &self,
        writer: &Mutex<SequentialWriter>,
        offset: u64,
        buf: &mut HandedOver,
    ) -> Result<(), HostFault> {
        lock(writer).write_all(buf.bytes_mut()).map_err(|error| {
            *lock(&self.write_error) = Some(error);
            HostFault { offset, error: ErrorKind::Other.into() }
        })
    }

    fn next_call(&self) -> Option<Call> {
        let mut calls = lock(&self.calls);
        loop {
            if calls.ended {
                return None;
            }
            if let Some(call) = calls.waiting.pop_front() {
                return Some(call);
            }
            calls = self.came.wait(calls).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// No call is served any more; those that wait go back.
    pub(super) fn end(&self) {
        let waiting = {
            let mut calls = lock(&self.calls);
            calls.ended = true;
            std::mem::take(&mut calls.waiting)
        };
        drop(waiting);
        self.came.notify_all();
        if let Some(ahead) = self.ahead() {
            ahead.end();
        }
    }

    fn ahead(&self) -> Option<&Ahead> {
        self.pipe.as_ref().and_then(|pipe| pipe.ahead.as_deref())
    }

    /// Reads the body, so that the page cache has it, or of a pipe what a buffer
    /// holds. What fails here is told by the call that needs it.
    pub(super) fn read_ahead(&self) {
        if let Some(ahead) = self.ahead() {
            return ahead.read(self.plan.block_bytes);
        }
        let started = Instant::now();
        let mut scratch = vec![0; SCRATCH_BYTES];
        let mut at = self.plan.body.start;
        while at < self.plan.body.end && !lock(&self.calls).ended {
            let len = (self.plan.body.end - at).min(SCRATCH_BYTES as u64) as usize;
            match self.input.file().read_at(&mut scratch[..len], at) {
                Ok(0) => break,
                Ok(bytes) => at += bytes as u64,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.clock.read.add_since(started);
    }
}

/// What went wrong with reading a unit: where the input ends, or the place of
/// the unit that cannot be read.
pub(crate) fn read_error(input: &Input, piece: Piece, fault: &HostFault) -> InputError {
    let ends = fault.error.kind() == ErrorKind::UnexpectedEof;
    let offset = if ends { fault.offset } else { piece.start() };
    InputError::read(input.name(), offset, &fault.error)
}
