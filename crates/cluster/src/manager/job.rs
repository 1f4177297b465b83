//! One job: which of its units are free, out, or done.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::merges::{Merges, Merging};
use super::pace::{Pace, Shares, level_of};
use super::pool::{Pool, Tries};
use super::{Config, JobError};
use crate::tree::{Span, Tree};
use crate::{Failure, JobId, LeaseId, NodeId};

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// Units, numbered from 0; [`UNITS_MAX`](crate::UNITS_MAX) at most.
    pub units: u64,
    /// Bytes of a unit: what is measured and what fits a buffer.
    pub unit_bytes: u64,
    /// How results become one.
    pub merging: Merging,
    /// Units of a lease of one node, rounded down to a power of two; fewer where idle nodes get
    /// of them. Measured if `None`.
    pub lease_units: Option<u64>,
}

/// As many nodes get a span after the first, one at a time. Then its last holder
/// brings it or is lost, and it is given in halves: so there is an end.
const SHARES_MAX: u32 = 2;

/// Of so many spans that one node has an idle one gets that which is expected last.
const COMPARED_MAX: usize = 32;

/// One of the nodes that have a span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub(crate) node: NodeId,
    pub(crate) lease: LeaseId,
}

/// What a lease of a node may have: so many bytes, for so many nodes that share it, which
/// have so many units of the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    pub(crate) nodes: u64,
    pub(crate) has: u64,
}

/// A span with one holder or two.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) span: Span,
    pub(crate) tries: Tries,
    pub(crate) holders: Vec<Holder>,
    /// Nodes that got it after the first.
    shares: u32,
}

#[derive(Debug)]
pub(crate) struct Job<R> {
    pub(crate) spec: JobSpec,
    pub(crate) tree: Tree,
    pub(crate) pool: Pool,
    /// By first unit.
    pub(crate) out: BTreeMap<u64, Out>,
    /// Of all of these.
    out_units: u64,
    /// Those of `out` with one holder that others may get, the oldest first.
    alone: BTreeSet<(LeaseId, u64)>,
    pub(crate) merges: Merges<R>,
    /// How long merges take, by those done.
    merge_seconds: f64,
    pub(crate) paces: BTreeMap<NodeId, Pace>,
    /// When a node was of use to it for the last time, as far as was looked; at
    /// first when it was submitted.
    pub(crate) deserted: Duration,
}

impl<R> Job<R> {
    /// `None` of too many units.
    pub(crate) fn new(spec: JobSpec, submitted: Duration) -> Option<Self> {
        let tree = Tree::new(spec.units)?;
        Some(Self {
            spec,
            tree,
            pool: Pool::new(tree),
            out: BTreeMap::new(),
            out_units: 0,
            alone: BTreeSet::new(),
            merges: Merges::new(spec.merging, tree),
            merge_seconds: 0.0,
            paces: BTreeMap::new(),
            deserted: submitted,
        })
    }

    /// Takes what a merge came to.
    pub(crate) fn merged(&mut self, span: Option<Span>, result: R, took: Duration) {
        self.merge_seconds = f64::midpoint(self.merge_seconds, took.as_secs_f64());
        self.merges.merged(span, result);
    }

    /// Whether nothing is left to be done.
    pub(crate) fn is_over(&self) -> bool {
        let idle = self.out.is_empty() && self.merges.running() == 0;
        idle && self.pool.spans() == 0 && self.merges.waiting() <= 1
    }

    /// Bytes of units that nodes have in hand.
    pub(crate) fn out_bytes(&self) -> u64 {
        self.out_units.saturating_mul(self.spec.unit_bytes)
    }

    /// Spans that are free or out: what the tree still has holes for.
    pub(crate) fn holes(&self) -> usize {
        self.pool.spans() + self.out.len()
    }

    /// Whether results are to be merged before more are made.
    fn is_crowded(&self, backlog_max: usize) -> bool {
        self.merges.running() > 0 && self.merges.waiting() > backlog_max
    }

    /// Whether a node could get anything.
    pub(crate) fn has_something(&self) -> bool {
        self.pool.spans() > 0 || !self.alone.is_empty()
    }

    /// Nodes whose pace is known, and their bytes per second together.
    fn known(&self) -> (usize, f64) {
        let rates = self.paces.values().filter_map(Pace::rate);
        rates.fold((0, 0.0), |(known, all), rate| (known + 1, all + rate))
    }

    /// Of a node, by those.
    pub(crate) fn rate(&self) -> Option<f64> {
        let (known, all) = self.known();
        (known > 0).then(|| all / known as f64)
    }

