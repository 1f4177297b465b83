//! Where a run's units come from: by offset from a file, in order from a stream.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use accel::Region;
use storage::{Input, InputError};

use crate::error::Failure;
use crate::kernel::Cut;
use crate::paths::Path;
use crate::plan::{Piece, Plan};

/// Gives out each unit once, in order.
pub(crate) enum Source {
    /// The input has offsets: a counter is enough, everybody reads, or looks, for itself.
    Offsets { region: Region<'static>, next: AtomicU64 },
    /// The host reads it: see [`Host`](crate::scheme::Host).
    Host { next: AtomicU64 },
    /// The input is a stream: whoever takes a unit reads it.
    Stream(Mutex<Window<'static>>),
}

impl Source {
    pub(crate) fn of(input: &Input, path: &Path, plan: &Plan) -> Self {
        match input.len_bytes() {
            _ if plan.io.is_by_host() => Self::Host { next: AtomicU64::new(0) },
            Some(len) => {
                let start = input.start_bytes();
                let region = path.region(input.file(), start..start + len, input.name());
                Self::Offsets { region, next: AtomicU64::new(0) }
            }
            None => Self::Stream(Mutex::new(Window::of(input, plan.cut))),
        }
    }
}

/// Fills a buffer; fewer bytes only at the end.
pub(crate) type Fill<'r> = Box<dyn FnMut(&mut [u8]) -> Result<usize, InputError> + Send + 'r>;

/// A stream, and the bytes between two units: the halo before the next one,
/// and what was read ahead for the last one.
pub(crate) struct Window<'r> {
    fill: Fill<'r>,
    cut: Cut,
    index: u64,
    /// Where the next unit starts.
    offset: u64,
    kept: Vec<u8>,
    kept_before: usize,
    /// Nothing is read after an end or an error: a FIFO's next writer starts another stream.
    ended: bool,
}

impl<'r> Window<'r> {
    /// Of an input's bytes in their order.
    pub(crate) fn of(input: &Input, cut: Cut) -> Self {
        let mut reader = input.sequential();
        Self::new(Box::new(move |buf| reader.fill(buf)), cut)
    }

    pub(crate) fn new(fill: Fill<'r>, cut: Cut) -> Self {
        let kept = Vec::with_capacity(cut.before_bytes + cut.after_bytes);
        Self { fill, cut, index: 0, offset: 0, kept, kept_before: 0, ended: false }
    }

    /// Reads the next unit of up to `block_bytes` into `buf`, surroundings
    /// included; `None` at the stream's end.
    pub(crate) fn fill(
        &mut self,
        block_bytes: usize,
        buf: &mut [u8],
    ) -> Result<Option<Piece>, Failure> {
        let before = self.kept_before;
        let wanted = (before + block_bytes + self.cut.after_bytes).min(buf.len());
        let filled = self.read(&mut buf[..wanted]).map_err(Failure::of(self.index))?;
        let data = block_bytes.min(filled - before);
        if data == 0 {
            return Ok(None);
        }
        let after = filled - before - data;
        let piece = Piece { index: self.index, offset: self.offset, before, data, after };
        self.index += 1;
        self.offset += data as u64;
        self.kept_before = self.cut.before_bytes.min(before + data);
        self.kept.clear();
        self.kept.extend_from_slice(&buf[before + data - self.kept_before..filled]);
        Ok(Some(piece))
    }

    /// Fills `buf` with what was kept and what comes; fewer bytes only at the end.
    fn read(&mut self, buf: &mut [u8]) -> Result<usize, InputError> {
        let (kept, rest) = buf.split_at_mut(self.kept.len());
        kept.copy_from_slice(&self.kept);
        if self.ended {
            return Ok(kept.len());
        }
        let read = (self.fill)(rest);
        self.ended = !matches!(&read, Ok(bytes) if *bytes == rest.len());
        match read {
            Ok(bytes) => Ok(kept.len() + bytes),
            Err(error) => {
                // What was read ahead for this unit goes with it.
                self.kept.truncate(self.kept_before);
                Err(error)
            }
        }
    }
}
