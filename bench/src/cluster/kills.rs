//! Runs of real processes, one of which is killed.

use std::fs::{self, File};
use std::hash::{BuildHasher as _, DefaultHasher, Hasher as _, RandomState};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use super::FAIR;
use super::launch::{Mpirun, Ran, Running, between, number, size};
use super::sweep::write_text;
use crate::args::show_bytes;
use crate::machine::Machine;
use crate::measure::Spread;
use crate::table::{Cell, Table};

/// By how much was left when the loss was told, in parts of all.
const LEFT: [(&str, f64, f64); 4] = [
    ("anything", 0.0, f64::INFINITY),
    ("half or more", 0.5, f64::INFINITY),
    ("a tenth to half", 0.1, 0.5),
    ("less than a tenth", 0.0, 0.1),
];

/// What is asked for.
pub(super) struct Kills<'k> {
    pub(super) folder: &'k Path,
    pub(super) runs: usize,
    pub(super) bytes: u64,
    pub(super) seed: Option<u64>,
}

/// Processes of a run, the manager's among them, whose node computes too: once one is lost, each
/// has a core, as on a cluster. More of them would be as fast as the system spreads them.
fn processes(machine: &Machine) -> u32 {
    (machine.cpus as u32 + 1).max(3)
}

/// A run of which a process was lost while there was something to do.
#[derive(Clone, Copy, Debug)]
struct Loss {
    left: f64,
    /// Bytes without a result, and those of them that others had in hand.
    left_bytes: u64,
    out_bytes: u64,
    /// From when the manager was told until the end.
    seconds: f64,
    /// What a run of all by those that are left takes, by the ones before and after this.
    whole: f64,
}

impl Loss {
    /// How long it took, in the time that those who are left need for `bytes` of so many.
    fn over(&self, bytes: u64, of: u64) -> f64 {
        self.seconds / (self.whole * bytes as f64 / of as f64)
    }
}

/// How a run went whose process was to be killed.
enum Went {
    Lost(Loss),
    /// It was killed when all was done.
    Late,
    /// The run ended before.
    Over,
}

impl Kills<'_> {
    /// None if there is nothing to run them by; why goes to standard error.
    pub(super) fn tables(&self, machine: &Machine) -> anyhow::Result<Vec<Table>> {
        let mpirun = match Mpirun::find() {
            Ok(mpirun) if mpirun.major >= 5 => mpirun,
            Ok(mpirun) => {
                let version = mpirun.major;
                eprintln!("SKIP kills: Open MPI {version} does not tell of losses; 5 does");
                return Ok(Vec::new());
            }
            Err(why) => {
                eprintln!("SKIP kills: {why:#}");
                return Ok(Vec::new());
            }
        };
        let path = self.folder.join("text");
        let made = File::create(&path).and_then(|file| {
            let mut file = BufWriter::new(file);
            write_text(&mut file, self.bytes)?;
            file.flush()
        });
        made.with_context(|| format!("cannot make {}", path.display()))?;
        let mut alone = Command::new(std::env::current_exe()?);
        alone.arg("run").arg("wordcount").arg(&path);
        let alone = Running::start(alone)?.end(|| ())?;
        alone.check()?;
        let (processes, answer) = (processes(machine), alone.output);
        let runs = Runs { mpirun, path: &path, bytes: self.bytes, processes, answer };
        let seed = self.seed.unwrap_or_else(|| RandomState::new().hash_one(0));
        Ok(vec![runs.table(self.runs, seed, machine)?])
    }
}

struct Runs<'k> {
    mpirun: Mpirun,
    path: &'k Path,
    bytes: u64,
    processes: u32,
    /// Of one machine.
    answer: Vec<u8>,
}