    /// How long the next lease of `node` is to be, as a power of two.
    fn level(&self, node: NodeId, nodes: usize, room: Room, config: &Config) -> u8 {
        let of_all = config.lease_bytes_max.saturating_mul(room.nodes);
        let lease_bytes_max = of_all.min(room.bytes);
        if let Some(units) = self.spec.lease_units {
            let units = units.saturating_mul(room.nodes);
            return level_of(units.min(lease_bytes_max / self.spec.unit_bytes.max(1)));
        }
        let (known, rate) = self.known();
        let shares = Shares {
            free: self.pool.units(),
            out: self.out_units,
            has: room.has,
            unit_bytes: self.spec.unit_bytes,
            lease_bytes_max,
            nodes,
            known,
            rate,
            factor: config.guided_factor,
            lease_cost: config.lease_cost,
            merge_seconds: self.merge_seconds,
        };
        match self.paces.get(&node) {
            Some(pace) => pace.level(&shares),
            None => Pace::default().level(&shares),
        }
    }

    /// Whether a buffer has room for a unit.
    pub(crate) fn fits(&self, buffer_bytes: u64) -> bool {
        self.spec.unit_bytes <= buffer_bytes
    }

    /// A free span for `holder`, which is out now, and whether it was given before.
    /// None while results are to be merged first, and none for who fails at all it gets
    /// while other `workers` do not that bring what they have in time: what hangs does not.
    pub(crate) fn take(
        &mut self,
        holder: Holder,
        room: Room,
        workers: impl Iterator<Item = (NodeId, bool)> + Clone,
        config: &Config,
    ) -> Option<(Span, bool)> {
        if self.pool.spans() == 0 || !self.fits(room.bytes) {
            return None;
        }
        let prompt = workers.clone().filter(|(_, is_prompt)| *is_prompt);
        let mut able = prompt.map(|(node, _)| node).filter(|node| !self.fails(*node)).peekable();
        let is_left_out = self.fails(holder.node) && able.peek().is_some();
        if is_left_out || self.is_crowded(config.backlog_max) {
            return None;
        }
        let able: Vec<_> = if self.pool.was_given() { able.collect() } else { Vec::new() };
        let level = self.level(holder.node, workers.count(), room, config);
        let (span, tries) = self.pool.take(level, |tries| {
            // On one where it did not fail, if there is such a one.
            let failed_on = &tries.failed_on;
            !failed_on.contains(&holder.node) || able.iter().all(|other| failed_on.contains(other))
        })?;
        let is_again = tries.is_some();
        let (tries, holders) = (tries.unwrap_or_default(), vec![holder]);
        self.out.insert(span.first, Out { span, tries, holders, shares: 0 });
        self.out_units += self.tree.units(span);
        self.alone.insert((holder.lease, span.first));
        Some((span, is_again))
    }

    /// Whether a node fails at all it gets.
    fn fails(&self, node: NodeId) -> bool {
        self.paces.get(&node).is_some_and(Pace::fails)
    }

    /// Spans that one node has each, the oldest first, which another may have, that has none and
    /// does not fail; no more of them than are looked at for each node that asks.
    pub(crate) fn oldest(
        &self,
        node: NodeId,
        buffer_bytes: u64,
        backlog_max: usize,
    ) -> impl Iterator<Item = (Holder, Span)> {
        let gets_none = self.fails(node) || self.is_crowded(backlog_max);
        let fits = move |units: u64| units.saturating_mul(self.spec.unit_bytes) <= buffer_bytes;
        let of_others =
            self.alone.iter().filter(move |_| !gets_none).filter_map(move |(_, first)| {
                let out = self.out.get(first)?;
                let failed = out.tries.failed_on.contains(&node);
                let may_have = !failed && fits(self.tree.units(out.span));
                out.holders.first().filter(|_| may_have).map(|holder| (*holder, out.span))
            });
        of_others.take(COMPARED_MAX)
    }

    /// Units of a span that is out.
    pub(crate) fn units_out(&self, first: u64) -> u64 {
        self.out.get(&first).map_or(0, |out| self.tree.units(out.span))
    }

    /// Gives a span that is out to a second node.
    pub(crate) fn share(&mut self, span: Span, second: Holder) {
        let Some(out) = self.out.get_mut(&span.first) else { return };
        for holder in &out.holders {
            self.alone.remove(&(holder.lease, span.first));
        }
        out.holders.push(second);
        out.shares += 1;
    }

    /// Units of the first half of a span, if it has two.
    pub(crate) fn half_units(&self, span: Span) -> Option<u64> {
        let (left, right) = self.tree.halves(span)?;
        right.map(|_| self.tree.units(left))
    }

