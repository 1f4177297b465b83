//! Nodes that joined: what each has, what it is to get, and when it is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use super::job::Holder;
use super::sharing::Shortening;
use super::{Action, Config, JobError, Loss, Manager};
use crate::{Epoch, Hello, JobId, LeaseId, NodeId, Refusal, ToNode};

/// A lease that is out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) job: JobId,
    pub(crate) first: u64,
    pub(crate) given: Duration,
    pub(crate) shortening: Shortening,
}

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) epoch: Epoch,
    heard: Duration,
    /// When it last asked for work, or a lease of it ended.
    active: Option<Duration>,
    /// When it could begin its oldest lease: one before came back, failed or was taken back.
    pub(crate) freed: Duration,
    buffers: u64,
    pub(crate) buffer_bytes: u64,
    /// That share a lease.
    pub(crate) nodes: u64,
    /// Leases asked for, and given, since it joined.
    asked: u64,
    pub(crate) given: u64,
    /// When it was given something last.
    pub(crate) gave: Duration,
    pub(crate) leases: BTreeMap<LeaseId, Held>,
    /// The one of another that was to be shortened for it last.
    pub(crate) awaits: Option<Holder>,
    pub(crate) leaving: bool,
    pub(crate) queued: bool,
}

impl Member {
    /// Whether it computes a lease already, as far as is known: a node its oldest one, and hardly
    /// any of the next; a group all it has.
    pub(crate) fn has_begun(&self, lease: LeaseId) -> bool {
        self.nodes > 1 || self.leases.keys().next() == Some(&lease)
    }

    /// It wants `in_all` leases; no more than it has buffers for.
    pub(crate) fn ask(&mut self, in_all: u64) {
        self.asked = self.asked.max(in_all.min(self.given + self.buffers));
    }

    /// A lease came back or failed: with it, since when it was computed, as far as is known.
    pub(crate) fn ends(&mut self, lease: LeaseId, now: Duration) -> Option<(Held, Duration)> {
        let held = self.leases.remove(&lease)?;
        let since = std::mem::replace(&mut self.freed, now);
        Some((held, since.max(held.given)))
    }

    /// A lease is taken back; whether it had it.
    pub(crate) fn loses(&mut self, lease: LeaseId, now: Duration) -> bool {
        // Later ones were not begun.
        if self.leases.keys().next() == Some(&lease) {
            self.freed = now;
        }
        self.leases.remove(&lease).is_some()
    }

    /// Whether it waits for leases that were given long ago, and are nobody's any more:
    /// what gave them was lost, and what withdrew them told it nothing.
    pub(crate) fn waits_in_vain(&self, in_all: u64, now: Duration, deadline: Duration) -> bool {
        let has_all = in_all <= self.given && self.leases.is_empty();
        has_all && in_all > 0 && now.saturating_sub(self.gave) >= deadline
    }

    /// Leases it may get now.
    pub(crate) fn wants(&self) -> u64 {
        let room = self.buffers.saturating_sub(self.leases.len() as u64);
        if self.leaving { 0 } else { (self.asked - self.given).min(room) }
    }

    /// Whether it has work, wants some, or did so just now. A node that hangs
    /// lives on, but asks for nothing.
    fn is_of_use(&self, now: Duration, deadline: Duration) -> bool {
        let did = self.active.is_some_and(|active| now.saturating_sub(active) < deadline);
        did || !self.leases.is_empty() || self.wants() > 0
    }

    /// Whether no lease of it is overdue.
    pub(crate) fn is_prompt(&self, now: Duration, overdue: Duration) -> bool {
        self.leases.values().all(|held| now.saturating_sub(held.given) < overdue)
    }

    /// Whether it is of use and stays.
    pub(crate) fn works(&self, now: Duration, deadline: Duration) -> bool {
        !self.leaving && self.is_of_use(now, deadline)
    }
}

impl<R> Manager<R> {
    /// A member that is heard of. A stranger, or one whose membership is over, is told so.
    pub(super) fn member(
        &mut self,
        node: NodeId,
        epoch: Epoch,
        actions: &mut Vec<Action<R>>,
    ) -> Option<&mut Member> {
        match self.members.get_mut(&node).filter(|member| member.epoch == epoch) {
            Some(member) => {
                member.heard = self.now;
                Some(member)
            }
            None => {
                self.counters.stale += 1;
                actions.push(Action::Tell(node, ToNode::Fenced { epoch }));
                None
            }
        }
    }

    /// Remembers a member that wants more than it has; lets one go that leaves and has nothing.
    pub(super) fn settle(&mut self, node: NodeId, actions: &mut Vec<Action<R>>) {
        let Some(member) = self.members.get_mut(&node) else { return };
        member.active = Some(self.now);
        if member.leaving && member.leases.is_empty() {
            return self.dismiss(node, actions);
        }
        if !member.queued && member.wants() > 0 {
            member.queued = true;
            self.waiting.push_back((node, member.epoch));
        }
    }

