//! Records by their layout: paths, values, JSON.

use cellway_record::{Layout, RecordErrorKind, Scalar, Type, Value, View, ViewMut};
use proptest::prelude::*;

use crate::model::{Leaf, Model, record};

fn record_and_bytes() -> impl Strategy<Value = (Model, Vec<u8>)> {
    record().prop_flat_map(|record| {
        let bytes = prop::collection::vec(any::<u8>(), record.size());
        (Just(record), bytes)
    })
}

/// The value of a leaf, read by plain means.
fn plain(leaf: &Leaf, bytes: &[u8]) -> Value {
    fn number<const N: usize>(leaf: &Leaf, bytes: &[u8]) -> [u8; N] {
        bytes[leaf.at..leaf.at + N].try_into().unwrap()
    }
    match leaf.scalar {
        Scalar::I8 => Value::Signed(i8::from_le_bytes(number(leaf, bytes)).into()),
        Scalar::I16 => Value::Signed(i16::from_le_bytes(number(leaf, bytes)).into()),
        Scalar::I32 => Value::Signed(i32::from_le_bytes(number(leaf, bytes)).into()),
        Scalar::I64 => Value::Signed(i64::from_le_bytes(number(leaf, bytes))),
        Scalar::U8 => Value::Unsigned(bytes[leaf.at].into()),
        Scalar::U16 => Value::Unsigned(u16::from_le_bytes(number(leaf, bytes)).into()),
        Scalar::U32 => Value::Unsigned(u32::from_le_bytes(number(leaf, bytes)).into()),
        Scalar::U64 => Value::Unsigned(u64::from_le_bytes(number(leaf, bytes))),
        Scalar::F32 => Value::F32(f32::from_le_bytes(number(leaf, bytes))),
        Scalar::F64 => Value::F64(f64::from_le_bytes(number(leaf, bytes))),
        Scalar::Char => Value::Char(bytes[leaf.at]),
    }
}

/// Equal, or both no number.
fn same(a: Value, b: Value) -> bool {
    a == b || a.to_string() == "NaN" && b.to_string() == "NaN"
}

proptest! {
    #[test]
    fn each_path_leads_to_its_bytes((record, bytes) in record_and_bytes()) {
        let layout = record.layout().unwrap();
        let view = View::new(&layout, &bytes).unwrap();
        let mut copy = vec![0; bytes.len()];
        let mut owned = vec![false; bytes.len()];
        let mut to = ViewMut::new(&layout, &mut copy).unwrap();
        for leaf in record.leaves() {
            let value = view.get(&leaf.path).unwrap();
            prop_assert!(same(value, plain(&leaf, &bytes)), "{:?}: {}", leaf, value);
            let size = leaf.scalar.size_bytes();
            prop_assert_eq!(view.at(&leaf.path).unwrap().bytes(), &bytes[leaf.at..leaf.at + size]);
            to.set(&leaf.path, value).unwrap();
            owned[leaf.at..leaf.at + size].fill(true);
        }
        // All fields were set, and nothing else.
        for (at, owned) in owned.into_iter().enumerate() {
            prop_assert_eq!(copy[at], if owned { bytes[at] } else { 0 }, "at {}", at);
        }
    }

    #[test]
    fn each_record_comes_back_from_json((record, bytes) in record_and_bytes()) {
        let layout = record.layout().unwrap();
        let json = View::new(&layout, &bytes).unwrap().to_json().unwrap();
        let again = layout.from_json(&json).unwrap();
        for leaf in record.leaves() {
            let (one, other) = (plain(&leaf, &bytes), plain(&leaf, &again));
            prop_assert!(same(one, other), "{:?}: {} and {} in {}", leaf, one, other, json);
        }
        // Any reader of JSON understands it, and finds the fields.
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        let names = read.as_object().unwrap().keys().count();
        prop_assert_eq!(names, layout.fields().len());
    }
}

fn shape() -> Layout {
    let point = Layout::record("Point").field("x", Scalar::F32).field("n", Scalar::U8).build();
    Layout::record("Shape")
        .field("a", Scalar::I8)
        .field("points", Type::from(point.unwrap()).array(2).unwrap())
        .field("text", Scalar::Char.array(4).unwrap())
        .field("c", Scalar::Char)
        .field("f", Scalar::F64)
        .build()
        .unwrap()
}

