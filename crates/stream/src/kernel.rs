//! What a kernel is: a function over a block, and how its input may be cut.

use std::ops::Range;

/// How an input may be cut into blocks. One rule covers records, rows with
/// halo and delimited text: blocks start at multiples of `align` bytes from
/// the start of the body, and a kernel may look a little past either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Blocks start at a multiple of this many bytes from the body's start
    /// (record or row size). At least 1.
    pub align_bytes: usize,
    /// Bytes visible before a block (halo), as far as the body reaches.
    pub before_bytes: usize,
    /// Bytes visible after a block (halo), as far as the body reaches.
    pub after_bytes: usize,
}

impl Cut {
    /// Cut anywhere, no halo.
    pub const ANYWHERE: Cut = Cut { align_bytes: 1, before_bytes: 0, after_bytes: 0 };

    /// Cut between records of `bytes` bytes.
    #[must_use]
    pub const fn records(bytes: usize) -> Cut {
        Cut { align_bytes: bytes, before_bytes: 0, after_bytes: 0 }
    }
}

/// What a kernel does to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Reads blocks and yields a partial result; there is no output.
    Reduce,
    /// Rewrites each block in place; the output has the body's size: a header
    /// that [`Kernel::open`] leaves out of the body is not in it.
    Transform,
}

/// In which order partial results are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeOrder {
    /// One part per accelerator collects whatever blocks come; parts are
    /// merged at the end in any order.
    Any,
    /// One part per unit, merged strictly in the order of the units, so that
    /// the result depends neither on the number of accelerators nor on timing.
    /// Up to 64 parts wait for an earlier one, besides those of the threads:
    /// keep them small, or declare them ([`Kernel::memory_bytes`]).
    ByUnit,
}

/// A contiguous piece of the input: what one call of [`Kernel::block`] sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Number of the unit, from 0.
    pub index: u64,
    /// Where the block starts, in bytes from the start of the input file.
    pub offset: u64,
    /// The part of the input file that is streamed (without header).
    pub body: (u64, u64),
}

impl Unit {
    /// Where the block starts, in bytes from the start of the body.
    #[must_use]
    pub fn body_offset(&self) -> u64 {
        self.offset - self.body.0
    }

    /// The body's length in bytes.
    #[must_use]
    pub fn body_bytes(&self) -> u64 {
        self.body.1 - self.body.0
    }
}

/// The bytes of one unit and its surroundings. All are the kernel's own to
/// change; only a transform's `data` goes anywhere.
#[derive(Debug)]
pub struct Block<'a> {
    /// Up to [`Cut::before_bytes`] bytes before the block; shorter only at the body's start.
    pub before: &'a mut [u8],
    /// The block: a transform rewrites it, a reduction reads it.
    pub data: &'a mut [u8],
    /// Up to [`Cut::after_bytes`] bytes after the block; shorter only at the body's end.
    pub after: &'a mut [u8],
}

/// Reads the first bytes of an input, for kernels with a header.
pub trait Head {
    /// The input's length in bytes, if it is known (not for pipes).
    fn len_bytes(&self) -> Option<u64>;
    /// Fills `buf` from `offset`; fewer bytes only at the input's end.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize>;
}

/// Why a kernel refuses its input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}{}; {cure}", .offset.map(|o| format!(" at byte {o}")).unwrap_or_default())]
pub struct KernelError {
    /// What is wrong, without the file's name.
    pub what: String,
    /// Where in the input file, in bytes, if there is one place.
    pub offset: Option<u64>,
    /// What the user can do about it.
    pub cure: String,
}

impl KernelError {
    /// An error about the input as a whole.
    pub fn new(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { what: what.into(), offset: None, cure: cure.into() }
    }

    /// The same error, at a byte offset of the input file.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }
}

/// A function over blocks. The stream layer owns the loop: it cuts the input
/// into units, keeps transfers in flight on every accelerator, calls
/// [`Kernel::block`] for each unit exactly once, and merges the parts.
pub trait Kernel: Send + Sync {
    /// The partial result one accelerator (or one unit) collects. `()` for a transform.
    type Part: Send;

    /// The kernel's name, as on the command line.
    fn name(&self) -> &str;

    /// Looks at the input before anything is streamed: checks a header and
    /// says which bytes are the body. The default streams everything.
    fn open(&mut self, head: &dyn Head) -> Result<Range<u64>, KernelError> {
        Ok(0..head.len_bytes().unwrap_or(u64::MAX))
    }

    /// How the body may be cut. Asked after [`Kernel::open`].
    fn cut(&self) -> Cut {
        Cut::ANYWHERE
    }

    /// Reduction or transform.
    fn effect(&self) -> Effect;

    /// In which order parts are merged.
    fn merge_order(&self) -> MergeOrder {
        MergeOrder::Any
    }

    /// The most memory all parts of a run hold at once, in bytes, when
    /// `accelerators` of them work; it is added to the run's memory bound.
    fn memory_bytes(&self, accelerators: usize) -> u64 {
        (std::mem::size_of::<Self::Part>() * accelerators) as u64
    }

    /// A fresh, empty part. `accelerators` is how many share [`Kernel::memory_bytes`].
    fn part(&self, accelerators: usize) -> Self::Part;

    /// Computes one unit. A transform in a [`Chain`](crate::Chain) also gets the
    /// bytes around a block, each time they are needed: what it makes of a byte
    /// may depend on offsets and bytes only.
    fn block(
        &self,
        unit: &Unit,
        block: Block<'_>,
        part: &mut Self::Part,
    ) -> Result<(), KernelError>;

    /// Merges `later` into `part`; with [`MergeOrder::ByUnit`] `later` covers
    /// the bytes right after those of `part`.
    fn merge(&self, part: &mut Self::Part, later: Self::Part) -> Result<(), KernelError>;
}

impl<K: Kernel + ?Sized> Kernel for Box<K> {
    type Part = K::Part;

    fn name(&self) -> &str {
        (**self).name()
    }

    fn open(&mut self, head: &dyn Head) -> Result<Range<u64>, KernelError> {
        (**self).open(head)
    }

    fn cut(&self) -> Cut {
        (**self).cut()
    }

    fn effect(&self) -> Effect {
        (**self).effect()
    }

    fn merge_order(&self) -> MergeOrder {
        (**self).merge_order()
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        (**self).memory_bytes(accelerators)
    }

    fn part(&self, accelerators: usize) -> K::Part {
        (**self).part(accelerators)
    }

    fn block(&self, unit: &Unit, block: Block<'_>, part: &mut K::Part) -> Result<(), KernelError> {
        (**self).block(unit, block, part)
    }

    fn merge(&self, part: &mut K::Part, later: K::Part) -> Result<(), KernelError> {
        (**self).merge(part, later)
    }
}
