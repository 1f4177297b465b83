//! A pseudo-random order of `0..len` that needs no table and can be inverted:
//! building a random list or visiting blocks at random then costs no memory
//! traffic of its own.

/// Odd constants with well-mixed bits (from SplitMix64). Two, because what they
/// cost lengthens every version's loop alike.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

/// A fixed bijection of `0..len`. Multiply and xor-shift rounds permute the
/// next power of two; results outside `0..len` are sent round again.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    len: u64,
    mask: u64,
    shift: u32,
}

impl Permutation {
    /// Of `0..len`; `len` is at least 1.
    #[must_use]
    pub fn new(len: u64) -> Self {
        let len = len.max(1);
        let bits = u64::BITS - (len - 1).leading_zeros();
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        // With 2 * shift >= bits an xor-shift is its own inverse.
        Self { len, mask, shift: bits.div_ceil(2).max(1) }
    }

    /// The element at `place`; `place < len`.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, place: u64) -> u64 {
        let mut x = place;
        loop {
            for factor in FACTORS {
                x = x.wrapping_mul(factor) & self.mask;
                x ^= x >> self.shift;
            }
            if x < self.len {
                return x;
            }
        }
    }

    /// The place of `element`; `element < len`.
    #[must_use]
    pub fn place_of(&self, element: u64) -> u64 {
        let mut x = element;
        loop {
            for factor in FACTORS.iter().rev() {
                x ^= x >> self.shift;
                x = x.wrapping_mul(odd_inverse(*factor)) & self.mask;
            }
            if x < self.len {
                return x;
            }
        }
    }
}

/// The inverse of an odd number modulo 2^64 (Newton's iteration doubles the right bits).
pub(crate) const fn odd_inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut right_bits = 3;
    while right_bits < 64 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        right_bits *= 2;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_comes_once_and_can_be_found_again() {
        for len in (1..70).chain([1000, 1024, 4097]) {
            let order = Permutation::new(len);
            let mut elements: Vec<u64> = (0..len).map(|place| order.at(place)).collect();
            assert!((0..len).all(|place| order.place_of(order.at(place)) == place), "len {len}");
            elements.sort_unstable();
            assert!(elements.into_iter().eq(0..len), "len {len}");
        }
    }

    #[test]
    fn neighbours_end_up_far_apart() {
        let (len, order) = (1 << 20, Permutation::new(1 << 20));
        let near = (1..len).filter(|&p| order.at(p).abs_diff(order.at(p - 1)) < 1024).count();
        // Two in a thousand would be pure chance.
        assert!(near < 4 * 1024, "{near}");
    }

    #[test]
    fn huge_lengths_work() {
        for len in [u64::MAX, 1 << 63, (1 << 63) + 1] {
            let order = Permutation::new(len);
            assert!((0..1000).all(|place| order.place_of(order.at(place)) == place));
        }
    }
}
