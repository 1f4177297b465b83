//! Effective addresses: what lies outside the local store.

use std::fmt;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::{Add, Range};
use std::sync::Arc;

use crate::arena::Arena;
use crate::engine::copy::{copy_racing, zero_racing};
use crate::engine::host::{HostFault, HostIo};
use crate::queue::Direction;

/// A memory range lent for the length of a run, or an open file's range.
///
/// A writable region is only copied to and from, never lent as a reference.
pub struct Region<'env> {
    pub(crate) kind: Kind,
    len_bytes: u64,
    lent: PhantomData<&'env mut [u8]>,
    /// Keeps memory mapped that is the region's own.
    own: Option<Arena>,
}

pub(crate) enum Kind {
    /// Others may write what is `racing` at any time, as all may what is writable.
    Memory {
        start: *mut u8,
        writable: bool,
        racing: bool,
    },
    File(FileRange),
}

/// A byte range of an open file.
#[derive(Clone)]
pub(crate) struct FileRange {
    pub(crate) file: Arc<File>,
    pub(crate) start: u64,
    /// Offsets, lengths and addresses must be multiples of this (1: buffered).
    pub(crate) align_bytes: u64,
    pub(crate) name: Arc<str>,
}

// SAFETY: the raw pointer stands for a borrow of `u8` that lives as long as
// 'env; all access copies bytes through `engine::memory`, whose copies of
// writable regions are not optimized on the assumption of exclusive access.
unsafe impl Send for Region<'_> {}
// SAFETY: as above.
unsafe impl Sync for Region<'_> {}

impl<'env> Region<'env> {
    /// Memory to get from.
    #[must_use]
    pub fn memory(bytes: &'env [u8]) -> Self {
        let kind =
            Kind::Memory { start: bytes.as_ptr().cast_mut(), writable: false, racing: false };
        Self { kind, len_bytes: bytes.len() as u64, lent: PhantomData, own: None }
    }

    /// Memory to get from and put to. Accelerators that put to overlapping
    /// ranges at the same time leave some mixture of their bytes there.
    #[must_use]
    pub fn memory_mut(bytes: &'env mut [u8]) -> Self {
        let kind = Kind::Memory { start: bytes.as_mut_ptr(), writable: true, racing: true };
        Self { kind, len_bytes: bytes.len() as u64, lent: PhantomData, own: None }
    }

