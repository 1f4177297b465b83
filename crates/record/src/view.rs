//! Records by their layout, for tools and bindings that know no type of Rust's.

use std::ops::Range;

use crate::error::{RecordError, RecordErrorKind};
use crate::layout::{Array, Layout, Type};
use crate::scalar::{Scalar, Value};

/// What a view looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape<'a> {
    Scalar(Scalar),
    Array(&'a Array),
    Record(&'a Layout),
}

impl<'a> Shape<'a> {
    pub(crate) fn of(ty: &'a Type) -> Shape<'a> {
        match ty {
            Type::Scalar(scalar) => Shape::Scalar(*scalar),
            Type::Array(array) => Shape::Array(array),
            Type::Record(layout) => Shape::Record(layout),
        }
    }

    /// Types read as a user knows them.
    fn told(self) -> String {
        match self {
            Shape::Scalar(scalar) => format!("a {scalar}"),
            Shape::Array(array) => format!("{} elements", array.count()),
            Shape::Record(layout) => {
                let names = layout.fields().iter().map(|field| field.name());
                format!("`{}` with {}", layout.name(), names.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// One step of a path: what is there, and where.
    fn step(self, step: &str) -> Option<(Shape<'a>, Range<usize>)> {
        let (ty, at) = match (self, step.strip_prefix('[')) {
            (Shape::Array(array), Some(index)) => {
                let digits = index.bytes().all(|byte| byte.is_ascii_digit());
                let index = index.parse::<usize>().ok().filter(|_| digits)?;
                let ty = array.element();
                (ty, (index < array.count()).then(|| index * ty.size_bytes())?)
            }
            (Shape::Record(layout), None) => {
                let field = layout.field(step)?;
                (field.ty(), field.offset_bytes())
            }
            _ => return None,
        };
        Some((Shape::of(ty), at..at + ty.size_bytes()))
    }

    /// Where a path leads in as many bytes.
    fn locate(self, path: &str, len: usize) -> Result<(Shape<'a>, Range<usize>), RecordError> {
        let (mut shape, mut range) = (self, 0..len);
        // `a.b[1]` is the steps `a`, `b` and `[1`.
        for step in path.split('.').flat_map(steps).filter(|_| !path.is_empty()) {
            let (next, within) = shape.step(step).ok_or_else(|| {
                let what = format!("\"{}\" leads nowhere", path.escape_debug());
                let cure = format!("there is {}; write paths like points[3].x", shape.told());
                RecordError::new(RecordErrorKind::Path, what, cure)
            })?;
            range = range.start + within.start..range.start + within.end;
            shape = next;
        }
        Ok((shape, range))
    }
}

/// The name and indices between two dots; what is neither is a step that leads nowhere.
fn steps(part: &str) -> impl Iterator<Item = &str> {
    let (name, indices) = part.split_at(part.find('[').unwrap_or(part.len()));
    let name = Some(name).filter(|name| !name.is_empty() || indices.is_empty());
    name.into_iter()
        .chain(indices.split_inclusive(']').map(|index| index.strip_suffix(']').unwrap_or("")))
}

/// A record, or a part of one, to look at.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub(crate) shape: Shape<'a>,
    pub(crate) bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// A record of that layout.
    ///
    /// # Errors
    /// If the bytes are not as many as it has.
    pub fn new(layout: &'a Layout, bytes: &'a [u8]) -> Result<View<'a>, RecordError> {
        check_length(layout, bytes)?;
        Ok(View { shape: Shape::Record(layout), bytes })
    }

    /// The part at a path: `points`, `points[3]`, `points[3].x`. That of no path is all.
    ///
    /// # Errors
    /// If the path leads nowhere.
    pub fn at(self, path: &str) -> Result<View<'a>, RecordError> {
        let (shape, range) = self.shape.locate(path, self.bytes.len())?;
        Ok(View { shape, bytes: self.part(range) })
    }

    /// The number or character at a path.
    ///
    /// # Errors
    /// If the path leads nowhere, or to an array or a record.
    pub fn get(self, path: &str) -> Result<Value, RecordError> {
        let part = self.at(path)?;
        match part.shape {
            Shape::Scalar(scalar) => Ok(scalar.take(part.bytes)),
            shape => Err(no_scalar(path, shape)),
        }
    }

    /// Bytes of it, padding included.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Ranges are inside: a layout says where its fields are, and is as long as its bytes.
    pub(crate) fn part(self, range: Range<usize>) -> &'a [u8] {
        self.bytes.get(range).unwrap_or_default()
    }
}

/// A record to change.
#[derive(Debug)]
pub struct ViewMut<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) bytes: &'a mut [u8],
}

impl<'a> ViewMut<'a> {
    /// A record of that layout.
    ///
    /// # Errors
    /// If the bytes are not as many as it has.
    pub fn new(layout: &'a Layout, bytes: &'a mut [u8]) -> Result<ViewMut<'a>, RecordError> {
        check_length(layout, bytes)?;
        Ok(ViewMut { layout, bytes })
    }

    /// The same to look at.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View { shape: Shape::Record(self.layout), bytes: self.bytes }
    }

    /// Sets the number or character at a path. Whole numbers fit or are refused;
    /// a float takes the nearest.
    ///
    /// # Errors
    /// If the path leads nowhere, or to an array or a record, or the field does
    /// not hold the value.
    pub fn set(&mut self, path: &str, value: Value) -> Result<(), RecordError> {
        match self.part_mut(path)? {
            (Shape::Scalar(scalar), bytes) => scalar.put(value, bytes),
            (shape, _) => Err(no_scalar(path, shape)),
        }
    }

    pub(crate) fn part_mut(&mut self, path: &str) -> Result<(Shape<'a>, &mut [u8]), RecordError> {
        let (shape, range) = Shape::Record(self.layout).locate(path, self.bytes.len())?;
        Ok((shape, self.bytes.get_mut(range).unwrap_or_default()))
    }
}

fn check_length(layout: &Layout, bytes: &[u8]) -> Result<(), RecordError> {
    if bytes.len() == layout.size_bytes() {
        return Ok(());
    }
    Err(RecordError::length(layout.name(), bytes.len(), layout.size_bytes()))
}

fn no_scalar(path: &str, shape: Shape<'_>) -> RecordError {
    let what = format!("\"{}\" is {}, no number", path.escape_debug(), shape.told());
    RecordError::new(RecordErrorKind::Path, what, "write paths like points[3].x")
}
