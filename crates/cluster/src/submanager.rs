//! A manager of a group that is a node of the manager above: managers make a tree.
//!
//! A lease of the manager above is a job of the group, by the lease's number. Its
//! units are a tree of their own, so results have the bits of one manager's. Nodes
//! are told of units and jobs as the manager above numbers them, and know of no tree.
//!
//! *Buffers.* With three ([`BUFFERS`]) a group does not idle while the one above
//! answers: of one lease the last units are out or merged, the next is given out, and
//! one is on its way. A lease is for all nodes of the group ([`Hello::nodes`]); the pace
//! above is measured, and is that of the group.
//!
//! *Times.* [`Config::join_wait`] is to be a deadline or two: so long after its last
//! node was lost a group gives its leases back and leaves, until nodes come.
//! A unit that fails is tried [`Config::tries_max`] times by each level.
//!
//! *Orphans.* A peer knows its manager and the root. Who loses its manager joins the
//! root, with its group if it has one, and stays: nobody has to be told of it.
//!
//! *Numbers.* Each manager of a tree has a range of its own from [`Config::serial`] on:
//! a node that joins another one may still have leases of the one before to stop.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::manager::{self, Config, MergeId};
use crate::node::{self, Left};
use crate::{
    Failure, Hello, JobError, JobId, JobSpec, Lease, LeaseId, Manager, Node, NodeId, ToManager,
    ToNode,
};

/// Leases of a group at a time.
pub const BUFFERS: u32 = 3;

/// What happened.
#[derive(Clone, Debug)]
pub enum Event<R> {
    /// Above: started, told, sent, lost, to leave.
    Above(node::Event<R>),
    /// In the group, whose jobs are submitted, aborted and drained from above.
    Below(manager::Event<R>),
    /// The time asked for by [`Action::SetTimer`] is there; any other does no harm.
    Tick,
}

/// What is to be done, in this order.
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each action says what its fields are")]
pub enum Action<R> {
    /// Send this to the manager above. After a result, [`node::Event::Sent`].
    Say(ToManager<R>),
    /// Send this to a node of the group.
    Tell(NodeId, ToNode),
    /// As [`manager::Action::Merge`]; the job is that of the manager above.
    Merge { id: MergeId, job: JobId, into: R, from: R },
    /// Nobody wants that result.
    Drop(R),
    /// The manager above is none any more. If it was [`Left::Lost`], the group waits
    /// for another [`node::Event::Start`]; else it is let go.
    Left(Left),
    /// Send [`Event::Tick`] at that time; an earlier wish counts no more.
    SetTimer(Duration),
}

/// A [`Node`] whose accelerators are a [`Manager`].
#[derive(Debug)]
pub struct Submanager<R> {
    node: Node,
    manager: Manager<R>,
    /// Whether it is to join once the group has a node.
    is_to_join: bool,
    /// Whether it leaves for want of nodes, and is to come back with them.
    is_deserted: bool,
    /// Jobs above.
    specs: BTreeMap<JobId, JobSpec>,
    /// What the jobs of the group are above.
    leases: BTreeMap<JobId, Lease>,
    /// Of a job that has no results.
    nothing: fn() -> R,
    /// When the node and the manager are to be woken, and when that was asked for.
    dues: [Option<Duration>; 2],
    timer: Option<Duration>,
}

/// What one of the two says to the other.
enum Inner<R> {
    Node(node::Event<R>),
    Manager(manager::Event<R>),
}

impl<R> Submanager<R> {
    /// No nodes; no manager above. `nothing` makes the result of [`Merging::Nothing`](crate::Merging::Nothing).
    #[must_use]
    pub fn new(hello: Hello, config: Config, nothing: fn() -> R) -> Self {
        Self {
            node: Node::new(hello).at_once(usize::MAX),
            manager: Manager::new(config),
            is_to_join: false,
            is_deserted: false,
            specs: BTreeMap::new(),
            leases: BTreeMap::new(),
            nothing,
            dues: [None; 2],
            timer: None,
        }
    }