impl Runs<'_> {
    fn start(&self, processes: u32) -> anyhow::Result<Running> {
        let mut command = self.mpirun.command(processes, &["--with-ft", "ulfm"]);
        command.arg(std::env::current_exe()?).arg("run").arg("wordcount").arg(self.path);
        Running::start({
            command.args(["--cluster", "mpi", "--verbose"]);
            command
        })
    }

    /// Seconds of a run of so many that nobody disturbs.
    fn undisturbed(&self, processes: u32) -> anyhow::Result<f64> {
        let ran = self.start(processes)?.end(|| ())?;
        ran.check()?;
        anyhow::ensure!(ran.output == self.answer, "{processes} processes find something else");
        ran.seconds()
    }

    /// Kills `worker` so long after all have begun.
    fn killed(&self, worker: u32, after: Duration) -> anyhow::Result<(Ran, bool)> {
        let running = self.start(self.processes)?;
        let mpirun = running.child.id();
        // Not a zombie, which this process has not waited for.
        while Path::new(&format!("/proc/{mpirun}/cwd")).exists() {
            let workers = workers(mpirun);
            if workers.len() == self.processes as usize - 1
                && workers.iter().all(|at| computes(at.1))
            {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(after);
        let victim = workers(mpirun).into_iter().find(|(rank, _)| *rank == worker);
        let victim = victim.and_then(|(_, pid)| Pid::from_raw(pid));
        let was_killed = victim.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok());
        Ok((running.end(|| ())?, was_killed))
    }

    fn went(&self, ran: &Ran, was_killed: bool, whole: f64) -> anyhow::Result<Went> {
        let Some(lost) = between(&ran.said, "the last after ", ";") else {
            return Ok(if was_killed { Went::Late } else { Went::Over });
        };
        let read = || {
            let after = number(lost.split_once(" s,")?.0)?;
            let left_bytes = size(between(lost, "with ", " to do")?)?;
            let out_bytes = size(lost.rsplit_once("others had ")?.1)?;
            Some((after, left_bytes, out_bytes))
        };
        let (after, left_bytes, out_bytes) =
            read().with_context(|| format!("a loss is told otherwise: {lost}"))?;
        if left_bytes == 0 {
            return Ok(Went::Late);
        }
        let left = left_bytes as f64 / self.bytes as f64;
        let seconds = ran.seconds()? - after;
        Ok(Went::Lost(Loss { left, left_bytes, out_bytes, seconds, whole }))
    }

    fn table(&self, runs: usize, seed: u64, machine: &Machine) -> anyhow::Result<Table> {
        let (mut draw, processes) = (Draw { seed, drawn: 0 }, self.processes);
        let whole = self.undisturbed(processes)?;
        let mut before = self.undisturbed(processes - 1)?;
        // So much longer runs of all take, for they share cores.
        let longer = whole / before;
        let mut undisturbed = vec![before];
        let (mut right, mut late, mut over) = (0_usize, 0_usize, 0_usize);
        let mut losses = Vec::new();
        for run in 0..runs {
            let worker = 1 + (draw.next() * f64::from(processes - 1)) as u32;
            let after = Duration::from_secs_f64(before * longer * draw.next());
            let (ran, was_killed) = self.killed(worker, after)?;
            right += usize::from(ran.output == self.answer);
            if ran.output != self.answer {
                eprintln!("run {run} of seed {seed}: another answer; it said: {}", ran.said.trim());
                continue;
            }
            let next = self.undisturbed(processes - 1)?;
            undisturbed.push(next);
            let whole = f64::midpoint(before, next);
            before = next;
            match self.went(&ran, was_killed, whole)? {
                Went::Lost(loss) => {
                    let ratio = loss.over(loss.left_bytes, self.bytes);
                    if ratio > FAIR {
                        let said = ran.said.trim();
                        eprintln!("run {run} of seed {seed}: {ratio:.2} of ideal; it said: {said}");
                    }
                    losses.push(loss);
                }
                Went::Late => late += 1,
                Went::Over => over += 1,
            }
        }
        let bytes = show_bytes(self.bytes);
        let title = format!(
            "cluster: wordcount of {bytes} by {processes} processes, a worker killed at a random moment"
        );
        let columns = [
            ("left when it was told", ""),
            ("runs", ""),
            ("ideal", "s"),
            ("time / ideal", "x"),
            ("worst", "x"),
            ("over 1.2", "runs"),
            ("less in hand", "x"),
        ];
        let mut table = Table::new(title, machine, &columns);
        for (name, from, to) in LEFT {
            let chosen = || losses.iter().filter(|loss| (from..to).contains(&loss.left));
            let ideals = Spread::of(chosen().map(|loss| loss.whole * loss.left));
            let times = || chosen().map(|loss| loss.over(loss.left_bytes, self.bytes));
            let unfair = times().filter(|time| *time > FAIR).count();
            let times = Spread::of(times());
            let less = Spread::of(chosen().map(|loss| {
                let done_bytes = loss.out_bytes.min(loss.left_bytes) / 2;
                loss.over(loss.left_bytes - done_bytes, self.bytes)
            }));
            table.row([
                name.into(),
                chosen().count().into(),
                ideals.median.into(),
                times.median.into(),
                times.max.into(),
                unfair.into(),
                less.median.into(),
            ]);
        }
        table.row(alike(&undisturbed));
        table.note(format!(
            "{runs} runs, {right} right answers; {} killed with work left, {late} when all was done, \
             {over} over before; seed {seed}",
            losses.len()
        ));
        table.note(format!(
            "ideal: what had no result when the manager was told of the loss, at the rate of the \
             undisturbed runs of {} processes before and after; time: from then to the end; \
             less in hand: if half of what the others were at was done; nobody was killed: \
             each undisturbed run by those before and after it, which is how far runs differ \
             that nothing happened to",
            processes - 1
        ));
        Ok(table)
    }
}

