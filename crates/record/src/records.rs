//! Records together with their layout, as they travel.

use crate::descriptor::DESCRIPTOR_BYTES_MAX;
use crate::error::RecordError;
use crate::layout::Layout;
use crate::record::Record;
use crate::view::View;

/// Some records and their layout: the parameters of a job, or a result. Cell
/// Connector's `addParameter` (thesis, figure 4.5) took a type that both sides
/// had to know; here it comes along, and one that differs is refused by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Records {
    layout: Layout,
    bytes: Vec<u8>,
}

impl Records {
    /// These records.
    #[must_use]
    pub fn of<T: Record>(records: &[T]) -> Records {
        let mut bytes = vec![0; size_of_val(records)];
        let places = bytes.chunks_exact_mut(size_of::<T>().max(1));
        records.iter().zip(places).for_each(|(record, place)| record.put(place));
        Records { layout: T::LAYOUT.clone(), bytes }
    }

    /// Records of a layout that is known at run time. Those of no bytes are none.
    ///
    /// # Errors
    /// If the bytes end inside a record.
    pub fn new(layout: Layout, bytes: Vec<u8>) -> Result<Records, RecordError> {
        let each = layout.size_bytes();
        if bytes.len().checked_rem(each).unwrap_or(bytes.len()) != 0 {
            return Err(RecordError::length(layout.name(), bytes.len(), each));
        }
        Ok(Records { layout, bytes })
    }

    /// Their layout.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / self.layout.size_bytes().max(1)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The records without their layout, one after the other.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Them by their layout.
    pub fn views(&self) -> impl Iterator<Item = View<'_>> {
        let places = self.bytes.chunks_exact(self.layout.size_bytes().max(1));
        places.filter_map(|bytes| View::new(&self.layout, bytes).ok())
    }

    /// Them as a type of Rust's.
    ///
    /// # Errors
    /// If its layout differs: the first difference by name.
    pub fn get<T: Record>(&self) -> Result<Vec<T>, RecordError> {
        T::LAYOUT.expect(&self.layout)?;
        Ok(T::all(&self.bytes)?.collect())
    }

    /// The layout's descriptor and the records: at most [`DESCRIPTOR_BYTES_MAX`]
    /// bytes more than these have.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.layout.to_bytes();
        debug_assert!(out.len() <= DESCRIPTOR_BYTES_MAX);
        out.extend_from_slice(&self.bytes);
        out
    }

    /// What was made bytes of.
    ///
    /// # Errors
    /// If there is no descriptor at the start, or what follows ends inside a record.
    pub fn from_bytes(bytes: &[u8]) -> Result<Records, RecordError> {
        let (layout, records) = Layout::split_from(bytes)?;
        Records::new(layout, records.to_vec())
    }
}
