//! Runs on several nodes: threads of this process, or those that `mpirun` started.

mod apart;
mod many;
mod rewrite;
mod sent;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cellway::cluster::drive::{self, ClusterError, Config, Farewell, MANAGER, Report, Ship};
use cellway::cluster::task::{KernelTask, Part, Task};
use cellway::cluster::transport::Endpoint;
use cellway::cluster::transport::mpi::{self, Mpi, WhenLost};
use cellway::cluster::{Counters, JobSpec, Loss, NodeId};
use cellway::storage::{Input, SharedDir};
use cellway::stream::{
    self, Begun, Direct, Journal, Outcome, Pieces, Plan, Progress, Spent, Stats,
};
use cellway::{Effect, Kernel, Options, StreamError};
use cellway_bench::args::parse_bytes;
use clap::{Args, ValueEnum};

use super::{RunArgs, journal};
use crate::exit::{self, Usage};
use crate::signals;
use crate::size::Size;
use apart::{begun, end_though_hung};
use sent::ShipArg;

/// More threads that are nodes are a slip of the hand.
const NODES_MAX: i64 = 256;

/// The longest lease where the user says how long they are: it may take hours in earnest.
const LEASE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Args, Debug)]
#[command(next_help_heading = "Nodes")]
pub(super) struct ClusterArgs {
    /// Compute on N nodes that are threads of this process, each with its share of
    /// the cores
    #[arg(long, value_name = "N", conflicts_with_all = ["cluster", "manager_only"],
          value_parser = clap::value_parser!(u32).range(1..=NODES_MAX))]
    nodes: Option<u32>,
    /// Compute on all processes that `mpirun` started with this command; the first
    /// one gives out work, prints the result and computes too. INPUT is read by each
    /// under the same name, or sent: see --ship. A process may be lost, with an mpirun
    /// that allows it; a whole machine takes with it what it had not yet brought to OUTPUT's
    /// disk: run again if one died
    #[arg(long, value_name = "NAME", value_enum)]
    cluster: Option<Transport>,
    /// What nodes do: connector, ask for work as they need it, the next received while
    /// one is computed; basic, even parts, each received, computed and returned before the
    /// next, and none by two nodes; single, the first node does all
    #[arg(long, value_name = "MODE", value_enum)]
    mode: Option<Mode>,
    /// Bytes that a node gets at a time, down to whole blocks by powers of two
    /// [default: measured, for each node]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    unit: Option<u64>,
    /// How other nodes come by their blocks. The first one opens each INPUT and reads its own
    /// [default: auto; with --nodes, whose threads share INPUT, locators]
    #[arg(long, value_name = "HOW", value_enum)]
    ship: Option<ShipArg>,
    /// Nodes manage nodes: each FANOUT of those after it, the first the next FANOUT, and
    /// so on, so that results are merged at every level. Of use beyond some hundreds
    #[arg(long, value_name = "FANOUT")]
    tree: Option<u32>,
    /// The process that gives out work does not compute
    #[arg(long, requires = "cluster")]
    manager_only: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    /// Open MPI or MPICH
    Mpi,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Connector,
    Basic,
    Single,
}

/// What was found, and how; `None` at a node that is not the manager.
pub(super) type Found<P> = Option<Outcome<P>>;

/// What prints a result, of a kernel that has one: also while a unit hangs that others have done.
pub(super) type Print<'p, P> = Option<&'p dyn Fn(P) -> anyhow::Result<()>>;

/// The nodes of a run.
pub(super) enum Nodes {
    /// This machine, without any.
    None,
    Threads(u32),
    Peer(RefCell<Peer>, Rank),
}

/// This process among others.
pub(super) enum Peer {
    Begins(Box<dyn Endpoint>),
    Runs,
    Ends(Farewell),
}

#[derive(Debug)]
pub(super) struct Rank {
    own: u32,
    manages: bool,
    peers: u32,
    /// Resident memory when it had met the others.
    begun_bytes: u64,
    /// What it may take, once that is known.
    bound_bytes: Cell<Option<u64>>,
}

impl ClusterArgs {
    fn is_asked_for(&self) -> bool {
        self.nodes.is_some() || self.cluster.is_some()
    }

