//! Layouts made by hand.

use cellway_record::{
    ALIGN_BYTES_MAX, DEPTH_MAX, Layout, NAME_BYTES_MAX, RecordErrorKind, SIZE_BYTES_MAX, Scalar,
    TYPES_MAX, Type,
};
use proptest::prelude::*;

use crate::model::{record, scalar};

/// The refusal's text.
fn refused(layout: cellway_record::LayoutBuilder) -> String {
    let error = layout.build().unwrap_err();
    assert_eq!(error.kind, RecordErrorKind::Layout);
    error.to_string()
}

#[test]
fn the_thesis_record_is_as_create_type_has_it() {
    // Figure 4.4: offsets and the size in bytes are given.
    let given = Layout::record("average_t")
        .field_at(0, "id", Scalar::U32)
        .field_at(4, "count", Scalar::U32)
        .field_at(8, "coord", Scalar::U64.array(3).unwrap())
        .size_bytes(2 * 4 + 3 * 8)
        .build();
    let computed = Layout::record("average_t")
        .field("id", "unsigned int".parse::<Scalar>().unwrap())
        .field("count", "unsigned int".parse::<Scalar>().unwrap())
        .field("coord", "unsigned long".parse::<Scalar>().unwrap().array(3).unwrap())
        .build();
    assert_eq!(given, computed);
    let text = "average_t { id: u32 @0, count: u32 @4, coord: [u64; 3] @8 } 32 bytes";
    assert_eq!(given.unwrap().to_string(), text);
}

proptest! {
    #[test]
    fn offsets_are_those_of_a_plain_reference(record in record()) {
        let layout = record.layout().unwrap();
        let offsets = layout.fields().iter().map(|field| field.offset_bytes()).collect::<Vec<_>>();
        prop_assert_eq!(offsets, record.offsets());
        prop_assert_eq!((layout.size_bytes(), layout.align_bytes()), (record.size(), record.align()));
    }

    /// Fields at any places, against a map of who has which byte.
    #[test]
    fn given_offsets_are_taken_if_each_byte_has_one_owner(
        fields in prop::collection::vec((0..6_usize, scalar(), 1..3_usize), 0..5),
        size in prop::option::of(0..48_usize),
        align in prop::option::of(prop::sample::select(vec![0, 1, 2, 3, 4, 8, 16])),
    ) {
        let mut builder = Layout::record("R");
        let (mut owned, mut last, mut right) = (vec![false; 64], 0, true);
        let mut at = 0_usize;
        let mut needed = 1;
        for (number, (gap, scalar, count)) in fields.iter().enumerate() {
            // Mostly in order, now and then back into what is there.
            at = if *gap >= 4 { at.saturating_sub(gap - 3) } else { at + gap };
            builder = builder.field_at(at, format!("f{number}"), scalar.array(*count).unwrap());
            right &= at >= last && at.is_multiple_of(scalar.size_bytes());
            for byte in at..at + scalar.size_bytes() * count {
                if byte >= owned.len() {
                    owned.resize(byte + 1, false);
                }
                right &= !owned[byte];
                owned[byte] = true;
            }
            last = at;
            at += scalar.size_bytes() * count;
            needed = needed.max(scalar.size_bytes());
        }
        let end = owned.iter().rposition(|owned| *owned).map_or(0, |last| last + 1);
        let align_or = align.unwrap_or(needed);
        right &= align_or.is_power_of_two() && align_or >= needed;
        if let Some(size) = size {
            builder = builder.size_bytes(size);
            right &= end <= size && align_or != 0 && size.is_multiple_of(align_or);
        }
        if let Some(align) = align {
            builder = builder.align_bytes(align);
        }
        let built = builder.build();
        prop_assert_eq!(built.is_ok(), right, "{:?}", built);
        if let Ok(layout) = built {
            prop_assert!(layout.size_bytes() >= end && layout.size_bytes() < end.max(size.unwrap_or(0)) + align_or);
        }
    }
}

