//! The synthetic benchmark's tables: rates as in Figures 3 and 5-7, speedups
//! as in Figures 4, 8 and 9, and the best and worst cells.

use crate::args::{Discipline, Order, show_bytes};
use crate::chain::calibrate;
use crate::machine::Machine;
use crate::measure::Paired;
use crate::table::{Cell, Table};

/// What a group of tables has in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// As shown.
    pub(crate) medium: String,
    /// Memory only.
    pub(crate) discipline: Option<Discipline>,
    pub(crate) order: Order,
    pub(crate) write: bool,
}

impl Setting {
    fn title(&self) -> String {
        let order = self.order.title();
        let mode = if self.write { "get-compute-put" } else { "read-only" };
        let discipline = self.discipline.map_or(String::new(), |d| format!(", {}", d.title()));
        format!("{}{discipline}, {order}, {mode}", self.medium)
    }
}

/// What was measured in one cell.
pub(crate) struct Outcome {
    pub(crate) setting: Setting,
    pub(crate) block_bytes: usize,
    pub(crate) cycles_per_byte: usize,
    /// Name and depth of each version.
    pub(crate) names: Vec<(String, usize)>,
    /// Costs of a byte.
    pub(crate) costs: Paired,
}

/// A version by name, and by depth where there may be several.
type Which<'a> = (&'a str, Option<usize>);

impl Outcome {
    fn find(&self, (name, depth): Which<'_>) -> Option<usize> {
        self.names.iter().position(|(n, d)| n == name && depth.is_none_or(|depth| depth == *d))
    }

    /// How many times faster, median of the rounds.
    fn speedup(&self, which: Which<'_>, base: Which<'_>) -> Option<f64> {
        Some(self.costs.speedup(self.find(which)?, self.find(base)?).median)
    }

    fn megabytes_per_second(&self, version: usize) -> f64 {
        1e3 / self.costs.item_ns(version).median
    }

    fn label(&self) -> String {
        let order = if self.setting.order == Order::Random { "ran" } else { "seq" };
        let mode = if self.setting.write { "put" } else { "read" };
        format!("{} B {} c/B {order} {mode}", self.block_bytes, self.cycles_per_byte)
    }
}

/// Wanted and measured cycles per byte.
pub(crate) fn calibration(machine: &Machine) -> Table {
    let columns =
        [("wanted", "cycles/B"), ("read", "cycles/B"), ("rewrite", "cycles/B"), ("off by", "%")];
    let mut table =
        Table::new("synthetic: compute, calibrated on a 4 KiB block", machine, &columns);
    for entry in calibrate() {
        let wanted = entry.cycles_per_byte as f64;
        let off = |measured: f64| (measured / wanted - 1.0) * 100.0;
        let most = [off(entry.read), off(entry.rewrite)]
            .into_iter()
            .max_by(|a, b| a.abs().total_cmp(&b.abs()));
        let most = most.filter(|_| entry.cycles_per_byte > 0);
        table.row([
            entry.cycles_per_byte.into(),
            entry.read.into(),
            entry.rewrite.into(),
            Cell::from(most),
        ]);
        if most.is_some_and(|off| off.abs() > 5.0) {
            let wanted = entry.cycles_per_byte;
            table.note(format!("{wanted} cycles/B are not within 5%: is the machine busy?"));
        }
    }
    table.note("0 cycles: one word of each cache line is read");
    table
}

/// All tables; `threads` is the number compared with the other versions.
pub(crate) fn tables(outcomes: &[Outcome], threads: usize, machine: &Machine) -> Vec<Table> {
    let mut tables = Vec::new();
    for group in outcomes.chunk_by(|a, b| a.setting == b.setting) {
        let Some(first) = group.first() else { continue };
        let title = first.setting.title();
        tables.push(rates(group, &title, threads, machine));
        tables.extend(by_threads(group, &title, machine));
        let many = ("threads", Some(threads));
        for (which, base, figure) in [
            (("double", None), ("simple", None), " (Figure 8)"),
            (many, ("double", None), " (Figure 9)"),
            (many, ("simple", None), ""),
            (many, ("loop", None), ""),
        ] {
            if first.speedup(which, base).is_some() && group.len() > 1 {
                let name = format!("{} against {}{figure}: {title}", shown(which), shown(base));
                tables.push(speedups(group, name, which, base, machine));
            }
        }
    }
    tables.extend(summary(outcomes, threads, machine));
    tables
}