    /// Whether the options fit together.
    pub(super) fn check(&self, args: &RunArgs) -> Result<(), Usage> {
        let wrong = |what: &str| Err(Usage(what.to_owned()));
        if !self.is_asked_for() {
            return match (self.mode, self.unit) {
                (Some(_), _) => wrong("--mode is about nodes; give --nodes N, or --cluster mpi"),
                (_, Some(_)) => wrong("--unit is about nodes; give --nodes N, or --cluster mpi"),
                _ if self.ship.is_some() => {
                    wrong("--ship is about nodes; give --nodes N, or --cluster mpi")
                }
                _ if self.tree.is_some() => {
                    wrong("--tree is about nodes; give --nodes N, or --cluster mpi")
                }
                _ => Ok(()),
            };
        }
        let is_rewrite = args.kernel.last.effect == Effect::Rewrite;
        if args.trace.is_some() {
            return wrong("--trace shows one machine; leave it out, or run without nodes");
        }
        if self.cluster.is_some() && args.serve.is_some() {
            return wrong("--serve shows one process; leave it out, or take --nodes");
        }
        if self.ship() == Ship::Bytes && is_rewrite {
            let what = "--ship bytes sends blocks to kernels whose blocks have places";
            return wrong(&format!("{what}; let each process read for itself"));
        }
        if self.ship() == Ship::Bytes && args.layout.direct == Direct::On {
            return wrong(
                "--direct on bypasses a cache, and what --ship bytes sends is in memory; leave one out",
            );
        }
        if let Some(fanout @ 0..2) = self.tree {
            let what = format!("--tree {fanout} makes no tree");
            return wrong(&format!("{what}; give how many nodes each manages, two or more"));
        }
        if self.tree.is_some() && self.mode.is_some_and(|mode| mode != Mode::Connector) {
            return wrong(
                "--tree is for --mode connector, whose nodes ask for work; leave one out",
            );
        }
        if self.mode == Some(Mode::Single) && self.manager_only {
            return wrong(
                "with --mode single the manager alone computes; leave --manager-only out",
            );
        }
        Ok(())
    }

    /// Meets the others.
    pub(super) fn start(&self, verbose: bool) -> anyhow::Result<Nodes> {
        Ok(match (self.nodes, self.cluster) {
            (Some(_), _) if self.mode == Some(Mode::Single) => Nodes::Threads(1),
            (Some(nodes), _) => Nodes::Threads(nodes),
            (None, None) => Nodes::None,
            (None, Some(Transport::Mpi)) => {
                let mpi = Mpi::start()?;
                let (manages, peers) = (mpi.own() == MANAGER, mpi.peers());
                if peers == 1 && self.manager_only {
                    let what = "with --manager-only somebody else must compute";
                    return Err(Usage(format!("{what}; start more processes by mpirun -n")).into());
                }
                if peers == 1 && !mpi::was_launched() {
                    exit::tell(
                        "no mpirun started this process, so it does all alone; start more by mpirun -n N",
                    );
                }
                let when_lost = format!("{}: {}", mpi.library(), mpi.when_lost());
                if manages && verbose {
                    exit::tell(&when_lost);
                } else if manages && peers > 1 && mpi.when_lost() == WhenLost::EndsAll {
                    // A signal may be how this process hears of a loss.
                    signals::end_at_exit(move || exit::tell(&when_lost));
                }
                let (own, bound_bytes) = (mpi.own().0, Cell::default());
                let begun_bytes = stream::rss_bytes().unwrap_or(0);
                let rank = Rank { own, manages, peers, begun_bytes, bound_bytes };
                Nodes::Peer(RefCell::new(Peer::Begins(Box::new(mpi))), rank)
            }
        })
    }

    /// What each node takes of this machine.
    fn options(&self, nodes: &Nodes, mut asked: Options) -> Options {
        if self.ship() == Ship::Bytes {
            // As where it is sent, so that all is counted alike.
            asked.direct = Direct::Off;
        }
        let nodes = match nodes {
            Nodes::None => return asked,
            Nodes::Peer(..) if self.mode == Some(Mode::Single) => return asked,
            Nodes::Peer(..) => return mpi::share(asked),
            Nodes::Threads(nodes) => nodes,
        };
        let cores = cellway::accel::Config::default().accelerators;
        let share = (cores / *nodes as usize).max(1);
        Options { accelerators: asked.accelerators.or(Some(share)), ..asked }
    }

    fn ship(&self) -> Ship {
        self.ship.unwrap_or_default().into()
    }

