//! The manager of a group: it has of the manager above what its nodes do.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::Scope;
use std::time::Duration;

use serde_bytes::ByteBuf;

use super::group::Group;
use super::jobs::{Jobs, Known};
use super::keep::{Awaited, Settler, Units};
use super::layout::Layout;
use super::merging::{Held, Merges, Pair};
use super::peer::orphaned;
use super::{Bring, ClusterError, Config};
use crate::manager::{self, MergeId};
use crate::node::{self, Left};
use crate::submanager::{Action, BUFFERS, Event};
use crate::task::{Description, Has, Task};
use crate::wire::{Message, too_long};
use crate::{
    Epoch, Failure, Hello, JobId, JobSpec, LeaseId, NodeId, Submanager, ToManager, ToNode,
};

/// Its nodes bring to the disk what they put, and then this process does.
struct Settling {
    number: u64,
    awaited: Awaited,
}

pub(super) struct Submanage<'scope, 'env> {
    own: NodeId,
    above: NodeId,
    submanager: Submanager<Held>,
    jobs: Jobs<'env>,
    actions: Vec<Action<Held>>,
    merges: Merges<'env>,
    group: Group,
    /// Other peers of the group.
    below: Vec<NodeId>,
    /// Whether a manager above took it: one that differs is not this one then.
    is_fit: bool,
    /// What it was told of jobs.
    told: BTreeMap<JobId, (u32, Description)>,
    known: Known,
    settling: Option<Settling>,
    /// Nodes that brought results, and are not gone.
    returned: BTreeSet<NodeId>,
    /// How long one that is to settle is awaited when it is no member.
    absent_max: Duration,
    left: Option<Left>,
    /// Why a node left that could not do what it was given: the last one.
    unfit: Option<String>,
    timer: Option<Duration>,
    settler: Settler<'scope, 'env>,
}

/// The numbers of each manager are a range of so many.
const SERIALS: u32 = 40;

impl<'scope, 'env> Submanage<'scope, 'env> {
    pub(super) fn new(
        own: NodeId,
        layout: Layout,
        tasks: &'env [&'env dyn Task],
        config: &Config,
        bring: Bring,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Self {
        let Config { manager, hello, patience, .. } = config;
        // Each of its nodes says what it holds itself.
        let (buffers, nodes, buffer_bytes) = (BUFFERS, layout.nodes(own), u64::MAX);
        let hello = Hello { buffers, nodes, buffer_bytes, ..hello.clone() };
        let manager = manager::Config {
            // A node that only joins anew is there again by then.
            join_wait: 2 * manager.deadline,
            serial: manager.serial.saturating_add(u64::from(own.0) << SERIALS),
            ..manager.clone()
        };
        let below: Vec<_> = layout.below(own).collect();
        let jobs = Jobs::new(tasks);
        Self {
            own,
            above: layout.above(own),
            submanager: Submanager::new(hello, manager, Held::nothing).patience(*patience),
            jobs: jobs.clone(),
            actions: Vec::new(),
            merges: Merges::new(jobs, bring.clone(), scope),
            group: Group::new(below.iter().copied().chain([own])),
            below,
            is_fit: false,
            told: BTreeMap::new(),
            known: Known::default(),
            settling: None,
            returned: BTreeSet::new(),
            absent_max: *patience,
            left: None,
            unfit: None,
            timer: None,
            settler: Settler::new(tasks, bring, scope),
        }
    }

    /// Joins the manager above once the group has a node.
    pub(super) fn start(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        self.on(now, Event::Above(node::Event::Start), out);
    }

    /// Joins another one, for its own is lost.
    pub(super) fn join(&mut self, now: Duration, above: NodeId, out: &mut Vec<(NodeId, Message)>) {
        (self.above, self.left) = (above, None);
        self.start(now, out);
    }

    /// Whether the manager above is lost, with nothing else decided.
    pub(super) fn is_orphan(&self) -> bool {
        self.left == Some(Left::Lost)
    }

    /// The manager above is gone: it was lost, or has ended.
    pub(super) fn lost_above(
        &mut self,
        now: Duration,
        why: Left,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let is_lost = why == Left::Lost;
        let event = if is_lost { node::Event::Lost } else { node::Event::Ended };
        self.on(now, Event::Above(event), out);
        // One that waits for nodes was no member.
        self.left.get_or_insert(why);
        if !is_lost {
            self.end_lost(now, out);
        }
    }

    /// There is no other one: lets the group go.
    pub(super) fn end_lost(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        self.on(now, Event::Below(manager::Event::Drain), out);
    }

    /// Nor is one needed, for all was done.
    pub(super) fn end_done(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        self.left = Some(Left::Dismissed);
        self.end_lost(now, out);
    }

    pub(super) fn told(
        &mut self,
        now: Duration,
        message: ToNode,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        self.is_fit |= matches!(message, ToNode::Welcome { .. });
        let event = match &message {
            // What it was told of that job did not come.
            ToNode::Lease { lease, .. } if !self.known.gives(lease.job) => node::Event::Garbled,
            _ => node::Event::Told(message),
        };
        self.on(now, Event::Above(event), out);
    }