    /// As [`Node::patience`].
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { node: self.node.patience(patience), ..self }
    }

    /// Whether a node is a member of the group.
    #[must_use]
    pub fn has_member(&self, node: NodeId) -> bool {
        self.manager.has_member(node)
    }

    /// Tells of a job above, before its first lease; its units are those of leases.
    pub fn describe(&mut self, job: JobId, spec: JobSpec) {
        self.specs.insert(job, spec);
    }

    /// Whether a lease of that job above is given out, merged or on its way back.
    #[must_use]
    pub fn has_lease_of(&self, job: JobId) -> bool {
        self.node.has_lease_of(job)
    }

    /// No lease of that job is to come, unless it is described anew.
    pub fn forget(&mut self, job: JobId) {
        self.specs.remove(&job);
    }

    /// Whether the group was let go.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.manager.is_drained()
    }

    /// Takes what happened at `now`, counted from any fixed start, and appends what is to be done.
    pub fn on(&mut self, now: Duration, event: Event<R>, actions: &mut Vec<Action<R>>) {
        match event {
            Event::Above(node::Event::Start) => self.is_to_join = true,
            Event::Above(node::Event::Tick) | Event::Below(manager::Event::Tick) | Event::Tick => {
                for due in self.dues.iter_mut().filter(|due| due.is_some_and(|due| due <= now)) {
                    *due = None;
                }
                self.run(now, Inner::Node(node::Event::Tick), actions);
                self.run(now, Inner::Manager(manager::Event::Tick), actions);
            }
            Event::Above(event) => self.run(now, Inner::Node(event), actions),
            Event::Below(mut event) => {
                self.number_from_first(&mut event);
                self.run(now, Inner::Manager(event), actions);
            }
        }
        if self.is_to_join && self.manager.has_workers() {
            self.is_to_join = false;
            self.run(now, Inner::Node(node::Event::Start), actions);
        }
        let due = self.dues.into_iter().flatten().min();
        if due != self.timer {
            self.timer = due;
            actions.extend(due.map(Action::SetTimer));
        }
    }

    /// A unit that failed, as the group's job numbers it.
    fn number_from_first(&self, event: &mut manager::Event<R>) {
        let manager::Event::From(node, ToManager::Failed { lease, failure, .. }) = event else {
            return;
        };
        let of = self.manager.job_of(*node, *lease).and_then(|job| self.leases.get(&job));
        failure.unit = failure.unit.and_then(|unit| unit.checked_sub(of?.first));
    }

    /// Until neither has anything to say to the other.
    fn run(&mut self, now: Duration, event: Inner<R>, actions: &mut Vec<Action<R>>) {
        let mut inner = VecDeque::from([event]);
        while let Some(event) = inner.pop_front() {
            match event {
                Inner::Node(event) => {
                    let mut did = Vec::new();
                    self.node.on(now, event, &mut did);
                    for action in did {
                        inner.extend(self.of_node(action, actions));
                    }
                }
                Inner::Manager(event) => {
                    let mut did = Vec::new();
                    self.manager.on(now, event, &mut did);
                    for action in did {
                        inner.extend(self.of_manager(action, actions));
                    }
                }
            }
        }
    }

    fn of_node(
        &mut self,
        action: node::Action<R>,
        actions: &mut Vec<Action<R>>,
    ) -> Option<Inner<R>> {
        match action {
            node::Action::Say(message) => actions.push(Action::Say(message)),
            node::Action::Fetch(lease) => return Some(Inner::Node(node::Event::Fetched(lease.id))),
            node::Action::Compute(lease) => return Some(self.submit(lease)),
            node::Action::Stop(lease) => {
                let job = job_of(lease);
                return Some(match self.leases.contains_key(&job) {
                    true => Inner::Manager(manager::Event::Abort(job)),
                    false => Inner::Node(node::Event::Stopped(lease)),
                });
            }
            // Its nodes are at all of it.
            node::Action::Shorten(lease, units) => {
                return Some(Inner::Node(node::Event::Shortened(lease, units, false)));
            }
            node::Action::Drop(result) => actions.push(Action::Drop(result)),
            node::Action::Left(why) => {
                if std::mem::take(&mut self.is_deserted) && why == Left::Dismissed {
                    self.is_to_join = true;
                    return None;
                }
                let is_lost = why == Left::Lost;
                actions.push(Action::Left(why));
                return (!is_lost).then_some(Inner::Manager(manager::Event::Drain));
            }
            node::Action::SetTimer(due) => self.dues[0] = Some(due),
        }
        None
    }

    fn submit(&mut self, lease: Lease) -> Inner<R> {
        let Some(spec) = self.specs.get(&lease.job) else {
            let what = "its group was not told of the job: describe it before".to_owned();
            let failure = Failure { unit: None, offset: None, what };
            return Inner::Node(node::Event::Failed(lease.id, failure));
        };
        let job = job_of(lease.id);
        let mut others = self.leases.iter().rev();
        if let Some((other, _)) = others.find(|(_, of)| of.job == lease.job) {
            self.manager.next_is_like(*other);
        }
        self.leases.insert(job, lease);
        Inner::Manager(manager::Event::Submit(job, JobSpec { units: lease.units, ..*spec }))
    }

    fn of_manager(
        &mut self,
        action: manager::Action<R>,
        actions: &mut Vec<Action<R>>,
    ) -> Option<Inner<R>> {
        match action {
            manager::Action::Tell(node, message) => {
                actions.push(Action::Tell(node, self.numbered_as_above(message)));
            }
            manager::Action::Merge { id, job, into, from } => {
                let job = self.leases.get(&job).map_or(job, |lease| lease.job);
                actions.push(Action::Merge { id, job, into, from });
            }
            manager::Action::Drop(result) => actions.push(Action::Drop(result)),
            manager::Action::Finished { job, result } => {
                let lease = self.leases.remove(&job)?;
                let result = result.unwrap_or_else(self.nothing);
                return Some(Inner::Node(node::Event::Computed(lease.id, result)));
            }
            manager::Action::Failed { job, error } => {
                let lease = self.leases.remove(&job)?;
                return Some(Inner::Node(self.failed(lease, error)?));
            }
            manager::Action::SetTimer(due) => self.dues[1] = Some(due),
        }
        None
    }

    fn numbered_as_above(&self, message: ToNode) -> ToNode {
        match message {
            ToNode::Lease { epoch, lease } => {
                let of = self.leases.get(&lease.job);
                let (job, first) = of.map_or((lease.job, 0), |of| (of.job, of.first));
                ToNode::Lease { epoch, lease: Lease { job, first: first + lease.first, ..lease } }
            }
            message => message,
        }
    }

    fn failed(&mut self, lease: Lease, error: JobError) -> Option<node::Event<R>> {
        let (unit, offset, what) = match error {
            JobError::Aborted => return Some(node::Event::Stopped(lease.id)),
            JobError::NoNodes { .. } if self.is_deserted => {
                return Some(node::Event::Stopped(lease.id));
            }
            JobError::NoNodes { .. } => {
                // All it has goes back by joining anew; then it leaves.
                self.is_deserted = true;
                self.node.leave_next();
                return Some(node::Event::Garbled);
            }
            JobError::Unit { unit, offset, what, .. } => (Some(lease.first + unit), offset, what),
            JobError::Lost { first, units, losses } => {
                let first = lease.first + first;
                let what = JobError::Lost { first, units, losses }.to_string();
                ((units == 1).then_some(first), None, what)
            }
            error => (None, None, error.to_string()),
        };
        Some(node::Event::Failed(lease.id, Failure { unit, offset, what }))
    }
}

/// The job that a lease is.
fn job_of(lease: LeaseId) -> JobId {
    JobId(lease.0)
}

#[cfg(test)]
mod tests;