fn shown((name, depth): Which<'_>) -> String {
    depth.map_or(name.to_owned(), |depth| format!("{depth} {name}"))
}

/// Rates of the versions that every cell of the group has (Figures 5-7).
fn rates(group: &[Outcome], title: &str, threads: usize, machine: &Machine) -> Table {
    let everywhere = |(name, depth): &(String, usize)| {
        (name != "threads" || *depth == threads)
            && group.iter().all(|outcome| outcome.find((name, Some(*depth))).is_some())
    };
    let versions: Vec<&(String, usize)> =
        group[0].names.iter().filter(|name| everywhere(name)).collect();
    let names: Vec<String> = versions
        .iter()
        .map(|(name, depth)| if *depth > 2 { format!("{name} {depth}") } else { name.clone() })
        .collect();
    let mut columns = vec![("block", "B"), ("compute", "cycles/B")];
    columns.extend(names.iter().map(|name| (name.as_str(), "MB/s")));
    let mut table = Table::new(format!("rate: {title}"), machine, &columns);
    for outcome in group {
        let version = |which: &&(String, usize)| {
            Cell::from(
                outcome.find((&which.0, Some(which.1))).map(|v| outcome.megabytes_per_second(v)),
            )
        };
        let head = [show_bytes(outcome.block_bytes as u64).into(), outcome.cycles_per_byte.into()];
        table.row(head.into_iter().chain(versions.iter().map(version)));
    }
    table.note("loop, ahead N: without an accelerator, with no prefetch and N blocks ahead");
    table
}

/// Threads by their number against double buffering and fio (Figures 3, 4).
fn by_threads(group: &[Outcome], title: &str, machine: &Machine) -> Vec<Table> {
    let touched: Vec<&Outcome> =
        group.iter().filter(|outcome| outcome.cycles_per_byte == 0).collect();
    let Some(first) = touched.first() else { return Vec::new() };
    let threads: Vec<usize> =
        first.names.iter().filter(|name| name.0 == "threads").map(|name| name.1).collect();
    if threads.len() < 2 {
        return Vec::new();
    }
    let names: Vec<String> = threads.iter().map(|threads| format!("{threads} thr")).collect();
    let mut tables = Vec::new();
    for (base, figure) in [("double", " (Figure 4)"), ("fio", "")] {
        if first.find((base, None)).is_none() {
            continue;
        }
        let unit = format!("x {base}");
        let mut columns = vec![("block", "B"), (base, "MB/s")];
        columns.extend(names.iter().map(|name| (name.as_str(), unit.as_str())));
        let name = format!("threads against {base} at 0 cycles/B{figure}: {title}");
        let mut table = Table::new(name, machine, &columns);
        for outcome in &touched {
            let rate =
                outcome.find((base, None)).map(|version| outcome.megabytes_per_second(version));
            let head = [show_bytes(outcome.block_bytes as u64).into(), Cell::from(rate)];
            let faster = |&threads: &usize| {
                Cell::from(outcome.speedup(("threads", Some(threads)), (base, None)))
            };
            table.row(head.into_iter().chain(threads.iter().map(faster)));
        }
        tables.push(table);
    }
    tables
}

/// One version against another: block lengths down, cycles per byte across.
fn speedups(
    group: &[Outcome],
    title: String,
    which: Which<'_>,
    base: Which<'_>,
    machine: &Machine,
) -> Table {
    let mut cycles: Vec<usize> = group.iter().map(|outcome| outcome.cycles_per_byte).collect();
    cycles.sort_unstable();
    cycles.dedup();
    let names: Vec<String> = cycles.iter().map(|cycles| format!("{cycles} c/B")).collect();
    let mut columns = vec![("block", "B")];
    columns.extend(names.iter().map(|name| (name.as_str(), "x")));
    let mut table = Table::new(title, machine, &columns);
    for row in group.chunk_by(|a, b| a.block_bytes == b.block_bytes) {
        let cell = |cycles: &usize| {
            let outcome = row.iter().find(|outcome| outcome.cycles_per_byte == *cycles);
            Cell::from(outcome.and_then(|outcome| outcome.speedup(which, base)))
        };
        let head = Cell::from(show_bytes(row[0].block_bytes as u64));
        table.row(std::iter::once(head).chain(cycles.iter().map(cell)));
    }
    table
}

