//! Numbers and characters: Cell Connector's provided types (thesis, Table 4.1).

use std::fmt;
use std::str::FromStr;

use crate::error::{RecordError, RecordErrorKind};
use crate::layout::Type;
use crate::record::{Element, Weight};

/// A number or a character, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// Signed, 1 byte.
    I8,
    /// Signed, 2 bytes: C's `short`.
    I16,
    /// Signed, 4 bytes: C's `int`.
    I32,
    /// Signed, 8 bytes: C's `long` and `long long`.
    I64,
    /// Unsigned, 1 byte: any byte, Table 4.1's `CELL_CON_BYTE`.
    U8,
    /// Unsigned, 2 bytes.
    U16,
    /// Unsigned, 4 bytes.
    U32,
    /// Unsigned, 8 bytes.
    U64,
    /// IEEE 754, 4 bytes.
    F32,
    /// IEEE 754, 8 bytes.
    F64,
    /// A byte of text: C's `char`.
    Char,
}

use Scalar::{Char as CharType, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};

/// Each type, its name, and those of C (Table 4.1) where `long` has 8 bytes.
const NAMES: [(Scalar, &str, &[&str]); 11] = [
    (I8, "i8", &["signed char"]),
    (I16, "i16", &["short"]),
    (I32, "i32", &["int"]),
    (I64, "i64", &["long", "long long"]),
    (U8, "u8", &["unsigned char", "byte"]),
    (U16, "u16", &["unsigned short"]),
    (U32, "u32", &["unsigned int", "unsigned"]),
    (U64, "u64", &["unsigned long", "unsigned long long"]),
    (F32, "f32", &["float"]),
    (F64, "f64", &["double"]),
    (CharType, "char", &[]),
];

impl Scalar {
    /// All of them; the place is the number in a descriptor.
    pub const ALL: [Scalar; 11] = [I8, I16, I32, I64, U8, U16, U32, U64, F32, F64, CharType];

