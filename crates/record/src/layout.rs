//! What a record looks like, known at run time.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::builder::LayoutBuilder;
use crate::error::RecordError;
use crate::record::{Element, Weight};
use crate::scalar::Scalar;

/// The longest name of a record or a field, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The most types in a layout, with those in its fields.
pub const TYPES_MAX: usize = 1024;
/// How many records and arrays may lie one in another.
pub const DEPTH_MAX: usize = 16;
/// The most bytes of a record: it has to fit local stores with others.
pub const SIZE_BYTES_MAX: usize = 64 << 20;
/// The largest alignment of a record.
pub const ALIGN_BYTES_MAX: usize = 4096;

/// What a derive has for ever, or what was made at run time and is shared.
pub(crate) enum Ref<T: ?Sized + 'static> {
    Static(&'static T),
    Shared(Arc<T>),
}

impl<T: ?Sized> Deref for Ref<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Ref::Static(it) => it,
            Ref::Shared(it) => it,
        }
    }
}

impl<T: ?Sized> Clone for Ref<T> {
    fn clone(&self) -> Self {
        match self {
            Ref::Static(it) => Ref::Static(it),
            Ref::Shared(it) => Ref::Shared(it.clone()),
        }
    }
}

impl<T: ?Sized + PartialEq> PartialEq for Ref<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Ref<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The layout of a record: names, offsets and types of its fields, in the order
/// of their offsets. What lies between them is padding. There is none that is
/// not valid, and a copy is cheap.
///
/// Every field has at least one byte, and lies at a multiple of its alignment.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    name: Ref<str>,
    size_bytes: usize,
    align_bytes: usize,
    fields: Ref<[Field]>,
    pub(crate) weight: Weight,
}

/// A field of a [`Layout`].
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    name: Ref<str>,
    offset_bytes: usize,
    ty: Ref<Type>,
}

/// What a field holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// A number or a character.
    Scalar(Scalar),
    /// Several of one type, side by side.
    Array(Array),
    /// A record.
    Record(Layout),
}

/// Several elements of one type, side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    element: Ref<Type>,
    count: usize,
}

impl Layout {
    /// Starts a layout: see [`LayoutBuilder`].
    pub fn record(name: impl Into<String>) -> LayoutBuilder {
        LayoutBuilder::new(name.into())
    }

    /// The record's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of a record, with its padding: that from one to the next in an array.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Records lie at multiples of this: a power of two.
    #[must_use]
    pub fn align_bytes(&self) -> usize {
        self.align_bytes
    }

    /// The fields, in the order of their offsets.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The field of that name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name() == name)
    }

    /// The layout of a struct. Only a derive says so: `offset_of!` is never wrong.
    #[doc(hidden)]
    #[must_use]
    pub const fn derived(
        name: &'static str,
        size_bytes: usize,
        align_bytes: usize,
        fields: &'static [Field],
        weight: Weight,
    ) -> Layout {
        assert!(is_name(name), "a record's name is of ASCII letters, digits and _");
        weight.check(size_bytes, align_bytes);
        let (name, fields) = (Ref::Static(name), Ref::Static(fields));
        Layout { name, size_bytes, align_bytes, fields, weight }
    }

    /// A layout, if there can be such a one.
    pub(crate) fn checked(
        name: &str,
        size_bytes: usize,
        align_bytes: usize,
        fields: Vec<Field>,
    ) -> Result<Layout, RecordError> {
        check_name("record", name)?;
        let refuse =
            |what: String, cure| Err(RecordError::layout(format!("`{name}` {what}"), cure));
        let (mut end, mut names) = (0, BTreeSet::new());
        let mut weight = Weight::NONE;
        for field in &fields {
            check_name("field", &field.name)?;
            let (at, needed) = (field.offset_bytes, field.ty.align_bytes());
            let what = format!("has field `{}` at {at}", field.name());
            if !names.insert(field.name()) {
                return refuse(format!("has two fields `{}`", field.name()), "rename one");
            }
            if field.ty.size_bytes() == 0 {
                return refuse(format!("{what}, which has no bytes"), "leave it out");
            }
            if at < end {
                let what = format!("{what}, but the one before ends at {end}");
                return refuse(what, "give fields that do not overlap, in the order of offsets");
            }
            if !at.is_multiple_of(needed) {
                let cure = "leave padding before it, or use a type of bytes";
                return refuse(format!("{what}, which is no multiple of its {needed} bytes"), cure);
            }
            if align_bytes < needed {
                let what = format!(
                    "is aligned to {align_bytes}, but field `{}` to {needed}",
                    field.name()
                );
                return refuse(what, "align the record as its fields");
            }
            end = at.saturating_add(field.ty.size_bytes());
            weight = weight.beside(field.ty.weight());
        }
        let weight = weight.inside();
        if end > size_bytes || size_bytes > SIZE_BYTES_MAX {
            let what = format!("has {size_bytes} bytes, and its fields end at {end}");
            return refuse(what, "let it end behind its fields, and before 64 MiB");
        }
        if !align_bytes.is_power_of_two() || align_bytes > ALIGN_BYTES_MAX {
            let what = format!("is aligned to {align_bytes} bytes");
            return refuse(what, "align it to a power of two up to 4096");
        }
        if !size_bytes.is_multiple_of(align_bytes) {
            let what = format!("has {size_bytes} bytes, which is no multiple of {align_bytes}");
            return refuse(what, "add padding at its end");
        }
        check_weight(weight, name)?;
        let (name, fields) = (Ref::Shared(name.into()), Ref::Shared(fields.into()));
        Ok(Layout { name, size_bytes, align_bytes, fields, weight })
    }
}

