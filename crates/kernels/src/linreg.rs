//! `linreg`: the line of least squares through pairs (x, y), little endian.
//!
//! Integers are summed exactly, in any order. Floats are summed as means and
//! squared deviations (Chan, Golub, LeVeque 1979) of chunks, which are merged
//! pairwise by their number in the input, so that the result depends neither on
//! the length of the blocks, nor on the number of accelerators, nor on timing.

mod floats;
mod integers;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::str::FromStr;

use stream::{
    Block, Body, Cut, EARLY_PARTS_MAX, Effect, Head, Kernel, KernelError, MergeOrder, Saved, Unit,
};

use crate::{Finish, Report};
use floats::{CHUNK_PAIRS, FOREST_BYTES_MAX, Forest};
use integers::Sums;

/// The type of x and of y in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairType {
    /// Two unsigned bytes.
    U8,
    /// Two signed 16-bit integers, little endian.
    I16,
    /// Two 32-bit floats, little endian.
    F32,
    /// Two 64-bit floats, little endian.
    F64,
}

impl PairType {
    /// Bytes of one pair.
    #[must_use]
    pub const fn pair_bytes(self) -> usize {
        match self {
            Self::U8 => 2,
            Self::I16 => 4,
            Self::F32 => 8,
            Self::F64 => 16,
        }
    }

    const fn is_exact(self) -> bool {
        matches!(self, Self::U8 | Self::I16)
    }
}

impl FromStr for PairType {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Self, KernelError> {
        match name {
            "u8" => Ok(Self::U8),
            "i16" => Ok(Self::I16),
            "f32" => Ok(Self::F32),
            "f64" => Ok(Self::F64),
            _ => Err(KernelError::new(
                format!("there are no pairs of type \"{name}\""),
                "use u8, i16, f32 or f64",
            )),
        }
    }
}

/// Fits `y = slope * x + intercept` to pairs of numbers.
#[derive(Clone, Copy, Debug)]
pub struct LinReg {
    pair_type: PairType,
}

impl LinReg {
    /// The kernel for pairs of one type.
    #[must_use]
    pub fn new(pair_type: PairType) -> Self {
        Self { pair_type }
    }

    fn check_whole(&self, end: u64, rest_bytes: u64) -> Result<(), KernelError> {
        if rest_bytes == 0 {
            return Ok(());
        }
        let pair_bytes = self.pair_type.pair_bytes();
        Err(KernelError::new(
            format!("the last pair has {rest_bytes} bytes instead of {pair_bytes}"),
            "check the type of the pairs, or fetch the file again if it is cut short",
        )
        .at(end - rest_bytes))
    }
}

/// What is known of some of the pairs.
#[derive(Clone, Debug)]
pub struct LinRegPart(Collected);

#[derive(Clone, Debug)]
enum Collected {
    Integers(Sums),
    Floats(Forest),
}

impl LinRegPart {
    fn append(&mut self, later: Collected) -> Result<(), KernelError> {
        match (&mut self.0, later) {
            (Collected::Integers(sums), Collected::Integers(more)) => sums.add(&more),
            (Collected::Floats(forest), Collected::Floats(more)) => forest.append(&more),
            _ => {
                let what = "a part with sums of integers cannot be merged with one of floats";
                return Err(KernelError::new(what, "merge parts of the same kernel only"));
            }
        }
        Ok(())
    }
}

impl Kernel for LinReg {
    type Part = LinRegPart;
    type Header = ();

    fn name(&self) -> &str {
        "linreg"
    }

    fn open(&self, head: &dyn Head) -> Result<Body, KernelError> {
        if let Some(len) = head.len_bytes() {
            self.check_whole(len, len % self.pair_type.pair_bytes() as u64)?;
        }
        Ok(Body::whole(head))
    }

