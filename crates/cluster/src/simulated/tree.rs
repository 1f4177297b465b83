//! A tree of managers: the root is peer 0, those below are numbered level by level.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use super::found::{Found, Live, Random};
use super::world::MS;
use crate::manager::{self, Config, MergeId};
use crate::node::{self, Left};
use crate::submanager::{self, BUFFERS};
use crate::{
    Hello, JobError, JobId, JobSpec, Lease, LeaseId, Manager, Node, NodeId, Submanager, ToManager,
    ToNode,
};

const ROOT: usize = 0;

/// The one job.
pub const JOB: JobId = JobId(1);

/// How many, how far and how fast.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Peers of each manager, and levels of them: the last are nodes.
    pub fanout: usize,
    pub depth: u32,
    pub ns_per_unit: u64,
    pub latency_ns: u64,
    /// Of a sender's time.
    pub message_ns: u64,
    pub merge_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let (fanout, depth, ns_per_unit) = (4, 3, 10 * MS);
        Self {
            fanout,
            depth,
            ns_per_unit,
            latency_ns: MS / 10,
            message_ns: 10_000,
            merge_ns: MS / 10,
        }
    }
}

#[derive(Debug)]
enum Role {
    Root(Box<Manager<Found>>),
    Inner(Box<Submanager<Found>>),
    Leaf(Box<Node>),
}

#[derive(Debug)]
struct Peer {
    role: Role,
    above: usize,
    /// Of the one above, when it was joined.
    process_above: u32,
    process: u32,
    is_alive: bool,
    timer: u64,
    /// When what it sends next can leave.
    free_at: u64,
    /// Of a leaf, since when.
    under_way: BTreeMap<LeaseId, (Lease, u64)>,
}

/// What a peer comes to know of.
#[derive(Debug)]
enum What {
    Up(usize, ToManager<Found>),
    Down(usize, ToNode),
    Tick(u64),
    Merged(MergeId, Result<Found, String>),
    Computed(LeaseId),
    Stopped(LeaseId),
    Sent(LeaseId),
    /// The one above, in a process of that number, is dead.
    LostAbove(usize, u32),
    LostBelow(usize),
    Join,
}

#[derive(Debug)]
enum Due {
    Of(usize, Option<u32>, What),
    Kill(usize),
    Start(usize),
}

/// All peers, and time.
pub struct Tree {
    settings: Settings,
    config: Config,
    spec: JobSpec,
    peers: Vec<Peer>,
    now: u64,
    serial: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    due: BTreeMap<u64, Due>,
    random: Random,
    live: Live,
    pub steps: u64,
    /// When the job ended, and how.
    pub ended: Option<(u64, Result<Option<Found>, JobError>)>,
    /// Units whose results the root had, with these.
    pub records: Vec<(u64, u64, Found)>,
    /// Units of these when it was started anew.
    pub recorded_at_start: u64,
    /// Peers whose manager died.
    pub orphans: BTreeSet<usize>,
    /// Leases that the root gave them.
    pub orphans_leased: u64,
}

impl Tree {
    /// All start at once; the job is there.
    pub fn new(settings: Settings, config: Config, spec: JobSpec, seed: u64) -> Self {
        let mut tree = Self {
            settings,
            config,
            spec,
            peers: Vec::new(),
            now: 0,
            serial: 0,
            queue: BinaryHeap::new(),
            due: BTreeMap::new(),
            random: Random(seed),
            live: Live::first(),
            steps: 0,
            ended: None,
            records: Vec::new(),
            recorded_at_start: 0,
            orphans: BTreeSet::new(),
            orphans_leased: 0,
        };
        let fanout = tree.settings.fanout;
        let peers: usize = (0..=tree.settings.depth).map(|level| fanout.pow(level)).sum();
        for at in 0..peers {
            let above = at.saturating_sub(1) / fanout;
            let peer = Peer {
                role: tree.role(at, 0),
                above,
                process_above: 0,
                process: 0,
                is_alive: true,
                timer: 0,
                free_at: 0,
                under_way: BTreeMap::new(),
            };
            tree.peers.push(peer);
            if at == ROOT {
                tree.root(manager::Event::Submit(JOB, spec));
            } else {
                tree.of(0, at, What::Join);
            }
        }
        tree
    }

