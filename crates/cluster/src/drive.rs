//! What a manager and its nodes decide, carried out: one peer's loop, over any
//! transport.

mod compute;
mod fetch;
mod group;
mod jobs;
mod keep;
mod layout;
mod manage;
mod merging;
mod peer;
mod queue;
mod ship;
mod submanage;
#[cfg(test)]
mod testing;

use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::Sender;
use std::task::Waker;
use std::time::{Duration, Instant};

use crc_fast::{CrcAlgorithm, Digest};
use serde_bytes::ByteBuf;
use stream::{JournalError, Pieces, Stats};

use crate::manager::MergeId;
use crate::node::{Left, PATIENCE};
use crate::submanager::BUFFERS;
use crate::task::{Ended, Part, Shipped, Task};
use crate::transport::{Endpoint, TransportError, local};
use crate::wire::Message;
use crate::{Counters, Epoch, Hello, JobError, JobSpec, LeaseId, NodeId, manager};
use compute::SessionId;
use layout::Layout;
use merging::Held;
use peer::Peer;
use queue::Order;
pub use queue::{Led, Queue, run_led, run_led_to_end, run_local_led};
pub use ship::Ship;

/// The peer that manages.
pub const MANAGER: NodeId = NodeId(0);

/// How peers work together.
#[derive(Clone, Debug)]
pub struct Config {
    /// Of the manager.
    pub manager: manager::Config,
    /// What each node says of itself.
    pub hello: Hello,
    /// Whether the manager's peer is a node too.
    pub manager_computes: bool,
    /// How many peers each one manages, in a tree: the first the next so many, and so on
    /// in the order of their numbers. None: the first manages all.
    pub fanout: Option<u32>,
    /// How long the manager waits, when all is done, for nodes that have not said
    /// hello yet, and every peer for what it sent to leave. Where a peer that ends before the
    /// first one ends all, the others wait for that, however long it takes.
    pub linger: Duration,
    /// How long a node waits for a manager that says nothing, before it is welcomed
    /// too. The manager may start so much later, or be stopped for so long.
    pub patience: Duration,
    /// How nodes come by the bytes of their units.
    pub ship: Ship,
    /// The memory budget in bytes of a node for units that it is sent: a lease has a buffer's
    /// share of it at most, or one unit. None: 16 MiB where all are sent, so that computing
    /// begins soon, and else what it has that reads, 128 MiB.
    pub sent_bytes: Option<u64>,
    /// Called by the manager of all when a membership ended by a loss.
    pub on_loss: Option<fn(Counters)>,
    /// Why this peer, which does not manage, can do nothing: it says so, manages nobody and leaves.
    pub unfit: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            manager: manager::Config::default(),
            hello: Hello::default(),
            manager_computes: true,
            fanout: None,
            linger: Duration::from_secs(5),
            patience: PATIENCE,
            ship: Ship::default(),
            sent_bytes: None,
            on_loss: None,
            unfit: None,
        }
    }
}

/// Leases of a node, at least, in a run of [`Config::basic`]: with one, whose units are a power
/// of two, it might have twice what another has; with many it would not have its share at once.
const EVEN_LEASES: u64 = 2;

/// Results that wait to be merged take no more, if there are not very many nodes.
const BACKLOG_BYTES: u64 = 64 << 20;
const BACKLOG_MIN: u64 = 2;

impl Config {
    /// What others are compared with (Cell Connector, chapter 5): even parts, none of which
    /// two nodes have. A node gets the next one when it has returned what it found in the one
    /// before, so nothing overlaps.
    #[must_use]
    pub fn basic(mut self) -> Self {
        self.hello.buffers = 1;
        (self.manager.lease_bytes_max, self.manager.shares) = (u64::MAX, false);
        self.sent_bytes = Some(u64::MAX);
        self
    }

    /// Units of each lease then, of so many on so many nodes.
    #[must_use]
    pub fn basic_units(units: u64, nodes: u64) -> u64 {
        (units / nodes.saturating_mul(EVEN_LEASES).max(1)).max(1)
    }

    /// With so few results waiting that they fit the memory meant for them.
    fn fit(&self, tasks: &[&dyn Task]) -> Self {
        let mut config = self.clone();
        let part_bytes = tasks.iter().map(|task| task.part_bytes()).max().unwrap_or(0).max(1);
        let room = (BACKLOG_BYTES / part_bytes).max(BACKLOG_MIN);
        config.manager.backlog_max = config.manager.backlog_max.min(room as usize);
        let buffers = tasks.iter().map(|task| self.buffer_bytes(*task)).max();
        config.hello.buffer_bytes = config.hello.buffer_bytes.min(buffers.unwrap_or(u64::MAX));
        config
    }

