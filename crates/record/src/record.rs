//! Rust's structs as records: what the derive implements.

use crate::error::RecordError;
use crate::layout::{ALIGN_BYTES_MAX, DEPTH_MAX, Layout, SIZE_BYTES_MAX, TYPES_MAX, Type};

// C's rules on the machines of today: a number is aligned to its size.
const _: () = assert!(
    align_of::<u64>() == 8 && align_of::<f64>() == 8,
    "layouts are those of machines that align 8 bytes to 8"
);

/// A struct with a layout that is the same wherever it is known, and with safe
/// conversion from and to bytes. It comes from the derive.
///
/// Bytes are written field by field, and padding is zero: a copy of the memory
/// would show what lay there before, and make equal values differ.
pub trait Record: Element {
    /// Its layout.
    const LAYOUT: &'static Layout;

    /// The record as [`Layout::size_bytes`] bytes.
    #[must_use]
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; size_of::<Self>()];
        self.put(&mut bytes);
        bytes
    }

    /// Puts the record behind `out`.
    fn append_to(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + size_of::<Self>(), 0);
        if let Some(to) = out.get_mut(start..) {
            self.put(to);
        }
    }

    /// The record that these bytes are; what is padding does not matter.
    ///
    /// # Errors
    /// If they are not as many as a record has.
    #[inline]
    fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        let whole = bytes.len() == size_of::<Self>();
        whole.then(|| Self::take(bytes)).ok_or_else(|| length::<Self>(bytes))
    }

    /// The records that these bytes are, one after the other: a block of a file.
    /// Records of no bytes are none.
    ///
    /// # Errors
    /// If the bytes end inside a record.
    #[inline]
    fn all(bytes: &[u8]) -> Result<impl ExactSizeIterator<Item = Self>, RecordError> {
        let each = size_of::<Self>().max(1);
        if !bytes.len().is_multiple_of(each) || size_of::<Self>() == 0 && !bytes.is_empty() {
            return Err(length::<Self>(bytes));
        }
        Ok(bytes.chunks_exact(each).map(Self::take))
    }
}

#[cold]
fn length<T: Record>(bytes: &[u8]) -> RecordError {
    RecordError::length(T::LAYOUT.name(), bytes.len(), size_of::<T>())
}

/// What a field may be; the derive's and the numbers' own.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be in a record",
    label = "has no layout that is the same everywhere, or bytes that are no value",
    note = "a record holds i8 to i64, u8 to u64, f32, f64, Char, arrays of them, \
            and other types that derive Record"
)]
#[doc(hidden)]
pub trait Element: Copy + 'static {
    const TYPE: &'static Type;
    const WEIGHT: Weight;

    /// Writes it into as many bytes as it has, which are zero.
    fn put(&self, to: &mut [u8]);

    /// Reads it off as many bytes as it has; of fewer those that are missing are zero.
    fn take(from: &[u8]) -> Self;
}

impl<T: Element, const N: usize> Element for [T; N] {
    const TYPE: &'static Type = &Type::derived_array(T::TYPE, N);
    const WEIGHT: Weight = T::WEIGHT.inside();

    #[inline]
    fn put(&self, to: &mut [u8]) {
        let places = to.chunks_exact_mut(size_of::<T>().max(1));
        self.iter().zip(places).for_each(|(element, place)| element.put(place));
    }

    #[inline]
    fn take(from: &[u8]) -> Self {
        let each = size_of::<T>();
        std::array::from_fn(|i| T::take(from.get(i * each..(i + 1) * each).unwrap_or_default()))
    }
}

/// How much a descriptor takes; the limits are checked when a derive is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Weight {
    /// Types, each with those inside it.
    pub(crate) types: usize,
    /// Types one in another.
    pub(crate) depth: usize,
}

impl Weight {
    pub const NONE: Weight = Weight { types: 0, depth: 0 };
    pub(crate) const SCALAR: Weight = Weight { types: 1, depth: 1 };

    /// Beside those so far.
    #[must_use]
    pub const fn with<T: Element>(self) -> Weight {
        assert!(size_of::<T>() > 0, "a field of a record has bytes: leave out one that has none");
        self.beside(T::WEIGHT)
    }

    pub(crate) const fn beside(self, other: Weight) -> Weight {
        let depth = if self.depth > other.depth { self.depth } else { other.depth };
        Weight { types: self.types.saturating_add(other.types), depth }
    }

    /// Those so far in an array or a record.
    #[must_use]
    pub const fn inside(self) -> Weight {
        Weight { types: self.types.saturating_add(1), depth: self.depth.saturating_add(1) }
    }

    /// Where a compiler finds that a derive is beyond a limit.
    pub(crate) const fn check(self, size_bytes: usize, align_bytes: usize) {
        assert!(self.types <= TYPES_MAX, "a record has at most 1024 types in all");
        assert!(self.depth <= DEPTH_MAX, "records and arrays are at most 16 deep");
        assert!(size_bytes <= SIZE_BYTES_MAX, "a record has at most 64 MiB");
        assert!(align_bytes <= ALIGN_BYTES_MAX, "a record is aligned to at most 4096 bytes");
    }
}
