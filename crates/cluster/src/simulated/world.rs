//! The manager, its link, and time.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use crate::manager::{Action, Config, Event, MergeId};
use crate::{
    Epoch, JobError, JobId, JobSpec, Lease, LeaseId, Manager, Merging, NodeId, ToManager, ToNode,
};

use super::faults::Fate;
use super::found::{Found, Live, Random};
use super::host::{Came, Driven, Host};

pub const MS: u64 = 1_000_000;

/// The manager's link, and what else takes time.
#[derive(Clone, Debug)]
pub struct Settings {
    pub latency_ns: u64,
    /// At most so much more, by message.
    pub jitter_ns: u64,
    pub bytes_per_second: u64,
    /// Of the manager's time.
    pub message_ns: u64,
    /// Whether leases bring their bytes.
    pub ships: bool,
    pub fetch_ns: u64,
    /// Of a node's time, beside its units.
    pub lease_ns: u64,
    pub merge_ns: u64,
    /// One message in so many comes twice; 0: none.
    pub twice: u64,
    /// Is cut or changed, which its receiver finds out.
    pub garbled: u64,
    /// Does not come.
    pub lost: u64,
    /// One lease in so many that is stopped while it is computed, and takes less than 500 ms, goes
    /// on to its end; 0: none, each stops after the unit under way, as real ones do.
    pub goes_on: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            latency_ns: MS / 10,
            jitter_ns: 0,
            bytes_per_second: 111_000_000,
            message_ns: 10_000,
            ships: false,
            fetch_ns: 0,
            lease_ns: 0,
            merge_ns: 100_000,
            twice: 0,
            garbled: 0,
            lost: 0,
            goes_on: 0,
        }
    }
}

/// What will happen.
#[derive(Debug)]
pub enum What {
    /// None that can be read.
    ToManager(NodeId, Option<ToManager<Found>>),
    ToNode(usize, u32, Came),
    Driver(usize, u32, Driven),
    Tick(u64),
    Merged(JobId, MergeId, Result<Found, String>),
    Manager(Event<Found>),
    Start(usize),
    /// A process ends, which the transport reports within 300 ms or not at all.
    Kill(usize),
    /// It ends, and nothing reports that.
    Die(usize),
    Pause(usize),
    Resume(usize),
    Leave(usize),
    Hang(usize),
    /// The manager is stopped, and goes on.
    PauseManager,
    ResumeManager,
    /// And all nodes with it, as on one machine.
    PauseAll,
    ResumeAll,
    /// What was never asked for, to either side.
    Stray(usize),
}

impl What {
    /// Whether the manager's process does it.
    fn is_of_manager(&self) -> bool {
        matches!(self, Self::ToManager(..) | Self::Tick(_) | Self::Merged(..) | Self::Manager(_))
    }
}

struct Due(u64, u64, What);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.0, other.1).cmp(&(self.0, self.1))
    }
}

pub struct JobState {
    pub spec: JobSpec,
    /// Units that fail, and how often yet.
    pub failing: BTreeMap<u64, u32>,
    pub failures_named: bool,
    /// A unit that ends its process.
    pub killer: Option<u64>,
    pub holes_max: usize,
    pub waiting_max: usize,
    pub ended: Option<(u64, Result<Option<Found>, JobError>)>,
}

pub struct World {
    pub settings: Settings,
    pub config: Config,
    pub now: u64,
    serial: u64,
    due: BinaryHeap<Due>,
    pub manager: Manager<Found>,
    timer: u64,
    pub hosts: Vec<Host>,
    pub jobs: BTreeMap<JobId, JobState>,
    pub random: Random,
    pub live: Live,
    /// When the link is free, to and from nodes.
    to_nodes_at: u64,
    to_manager_at: u64,
    /// Leases that count.
    pub(super) out: BTreeMap<LeaseId, (NodeId, Epoch, Lease)>,
    merging: BTreeMap<JobId, usize>,
    /// Which jobs a node was told of, in its membership.
    described: BTreeSet<(NodeId, JobId)>,
    manager_is_paused: bool,
    /// What came to the manager meanwhile.
    held: Vec<What>,
    /// How often what went wrong.
    pub befell: BTreeMap<&'static str, u64>,
    pub steps: u64,
    /// Sent, in both directions.
    pub messages: u64,
    /// Faults to come between any two events, but of host 0 if it is to survive.
    pub strikes: u64,
    pub survivor: bool,
}

