//! Nodes that joined: what each has, what it is to get, and when it is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use super::job::{Holder, Job, Room};
use super::pace::Pace;
use super::{Action, Config, JobError, Loss, Manager};
use crate::tree::Span;
use crate::{Epoch, Hello, JobId, Lease, LeaseId, NodeId, Refusal, ToNode};

/// A lease that is out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) job: JobId,
    pub(crate) first: u64,
    pub(crate) given: Duration,
    pub(crate) shortening: Shortening,
}

/// What its holder was told of the second half of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortening {
    No,
    /// To leave it, all but the first `units`; no answer came yet.
    Asked {
        units: u64,
        at: Duration,
    },
    /// It keeps that: it has begun it, or cannot tell.
    Refused,
}

/// So long an idle node waits for units that another may leave, before it gets all of them.
const ANSWER_WITHIN: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) epoch: Epoch,
    heard: Duration,
    /// When it last asked for work, or a lease of it ended.
    active: Option<Duration>,
    /// When it could begin its oldest lease: one before came back, failed or was taken back.
    freed: Duration,
    buffers: u64,
    buffer_bytes: u64,
    /// That share a lease.
    nodes: u64,
    /// Leases asked for, and given, since it joined.
    asked: u64,
    given: u64,
    /// When it was given something last.
    gave: Duration,
    pub(crate) leases: BTreeMap<LeaseId, Held>,
    /// The one of another that was to be shortened for it last.
    awaits: Option<Holder>,
    pub(crate) leaving: bool,
    pub(crate) queued: bool,
}