    /// Managers that are not the root.
    pub fn inner(&self) -> std::ops::Range<usize> {
        let levels = 0..self.settings.depth;
        1..levels.map(|level| self.settings.fanout.pow(level)).sum()
    }

    /// Nodes.
    pub fn leaves(&self) -> std::ops::Range<usize> {
        self.inner().end..self.peers.len()
    }

    /// That share a lease of a manager.
    fn nodes_below(&self, at: usize) -> u32 {
        let fanout = self.settings.fanout;
        let below = |level: usize| (0..level).fold(at, |at, _| at * fanout + 1);
        let levels = (0..).find(|level| below(*level) >= self.inner().end).unwrap_or(0);
        fanout.pow(levels as u32) as u32
    }

    fn role(&self, at: usize, process: u32) -> Role {
        let serial = ((at as u64) << 48) | (u64::from(process) << 32);
        if at == ROOT {
            let config = Config { serial, ..self.config.clone() };
            return Role::Root(Box::new(Manager::new(config)));
        }
        if at >= self.inner().end {
            return Role::Leaf(Box::new(Node::new(Hello::default())));
        }
        let config = Config { serial, join_wait: 2 * self.config.deadline, ..self.config.clone() };
        let nodes = self.nodes_below(at);
        let hello = Hello { buffers: BUFFERS, nodes, ..Hello::default() };
        let mut inner = Submanager::new(hello, config, || unreachable!("each job has results"));
        inner.describe(JOB, self.spec);
        Role::Inner(Box::new(inner))
    }

    fn push(&mut self, at: u64, due: Due) {
        self.serial += 1;
        self.queue.push(Reverse((at, self.serial)));
        self.due.insert(self.serial, due);
    }

    /// For this process of a peer.
    fn of(&mut self, ns: u64, at: usize, what: What) {
        let process = self.peers[at].process;
        self.push(self.now + ns, Due::Of(at, Some(process), what));
    }

    /// Kills a peer at some time, and starts it anew later.
    pub fn kill(&mut self, at: usize, ns: u64, for_ns: u64) {
        self.push(ns, Due::Kill(at));
        self.push(ns + for_ns, Due::Start(at));
    }

    /// Until the job ended.
    pub fn run(&mut self, steps_max: u64) {
        while self.ended.is_none() {
            let Reverse((at, serial)) = self.queue.pop().expect("something will happen");
            self.now = at;
            self.steps += 1;
            assert!(self.steps < steps_max, "it does not end: {:#?}", self.peers);
            match self.due.remove(&serial).expect("it is due") {
                Due::Kill(at) => self.die(at),
                Due::Start(at) => self.start(at),
                Due::Of(at, process, what) => {
                    let peer = &self.peers[at];
                    if peer.is_alive && process.is_none_or(|process| process == peer.process) {
                        self.step(at, what);
                    }
                }
            }
        }
    }

    fn die(&mut self, at: usize) {
        self.peers[at].is_alive = false;
        let process = self.peers[at].process;
        for below in 0..self.peers.len() {
            if below != ROOT && self.peers[below].above == at {
                self.orphans.insert(below);
                let late = self.random.below(300 * MS);
                self.of(late, below, What::LostAbove(at, process));
            }
        }
        // Else its deadline tells.
        if at != ROOT && self.random.one_in(2) {
            let late = self.random.below(300 * MS);
            self.of(late, self.peers[at].above, What::LostBelow(at));
        }
    }