fn check_weight(weight: Weight, name: &str) -> Result<(), RecordError> {
    if weight.types <= TYPES_MAX && weight.depth <= DEPTH_MAX {
        return Ok(());
    }
    let what = format!("`{name}` has {} types, {} deep", weight.types, weight.depth);
    Err(RecordError::layout(what, format!("use at most {TYPES_MAX}, {DEPTH_MAX} deep")))
}

/// Names that paths, C and Rust can have.
const fn is_name(name: &str) -> bool {
    let mut bytes = name.as_bytes();
    if let [] | [b'0'..=b'9', ..] = bytes {
        return false;
    }
    if bytes.len() > NAME_BYTES_MAX {
        return false;
    }
    while let [byte, rest @ ..] = bytes {
        if !byte.is_ascii_alphanumeric() && *byte != b'_' {
            return false;
        }
        bytes = rest;
    }
    true
}

fn check_name(what: &str, name: &str) -> Result<(), RecordError> {
    if is_name(name) {
        return Ok(());
    }
    let shown = name.chars().take(40).collect::<String>();
    Err(RecordError::layout(
        format!("no {what} is named \"{}\"", shown.escape_debug()),
        format!("use ASCII letters, digits and _, {NAME_BYTES_MAX} at most, no digit first"),
    ))
}

impl Field {
    pub(crate) fn new(name: String, offset_bytes: usize, ty: Type) -> Field {
        Field { name: Ref::Shared(name.into()), offset_bytes, ty: Ref::Shared(ty.into()) }
    }

    /// A field of a struct.
    #[doc(hidden)]
    #[must_use]
    pub const fn derived<T: Element>(name: &'static str, offset_bytes: usize) -> Field {
        assert!(is_name(name), "a field's name is of ASCII letters, digits and _");
        Field { name: Ref::Static(name), offset_bytes, ty: Ref::Static(T::TYPE) }
    }

    /// The field's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it starts, in bytes from the start of the record.
    #[must_use]
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// What it holds.
    #[must_use]
    pub fn ty(&self) -> &Type {
        &self.ty
    }
}

impl Type {
    /// `count` of these.
    ///
    /// # Errors
    /// If these are none, have no bytes, or have more than a record may have.
    pub fn array(self, count: usize) -> Result<Type, RecordError> {
        let bytes = self.size_bytes().saturating_mul(count);
        if bytes == 0 || bytes > SIZE_BYTES_MAX {
            let what = format!("an array of {count} elements of {} bytes", self.size_bytes());
            let what = format!("{what} is none, or has more than {SIZE_BYTES_MAX} bytes");
            return Err(RecordError::layout(what, "use another count, or leave it out"));
        }
        check_weight(self.weight().inside(), &self.short())?;
        Ok(Type::Array(Array { element: Ref::Shared(self.into()), count }))
    }

    pub(crate) const fn derived_array(element: &'static Type, count: usize) -> Type {
        Type::Array(Array { element: Ref::Static(element), count })
    }

    /// Bytes of one.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        match self {
            Type::Scalar(scalar) => scalar.size_bytes(),
            Type::Array(array) => array.element.size_bytes() * array.count,
            Type::Record(layout) => layout.size_bytes,
        }
    }

    /// It lies at multiples of this.
    #[must_use]
    pub fn align_bytes(&self) -> usize {
        match self {
            Type::Scalar(scalar) => scalar.size_bytes(),
            Type::Array(array) => array.element.align_bytes(),
            Type::Record(layout) => layout.align_bytes,
        }
    }

    pub(crate) fn weight(&self) -> Weight {
        match self {
            Type::Scalar(_) => Weight::SCALAR,
            Type::Array(array) => array.element.weight().inside(),
            Type::Record(layout) => layout.weight,
        }
    }

    /// With records by their names only.
    pub(crate) fn short(&self) -> String {
        match self {
            Type::Scalar(scalar) => scalar.name().into(),
            Type::Array(array) => format!("[{}; {}]", array.element.short(), array.count),
            Type::Record(layout) => layout.name().into(),
        }
    }
}

impl Scalar {
    /// `count` of these: see [`Type::array`].
    ///
    /// # Errors
    /// If these are none, or more than a record may have.
    pub fn array(self, count: usize) -> Result<Type, RecordError> {
        Type::from(self).array(count)
    }
}

impl From<Scalar> for Type {
    fn from(scalar: Scalar) -> Type {
        Type::Scalar(scalar)
    }
}

impl From<Layout> for Type {
    fn from(layout: Layout) -> Type {
        Type::Record(layout)
    }
}

impl Array {
    /// What it consists of.
    #[must_use]
    pub fn element(&self) -> &Type {
        &self.element
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Scalar(scalar) => scalar.fmt(f),
            Type::Array(array) => write!(f, "[{}; {}]", array.element(), array.count),
            Type::Record(layout) => layout.fmt(f),
        }
    }
}

/// `Average { sum: f64 @0, count: u64 @8 } 16 bytes`: each field with its type
/// and offset. The alignment is said where it is more than the fields need.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {{", self.name())?;
        for (number, field) in self.fields.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma} {}: {} @{}", field.name(), field.ty(), field.offset_bytes)?;
        }
        write!(f, " }} {} bytes", self.size_bytes)?;
        let needed = self.fields.iter().map(|field| field.ty.align_bytes()).max().unwrap_or(1);
        if self.align_bytes > needed {
            write!(f, " aligned to {}", self.align_bytes)?;
        }
        Ok(())
    }
}
