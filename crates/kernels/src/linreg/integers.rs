//! Exact sums of integer pairs. The inner loops add up in 32-bit lanes, so
//! that they vectorize, over as many pairs as cannot overflow them.

use stream::{KernelError, Saved};

use super::{LinRegReport, Spread};

/// Exact sums over pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) n: u64,
    pub(super) x: i128,
    pub(super) y: i128,
    pub(super) xx: i128,
    pub(super) xy: i128,
    pub(super) yy: i128,
}

impl Sums {
    pub(super) fn add(&mut self, more: &Sums) {
        self.n += more.n;
        self.x += more.x;
        self.y += more.y;
        self.xx += more.xx;
        self.xy += more.xy;
        self.yy += more.yy;
    }

    pub(super) fn save(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.n.to_le_bytes());
        for sum in [self.x, self.y, self.xx, self.xy, self.yy] {
            out.extend_from_slice(&sum.to_le_bytes());
        }
    }

    pub(super) fn load(saved: &mut Saved<'_>) -> Result<Self, KernelError> {
        let n = saved.u64()?;
        let mut sum = || saved.array().map(i128::from_le_bytes);
        Ok(Self { n, x: sum()?, y: sum()?, xx: sum()?, xy: sum()?, yy: sum()? })
    }

    /// The line; differences are taken exactly and rounded only then.
    pub(super) fn fit(&self) -> Result<LinRegReport, KernelError> {
        let times_n = |products: i128, a: i128, b: i128| {
            i128::from(self.n).checked_mul(products)?.checked_sub(a.checked_mul(b)?)
        };
        let (Some(xx), Some(xy), Some(yy)) = (
            times_n(self.xx, self.x, self.x),
            times_n(self.xy, self.x, self.y),
            times_n(self.yy, self.y, self.y),
        ) else {
            let what = format!("{} pairs are too many to fit a line exactly", self.n);
            return Err(KernelError::new(what, "split the input, or convert it to pairs of f64"));
        };
        Ok(LinRegReport::from_spread(&Spread {
            n: self.n,
            mean_x: self.x as f64 / self.n as f64,
            mean_y: self.y as f64 / self.n as f64,
            xx: xx as f64,
            xy: xy as f64,
            yy: yy as f64,
            x_varies: xx != 0,
            y_varies: yy != 0,
        }))
    }
}

/// Pairs summed before 32-bit lanes are emptied: 2^15.
const CHUNK_PAIRS: usize = 1 << 15;
const _: () =
    assert!(CHUNK_PAIRS as u64 * 255 * 255 <= u32::MAX as u64, "squares of u8 fit a lane");
const _: () = assert!(
    CHUNK_PAIRS as u64 * 0xffff <= u32::MAX as u64,
    "lower halves of i16 products fit a lane"
);
const _: () =
    assert!(CHUNK_PAIRS as u64 * (1 << 15) <= i32::MAX as u64 + 1, "sums of i16 fit a lane");

/// Sums pairs of bytes; an incomplete pair at the end does not count.
pub(super) fn sum_u8(bytes: &[u8]) -> Sums {
    let mut sums = Sums::default();
    for chunk in bytes.chunks(CHUNK_PAIRS * 2) {
        let (pairs, _) = chunk.as_chunks::<2>();
        let [mut x, mut y, mut xx, mut xy, mut yy] = [0_u32; 5];
        for &[a, b] in pairs {
            let (a, b) = (u32::from(a), u32::from(b));
            x += a;
            y += b;
            xx += a * a;
            xy += a * b;
            yy += b * b;
        }
        let [x, y, xx, xy, yy] = [x, y, xx, xy, yy].map(i128::from);
        sums.add(&Sums { n: pairs.len() as u64, x, y, xx, xy, yy });
    }
    sums
}

/// A sum of 32-bit products in two lanes of 32 bits.
#[derive(Clone, Copy, Default)]
struct Halves {
    low: u32,
    high: i32,
}

impl Halves {
    #[inline(always)]
    fn add(&mut self, product: i32) {
        self.low += product.cast_unsigned() & 0xffff;
        self.high += product >> 16;
    }

    fn total(self) -> i128 {
        i128::from(self.high) * 65536 + i128::from(self.low)
    }
}

/// Sums pairs of 16-bit integers; an incomplete pair at the end does not count.
pub(super) fn sum_i16(bytes: &[u8]) -> Sums {
    let mut sums = Sums::default();
    for chunk in bytes.chunks(CHUNK_PAIRS * 4) {
        let (pairs, _) = chunk.as_chunks::<4>();
        let [mut x, mut y] = [0_i32; 2];
        let [mut xx, mut xy, mut yy] = [Halves::default(); 3];
        for &[a, b, c, d] in pairs {
            let (a, b) =
                (i32::from(i16::from_le_bytes([a, b])), i32::from(i16::from_le_bytes([c, d])));
            x += a;
            y += b;
            xx.add(a * a);
            xy.add(a * b);
            yy.add(b * b);
        }
        sums.add(&Sums {
            n: pairs.len() as u64,
            x: x.into(),
            y: y.into(),
            xx: xx.total(),
            xy: xy.total(),
            yy: yy.total(),
        });
    }
    sums
}
