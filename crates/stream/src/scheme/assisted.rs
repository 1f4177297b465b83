//! The accelerators' calls, served by the host one at a time: schemes 1 to 3.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use accel::{Buf, Direction, HandedOver, HostFault, HostIo};
use storage::{Input, InputError, Output, OutputError};

use super::host::Clock;
use super::{SCRATCH_BYTES, When};
use crate::gate::lock;
use crate::plan::{Piece, Plan};

/// A host that serves calls.
pub(crate) struct Assisted<'j> {
    plan: &'j Plan,
    input: &'j Input,
    output: Option<&'j Output>,
    pub(super) prefetch: Option<When>,
    calls: Mutex<Calls>,
    came: Condvar,
    /// What the host and the calls took.
    pub(super) clock: Clock,
    /// What of that the host was busy with calls.
    pub(super) served: Clock,
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
    offset: u64,
}

impl<'j> Assisted<'j> {
    pub(super) fn new(
        plan: &'j Plan,
        input: &'j Input,
        output: Option<&'j Output>,
        prefetch: Option<When>,
    ) -> Self {
        let (calls, came, clock, served) = Default::default();
        Self { plan, input, output, prefetch, calls, came, clock, served }
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

    pub(super) async fn get(&self, piece: Piece, mut buf: Buf) -> Result<Buf, InputError> {
        buf.set_view(0..piece.len());
        let (buf, got) = self.call(Direction::Get, buf, piece.start()).await;
        got.map_err(|fault| read_error(self.input, piece, &fault))?;
        Ok(buf)
    }

    pub(super) async fn put(&self, at: u64, buf: Buf) -> Result<Buf, OutputError> {
        let Some(output) = self.output else { return Ok(buf) };
        let (buf, put) = self.call(Direction::Put, buf, at).await;
        put.map_err(|fault| OutputError::write(output.name(), at, &fault.error))?;
        Ok(buf)
    }

    /// Serves calls, first come first served, until the accelerators have ended.
    pub(super) fn serve(&self, io: &mut HostIo) {
        while let Some(Call { direction, mut buf, offset }) = self.next_call() {
            let started = Instant::now();
            let result = match (direction, self.output) {
                (Direction::Get, _) => buf.read_from(io, self.input.file(), offset),
                (Direction::Put, Some(output)) => buf.write_to(io, output.file(), offset),
                (Direction::Put, None) => Ok(()),
            };
            let clock =
                if direction == Direction::Get { &self.clock.read } else { &self.clock.write };
            clock.add_since(started);
            self.served.wait.add_since(started);
            buf.give_back(result);
        }
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
    }

    /// Reads the body, so that the page cache has it. What fails here is told
    /// by the call that needs it.
    pub(super) fn read_ahead(&self) {
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
