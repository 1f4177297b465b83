//! A file that is open.

use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use accel::MappedFile;
use ninep::Qid;
use rustix::io::Errno;

use super::held::Held;
use super::node::UnixNode;
use super::step::{look, told};
use crate::error::{FsError, Kind};
use crate::memory::{FileMemory, Stretch};
use crate::server::{Answer, OpenFile, OpenMode, now};

/// No file goes on after this byte.
pub(crate) const END_MAX: u64 = i64::MAX as u64;

/// Shorter files are not worth a mapping.
const MAPPED_BYTES_MIN: u64 = 1 << 20;
/// Nor is there room for longer ones.
const MAPPED_BYTES_MAX: u64 = 1 << 40;

/// An open file: read by a mapping, "files served by #U are mmap()-ed" (CellFS,
/// section 3), where it is long and whole, else by calls. Written by calls, which
/// the mapping shows.
pub(crate) struct UnixFile {
    node: UnixNode,
    mode: OpenMode,
    bytes: Arc<Bytes>,
}

/// What the file holds.
struct Bytes {
    held: Held,
    /// Made by the first read.
    mapped: OnceLock<Option<MappedFile>>,
}

impl UnixFile {
    pub(super) fn new(node: UnixNode, held: Held, mode: OpenMode) -> Self {
        let bytes = Arc::new(Bytes { held, mapped: OnceLock::new() });
        Self { node, mode, bytes }
    }

    pub(crate) fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, FsError> {
        if !self.mode.read && !self.mode.execute {
            return Err(FsError::new(Kind::BadMode, self.node.name()));
        }
        let held = &self.bytes.held;
        if self.bytes.mapped().is_some_and(|mapped| mapped.read(held, offset, into)) {
            return Ok(into.len());
        }
        let room = usize::try_from(END_MAX.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = into.len().min(room);
        if len == 0 {
            return Ok(0);
        }
        let into = into.get_mut(..len).unwrap_or_default();
        loop {
            match rustix::io::pread(held, &mut *into, offset) {
                Err(Errno::INTR) => {}
                read => return read.map_err(|error| told(&self.node.name(), error)),
            }
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize, FsError> {
        if !self.mode.write {
            return Err(FsError::new(Kind::BadMode, self.node.name()));
        }
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > END_MAX) {
            return Err(FsError::new(Kind::TooLarge, self.node.name()));
        }
        let written = write_all(&self.bytes.held, offset, data);
        self.node.wrote();
        written.map_err(|error| told(&self.node.name(), error))
    }
}

impl Bytes {
    fn mapped(&self) -> Option<&MappedFile> {
        let map = || {
            let seen = look(&self.held, "").ok()?;
            // Reading a hole of a mapping may cost the file system a page.
            let is_whole = seen.stx_blocks.saturating_mul(512) >= seen.stx_size;
            let is_fit = (MAPPED_BYTES_MIN..=MAPPED_BYTES_MAX).contains(&seen.stx_size);
            (is_whole && is_fit).then(|| MappedFile::new(&self.held, seen.stx_size).ok())?
        };
        self.mapped.get_or_init(map).as_ref()
    }
}

impl FileMemory for Bytes {
    /// A cut shows in the copy.
    fn generation(&self) -> u64 {
        0
    }

    fn stretch(&self, offset: u64) -> Stretch<'_> {
        match self.mapped().filter(|mapped| mapped.begin(offset)) {
            Some(mapped) => {
                let region = mapped.region();
                let (len_bytes, generation) = (region.len_bytes() - offset, self.generation());
                Stretch::Bytes { region, at: offset, len_bytes, generation }
            }
            None => Stretch::Elsewhere,
        }
    }

    fn counts(&self, _generation: u64, offset: u64, bytes: &[u8]) -> bool {
        self.mapped().is_some_and(|mapped| mapped.counts(&self.held, offset, bytes))
    }
}

/// How much of `data` could be written; an error if nothing.
fn write_all(file: impl AsFd, offset: u64, data: &[u8]) -> rustix::io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pwrite(&file, rest, offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl OpenFile for UnixFile {
    fn qid(&self) -> Qid {
        match look(&self.bytes.held, "") {
            Ok(seen) => self.node.export.numbers.qid(self.node.path, &seen),
            Err(_) => Qid { path: self.node.path, ..Qid::default() },
        }
    }

    fn read<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> Answer<'a, usize> {
        now(self.read_at(offset, into))
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> Answer<'a, usize> {
        now(self.write_at(offset, data))
    }

    fn memory(&self) -> Option<Arc<dyn FileMemory>> {
        let reads = self.mode.read || self.mode.execute;
        reads.then(|| self.bytes.clone() as Arc<dyn FileMemory>)
    }
}