    pub(super) fn join(&mut self, node: NodeId, hello: &Hello, actions: &mut Vec<Action<R>>) {
        let buffers = u64::from(hello.buffers.min(self.config.buffers_max));
        if let Some(member) = self.members.get_mut(&node)
            && member.active.is_none()
            && (member.buffers, member.buffer_bytes) == (buffers, hello.buffer_bytes)
            && self.config.admit(hello).is_ok()
        {
            // It has not heard its welcome yet, or that was lost.
            member.heard = self.now;
            let epoch = member.epoch;
            return self.greet(node, epoch, actions);
        }
        // A node that says hello anew knows nothing of what it had. It is not
        // told that it is fenced, for it would say hello again: its welcome says it.
        let before = self.members.remove(&node);
        let nodes_max = self.config.nodes_max;
        let admitted = match self.config.admit(hello) {
            Ok(()) if self.members.len() >= nodes_max => Err(Refusal::Full { nodes_max }),
            admitted => admitted,
        };
        match admitted {
            Err(refusal) => return self.turn_away(node, refusal, before, actions),
            Ok(()) => self.admit(node, hello, actions),
        }
        if let Some(before) = before {
            self.end(node, &before, actions);
        }
    }

    /// Refuses a node, which may have been a member `before`.
    pub(super) fn turn_away(
        &mut self,
        node: NodeId,
        refusal: Refusal,
        before: Option<Member>,
        actions: &mut Vec<Action<R>>,
    ) {
        self.counters.refused += 1;
        self.unfit = Some(format!("node {}: {refusal}", node.0));
        actions.push(Action::Tell(node, ToNode::Refused(refusal)));
        if let Some(before) = before {
            self.end(node, &before, actions);
        }
    }

    fn admit(&mut self, node: NodeId, hello: &Hello, actions: &mut Vec<Action<R>>) {
        let epoch = Epoch(self.next_serial());
        let member = Member {
            epoch,
            heard: self.now,
            active: None,
            freed: self.now,
            buffers: hello.buffers.min(self.config.buffers_max).into(),
            buffer_bytes: hello.buffer_bytes,
            nodes: hello.nodes.max(1).into(),
            asked: 0,
            given: 0,
            gave: self.now,
            leases: BTreeMap::new(),
            awaits: None,
            leaving: self.leaves.contains(&node),
            queued: false,
        };
        self.members.insert(node, member);
        self.counters.joined += 1;
        self.greet(node, epoch, actions);
        self.wake_after(self.config.deadline, actions);
    }

    fn greet(&self, node: NodeId, epoch: Epoch, actions: &mut Vec<Action<R>>) {
        let heartbeat = self.config.heartbeat();
        actions.push(Action::Tell(node, ToNode::Welcome { epoch, heartbeat }));
    }

    /// A node is lost: first nothing of its membership counts any more, then its leases are free.
    pub(super) fn lose(&mut self, node: NodeId, actions: &mut Vec<Action<R>>) {
        if let Some(member) = self.members.remove(&node) {
            actions.push(Action::Tell(node, ToNode::Fenced { epoch: member.epoch }));
            self.end(node, &member, actions);
        }
    }

    /// A member has left, for it cannot do what it was given.
    pub(super) fn refuse(&mut self, node: NodeId, why: String, actions: &mut Vec<Action<R>>) {
        if let Some(member) = self.members.remove(&node) {
            self.counters.refused += 1;
            self.unfit = Some(why);
            self.give_up(node, &member, None, actions);
        }
    }

    /// After its node was told.
    fn end(&mut self, node: NodeId, member: &Member, actions: &mut Vec<Action<R>>) {
        self.counters.lost += 1;
        // A node computes its oldest lease, and may have begun the next one, which is not blamed.
        let computed = member.leases.first_key_value().map(|(lease, _)| *lease);
        self.give_up(node, member, computed, actions);
        let (mut bytes_left, mut bytes_out) = (0_u64, 0_u64);
        for job in self.jobs.values() {
            let out_bytes = job.out_bytes();
            bytes_out = bytes_out.saturating_add(out_bytes);
            let free_bytes = job.pool.units().saturating_mul(job.spec.unit_bytes);
            bytes_left = bytes_left.saturating_add(out_bytes).saturating_add(free_bytes);
        }
        self.counters.last_loss = Some(Loss { node, after: self.now, bytes_left, bytes_out });
    }

    /// Takes back what a member had, which `computed` one of it.
    fn give_up(
        &mut self,
        node: NodeId,
        member: &Member,
        computed: Option<LeaseId>,
        actions: &mut Vec<Action<R>>,
    ) {
        for (lease, held) in &member.leases {
            let Some(job) = self.jobs.get_mut(&held.job) else { continue };
            let (was_computed, losses_max) = (computed == Some(*lease), self.config.losses_max);
            if let Some(error) = job.lost(held.first, *lease, was_computed, losses_max) {
                self.fail(held.job, error, actions);
            }
        }
        self.gone(node, member, actions);
    }

