//! What is to be sent, and the buffers for it.

use std::collections::VecDeque;
use std::io::IoSlice;

/// Buffers that are kept for the next reads.
const SPARE_MAX: usize = 2;

/// Parts of a queue that are sent by one system call.
const SLICES_MAX: usize = 16;

/// Replies in their order, until they are sent. What was read is not copied to
/// its reply: it stands beside it.
#[derive(Default)]
pub(super) struct Replies {
    parts: VecDeque<Part>,
    /// What is appended to, behind the parts.
    tail: Vec<u8>,
    /// Of the first part.
    sent: usize,
    /// Of all parts, but for those sent.
    part_bytes: usize,
    spare: Vec<Vec<u8>>,
}

/// The beginning of a buffer.
struct Part {
    bytes: Vec<u8>,
    len: usize,
}

impl Part {
    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

impl Replies {
    /// Bytes that are not sent yet.
    pub(super) fn bytes(&self) -> usize {
        self.part_bytes + self.tail.len()
    }

    /// What replies are appended to.
    pub(super) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// Appends the first `len` bytes of `buffer`.
    pub(super) fn append(&mut self, buffer: Vec<u8>, len: usize) {
        self.split();
        let len = len.min(buffer.len());
        self.part_bytes += len;
        self.parts.push_back(Part { bytes: buffer, len });
    }

    /// A buffer of `bytes` or more, whatever is in it.
    pub(super) fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        if buffer.capacity() < bytes {
            // What is new is zero, and not touched before it is read into.
            buffer = vec![0; bytes];
        } else if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        buffer
    }

    /// What is sent next.
    pub(super) fn slices(&mut self) -> Vec<IoSlice<'_>> {
        self.split();
        let mut skip = self.sent;
        let parts = self.parts.iter().take(SLICES_MAX).map(|part| {
            let bytes = part.bytes();
            IoSlice::new(bytes.get(std::mem::take(&mut skip)..).unwrap_or_default())
        });
        parts.collect()
    }

    /// So many bytes were sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.part_bytes -= bytes.min(self.part_bytes);
        self.sent += bytes;
        while self.parts.front().is_some_and(|part| part.len <= self.sent) {
            let Some(part) = self.parts.pop_front() else { return };
            self.sent -= part.len;
            if self.spare.len() < SPARE_MAX {
                self.spare.push(part.bytes);
            }
        }
    }

    /// Makes the tail a part.
    fn split(&mut self) {
        if !self.tail.is_empty() {
            let bytes = std::mem::take(&mut self.tail);
            self.part_bytes += bytes.len();
            self.parts.push_back(Part { len: bytes.len(), bytes });
        }
    }
}