impl World {
    pub fn new(config: Config, settings: Settings, hosts: Vec<Host>, seed: u64) -> Self {
        Self {
            settings,
            now: 0,
            serial: 0,
            due: BinaryHeap::new(),
            manager: Manager::new(config.clone()),
            config,
            timer: 0,
            hosts,
            jobs: BTreeMap::new(),
            random: Random(seed),
            live: Live::first(),
            to_nodes_at: 0,
            to_manager_at: 0,
            out: BTreeMap::new(),
            merging: BTreeMap::new(),
            described: BTreeSet::new(),
            manager_is_paused: false,
            held: Vec::new(),
            befell: BTreeMap::new(),
            steps: 0,
            messages: 0,
            strikes: 0,
            survivor: true,
        }
    }

    pub fn at(&mut self, at: u64, what: What) {
        self.serial += 1;
        self.due.push(Due(at.max(self.now), self.serial, what));
    }

    pub fn after(&mut self, ns: u64, what: What) {
        self.at(self.now + ns, what);
    }

    /// A job that comes at some time.
    pub fn job(&mut self, at: u64, id: u64, spec: JobSpec) -> &mut JobState {
        let id = JobId(id);
        self.at(at, What::Manager(Event::Submit(id, spec)));
        let (failing, failures_named, killer) = (BTreeMap::new(), true, None);
        let job = JobState {
            spec,
            failing,
            failures_named,
            killer,
            holes_max: 1,
            waiting_max: 0,
            ended: None,
        };
        self.jobs.entry(id).or_insert(job)
    }

    /// Until nothing more will happen.
    pub fn run(&mut self, steps_max: u64) {
        while let Some(Due(at, _, what)) = self.due.pop() {
            self.now = at;
            self.steps += 1;
            self.strike();
            assert!(self.steps < steps_max, "it does not end: {:#?}", self.manager);
            self.step(what);
        }
    }

    fn step(&mut self, what: What) {
        if self.manager_is_paused && what.is_of_manager() {
            return self.held.push(what);
        }
        match what {
            What::ToManager(node, Some(message)) => self.manager(Event::From(node, message)),
            What::ToManager(node, None) => self.unreadable(node),
            What::ToNode(..) | What::Driver(..) => self.of_host(what),
            What::Tick(number) if number == self.timer => self.manager(Event::Tick),
            What::Tick(_) => {}
            What::Merged(job, id, found) => {
                *self.merging.entry(job).or_default() -= 1;
                self.manager(Event::Merged(id, found));
            }
            What::Manager(event) => self.manager(event),
            What::Start(at) => self.start(at),
            What::Kill(at) => {
                self.kill(at);
                if self.random.one_in(2) {
                    let late = self.random.below(300 * MS);
                    self.after(late, What::Manager(Event::Lost(NodeId(at as u32))));
                }
            }
            What::Die(at) => self.kill(at),
            What::Pause(at) => self.pause(at),
            What::Resume(at) => self.resume(at),
            What::Leave(at) => self.leave(at),
            What::Hang(at) => self.hosts[at].will_hang = true,
            What::PauseManager => {
                self.manager_is_paused = true;
                self.befalls("managers stopped");
            }
            What::ResumeManager => self.resume_manager(),
            What::PauseAll => {
                self.befalls("times when all were stopped");
                self.after(0, What::PauseManager);
                (0..self.hosts.len()).for_each(|at| self.after(0, What::Pause(at)));
            }
            What::ResumeAll => {
                self.after(0, What::ResumeManager);
                (0..self.hosts.len()).for_each(|at| self.after(0, What::Resume(at)));
            }
            What::Stray(at) => self.stray(at),
        }
    }

    pub fn befalls(&mut self, what: &'static str) {
        *self.befell.entry(what).or_default() += 1;
    }

    fn resume_manager(&mut self) {
        self.manager_is_paused = false;
        let mut held = std::mem::take(&mut self.held);
        // It takes what came before its timer rings.
        held.sort_by_key(|what| matches!(what, What::Tick(_)));
        for what in held {
            self.after(0, what);
        }
    }

    /// As the driver does with what came of a peer and is no message.
    fn unreadable(&mut self, node: NodeId) {
        let is_member = self.manager.has_member(node);
        self.manager(Event::Lost(node));
        if !is_member {
            self.send_to_node(node, Came::Garbled);
        }
    }