/// The row of runs that nothing happened to, each by its neighbours.
fn alike(seconds: &[f64]) -> [Cell; 7] {
    let over = |runs: &[f64]| match runs {
        [before, run, after] => run / f64::midpoint(*before, *after),
        _ => 1.0,
    };
    let times = || seconds.windows(3).map(over);
    let (unfair, found) = (times().filter(|time| *time > FAIR).count(), Spread::of(times()));
    [
        "nobody was killed".into(),
        times().count().into(),
        Spread::of(seconds.iter().copied()).median.into(),
        found.median.into(),
        found.max.into(),
        unfair.into(),
        Cell::Missing,
    ]
}

/// Processes that `mpirun` started, by their number, without the manager.
fn workers(mpirun: u32) -> Vec<(u32, i32)> {
    let children = fs::read_to_string(format!("/proc/{mpirun}/task/{mpirun}/children"));
    let children = children.unwrap_or_default();
    let numbered = children.split_whitespace().filter_map(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        let rank = variables.find_map(|one| one.strip_prefix(b"OMPI_COMM_WORLD_RANK="))?;
        Some((std::str::from_utf8(rank).ok()?.parse().ok()?, pid.parse().ok()?))
    });
    numbered.filter(|(rank, _)| *rank > 0).collect()
}

/// Whether a process has accelerators at work.
fn computes(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut names =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.any(|name| name.starts_with("accel-"))
}

/// Numbers from 0 to 1, by a seed.
struct Draw {
    seed: u64,
    drawn: u64,
}

impl Draw {
    fn next(&mut self) -> f64 {
        self.drawn += 1;
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seed);
        hasher.write_u64(self.drawn);
        hasher.finish() as f64 / u64::MAX as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_nothing_happened_to_are_compared_with_their_neighbours() {
        let of = |count: usize, ratio: f64, worst: f64, over: usize| {
            [Cell::from(count), ratio.into(), worst.into(), over.into()]
        };
        let [_, count, ideal, ratio, worst, over, _] = alike(&[1.0, 1.5, 1.0, 1.0, 1.0]);
        assert_eq!([count, ratio, worst, over], of(3, 1.0, 1.5, 1));
        assert_eq!(ideal, 1.0.into());
        let [_, count, ..] = alike(&[1.0, 2.0]);
        assert_eq!(count, 0_usize.into());
    }
}
