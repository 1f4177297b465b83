//! The bytes of one file, in segments that stay where they are.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::sync::{Arc, Mutex, OnceLock};

use accel::Region;
use ninep::kind;

use super::account::Account;
use super::lock;
use crate::error::{FsError, Kind};
use crate::memory::{FileMemory, Stretch};
use crate::server::seconds_now;

/// The first segment's length; the next ones are twice as long each.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Those of a class from this one on are all as long, and there are several.
const CLASS_OF_LONGEST: u32 = 10;
/// Segments' lengths double so often.
const CLASSES: usize = 25;
/// A file holds no more: all segments together.
pub(super) const FILE_BYTES_MAX: u64 = SEGMENT_BYTES_MIN * ((1 << CLASSES) - 1);
/// What is charged at once; a longer write that finds no more room is short.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// Segments that hold one are in huge pages where those are wanted.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Reads that a cut of the file disturbs, before one locks cuts out.
const READS_WITHOUT_LOCK: usize = 8;
/// A byte of a map of what is charged stands for so many grains.
const MARKS: u64 = u64::BITS as u64;

/// Memory for part of a file, of which what was written is charged.
struct Segment {
    memory: Region<'static>,
    /// A bit for each grain that was written.
    marks: Box<[AtomicU64]>,
    grain_bytes: u64,
}

/// Segments of one length, made when they are written to.
type Class = OnceLock<Box<[OnceLock<Box<Segment>>]>>;

/// Where a byte lies.
struct At {
    class: usize,
    index: usize,
    segment_bytes: u64,
    inside: u64,
}

impl At {
    #[inline]
    fn of(offset: u64) -> Self {
        let class = (offset / SEGMENT_BYTES_MIN + 1).ilog2();
        let inside = offset - ((1 << class) - 1) * SEGMENT_BYTES_MIN;
        let shift = SEGMENT_BYTES_MIN.ilog2() + class.min(CLASS_OF_LONGEST);
        let segment_bytes = 1 << shift;
        let index = (inside >> shift) as usize;
        Self { class: class as usize, index, segment_bytes, inside: inside & (segment_bytes - 1) }
    }
}

/// The bytes of one file. Reads take no lock; what changes them does.
pub(super) struct Contents {
    classes: [Class; CLASSES],
    length: AtomicU64,
    version: AtomicU32,
    generation: AtomicU64,
    mtime: AtomicU32,
    /// [`ninep::kind`] of the file.
    flags: AtomicU32,
    /// How often it is open.
    pub(super) opens: AtomicU32,
    account: Arc<Account>,
    /// Bytes charged; locked by whoever changes the file.
    changing: Mutex<u64>,
}

impl Contents {
    pub(super) fn new(account: &Arc<Account>) -> Self {
        Self {
            classes: [const { OnceLock::new() }; CLASSES],
            length: AtomicU64::new(0),
            version: AtomicU32::new(0),
            generation: AtomicU64::new(0),
            mtime: AtomicU32::new(seconds_now()),
            flags: AtomicU32::new(0),
            opens: AtomicU32::new(0),
            account: account.clone(),
            changing: Mutex::new(0),
        }
    }

    pub(super) fn length(&self) -> u64 {
        self.length.load(Acquire)
    }

    pub(super) fn version(&self) -> u32 {
        self.version.load(Acquire)
    }

    pub(super) fn mtime(&self) -> u32 {
        self.mtime.load(Relaxed)
    }

    pub(super) fn set_mtime(&self, seconds: u32) {
        self.mtime.store(seconds, Relaxed);
    }

    /// What the file is, of [`ninep::kind`].
    pub(super) fn flags(&self) -> u32 {
        self.flags.load(Relaxed)
    }

    /// Takes them from a mode.
    pub(super) fn set_flags(&self, mode: u32) {
        self.flags.store(mode & !0o777, Relaxed);
    }

    /// After a change, so that nobody takes old bytes for those of the new version.
    fn changed(&self) {
        self.mtime.store(seconds_now(), Relaxed);
        self.version.fetch_add(1, Release);
    }