    /// What a buffer of a node holds of that task: a unit that it knows of in any case.
    fn buffer_bytes(&self, task: &dyn Task) -> u64 {
        let all_bytes = match self.ship {
            Ship::Locators => return u64::MAX,
            Ship::Auto if task.reads() => return u64::MAX,
            Ship::Auto => ship::SENT_BYTES_MAX,
            Ship::Bytes => ship::SENT_BYTES,
        };
        let all_bytes = self.sent_bytes.unwrap_or(all_bytes);
        let buffer_bytes = all_bytes / u64::from(self.hello.buffers.max(1));
        buffer_bytes.max(task.description().unit_bytes)
    }

    /// The most memory in bytes that the managers of so many peers take for results of
    /// `task`, all of them or that `of` one, besides what their own nodes take: two that are
    /// merged, those that wait, and one for each buffer of a node. A group has several jobs
    /// at a time. Who manages none takes nothing.
    #[must_use]
    pub fn results_bytes(&self, task: &dyn Task, peers: u32, of: Option<NodeId>) -> u64 {
        let config = self.fit(&[task]);
        let layout = Layout::new(peers, self.fanout);
        let has_group = |peer| peer != MANAGER && layout.below(peer).next().is_some();
        let held = |manager: NodeId| {
            let jobs = if manager == MANAGER { 1 } else { u64::from(BUFFERS) };
            let below = layout.below(manager).map(|peer| match has_group(peer) {
                true => u64::from(BUFFERS),
                false => config.hello.buffers.into(),
            });
            let buffers = u64::from(config.hello.buffers) + below.sum::<u64>();
            jobs * (2 + config.manager.backlog_max as u64) + buffers
        };
        let managers = layout.managers().filter(|manager| of.is_none_or(|of| of == *manager));
        managers.map(held).sum::<u64>().saturating_mul(task.part_bytes())
    }

    /// How many of so many peers manage others below the first.
    #[must_use]
    pub fn groups(&self, peers: u32) -> usize {
        Layout::new(peers, self.fanout).managers().count().saturating_sub(1)
    }

    /// The most memory in bytes that units which are sent take in the manager's process, where
    /// so many `nodes` beside its own are threads of it, or else of others.
    #[must_use]
    pub fn shipped_bytes(&self, task: &dyn Task, nodes: u32, are_threads: bool) -> u64 {
        let is_sent = match self.ship {
            Ship::Auto => !are_threads,
            Ship::Locators => false,
            Ship::Bytes => true,
        };
        if !is_sent {
            return 0;
        }
        let held_bytes = self.held_bytes(task, task.spec()).saturating_mul(nodes.into());
        let held_bytes = if are_threads { held_bytes } else { 0 };
        let told_bytes = list_bytes(task, |shipped| {
            // Threads keep what they were told.
            let kept_bytes = if are_threads { shipped.list_bytes() } else { shipped.told_bytes() };
            shipped.list_bytes().saturating_add(kept_bytes.saturating_mul(nodes.into()))
        });
        ship::way_bytes(nodes.into()).saturating_add(held_bytes).saturating_add(told_bytes)
    }

    /// The most memory in bytes that a node which is a process of its own, and not the manager,
    /// takes beside what its accelerators do, for a task of that `spec`: results until they
    /// have left, saved and as messages, and units that are sent.
    #[must_use]
    pub fn node_bytes(&self, task: &dyn Task, spec: JobSpec) -> u64 {
        let results = u64::from(self.hello.buffers) * 2;
        let results_bytes = results.saturating_mul(task.part_bytes());
        if self.ship == Ship::Locators {
            return results_bytes;
        }
        let sent_bytes = ship::way_bytes(1).saturating_add(self.held_bytes(task, spec));
        let list_bytes = list_bytes(task, Shipped::list_bytes);
        results_bytes.saturating_add(sent_bytes).saturating_add(list_bytes)
    }

    /// Bytes of the leases that a node has at a time.
    fn held_bytes(&self, task: &dyn Task, spec: JobSpec) -> u64 {
        let JobSpec { units, unit_bytes, lease_units, .. } = spec;
        let longest = self.manager.lease_bytes_max.min(self.buffer_bytes(task)).max(unit_bytes);
        let lease_bytes = lease_units.unwrap_or(u64::MAX).min(units).saturating_mul(unit_bytes);
        u64::from(self.hello.buffers).saturating_mul(lease_bytes.min(longest))
    }
}