    fn config(&self) -> Config {
        let manager_computes = !self.manager_only;
        let (fanout, ship) = (self.tree, self.ship());
        let mut config = Config { manager_computes, fanout, ship, ..Config::default() };
        if self.cluster.is_some() {
            config.hello.build = drive::build();
            config.manager.build.clone_from(&config.hello.build);
        }
        if self.unit.is_some() {
            config.sent_bytes = Some(u64::MAX);
            config.manager.lease_bytes_max = u64::MAX;
        }
        if self.unit.is_some() || self.mode == Some(Mode::Basic) {
            config.manager.lease_max = LEASE_MAX;
        }
        if self.mode == Some(Mode::Basic) { config.basic() } else { config }
    }

    /// Units of a lease, where that is not measured.
    fn lease_units(&self, units: u64, unit_bytes: u64, nodes: u32) -> Option<u64> {
        match (self.unit, self.mode) {
            (Some(bytes), _) => Some((bytes / unit_bytes.max(1)).max(1)),
            (None, Some(Mode::Basic)) => {
                let nodes = nodes - u32::from(self.manager_only);
                Some(Config::basic_units(units, nodes.into()))
            }
            (None, _) => None,
        }
    }
}

impl Nodes {
    /// Which peer this process is, of several.
    fn own(&self) -> Option<NodeId> {
        match self {
            Self::Peer(_, rank) => Some(NodeId(rank.own)),
            Self::None | Self::Threads(_) => None,
        }
    }

    /// Whether this process prints, writes and tells.
    pub(super) fn manages(&self) -> bool {
        !matches!(self, Self::Peer(_, Rank { manages: false, .. }))
    }

    pub(super) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Whether other processes write to the output too.
    pub(super) fn share_output(&self) -> bool {
        matches!(self, Self::Peer(..))
    }

    /// Takes leave of the others, which write nothing afterwards; `false` if one may, for
    /// it did not say that it ends. Once is enough.
    pub(super) fn end(&self) -> anyhow::Result<bool> {
        if let Self::Peer(peer, _) = self {
            match peer.replace(Peer::Runs) {
                // It met nobody, and nobody is to be waited for.
                Peer::Begins(endpoint) => Farewell::new(endpoint, Duration::ZERO).say()?,
                Peer::Runs => {}
                Peer::Ends(farewell) => farewell.say()?,
            }
        }
        Ok(!mpi::must_leave())
    }

    /// What this process may take at most.
    fn may_take(&self, bound_bytes: u64) {
        if let Self::Peer(_, rank) = self {
            rank.bound_bytes.set(Some(bound_bytes));
        }
    }

    /// Says how much memory this process took, if it is one of several.
    pub(super) fn tell_memory(&self) {
        let Self::Peer(_, Rank { own, manages, begun_bytes, bound_bytes, .. }) = self else {
            return;
        };
        let Some(peak) = stream::peak_rss_bytes() else { return };
        let bound = match bound_bytes.get() {
            Some(bound) => format!("at most {}", Size(bound)),
            // One that does all alone says so before.
            None if *manages => return,
            // Who is sent its units and got none never heard how long they are.
            None => "no units".to_owned(),
        };
        exit::tell(&format!(
            "process {own}: memory {} when MPI had started, peak {}, {bound}",
            Size(*begun_bytes),
            Size(peak)
        ));
    }

    fn count(&self) -> u32 {
        match self {
            Self::None => 1,
            Self::Threads(nodes) => *nodes,
            Self::Peer(_, Rank { peers, .. }) => *peers,
        }
    }

    /// Runs `kernel` on all of them.
    pub(super) fn stream<K: Kernel<Part: 'static>>(
        &self,
        args: &RunArgs,
        (kernel, input): (&K, &Input),
        begun: &mut Begun,
        (progress, print): (&Progress, Print<'_, K::Part>),
    ) -> anyhow::Result<Found<K::Part>> {
        if kernel.effect() == Effect::Rewrite {
            return self.rewrite(args, (kernel, input), begun, progress);
        }
        let Begun { options, output, journal } = begun;
        let output = output.as_ref();
        let options = args.cluster.options(self, options.clone());
        let task = KernelTask::new(kernel, input, output, &options, progress)?;
        let lease_units = self.lease_units(args, task.spec());
        let task = task.lease_units(lease_units);
        let plan = task.plan();
        let units = (task.spec().units, task.spec().unit_bytes);
        let output_bytes = plan.output_bytes().unwrap_or(0);
        let journal = kept(journal, |journal| Pieces::new(journal, output, units, output_bytes))?;
        let result = |part| task.result(part).map_err(anyhow::Error::msg);
        let print = print.map(|print| move |part| print(result(part)?));
        let print = print.as_ref().map(|print| print as &dyn Fn(_) -> _);
        let done = self.carry_out(args, (&task, plan), output.is_some(), (journal, print))?;
        let Some((part, stats)) = done else { return Ok(None) };
        let part = result(part)?;
        Ok(Some(Outcome { part, stats }))
    }

