//! What nodes get: units that are free, or of what another has.

use std::time::Duration;

use super::job::{Holder, Job, Room};
use super::members::Held;
use super::pace::Pace;
use super::{Action, Config, Manager};
use crate::tree::Span;
use crate::{JobId, Lease, LeaseId, NodeId, ToNode};

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

impl<R> Manager<R> {
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
    /// its holder has not begun it, who loses it; else its second half, for which the holder is
    /// asked; all, as a second one, if that keeps it.
    fn share(
        &mut self,
        node: NodeId,
        is_due: impl Fn(Duration) -> bool,
        actions: &mut Vec<Action<R>>,
    ) -> Option<Lease> {
        let member = self.members.get(&node)?;
        let buffer_bytes = member.buffer_bytes;
        // It is about to get a half.
        if member.awaits.is_some_and(|of| self.is_asked(of)) {
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

    /// When an answer is waited for no longer.
    pub(super) fn answer_due(&self) -> Option<Duration> {
        let leases = self.members.values().flat_map(|member| member.leases.values());
        let answers = leases.filter_map(|held| match held.shortening {
            Shortening::Asked { at, .. } => Some(at.saturating_add(ANSWER_WITHIN)),
            _ => None,
        });
        answers.filter(|by| *by > self.now).min()
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
}