    fn cut(&self, _: &()) -> Cut {
        let pairs = if self.pair_type.is_exact() { 1 } else { CHUNK_PAIRS };
        Cut::records(pairs * self.pair_type.pair_bytes())
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn looks_in_place(&self) -> bool {
        true
    }

    fn merge_order(&self) -> MergeOrder {
        if self.pair_type.is_exact() { MergeOrder::Any } else { MergeOrder::ByUnit }
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        let forests = if self.pair_type.is_exact() { 0 } else { FOREST_BYTES_MAX };
        let parts = accelerators as u64 * (size_of::<LinRegPart>() as u64 + forests);
        parts + EARLY_PARTS_MAX as u64 * forests
    }

    fn part(&self, _accelerators: usize) -> LinRegPart {
        LinRegPart(match self.pair_type.is_exact() {
            true => Collected::Integers(Sums::default()),
            false => Collected::Floats(Forest::default()),
        })
    }

    fn block(
        &self,
        unit: &Unit<'_>,
        block: Block<'_>,
        part: &mut LinRegPart,
    ) -> Result<(), KernelError> {
        // A pipe's length is known only at its end, so `open` may not have looked.
        let rest_bytes = block.data.len() % self.pair_type.pair_bytes();
        self.check_whole(unit.offset + block.data.len() as u64, rest_bytes as u64)?;
        let at = unit.body_offset();
        let collected = match self.pair_type {
            PairType::U8 => Collected::Integers(integers::sum_u8(block.data)),
            PairType::I16 => Collected::Integers(integers::sum_i16(block.data)),
            PairType::F32 => Collected::Floats(floats::sum_f32(block.data, at)),
            PairType::F64 => Collected::Floats(floats::sum_f64(block.data, at)),
        };
        part.append(collected)
    }

    fn merge(&self, part: &mut LinRegPart, later: LinRegPart) -> Result<(), KernelError> {
        part.append(later.0)
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(vec![self.pair_type as u8])
    }

    fn save(&self, part: &LinRegPart, out: &mut Vec<u8>) -> Result<(), KernelError> {
        match &part.0 {
            Collected::Integers(sums) => sums.save(out),
            Collected::Floats(forest) => forest.save(out),
        }
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<LinRegPart, KernelError> {
        let mut saved = Saved::new(saved);
        let collected = match self.pair_type.is_exact() {
            true => Collected::Integers(Sums::load(&mut saved)?),
            false => Collected::Floats(Forest::load(&mut saved)?),
        };
        saved.end().map(|()| LinRegPart(collected))
    }
}

impl Finish for LinReg {
    type Report = LinRegReport;

    fn finish(&self, part: LinRegPart) -> Result<LinRegReport, KernelError> {
        match part.0 {
            Collected::Integers(sums) => sums.fit(),
            Collected::Floats(forest) => Ok(forest.moments().fit()),
        }
    }
}

/// The fitted line. A figure that does not exist is `None`, and `note` says why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinRegReport {
    /// How many pairs were read.
    pub n: u64,
    /// By how much y grows with x.
    pub slope: Option<f64>,
    /// Where the line meets x = 0.
    pub intercept: Option<f64>,
    /// Pearson's correlation of x and y, from -1 to 1.
    pub correlation: Option<f64>,
    /// Why a figure is missing.
    pub note: Option<&'static str>,
}

/// Means and squared deviations of all pairs, and what they cannot show.
struct Spread {
    n: u64,
    mean_x: f64,
    mean_y: f64,
    xx: f64,
    xy: f64,
    yy: f64,
    x_varies: bool,
    y_varies: bool,
}

impl LinRegReport {
    fn without_line(n: u64, note: &'static str) -> Self {
        Self { n, slope: None, intercept: None, correlation: None, note: Some(note) }
    }

    fn from_spread(spread: &Spread) -> Self {
        let Spread { n, mean_x, mean_y, xx, xy, yy, x_varies, y_varies } = *spread;
        if n < 2 {
            return Self::without_line(n, "a line needs two pairs or more");
        }
        if ![mean_x, mean_y, xx, xy, yy].iter().all(|figure| figure.is_finite()) {
            return Self::without_line(
                n,
                "the input holds NaN, infinity, or numbers too large to square",
            );
        }
        if !x_varies || xx == 0.0 {
            return Self::without_line(n, "all x are equal");
        }
        let slope = xy / xx;
        let correlation =
            (y_varies && yy > 0.0).then(|| (xy / (xx.sqrt() * yy.sqrt())).clamp(-1.0, 1.0));
        let note = correlation.is_none().then_some("all y are equal");
        Self { n, slope: Some(slope), intercept: Some(mean_y - slope * mean_x), correlation, note }
    }
}

impl Report for LinRegReport {
    fn write_text(&mut self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "n\t{}", self.n)?;
        let figures = [
            ("slope", self.slope),
            ("intercept", self.intercept),
            ("correlation", self.correlation),
        ];
        for (name, figure) in figures {
            match figure {
                Some(figure) => writeln!(out, "{name}\t{figure}")?,
                None => writeln!(out, "{name}\tnone ({})", self.note.unwrap_or("not defined"))?,
            }
        }
        Ok(())
    }

    fn write_json(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let object = serde_json::json!({
            "n": self.n,
            "slope": self.slope,
            "intercept": self.intercept,
            "correlation": self.correlation,
            "note": self.note,
        });
        writeln!(out, "{object}")
    }
}
