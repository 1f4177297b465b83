//! Bytes for people.

use std::fmt;

/// Shows bytes in powers of 1024, three digits or so: `512 KiB`, `12.6 MiB`.
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let unit = (self.0.max(1).ilog2() / 10).min(4);
        let number = self.0 as f64 / 1024f64.powi(unit as i32);
        let exact = self.0.is_multiple_of(1 << (10 * unit)) || number >= 100.0;
        let digits = if exact { 0 } else { 1 };
        f.pad(&format!("{number:.digits$} {}", UNITS[unit as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (512 << 10, "512 KiB"),
            ((12 << 20) + (600 << 10), "12.6 MiB"),
            ((610 << 20) + 1, "610 MiB"),
            (3 << 30, "3 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), shown);
        }
        assert_eq!(format!("{:>6}", Size(5)), "   5 B");
    }
}