impl Member {
    /// Whether it computes a lease already, as far as is known: a node its oldest one, and hardly
    /// any of the next; a group all it has.
    fn has_begun(&self, lease: LeaseId) -> bool {
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
    fn is_prompt(&self, now: Duration, overdue: Duration) -> bool {
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

    /// What `node` gets, if anything: units that are free, of the first job
    /// that has some; when there are none, or a lease is overdue, what another
    /// node has, if it has nothing else to do.
    pub(super) fn choose(&mut self, node: NodeId, actions: &mut Vec<Action<R>>) -> Option<Lease> {
        let Config { shares, overdue, .. } = self.config;
        let may_share = shares && self.members.get(&node)?.leases.is_empty();
        let now = self.now;
        let is_overdue = |given| now.saturating_sub(given) >= overdue;
        if may_share && let Some(lease) = self.share(node, is_overdue, actions) {
            return Some(lease);
        }
        match self.take(node) {
            None if may_share => self.share(node, |_| true, actions),
            taken => taken,
        }
    }

    /// Units that are free, of the first job that has some for `node`.
    fn take(&mut self, node: NodeId) -> Option<Lease> {
        let Config { overdue, deadline, .. } = self.config;
        let now = self.now;
        let member = self.members.get(&node)?;
        let workers = self.members.iter().filter(|(_, member)| member.works(now, deadline));
        let workers = workers.map(|(node, member)| (*node, member.is_prompt(now, overdue)));
        let holder = Holder { node, lease: LeaseId(self.serial + 1) };
        for (id, job) in &mut self.jobs {
            let has = member.leases.values().filter(|held| held.job == *id);
            let has = has.map(|held| job.units_out(held.first)).sum();
            let room = Room { bytes: member.buffer_bytes, nodes: member.nodes, has };
            let taken = job.take(holder, room, workers.clone(), &self.config);
            if let Some((span, is_again)) = taken {
                self.counters.given_again += u64::from(is_again);
                let (units, first, job) = (job.tree.units(span), span.first, *id);
                return self.give(node, Lease { id: holder.lease, job, first, units });
            }
        }
        None
    }

    /// Of the lease whose result is expected last: there it gains most (LATE: Zaharia et al.,
    /// "Improving MapReduce performance in heterogeneous environments", 2008). A part of it, if
    /// its holder has not begun it, who loses it; else all, as a second one.
    fn share(
        &mut self,
        node: NodeId,
        is_due: impl Fn(Duration) -> bool,
        actions: &mut Vec<Action<R>>,
    ) -> Option<Lease> {
        let buffer_bytes = self.members.get(&node)?.buffer_bytes;
        // It is about to get a half.
        if self.members.get(&node)?.awaits.is_some_and(|of| self.is_asked(of)) {
            return None;
        }
        let given = |of: Holder| Some(self.members.get(&of.node)?.leases.get(&of.lease)?.given);
        let of_jobs = self.jobs.iter().flat_map(|(id, job)| {
            let oldest = job.oldest(node, buffer_bytes, self.config.backlog_max);
            let due = oldest.take_while(|(holder, _)| given(*holder).is_some_and(&is_due));
            // Of what others wait for nothing is left to it.
            let due = due.filter(|(holder, _)| !self.is_asked(*holder));
            due.map(|(holder, span)| (*id, (holder, span), self.seconds_left(job, holder)))
        });
        let (id, (holder, span), _) = of_jobs.min_by(|one, other| other.2.total_cmp(&one.2))?;
        let member = self.members.get(&holder.node)?;
        if !member.has_begun(holder.lease) {
            self.jobs.get_mut(&id)?.recall(span);
            self.withdraw(&holder, actions);
            return self.take(node);
        }
        if self.asks_for_half(id, (holder, span), actions) {
            self.members.get_mut(&node)?.awaits = Some(holder);
            return None;
        }
        let job = self.jobs.get_mut(&id)?;
        let second = Holder { node, lease: LeaseId(self.serial + 1) };
        job.share(span, second);
        self.counters.given_twice += 1;
        let (units, first, job) = (job.tree.units(span), span.first, id);
        self.give(node, Lease { id: second.lease, job, first, units })
    }

    /// Whether the answer of a holder that was asked for a half may still come.
    fn is_asked(&self, of: Holder) -> bool {
        let held = self.members.get(&of.node).and_then(|member| member.leases.get(&of.lease));
        held.is_some_and(|held| match held.shortening {
            Shortening::Asked { at, .. } => self.now.saturating_sub(at) < ANSWER_WITHIN,
            _ => false,
        })
    }

    /// Asks the holder of a lease for the second half, unless it has none, or was asked before.
    fn asks_for_half(
        &mut self,
        id: JobId,
        (holder, span): (Holder, Span),
        actions: &mut Vec<Action<R>>,
    ) -> bool {
        let half = self.jobs.get(&id).and_then(|job| job.half_units(span));
        let Some(member) = self.members.get_mut(&holder.node) else { return false };
        let (epoch, is_group) = (member.epoch, member.nodes > 1);
        let Some(held) = member.leases.get_mut(&holder.lease) else { return false };
        let Some(units) = half.filter(|_| !is_group && held.shortening == Shortening::No) else {
            return false;
        };
        held.shortening = Shortening::Asked { units, at: self.now };
        let lease = holder.lease;
        actions.push(Action::Tell(holder.node, ToNode::Shorten { epoch, lease, units }));
        self.wake_after(ANSWER_WITHIN, actions);
        true
    }

    /// A member answers to that.
    pub(super) fn shortened(
        &mut self,
        (node, lease): (NodeId, LeaseId),
        (units, is_shorter): (u64, bool),
        actions: &mut Vec<Action<R>>,
    ) {
        let held = self.members.get_mut(&node).and_then(|member| member.leases.get_mut(&lease));
        let Some(held) = held else { return };
        let (id, first) = (held.job, held.first);
        if !is_shorter {
            if matches!(held.shortening, Shortening::Asked { units: asked, .. } if asked == units) {
                held.shortening = Shortening::Refused;
            }
        } else if self.shorten((id, first), (lease, units), actions)
            && let Some(member) = self.members.get_mut(&node)
            && let Some(held) = member.leases.get_mut(&lease)
        {
            held.shortening = Shortening::No;
        }
    }

    /// A lease has only so many units, if that is the first half of the span; whether it is.
    /// The others are free.
    pub(super) fn shorten(
        &mut self,
        (id, first): (JobId, u64),
        (lease, units): (LeaseId, u64),
        actions: &mut Vec<Action<R>>,
    ) -> bool {
        let job = self.jobs.get_mut(&id);
        let Some(others) = job.and_then(|job| job.shorten(first, units, lease)) else {
            return false;
        };
        self.counters.shortened += 1;
        // What they have is as long as it was.
        others.iter().for_each(|other| self.withdraw(other, actions));
        true
    }

    /// In how long a lease comes back by the pace of its holder, or that of all where it has none
    /// yet, who computes one after the other; one that is late is expected to take as long again
    /// as it is late. Infinitely long where no pace is known.
    fn seconds_left(&self, job: &Job<R>, holder: Holder) -> f64 {
        let member = self.members.get(&holder.node);
        let own = job.paces.get(&holder.node).and_then(Pace::rate);
        let rate = own.or_else(|| job.rate());
        let (Some(member), Some(rate)) = (member, rate) else { return f64::INFINITY };
        let until = member.leases.range(..=holder.lease);
        let units: u64 = until.map(|(_, held)| job.units_out(held.first)).sum();
        let bytes = units.saturating_mul(job.spec.unit_bytes);
        let oldest = member.leases.values().next().map_or(self.now, |held| held.given);
        let since = self.now.saturating_sub(member.freed.max(oldest));
        (bytes as f64 / rate - since.as_secs_f64()).abs()
    }

    fn give(&mut self, node: NodeId, lease: Lease) -> Option<Lease> {
        self.serial = lease.id.0;
        self.counters.given += 1;
        let held = Held {
            job: lease.job,
            first: lease.first,
            given: self.now,
            shortening: Shortening::No,
        };
        let member = self.members.get_mut(&node)?;
        member.leases.insert(lease.id, held);
        member.given += 1;
        member.gave = self.now;
        Some(lease)
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
        let leases = self.members.values().flat_map(|member| member.leases.values());
        let answers = leases.filter_map(|held| match held.shortening {
            Shortening::Asked { at, .. } => Some(at.saturating_add(ANSWER_WITHIN)),
            _ => None,
        });
        if let Some(next) = answers.filter(|by| *by > now).min() {
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
