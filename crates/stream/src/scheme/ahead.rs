//! A pipe that is read ahead of its reader: what scheme 3 has for a page cache.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use storage::{InputError, SequentialReader};

use super::SCRATCH_BYTES;
use crate::gate::lock;

/// Most that is read at once, and most that waits then.
const READ_BYTES_MAX: usize = SCRATCH_BYTES / 4;
const CAME_BYTES_MAX: usize = SCRATCH_BYTES - READ_BYTES_MAX;

/// Bytes between who reads ahead and who fills blocks.
pub(super) struct Ahead {
    reader: Mutex<SequentialReader>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    came: VecDeque<u8>,
    /// Nothing more comes, or is wanted.
    ended: bool,
    /// What reading ran into, behind all that came.
    error: Option<InputError>,
}

impl Ahead {
    pub(super) fn new(reader: SequentialReader) -> Self {
        let came = VecDeque::with_capacity(CAME_BYTES_MAX);
        let state = Mutex::new(State { came, ..State::default() });
        Self { reader: Mutex::new(reader), state, changed: Condvar::new() }
    }

    /// Reads to the end, as far ahead as there is room, up to `block_bytes` at once.
    pub(super) fn read(&self, block_bytes: u64) {
        let mut piece = vec![0; READ_BYTES_MAX.min(block_bytes as usize)];
        let mut reader = lock(&self.reader);
        loop {
            let from = reader.offset();
            let read = reader.fill(&mut piece);
            let bytes = (reader.offset() - from) as usize;
            let mut state = lock(&self.state);
            while !state.ended && state.came.len() + bytes > CAME_BYTES_MAX {
                state = self.wait(state);
            }
            state.came.extend(&piece[..bytes]);
            state.ended |= bytes < piece.len();
            state.error = read.err();
            self.changed.notify_all();
            if state.ended {
                return;
            }
        }
    }

    /// Fills `buf`; fewer bytes only at the end.
    pub(super) fn fill(&self, buf: &mut [u8]) -> Result<usize, InputError> {
        let mut filled = 0;
        let mut state = lock(&self.state);
        while filled < buf.len() {
            if state.came.is_empty() {
                match state.error.take() {
                    Some(error) => return Err(error),
                    None if state.ended => break,
                    None => state = self.wait(state),
                }
                continue;
            }
            let (front, _) = state.came.as_slices();
            let some = front.len().min(buf.len() - filled);
            buf[filled..filled + some].copy_from_slice(&front[..some]);
            state.came.drain(..some);
            filled += some;
            self.changed.notify_all();
        }
        Ok(filled)
    }

    /// No more is wanted.
    pub(super) fn end(&self) {
        lock(&self.state).ended = true;
        self.changed.notify_all();
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}