    pub fn kill_and_restart(&mut self, at: usize) {
        self.after(0, What::Kill(at));
        self.after(200 * MS, What::Start(at));
    }

    pub fn kills(&self, lease: Lease) -> bool {
        let killer = self.jobs.get(&lease.job).and_then(|job| job.killer);
        killer.is_some_and(|unit| (lease.first..lease.first + lease.units).contains(&unit))
    }

    /// Sends to the manager; when it has left the node.
    pub fn send_to_manager(&mut self, at: usize, message: ToManager<Found>) -> u64 {
        self.messages += 1;
        let left = self.now.max(self.to_manager_at) + self.settings.message_ns + self.ns(100);
        self.to_manager_at = left;
        let host = &mut self.hosts[at];
        let late = self.settings.latency_ns + self.random.below(self.settings.jitter_ns + 1);
        host.to_manager_at = host.to_manager_at.max(left + late);
        let arrives = host.to_manager_at;
        let node = NodeId(at as u32);
        if let Some(later) = self.comes_twice(arrives) {
            self.at(later, What::ToManager(node, Some(message.clone())));
        }
        match self.fate() {
            Fate::Comes => self.at(arrives, What::ToManager(node, Some(message))),
            Fate::IsGarbled => self.at(arrives, What::ToManager(node, None)),
            Fate::IsLost => {}
        }
        left
    }

