//! The manager: who is a member, who has which lease, and what came of it.

mod job;
mod members;
mod merges;
mod pace;
mod pool;
mod settings;
mod sharing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use job::Job;
pub use job::{JobSpec, Progress};
use members::{Held, Member};
pub use merges::Merging;
use pace::Pace;
pub use settings::{Config, Counters, JobError, Loss};

use crate::tree::Span;
use crate::{Epoch, Failure, JobId, Lease, LeaseId, NodeId, Refusal, ToManager, ToNode};
use job::Holder;

/// A merge under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MergeId(pub u64);

#[derive(Clone, Copy, Debug)]
struct Merge {
    job: JobId,
    span: Option<Span>,
    since: Duration,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event<R> {
    /// A node said something. Messages of one node are told in the order it sent
    /// them; all that came before a tick are told before it.
    From(NodeId, ToManager<R>),
    /// A node that said hello would compute something else: why it is not to join.
    Refuse(NodeId, String),
    /// The transport knows that a node is gone.
    Lost(NodeId),
    /// What a merge came to.
    Merged(MergeId, Result<R, String>),
    /// The time asked for by [`Action::SetTimer`] is there; any other does no harm.
    Tick,
    /// A job with a number that was not used before.
    Submit(JobId, JobSpec),
    /// Units that a manager before had the result of: see [`Manager::counts`]. They
    /// come after their job, before its nodes.
    Recorded {
        /// Which one.
        job: JobId,
        /// Of a lease, or of leases that were merged.
        units: Vec<Range<u64>>,
        /// The one result of all of these.
        result: R,
    },
    /// A job is not wanted any more.
    Abort(JobId),
    /// No node will come that is not here.
    Deserted,
    /// That node is to leave when it has done what it has; one that is no member, or joins
    /// again, when it joins.
    Leave(NodeId),
    /// No jobs will come: those there are are ended, then all nodes are dismissed.
    Drain,
}

/// What is to be done, in this order.
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each action says what its fields are")]
pub enum Action<R> {
    /// Send this. [`ToNode::Fenced`] may also cut the connection.
    Tell(NodeId, ToNode),
    /// Merge `from` into `into`, whose units come before, if any order will not do; then [`Event::Merged`].
    Merge { id: MergeId, job: JobId, into: R, from: R },
    /// Nobody wants that result.
    Drop(R),
    /// The job's result; none of a job without units, or without results.
    Finished { job: JobId, result: Option<R> },
    /// The job ended without; of [`JobError::Number`] it was none.
    Failed { job: JobId, error: JobError },
    /// Send [`Event::Tick`] at that time; an earlier wish counts no more.
    SetTimer(Duration),
}

/// Gives the units of jobs to nodes that ask for work, as they ask, and puts
/// results together; `R` is the result of a lease, of which it knows nothing.
///
/// Results it holds of a job with holes (spans free or out) in a tree of some
/// levels: at most `max(backlog_max, holes_max * levels)` and one for each lease
/// out. Each result that waits has a hole under its sibling, and a hole is under
/// one sibling per level; while merges lag behind no lease is given.
#[derive(Debug)]
pub struct Manager<R> {
    config: Config,
    now: Duration,
    members: BTreeMap<NodeId, Member>,
    /// Nodes that are to leave, members or not.
    leaves: BTreeSet<NodeId>,
    /// Members that asked for more than they got, first come, first served.
    waiting: VecDeque<(NodeId, Epoch)>,
    jobs: BTreeMap<JobId, Job<R>>,
    merging: BTreeMap<MergeId, Merge>,
    /// The number of the last epoch, lease or merge.
    serial: u64,
    draining: bool,
    /// Of the next job.
    paces: BTreeMap<NodeId, Pace>,
    timer: Option<Duration>,
    /// Why a node could not do what it was given: the last one.
    unfit: Option<String>,
    counters: Counters,
}

impl<R> Manager<R> {
    /// No nodes, no jobs.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            serial: config.serial,
            config,
            now: Duration::ZERO,
            members: BTreeMap::new(),
            leaves: BTreeSet::new(),
            waiting: VecDeque::new(),
            jobs: BTreeMap::new(),
            merging: BTreeMap::new(),
            draining: false,
            paces: BTreeMap::new(),
            timer: None,
            unfit: None,
            counters: Counters::default(),
        }
    }

    /// Takes what happened at `now`, counted from any fixed start, and appends what is to be done.
    pub fn on(&mut self, now: Duration, event: Event<R>, actions: &mut Vec<Action<R>>) {
        self.now = now.max(self.now);
        match event {
            Event::From(node, message) => self.heard(node, message, actions),
            Event::Refuse(node, why) => {
                let before = self.members.remove(&node);
                self.turn_away(node, Refusal::Task { why }, before, actions);
            }
            Event::Lost(node) => self.lose(node, actions),
            Event::Merged(id, result) => self.merged(id, result, actions),
            Event::Tick => self.expire(actions),
            Event::Submit(job, spec) => self.submit(job, spec, actions),
            Event::Recorded { job, units, result } => self.recorded(job, &units, result, actions),
            Event::Abort(job) => self.fail(job, JobError::Aborted, actions),
            Event::Deserted => self.deserted(actions),
            Event::Leave(node) => {
                self.leaves.insert(node);
                if let Some(member) = self.members.get_mut(&node) {
                    member.leaving = true;
                    self.settle(node, actions);
                }
            }
            Event::Drain => self.draining = true,
        }
        self.serve(actions);
        self.dismiss_all(actions);
    }

    /// Whether all jobs are over, none will come, and all nodes were dismissed.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.draining && self.jobs.is_empty() && self.members.is_empty()
    }

    /// Whether a node works here or would.
    #[must_use]
    pub fn has_workers(&self) -> bool {
        let (now, deadline) = (self.now, self.config.deadline);
        self.members.values().any(|member| member.works(now, deadline))
    }

    /// The job of a lease that counts.
    #[must_use]
    pub fn job_of(&self, node: NodeId, lease: LeaseId) -> Option<JobId> {
        Some(self.members.get(&node)?.leases.get(&lease)?.job)
    }

    /// The units of a lease whose result would count if it came now. A driver that
    /// keeps these with their results, before it tells of them, can go on after its
    /// process was killed: a new manager, with a greater [`Config::serial`], is told of
    /// the jobs, then of what was [recorded](Event::Recorded). A tree needs that at the
    /// root alone, whose leases were merged below.
    #[must_use]
    pub fn counts(
        &self,
        node: NodeId,
        (epoch, lease, units): (Epoch, LeaseId, u64),
    ) -> Option<Lease> {
        let member = self.members.get(&node).filter(|member| member.epoch == epoch)?;
        let Held { job: id, first, .. } = *member.leases.get(&lease)?;
        let job = self.jobs.get(&id)?;
        job.has_out(first, units).then_some(Lease { id: lease, job: id, first, units })
    }

    /// The results that wait, of jobs that are not over. Those of merges under way are
    /// not here, and of a job whose results are empty there are none.
    pub fn results(&self) -> impl Iterator<Item = (JobId, &R)> {
        self.jobs.iter().flat_map(|(id, job)| job.merges.results().map(|result| (*id, result)))
    }

    /// Whether a node is a member.
    #[must_use]
    pub fn has_member(&self, node: NodeId) -> bool {
        self.members.contains_key(&node)
    }

    /// What happened so far, for statistics.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The jobs that are not over.
    pub fn progress(&self) -> impl Iterator<Item = Progress> {
        self.jobs.iter().map(|(id, job)| Progress {
            job: *id,
            units_free: job.pool.units(),
            holes: job.holes(),
            levels: job.tree.levels(),
            results_waiting: job.merges.waiting(),
        })
    }

    /// The next job is of the kind of `job`: nodes are as fast at it.
    pub(crate) fn next_is_like(&mut self, job: JobId) {
        self.paces = self.jobs.get(&job).map(|job| job.paces.clone()).unwrap_or_default();
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn heard(&mut self, node: NodeId, message: ToManager<R>, actions: &mut Vec<Action<R>>) {
        match message {
            ToManager::Hello(hello) => self.join(node, &hello, actions),
            ToManager::Ask { epoch, in_all } => {
                let (now, deadline) = (self.now, self.config.deadline);
                if let Some(member) = self.member(node, epoch, actions) {
                    if member.waits_in_vain(in_all, now, deadline) {
                        return self.lose(node, actions);
                    }
                    member.ask(in_all);
                    self.settle(node, actions);
                }
            }
            ToManager::Result { epoch, lease, units, result } => {
                self.returned((node, epoch, lease), (units, result), actions);
            }
            ToManager::Failed { epoch, lease, failure } => {
                self.failed((node, epoch, lease), failure, actions);
            }
            ToManager::Shortened { epoch, lease, units, is_shorter } => {
                if self.member(node, epoch, actions).is_some() {
                    self.shortened((node, lease), (units, is_shorter), actions);
                }
            }
            ToManager::Alive { epoch } => {
                if self.member(node, epoch, actions).is_some() {
                    actions.push(Action::Tell(node, ToNode::Alive { epoch }));
                }
            }
            ToManager::Unfit { epoch, why } => {
                if self.member(node, epoch, actions).is_some() {
                    self.refuse(node, why, actions);
                }
            }
            ToManager::Leaving { epoch } => {
                if let Some(member) = self.member(node, epoch, actions) {
                    member.leaving = true;
                    self.settle(node, actions);
                }
            }
        }
    }

    fn submit(&mut self, id: JobId, spec: JobSpec, actions: &mut Vec<Action<R>>) {
        let job = match Job::new(spec, self.now) {
            _ if self.jobs.contains_key(&id) => Err(JobError::Number { job: id }),
            _ if self.draining => Err(JobError::Draining),
            _ if self.jobs.len() >= self.config.jobs_max => {
                Err(JobError::Full { jobs_max: self.config.jobs_max })
            }
            None => Err(JobError::Units { units: spec.units }),
            Some(job) => Ok(job),
        };
        let paces = std::mem::take(&mut self.paces);
        match job {
            Ok(mut job) => {
                job.paces = paces;
                self.jobs.insert(id, job);
                self.wake_after(self.config.join_wait, actions);
                self.advance(id, actions);
            }
            Err(error) => actions.push(Action::Failed { job: id, error }),
        }
    }

    /// A lease's result: the first of its span counts.
    fn returned(
        &mut self,
        (node, epoch, lease): (NodeId, Epoch, LeaseId),
        (units, result): (u64, R),
        actions: &mut Vec<Action<R>>,
    ) {
        let now = self.now;
        let member = self.member(node, epoch, actions);
        let Some((held, since)) = member.and_then(|member| member.ends(lease, now)) else {
            self.counters.results_dropped += 1;
            return actions.push(Action::Drop(result));
        };
        let Held { job: id, first, .. } = held;
        self.settle(node, actions);
        let Some(job) = self.jobs.get_mut(&id) else { return actions.push(Action::Drop(result)) };
        if job.units_out(first) != units && !self.shorten((id, first), (lease, units), actions) {
            // Of units that it was never given.
            self.counters.results_dropped += 1;
            let losses_max = self.config.losses_max;
            let lost =
                self.jobs.get_mut(&id).and_then(|job| job.lost(first, lease, true, losses_max));
            if let Some(error) = lost {
                self.fail(id, error, actions);
            }
            return actions.push(Action::Drop(result));
        }
        let Some(job) = self.jobs.get_mut(&id) else { return actions.push(Action::Drop(result)) };
        let Some(out) = job.end(first) else { return actions.push(Action::Drop(result)) };
        let bytes = job.tree.units(out.span).saturating_mul(job.spec.unit_bytes);
        let took = now.saturating_sub(since);
        // Not of one that left by this.
        if self.members.contains_key(&node) {
            job.paces.entry(node).or_default().measured(out.span.level, bytes, took);
        }
        actions.extend(job.merges.add(out.span, result).map(Action::Drop));
        self.counters.results += 1;
        for holder in out.holders.iter().filter(|holder| holder.lease != lease) {
            self.withdraw(holder, actions);
        }
        self.advance(id, actions);
    }

    /// A result that is there already; dropped if its units were given, or are none that
    /// the job would merge.
    fn recorded(
        &mut self,
        id: JobId,
        units: &[Range<u64>],
        result: R,
        actions: &mut Vec<Action<R>>,
    ) {
        let job = self.jobs.get_mut(&id);
        let taken = job.and_then(|job| {
            let mut spans = Vec::new();
            for units in units {
                spans.extend(job.tree.cover(units)?);
            }
            let span = *spans.first()?;
            let is_span = job.spec.merging != Merging::AlongTree || spans.len() == 1;
            (is_span && job.pool.take_done(&spans)).then_some((job, span))
        });
        let Some((job, span)) = taken else { return actions.push(Action::Drop(result)) };
        actions.extend(job.merges.add(span, result).map(Action::Drop));
        self.advance(id, actions);
    }

    fn failed(
        &mut self,
        (node, epoch, lease): (NodeId, Epoch, LeaseId),
        failure: Failure,
        actions: &mut Vec<Action<R>>,
    ) {
        let now = self.now;
        let member = self.member(node, epoch, actions);
        let Some((held, _)) = member.and_then(|member| member.ends(lease, now)) else {
            self.counters.results_dropped += 1;
            return;
        };
        self.settle(node, actions);
        self.counters.failures += 1;
        let Some(job) = self.jobs.get_mut(&held.job) else { return };
        let tries_max = self.config.tries_max;
        let failed = job.failed(held.first, lease, node, failure, tries_max);
        if !self.members.contains_key(&node) {
            job.paces.remove(&node);
        }
        if let Some(error) = failed {
            self.fail(held.job, error, actions);
        }
    }

    fn merged(&mut self, id: MergeId, result: Result<R, String>, actions: &mut Vec<Action<R>>) {
        let Some(Merge { job: id, span, since }) = self.merging.remove(&id) else {
            return actions.extend(result.ok().map(Action::Drop));
        };
        match (self.jobs.get_mut(&id), result) {
            (Some(job), Ok(result)) => {
                job.merged(span, result, self.now.saturating_sub(since));
                self.advance(id, actions);
            }
            (_, Ok(result)) => actions.push(Action::Drop(result)),
            (_, Err(what)) => self.fail(id, JobError::Merge { what }, actions),
        }
    }

    /// Starts the merges that can be, and ends the job if it is over.
    fn advance(&mut self, id: JobId, actions: &mut Vec<Action<R>>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        while let Some(pair) = job.merges.start(self.config.merges_max) {
            self.serial += 1;
            let merge = MergeId(self.serial);
            let since = self.now;
            self.merging.insert(merge, Merge { job: id, span: pair.span, since });
            actions.push(Action::Merge { id: merge, job: id, into: pair.into, from: pair.from });
        }
        if job.is_over()
            && let Some(job) = self.jobs.remove(&id)
        {
            let result = job.merges.into_results().next();
            actions.push(Action::Finished { job: id, result });
        }
    }

    /// Ends a job without a result.
    fn fail(&mut self, id: JobId, error: JobError, actions: &mut Vec<Action<R>>) {
        let Some(job) = self.jobs.remove(&id) else { return };
        self.merging.retain(|_, merge| merge.job != id);
        for holder in job.out.values().flat_map(|out| &out.holders) {
            self.withdraw(holder, actions);
        }
        actions.extend(job.merges.into_results().map(Action::Drop));
        actions.push(Action::Failed { job: id, error });
    }

    /// Takes a lease off a member that goes on.
    pub(crate) fn withdraw(&mut self, holder: &Holder, actions: &mut Vec<Action<R>>) {
        let (node, lease) = (holder.node, holder.lease);
        let Some(member) = self.members.get_mut(&node) else { return };
        if member.loses(lease, self.now) {
            let epoch = member.epoch;
            self.counters.withdrawn += 1;
            actions.push(Action::Tell(node, ToNode::Withdraw { epoch, lease }));
            self.settle(node, actions);
        }
    }

    /// Gives out what there is to those that wait.
    fn serve(&mut self, actions: &mut Vec<Action<R>>) {
        let mut untried = self.waiting.len();
        while untried > 0 && self.jobs.values().any(Job::has_something) {
            untried -= 1;
            let Some((node, epoch)) = self.waiting.pop_front() else { return };
            let Some(member) = self.members.get_mut(&node).filter(|of| of.epoch == epoch) else {
                continue;
            };
            if member.wants() == 0 {
                member.queued = false;
                continue;
            }
            self.waiting.push_back((node, epoch));
            if let Some(lease) = self.choose(node, actions) {
                actions.push(Action::Tell(node, ToNode::Lease { epoch, lease }));
                self.wake_after(self.config.lease_max, actions);
                untried = self.waiting.len();
            }
        }
    }
}

#[cfg(test)]
mod tests;
