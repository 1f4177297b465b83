//! Layouts that travel, and what they differ in.

use cellway_record::{DESCRIPTOR_BYTES_MAX, Layout, RecordErrorKind, Records, Scalar, Type};
use proptest::prelude::*;

use crate::model::record;

proptest! {
    #[test]
    fn a_layout_comes_back_from_its_descriptor(record in record()) {
        let layout = record.layout().unwrap();
        let bytes = layout.to_bytes();
        prop_assert!(bytes.len() <= DESCRIPTOR_BYTES_MAX);
        let again = Layout::from_bytes(&bytes).unwrap();
        prop_assert_eq!(layout.difference(&again), None);
        prop_assert_eq!(layout.hash64(), again.hash64());
        prop_assert_eq!(again, layout);
        let behind = [&bytes[..], &[0]].concat();
        prop_assert!(Layout::from_bytes(&behind).unwrap_err().what.contains("1 bytes follow"));
    }

    #[test]
    fn layouts_that_differ_have_a_difference(one in record(), other in record()) {
        let (one, other) = (one.layout().unwrap(), other.layout().unwrap());
        prop_assert_eq!(one.difference(&other).is_some(), one != other);
        prop_assert_eq!(one.hash64() == other.hash64(), one == other);
        prop_assert_eq!(one.to_bytes() == other.to_bytes(), one == other);
    }

    /// Each byte changed to each value: refused, or another layout, as `from_bytes` reads
    /// one descriptor for one layout.
    #[test]
    fn each_byte_of_a_descriptor_counts(record in record(), bit in 0..8_u32) {
        let layout = record.layout().unwrap();
        let bytes = layout.to_bytes();
        for at in 0..bytes.len() {
            prop_assert!(Layout::from_bytes(&bytes[..at]).is_err(), "cut at {}", at);
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            if let Ok(other) = Layout::from_bytes(&changed) {
                prop_assert!(layout.difference(&other).is_some(), "{} and {}", layout, other);
                prop_assert_eq!(other.to_bytes(), changed);
            }
        }
    }
}

#[test]
fn the_descriptor_and_the_hash_stay_what_they_are() {
    let pair = Layout::record("P").field("x", Scalar::U8).field("y", Scalar::F64.array(2).unwrap());
    let pair = pair.build().unwrap();
    let bytes = [
        &[1, 1, b'P', 24, 0, 0, 0, 8, 0, 0, 0, 2, 0][..],
        &[1, b'x', 0, 0, 0, 0, 4],
        &[1, b'y', 8, 0, 0, 0, 254, 2, 0, 0, 0, 9],
    ];
    assert_eq!(pair.to_bytes(), bytes.concat());
    // The first eight bytes that b3sum gives for them.
    assert_eq!(pair.hash64(), 13_352_331_568_356_142_043);
}

#[test]
fn damaged_descriptors_take_no_memory_and_no_stack() {
    // A record in a record in a record, without an end; arrays likewise.
    let record = [1, b'r', 255, 255, 255, 255, 1, 0, 0, 0, 255, 255, 1, b'f', 0, 0, 0, 0, 255];
    let records = [&[1][..], &record.repeat(100_000)].concat();
    assert!(Layout::from_bytes(&records).unwrap_err().what.contains("16 deep"));
    let arrays = [&[1][..], &record[..18], &[254, 1, 0, 0, 0].repeat(100_000)].concat();
    assert!(Layout::from_bytes(&arrays).unwrap_err().what.contains("16 deep"));
    let scalars = [1, b'f', 0, 0, 0, 0, 0].repeat(65535);
    let wide = [&[1][..], &record[..12], &scalars].concat();
    assert!(Layout::from_bytes(&wide).unwrap_err().what.contains("1024 types"));
    let error = Layout::from_bytes(&[2]).unwrap_err();
    assert_eq!(error.kind, RecordErrorKind::Descriptor);
    assert!(error.what.contains("version 2, and 1 is known"), "{error}");
    assert!(Records::from_bytes(&[]).is_err());
}

fn pair(name: &str, first: &str, x: Type, y: Scalar) -> Layout {
    Layout::record(name).field(first, x).field("y", y).build().unwrap()
}

#[test]
fn a_difference_is_told_by_name() {
    let plain = || pair("Pair", "x", Scalar::F32.into(), Scalar::U32);
    let inner = |y| {
        Layout::record("Outer")
            .field("p", Type::from(pair("Pair", "x", Scalar::F32.into(), y)).array(2).unwrap())
            .build()
            .unwrap()
    };
    let wide = Layout::record("Pair").field("x", Scalar::F32).field_at(8, "y", Scalar::U32);
    let long =
        Layout::record("Pair").field("x", Scalar::F32).field("y", Scalar::U32).size_bytes(16);
    let line =
        Layout::record("Pair").field("x", Scalar::F32).field("y", Scalar::U32).align_bytes(8);
    let nested =
        |layout: Layout| Layout::record("Outer").field("p", layout).size_bytes(32).build().unwrap();
    let one = || Layout::record("Pair").field("x", Scalar::F32).build().unwrap();
    for (here, there, told) in [
        (
            plain(),
            pair("Point", "x", Scalar::F32.into(), Scalar::U32),
            "the record is `Pair` here and `Point` there",
        ),
        (
            plain(),
            pair("Pair", "x", Scalar::I32.into(), Scalar::U32),
            "field `x` is f32 at 0 here and i32 at 0 there",
        ),
        (
            plain(),
            pair("Pair", "x", Scalar::F32.array(1).unwrap(), Scalar::U32),
            "field `x` is f32 at 0 here and [f32; 1] at 0 there",
        ),
        (plain(), wide.build().unwrap(), "field `y` is u32 at 4 here and u32 at 8 there"),
        (
            plain(),
            pair("Pair", "z", Scalar::F32.into(), Scalar::U32),
            "field `x` (f32 at 0) is only here",
        ),
        (plain(), one(), "field `y` (u32 at 4) is only here"),
        (one(), plain(), "field `y` (u32 at 4) is only there"),
        (plain(), long.clone().build().unwrap(), "`Pair` has 8 bytes here and 16 there"),
        (plain(), line.build().unwrap(), "`Pair` is aligned to 4 bytes here and 8 there"),
        (
            inner(Scalar::U32),
            inner(Scalar::F32),
            "field `p[].y` is u32 at 4 here and f32 at 4 there",
        ),
        (
            nested(plain()),
            nested(long.build().unwrap()),
            "`Pair` (field `p`) has 8 bytes here and 16 there",
        ),
    ] {
        assert_eq!(here.difference(&there).as_deref(), Some(told));
        let error = here.expect(&there).unwrap_err();
        assert_eq!(error.kind, RecordErrorKind::Differs);
        assert!(error.what.ends_with(told) && error.what.contains(here.name()), "{error}");
    }
}
