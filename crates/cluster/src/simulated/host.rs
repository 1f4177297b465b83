//! A machine with a node on it: its driver in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::node::{Action, Event};
use crate::{Failure, Hello, Lease, LeaseId, Node, ToManager, ToNode};

use super::found::Found;
use super::world::{MS, What, World};

pub struct Host {
    pub node: Node,
    pub buffers: u32,
    /// Processes that ran on it; what was meant for another is not for this one.
    pub process: u32,
    pub is_alive: bool,
    pub is_paused: bool,
    /// What came while it was paused.
    held: Vec<What>,
    pub ns_per_unit: u64,
    /// Leases with something under way that will end by itself.
    under_way: BTreeMap<LeaseId, Lease>,
    computing: Option<LeaseId>,
    /// What it computes next does not end; then, whether it does now.
    pub will_hang: bool,
    pub hangs: bool,
    timer: u64,
    /// When the last message in each direction arrives: they do not overtake one another.
    pub to_node_at: u64,
    pub to_manager_at: u64,
}

impl Host {
    pub fn new(ns_per_unit: u64, buffers: u32) -> Self {
        Self {
            node: Node::new(Hello { buffers, ..Hello::default() }),
            buffers,
            process: 0,
            is_alive: false,
            is_paused: false,
            held: Vec::new(),
            ns_per_unit,
            under_way: BTreeMap::new(),
            computing: None,
            will_hang: false,
            hangs: false,
            timer: 0,
            to_node_at: 0,
            to_manager_at: 0,
        }
    }
}

impl World {
    /// A new process, which joins.
    pub fn start(&mut self, at: usize) {
        let old = &mut self.hosts[at];
        if old.is_alive {
            return;
        }
        let mut host = Host::new(old.ns_per_unit, old.buffers);
        host.process = old.process + 1;
        (host.to_node_at, host.to_manager_at) = (old.to_node_at, old.to_manager_at);
        host.is_alive = true;
        *old = host;
        self.node(at, Event::Start);
    }

    pub fn kill(&mut self, at: usize) {
        self.hosts[at].is_alive = false;
        self.hosts[at].is_paused = false;
        self.hosts[at].held.clear();
    }

    pub fn leave(&mut self, at: usize) {
        let (process, leave) = (self.hosts[at].process, Driven::Event(Event::Leave));
        self.of_host(What::Driver(at, process, leave));
    }

    pub fn resume(&mut self, at: usize) {
        self.hosts[at].is_paused = false;
        let mut held = std::mem::take(&mut self.hosts[at].held);
        // Its timers ring when it has heard what came before.
        held.sort_by_key(|what| matches!(what, What::Driver(.., Driven::Timer(_))));
        for what in held {
            self.after(0, what);
        }
    }

    /// Something for a process; kept if it is paused, lost if it is no more.
    pub fn of_host(&mut self, what: What) {
        let (What::ToNode(at, process, _) | What::Driver(at, process, _)) = &what else {
            panic!("of no host")
        };
        let (at, process) = (*at, *process);
        // A message may come to a process that it was not meant for: what it says tells.
        let is_message = matches!(what, What::ToNode(..));
        let host = &mut self.hosts[at];
        if !host.is_alive || (process != host.process && !is_message) {
            return;
        }
        if host.is_paused {
            return host.held.push(what);
        }
        match what {
            What::ToNode(_, _, message) => self.node(at, Event::Told(message)),
            What::Driver(_, _, Driven::Timer(number)) if number == host.timer => {
                self.node(at, Event::Tick);
            }
            What::Driver(_, _, Driven::Computed(lease)) => self.computed(at, lease),
            What::Driver(_, _, Driven::Fetched(lease))
                if host.under_way.remove(&lease).is_some() =>
            {
                self.node(at, Event::Fetched(lease));
            }
            What::Driver(_, _, Driven::Event(event)) => {
                if let Event::Stopped(lease) = event
                    && host.computing == Some(lease)
                {
                    host.computing = None;
                }
                self.node(at, event);
            }
            _ => {}
        }
    }