    /// Whether a span is out that has so many units, or its first half has.
    pub(crate) fn has_out(&self, first: u64, units: u64) -> bool {
        let Some(out) = self.out.get(&first) else { return false };
        self.tree.units(out.span) == units || self.half_units(out.span) == Some(units)
    }

    /// If the first half of a span that is out has so many units, that is out with a `lease`
    /// alone, and the other half free. Who else had the span.
    pub(crate) fn shorten(
        &mut self,
        first: u64,
        units: u64,
        lease: LeaseId,
    ) -> Option<Vec<Holder>> {
        let span = self.out.get(&first)?.span;
        let (left, right) = self.tree.halves(span)?;
        let right = right.filter(|_| self.tree.units(left) == units)?;
        self.out_units -= self.tree.units(right);
        let out = self.out.get_mut(&first)?;
        out.span = left;
        let others = out.holders.extract_if(.., |holder| holder.lease != lease).collect();
        out.shares = 0;
        self.alone.insert((lease, first));
        self.pool.recall(right, out.tries.clone());
        Some(others)
    }

    /// A span that nobody began is free again.
    pub(crate) fn recall(&mut self, span: Span) {
        if let Some(Out { span, tries, .. }) = self.end(span.first) {
            self.pool.recall(span, tries);
        }
    }

    /// Ends the lease that brought the result of a span, and all others of it.
    pub(crate) fn end(&mut self, first: u64) -> Option<Out> {
        let out = self.remove(first)?;
        for holder in &out.holders {
            self.alone.remove(&(holder.lease, first));
        }
        Some(out)
    }

    /// Ends one lease that brought none. The span, if no other node has it.
    fn give_up(&mut self, first: u64, lease: LeaseId) -> Option<Out> {
        let out = self.out.get_mut(&first)?;
        out.holders.retain(|holder| holder.lease != lease);
        self.alone.remove(&(lease, first));
        match out.holders.first() {
            Some(other) => {
                if out.shares < SHARES_MAX {
                    self.alone.insert((other.lease, first));
                }
                None
            }
            None => self.remove(first),
        }
    }

    fn remove(&mut self, first: u64) -> Option<Out> {
        let out = self.out.remove(&first)?;
        self.out_units -= self.tree.units(out.span);
        Some(out)
    }

    /// The holder of a lease is lost: its units are free, in two halves. An
    /// error if they were lost too often.
    pub(crate) fn lost(
        &mut self,
        first: u64,
        lease: LeaseId,
        was_computed: bool,
        losses_max: u32,
    ) -> Option<JobError> {
        self.out.get_mut(&first)?.tries.lost += u32::from(was_computed);
        let Out { span, tries, .. } = self.give_up(first, lease)?;
        if tries.lost >= losses_max {
            let (units, losses) = (self.tree.units(span), tries.lost);
            return Some(JobError::Lost { first, units, losses });
        }
        self.pool.put_back(span, tries);
        None
    }

    /// A lease failed on `node`: the unit is tried elsewhere, and so are, apart
    /// from it, the others. An error if it was tried often enough.
    pub(crate) fn failed(
        &mut self,
        first: u64,
        lease: LeaseId,
        node: NodeId,
        failure: Failure,
        tries_max: usize,
    ) -> Option<JobError> {
        self.paces.entry(node).or_default().failed();
        let out = self.out.get_mut(&first)?;
        let (span, units) = (out.span, self.tree.units(out.span));
        let named = failure.unit.filter(|unit| (first..first + units).contains(unit));
        let unit = if units == 1 { Some(first) } else { named };
        let tries = out.tries.failed + 1;
        if let Some(unit) = unit.filter(|_| tries >= tries_max) {
            let Failure { offset, what, .. } = failure;
            return Some(JobError::Unit { unit, offset, what, tries });
        }
        // If another node has it too, that is the next try.
        if out.holders.len() > 1 || unit.is_none() || units == 1 {
            out.tries.avoid(node);
        }
        out.tries.failed += usize::from(units == 1);
        let Out { tries, .. } = self.give_up(first, lease)?;
        match unit.filter(|_| units > 1) {
            Some(unit) => self.pool.put_back_failed(span, unit, tries, node),
            None => self.pool.put_back(span, tries),
        }
        None
    }
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which one.
    pub job: JobId,
    /// Units that nobody has.
    pub units_free: u64,
    /// Spans that are free or out.
    pub holes: usize,
    /// Levels of the tree over the units.
    pub levels: u8,
    /// Results that wait to be merged, besides two for each merge under way.
    pub results_waiting: usize,
}
