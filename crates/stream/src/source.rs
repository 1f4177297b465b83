//! Where a run's units come from: by offset from a file, in order from a stream.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use storage::{InputError, SequentialReader};

use crate::gate::lock;
use crate::kernel::{Cut, Unit};
use crate::plan::Plan;

/// Gives out each unit once, in order.
pub(crate) enum Source {
    /// The input has offsets: a counter is enough, everybody reads for itself.
    Offsets(AtomicU64),
    /// The input is a stream: whoever takes a unit reads it.
    Stream(Mutex<Window>),
}

impl Source {
    /// The next unit of an input with offsets, and its length.
    pub(crate) fn next(&self, plan: &Plan) -> Option<(Unit, usize)> {
        match self {
            Self::Offsets(next) => plan.unit(next.fetch_add(1, Ordering::Relaxed)),
            Self::Stream(_) => None,
        }
    }
}

/// Where a unit's parts lie in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) before: usize,
    pub(crate) data: usize,
    pub(crate) after: usize,
}

/// What a unit of `len` bytes needs around it.
pub(crate) fn surroundings(cut: Cut, unit: &Unit, len: usize) -> Parts {
    let before = (cut.before_bytes as u64).min(unit.body_offset()) as usize;
    let left = unit.body.1 - unit.offset - len as u64;
    Parts { before, data: len, after: (cut.after_bytes as u64).min(left) as usize }
}

/// A stream, and the bytes between two units: the halo before the next one,
/// and what was read ahead for the last one.
pub(crate) struct Window {
    reader: SequentialReader,
    cut: Cut,
    index: u64,
    /// Where the next unit starts.
    offset: u64,
    kept: Vec<u8>,
    kept_before: usize,
}

impl Window {
    pub(crate) fn new(reader: SequentialReader, cut: Cut) -> Self {
        let kept = Vec::with_capacity(cut.before_bytes + cut.after_bytes);
        Self { reader, cut, index: 0, offset: 0, kept, kept_before: 0 }
    }

    /// Reads the next unit of up to `block_bytes` into `buf`, surroundings included.
    pub(crate) fn fill(&mut self, block_bytes: usize, buf: &mut [u8]) -> Result<Option<(Unit, Parts)>, InputError> {
        let before = self.kept_before;
        let kept = self.kept.len();
        let wanted = (before + block_bytes + self.cut.after_bytes).min(buf.len());
        buf[..kept].copy_from_slice(&self.kept);
        let filled = kept + self.reader.fill(&mut buf[kept..wanted])?;
        let data = block_bytes.min(filled - before);
        if data == 0 {
            return Ok(None);
        }
        let parts = Parts { before, data, after: filled - before - data };
        let unit = Unit { index: self.index, offset: self.offset, body: (0, u64::MAX) };
        self.index += 1;
        self.offset += data as u64;
        self.kept_before = self.cut.before_bytes.min(before + data);
        self.kept.clear();
        self.kept.extend_from_slice(&buf[before + data - self.kept_before..filled]);
        Ok(Some((unit, parts)))
    }
}

/// The next unit of a stream; `None` at its end.
pub(crate) fn fill(
    window: &Mutex<Window>,
    plan: &Plan,
    buf: &mut [u8],
) -> Result<Option<(Unit, Parts)>, InputError> {
    lock(window).fill(plan.block_bytes as usize, buf)
}