    /// Who has its memory shall look again.
    pub(super) fn renew(&self) {
        self.generation.fetch_add(1, AcqRel);
        // What is cut off afterwards is zero only for whoever sees the new number.
        fence(Release);
    }

    fn segment(&self, at: &At) -> Option<&Segment> {
        let segments = self.classes.get(at.class)?.get()?;
        segments.get(at.index)?.get().map(|segment| &**segment)
    }

    /// The segment, made if it is not there.
    fn made(&self, at: &At, charged: &mut u64) -> Result<&Segment, FsError> {
        let full = || FsError::new(Kind::NoSpace, "write");
        let class = self.classes.get(at.class).ok_or_else(|| too_large("write"))?;
        if class.get().is_none() {
            let count = 1_usize << (at.class as u32).saturating_sub(CLASS_OF_LONGEST);
            let entry_bytes = size_of::<OnceLock<Box<Segment>>>() as u64;
            self.charge(count as u64 * entry_bytes, charged).ok_or_else(full)?;
            let _ = class.set((0..count).map(|_| OnceLock::new()).collect());
        }
        let places = class.get().and_then(|places| places.get(at.index)).ok_or_else(full)?;
        if places.get().is_none() {
            let huge = self.account.huge_pages && at.segment_bytes >= HUGE_PAGE_BYTES;
            let grain_bytes = if huge { HUGE_PAGE_BYTES } else { self.account.page_bytes };
            let marks = at.segment_bytes.div_ceil(grain_bytes).div_ceil(MARKS);
            let own_bytes = size_of::<Segment>() as u64 + marks * size_of::<u64>() as u64;
            self.charge(own_bytes, charged).ok_or_else(full)?;
            let memory = usize::try_from(at.segment_bytes)
                .map_err(|_| too_large("write"))
                .and_then(|len| Region::staging(len).map_err(|error| FsError::io("write", &error)))?
                .in_huge_pages(huge);
            let marks = (0..marks).map(|_| AtomicU64::new(0)).collect();
            let _ = places.set(Box::new(Segment { memory, marks, grain_bytes }));
        }
        places.get().map(|segment| &**segment).ok_or_else(full)
    }

    fn charge(&self, bytes: u64, charged: &mut u64) -> Option<()> {
        self.account.take(bytes)?;
        *charged += bytes;
        Some(())
    }

    /// Writes `data` at `offset`, or at the end of a file that is for appending.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<usize, FsError> {
        let charged = &mut *lock(&self.changing);
        let length = self.length.load(Relaxed);
        let start = if self.flags() & kind::APPEND != 0 { length } else { offset };
        let end = start.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        end.ok_or_else(|| too_large("write"))?;
        let (mut done, mut failed) = (0, None);
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            match self.write_piece(start + done as u64, rest, charged) {
                Ok(written) => done += written,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if done > 0 {
            self.length.store(length.max(start + done as u64), Release);
            self.changed();
        }
        failed.filter(|_| done == 0).map_or(Ok(done), Err)
    }

    /// Writes the first bytes of `data`, as far as they lie in one piece.
    fn write_piece(&self, start: u64, data: &[u8], charged: &mut u64) -> Result<usize, FsError> {
        let at = At::of(start);
        let len = (data.len() as u64).min(at.segment_bytes - at.inside).min(PIECE_BYTES_MAX);
        let segment = self.made(&at, charged)?;
        let fresh =
            segment.grains(at.inside, at.inside + len).filter(|grain| !segment.is_marked(*grain));
        let bytes = fresh.count() as u64 * segment.grain_bytes;
        self.charge(bytes, charged).ok_or_else(|| FsError::new(Kind::NoSpace, "write"))?;
        segment.grains(at.inside, at.inside + len).for_each(|grain| segment.mark(grain, true));
        let piece = data.get(..len as usize).unwrap_or(data);
        segment.memory.fill(at.inside, piece).map_err(|error| FsError::io("write", &error))?;
        Ok(piece.len())
    }

