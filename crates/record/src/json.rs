//! Records as JSON and back, by their layout.
//!
//! Numbers are JSON's, whole ones exact to 64 bits. Floats that JSON does not have are
//! "NaN", "Infinity" and "-Infinity", as in Protocol Buffers' mapping; a NaN comes back
//! as one, with other bits perhaps. Of `char` an array is a text, without the zeros at
//! its end, if it is UTF-8, and else an array of numbers. A record is an object with all
//! its fields, in their order.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

use crate::error::{RecordError, RecordErrorKind};
use crate::layout::{Array, Layout, Type};
use crate::scalar::{Scalar, Value};
use crate::view::{Shape, View, ViewMut};

impl View<'_> {
    /// The record, or the part of it, as JSON in one line. It has each field's name, so
    /// that of records with long names may be a thousand times as long as their bytes: where
    /// that matters give the view, which is `Serialize`, to a writer with a limit.
    ///
    /// # Errors
    /// None that is known of.
    pub fn to_json(self) -> Result<String, RecordError> {
        serde_json::to_string(&self).map_err(|error| refused(&error, ""))
    }
}

impl Layout {
    /// The bytes of a record that is given as JSON: an object with every field.
    ///
    /// # Errors
    /// If it is no JSON, a field is missing, twice there or not known, or a value
    /// is none of its field's.
    pub fn from_json(&self, json: &str) -> Result<Vec<u8>, RecordError> {
        let mut bytes = vec![0; self.size_bytes()];
        ViewMut { layout: self, bytes: &mut bytes }.set_json("", json)?;
        Ok(bytes)
    }
}

impl ViewMut<'_> {
    /// Sets what is at a path, whatever it is, by JSON. Padding stays as it is.
    /// If it is refused, parts of it may have been set.
    ///
    /// # Errors
    /// If the path leads nowhere; those of [`Layout::from_json`].
    pub fn set_json(&mut self, path: &str, json: &str) -> Result<(), RecordError> {
        let whole = self.layout;
        let (shape, bytes) = self.part_mut(path)?;
        let mut from = serde_json::Deserializer::from_str(json);
        let within = Within::Path(path);
        let set = Fill { shape, bytes, within: &within }.deserialize(&mut from);
        set.and_then(|()| from.end()).map_err(|error| refused(&error, &whole.to_string()))
    }
}

fn refused(error: &serde_json::Error, layout: &str) -> RecordError {
    let cure = format!("give JSON for {layout}");
    RecordError::new(RecordErrorKind::Json, error.to_string(), cure)
}

impl Serialize for View<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.shape {
            Shape::Scalar(scalar) => put(scalar, self.bytes, to),
            Shape::Array(array) => match text(array, self.bytes) {
                Some(text) => to.serialize_str(text),
                None => {
                    let places = self.bytes.chunks_exact(array.element().size_bytes().max(1));
                    to.collect_seq(places.map(|bytes| Element(array.element(), bytes)))
                }
            },
            Shape::Record(layout) => {
                let mut map = to.serialize_map(Some(layout.fields().len()))?;
                for field in layout.fields() {
                    let at = field.offset_bytes();
                    let bytes = self.part(at..at + field.ty().size_bytes());
                    map.serialize_entry(
                        field.name(),
                        &View { shape: Shape::of(field.ty()), bytes },
                    )?;
                }
                map.end()
            }
        }
    }
}

/// One of an array: characters that are no text are numbers.
struct Element<'a>(&'a Type, &'a [u8]);

impl Serialize for Element<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Type::Scalar(Scalar::Char) => put(Scalar::U8, self.1, to),
            ty => View { shape: Shape::of(ty), bytes: self.1 }.serialize(to),
        }
    }
}

/// Characters without the zeros that C puts behind them.
fn text<'a>(array: &Array, bytes: &'a [u8]) -> Option<&'a str> {
    if !matches!(array.element(), Type::Scalar(Scalar::Char)) {
        return None;
    }
    let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    str::from_utf8(bytes.get(..len)?).ok()
}

fn put<S: Serializer>(scalar: Scalar, bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    match scalar.take(bytes) {
        Value::Signed(number) => to.serialize_i64(number),
        Value::Unsigned(number) => to.serialize_u64(number),
        Value::F32(number) if number.is_finite() => to.serialize_f32(number),
        Value::F64(number) if number.is_finite() => to.serialize_f64(number),
        Value::F32(number) => to.serialize_str(name(number.into())),
        Value::F64(number) => to.serialize_str(name(number)),
        // One that is ASCII is a text as an array of one would be.
        Value::Char(0) => to.serialize_str(""),
        Value::Char(byte) if byte.is_ascii() => to.serialize_char(byte.into()),
        Value::Char(byte) => to.serialize_u8(byte),
    }
}

/// Of what is not finite.
fn name(number: f64) -> &'static str {
    match number {
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        _ => "NaN",
    }
}

