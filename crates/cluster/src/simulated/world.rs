//! The manager, its link, and time.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use crate::manager::{Action, Config, Event, MergeId};
use crate::{
    Epoch, JobError, JobId, JobSpec, Lease, LeaseId, Manager, Merging, NodeId, ToManager, ToNode,
};

use super::found::{Found, Live, Random};
use super::host::{Driven, Host};

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
        }
    }
}

/// What will happen.
#[derive(Debug)]
pub enum What {
    ToManager(NodeId, ToManager<Found>),
    ToNode(usize, u32, ToNode),
    Driver(usize, u32, Driven),
    Tick(u64),
    Merged(JobId, MergeId, Found),
    Manager(Event<Found>),
    Start(usize),
    Kill(usize),
    Pause(usize),
    Resume(usize),
    Leave(usize),
    Hang(usize),
    /// What was never asked for, to either side.
    Stray(usize),
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
    out: BTreeMap<LeaseId, (NodeId, Epoch, Lease)>,
    merging: BTreeMap<JobId, usize>,
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

    /// A fault between any two events.
    fn strike(&mut self) {
        if self.strikes == 0 || !self.random.one_in(30) {
            return;
        }
        self.strikes -= 1;
        let mortal = self.hosts.len() - usize::from(self.survivor);
        let at = usize::from(self.survivor) + self.random.below(mortal as u64) as usize;
        if at >= self.hosts.len() {
            return;
        }
        let back = self.random.below(3000 * MS);
        let (fault, remedy) = match self.random.below(3) {
            0 => (What::Kill(at), What::Start(at)),
            1 => (What::Pause(at), What::Resume(at)),
            _ => (What::Hang(at), What::Kill(at)),
        };
        self.after(0, fault);
        if !self.random.one_in(3) {
            self.after(back, remedy);
        }
    }

    fn step(&mut self, what: What) {
        match what {
            What::ToManager(node, message) => self.manager(Event::From(node, message)),
            What::ToNode(..) | What::Driver(..) => self.of_host(what),
            What::Tick(number) if number == self.timer => self.manager(Event::Tick),
            What::Tick(_) => {}
            What::Merged(job, id, found) => {
                *self.merging.entry(job).or_default() -= 1;
                self.manager(Event::Merged(id, Ok(found)));
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
            What::Pause(at) => self.hosts[at].is_paused = self.hosts[at].is_alive,
            What::Resume(at) => self.resume(at),
            What::Leave(at) => self.leave(at),
            What::Hang(at) => self.hosts[at].will_hang = true,
            What::Stray(at) => {
                self.stray_to_node(at);
                self.stray_to_manager();
            }
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
        if self.settings.twice > 0 && self.random.one_in(self.settings.twice) {
            let later = arrives + self.random.below(500 * MS);
            self.at(later, What::ToManager(node, message.clone()));
        }
        self.at(arrives, What::ToManager(node, message));
        left
    }

    fn ns(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 1_000_000_000 / u128::from(self.settings.bytes_per_second)) as u64
    }

    fn send_to_node(&mut self, node: NodeId, message: ToNode) {
        self.messages += 1;
        let at = node.0 as usize;
        let shipped = match &message {
            ToNode::Lease { lease, .. } if self.settings.ships => {
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
        self.at(arrives, What::ToNode(at, process, message));
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

    /// A lease that a node answers is out no more.
    fn ended(&mut self, node: NodeId, message: &ToManager<Found>) {
        if let ToManager::Result { epoch, lease, .. } | ToManager::Failed { epoch, lease, .. } =
            message
            && self.out.get(lease).is_some_and(|of| (of.0, of.1) == (node, *epoch))
        {
            self.out.remove(lease);
        }
    }

    fn act(&mut self, action: Action<Found>) {
        match action {
            Action::Tell(node, message) => {
                self.told(node, &message);
                self.send_to_node(node, message);
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

    fn over(&mut self, id: JobId, how: Result<Option<Found>, JobError>) {
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
            ToNode::Refused(_) | ToNode::Alive { .. } => {}
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

    fn stray_to_manager(&mut self) {
        let node = NodeId(self.random.below(self.hosts.len() as u64 + 2) as u32);
        // Epochs and leases of that number never were.
        let lease = LeaseId((1 << 40) + self.random.below(10));
        let known = self.out.values().map(|of| (of.0, of.1)).next();
        let (node, epoch) = known.filter(|_| self.random.one_in(2)).unwrap_or((node, Epoch(0)));
        let result = Found::of_lease(JobId(9), 7, 1, &self.live);
        let message = match self.random.below(4) {
            0 => ToManager::Result { epoch, lease, result },
            1 => {
                let failure = crate::Failure { unit: Some(3), offset: None, what: String::new() };
                ToManager::Failed { epoch, lease, failure }
            }
            2 => ToManager::Ask { epoch: Epoch(0), in_all: u64::MAX },
            _ => ToManager::Leaving { epoch: Epoch(0) },
        };
        self.after(0, What::ToManager(node, message));
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
