use super::integers::{Sums, sum_i16, sum_u8};

/// More pairs than the lanes can hold before they are emptied.
const MANY: usize = 70_001;

fn plain_sums(pairs: impl Iterator<Item = [i128; 2]>) -> Sums {
    let mut sums = Sums::default();
    for [x, y] in pairs {
        sums.add(&Sums { n: 1, x, y, xx: x * x, xy: x * y, yy: y * y });
    }
    sums
}

#[test]
fn extreme_values_do_not_overflow_a_lane() {
    for bytes in [[255, 255], [255, 0], [0, 255]] {
        let expected = plain_sums(std::iter::repeat_n(bytes.map(i128::from), MANY));
        assert_eq!(sum_u8(&bytes.repeat(MANY)), expected);
    }
    for pair in [[i16::MIN; 2], [i16::MAX; 2], [i16::MIN, i16::MAX], [-1, 1], [-1, i16::MIN]] {
        let bytes = pair.map(i16::to_le_bytes).as_flattened().repeat(MANY);
        let expected = plain_sums(std::iter::repeat_n(pair.map(i128::from), MANY));
        assert_eq!(sum_i16(&bytes), expected, "{pair:?}");
    }
}

#[test]
fn sums_are_exact() {
    let bytes: Vec<u8> =
        (0..MANY as u64 * 4).map(|i| (i.wrapping_mul(i * 2_654_435_761) >> 13) as u8).collect();
    let expected = plain_sums(bytes.as_chunks::<2>().0.iter().map(|pair| pair.map(i128::from)));
    assert_eq!(sum_u8(&bytes), expected);
    let shorts = bytes.as_chunks::<4>().0.iter().map(|&[a, b, c, d]| {
        [i16::from_le_bytes([a, b]), i16::from_le_bytes([c, d])].map(i128::from)
    });
    assert_eq!(sum_i16(&bytes), plain_sums(shorts));
}

#[test]
fn more_pairs_than_can_be_exact_are_refused() {
    let enormous = Sums { n: u64::MAX, x: 0, y: 0, xx: 1 << 100, xy: 0, yy: 0 };
    let message = enormous.fit().unwrap_err().to_string();
    assert!(message.contains("too many") && message.contains("split"), "{message}");
}
