//! The contents of a changed file: pages that were written, over what the disk holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::memory::{Memory, Share};
use crate::error::{FsError, Kind};
use crate::unix::END_MAX;

/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = 64 << 10;

/// A page's memory grows by so much, so that a short file does not take a whole page.
const GRAIN_BYTES: usize = 4 << 10;

/// Reads what the disk holds at an offset: up to that many bytes.
pub(super) type Base<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<usize, FsError>;

pub(super) struct Pages {
    /// Of the file.
    length: u64,
    /// So much of what the disk holds is still to be seen, where no page was written.
    base_bytes: u64,
    written: BTreeMap<u64, Page>,
}

/// What it does not hold, up to its end, are zeros.
struct Page {
    bytes: Vec<u8>,
    share: Share,
}

impl Pages {
    /// Of a file that has `base_bytes` bytes on the disk.
    pub(super) fn over(base_bytes: u64) -> Self {
        Self { length: base_bytes, base_bytes, written: BTreeMap::new() }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Whether some of it is the disk's.
    pub(super) fn has_base(&self) -> bool {
        self.base_bytes > 0
    }

    pub(super) fn read(&self, at: u64, into: &mut [u8], base: Base<'_>) -> Result<usize, FsError> {
        let left = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX);
        let len = into.len().min(left);
        let into = into.get_mut(..len).unwrap_or_default();
        let mut at = at;
        let mut rest = &mut *into;
        while !rest.is_empty() {
            let (number, within) = place(at);
            let (piece, after) = rest.split_at_mut(rest.len().min(PAGE_BYTES - within));
            match self.written.get(&number) {
                Some(page) => page.copy_to(within, piece),
                None => self.read_base(at, piece, base)?,
            }
            at += piece.len() as u64;
            rest = after;
        }
        Ok(len)
    }

    /// What the disk holds, and zeros after that.
    fn read_base(&self, at: u64, into: &mut [u8], base: Base<'_>) -> Result<(), FsError> {
        let left = usize::try_from(self.base_bytes.saturating_sub(at)).unwrap_or(usize::MAX);
        let (mut rest, zeros) = into.split_at_mut(into.len().min(left));
        zeros.fill(0);
        let mut at = at;
        while !rest.is_empty() {
            match base(at, rest)?.min(rest.len()) {
                // Somebody cut it on the disk.
                0 => {
                    rest.fill(0);
                    break;
                }
                count => {
                    at += count as u64;
                    rest = rest.split_at_mut(count).1;
                }
            }
        }
        Ok(())
    }

    /// How much of `data` was written: less than all if memory ran out.
    pub(super) fn write(
        &mut self,
        at: u64,
        data: &[u8],
        memory: &Arc<Memory>,
        name: &str,
        base: Base<'_>,
    ) -> Result<usize, FsError> {
        if at.checked_add(data.len() as u64).is_none_or(|end| end > END_MAX) {
            return Err(FsError::new(Kind::TooLarge, name));
        }
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            let (number, within) = place(at + done as u64);
            let piece = rest.get(..PAGE_BYTES - within).unwrap_or(rest);
            match self.write_page(number, within, piece, memory, name, base) {
                Ok(()) => done += piece.len(),
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
            self.length = self.length.max(at + done as u64);
        }
        Ok(done)
    }

    fn write_page(
        &mut self,
        number: u64,
        within: usize,
        data: &[u8],
        memory: &Arc<Memory>,
        name: &str,
        base: Base<'_>,
    ) -> Result<(), FsError> {
        let end = within + data.len();
        if let Some(page) = self.written.get_mut(&number) {
            page.grow(end, memory, name)?;
            return page.put(within, data, name);
        }
        let start = number * PAGE_BYTES as u64;
        let on_disk = self.base_bytes.saturating_sub(start).min(PAGE_BYTES as u64) as usize;
        let mut page = Page { bytes: Vec::new(), share: memory.take(name, 0)? };
        page.grow(end.max(on_disk), memory, name)?;
        let is_all_new = within == 0 && end >= on_disk;
        if !is_all_new {
            let old = page.bytes.get_mut(..on_disk).unwrap_or_default();
            self.read_base(start, old, base)?;
        }
        page.put(within, data, name)?;
        self.written.insert(number, page);
        Ok(())
    }

    /// Cuts it, or fills it up with zeros.
    pub(super) fn set_length(&mut self, length: u64) {
        self.length = length;
        self.base_bytes = self.base_bytes.min(length);
        let (number, within) = place(length);
        drop(self.written.split_off(&(number + u64::from(within > 0))));
        if let Some(page) = self.written.get_mut(&number) {
            page.bytes.truncate(within);
        }
    }
}

impl Page {
    fn copy_to(&self, within: usize, into: &mut [u8]) {
        let there = self.bytes.get(within..).unwrap_or_default();
        let (bytes, zeros) = into.split_at_mut(into.len().min(there.len()));
        let there = there.get(..bytes.len()).unwrap_or_default();
        bytes.copy_from_slice(there);
        zeros.fill(0);
    }

    /// Makes it hold `len` bytes, if it does not.
    fn grow(&mut self, len: usize, memory: &Arc<Memory>, name: &str) -> Result<(), FsError> {
        let more = len.saturating_sub(self.bytes.capacity()).next_multiple_of(GRAIN_BYTES);
        if more > 0 {
            self.share.join(memory.take(name, more)?);
            let to_be = self.bytes.capacity() + more;
            let full = |_| FsError::new(Kind::NoSpace, name);
            self.bytes.try_reserve_exact(to_be - self.bytes.len()).map_err(full)?;
        }
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        Ok(())
    }

    fn put(&mut self, within: usize, data: &[u8], name: &str) -> Result<(), FsError> {
        let place = self.bytes.get_mut(within..within + data.len());
        place.ok_or_else(|| FsError::new(Kind::Io, name))?.copy_from_slice(data);
        Ok(())
    }
}

/// The page of an offset, and where it is in there.
fn place(at: u64) -> (u64, usize) {
    (at / PAGE_BYTES as u64, (at % PAGE_BYTES as u64) as usize)
}
