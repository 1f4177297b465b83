//! Layouts as bytes, so that they travel with a job. Cell Connector could not do
//! that: types had to be defined in the same order on every node (thesis, 4.4.1).
//!
//! All numbers are little-endian. A descriptor is a version and a record:
//! ```text
//! descriptor  version[1] record
//! record      name size[4] align[4] count[2] field*count
//! field       name offset[4] type
//! name        len[1] len bytes
//! type        number of a scalar[1] | 254 count[4] type | 255 record
//! ```
//! A layout has one descriptor: what differs in bytes differs.

use crate::error::{RecordError, RecordErrorKind};
use crate::layout::{DEPTH_MAX, Field, Layout, NAME_BYTES_MAX, TYPES_MAX, Type};
use crate::scalar::Scalar;

const VERSION: u8 = 1;
const ARRAY: u8 = 254;
const RECORD: u8 = 255;

/// No descriptor is longer: name, place and type of each field that there can be,
/// and each type a record.
pub const DESCRIPTOR_BYTES_MAX: usize = 1 + TYPES_MAX * (2 * (1 + NAME_BYTES_MAX) + 4 + 1 + 10);

// Limits fit the numbers that tell of them.
const _: () = assert!(
    NAME_BYTES_MAX <= u8::MAX as usize
        && TYPES_MAX <= u16::MAX as usize
        && crate::layout::SIZE_BYTES_MAX <= u32::MAX as usize
);

impl Layout {
    /// The layout as a descriptor: at most [`DESCRIPTOR_BYTES_MAX`] bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_record(&mut out, self);
        out
    }

    /// The layout that a descriptor tells of.
    ///
    /// # Errors
    /// If the bytes are no descriptor, or tell of a layout that cannot be.
    pub fn from_bytes(bytes: &[u8]) -> Result<Layout, RecordError> {
        let (layout, rest) = Layout::split_from(bytes)?;
        if !rest.is_empty() {
            return Err(malformed(format!("{} bytes follow the layout", rest.len())));
        }
        Ok(layout)
    }

    /// The layout at the start of `bytes`, and what follows.
    pub(crate) fn split_from(bytes: &[u8]) -> Result<(Layout, &[u8]), RecordError> {
        let mut reader = Reader { rest: bytes, types: 0 };
        let [version] = reader.array()?;
        if version != VERSION {
            return Err(malformed(format!("it has version {version}, and {VERSION} is known")));
        }
        let layout = reader.record(1)?;
        Ok((layout, reader.rest))
    }

    /// A number that is another for another layout, on every machine and in
    /// every version: the first bytes of its descriptor's BLAKE3.
    #[must_use]
    pub fn hash64(&self) -> u64 {
        let hash = blake3::hash(&self.to_bytes());
        hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

fn put_record(out: &mut Vec<u8>, layout: &Layout) {
    put_name(out, layout.name());
    put_u32(out, layout.size_bytes());
    put_u32(out, layout.align_bytes());
    out.extend((layout.fields().len() as u16).to_le_bytes());
    for field in layout.fields() {
        put_name(out, field.name());
        put_u32(out, field.offset_bytes());
        put_type(out, field.ty());
    }
}

fn put_type(out: &mut Vec<u8>, ty: &Type) {
    match ty {
        Type::Scalar(scalar) => {
            let number = Scalar::ALL.iter().position(|known| known == scalar);
            out.push(number.unwrap_or_default() as u8);
        }
        Type::Array(array) => {
            out.push(ARRAY);
            put_u32(out, array.count());
            put_type(out, array.element());
        }
        Type::Record(layout) => {
            out.push(RECORD);
            put_record(out, layout);
        }
    }
}

/// Numbers are below the limits, which fit.
fn put_u32(out: &mut Vec<u8>, number: usize) {
    out.extend((number as u32).to_le_bytes());
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
}

fn malformed(what: impl Into<String>) -> RecordError {
    let what = format!("the descriptor of a record is damaged: {}", what.into());
    RecordError::new(RecordErrorKind::Descriptor, what, "build both sides from one version")
}

/// What is left of a descriptor.
struct Reader<'d> {
    rest: &'d [u8],
    /// How many were read.
    types: usize,
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(short)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn u32(&mut self) -> Result<usize, RecordError> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn name(&mut self) -> Result<String, RecordError> {
        let [len] = self.array()?;
        let (name, rest) = self.rest.split_at_checked(len.into()).ok_or_else(short)?;
        self.rest = rest;
        let name = str::from_utf8(name).map_err(|_| malformed("a name is not text"))?;
        Ok(name.into())
    }

    /// Counts a type that is so deep inside others.
    fn count(&mut self, depth: usize) -> Result<(), RecordError> {
        self.types += 1;
        if self.types > TYPES_MAX || depth > DEPTH_MAX {
            let what = format!("more than {TYPES_MAX} types, or one more than {DEPTH_MAX} deep");
            return Err(malformed(what));
        }
        Ok(())
    }

    fn record(&mut self, depth: usize) -> Result<Layout, RecordError> {
        self.count(depth)?;
        let name = self.name()?;
        let (size_bytes, align_bytes) = (self.u32()?, self.u32()?);
        let mut fields = Vec::new();
        for _ in 0..u16::from_le_bytes(self.array()?) {
            let (name, offset_bytes) = (self.name()?, self.u32()?);
            fields.push(Field::new(name, offset_bytes, self.ty(depth + 1)?));
        }
        Layout::checked(&name, size_bytes, align_bytes, fields)
    }

    fn ty(&mut self, depth: usize) -> Result<Type, RecordError> {
        match self.array()? {
            [ARRAY] => {
                self.count(depth)?;
                let count = self.u32()?;
                self.ty(depth + 1)?.array(count)
            }
            [RECORD] => self.record(depth).map(Type::Record),
            [number] => {
                self.count(depth)?;
                let scalar = Scalar::ALL.get(usize::from(number)).copied();
                scalar.map(Type::Scalar).ok_or_else(|| malformed(format!("type {number}")))
            }
        }
    }
}

fn short() -> RecordError {
    malformed("it ends too early")
}