    /// Main memory of its own, zeroed, to get from and put to. Pages that nobody
    /// touches take no room. Host threads fill it from files and drain it to
    /// files ([`Region::read_from`], [`Region::write_to`]) beside the accelerators.
    ///
    /// # Errors
    /// What the kernel answers where so much cannot be mapped.
    pub fn staging(len_bytes: usize) -> io::Result<Region<'static>> {
        let arena = Arena::new(len_bytes)?;
        let kind = Kind::Memory { start: arena.start().as_ptr(), writable: true, racing: true };
        let len_bytes = len_bytes as u64;
        Ok(Region { kind, len_bytes, lent: PhantomData, own: Some(arena) })
    }

    /// Memory that is only read here, and written by others at any time.
    ///
    /// # Safety
    /// `len_bytes` bytes at `start` stay readable for 'env.
    pub(crate) unsafe fn watched(start: *const u8, len_bytes: usize) -> Region<'env> {
        let kind = Kind::Memory { start: start.cast_mut(), writable: false, racing: true };
        Region { kind, len_bytes: len_bytes as u64, lent: PhantomData, own: None }
    }

    /// Staging in huge pages, or not: an advice, which the kernel may not follow.
    #[must_use]
    pub fn in_huge_pages(self, wanted: bool) -> Self {
        if let Some(arena) = &self.own {
            arena.advise_huge_pages(wanted);
        }
        self
    }

    /// Bytes `range` of a file, through the page cache. `name` appears in errors.
    #[must_use]
    pub fn file(file: Arc<File>, range: Range<u64>, name: &str) -> Self {
        Self::direct_file(file, range, name, 1)
    }

    /// Bytes `range` of a file opened for direct I/O, where transfers must be
    /// aligned to `align_bytes`: a get is widened to that, and its buffer's view
    /// set to the bytes asked for; a put must be aligned.
    #[must_use]
    pub fn direct_file(file: Arc<File>, range: Range<u64>, name: &str, align_bytes: u64) -> Self {
        let len_bytes = range.end.saturating_sub(range.start);
        let align_bytes = align_bytes.clamp(1, 1 << 30).next_power_of_two();
        let kind =
            Kind::File(FileRange { file, start: range.start, align_bytes, name: name.into() });
        Self { kind, len_bytes, lent: PhantomData, own: None }
    }

    /// The region's length in bytes.
    #[must_use]
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The effective address `offset` bytes into the region. Addresses are
    /// checked when they are used, not when they are made.
    #[must_use]
    #[inline]
    pub fn at(&'env self, offset: u64) -> Ea<'env> {
        Ea { region: self, offset }
    }

    /// A host-issued transfer: fills `len` bytes, `at` bytes into writable memory,
    /// from `file` at `offset`. Accelerators that get them meanwhile see a
    /// mixture of old and new ones.
    ///
    /// # Errors
    /// What fails, and where in the file; a place that is no such memory.
    pub fn read_from(
        &self,
        io: &mut HostIo,
        file: &File,
        offset: u64,
        at: u64,
        len: usize,
    ) -> Result<(), HostFault> {
        self.host_transfer(Direction::Get, io, file, offset, at, len)
    }

    /// A host-issued transfer: writes `len` bytes, `at` bytes into writable
    /// memory, to `file` at `offset`.
    ///
    /// # Errors
    /// As [`Region::read_from`].
    pub fn write_to(
        &self,
        io: &mut HostIo,
        file: &File,
        offset: u64,
        at: u64,
        len: usize,
    ) -> Result<(), HostFault> {
        self.host_transfer(Direction::Put, io, file, offset, at, len)
    }

    fn host_transfer(
        &self,
        direction: Direction,
        io: &mut HostIo,
        file: &File,
        offset: u64,
        at: u64,
        len: usize,
    ) -> Result<(), HostFault> {
        let memory = self.writable(at, len).map_err(|error| HostFault { offset, error })?;
        // SAFETY: the range is the region's, whose memory is its own or lent for
        // 'env; others only make racing copies of it.
        unsafe { io.transfer(direction, file, offset, memory, len) }
    }

    /// The host's copy of `bytes` into writable memory, `at` bytes into it.
    ///
    /// # Errors
    /// A place that is no such memory.
    pub fn fill(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let memory = self.writable(at, bytes.len())?;
        // SAFETY: the range is the region's; a shared borrow of other memory does
        // not overlap what is only copied to and from.
        unsafe { copy_racing(bytes.as_ptr(), memory, bytes.len()) };
        Ok(())
    }

    /// The host's copy of memory, from `at` bytes into it, to `bytes`.
    ///
    /// # Errors
    /// A place that is no memory.
    pub fn drain(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (memory, _) = self.readable(at, bytes.len())?;
        // SAFETY: as above.
        unsafe { copy_racing(memory, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Makes `len` bytes of staging zeros, `at` bytes into it, and gives back
    /// the pages that hold nothing else. Who copies them meanwhile gets old
    /// bytes and zeros.
    ///
    /// # Errors
    /// A place that is no such memory.
    pub fn discard(&self, at: u64, len: usize) -> io::Result<()> {
        let start = self.writable(at, len)?;
        let Some(arena) = &self.own else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{self:?} is lent")));
        };
        let (first, page) = (at as usize, rustix::param::page_size());
        let end = first + len;
        let pages = first.next_multiple_of(page).min(end)..(end - end % page).max(first);
        let pages = pages.start..pages.end.max(pages.start);
        // SAFETY: the range is the region's, which nobody has references to: it
        // is only copied to and from.
        unsafe {
            zero_racing(start, pages.start - first);
            zero_racing(start.wrapping_add(pages.end - first), end - pages.end);
            if arena.discard(pages.clone()).is_err() {
                zero_racing(start.wrapping_add(pages.start - first), pages.len());
            }
        }
        Ok(())
    }

    /// Where `len` bytes of writable memory are, `at` bytes into it.
    fn writable(&self, at: u64, len: usize) -> io::Result<*mut u8> {
        match self.kind {
            Kind::Memory { start, writable: true, .. } if self.at_of(at).holds(len) => {
                Ok(start.wrapping_add(at as usize))
            }
            _ => Err(self.no_memory("writable ", at, len)),
        }
    }

    /// Where `len` bytes of memory are, `at` bytes into it, and whether others
    /// may write there.
    #[inline]
    pub(crate) fn readable(&self, at: u64, len: usize) -> io::Result<(*const u8, bool)> {
        match self.kind {
            Kind::Memory { start, racing, .. } if self.at_of(at).holds(len) => {
                Ok((start.wrapping_add(at as usize).cast_const(), racing))
            }
            _ => Err(self.no_memory("", at, len)),
        }
    }

    /// As `at`, for as long as the region is borrowed.
    #[inline]
    fn at_of(&self, offset: u64) -> Ea<'_> {
        Ea { region: self, offset }
    }

    #[cold]
    fn no_memory(&self, what: &str, at: u64, len: usize) -> io::Error {
        let what = format!("{len} bytes at {at} are no {what}memory of {self:?}");
        io::Error::new(io::ErrorKind::InvalidInput, what)
    }

    pub(crate) fn name(&self) -> &str {
        match &self.kind {
            Kind::Memory { .. } => "memory",
            Kind::File(range) => &range.name,
        }
    }
}

impl fmt::Debug for Region<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}, {} bytes)", self.name(), self.len_bytes)
    }
}

/// An effective address: a place in a [`Region`].
#[derive(Clone, Copy, Debug)]
pub struct Ea<'env> {
    pub(crate) region: &'env Region<'env>,
    pub(crate) offset: u64,
}

impl Ea<'_> {
    /// Bytes from the region's start.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether `len` bytes from here lie in the region.
    #[inline]
    pub(crate) fn holds(&self, len: usize) -> bool {
        let room = self.region.len_bytes.wrapping_sub(self.offset);
        self.offset <= self.region.len_bytes && len as u64 <= room
    }
}

impl Add<u64> for Ea<'_> {
    type Output = Self;
    #[inline]
    fn add(self, bytes: u64) -> Self {
        Self { offset: self.offset.saturating_add(bytes), ..self }
    }
}

/// A slice in main memory to be read at irregular places, by
/// [`Cx::load`](crate::Cx::load).
#[derive(Debug)]
pub struct Lent<'env, T> {
    items: &'env [T],
}

impl<T> Clone for Lent<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Lent<'_, T> {}

impl<'env, T> Lent<'env, T> {
    /// Lends `items`.
    #[must_use]
    pub fn new(items: &'env [T]) -> Self {
        Self { items }
    }

    /// The slice itself.
    #[must_use]
    #[inline]
    pub fn items(&self) -> &'env [T] {
        self.items
    }

    #[inline]
    pub(crate) fn len_bytes(&self) -> u64 {
        std::mem::size_of_val(self.items) as u64
    }
}