#[test]
fn refusals_say_what_is_wrong() {
    let pair = || Layout::record("Pair").field("a", Scalar::U32);
    let told = [
        (
            pair().field_at(3, "b", Scalar::U8),
            "`Pair` has field `b` at 3, but the one before ends at 4",
        ),
        (
            pair().field_at(2, "b", Scalar::U16),
            "`Pair` has field `b` at 2, but the one before ends at 4",
        ),
        (pair().field_at(5, "b", Scalar::U16), "`b` at 5, which is no multiple of its 2 bytes"),
        (pair().field("a", Scalar::U16), "two fields `a`"),
        (pair().size_bytes(3), "has 3 bytes, and its fields end at 4"),
        (pair().size_bytes(6), "has 6 bytes, which is no multiple of 4"),
        (pair().align_bytes(2).size_bytes(4), "is aligned to 2, but field `a` to 4"),
        (pair().align_bytes(12).size_bytes(12), "is aligned to 12 bytes"),
        (pair().align_bytes(ALIGN_BYTES_MAX * 2), "is aligned to 8192 bytes"),
        (pair().field("a.b", Scalar::U8), "no field is named \"a.b\""),
        (pair().field("", Scalar::U8), "no field is named \"\""),
        (pair().field("1a", Scalar::U8), "no field is named \"1a\""),
        (Layout::record("R\n"), "no record is named \"R\\n\""),
        (Layout::record("R".repeat(NAME_BYTES_MAX + 1)), "no record is named"),
        (pair().field_at(usize::MAX - 3, "b", Scalar::U32), "and its fields end at"),
        (pair().field_at(usize::MAX - 3, "b", Scalar::U32).size_bytes(64), "and its fields end at"),
        (pair().size_bytes(SIZE_BYTES_MAX + 4), "has 67108868 bytes"),
        (pair().size_bytes(usize::MAX - 3), "before 64 MiB"),
    ];
    for (builder, what) in told {
        let error = refused(builder);
        assert!(error.contains(what), "{error:?} does not say {what:?}");
    }
}

#[test]
fn records_of_nothing_are_records_but_no_fields() {
    let nothing = Layout::record("Nothing").build().unwrap();
    assert_eq!((nothing.size_bytes(), nothing.align_bytes()), (0, 1));
    assert_eq!(nothing.to_string(), "Nothing { } 0 bytes");
    assert!(
        refused(Layout::record("R").field("n", nothing.clone())).contains("which has no bytes")
    );
    assert!(Type::from(nothing).array(1 << 60).is_err());
    let padding = Layout::record("Padding").size_bytes(64).align_bytes(64).build().unwrap();
    assert_eq!(padding.to_string(), "Padding { } 64 bytes aligned to 64");
    let outer = Layout::record("Outer").field("a", Scalar::U8).field("b", padding).build().unwrap();
    assert_eq!((outer.fields()[1].offset_bytes(), outer.size_bytes()), (64, 128));
}

#[test]
fn counts_and_depths_have_limits() {
    assert!(Scalar::U8.array(0).is_err());
    assert!(Scalar::U8.array(usize::MAX).is_err());
    assert!(Scalar::F64.array(usize::MAX / 4).is_err());
    assert!(Scalar::U8.array(SIZE_BYTES_MAX + 1).is_err());
    assert!(Scalar::U8.array(SIZE_BYTES_MAX).unwrap().array(2).is_err());
    let largest = Scalar::U8.array(SIZE_BYTES_MAX).unwrap();
    assert!(Layout::record("R").field("f", largest.clone()).build().is_ok());
    assert!(Layout::record("R").field("f", largest).field("g", Scalar::U8).build().is_err());

    let mut ty = Type::from(Scalar::U8);
    let mut depth = 1;
    while let Ok(deeper) = ty.clone().array(1) {
        ty = deeper;
        depth += 1;
    }
    assert_eq!(depth, DEPTH_MAX);
    assert!(refused(Layout::record("R").field("f", ty)).contains("17 deep"));

    let wide = |fields: usize| {
        (0..fields).fold(Layout::record("R"), |r, n| r.field(format!("f{n}"), Scalar::U8))
    };
    assert!(wide(TYPES_MAX - 1).build().is_ok());
    assert!(refused(wide(TYPES_MAX)).contains("1025 types"));
    // A record twice in one that is twice in another, and so on: few objects, many types.
    let mut twice = Layout::record("R").field("a", Scalar::U8).build().unwrap();
    while let Ok(next) =
        Layout::record("R").field("a", twice.clone()).field("b", twice.clone()).build()
    {
        twice = next;
    }
    assert!(twice.to_bytes().len() < cellway_record::DESCRIPTOR_BYTES_MAX);
}