/// Where in a record, for messages.
enum Within<'a> {
    Path(&'a str),
    Field(&'a Within<'a>, &'a str),
    Element(&'a Within<'a>, usize),
}

impl fmt::Display for Within<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Within::Path(path) => f.write_str(path),
            Within::Field(Within::Path(""), name) => f.write_str(name),
            Within::Field(within, name) => write!(f, "{within}.{name}"),
            Within::Element(within, index) => write!(f, "{within}[{index}]"),
        }
    }
}

/// Fills `bytes` with what JSON says.
struct Fill<'a> {
    shape: Shape<'a>,
    bytes: &'a mut [u8],
    within: &'a Within<'a>,
}

impl<'de> DeserializeSeed<'de> for Fill<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        match self.shape {
            Shape::Scalar(scalar) => {
                // As it is spelled: a detour over f64 would round an f32 twice.
                let json = <&RawValue as de::Deserialize>::deserialize(from)?.get();
                let wrong = || {
                    let shown = json.chars().take(40).collect::<String>();
                    de::Error::custom(format_args!("`{}`: {shown} is no {scalar}", self.within))
                };
                let value = parse(scalar, json).ok_or_else(wrong)?;
                scalar.put(value, self.bytes).map_err(|_| wrong())
            }
            Shape::Array(array) if matches!(array.element(), Type::Scalar(Scalar::Char)) => {
                from.deserialize_any(self)
            }
            Shape::Array(_) => from.deserialize_seq(self),
            Shape::Record(_) => from.deserialize_map(self),
        }
    }
}

/// What a number or a text of JSON is as such a value.
fn parse(scalar: Scalar, json: &str) -> Option<Value> {
    if !json.starts_with('"') {
        return match scalar {
            Scalar::Char => Scalar::U8.parse(json),
            _ => scalar.parse(json),
        };
    }
    let text = serde_json::from_str::<String>(json).ok()?;
    match (scalar, text.as_str()) {
        (Scalar::F32 | Scalar::F64, "NaN") => Some(Value::F64(f64::NAN)),
        (Scalar::F32 | Scalar::F64, "Infinity") => Some(Value::F64(f64::INFINITY)),
        (Scalar::F32 | Scalar::F64, "-Infinity") => Some(Value::F64(f64::NEG_INFINITY)),
        (Scalar::Char, text) => match text.as_bytes() {
            [] => Some(Value::Char(0)),
            [byte] => Some(Value::Char(*byte)),
            _ => None,
        },
        _ => None,
    }
}

impl<'de> Visitor<'de> for Fill<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            Shape::Scalar(scalar) => write!(f, "a {scalar}")?,
            Shape::Array(array) => write!(f, "{} elements", array.count())?,
            Shape::Record(layout) => write!(f, "an object of the fields of {}", layout.name())?,
        }
        match self.within {
            Within::Path("") => Ok(()),
            within => write!(f, " for `{within}`"),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        let Some((to, rest)) = self.bytes.split_at_mut_checked(text.len()) else {
            return Err(E::invalid_length(text.len(), &self));
        };
        to.copy_from_slice(text.as_bytes());
        rest.fill(0);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        let Shape::Array(array) = self.shape else { return Err(unexpected(&self)) };
        let shape = Shape::of(array.element());
        let places = self.bytes.chunks_exact_mut(array.element().size_bytes().max(1));
        for (index, bytes) in places.enumerate() {
            let within = &Within::Element(self.within, index);
            if from.next_element_seed(Fill { shape, bytes, within })?.is_none() {
                let what = format_args!("`{}` has {index} of {}", self.within, array.count());
                return Err(de::Error::custom(what));
            }
        }
        // One more is refused by the reader, who expects the end.
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        let Shape::Record(layout) = self.shape else { return Err(unexpected(&self)) };
        let mut missing = layout.fields().iter().collect::<Vec<_>>();
        while let Some(name) = from.next_key::<String>()? {
            let Some(place) = missing.iter().position(|field| field.name() == name) else {
                let why =
                    if layout.field(&name).is_some() { "is there twice" } else { "is not known" };
                let shown = name.chars().take(40).collect::<String>();
                let what = format_args!("field `{}` {why}", Within::Field(self.within, &shown));
                return Err(de::Error::custom(what));
            };
            let field = missing.remove(place);
            let at = field.offset_bytes();
            let bytes = self.bytes.get_mut(at..at + field.ty().size_bytes()).unwrap_or_default();
            let within = &Within::Field(self.within, &name);
            from.next_value_seed(Fill { shape: Shape::of(field.ty()), bytes, within })?;
        }
        match missing.first() {
            None => Ok(()),
            Some(field) => {
                let name = Within::Field(self.within, field.name());
                Err(de::Error::custom(format_args!("field `{name}` is missing")))
            }
        }
    }
}

/// Only asked for by what its shape is.
fn unexpected<E: de::Error>(fill: &Fill<'_>) -> E {
    E::invalid_type(de::Unexpected::Other("something else"), fill)
}
