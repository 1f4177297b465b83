//! Arguments that several experiments share.

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

use crate::hw::Pages;
use crate::machine::Machine;

/// How often, and whether in earnest.
#[derive(Args, Clone, Debug)]
pub struct Rounds {
    /// Rounds; every version runs once per round, in turn
    #[arg(long, default_value_t = 5, value_name = "N",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub rounds: usize,
    /// Tiny sizes, one round: shows that it works, measures nothing
    #[arg(long)]
    pub quick: bool,
}

impl Rounds {
    /// Rounds to run: one when quick.
    #[must_use]
    pub fn count(&self) -> usize {
        if self.quick { 1 } else { self.rounds }
    }
}

/// Page sizes to measure with.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagesArg {
    /// 4 KiB pages
    #[value(name = "4k")]
    Small,
    /// 2 MiB transparent huge pages
    #[value(name = "huge")]
    Huge,
    /// One after the other
    #[value(name = "both")]
    Both,
}

impl PagesArg {
    /// The page sizes meant.
    #[must_use]
    pub fn list(self) -> &'static [Pages] {
        match self {
            PagesArg::Small => &[Pages::Small],
            PagesArg::Huge => &[Pages::Huge],
            PagesArg::Both => &[Pages::Small, Pages::Huge],
        }
    }
}

/// Blocks one after the other, or in pseudo-random order.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they lie.
    Sequential,
    /// Each block once before any comes again.
    Random,
}

impl Order {
    /// As shown in titles.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Order::Sequential => "sequential blocks",
            Order::Random => "random blocks",
        }
    }
}

/// How the end of a transfer in memory is waited for before its block is used.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// Waited: a load fence ends each transfer, as if the core ran in order. It
    /// waits for the address translation of prefetches under way, too
    Fence,
    /// Waited: the next transfer's address depends on the last one's bytes
    Dependency,
    /// Plain: the processor overlaps what it can by itself
    Plain,
}

impl Discipline {
    /// As shown in titles.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Discipline::Fence => {
                const { if cfg!(target_arch = "x86_64") { "waited (lfence)" } else { "waited (fence)" } }
            }
            Discipline::Dependency => "waited (dependency)",
            Discipline::Plain => "plain",
        }
    }
}

/// Arguments of the experiments on irregular access.
#[derive(Args, Clone, Debug)]
pub struct IrregularArgs {
    /// Footprints; without it half the L2 cache, an eighth of the last-level
    /// cache, and 1 GiB
    #[arg(long, value_delimiter = ',', value_parser = parse_bytes, value_name = "BYTES,..")]
    pub bytes: Vec<u64>,
    /// Page size of the memory
    #[arg(long, value_enum, default_value_t = PagesArg::Both)]
    pub pages: PagesArg,
    /// Numbers of threads, and of chains interleaved by hand
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64", value_name = "N,..",
          value_parser = parse_threads)]
    pub threads: Vec<usize>,
    /// How often, and whether in earnest.
    #[command(flatten)]
    pub rounds: Rounds,
}

impl IrregularArgs {
    /// Footprints to measure, in bytes.
    #[must_use]
    pub fn footprints(&self, machine: &Machine) -> Vec<u64> {
        match (self.rounds.quick, self.bytes.is_empty()) {
            // One footprint that accelerators take for near, and one they do not.
            (true, _) => vec![64 << 10, 2 * machine.l2_bytes.max(1 << 20)],
            (false, false) => self.bytes.clone(),
            (false, true) => {
                vec![
                    (machine.l2_bytes / 2).max(64 << 10),
                    machine.llc_bytes.max(8 << 20) / 8,
                    1 << 30,
                ]
            }
        }
    }

    /// Numbers of threads to measure.
    #[must_use]
    pub fn depths(&self) -> Vec<usize> {
        if self.rounds.quick {
            return vec![1, 3, 16];
        }
        self.threads.clone()
    }
}

/// Reads `4096`, `64K`, `256MiB`, `1G`: powers of 1024.
///
/// # Errors
/// One line that shows the form wanted.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        unit => return Err(format!("unknown unit '{unit}'; write K, M, G or T (powers of 1024)")),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("'{text}' is no size; write 64K or 1G"))?;
    let bytes = number.checked_shl(shift).filter(|bytes| bytes >> shift == number);
    bytes
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| format!("'{text}' is out of range; write 1 to {}T", u64::MAX >> 40))
}

/// As [`parse_bytes`], for blocks: powers of two up to 1 GiB.
///
/// # Errors
/// One line that shows the form wanted.
pub fn parse_block_bytes(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text)?;
    let block =
        usize::try_from(bytes).ok().filter(|b| b.is_power_of_two() && (8..=1 << 30).contains(b));
    block.ok_or_else(|| format!("'{text}' is no block length; write a power of two from 8 to 1G"))
}

/// Reads a number of threads or accelerators.
///
/// # Errors
/// One line with the numbers possible.
pub fn parse_threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=4096).contains(threads));
    threads.ok_or_else(|| "a number from 1 to 4096".to_owned())
}

/// `16`, `4K`, `1M`: the shortest exact form in powers of 1024.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let fits = |&&(shift, _): &&(u32, &str)| bytes > 0 && bytes.trailing_zeros() >= shift;
    match units.iter().find(fits) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None if bytes >= 1 << 20 => format!("{:.1}M", bytes as f64 / f64::from(1 << 20)),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("64K"), Ok(64 << 10));
        assert_eq!(parse_bytes("3MiB"), Ok(3 << 20));
        assert_eq!(parse_bytes("1g"), Ok(1 << 30));
        for bad in ["", "K", "0", "1x", "-1", "99999999999999999999", "99999999T"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(show_bytes(16), "16");
        assert_eq!(show_bytes(16 << 10), "16K");
        assert_eq!(show_bytes(1 << 30), "1G");
    }
}