    /// A new process, which joins the root.
    fn start(&mut self, at: usize) {
        let process = self.peers[at].process + 1;
        let role = self.role(at, process);
        let peer = &mut self.peers[at];
        (peer.role, peer.process, peer.is_alive) = (role, process, true);
        peer.above = ROOT;
        peer.under_way.clear();
        if at != ROOT {
            return self.of(0, at, What::Join);
        }
        self.root(manager::Event::Submit(JOB, self.spec));
        for (first, units, result) in self.records.clone() {
            self.recorded_at_start += units;
            let units = std::iter::once(first..first + units).collect();
            self.root(manager::Event::Recorded { job: JOB, units, result });
        }
    }

    fn step(&mut self, at: usize, what: What) {
        match what {
            What::Up(from, message) => {
                self.manager(at, manager::Event::From(NodeId(from as u32), message));
            }
            What::Down(from, message) if from == self.peers[at].above => {
                self.node(at, node::Event::Told(message));
            }
            What::Down(..) => {}
            What::Tick(number) if number == self.peers[at].timer => match self.peers[at].role {
                Role::Root(_) => self.root(manager::Event::Tick),
                Role::Inner(_) => self.inner_on(at, submanager::Event::Tick),
                Role::Leaf(_) => self.node(at, node::Event::Tick),
            },
            What::Tick(_) => {}
            What::Merged(id, found) => self.manager(at, manager::Event::Merged(id, found)),
            What::Computed(lease) => {
                let Some((lease, _)) = self.peers[at].under_way.remove(&lease) else { return };
                let found = Found::of_lease(lease.job, lease.first, lease.units, &self.live);
                self.node(at, node::Event::Computed(lease.id, found));
            }
            What::Stopped(lease) => self.node(at, node::Event::Stopped(lease)),
            What::Sent(lease) => self.node(at, node::Event::Sent(lease)),
            What::LostAbove(above, process) => {
                let peer = &self.peers[at];
                if (peer.above, peer.process_above) == (above, process) {
                    self.node(at, node::Event::Lost);
                    // One that waits for nodes has none above to lose.
                    self.of(0, at, What::Join);
                }
            }
            What::LostBelow(below) => {
                self.manager(at, manager::Event::Lost(NodeId(below as u32)));
            }
            What::Join => {
                let above = &self.peers[self.peers[at].above];
                if above.is_alive {
                    self.peers[at].process_above = above.process;
                    self.node(at, node::Event::Start);
                } else {
                    self.peers[at].above = ROOT;
                    self.of(100 * MS, at, What::Join);
                }
            }
        }
    }

    fn node(&mut self, at: usize, event: node::Event<Found>) {
        let Role::Leaf(node) = &mut self.peers[at].role else {
            return self.inner_on(at, submanager::Event::Above(event));
        };
        let mut actions = Vec::new();
        node.on(Duration::from_nanos(self.now), event, &mut actions);
        for action in actions {
            match action {
                node::Action::Say(message) => self.say(at, message),
                node::Action::Fetch(lease) => self.node(at, node::Event::Fetched(lease.id)),
                node::Action::Compute(lease) => {
                    self.peers[at].under_way.insert(lease.id, (lease, self.now));
                    let took = lease.units * self.settings.ns_per_unit;
                    self.of(took, at, What::Computed(lease.id));
                }
                node::Action::Stop(lease) => {
                    self.peers[at].under_way.remove(&lease);
                    self.of(1000, at, What::Stopped(lease));
                }
                node::Action::Shorten(lease, units) => self.shorten(at, lease, units),
                node::Action::Drop(_) => {}
                node::Action::Left(why) => self.left(at, &why),
                node::Action::SetTimer(due) => self.set_timer(at, due),
            }
        }
    }

    /// It ends sooner, unless it is past that.
    fn shorten(&mut self, at: usize, id: LeaseId, units: u64) {
        let took = units * self.settings.ns_per_unit;
        let under_way = self.peers[at].under_way.get_mut(&id);
        let shortened = under_way.filter(|(_, began)| self.now < *began + took);
        let ends = shortened.map(|(lease, began)| {
            lease.units = units;
            *began + took
        });
        if let Some(ends) = ends {
            self.of(ends - self.now, at, What::Computed(id));
        }
        self.node(at, node::Event::Shortened(id, units, ends.is_some()));
    }

