//! Layouts made by hand.

use crate::error::RecordError;
use crate::layout::{Field, Layout, Type};

/// Makes a [`Layout`] of fields: at the places that C gives them, or, as Cell
/// Connector's `createType` (thesis, figure 4.3), at places that are given.
///
/// ```
/// # use cellway_record::{Layout, Scalar};
/// let average = Layout::record("Average")
///     .field("id", Scalar::U32)
///     .field("count", Scalar::U32)
///     .field("coord", Scalar::U64.array(3)?)
///     .build()?;
/// let text = "Average { id: u32 @0, count: u32 @4, coord: [u64; 3] @8 } 32 bytes";
/// assert_eq!(average.to_string(), text);
/// # Ok::<_, cellway_record::RecordError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct LayoutBuilder {
    name: String,
    fields: Vec<(String, Option<usize>, Type)>,
    size_bytes: Option<usize>,
    align_bytes: Option<usize>,
}

impl LayoutBuilder {
    pub(crate) fn new(name: String) -> Self {
        Self { name, fields: Vec::new(), size_bytes: None, align_bytes: None }
    }

    /// A field behind those so far, at the next multiple of its alignment.
    pub fn field(mut self, name: impl Into<String>, ty: impl Into<Type>) -> Self {
        self.fields.push((name.into(), None, ty.into()));
        self
    }

    /// A field at that offset, in bytes from the start of the record.
    pub fn field_at(
        mut self,
        offset_bytes: usize,
        name: impl Into<String>,
        ty: impl Into<Type>,
    ) -> Self {
        self.fields.push((name.into(), Some(offset_bytes), ty.into()));
        self
    }

    /// The size of a record; by default its fields', up to its alignment.
    pub fn size_bytes(mut self, bytes: usize) -> Self {
        self.size_bytes = Some(bytes);
        self
    }

    /// The alignment of a record; by default the largest of its fields'.
    pub fn align_bytes(mut self, bytes: usize) -> Self {
        self.align_bytes = Some(bytes);
        self
    }

    /// The layout.
    ///
    /// # Errors
    /// If fields overlap or are out of order, misaligned, without bytes or of one name; if the
    /// record's size or alignment does not fit them; if a limit is exceeded.
    pub fn build(self) -> Result<Layout, RecordError> {
        let (mut end, mut needed) = (0_usize, 1);
        let mut fields = Vec::with_capacity(self.fields.len());
        for (name, offset_bytes, ty) in self.fields {
            let align_bytes = ty.align_bytes();
            let at = offset_bytes.unwrap_or_else(|| round_up(end, align_bytes));
            end = at.saturating_add(ty.size_bytes());
            needed = needed.max(align_bytes);
            fields.push(Field::new(name, at, ty));
        }
        let align_bytes = self.align_bytes.unwrap_or(needed);
        let size_bytes = self.size_bytes.unwrap_or_else(|| round_up(end, align_bytes));
        Layout::checked(&self.name, size_bytes, align_bytes, fields)
    }
}

/// More than any record has, where there is no such number.
fn round_up(bytes: usize, align_bytes: usize) -> usize {
    bytes.checked_next_multiple_of(align_bytes).unwrap_or(usize::MAX)
}