    /// A job above, which is that task; its results are to be merged here.
    pub(super) fn job(
        &mut self,
        now: Duration,
        (job, number): (JobId, u32),
        description: Description,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let task = self.jobs.open(job, number, &description.parameters);
        let merging = task.and_then(|task| {
            // It needs no input to merge.
            let has = Has::of(task.description(), false);
            has.check(&description, |_| false).map(|()| task.spec().merging)
        });
        match merging {
            Ok(merging) => {
                let Description { unit_bytes, lease_units, .. } = description;
                let units = description.units();
                self.submanager.describe(job, JobSpec { units, unit_bytes, merging, lease_units });
                self.told.insert(job, (number, description));
                let submanager = &mut self.submanager;
                // Of these the group has nothing.
                for older in self.known.tells(job, |job| submanager.has_lease_of(job)) {
                    self.told.remove(&older);
                    self.jobs.close(older);
                    submanager.forget(older);
                }
            }
            Err(why) => self.leave(now, format!("node {}: {why}", self.own.0), out),
        }
    }

    /// Others do without this manager; the root has its nodes.
    fn leave(&mut self, now: Duration, why: String, out: &mut Vec<(NodeId, Message)>) {
        self.leave_group(out);
        self.on(now, Event::Above(node::Event::Unfit(why.clone())), out);
        if self.left.is_none() {
            // It was no member.
            self.left = Some(Left::Unfit(why));
            self.on(now, Event::Below(manager::Event::Drain), out);
        }
    }

    /// Its nodes are those of the root.
    fn leave_group(&mut self, out: &mut Vec<(NodeId, Message)>) {
        out.extend(orphaned(self.group.give_up(self.own)));
    }

    /// Something of the manager above cannot be read.
    pub(super) fn garbled(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        self.on(now, Event::Above(node::Event::Garbled), out);
    }

    pub(super) fn heard(
        &mut self,
        now: Duration,
        node: NodeId,
        message: ToManager<ByteBuf>,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        match &message {
            // This process's own turn is the last in any case.
            ToManager::Result { .. } if node != self.own => {
                self.returned.insert(node);
            }
            ToManager::Unfit { why, .. } => {
                self.group.unfit(node, why.clone());
                self.unfit = Some(why.clone());
            }
            ToManager::Hello(hello) if let Some(why) = self.jobs.unlike(&hello.tasks) => {
                // It says hello again, when this one knows which of both would be refused above.
                if self.is_fit {
                    self.on(now, Event::Below(manager::Event::Refuse(node, why)), out);
                    self.leave_if_empty(now, out);
                }
                return;
            }
            _ => {}
        }
        let message = message.map(|_, saved| Held::new(saved, Units::default()));
        self.on(now, Event::Below(manager::Event::From(node, message)), out);
        self.leave_if_empty(now, out);
    }

    /// Nothing of `node` that is under way counts any more.
    pub(super) fn fence(&mut self, now: Duration, node: NodeId, out: &mut Vec<(NodeId, Message)>) {
        self.on(now, Event::Below(manager::Event::Lost(node)), out);
    }

    /// A peer is gone.
    pub(super) fn lost(&mut self, now: Duration, node: NodeId, out: &mut Vec<(NodeId, Message)>) {
        self.group.leaves(node);
        self.returned.remove(&node);
        self.await_settled(now, |settling| settling.awaited.remove(node));
        self.fence(now, node, out);
        self.leave_if_empty(now, out);
    }

    /// Leaves if nobody is left who could do anything.
    fn leave_if_empty(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        if self.left.is_none() && self.group.is_empty() {
            let none = || format!("node {}: its group has no nodes any more", self.own.0);
            let why = self.unfit.take().unwrap_or_else(none);
            self.leave(now, why, out);
        }
    }

    pub(super) fn merged(
        &mut self,
        now: Duration,
        merge: MergeId,
        (result, took): (Result<Held, String>, Duration),
        out: &mut Vec<(NodeId, Message)>,
    ) {
        self.merges.merged(took);
        self.on(now, Event::Below(manager::Event::Merged(merge, result)), out);
    }

    /// The result of a lease goes up.
    pub(super) fn saved(
        &mut self,
        now: Duration,
        (epoch, lease, units): (Epoch, LeaseId, u64),
        saved: Result<ByteBuf, String>,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let saved = saved.and_then(|saved| match too_long(saved.len()) {
            None => Ok(saved),
            Some(what) => Err(what),
        });
        let message = match saved {
            Ok(result) => ToManager::Result { epoch, lease, units, result },
            Err(what) => {
                let what = format!("node {}: {what}", self.own.0);
                ToManager::Failed {
                    epoch,
                    lease,
                    failure: Failure { unit: None, offset: None, what },
                }
            }
        };
        out.push((self.above, Message::ToManager(message)));
        self.on(now, Event::Above(node::Event::Sent(lease)), out);
    }