    fn computed(&mut self, at: usize, lease: LeaseId) {
        let host = &mut self.hosts[at];
        let Some(lease) = host.under_way.remove(&lease) else { return };
        if std::mem::take(&mut host.will_hang) {
            host.hangs = true;
            return;
        }
        host.computing = None;
        if let Some(failure) = self.failure(lease) {
            return self.node(at, Event::Failed(lease.id, failure));
        }
        if self.kills(lease) {
            return self.kill_and_restart(at);
        }
        let result = Found::of_lease(lease.job, lease.first, lease.units, &self.live);
        self.node(at, Event::Computed(lease.id, result));
    }

    /// Whether a unit of the lease fails now.
    fn failure(&mut self, lease: Lease) -> Option<Failure> {
        let job = self.jobs.get_mut(&lease.job)?;
        let mut failing = job.failing.range_mut(lease.first..lease.first + lease.units);
        let (unit, left) = failing.find(|(_, left)| **left > 0)?;
        *left = left.saturating_sub(u32::from(*left != u32::MAX));
        let named = job.failures_named.then_some(*unit);
        Some(Failure { unit: named, offset: named.map(|unit| unit * 10), what: "bad".to_owned() })
    }

    fn node(&mut self, at: usize, event: Event<Found>) {
        let mut actions = Vec::new();
        let host = &mut self.hosts[at];
        host.node.on(Duration::from_nanos(self.now), event, &mut actions);
        assert!(host.node.buffers_used() <= host.buffers as usize);
        for action in actions {
            self.act_on(at, action);
        }
    }

    fn act_on(&mut self, at: usize, action: Action<Found>) {
        let process = self.hosts[at].process;
        let driver = |event| What::Driver(at, process, event);
        match action {
            Action::Say(message) => {
                let sent = match &message {
                    ToManager::Result { lease, .. } => Some(*lease),
                    _ => None,
                };
                let left = self.send_to_manager(at, message);
                if let Some(lease) = sent {
                    self.at(left, driver(Driven::Event(Event::Sent(lease))));
                }
            }
            Action::Fetch(lease) => {
                self.hosts[at].under_way.insert(lease.id, lease);
                self.after(self.settings.fetch_ns, driver(Driven::Fetched(lease.id)));
            }
            Action::Compute(lease) => {
                let host = &mut self.hosts[at];
                host.under_way.insert(lease.id, lease);
                assert_eq!(host.computing.replace(lease.id), None, "one at a time");
                let took = lease.units * host.ns_per_unit + self.settings.lease_ns;
                self.after(took, driver(Driven::Computed(lease.id)));
            }
            Action::Stop(lease) => self.stop(at, lease),
            Action::Drop(_) | Action::Left(_) => {}
            Action::SetTimer(due) => {
                let host = &mut self.hosts[at];
                host.timer += 1;
                let timer = Driven::Timer(host.timer);
                self.at(due.as_nanos() as u64, What::Driver(at, process, timer));
            }
        }
    }

    /// A kernel stops when a unit is done, or goes on if it is soon done with all.
    fn stop(&mut self, at: usize, id: LeaseId) {
        let host = &mut self.hosts[at];
        let mut late = 1000;
        if host.computing == Some(id) {
            let lease = host.under_way.get(&id);
            let took = lease.map_or(0, |lease| lease.units * host.ns_per_unit);
            if host.hangs || (took < 500 * MS && self.random.one_in(2)) {
                return;
            }
            late = self.random.below(host.ns_per_unit);
        }
        host.under_way.remove(&id);
        let stopped = Driven::Event(Event::Stopped(id));
        self.after(late, What::Driver(at, self.hosts[at].process, stopped));
    }

    /// Messages that a node must not believe.
    pub fn stray_to_node(&mut self, at: usize) {
        use crate::{Epoch, JobId};
        let epoch = Epoch((1 << 40) + self.random.below(10));
        let id = LeaseId(self.random.below(100));
        let lease = Lease { id, job: JobId(1), first: 0, units: 1 };
        let message = match self.random.below(4) {
            0 => ToNode::Lease { epoch, lease },
            1 => ToNode::Withdraw { epoch, lease: id },
            2 => ToNode::Fenced { epoch },
            _ => ToNode::Dismissed { epoch },
        };
        self.after(0, What::ToNode(at, self.hosts[at].process, message));
    }
}

/// What a node's driver has under way.
#[derive(Debug)]
pub enum Driven {
    Timer(u64),
    Fetched(LeaseId),
    Computed(LeaseId),
    Event(Event<Found>),
}
