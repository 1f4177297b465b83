//! Inputs longer than the memory that nodes may have (Figures 5.2 to 5.4), and how much each
//! process of a run takes beside what it said.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use anyhow::Context as _;

use super::group::{Group, Held};
use super::launch::{Memory, Mpirun, Ran, Running};
use super::sweep::{write_bitmap, write_text};
use crate::args::show_bytes;
use crate::machine::Machine;
use crate::table::{Cell, Table};

/// Inputs, in tenths of the limit.
const TENTHS: [u64; 5] = [5, 10, 20, 50, 100];

/// Nodes that are sent their blocks, in either table.
const NODES: u32 = 2;

/// What a process does before it is one of `cellway run`: it enters its group.
const ENTER: &str = "echo $$ > \"$0${OMPI_COMM_WORLD_RANK:-0}/cgroup.procs\" && exec \"$@\"";

/// Few different words, so that a small table holds them.
const TEXT_BYTES: u64 = 16 << 10;

/// An application, with what it takes to run in little memory.
#[derive(Clone, Copy)]
struct App {
    name: &'static str,
    line: &'static str,
    input: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Bitmap,
}

const WORDCOUNT: App =
    App { name: "wordcount", line: "wordcount {} --top 0 --table-bytes 1M", input: Kind::Text };
const HISTOGRAM: App = App { name: "histogram", line: "histogram {}", input: Kind::Bitmap };
const LINREG: App = App { name: "linreg", line: "linreg {} --type i16", input: Kind::Text };

const FIGURES: [App; 3] = [LINREG, WORDCOUNT, HISTOGRAM];

/// Runs whose processes' growth is looked at.
const GROWING: [App; 8] = [
    WORDCOUNT,
    App {
        name: "wordcount, sent",
        line: "wordcount {} --top 0 --table-bytes 1M --ship bytes",
        ..WORDCOUNT
    },
    HISTOGRAM,
    LINREG,
    App { name: "crc32c", line: "crc32c {}", input: Kind::Text },
    App { name: "crc32c, sent", line: "crc32c {} --ship bytes", input: Kind::Text },
    App { name: "identity", line: "identity {} {}.out -f", input: Kind::Text },
    App { name: "identity, sent", line: "identity {} {}.out -f --ship bytes", input: Kind::Text },
];

impl App {
    fn input(&self, folder: &Path, bytes: u64) -> anyhow::Result<PathBuf> {
        let path = folder.join("in");
        let made = File::create(&path).and_then(|file| {
            let mut file = BufWriter::new(file);
            match self.input {
                Kind::Bitmap => write_bitmap(&mut file, bytes)?,
                Kind::Text => repeat_text(&mut file, bytes)?,
            }
            // What is not on the disk cannot be taken back.
            file.into_inner()?.sync_all()
        });
        made.with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }
}

fn repeat_text(to: &mut impl Write, bytes: u64) -> io::Result<()> {
    let mut text = Vec::new();
    write_text(&mut text, TEXT_BYTES)?;
    let mut left = bytes;
    while left > 0 {
        let part = text.get(..left.min(TEXT_BYTES) as usize).unwrap_or(&text);
        to.write_all(part)?;
        left -= part.len() as u64;
    }
    Ok(())
}

/// How nodes are started.
enum Nodes {
    Threads,
    Processes(Mpirun),
}

/// One run, each process of which is in a group of its own.
struct Confined {
    ran: Ran,
    /// Whether one was killed, for its group had no memory left.
    is_killed: bool,
    /// What each was seen to hold.
    held: Vec<Most>,
}

/// The most memory of a process, in bytes.
#[derive(Clone, Copy, Default)]
struct Most {
    shared: u64,
    /// Anonymous, and shared.
    both: u64,
}

impl Most {
    fn see(&mut self, Held { anonymous, shared }: Held) {
        self.shared = self.shared.max(shared);
        self.both = self.both.max(anonymous + shared);
    }
}