    /// What was put in this group is to be brought to the disk; who was told so and has not
    /// answered is told again.
    pub(super) fn settle(&mut self, now: Duration, number: u64, out: &mut Vec<(NodeId, Message)>) {
        if self.settling.as_ref().is_none_or(|settling| settling.number != number) {
            let is_member = |node: &NodeId| self.submanager.has_member(*node);
            let members = self.below.iter().copied().filter(is_member);
            // One that was fenced may live, with what it put.
            let awaited = members.chain(self.returned.iter().copied()).collect();
            self.settling = Some(Settling { number, awaited });
        }
        self.give_up_absent(now);
        let awaited = self.settling.iter().flat_map(|settling| settling.awaited.nodes());
        let before = out.len();
        out.extend(awaited.map(|node| (node, Message::Settle(number))));
        if out.len() == before {
            self.settle_own(number);
        }
    }

    /// What this node put, and what others did that are lost.
    fn settle_own(&mut self, number: u64) {
        self.settler.settle(number);
    }

    /// That is done, or not.
    pub(super) fn settled_own(&mut self) {
        self.settler.settled();
    }

    /// A node did.
    pub(super) fn settled(
        &mut self,
        now: Duration,
        node: NodeId,
        (number, failed): (u64, Option<String>),
        out: &mut Vec<(NodeId, Message)>,
    ) {
        if let Some(why) = failed {
            let why = format!("node {}: {why}", node.0);
            return out.push((self.above, Message::Settled(number, Some(why))));
        }
        self.await_settled(now, |settling| {
            if settling.number == number {
                settling.awaited.remove(node);
            }
        });
    }

    /// After the last one of those that are awaited it is this process's turn.
    fn await_settled(&mut self, now: Duration, change: impl FnOnce(&mut Settling)) {
        let Some(settling) = self.settling.as_mut().filter(|of| !of.awaited.is_empty()) else {
            return;
        };
        change(settling);
        self.give_up_absent(now);
        let settling = self.settling.as_ref().filter(|of| of.awaited.is_empty());
        if let Some(number) = settling.map(|settling| settling.number) {
            self.settle_own(number);
        }
    }

    /// Who stays away is taken for dead.
    fn give_up_absent(&mut self, now: Duration) {
        let Some(settling) = &mut self.settling else { return };
        let is_member = |node| self.submanager.has_member(node);
        for node in settling.awaited.give_up(now, self.absent_max, is_member) {
            self.returned.remove(&node);
        }
    }

    pub(super) fn tick(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        if self.timer.take_if(|due| *due <= now).is_some() {
            self.on(now, Event::Tick, out);
        }
    }

    /// When there is something to be done though nothing happens.
    pub(super) fn due(&mut self, now: Duration, linger: Duration) -> Option<Duration> {
        if self.submanager.is_drained() {
            self.group.ends(now, linger);
        }
        [self.timer, self.group.due()].into_iter().flatten().min()
    }

    /// Whether the group was let go, and all know.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.submanager.is_drained() && self.group.is_over(now)
    }

    /// Why nodes of the group were done without.
    pub(super) fn refused(&self) -> Vec<String> {
        self.group.refused().collect()
    }

    /// Why it left, where others do without it.
    pub(super) fn end(self) -> Result<Option<String>, ClusterError> {
        match self.left {
            None | Some(Left::Dismissed) => Ok(None),
            Some(Left::Unfit(why)) => Ok(Some(why)),
            Some(Left::Refused(why)) => Ok(Some(format!("node {}: {why}", self.own.0))),
            Some(why) => Err(ClusterError::Left { node: self.own, why }),
        }
    }

    fn on(&mut self, now: Duration, event: Event<Held>, out: &mut Vec<(NodeId, Message)>) {
        let mut actions = std::mem::take(&mut self.actions);
        self.submanager.on(now, event, &mut actions);
        for action in actions.drain(..) {
            self.carry_out(action, out);
        }
        self.actions = actions;
        self.await_settled(now, |_| {});
    }

    fn carry_out(&mut self, action: Action<Held>, out: &mut Vec<(NodeId, Message)>) {
        match action {
            Action::Say(ToManager::Result { epoch, lease, units, result }) => {
                self.merges.save((epoch, lease, units), result);
            }
            Action::Say(message) => {
                let message = message.map(|_, _| ByteBuf::new());
                out.push((self.above, Message::ToManager(message)));
            }
            Action::Tell(node, message) => {
                if let ToNode::Refused(why) = &message {
                    self.unfit = Some(format!("node {}: {why}", node.0));
                }
                let task_of = |job| self.told.get(&job).cloned();
                self.group.tell(node, message, task_of, out);
            }
            Action::Merge { id, job, into, from } => {
                self.merges.merge(Pair { id, job, into, from });
            }
            Action::Drop(_) => {}
            Action::Left(why) => {
                if matches!(why, Left::Refused(_)) {
                    self.leave_group(out);
                }
                self.left = Some(why);
            }
            Action::SetTimer(at) => self.timer = Some(at),
        }
    }
}

#[cfg(test)]
mod tests;
