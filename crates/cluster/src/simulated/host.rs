//! A machine with a node on it: its driver in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::node::{Action, Event, Left};
use crate::{Failure, JobId, Lease, LeaseId, Node, ToManager, ToNode};

use super::faults::{BAD, BLIND, Flaw, KERNEL, UNIT_BYTES, UNSTARTED};
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
    /// What is wrong with it, in all its processes.
    pub flaw: Flaw,
    /// Jobs that this process was told of.
    jobs: BTreeSet<JobId>,
    /// Sessions that did not start.
    unstarted: u32,
    /// Leases with something under way that will end by itself.
    under_way: BTreeMap<LeaseId, Lease>,
    computing: Option<LeaseId>,
    /// Since then.
    began: u64,
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
            node: Node::new(Flaw::None.hello(buffers)),
            buffers,
            process: 0,
            is_alive: false,
            is_paused: false,
            held: Vec::new(),
            ns_per_unit,
            flaw: Flaw::None,
            jobs: BTreeSet::new(),
            unstarted: 0,
            under_way: BTreeMap::new(),
            computing: None,
            began: 0,
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
        (host.flaw, host.node) = (old.flaw, Node::new(old.flaw.hello(old.buffers)));
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

    pub fn pause(&mut self, at: usize) {
        self.hosts[at].is_paused = self.hosts[at].is_alive;
        self.befalls("nodes stopped");
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
            What::ToNode(_, _, Came::Told(message)) => self.node(at, Event::Told(message)),
            What::ToNode(_, _, Came::Garbled) => self.node(at, Event::Garbled),
            What::ToNode(_, _, Came::Job(job)) => {
                host.jobs.insert(job);
            }
            What::Driver(_, _, Driven::Timer(number)) if number == host.timer => {
                self.node(at, Event::Tick);
            }
            What::Driver(_, _, Driven::Computed(lease)) => self.computed(at, lease),
            What::Driver(_, _, Driven::Fetched(lease)) => self.fetched(at, lease),
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
        if let Flaw::Unstarted(times) = host.flaw
            && host.unstarted < times
        {
            host.unstarted += 1;
            self.befalls("sessions that did not start");
            let failure = Failure { unit: None, offset: None, what: UNSTARTED.to_owned() };
            return self.node(at, Event::Failed(lease.id, failure));
        }
        if let Some(failure) = self.failure(lease) {
            return self.node(at, Event::Failed(lease.id, failure));
        }
        if self.kills(lease) {
            return self.kill_and_restart(at);
        }
        let result = match self.hosts[at].flaw {
            Flaw::Foreign => {
                self.befalls("results of another type");
                Found::foreign(&self.live)
            }
            _ => Found::of_lease(lease.job, lease.first, lease.units, &self.live),
        };
        self.node(at, Event::Computed(lease.id, result));
    }

    /// Its bytes are there, or cannot be had.
    fn fetched(&mut self, at: usize, lease: LeaseId) {
        let host = &mut self.hosts[at];
        let Some(lease) = host.under_way.remove(&lease) else { return };
        let Flaw::Blind { names_unit } = host.flaw else {
            return self.node(at, Event::Fetched(lease.id));
        };
        self.befalls("inputs that were not opened");
        let unit = names_unit.then_some(lease.first);
        let offset = unit.map(|unit| unit * UNIT_BYTES);
        let failure = Failure { unit, offset, what: BLIND.to_owned() };
        self.node(at, Event::Failed(lease.id, failure));
    }

    /// Why its driver does not compute what it was given, as that finds out then.
    fn refused(&mut self, at: usize, lease: Lease) -> Option<Event<Found>> {
        if !self.hosts[at].jobs.contains(&lease.job) {
            self.befalls("leases of unknown jobs");
            return Some(Event::Garbled);
        }
        (self.hosts[at].flaw == Flaw::Kernel).then(|| {
            self.befalls("nodes of another kernel");
            Event::Unfit(KERNEL.to_owned())
        })
    }

    /// Whether a unit of the lease fails now.
    fn failure(&mut self, lease: Lease) -> Option<Failure> {
        let job = self.jobs.get_mut(&lease.job)?;
        let mut failing = job.failing.range_mut(lease.first..lease.first + lease.units);
        let (unit, left) = failing.find(|(_, left)| **left > 0)?;
        *left = left.saturating_sub(u32::from(*left != u32::MAX));
        let named = job.failures_named.then_some(*unit);
        Some(Failure {
            unit: named,
            offset: named.map(|unit| unit * UNIT_BYTES),
            what: BAD.to_owned(),
        })
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
                if let Some(event) = self.refused(at, lease) {
                    return self.node(at, event);
                }
                let host = &mut self.hosts[at];
                host.under_way.insert(lease.id, lease);
                assert_eq!(host.computing.replace(lease.id), None, "one at a time");
                host.began = self.now;
                let took = lease.units * host.ns_per_unit + self.settings.lease_ns;
                self.after(took, driver(Driven::Computed(lease.id)));
            }
            Action::Stop(lease) => self.stop(at, lease),
            Action::Shorten(lease, units) => self.shorten(at, lease, units),
            Action::Drop(_) => {}
            Action::Left(why) => self.left(at, &why),
            Action::SetTimer(due) => {
                let host = &mut self.hosts[at];
                host.timer += 1;
                let timer = Driven::Timer(host.timer);
                self.at(due.as_nanos() as u64, What::Driver(at, process, timer));
            }
        }
    }

    /// It ends sooner, unless it is past that.
    fn shorten(&mut self, at: usize, id: LeaseId, units: u64) {
        let host = &mut self.hosts[at];
        let ends = host.began + units * host.ns_per_unit + self.settings.lease_ns;
        let computing = host.under_way.get_mut(&id).filter(|_| host.computing == Some(id));
        let shortened = computing.filter(|_| self.now < ends && !host.hangs);
        let is_shorter = shortened.map(|lease| lease.units = units).is_some();
        if is_shorter {
            let computed = Driven::Computed(id);
            self.at(ends, What::Driver(at, self.hosts[at].process, computed));
        }
        self.node(at, Event::Shortened(id, units, is_shorter));
    }

    /// A node leaves for what is wrong with it alone.
    fn left(&mut self, at: usize, why: &Left) {
        let flaw = self.hosts[at].flaw;
        match why {
            Left::Dismissed => {}
            Left::Refused(_) => {
                assert!(flaw.is_refused(), "{flaw:?}: {why}");
                self.befalls("nodes of another build");
            }
            Left::Unfit(_) => assert_eq!(flaw, Flaw::Kernel, "{why}"),
            Left::Lost => panic!("the manager was there"),
        }
    }

    /// A kernel stops when a unit is done, or goes on if it is soon done with all.
    fn stop(&mut self, at: usize, id: LeaseId) {
        let host = &mut self.hosts[at];
        let mut late = 1000;
        if host.computing == Some(id) {
            let lease = host.under_way.get(&id);
            let took = lease.map_or(0, |lease| lease.units * host.ns_per_unit);
            let (goes_on, is_soon_done) = (self.settings.goes_on, took < 500 * MS);
            if host.hangs || (goes_on > 0 && is_soon_done && self.random.one_in(goes_on)) {
                return;
            }
            late = self.random.below(host.ns_per_unit);
        }
        host.under_way.remove(&id);
        let stopped = Driven::Event(Event::Stopped(id));
        self.after(late, What::Driver(at, self.hosts[at].process, stopped));
    }
}

/// What comes to a node's driver.
#[derive(Clone, Debug)]
pub enum Came {
    Told(ToNode),
    /// What a job is.
    Job(JobId),
    /// Something that cannot be read.
    Garbled,
}

/// What a node's driver has under way.
#[derive(Debug)]
pub enum Driven {
    Timer(u64),
    Fetched(LeaseId),
    Computed(LeaseId),
    Event(Event<Found>),
}