/// A row of the summary: which cells, and which versions.
#[derive(Clone, Copy)]
struct Question {
    what: &'static str,
    discipline: Option<Discipline>,
    random_only: bool,
    read_only: bool,
    /// Least and greatest block length.
    block_bytes: (usize, usize),
    cycles_max: usize,
    version: &'static str,
    base: &'static str,
}

impl Question {
    fn holds(&self, outcome: &Outcome) -> bool {
        self.discipline == outcome.setting.discipline
            && (!self.random_only || outcome.setting.order == Order::Random)
            && (!self.read_only || !outcome.setting.write)
            && (self.block_bytes.0..=self.block_bytes.1).contains(&outcome.block_bytes)
            && outcome.cycles_per_byte <= self.cycles_max
    }
}

fn questions() -> Vec<Question> {
    let any = Question {
        what: "all cells",
        discipline: Some(Discipline::Plain),
        random_only: false,
        read_only: false,
        block_bytes: (0, usize::MAX),
        cycles_max: usize::MAX,
        version: "threads",
        base: "double",
    };
    let random = Question { random_only: true, block_bytes: (64, 256), cycles_max: 4, ..any };
    let random = Question { what: "random, 64-256 B, 0-4 c/B", ..random };
    let touched = |what, block_bytes| Question { what, block_bytes, cycles_max: 0, ..random };
    let here = |question| Question { version: "threads here", ..question };
    let noise = Question { version: "double again", ..any };
    let waited = [
        touched("random, 16 B, 0 c/B", (16, 16)),
        touched("random, 64-128 B, 0 c/B", (64, 128)),
        touched("random, 256 B, 0 c/B", (256, 256)),
        here(touched("random, 16 B, 0 c/B", (16, 16))),
        here(touched("random, 64-128 B, 0 c/B", (64, 128))),
        here(touched("random, 256 B, 0 c/B", (256, 256))),
        here(Question { base: "double here", ..touched("random, 16 B, 0 c/B", (16, 16)) }),
        here(Question { base: "double here", ..touched("random, 64-128 B, 0 c/B", (64, 128)) }),
        here(Question { base: "double here", ..touched("random, 256 B, 0 c/B", (256, 256)) }),
        any,
        noise,
    ];
    let plain = [
        Question { base: "simple", ..random },
        Question { base: "loop", ..random },
        random,
        here(Question { base: "simple", ..random }),
        here(random),
        any,
        noise,
    ];
    let file = [
        Question {
            base: "fio",
            read_only: true,
            ..touched("random, 4-16 KiB, 0 c/B", (4096, 16384))
        },
        any,
    ];
    let under = |discipline, questions: Vec<Question>| {
        questions.into_iter().map(move |question| Question { discipline, ..question })
    };
    under(Some(Discipline::Fence), waited.to_vec())
        .chain(under(Some(Discipline::Dependency), waited.to_vec()))
        .chain(under(Some(Discipline::Plain), plain.to_vec()))
        .chain(under(None, file.to_vec()))
        .collect()
}

/// Best and worst cells of the ranges that matter.
fn summary(outcomes: &[Outcome], threads: usize, machine: &Machine) -> Option<Table> {
    let columns = [
        ("discipline", ""),
        ("cells", ""),
        ("version", ""),
        ("against", ""),
        ("best", "x"),
        ("worst", "x"),
        ("worst cell", ""),
    ];
    let title = format!("synthetic: {threads} threads on one accelerator, best and worst cells");
    let mut table = Table::new(title, machine, &columns);
    for question in questions() {
        let cells = outcomes.iter().filter(|outcome| question.holds(outcome));
        let mut ratios: Vec<(f64, String)> = cells
            .filter_map(|outcome| {
                let depth = question.version.starts_with("threads").then_some(threads);
                let ratio = outcome.speedup((question.version, depth), (question.base, None))?;
                Some((ratio, outcome.label()))
            })
            .collect();
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        if let (Some(worst), Some(best)) = (ratios.first(), ratios.last()) {
            let discipline = question.discipline.map_or("file", Discipline::title);
            let (what, base) = (question.what.into(), question.base.into());
            table.row([
                discipline.into(),
                what,
                question.version.into(),
                base,
                best.0.into(),
                worst.0.into(),
                worst.1.as_str().into(),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}