    /// After a member was taken off.
    fn gone(&mut self, node: NodeId, member: &Member, actions: &mut Vec<Action<R>>) {
        for job in self.jobs.values_mut() {
            job.paces.remove(&node);
        }
        if member.queued {
            self.waiting.retain(|(_, epoch)| *epoch != member.epoch);
        }
        if member.is_of_use(self.now, self.config.deadline) {
            for job in self.jobs.values_mut().filter(|job| job.fits(member.buffer_bytes)) {
                job.deserted = self.now;
            }
            self.wake_after(self.config.join_wait, actions);
        }
    }

    /// Lets a member go that has nothing to do.
    fn dismiss(&mut self, node: NodeId, actions: &mut Vec<Action<R>>) {
        let Some(member) = self.members.remove(&node) else { return };
        actions.push(Action::Tell(node, ToNode::Dismissed { epoch: member.epoch }));
        self.gone(node, &member, actions);
    }

    /// Lets all go when there will be no more work.
    pub(super) fn dismiss_all(&mut self, actions: &mut Vec<Action<R>>) {
        while self.draining
            && self.jobs.is_empty()
            && let Some((node, _)) = self.members.first_key_value()
        {
            self.dismiss(*node, actions);
        }
    }

    /// Asks for a tick, unless an earlier one is due anyway.
    pub(super) fn wake_after(&mut self, time: Duration, actions: &mut Vec<Action<R>>) {
        self.wake_at(self.now.saturating_add(time), actions);
    }

    fn wake_at(&mut self, at: Duration, actions: &mut Vec<Action<R>>) {
        if self.timer.is_none_or(|due| at < due) {
            self.timer = Some(at);
            actions.push(Action::SetTimer(at));
        }
    }

    /// A manager that was stopped itself holds that time against nobody, and gives
    /// all two heartbeats to be heard of.
    fn overslept(&mut self, late: Duration) {
        let heartbeat = self.config.heartbeat();
        if late < heartbeat {
            return;
        }
        let now = self.now;
        let late = late.saturating_add(2 * heartbeat);
        let later = |at: &mut Duration| *at = at.saturating_add(late).min(now);
        for member in self.members.values_mut() {
            later(&mut member.heard);
            later(&mut member.gave);
            member.leases.values_mut().for_each(|held| later(&mut held.given));
        }
        self.jobs.values_mut().for_each(|job| later(&mut job.deserted));
    }

    /// Loses nodes that were silent for too long, and fails jobs that nobody came for.
    pub(super) fn expire(&mut self, actions: &mut Vec<Action<R>>) {
        if self.timer.is_some_and(|due| due > self.now) {
            return;
        }
        let due = self.timer.take();
        self.overslept(due.map_or(Duration::ZERO, |due| self.now.saturating_sub(due)));
        let Config { deadline, join_wait, lease_max, .. } = self.config;
        let now = self.now;
        let due = |member: &Member| {
            let of_leases = member.leases.values().map(|held| held.given.saturating_add(lease_max));
            of_leases.fold(member.heard.saturating_add(deadline), Duration::min)
        };
        let dues: Vec<_> = self.members.iter().map(|(node, member)| (*node, due(member))).collect();
        for (node, due) in dues {
            if due <= now {
                self.lose(node, actions);
            } else {
                self.wake_at(due, actions);
            }
        }
        if let Some(next) = self.answer_due() {
            self.wake_at(next, actions);
        }
        let mut jobs = Vec::new();
        for (id, job) in &mut self.jobs {
            let is_of_use = |of: &Member| of.is_of_use(now, deadline) && job.fits(of.buffer_bytes);
            if self.members.values().any(is_of_use) {
                job.deserted = now;
            } else {
                jobs.push((*id, job.deserted.saturating_add(join_wait)));
            }
        }
        for (id, until) in jobs {
            if until <= now {
                self.fail_without_nodes(id, join_wait, actions);
            } else {
                self.wake_at(until, actions);
            }
        }
    }

    fn fail_without_nodes(&mut self, id: JobId, waited: Duration, actions: &mut Vec<Action<R>>) {
        self.fail(id, JobError::NoNodes { waited, said: self.unfit.clone() }, actions);
    }

    /// Fails all jobs if nobody is here.
    pub(super) fn deserted(&mut self, actions: &mut Vec<Action<R>>) {
        if self.members.is_empty() {
            for (id, since) in
                self.jobs.iter().map(|(id, job)| (*id, job.deserted)).collect::<Vec<_>>()
            {
                self.fail_without_nodes(id, self.now.saturating_sub(since), actions);
            }
        }
    }
}