    fn lease_units(&self, args: &RunArgs, spec: JobSpec) -> Option<u64> {
        args.cluster.lease_units(spec.units, spec.unit_bytes, self.count())
    }

    /// Does the one job of a run on all of them.
    fn carry_out(
        &self,
        args: &RunArgs,
        (task, plan): (&dyn Task, &Plan),
        writes: bool,
        (journal, print): (Kept<'_>, Print<'_, Option<Part>>),
    ) -> anyhow::Result<Option<(Option<Part>, Stats)>> {
        let cluster = &args.cluster;
        let config = Config { on_loss: Some(tell_loss), ..cluster.config() };
        let here = if let Self::Threads(nodes) = self { u64::from(*nodes) } else { 1 };
        let results_bytes = config.results_bytes(task, self.count(), self.own());
        // A record has them twice more: as saved, and as written.
        let results_bytes = results_bytes.saturating_mul(if journal.is_some() { 3 } else { 1 });
        let sent_bytes = match self.manages() {
            true => {
                let are_threads = matches!(self, Self::Threads(_));
                config.shipped_bytes(task, self.count() - 1, are_threads)
            }
            false => config.node_bytes(task, task.spec()),
        };
        let bound_by = |session_bytes| {
            let parts = [here.saturating_mul(session_bytes), results_bytes, sent_bytes];
            parts.into_iter().fold(stream::floor_bytes(), u64::saturating_add)
        };
        let bound = bound_by(plan.memory_bytes);
        self.may_take(bound);
        if args.verbose && self.manages() {
            let groups = match config.groups(self.count()) {
                0 => String::new(),
                groups => format!(" in {groups} groups below the first"),
            };
            exit::tell(&format!(
                "{}: nodes {}{groups}, accelerators on each {}, threads on each {}, blocks of {}, memory here at most {}",
                task.description().kernel,
                self.count(),
                plan.accelerators,
                plan.threads,
                Size(plan.block_bytes),
                Size(bound)
            ));
        }
        let started = Instant::now();
        let tasks: [&dyn Task; 1] = [task];
        let is_single = cluster.mode == Some(Mode::Single);
        let (name, pieces) = journal.unzip();
        let stopped = |error: ClusterError| match (error, &name) {
            (ClusterError::Journal(error), Some(name)) => {
                journal::failed(StreamError::Journal(error), name)
            }
            (error, Some(name)) => journal::stopped(&error, name),
            (error, None) => error.into(),
        };
        let (report, stats) = match self {
            Self::Peer(_, rank) if is_single => {
                self.stay_alone(config.linger)?;
                if !rank.manages {
                    return Ok(None);
                }
                let ran =
                    drive::run_local_journaled(1, &tasks, &config, pieces).map_err(stopped)?;
                (Some(ran.0), ran.1)
            }
            Self::Peer(peer, _) => meet(peer, &tasks, &config, (pieces, stopped), print)?,
            _ => {
                let ran = drive::run_local_journaled(self.count(), &tasks, &config, pieces)
                    .map_err(stopped)?;
                (Some(ran.0), ran.1)
            }
        };
        if !self.manages() {
            // Its blocks are the manager's, as it was told when it joined.
            let sessions = stats.iter().map(|stats| stats.plan.memory_bytes);
            self.may_take(bound_by(sessions.fold(plan.memory_bytes, u64::max)));
        }
        let Some(Report { mut results, counters, unrecorded }) = report else { return Ok(None) };
        if let Some(why) = unrecorded {
            exit::tell(&format!(
                "the journal lacks records that were due: {why}; a run that was killed would go on from the one before"
            ));
        }
        let result = results.pop().context("a run has one job")?;
        let part = result.map_err(|error| match &name {
            Some(name) => journal::stopped(&error, name),
            None => error.into(),
        })?;
        if args.verbose {
            exit::tell(&went(&counters));
        }
        let stats = stats.into_iter().reduce(|mut all, node| {
            all.add(&node);
            all
        });
        // Where nothing was computed here, this is how it would have been.
        let mut stats = match stats {
            Some(stats) => stats,
            None => Stats::planned(plan.clone()),
        };
        stats.memory_bound_bytes = bound;
        if self.share_output() && !is_single {
            // Those of others are not known here, so neither are rates.
            (stats.spent, stats.stages) = (Spent::default(), Vec::new());
        }
        stats.elapsed = started.elapsed();
        stats.bytes_in = task.description().body.1;
        stats.bytes_out = if writes { stats.bytes_in } else { 0 };
        Ok(Some((part, stats)))
    }
}

