//! Structs that derive `Record`.

use cellway_record::{Char, Layout, Record, RecordErrorKind, Records, Scalar, View};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Record)]
#[repr(C)]
struct Point {
    x: f32,
    n: u8,
}

/// The name of a constant that the derive could hide.
const LAYOUT: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Record)]
#[repr(C)]
struct All {
    a: i8,
    b: i64,
    c: i16,
    d: i32,
    e: u8,
    f: u64,
    g: u16,
    h: u32,
    i: [f32; 2],
    j: f64,
    k: [Char; 3],
    l: Point,
    m: [[Point; 2]; LAYOUT],
    r#type: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Record)]
#[repr(C)]
struct Nothing;

/// As C calls it, and with a cache line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Record)]
#[repr(C, align(64))]
#[record(name = "line_t", crate = cellway_record)]
struct Line {
    first: u8,
}

fn point() -> impl Strategy<Value = Point> {
    (prop::num::f32::NORMAL, any::<u8>()).prop_map(|(x, n)| Point { x, n })
}

fn all() -> impl Strategy<Value = All> {
    let integers = (any::<(i8, i64, i16, i32)>(), any::<(u8, u64, u16, u32)>());
    let floats = (prop::array::uniform2(prop::num::f32::NORMAL), prop::num::f64::NORMAL);
    let rest = (any::<[u8; 3]>(), point(), prop::array::uniform3(prop::array::uniform2(point())));
    (integers, floats, rest).prop_map(|(((a, b, c, d), (e, f, g, h)), (i, j), (k, l, m))| All {
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        i,
        j,
        k: k.map(Char),
        l,
        m,
        r#type: e,
    })
}

fn by_hand() -> Layout {
    let point = || Layout::record("Point").field("x", Scalar::F32).field("n", Scalar::U8).build();
    let points = cellway_record::Type::from(point().unwrap()).array(2).unwrap().array(3).unwrap();
    Layout::record("All")
        .field("a", Scalar::I8)
        .field("b", Scalar::I64)
        .field("c", Scalar::I16)
        .field("d", Scalar::I32)
        .field("e", Scalar::U8)
        .field("f", Scalar::U64)
        .field("g", Scalar::U16)
        .field("h", Scalar::U32)
        .field("i", Scalar::F32.array(2).unwrap())
        .field("j", Scalar::F64)
        .field("k", Scalar::Char.array(3).unwrap())
        .field("l", point().unwrap())
        .field("m", points)
        .field("type", Scalar::U8)
        .build()
        .unwrap()
}

#[test]
fn the_layout_is_that_made_by_hand() {
    assert_eq!(All::LAYOUT, &by_hand());
    assert_eq!(All::LAYOUT.size_bytes(), size_of::<All>());
    assert_eq!(All::LAYOUT.align_bytes(), align_of::<All>());
    assert_eq!(Nothing::LAYOUT, &Layout::record("Nothing").build().unwrap());
    let line = Layout::record("line_t").field("first", Scalar::U8).align_bytes(64).build();
    assert_eq!(Line::LAYOUT, &line.unwrap());
    assert_eq!(Line::LAYOUT.to_string(), "line_t { first: u8 @0 } 64 bytes aligned to 64");
}

#[test]
fn bytes_are_little_endian_and_padding_is_zero() {
    let point = Point { x: 1.0, n: 7 };
    assert_eq!(point.to_bytes(), [0, 0, 0x80, 0x3f, 7, 0, 0, 0]);
    // What is padding does not matter to a reader.
    assert_eq!(Point::from_bytes(&[0, 0, 0x80, 0x3f, 7, 1, 2, 3]), Ok(point));
    let mut out = vec![9; 2];
    Line { first: 1 }.append_to(&mut out);
    assert_eq!((&out[..3], out.len(), out[3..].iter().max()), (&[9, 9, 1][..], 66, Some(&0)));
}

#[test]
fn bytes_of_another_length_are_refused() {
    for bytes in [vec![0; 7], vec![0; 9], vec![]] {
        let error = Point::from_bytes(&bytes).unwrap_err();
        assert_eq!(error.kind, RecordErrorKind::Length);
        assert!(error.what.contains("`Point`, which have 8 each"), "{error}");
    }
    assert!(Point::all(&[0; 15]).is_err());
    assert_eq!(Point::all(&[0; 16]).unwrap().count(), 2);
    assert_eq!(Nothing::from_bytes(&[]), Ok(Nothing));
    assert!(Nothing::from_bytes(&[0]).is_err());
    assert_eq!(Nothing::all(&[]).unwrap().count(), 0);
    assert!(Nothing::all(&[0]).is_err());
}

#[test]
fn records_of_no_bytes_are_none() {
    let records = Records::of(&[Nothing; 3]);
    assert_eq!((records.len(), records.views().count()), (0, 0));
    assert_eq!(Records::from_bytes(&records.to_bytes()).unwrap().get::<Nothing>().unwrap(), []);
    assert!(Records::new(Nothing::LAYOUT.clone(), vec![0]).is_err());
}

proptest! {
    #[test]
    fn records_come_back_from_bytes(records in prop::collection::vec(all(), 0..5)) {
        for record in &records {
            prop_assert_eq!(All::from_bytes(&record.to_bytes()), Ok(*record));
        }
        let sent = Records::of(&records);
        prop_assert_eq!(sent.len(), records.len());
        prop_assert_eq!(All::all(sent.bytes()).unwrap().collect::<Vec<_>>(), records.clone());
        let got = Records::from_bytes(&sent.to_bytes()).unwrap();
        prop_assert_eq!(got.get::<All>().unwrap(), records);
        prop_assert_eq!(got, sent);
    }

    #[test]
    fn records_come_back_from_json(record in all()) {
        let bytes = record.to_bytes();
        let json = View::new(All::LAYOUT, &bytes).unwrap().to_json().unwrap();
        let again = All::LAYOUT.from_json(&json).unwrap();
        prop_assert_eq!(All::from_bytes(&again), Ok(record), "{}", json);
        prop_assert_eq!(again, bytes);
    }

    /// What lies between fields is neither read nor written.
    #[test]
    fn padding_does_not_matter(record in all(), noise in any::<u8>()) {
        let mut bytes = record.to_bytes();
        let mut owned = vec![false; bytes.len()];
        own(All::LAYOUT, 0, &mut owned);
        for (byte, _) in bytes.iter_mut().zip(&owned).filter(|(_, owned)| !**owned) {
            prop_assert_eq!(*byte, 0);
            *byte = noise;
        }
        prop_assert_eq!(All::from_bytes(&bytes), Ok(record));
    }
}

/// Marks bytes that are of a field.
fn own(layout: &Layout, at: usize, owned: &mut [bool]) {
    fn of_type(ty: &cellway_record::Type, at: usize, owned: &mut [bool]) {
        match ty {
            cellway_record::Type::Scalar(scalar) => {
                owned[at..at + scalar.size_bytes()].fill(true);
            }
            cellway_record::Type::Array(array) => {
                let each = array.element().size_bytes();
                (0..array.count()).for_each(|i| of_type(array.element(), at + i * each, owned));
            }
            cellway_record::Type::Record(layout) => own(layout, at, owned),
        }
    }
    for field in layout.fields() {
        of_type(field.ty(), at + field.offset_bytes(), owned);
    }
}