    /// Bytes of one, which is its alignment too.
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        match self {
            I8 | U8 | CharType => 1,
            I16 | U16 => 2,
            I32 | U32 | F32 => 4,
            I64 | U64 | F64 => 8,
        }
    }

    /// `i8` to `f64`, or `char`.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(scalar, ..)| *scalar == self).map_or("", |(_, name, _)| name)
    }

    /// The value in bytes that are as many as it has.
    pub(crate) fn take(self, from: &[u8]) -> Value {
        match self {
            I8 => Value::Signed(i8::take(from).into()),
            I16 => Value::Signed(i16::take(from).into()),
            I32 => Value::Signed(i32::take(from).into()),
            I64 => Value::Signed(i64::take(from)),
            U8 => Value::Unsigned(u8::take(from).into()),
            U16 => Value::Unsigned(u16::take(from).into()),
            U32 => Value::Unsigned(u32::take(from).into()),
            U64 => Value::Unsigned(u64::take(from)),
            F32 => Value::F32(f32::take(from)),
            F64 => Value::F64(f64::take(from)),
            CharType => Value::Char(u8::take(from)),
        }
    }

    /// Puts `value` where this is, if it holds it.
    pub(crate) fn put(self, value: Value, to: &mut [u8]) -> Result<(), RecordError> {
        fn whole<T: Element + TryFrom<i128>>(value: Value, to: &mut [u8]) -> Option<()> {
            T::try_from(value.whole()?).ok().map(|number| number.put(to))
        }
        let done = match self {
            I8 => whole::<i8>(value, to),
            I16 => whole::<i16>(value, to),
            I32 => whole::<i32>(value, to),
            I64 => whole::<i64>(value, to),
            U8 | CharType => whole::<u8>(value, to),
            U16 => whole::<u16>(value, to),
            U32 => whole::<u32>(value, to),
            U64 => whole::<u64>(value, to),
            F32 => value.single().map(|number| number.put(to)),
            F64 => value.double().map(|number| number.put(to)),
        };
        done.ok_or_else(|| {
            RecordError::new(
                RecordErrorKind::Value,
                format!("{self} does not hold {value}"),
                "give a number in its range",
            )
        })
    }

    /// The value that a number in JSON's spelling has in this type.
    pub(crate) fn parse(self, number: &str) -> Option<Value> {
        match self {
            F32 => number.parse().ok().filter(|float: &f32| float.is_finite()).map(Value::F32),
            F64 => number.parse().ok().filter(|float: &f64| float.is_finite()).map(Value::F64),
            _ if number.starts_with('-') => number.parse().ok().map(Value::Signed),
            _ => number.parse().ok().map(Value::Unsigned),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// By its name here, or by C's.
impl FromStr for Scalar {
    type Err = RecordError;

    fn from_str(name: &str) -> Result<Self, RecordError> {
        let known = NAMES.iter().find(|(_, ours, c)| *ours == name || c.contains(&name));
        known.map(|(scalar, ..)| *scalar).ok_or_else(|| {
            RecordError::layout(
                format!("there is no type \"{}\"", name.escape_debug()),
                "use i8 to i64, u8 to u64, f32, f64, char, or C's names for them",
            )
        })
    }
}

/// One number or character, whatever type holds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Of `i8` to `i64`.
    Signed(i64),
    /// Of `u8` to `u64`.
    Unsigned(u64),
    /// Of `f32`.
    F32(f32),
    /// Of `f64`.
    F64(f64),
    /// Of `char`: one byte of text.
    Char(u8),
}

impl Value {
    /// Without a loss: a float is no whole number, whatever it is.
    fn whole(self) -> Option<i128> {
        match self {
            Value::Signed(number) => Some(number.into()),
            Value::Unsigned(number) => Some(number.into()),
            Value::Char(byte) => Some(byte.into()),
            Value::F32(_) | Value::F64(_) => None,
        }
    }

    /// The nearest; `None` if it is out of range.
    fn single(self) -> Option<f32> {
        match self {
            Value::F32(number) => Some(number),
            Value::F64(number) => {
                let nearest = number as f32;
                (nearest.is_finite() || !number.is_finite()).then_some(nearest)
            }
            _ => self.whole().map(|number| number as f32),
        }
    }

    /// The nearest.
    fn double(self) -> Option<f64> {
        match self {
            Value::F32(number) => Some(number.into()),
            Value::F64(number) => Some(number),
            _ => self.whole().map(|number| number as f64),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Signed(number) => write!(f, "{number}"),
            Value::Unsigned(number) => write!(f, "{number}"),
            Value::F32(number) => write!(f, "{number}"),
            Value::F64(number) => write!(f, "{number}"),
            Value::Char(byte) => write!(f, "'{}'", byte.escape_ascii()),
        }
    }
}

/// C's `char` in a record of Rust's: a byte of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Char(pub u8);

impl Element for Char {
    const TYPE: &'static Type = &Type::Scalar(CharType);
    const WEIGHT: Weight = Weight::SCALAR;

    #[inline]
    fn put(&self, to: &mut [u8]) {
        self.0.put(to);
    }

    #[inline]
    fn take(from: &[u8]) -> Self {
        Char(u8::take(from))
    }
}

macro_rules! numbers {
    ($($rust:ty => $scalar:ident),*) => {$(
        impl Element for $rust {
            const TYPE: &'static Type = &Type::Scalar($scalar);
            const WEIGHT: Weight = Weight::SCALAR;

            #[inline]
            fn put(&self, to: &mut [u8]) {
                if let Some(to) = to.first_chunk_mut() {
                    *to = self.to_le_bytes();
                }
            }

            #[inline]
            fn take(from: &[u8]) -> Self {
                Self::from_le_bytes(from.first_chunk().copied().unwrap_or_default())
            }
        }
    )*};
}

numbers!(i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    f32 => F32, f64 => F64);