/// What the lengths of many inputs take that can be sent.
fn list_bytes(task: &dyn Task, of: impl Fn(&Shipped) -> u64) -> u64 {
    task.description().shipped.as_ref().map_or(0, of)
}

/// The version of this program, and a checksum of its file: two builds of one version may
/// compute otherwise. The version alone where the file cannot be read.
#[must_use]
pub fn build() -> String {
    let version = Hello::default().build;
    let read = || {
        let mut program = std::fs::File::open("/proc/self/exe")?;
        let (mut digest, mut bytes) = (Digest::new(CrcAlgorithm::Crc64Nvme), vec![0; 1 << 20]);
        loop {
            match program.read(&mut bytes)? {
                0 => return Ok::<_, std::io::Error>(digest.finalize()),
                read => digest.update(bytes.get(..read).unwrap_or_default()),
            }
        }
    };
    read().map_or_else(|_| version.clone(), |sum| format!("{version} ({sum:016x})"))
}

/// What a peer did.
#[derive(Debug)]
pub struct Ran {
    /// What came of all jobs, at the manager.
    pub report: Option<Report>,
    /// How its node worked at each job of which it got something.
    pub stats: Vec<Stats>,
    /// Why its node left before the end, where the others do without it.
    pub unfit: Option<String>,
    /// Nodes that this peer, a manager, did without, each with the reason.
    pub refused: Vec<String>,
    /// Still open, for the end of some transports waits for others, and ends all if one
    /// dies in it: [`Farewell::say`] once what was found is in safety.
    pub farewell: Farewell,
}

/// What a peer has left to do.
pub struct Farewell {
    endpoint: Box<dyn Endpoint>,
    linger: Duration,
}

impl std::fmt::Debug for Farewell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Farewell of peer {}", self.endpoint.own().0)
    }
}

impl Farewell {
    /// Of a peer that has nothing to do with the others.
    #[must_use]
    pub fn new(endpoint: Box<dyn Endpoint>, linger: Duration) -> Self {
        Self { endpoint, linger }
    }

    /// Ends this side of the transport.
    ///
    /// # Errors
    /// As [`Endpoint::close`].
    pub fn say(self) -> Result<(), TransportError> {
        self.endpoint.close(Instant::now() + self.linger)
    }
}

/// What came of all jobs.
#[derive(Debug)]
pub struct Report {
    /// In the order of the tasks: a job's result, none of one without units or results.
    pub results: Vec<Result<Option<Part>, JobError>>,
    /// What happened.
    pub counters: Counters,
    /// Why something could not be recorded, where the run went on without.
    pub unrecorded: Option<String>,
}

/// Why a peer ended before its work did.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Peers cannot be reached.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The manager does not want this node, or is gone.
    #[error("node {}: {why}", .node.0)]
    Left {
        /// Which node.
        node: NodeId,
        /// Why it left.
        why: Left,
    },
    /// A part cannot be loaded, or is another kernel's.
    #[error("{0}")]
    Result(String),
    /// What was recorded cannot be gone on from.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// There is no such job.
    #[error("{0}")]
    Submit(String),
    /// What was done cannot be recorded.
    #[error("{0}")]
    Record(String),
}

/// Has the peers of a transport do `tasks`, one after the other. All peers call it
/// with the same ones; the first one manages, and is told what came of them.
///
/// # Errors
/// If this peer cannot go on: the others do without it, but for the manager's. A
/// kernel that panics has failed; others try what it had.
pub fn run(
    endpoint: Box<dyn Endpoint>,
    tasks: &[&dyn Task],
    config: &Config,
) -> Result<Ran, ClusterError> {
    run_journaled(endpoint, tasks, config, None)
}

/// As [`run`]; the manager goes on from what its journal tells and records what is done.
///
/// # Errors
/// As [`run`], and if nothing can be recorded.
pub fn run_journaled(
    endpoint: Box<dyn Endpoint>,
    tasks: &[&dyn Task],
    config: &Config,
    journal: Option<Pieces<'_>>,
) -> Result<Ran, ClusterError> {
    run_to_end(endpoint, tasks, config, journal, |_, ran| ran)
}