    fn ns(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 1_000_000_000 / u128::from(self.settings.bytes_per_second)) as u64
    }

    pub(super) fn send_to_node(&mut self, node: NodeId, message: Came) {
        self.messages += 1;
        let at = node.0 as usize;
        let shipped = match &message {
            Came::Told(ToNode::Lease { lease, .. }) if self.settings.ships => {
                lease.units * self.jobs[&lease.job].spec.unit_bytes
            }
            _ => 0,
        };
        let took = self.settings.message_ns + self.ns(100 + shipped);
        self.to_nodes_at = self.now.max(self.to_nodes_at) + took;
        let late = self.settings.latency_ns + self.random.below(self.settings.jitter_ns + 1);
        let Some(host) = self.hosts.get_mut(at) else { return };
        host.to_node_at = host.to_node_at.max(self.to_nodes_at + late);
        let (arrives, process) = (host.to_node_at, host.process);
        if let Some(later) = self.comes_twice(arrives) {
            self.at(later, What::ToNode(at, process, message.clone()));
        }
        match self.fate() {
            Fate::Comes => self.at(arrives, What::ToNode(at, process, message)),
            Fate::IsGarbled => self.at(arrives, What::ToNode(at, process, Came::Garbled)),
            Fate::IsLost => {}
        }
    }

    fn manager(&mut self, event: Event<Found>) {
        if let Event::From(node, message) = &event {
            self.ended(*node, message);
        }
        let mut actions = Vec::new();
        self.manager.on(Duration::from_nanos(self.now), event, &mut actions);
        for action in actions {
            self.act(action);
        }
        self.bounds();
    }

    /// A lease that a node answers is out no more, nor is one of a node that leaves.
    fn ended(&mut self, node: NodeId, message: &ToManager<Found>) {
        match message {
            ToManager::Result { epoch, lease, .. } | ToManager::Failed { epoch, lease, .. } => {
                self.out.retain(|id, of| (*id, of.0, of.1) != (*lease, node, *epoch));
            }
            ToManager::Shortened { epoch, lease, units, is_shorter: true } => {
                let out = self.out.get_mut(lease).filter(|of| (of.0, of.1) == (node, *epoch));
                if let Some((_, _, lease)) = out {
                    lease.units = lease.units.min(*units);
                    self.befalls("leases that were shortened");
                }
            }
            ToManager::Unfit { epoch, .. } => {
                self.out.retain(|_, of| (of.0, of.1) != (node, *epoch));
            }
            _ => {}
        }
    }

    fn act(&mut self, action: Action<Found>) {
        match action {
            Action::Tell(node, message) => {
                self.told(node, &message);
                self.describe(node, &message);
                self.send_to_node(node, Came::Told(message));
            }
            Action::Merge { id, job, into, from } => {
                let running = self.merging.entry(job).or_default();
                *running += 1;
                let along_tree = self.jobs[&job].spec.merging == Merging::AlongTree;
                assert!(*running <= if along_tree { 1 } else { self.config.merges_max });
                let took = self.settings.merge_ns;
                self.after(took, What::Merged(job, id, into.merge(from)));
            }
            Action::Drop(found) => drop(found),
            Action::Finished { job, result } => self.over(job, Ok(result)),
            Action::Failed { job, error } => self.over(job, Err(error)),
            Action::SetTimer(due) => {
                self.timer += 1;
                let tick = What::Tick(self.timer);
                self.at(due.as_nanos() as u64, tick);
            }
        }
    }

    /// As the driver, before the first lease of a job in a membership.
    fn describe(&mut self, node: NodeId, message: &ToNode) {
        match message {
            ToNode::Welcome { .. } => self.described.retain(|(of, _)| *of != node),
            ToNode::Lease { lease, .. } if self.described.insert((node, lease.job)) => {
                self.send_to_node(node, Came::Job(lease.job));
            }
            _ => {}
        }
    }

    fn over(&mut self, id: JobId, how: Result<Option<Found>, JobError>) {
        // One result alone is not read before.
        let how = how.and_then(|found| match found.as_ref().map(Found::read) {
            Some(Err(what)) => Err(JobError::Result { what }),
            _ => Ok(found),
        });
        let job = self.jobs.get_mut(&id).expect("it was submitted");
        assert!(job.ended.is_none(), "{id:?} ended twice");
        job.ended = Some((self.now, how));
        assert!(self.out.values().all(|(_, _, lease)| lease.job != id), "it has leases out");
    }

    /// Units have one holder or two that differ, all that were given before having
    /// been taken back or fenced out.
    fn told(&mut self, node: NodeId, message: &ToNode) {
        match message {
            ToNode::Lease { epoch, lease } => {
                let host = &self.hosts[node.0 as usize];
                assert!(!host.flaw.is_refused(), "{:?} gets {lease:?}", host.flaw);
                let end = |lease: &Lease| lease.first + lease.units;
                let same = |of: &&(NodeId, Epoch, Lease)| {
                    let of = &of.2;
                    of.job == lease.job && of.first < end(lease) && lease.first < end(of)
                };
                let others: Vec<_> = self.out.values().filter(same).collect();
                assert!(others.len() <= 1, "{lease:?} is out with {others:?}");
                for (other, _, of) in others {
                    assert_ne!(*other, node, "{lease:?} was given to the same node");
                    assert_eq!((of.first, of.units), (lease.first, lease.units));
                }
                assert!(self.out.insert(lease.id, (node, *epoch, *lease)).is_none());
            }
            ToNode::Withdraw { lease, .. } => {
                self.out.remove(lease);
            }
            ToNode::Fenced { epoch } | ToNode::Dismissed { epoch } => {
                self.out.retain(|_, of| (of.0, of.1) != (node, *epoch));
            }
            ToNode::Welcome { .. } => self.out.retain(|_, of| of.0 != node),
            ToNode::Refused(_) | ToNode::Shorten { .. } | ToNode::Alive { .. } => {}
        }
    }

    /// As [`Manager`] states them.
    fn bounds(&mut self) {
        let leases_max: u32 = self.hosts.iter().map(|host| host.buffers).sum();
        for progress in self.manager.progress() {
            let Some(job) = self.jobs.get_mut(&progress.job) else { continue };
            job.holes_max = job.holes_max.max(progress.holes);
            job.waiting_max = job.waiting_max.max(progress.results_waiting);
            let by_holes = job.holes_max * usize::from(progress.levels.max(1));
            let bound = by_holes.max(self.config.backlog_max) + leases_max as usize;
            assert!(progress.results_waiting <= bound, "{progress:?}, {}", job.holes_max);
        }
    }

    /// What a job without faults comes to.
    pub fn expected(&self, id: JobId) -> Option<Found> {
        let JobSpec { units, merging, .. } = self.jobs[&id].spec;
        let something = units > 0 && merging != Merging::Nothing;
        something.then(|| Found::of_lease(id, 0, units, &Live::first()))
    }

    /// Nothing is left of anything.
    pub fn check_empty(&mut self) {
        assert!(self.manager.is_drained());
        assert!(self.out.is_empty(), "{:?}", self.out);
        for job in self.jobs.values_mut() {
            assert!(job.ended.is_some(), "it never ended");
            job.ended = None;
        }
        for host in &mut self.hosts {
            let stands = !host.is_alive || host.is_paused || host.hangs;
            assert!(stands || host.node.buffers_used() == 0);
        }
        assert_eq!(self.live.count(), 0, "results are held for nobody");
    }
}