#[test]
fn json_is_as_people_expect_it() {
    let layout = shape();
    let json = r#"{"a":-1,"points":[{"x":0.1,"n":1},{"x":"NaN","n":255}],"text":"né","c":"c","f":"-Infinity"}"#;
    let bytes = layout.from_json(json).unwrap();
    let view = View::new(&layout, &bytes).unwrap();
    assert_eq!(view.to_json().unwrap(), json);
    assert_eq!(view.at("points[0]").unwrap().to_json().unwrap(), r#"{"x":0.1,"n":1}"#);
    assert_eq!(view.at("text").unwrap().to_json().unwrap(), r#""né""#);
    assert_eq!(view.get("text[0]"), Ok(Value::Char(b'n')));
    assert_eq!(view.get("points[0].x"), Ok(Value::F32(0.1)));
    // In any order, with space, and a text as numbers.
    let other = r#" {"f": "-Infinity", "c": 99, "text": [110, 195, 169, 0], "points":
        [{"n":1,"x":1e-1}, {"n":255,"x":"NaN"}], "a": -1} "#;
    assert_eq!(layout.from_json(other).unwrap(), bytes);
}

#[test]
fn bytes_that_are_no_text_are_numbers() {
    let layout =
        Layout::record("T").field("t", Scalar::Char.array(3).unwrap()).field("c", Scalar::Char);
    let layout = layout.build().unwrap();
    for (bytes, json) in [
        ([0xff, 0, 65, 0xff], r#"{"t":[255,0,65],"c":255}"#),
        ([0, 0, 0, 0], r#"{"t":"","c":""}"#),
        ([0, b'"', 0, b'\n'], "{\"t\":\"\\u0000\\\"\",\"c\":\"\\n\"}"),
    ] {
        assert_eq!(View::new(&layout, &bytes).unwrap().to_json().unwrap(), json);
        assert_eq!(layout.from_json(json).unwrap(), bytes);
    }
}

#[test]
fn numbers_are_exact() {
    let layout =
        Layout::record("N").field("f", Scalar::F32).field("u", Scalar::U64).field("i", Scalar::I64);
    let layout = layout.build().unwrap();
    // By way of an f64 this would be the f32 beside it.
    let json = r#"{"f":7.038531e-26,"u":18446744073709551615,"i":-9223372036854775808}"#;
    let bytes = layout.from_json(json).unwrap();
    let view = View::new(&layout, &bytes).unwrap();
    assert_eq!(view.get("f"), Ok(Value::F32(7.038531e-26)));
    assert_eq!(view.get("u"), Ok(Value::Unsigned(u64::MAX)));
    assert_eq!(view.to_json().unwrap(), json);
}

#[test]
fn json_that_does_not_fit_is_refused_by_name() {
    let layout = shape();
    let good = r#"{"a":1,"points":[{"x":1,"n":1},{"x":1,"n":1}],"text":"","c":"","f":0}"#;
    layout.from_json(good).unwrap();
    for (from, to, told) in [
        ("\"a\":1", "\"a\":128", "`a`: 128 is no i8"),
        ("\"a\":1", "\"a\":1.0", "`a`: 1.0 is no i8"),
        ("\"a\":1", "\"a\":\"1\"", "`a`: \"1\" is no i8"),
        ("\"a\":1", "\"a\":null", "`a`: null is no i8"),
        ("\"a\":1,", "", "field `a` is missing"),
        ("\"a\":1", "\"a\":1,\"a\":1", "field `a` is there twice"),
        ("\"a\":1", "\"a\":1,\"b\":1", "field `b` is not known"),
        ("\"n\":1}]", "\"n\":256}]", "`points[1].n`: 256 is no u8"),
        ("\"n\":1}]", "\"n\":1},{\"x\":1,\"n\":1}]", "trailing characters"),
        (",{\"x\":1,\"n\":1}]", "]", "`points` has 1 of 2"),
        ("\"x\":1", "\"x\":1e39", "`points[0].x`: 1e39 is no f32"),
        ("\"x\":1", "\"x\":[]", "`points[0].x`: [] is no f32"),
        ("\"text\":\"\"", "\"text\":\"12345\"", "invalid length 5, expected 4 elements for `text`"),
        ("\"text\":\"\"", "\"text\":1", "expected 4 elements for `text`"),
        ("\"c\":\"\"", "\"c\":\"ab\"", "`c`: \"ab\" is no char"),
        ("\"f\":0}", "\"f\":0} 1", "trailing characters"),
        ("\"f\":0}", "\"f\":0", "EOF"),
        ("{\"x\":1,\"n\":1}]", "1]", "expected an object of the fields of Point for `points[1]`"),
    ] {
        let json = good.replacen(from, to, 1);
        let error = layout.from_json(&json).unwrap_err();
        assert_eq!(error.kind, RecordErrorKind::Json);
        assert!(error.what.contains(told), "{json}: {error} does not say {told}");
        assert!(error.cure.contains("points: [Point { x: f32 @0"), "{error}");
    }
}

#[test]
fn paths_that_lead_nowhere_are_refused_by_name() {
    let layout = shape();
    let zeros = vec![0; layout.size_bytes()];
    let view = View::new(&layout, &zeros).unwrap();
    for path in [
        "b",
        "points[2]",
        "points[-1]",
        "points[+1]",
        "points[]",
        "points[0",
        "points[0]]",
        "points0]",
        "points[0]x",
        "points[0]..x",
        ".a",
        "a.",
        "a[0]",
        "a.a",
        "points.x",
        "points[0][0]",
        "[0]",
        "points[99999999999999999999]",
        ".",
        "[",
        "]",
        "points[0].",
    ] {
        let error = view.at(path).unwrap_err();
        assert_eq!(error.kind, RecordErrorKind::Path, "{path}");
        assert!(error.what.contains(path), "{error}");
    }
    let error = view.get("points[1].z").unwrap_err().to_string();
    assert!(error.contains("there is `Point` with x, n"), "{error}");
    let error = view.get("points").unwrap_err().to_string();
    assert!(error.contains("2 elements, no number"), "{error}");
    assert_eq!(view.at("").unwrap().bytes(), view.bytes());
}

#[test]
fn a_value_that_does_not_fit_changes_nothing() {
    let layout = shape();
    let mut bytes = vec![0; layout.size_bytes()];
    let mut to = ViewMut::new(&layout, &mut bytes).unwrap();
    for (path, value) in [
        ("a", Value::Unsigned(128)),
        ("a", Value::Signed(-129)),
        ("a", Value::F64(1.0)),
        ("points[0].n", Value::Signed(-1)),
        ("points[0].x", Value::F64(1e300)),
    ] {
        let error = to.set(path, value).unwrap_err();
        assert_eq!(error.kind, RecordErrorKind::Value);
        assert!(error.what.contains(&value.to_string()), "{error}");
    }
    assert!(to.set("points", Value::Signed(0)).is_err());
    assert!(to.view().bytes().iter().all(|byte| *byte == 0));
    to.set("points[0].x", Value::Unsigned(3)).unwrap();
    to.set("f", Value::F32(f32::INFINITY)).unwrap();
    to.set_json("points[1]", r#"{"x":2,"n":9}"#).unwrap();
    to.set_json("a", "-128").unwrap();
    to.set_json("text", r#""abcd""#).unwrap();
    to.set_json("text", r#""x""#).unwrap();
    assert_eq!(to.view().at("text").unwrap().bytes(), *b"x\0\0\0");
    assert_eq!(to.view().get("points[0].x"), Ok(Value::F32(3.0)));
    assert_eq!(to.view().get("f"), Ok(Value::F64(f64::INFINITY)));
    assert_eq!(to.view().get("points[1].n"), Ok(Value::Unsigned(9)));
    assert_eq!(to.view().get("a"), Ok(Value::Signed(-128)));
    assert!(View::new(&layout, &bytes[1..]).is_err());
    let mut short = [0; 3];
    assert!(ViewMut::new(&layout, &mut short).is_err());
}