    fn left(&mut self, at: usize, why: &Left) {
        if *why == Left::Lost {
            self.peers[at].above = ROOT;
            self.of(0, at, What::Join);
        }
    }

    fn manager(&mut self, at: usize, event: manager::Event<Found>) {
        match self.peers[at].role {
            Role::Root(_) => self.root(event),
            Role::Inner(_) => self.inner_on(at, submanager::Event::Below(event)),
            Role::Leaf(_) => {}
        }
    }

    fn root(&mut self, event: manager::Event<Found>) {
        let Role::Root(root) = &mut self.peers[ROOT].role else { return };
        if let manager::Event::From(node, ToManager::Result { epoch, lease, units, result }) =
            &event
            && let Some(Lease { first, units, .. }) = root.counts(*node, (*epoch, *lease, *units))
        {
            assert_eq!(result.units, units);
            self.records.push((first, units, result.clone()));
        }
        let mut actions = Vec::new();
        root.on(Duration::from_nanos(self.now), event, &mut actions);
        for action in actions {
            match action {
                manager::Action::Tell(node, message) => self.tell(ROOT, node, message),
                manager::Action::Merge { id, into, from, .. } => self.merge(ROOT, id, into, from),
                manager::Action::Drop(_) => {}
                manager::Action::Finished { result, .. } => {
                    self.ended = Some((self.now, Ok(result)))
                }
                manager::Action::Failed { error, .. } => self.ended = Some((self.now, Err(error))),
                manager::Action::SetTimer(due) => self.set_timer(ROOT, due),
            }
        }
    }

    fn inner_on(&mut self, at: usize, event: submanager::Event<Found>) {
        let Role::Inner(inner) = &mut self.peers[at].role else { return };
        let mut actions = Vec::new();
        inner.on(Duration::from_nanos(self.now), event, &mut actions);
        for action in actions {
            match action {
                submanager::Action::Say(message) => self.say(at, message),
                submanager::Action::Tell(node, message) => self.tell(at, node, message),
                submanager::Action::Merge { id, job, into, from } => {
                    assert_eq!(job, JOB);
                    self.merge(at, id, into, from);
                }
                submanager::Action::Drop(_) => {}
                submanager::Action::Left(why) => self.left(at, &why),
                submanager::Action::SetTimer(due) => self.set_timer(at, due),
            }
        }
    }

    fn merge(&mut self, at: usize, id: MergeId, into: Found, from: Found) {
        self.of(self.settings.merge_ns, at, What::Merged(id, into.merge(from)));
    }

    fn set_timer(&mut self, at: usize, due: Duration) {
        self.peers[at].timer += 1;
        let (number, due) = (self.peers[at].timer, due.as_nanos() as u64);
        self.of(due.saturating_sub(self.now), at, What::Tick(number));
    }

    /// When a message of that peer arrives.
    fn send(&mut self, at: usize) -> u64 {
        let left = self.now.max(self.peers[at].free_at) + self.settings.message_ns;
        self.peers[at].free_at = left;
        left + self.settings.latency_ns
    }

    fn say(&mut self, at: usize, message: ToManager<Found>) {
        let (arrives, above) = (self.send(at), self.peers[at].above);
        if let ToManager::Result { lease, .. } = &message {
            self.of(arrives - self.now - self.settings.latency_ns, at, What::Sent(*lease));
        }
        self.push(arrives, Due::Of(above, None, What::Up(at, message)));
    }

    fn tell(&mut self, at: usize, node: NodeId, message: ToNode) {
        let is_orphan = at == ROOT && self.orphans.contains(&(node.0 as usize));
        self.orphans_leased += u64::from(is_orphan && matches!(message, ToNode::Lease { .. }));
        let arrives = self.send(at);
        self.push(arrives, Due::Of(node.0 as usize, None, What::Down(at, message)));
    }

    /// What the job comes to.
    pub fn expected(&self) -> Found {
        Found::of_lease(JOB, 0, self.spec.units, &self.live)
    }
}
