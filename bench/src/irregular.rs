//! The frame of the experiments on irregular access: build the data per
//! footprint and page size, run all versions in turn, one table.

use std::io;

use crate::args::{IrregularArgs, show_bytes};
use crate::hw::Pages;
use crate::machine::Machine;
use crate::measure::{Paired, Version, paired};
use crate::program::on_one_core;
use crate::table::{Cell, Table};

/// One experiment on irregular access.
pub(crate) trait Irregular: Sized {
    /// What the table is called.
    const TITLE: &'static str;
    /// What one item is: `hop`, `probe`.
    const ITEM: &'static str;

    /// Builds the data in about `bytes` bytes, every page touched.
    fn build(bytes: u64, pages: Pages) -> io::Result<Self>;

    /// How much of the data lies in huge pages, in bytes.
    fn huge_bytes(&self) -> Option<u64>;

    /// The versions: the serial one first; others by name and depth.
    fn versions(&self, depths: &[usize]) -> Vec<Version<'_>>;

    /// Measures all footprints and page sizes asked for.
    fn run(args: &IrregularArgs, machine: &Machine) -> anyhow::Result<Table> {
        on_one_core(|| Self::run_here(args, machine))
    }

    /// As `run`, on whichever core this is.
    fn run_here(args: &IrregularArgs, machine: &Machine) -> anyhow::Result<Table> {
        let columns = [
            ("bytes", ""),
            ("pages", ""),
            ("version", ""),
            ("depth", ""),
            ("time", "ns"),
            ("time", "cycles"),
            ("faster", "x serial"),
            ("least", "x"),
            ("most", "x"),
            ("faster", "x hand"),
        ];
        let title = format!("{}, per {}", Self::TITLE, Self::ITEM);
        let mut table = Table::new(title, machine, &columns);
        for bytes in args.footprints(machine) {
            for &pages in args.pages.list() {
                let data = Self::build(bytes, pages)?;
                if let (Pages::Huge, Some(huge)) = (pages, data.huge_bytes())
                    && huge < bytes / 10 * 9
                {
                    table.note(format!(
                        "{} huge: the kernel gave huge pages for {} MiB only",
                        show_bytes(bytes),
                        huge >> 20
                    ));
                }
                let mut versions = data.versions(&args.depths());
                let costs = paired(args.rounds.count(), &mut versions)?;
                add_rows(&mut table, bytes, pages, &versions, &costs);
            }
        }
        table.note("medians over the rounds; ratios are formed round by round");
        table.note("x hand: against the loop interleaved by hand at the same depth");
        Ok(table)
    }
}

fn add_rows(table: &mut Table, bytes: u64, pages: Pages, versions: &[Version<'_>], costs: &Paired) {
    for (index, version) in versions.iter().enumerate() {
        let hand = versions
            .iter()
            .position(|other| other.name == "hand" && other.depth == version.depth)
            .filter(|_| version.name == "threads");
        let time = costs.item_ns(index).median;
        let faster = costs.speedup(index, 0);
        let cycles = table.machine.cycles(time);
        table.row([
            show_bytes(bytes).into(),
            pages.name().into(),
            version.name.as_str().into(),
            version.depth.into(),
            time.into(),
            cycles.into(),
            faster.median.into(),
            faster.min.into(),
            faster.max.into(),
            Cell::from(hand.map(|hand| costs.speedup(index, hand).median)),
        ]);
    }
}
