//! Effective addresses: what lies outside the local store.

use std::fmt;
use std::fs::File;
use std::marker::PhantomData;
use std::ops::{Add, Range};
use std::sync::Arc;

/// A memory range lent for the length of a run, or an open file's range.
///
/// A writable region is only copied to and from, never lent as a reference.
pub struct Region<'env> {
    pub(crate) kind: Kind,
    len_bytes: u64,
    lent: PhantomData<&'env mut [u8]>,
}

pub(crate) enum Kind {
    Memory { start: *mut u8, writable: bool },
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
        let kind = Kind::Memory { start: bytes.as_ptr().cast_mut(), writable: false };
        Self { kind, len_bytes: bytes.len() as u64, lent: PhantomData }
    }

    /// Memory to get from and put to. Accelerators that put to overlapping
    /// ranges at the same time leave some mixture of their bytes there.
    #[must_use]
    pub fn memory_mut(bytes: &'env mut [u8]) -> Self {
        let kind = Kind::Memory { start: bytes.as_mut_ptr(), writable: true };
        Self { kind, len_bytes: bytes.len() as u64, lent: PhantomData }
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
        Self { kind, len_bytes, lent: PhantomData }
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