/// A journal's name, and what it takes; `None` of a run that has none.
type Kept<'j> = Option<(String, Pieces<'j>)>;

fn kept<'j>(
    journal: &'j mut Option<Journal>,
    pieces: impl FnOnce(&'j mut Journal) -> Result<Pieces<'j>, StreamError>,
) -> Result<Kept<'j>, StreamError> {
    let Some(journal) = journal else { return Ok(None) };
    let name = journal.name().to_owned();
    Ok(Some((name, pieces(journal)?)))
}

/// The folder in `dir` of what has no place in an output yet; `None` where all has it.
fn shared_dir(kept: &mut Kept<'_>, dir: &Path) -> Result<Option<SharedDir>, StreamError> {
    match kept {
        Some((_, pieces)) if pieces.is_named() => Ok(None),
        Some((_, pieces)) => pieces.shared_dir(dir).map(Some),
        None => Ok(Some(SharedDir::create(dir)?)),
    }
}

/// Works with the others, as a manager or a node.
fn meet(
    peer: &RefCell<Peer>,
    tasks: &[&dyn Task],
    config: &Config,
    (pieces, stopped): (Option<Pieces<'_>>, impl Fn(ClusterError) -> anyhow::Error),
    print: Print<'_, Option<Part>>,
) -> anyhow::Result<(Option<Report>, Vec<Stats>)> {
    let endpoint = begun(peer)?;
    let node = format!("node {}: ", endpoint.own().0);
    let has_journal = pieces.is_some();
    let hung = |hangs: &str, ran| Ok(end_though_hung(hangs, ran, (print, has_journal), &stopped));
    let ran = drive::run_to_end(endpoint, tasks, config, pieces, hung).map_err(&stopped)?;
    peer.replace(Peer::Ends(ran.farewell));
    tell_refused(&ran.refused);
    if let Some(why) = ran.unfit {
        // The others do without it, and are not to be ended by it.
        exit::complain(why.strip_prefix(&node).unwrap_or(&why));
    }
    Ok((ran.report, ran.stats))
}

/// The lines about nodes that were done without.
fn tell_refused(refused: &[String]) {
    for why in refused {
        exit::tell(&format!("goes on without {why}"));
    }
}

/// The line after a run, about its nodes.
fn went(counters: &Counters) -> String {
    let Counters { joined, refused, lost, given, given_again, given_twice, .. } = counters;
    let Counters { shortened, failures, .. } = counters;
    let last = counters.last_loss.map(|Loss { after, bytes_left, bytes_out, .. }| {
        let (left, out) = (Size(bytes_left), Size(bytes_out));
        format!(
            ", the last after {:.3} s, with {left} to do, of which others had {out}",
            after.as_secs_f64()
        )
    });
    format!(
        "nodes joined {joined}, unfit {refused}, lost {lost}{}; work given {given} times, again after a loss or failure \
         {given_again}, to a second node {given_twice}, cut for one that was idle {shortened}; failures {failures}",
        last.unwrap_or_default()
    )
}

/// The line when nodes are lost, while others go on.
fn tell_loss(counters: Counters) {
    if let Some(Loss { node, .. }) = counters.last_loss {
        let (node, lost) = (node.0, counters.lost);
        exit::tell(&format!("node {node} is lost, {lost} so far; what it had goes to others"));
    }
}

/// Ends a process that has started MPI.
pub(crate) fn leave(code: u8) {
    if mpi::is_started() {
        mpi::leave(code.into());
    }
}