/// As [`run_journaled`], which ends when all threads of this peer have: never, if a unit or a
/// disk hangs here. So `hung` is called before, with what hangs or takes very long, and what
/// this peer did, or why it failed: it may do what is left to do, and end the process. It is
/// not where a unit hangs on this very thread, which computes units of a job whose others took
/// some microseconds here, on peers that do not manage.
///
/// # Errors
/// As [`run_journaled`], and those of `hung`.
pub fn run_to_end(
    endpoint: Box<dyn Endpoint>,
    tasks: &[&dyn Task],
    config: &Config,
    journal: Option<Pieces<'_>>,
    hung: impl FnOnce(&str, Result<Ran, ClusterError>) -> Result<Ran, ClusterError>,
) -> Result<Ran, ClusterError> {
    let config = &config.fit(tasks);
    std::thread::scope(|scope| {
        let (ran, hangs) = Peer::new(endpoint, tasks, config, scope, (journal, None))?.run();
        match hangs {
            Some(what) => hung(&what, ran),
            None => ran,
        }
    })
}

/// The same between `nodes` threads of this process, the manager's among them; with
/// the stats of all.
///
/// # Errors
/// As [`run`].
pub fn run_local(
    nodes: u32,
    tasks: &[&dyn Task],
    config: &Config,
) -> Result<(Report, Vec<Stats>), ClusterError> {
    run_local_journaled(nodes, tasks, config, None)
}

/// As [`run_local`]; the manager goes on from what its journal tells and records what is done.
///
/// # Errors
/// As [`run_journaled`], and if a node cannot go on or do what it is given, as where units that
/// are to be sent cannot be.
pub fn run_local_journaled(
    nodes: u32,
    tasks: &[&dyn Task],
    config: &Config,
    journal: Option<Pieces<'_>>,
) -> Result<(Report, Vec<Stats>), ClusterError> {
    let first = |endpoint, config: &_| Ok((run_journaled(endpoint, tasks, config, journal)?, ()));
    let (report, stats, ()) = locals(nodes, tasks, config, first)?;
    Ok((report, stats))
}

fn no_manager() -> ClusterError {
    ClusterError::Result("there is no manager".to_owned())
}

/// Has `nodes` threads work together, of which this one is the `first`.
fn locals<T>(
    nodes: u32,
    tasks: &[&dyn Task],
    config: &Config,
    first: impl FnOnce(Box<dyn Endpoint>, &Config) -> Result<(Ran, T), ClusterError>,
) -> Result<(Report, Vec<Stats>, T), ClusterError> {
    let mut config = Config { manager_computes: true, ..config.clone() };
    if config.ship == Ship::Auto {
        // All have the manager's input.
        config.ship = Ship::Locators;
    }
    let left = |node, why| ClusterError::Left { node: NodeId(node), why: Left::Unfit(why) };
    // Not found out by each of them while the first does all.
    if nodes > 1 && config.ship == Ship::Bytes {
        for description in tasks.iter().map(|task| task.description()) {
            if let Err(why) = &description.shipped {
                return Err(left(1, fetch::cannot_be_sent(description, why)));
            }
        }
    }
    let config = &config;
    let mut endpoints = local::endpoints(nodes.max(1)).into_iter();
    std::thread::scope(|scope| {
        let endpoint = endpoints.next().ok_or_else(no_manager)?;
        let other = |endpoint| -> Result<_, ClusterError> {
            let ran = run(Box::new(endpoint), tasks, config)?;
            ran.farewell.say()?;
            Ok((ran.stats, ran.unfit))
        };
        let others: Vec<_> =
            endpoints.map(|endpoint| scope.spawn(move || other(endpoint))).collect();
        let (ran, led) = first(Box::new(endpoint), config)?;
        ran.farewell.say()?;
        let mut stats = ran.stats;
        for (other, node) in others.into_iter().zip(1..) {
            match other.join() {
                // It was asked for by number: the others do not do without it in silence. To
                // them it is lost, which only counters tell.
                Ok(Ok((_, Some(why)))) => return Err(left(node, why)),
                Ok(Err(error)) => return Err(error),
                Ok(Ok((of_other, None))) => stats.extend(of_other),
                Err(panic) => resume_unwind(panic),
            }
        }
        Ok((ran.report.ok_or_else(no_manager)?, stats, led))
    })
}

