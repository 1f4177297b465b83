//! What must hold of the readers whatever they read: run by cargo-fuzz, and by
//! proptests beside it.

use crate::{Char, DESCRIPTOR_BYTES_MAX, Layout, Record, Records, SIZE_BYTES_MAX, View, ViewMut};

/// A record this long is shown as JSON.
const SHOWN_BYTES_MAX: usize = 4096;

#[derive(Clone, Copy, Record)]
#[repr(C)]
struct Point {
    x: f32,
    n: u8,
}

/// What JSON and paths are tried on.
#[derive(Clone, Copy, Record)]
#[repr(C)]
struct Shape {
    a: i8,
    b: f64,
    points: [[Point; 2]; 2],
    text: [Char; 5],
    c: Char,
}

/// Takes any bytes for a descriptor, and for one with records behind it.
///
/// # Panics
/// Where something does not hold.
pub fn layout(data: &[u8]) {
    if let Ok(layout) = Layout::from_bytes(data) {
        assert_eq!(layout.to_bytes(), data, "a layout has one descriptor");
        assert!(data.len() <= DESCRIPTOR_BYTES_MAX && layout.size_bytes() <= SIZE_BYTES_MAX);
        assert!(layout.to_string().starts_with(layout.name()));
        assert_eq!(layout.difference(&layout), None);
        check_json(&layout, data);
    }
    if let Ok(records) = Records::from_bytes(data) {
        assert_eq!(records.to_bytes(), data);
        assert_eq!(records.views().count(), records.len());
    }
    if let Ok(text) = str::from_utf8(data) {
        let _ = Shape::LAYOUT.from_json(text);
        let mut bytes = vec![0; Shape::LAYOUT.size_bytes()];
        let mut shape = ViewMut::new(Shape::LAYOUT, &mut bytes).unwrap();
        let (path, json) = text.split_once('=').unwrap_or((text, "1"));
        let set = shape.set_json(path, json);
        let got = shape.view().at(path);
        assert!(got.is_ok() || set.is_err(), "{path:?} was set and cannot be got");
    }
}

/// A record of the bytes of `from`, over and over, is the same after a journey through JSON.
fn check_json(layout: &Layout, from: &[u8]) {
    if layout.size_bytes() > SHOWN_BYTES_MAX {
        return;
    }
    let bytes: Vec<_> = from.iter().copied().cycle().take(layout.size_bytes()).collect();
    let json = View::new(layout, &bytes).and_then(View::to_json).unwrap();
    let again = layout.from_json(&json).unwrap();
    assert_eq!(View::new(layout, &again).and_then(View::to_json).unwrap(), json);
}

#[cfg(test)]
mod tests {
    use super::Shape;
    use crate::{Layout, Record, Records};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_bytes_are_a_descriptor_or_refused(data in prop::collection::vec(any::<u8>(), 0..300)) {
            super::layout(&data);
        }

        #[test]
        fn any_path_and_json_are_taken_or_refused(
            text in r#"(a|b|points|text|c|\[|\]|[0-9]|\.|x|n){0,6}=[\[\{]{0,2}("[a-c]{0,3}"|[0-9]{1,4}|-?[0-9]e[0-9]{2}|,|:|\}|\]){0,5}"#
        ) {
            super::layout(text.as_bytes());
        }

        #[test]
        fn a_changed_descriptor_is_refused_or_another_layout(
            at in any::<prop::sample::Index>(), change in 1..=u8::MAX,
        ) {
            let mut bytes = Shape::LAYOUT.to_bytes();
            let at = at.index(bytes.len());
            prop_assert!(Layout::from_bytes(&bytes[..at]).is_err(), "cut at {at}");
            bytes[at] ^= change;
            super::layout(&bytes);
            if let Ok(other) = Layout::from_bytes(&bytes) {
                prop_assert!(Shape::LAYOUT.difference(&other).is_some(), "{other}");
                prop_assert_ne!(Shape::LAYOUT.hash64(), other.hash64());
                prop_assert!(Records::new(other, Vec::new()).unwrap().get::<Shape>().is_err());
            }
        }
    }
}