    /// Reads at `offset`, as much as there is. Waits for nobody but a file that
    /// is cut again and again.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        for _ in 0..READS_WITHOUT_LOCK {
            let generation = self.generation();
            let done = self.copy(offset, into);
            if self.counts(generation, offset, into) {
                return done;
            }
        }
        let _held = lock(&self.changing);
        self.copy(offset, into)
    }

    fn copy(&self, offset: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let most = |len: u64| usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
            let (len, place) = match self.stretch(offset.saturating_add(done as u64)) {
                Stretch::Bytes { region, at, len_bytes, .. } => {
                    (most(len_bytes), Some((region, at)))
                }
                Stretch::Zeros(len_bytes) => (most(len_bytes), None),
                Stretch::End | Stretch::Elsewhere => break,
            };
            let piece = rest.get_mut(..len).unwrap_or_default();
            if place.is_none_or(|(region, at)| region.drain(at, piece).is_err()) {
                piece.fill(0);
            }
            done += len;
        }
        done
    }

    /// Gives it another length: what comes to it is zeros.
    pub(super) fn set_length(&self, length: u64) -> Result<(), FsError> {
        if length > FILE_BYTES_MAX {
            return Err(too_large("wstat"));
        }
        let charged = &mut *lock(&self.changing);
        let before = self.length.swap(length, AcqRel);
        if length < before {
            self.renew();
            self.discard(length, before, charged);
        }
        self.changed();
        Ok(())
    }

    /// Makes `from..to` zeros and gives back what memory it can.
    fn discard(&self, from: u64, to: u64, charged: &mut u64) {
        let mut start = from;
        while start < to {
            let at = At::of(start);
            let len = (to - start).min(at.segment_bytes - at.inside);
            if let Some(segment) = self.segment(&at) {
                let freed = segment.discard(at.inside, at.inside + len);
                self.account.give(freed);
                *charged -= freed;
            }
            start += len;
        }
    }
}

impl Segment {
    /// The grains that `from..to` touches.
    fn grains(&self, from: u64, to: u64) -> std::ops::Range<u64> {
        from / self.grain_bytes..to.div_ceil(self.grain_bytes)
    }

    fn is_marked(&self, grain: u64) -> bool {
        let word = self.marks.get((grain / MARKS) as usize);
        word.is_some_and(|word| word.load(Relaxed) & 1 << (grain % MARKS) != 0)
    }

    fn mark(&self, grain: u64, is_written: bool) {
        if let Some(word) = self.marks.get((grain / MARKS) as usize) {
            let bit = 1 << (grain % MARKS);
            let others = word.load(Relaxed) & !bit;
            word.store(if is_written { others | bit } else { others }, Relaxed);
        }
    }

    /// Makes `from..to`, behind which nothing is, zeros. How many bytes that frees.
    fn discard(&self, from: u64, to: u64) -> u64 {
        let end = to.next_multiple_of(self.grain_bytes).min(self.memory.len_bytes());
        if self.memory.discard(from, (end - from) as usize).is_err() {
            return 0;
        }
        let whole = from.div_ceil(self.grain_bytes)..to.div_ceil(self.grain_bytes);
        let freed = whole.filter(|grain| self.is_marked(*grain));
        freed
            .map(|grain| {
                self.mark(grain, false);
                self.grain_bytes
            })
            .sum()
    }
}

impl FileMemory for Contents {
    fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    fn stretch(&self, offset: u64) -> Stretch<'_> {
        let generation = self.generation();
        let Some(left) = self.length().checked_sub(offset).filter(|left| *left > 0) else {
            return Stretch::End;
        };
        let at = At::of(offset);
        let len_bytes = left.min(at.segment_bytes - at.inside);
        match self.segment(&at) {
            Some(Segment { memory: region, .. }) => {
                Stretch::Bytes { region, at: at.inside, len_bytes, generation }
            }
            None => Stretch::Zeros(len_bytes),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Option<Result<usize, FsError>> {
        Some(Contents::write(self, offset, data))
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        self.account.give(*lock(&self.changing));
    }
}

fn too_large(what: &str) -> FsError {
    FsError::because(
        Kind::TooLarge,
        what,
        format!("a file in memory holds at most {FILE_BYTES_MAX} bytes"),
    )
}