impl Nodes {
    /// Processes of a run.
    fn processes(&self) -> u32 {
        match self {
            Self::Threads => 1,
            // The manager does not compute.
            Self::Processes(_) => 1 + NODES,
        }
    }

    /// The options of a run whose nodes are sent their blocks.
    fn options(&self) -> String {
        match self {
            Self::Threads => format!("--nodes {NODES} --ship bytes"),
            Self::Processes(_) => "--cluster mpi --manager-only --ship bytes".to_owned(),
        }
    }

    /// A run of `line` over `input`, each process within `limit`.
    fn run(&self, line: &str, input: &Path, limit: Option<u64>) -> anyhow::Result<Confined> {
        let name = |process: u32| format!("cellway-bench-{}-{process}", process::id());
        let groups = (0..self.processes()).map(|process| Group::create(&name(process)));
        let groups: Vec<_> = groups.collect::<anyhow::Result<_>>()?;
        if let Some(bytes) = limit {
            groups.iter().try_for_each(|group| group.limit(bytes))?;
        }
        let first = groups.first().context("a run has processes")?.dir().display().to_string();
        let mut command = match self {
            Self::Threads => Command::new("sh"),
            Self::Processes(mpirun) => {
                let mut command = mpirun.command(self.processes(), &[]);
                command.arg("sh");
                command
            }
        };
        command.args(["-c", ENTER, first.strip_suffix('0').unwrap_or(&first)]);
        command.arg(std::env::current_exe().context("this program has no name")?);
        command.args(["run", "--verbose"]);
        let input = input.display().to_string();
        command.args(line.split(' ').map(|word| word.replace("{}", &input)));
        let mut held = vec![Most::default(); groups.len()];
        let ran = Running::start(command)?.end(|| {
            held.iter_mut().zip(&groups).for_each(|(most, group)| most.see(group.held()))
        })?;
        let is_killed = groups.iter().any(|group| group.kills() > 0);
        Ok(Confined { ran, is_killed, held })
    }
}

impl Confined {
    /// Seconds, or what became of it.
    fn ended(&self) -> anyhow::Result<Cell> {
        if self.is_killed {
            return Ok("killed".into());
        }
        self.ran.check()?;
        Ok(format!("{:.2}", self.ran.seconds()?).into())
    }

    /// The most that one process held, in MiB.
    fn held_mib(&self) -> Cell {
        self.held.iter().map(|held| held.both).max().map(mib).into()
    }