/// What other threads of a peer bring.
enum Brought {
    /// A lease did, of that session.
    Ended(SessionId, LeaseId, Ended),
    /// A node's accelerators stopped working at a job.
    Over(SessionId, Result<Box<Stats>, String>),
    /// And how long that took.
    Merged(MergeId, Result<Held, String>, Duration),
    /// The result of a lease of the manager above.
    Saved((Epoch, LeaseId, u64), Result<ByteBuf, String>),
    /// What this peer put before it was asked is on the disk.
    Settled(u64, Result<(), String>),
    /// A record is, and the next is due then.
    Recorded(Result<Instant, String>),
    /// Bytes for a node.
    Read(NodeId, Message),
    /// Of who leads.
    Order(Order),
}

/// Where they bring it.
#[derive(Clone)]
struct Bring {
    to: Sender<Brought>,
    waker: Waker,
}

impl Bring {
    fn bring(&self, what: Brought) {
        self.leave(what);
        self.waker.wake_by_ref();
    }

    /// On the peer's own thread.
    fn leave(&self, what: Brought) {
        // A peer that has ended wants nothing.
        let _ = self.to.send(what);
    }
}

/// What `what` comes to; its panic is an error like another. Nothing it was at is used again.
fn caught<T>(what: &str, run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let said = text.or_else(|| panic.downcast_ref().copied()).unwrap_or("no reason");
        Err(format!("{what} panicked: {said}"))
    })
}

/// To linger for longer than any run: as long as it takes.
pub const LINGER_MAX: Duration = Duration::from_secs(1 << 32);

/// How long a peer that has ended waits for its threads, as for accelerators to let go of what
/// others did.
const LETS_GO: Duration = Duration::from_secs(5);

/// A peer's own thread does what takes no longer. To hand it to another one, and what
/// came of it back, takes some 10 us or more, and messages wait meanwhile.
const OWN_MAX: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    use kernels::Crc32c;
    use stream::{Options, Progress};

    use super::*;
    use crate::task::RemoteTask;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_is_counted_for_the_results_of_all_groups() {
        let (kernel, progress) = (Crc32c::new(), Progress::default());
        let task = RemoteTask::new(&kernel, "it", &Options::default(), &progress).unwrap();
        let results = |fanout, of: Option<u32>| {
            let mut config = Config { fanout, ..Config::default() };
            config.manager.backlog_max = 10;
            config.results_bytes(&task, 7, of.map(NodeId)) / task.part_bytes()
        };
        assert_eq!(results(None, None), 12 + 7 * 2);
        // Its own node, and two groups of three leases; three jobs, and three nodes.
        let (first, group) = (12 + 2 + 2 * 3, 3 * 12 + 3 * 2);
        let found = [None, Some(0), Some(2), Some(3)].map(|of| results(Some(2), of));
        assert_eq!(found, [first + 2 * group, first, group, 0]);
        assert_eq!(Config { fanout: Some(2), ..Config::default() }.groups(7), 2);
    }

    #[test]
    fn memory_is_counted_for_all_that_a_node_is_sent() {
        let (kernel, progress) = (Crc32c::new(), Progress::default());
        let task = RemoteTask::new(&kernel, "it", &Options::default(), &progress).unwrap();
        let spec = JobSpec { units: 900, unit_bytes: MIB, ..task.spec() };
        let bytes = |ship, buffers, lease_units: Option<u64>| {
            let mut config = Config { ship, ..Config::default() };
            config.hello.buffers = buffers;
            if lease_units.is_some() {
                (config.manager.lease_bytes_max, config.sent_bytes) = (u64::MAX, Some(u64::MAX));
            }
            let results_bytes = u64::from(buffers) * 2 * task.part_bytes();
            config.node_bytes(&task, JobSpec { lease_units, ..spec }) - results_bytes
        };
        let way_bytes = ship::way_bytes(1);
        assert_eq!(bytes(Ship::Locators, 2, None), 0);
        assert_eq!(bytes(Ship::Bytes, 2, None), way_bytes + ship::SENT_BYTES);
        // However many there are, they share what there is.
        assert_eq!(bytes(Ship::Bytes, 4, None), way_bytes + ship::SENT_BYTES);
        assert_eq!(bytes(Ship::Auto, 4, None), way_bytes + 4 * 32 * MIB);
        // A share of its own, and more than there is.
        assert_eq!(bytes(Ship::Bytes, 1, Some(512)), way_bytes + 512 * MIB);
        assert_eq!(bytes(Ship::Bytes, 1, Some(2000)), way_bytes + 900 * MIB);
    }
}
