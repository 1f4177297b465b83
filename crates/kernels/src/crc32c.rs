//! `crc32c`: the Castagnoli checksum of the whole input (RFC 3720, appendix B.4).
//!
//! Each unit is summed by itself and the sums are combined in the order of the
//! units. Combining is our own, for it happens once per unit: crate `crc-fast`
//! squares 32 x 32 matrices for it, which takes longer than summing 256 KiB.

use std::io::{self, Write};

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use stream::{Block, Effect, Kernel, KernelError, MergeOrder, Saved, Unit};

use crate::{Finish, Report};

/// The Castagnoli checksum as a reduction over any cut.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crc32c;

impl Crc32c {
    /// The kernel; it has no parameters.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

/// The checksum of some consecutive bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crc32cPart {
    crc: u32,
    bytes: u64,
}

impl Crc32cPart {
    fn append(&mut self, later: Crc32cPart) {
        if self.bytes == 0 {
            *self = later;
            return;
        }
        self.crc = multiply(self.crc, x_to_the_bytes(later.bytes)) ^ later.crc;
        self.bytes += later.bytes;
    }
}

impl Kernel for Crc32c {
    type Part = Crc32cPart;
    type Header = ();

    fn name(&self) -> &str {
        "crc32c"
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn looks_in_place(&self) -> bool {
        true
    }

    fn merge_order(&self) -> MergeOrder {
        MergeOrder::ByUnit
    }

    fn part(&self, _accelerators: usize) -> Crc32cPart {
        Crc32cPart::default()
    }

    fn block(
        &self,
        _: &Unit<'_>,
        block: Block<'_>,
        part: &mut Crc32cPart,
    ) -> Result<(), KernelError> {
        let crc = crc_fast::checksum(Crc32Iscsi, block.data) as u32;
        part.append(Crc32cPart { crc, bytes: block.data.len() as u64 });
        Ok(())
    }

    fn merge(&self, part: &mut Crc32cPart, later: Crc32cPart) -> Result<(), KernelError> {
        part.append(later);
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(Vec::new())
    }

    fn save(&self, part: &Crc32cPart, out: &mut Vec<u8>) -> Result<(), KernelError> {
        out.extend_from_slice(&part.crc.to_le_bytes());
        out.extend_from_slice(&part.bytes.to_le_bytes());
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<Crc32cPart, KernelError> {
        let mut saved = Saved::new(saved);
        let part = Crc32cPart { crc: saved.u32()?, bytes: saved.u64()? };
        saved.end().map(|()| part)
    }
}

impl Finish for Crc32c {
    type Report = Crc32cReport;

    fn finish(&self, part: Crc32cPart) -> Result<Crc32cReport, KernelError> {
        Ok(Crc32cReport { crc: part.crc })
    }
}

/// The checksum; as text 8 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32cReport {
    /// The checksum of the whole input.
    pub crc: u32,
}

impl Report for Crc32cReport {
    fn write_text(&mut self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{:08x}", self.crc)
    }

    fn write_json(&mut self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, r#"{{"crc32c":"{:08x}"}}"#, self.crc)
    }
}

/// The polynomial, bit-reversed: the highest bit stands for x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const ONE: u32 = 1 << 31;

/// x^(2^k) modulo the polynomial; after 31 squarings it is x again.
const SQUARES: [u32; 31] = {
    let mut squares = [ONE >> 1; 31];
    let mut k = 1;
    while k < 31 {
        squares[k] = multiply(squares[k - 1], squares[k - 1]);
        k += 1;
    }
    squares
};

/// The product of two polynomials over GF(2), as in zlib's `multmodp`.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        // Masks instead of branches: the bits of a checksum are unpredictable.
        product ^= b & 0u32.wrapping_sub(a >> (31 - bit) & 1);
        b = (b >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(b & 1));
        bit += 1;
    }
    product
}

/// x^(8 * bytes): what appending that many bytes multiplies a checksum by.
fn x_to_the_bytes(bytes: u64) -> u32 {
    let bits = (0..64).filter(|k| bytes >> k & 1 == 1);
    bits.fold(ONE, |power, k| multiply(power, SQUARES[(k + 3) % SQUARES.len()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_repeat_after_31_squarings() {
        assert_eq!(multiply(SQUARES[30], SQUARES[30]), SQUARES[0]);
        assert_eq!(
            x_to_the_bytes(1 << 62),
            multiply(x_to_the_bytes(1 << 61), x_to_the_bytes(1 << 61))
        );
    }

    #[test]
    fn appending_follows_the_slow_way() {
        for (early, late) in [(0, 5), (5, 0), (1, 1), (1000, 4096), (3, 100_003)] {
            let bytes: Vec<u8> = (0..early + late).map(|i: u64| ((i * i) >> 3) as u8).collect();
            let sum = |part: &[u8]| crc_fast::checksum(Crc32Iscsi, part) as u32;
            let (first, second) = bytes.split_at(early as usize);
            let mut part = Crc32cPart { crc: sum(first), bytes: early };
            part.append(Crc32cPart { crc: sum(second), bytes: late });
            assert_eq!(part, Crc32cPart { crc: sum(&bytes), bytes: early + late });
        }
    }
}