    /// The greatest bound of a process, as it says.
    fn bound_mib(&self) -> Cell {
        let of_processes = self.ran.memory().into_iter().map(|memory| memory.bound);
        let here = self.ran.said.lines().find_map(|line| line.split_once("memory here at most "));
        let here = here.and_then(|(_, bound)| super::launch::size(bound));
        of_processes.chain(here).max().map(mib).into()
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The tables, as far as they can be here; why not goes to standard error.
pub(super) fn tables(
    folder: &Path,
    limit: u64,
    quick: bool,
    machine: &Machine,
) -> anyhow::Result<Vec<Table>> {
    let skip = |what: &str, why: &anyhow::Error| eprintln!("SKIP {what}: {why:#}");
    if let Err(why) = Group::create(&format!("cellway-bench-{}", process::id())) {
        skip("a limit of memory", &why);
        return Ok(Vec::new());
    }
    let tenths: &[u64] = if quick { &[1] } else { &TENTHS };
    let sweep = |nodes: &Nodes, apps: &[App]| sweep(nodes, apps, folder, (limit, tenths), machine);
    // The first of a few threads takes over what the others were given, unless it is slow.
    let mut tables = vec![sweep(&Nodes::Threads, &[WORDCOUNT])?];
    match Mpirun::find() {
        Ok(mpirun) => {
            let nodes = Nodes::Processes(mpirun);
            tables.push(sweep(&nodes, if quick { &FIGURES[..1] } else { &FIGURES })?);
            let (apps, bytes) =
                if quick { (&GROWING[..1], limit / 10) } else { (&GROWING[..], 10 * limit) };
            tables.push(growth(&nodes, apps, (folder, bytes), machine)?);
        }
        Err(why) => skip("processes in groups of their own", &why),
    }
    Ok(tables)
}

fn sweep(
    nodes: &Nodes,
    apps: &[App],
    folder: &Path,
    (limit, tenths): (u64, &[u64]),
    machine: &Machine,
) -> anyhow::Result<Table> {
    let who = match nodes {
        Nodes::Threads => format!("one process with {NODES} nodes that are threads"),
        Nodes::Processes(_) => format!("a manager and {NODES} nodes, each of them"),
    };
    let shown = show_bytes(limit);
    let title =
        format!("cluster: blocks sent to nodes, {who} in a group of {shown} (Figures 5.2 to 5.4)");
    let columns = [
        ("application", ""),
        ("input", "x limit"),
        ("connector", "s"),
        ("held", "MiB"),
        ("bound", "MiB"),
        ("basic", "s"),
        ("held", "MiB"),
    ];
    let mut table = Table::new(title, machine, &columns);
    for app in apps {
        for &tenth in tenths {
            let input = app.input(folder, limit / 10 * tenth / 8 * 8)?;
            let run = |mode| {
                let line = format!("{} {} --mode {mode}", app.line, nodes.options());
                nodes.run(&line, &input, Some(limit))
            };
            let (connector, basic) = (run("connector")?, run("basic")?);
            table.row([
                app.name.into(),
                (tenth as f64 / 10.0).into(),
                connector.ended()?,
                connector.held_mib(),
                connector.bound_mib(),
                basic.ended()?,
                basic.held_mib(),
            ]);
        }
    }
    table.note(
        "killed: by the kernel, as its group had no memory left; held: the most anonymous memory and \
         files in memory of one process, looked at every millisecond, for the page cache can be taken \
         back; bound: the greatest of its processes, as they say by --verbose",
    );
    Ok(table)
}

/// How much each process takes after MPI has started, beside what it says to take at most.
fn growth(
    nodes: &Nodes,
    apps: &[App],
    (folder, bytes): (&Path, u64),
    machine: &Machine,
) -> anyhow::Result<Table> {
    let title = format!(
        "cluster: memory of each process after MPI has started, inputs of {}",
        show_bytes(bytes)
    );
    let columns = [
        ("application", ""),
        ("process", ""),
        ("before", "MiB"),
        ("growth", "MiB"),
        ("bound of it", "MiB"),
        ("growth / bound", "x"),
    ];
    let mut table = Table::new(title, machine, &columns);
    for app in apps {
        let input = app.input(folder, bytes / 8 * 8)?;
        let line = format!("{} --cluster mpi", app.line);
        let Confined { ran, held, .. } = nodes.run(&line, &input, None)?;
        ran.check()?;
        for (memory, held) in ran.memory().iter().zip(held) {
            let (growth, bound) = grown(memory, held);
            let ratio = growth as f64 / bound.max(1) as f64;
            let cells = [mib(memory.begun), mib(growth), mib(bound), ratio].map(Cell::from);
            let names = [app.name.into(), Cell::Count(memory.process.into())];
            table.row(names.into_iter().chain(cells));
        }
    }
    table.note(
        "growth: of resident memory from when MPI had started to its peak, and all files in memory, \
         those that MPI had before among them; bound of it: what the process says to take at most \
         (--verbose), less what it had",
    );
    Ok(table)
}

/// By how much it grew, and by how much it might have.
fn grown(memory: &Memory, held: Most) -> (u64, u64) {
    let growth = memory.peak.saturating_sub(memory.begun) + held.shared;
    (growth, memory.bound.saturating_sub(memory.begun))
}
