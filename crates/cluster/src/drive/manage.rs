//! The manager of all: it sends what was decided, and knows what came of the jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::thread::Scope;
use std::time::Duration;

use serde_bytes::ByteBuf;

use stream::Piece;

use super::fetch::LOCATORS;
use super::group::Group;
use super::jobs::Jobs;
use super::keep::{Keep, Step, Units};
use super::layout::Layout;
use super::merging::{Held, Merges, Pair};
use super::queue::{Order, Queue};
use super::ship::{Asked, Shipper};
use super::{Bring, ClusterError, Config, MANAGER, Report, Ship, caught};
use crate::manager::{Action, Event, MergeId, Merging};
use crate::task::{Description, Task};
use crate::wire::Message;
use crate::{Counters, Epoch, JobError, JobId, Lease, LeaseId, Manager, NodeId, ToManager, ToNode};

pub(super) struct Manage<'env> {
    manager: Manager<Held>,
    on_loss: Option<fn(Counters)>,
    /// What gives jobs; else there is one for each task.
    queue: Option<Arc<Queue<'env>>>,
    jobs: Jobs<'env>,
    actions: Vec<Action<Held>>,
    merges: Merges<'env>,
    /// Those that wait for a record.
    held_back: Vec<Pair>,
    keep: Option<Keep>,
    /// Whether all jobs are there, and no end was told of yet.
    is_submitted: bool,
    /// Why this cannot go on.
    failure: Option<String>,
    /// Why a record was passed over, the first time.
    unrecorded: Option<String>,
    shipper: Shipper,
    /// Whether nodes may ask it for something.
    ships: bool,
    timer: Option<Duration>,
    results: BTreeMap<JobId, Result<Option<Held>, JobError>>,
    layout: Layout,
    /// Whether its own node does.
    computes: bool,
    group: Group,
    /// Peers that are gone.
    lost: BTreeSet<NodeId>,
}

impl<'env> Manage<'env> {
    pub(super) fn new<'scope>(
        (tasks, queue): (&'env [&'env dyn Task], Option<Arc<Queue<'env>>>),
        config: &Config,
        layout: Layout,
        bring: &Bring,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Self {
        let jobs = queue.as_ref().map_or_else(|| Jobs::new(tasks), |queue| queue.jobs());
        queue.iter().for_each(|queue| queue.attach(bring.clone()));
        Self {
            manager: Manager::new(config.manager.clone()),
            on_loss: config.on_loss,
            queue,
            jobs: jobs.clone(),
            actions: Vec::new(),
            merges: Merges::new(jobs.clone(), bring.clone(), scope),
            held_back: Vec::new(),
            keep: None,
            is_submitted: false,
            failure: None,
            unrecorded: None,
            shipper: Shipper::new(jobs, bring.clone(), scope),
            ships: config.ship != Ship::Locators,
            timer: None,
            results: BTreeMap::new(),
            layout,
            computes: config.manager_computes,
            group: Group::new(layout.below(MANAGER)),
            lost: BTreeSet::new(),
        }
    }

    /// Goes on from what was recorded, if that is kept.
    pub(super) fn start(
        &mut self,
        now: Duration,
        kept: Option<(Keep, Vec<Piece>)>,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let (keep, done) = kept.unzip();
        self.keep = keep;
        let tasks = if self.queue.is_none() { self.jobs.tasks() } else { &[] };
        for (task, number) in tasks.iter().zip(0..) {
            let job = JobId(number.into());
            // Its own parameters it takes.
            let _ = self.jobs.open(job, number, &task.description().parameters);
            self.on(now, Event::Submit(job, task.spec()), out);
        }
        for Piece { job, units, part } in done.into_iter().flatten() {
            let job = JobId(job);
            units.iter().for_each(|units| self.count(job, units.clone()));
            let held = self.held(job, units.iter().cloned().collect(), ByteBuf::from(part));
            self.on(now, Event::Recorded { job, units, result: held }, out);
        }
        self.is_submitted = self.queue.is_none();
        self.go_on(now, out);
    }

    /// Does what who leads wants.
    pub(super) fn ordered(
        &mut self,
        now: Duration,
        order: &Order,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        match *order {
            Order::Submit(job) => {
                if let Some(task) = self.jobs.get(job) {
                    self.on(now, Event::Submit(job, task.spec()), out);
                }
                self.fail_if_deserted(now, out);
            }
            Order::Abort(job) => self.on(now, Event::Abort(job), out),
            Order::Leave(node) => {
                self.computes &= node != MANAGER;
                if self.layout.has(node) {
                    self.on(now, Event::Leave(node), out);
                }
                self.fail_if_deserted(now, out);
            }
            Order::Close => {
                self.is_submitted = true;
                self.go_on(now, out);
            }
        }
    }

    /// The result of units, which are to be recorded.
    fn held(&mut self, job: JobId, units: Units, saved: ByteBuf) -> Held {
        let task = self.jobs.get(job);
        let is_empty = task.is_some_and(|task| task.spec().merging == Merging::Nothing);
        if let Some(keep) = self.keep.as_mut().filter(|_| is_empty) {
            keep.done(job, units.clone());
        }
        Held::new(saved, units)
    }

    /// One that comes from a node.
    fn returned(&mut self, node: NodeId, of: (Epoch, LeaseId, u64), saved: ByteBuf) -> Held {
        let counts = self.manager.counts(node, of);
        if let Some(Lease { job, first, units, .. }) = counts {
            let units = first..first + units;
            self.count(job, units.clone());
            if let Some(keep) = &mut self.keep {
                keep.returned(node);
                return self.held(job, std::iter::once(units).collect(), saved);
            }
        }
        Held::new(saved, Units::default())
    }

    /// Tells that these units are done: once, whoever computed them and how often.
    fn count(&self, job: JobId, units: Range<u64>) {
        if let Some(task) = self.jobs.get(job) {
            task.done(units);
        }
    }

    /// A node has brought what it put to the disk.
    pub(super) fn settled(
        &mut self,
        now: Duration,
        node: NodeId,
        (number, failed): (u64, Option<String>),
        out: &mut Vec<(NodeId, Message)>,
    ) {
        if let Some(keep) = self.keep.as_mut().filter(|keep| keep.awaits(node, number)) {
            match failed {
                Some(why) => self.failure = Some(format!("node {}: {why}", node.0)),
                None => keep.settled(node),
            }
        }
        self.go_on(now, out);
    }

    /// A record is on the disk; the next is due in so long.
    pub(super) fn recorded(
        &mut self,
        now: Duration,
        recorded: Result<Duration, String>,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let Some(keep) = &mut self.keep else { return };
        match recorded {
            Err(why) => self.failure = Some(why),
            Ok(after) => keep.recorded(now.saturating_add(after)),
        }
        self.go_on(now, out);
    }

    /// Why this manager cannot go on.
    pub(super) fn failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Records what is due to be recorded; lets nodes go if no record is to come after them.
    fn go_on(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        let is_last = self.keep.as_ref().is_none_or(Keep::lets_nodes_go);
        if is_last && std::mem::take(&mut self.is_submitted) {
            self.on(now, Event::Drain, out);
        }
        let Some(keep) = &mut self.keep else { return };
        if !keep.holds_back() {
            // After a record, or where none is to come any more.
            self.held_back.drain(..).for_each(|pair| self.merges.merge(pair));
        }
        let manager = &self.manager;
        match keep.next(now, self.merges.running(), |node| manager.has_member(node)) {
            Step::None => {}
            Step::Late(nodes, waited) => self.failure = Some(unsettled(&nodes, waited)),
            Step::Ask(nodes, number) => {
                out.extend(nodes.into_iter().map(|node| (node, Message::Settle(number))));
            }
            Step::Snapshot => {
                let pieces = self.pieces();
                match (pieces, &mut self.keep) {
                    (Ok(pieces), Some(keep)) => keep.snapshot(pieces),
                    (Err(why), Some(keep)) => {
                        // What was recorded before still counts.
                        if keep.pass_over(now) {
                            self.unrecorded.get_or_insert(why);
                        } else {
                            self.failure = Some(why);
                            keep.give_up();
                        }
                    }
                    (_, None) => {}
                }
                self.go_on(now, out);
            }
        }
    }

    /// All results that there are.
    fn pieces(&self) -> Result<Vec<Piece>, String> {
        let held = self.held_back.iter();
        let held = held.flat_map(|pair| [&pair.into, &pair.from].map(|of| (pair.job, of)));
        let over = self
            .results
            .iter()
            .filter_map(|(job, result)| Some((*job, result.as_ref().ok()?.as_ref()?)));
        let all = self.manager.results().chain(held).chain(over);
        all.map(|(job, held)| {
            let task = self.jobs.get(job).ok_or("there is no such job")?;
            held.piece(job, &*task)
        })
        .collect()
    }

    fn merge(&mut self, pair: Pair) {
        if self.keep.as_ref().is_some_and(Keep::holds_back) {
            return self.held_back.push(pair);
        }
        self.merges.merge(pair);
    }

    pub(super) fn heard(
        &mut self,
        now: Duration,
        node: NodeId,
        message: ToManager<ByteBuf>,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        match &message {
            ToManager::Unfit { why, .. } => self.group.unfit(node, why.clone()),
            ToManager::Hello(hello) if let Some(why) = self.jobs.unlike(&hello.tasks) => {
                self.on(now, Event::Refuse(node, why), out);
                return self.fail_if_deserted(now, out);
            }
            ToManager::Hello(_) => {
                self.keep.iter_mut().for_each(|keep| keep.joined(node));
            }
            _ => {}
        }
        let message = message.map(|of, saved| self.returned(node, of, saved));
        self.on(now, Event::From(node, message), out);
        self.fail_if_deserted(now, out);
    }

    /// No job waits for nodes of which none is left.
    fn fail_if_deserted(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        if !self.computes && self.group.is_empty() {
            self.on(now, Event::Deserted, out);
        }
    }

    /// A node asks for bytes, its own or one of another manager.
    pub(super) fn fetch(&mut self, mut asked: Asked) {
        asked.job = asked.job.filter(|job| !self.results.contains_key(job));
        self.shipper.ask(asked);
    }

    /// They were read.
    pub(super) fn read(&mut self, node: NodeId) {
        self.shipper.answered(node);
    }

    /// Nothing of `node` that is under way counts any more; whether it is a member.
    pub(super) fn fence(
        &mut self,
        now: Duration,
        node: NodeId,
        out: &mut Vec<(NodeId, Message)>,
    ) -> bool {
        let is_member = self.manager.has_member(node);
        self.on(now, Event::Lost(node), out);
        is_member
    }

    /// A peer is gone; those of which it was the manager will come.
    pub(super) fn lost(
        &mut self,
        now: Duration,
        node: NodeId,
        orphans: impl Iterator<Item = NodeId>,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        self.lost.insert(node);
        self.group.leaves(node);
        self.expect(orphans);
        self.keep.iter_mut().for_each(|keep| keep.gone(node));
        self.on(now, Event::Lost(node), out);
        self.fail_if_deserted(now, out);
    }

    /// Nodes of another manager will come, which is lost or unfit.
    pub(super) fn expect(&mut self, orphans: impl Iterator<Item = NodeId>) {
        // At the end they were told before it went, or may go too.
        if self.manager.is_drained() {
            return;
        }
        for node in orphans {
            self.group.expect(std::iter::once(node));
            self.keep.iter_mut().for_each(|keep| keep.joined(node));
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
        self.on(now, Event::Merged(merge, result), out);
    }

    pub(super) fn tick(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        if self.timer.take_if(|due| *due <= now).is_some() {
            self.on(now, Event::Tick, out);
        }
        self.go_on(now, out);
    }

    /// When there is something to be done though nothing happens.
    pub(super) fn due(&mut self, now: Duration, linger: Duration) -> Option<Duration> {
        if self.manager.is_drained() {
            self.group.ends(now, linger);
        }
        let of_record = self.keep.as_ref().and_then(Keep::due);
        [self.timer, self.group.due(), of_record].into_iter().flatten().min()
    }

    /// Whether all is done, and everybody knows.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.manager.is_drained() && self.group.is_over(now)
    }

    /// Why nodes were done without.
    pub(super) fn refused(&self) -> Vec<String> {
        self.group.refused().collect()
    }

    pub(super) fn end(mut self) -> Result<Report, ClusterError> {
        let mut results = Vec::new();
        let tasks = if self.queue.is_none() { self.jobs.tasks() } else { &[] };
        for (task, number) in tasks.iter().zip(0..) {
            let lacks = || ClusterError::Result("a job has no end; this is a bug".to_owned());
            let result = self.results.remove(&JobId(number)).ok_or_else(lacks)?;
            results.push(match result {
                Ok(held) => {
                    let load = |held: Held| caught("a kernel", || held.load(*task));
                    held.map(load).transpose().map_err(|what| JobError::Result { what })
                }
                Err(error) => Err(error),
            });
        }
        let (counters, unrecorded) = (self.manager.counters(), self.unrecorded.take());
        Ok(Report { results, counters, unrecorded })
    }

    fn on(&mut self, now: Duration, event: Event<Held>, out: &mut Vec<(NodeId, Message)>) {
        let mut actions = std::mem::take(&mut self.actions);
        let lost = self.manager.counters().lost;
        self.manager.on(now, event, &mut actions);
        let counters = self.manager.counters();
        if let Some(on_loss) = self.on_loss.filter(|_| counters.lost > lost) {
            on_loss(counters);
        }
        for action in actions.drain(..) {
            self.carry_out(action, out);
        }
        self.actions = actions;
        self.go_on(now, out);
    }

    fn carry_out(&mut self, action: Action<Held>, out: &mut Vec<(NodeId, Message)>) {
        match action {
            Action::Tell(node, message) => {
                if matches!(message, ToNode::Refused(_)) {
                    // Those of its group come instead, also where all is done.
                    let below = self.layout.below(node);
                    self.group.expect(below.filter(|node| !self.lost.contains(node)));
                }
                let task_of = |job| {
                    let task = self.jobs.get(job)?;
                    let mut description = task.description().clone();
                    if !self.ships {
                        // How long each of many inputs is nobody needs to hear.
                        description.shipped = Err(LOCATORS.to_owned());
                    }
                    Some((self.jobs.number(job)?, description))
                };
                self.group.tell(node, message, task_of, out);
            }
            Action::Merge { id, job, into, from } => {
                self.merge(Pair { id, job, into, from });
            }
            Action::Drop(_) => {}
            Action::Finished { job, result } => self.ended(job, Ok(result)),
            Action::Failed { job, error } => {
                let task = self.jobs.get(job);
                let error = match task {
                    Some(task) => located(error, &*task),
                    None => error,
                };
                self.ended(job, Err(error));
            }
            Action::SetTimer(at) => self.timer = Some(at),
        }
    }

    fn ended(&mut self, job: JobId, result: Result<Option<Held>, JobError>) {
        if let Some(queue) = &self.queue {
            return queue.ended(job, result);
        }
        self.results.insert(job, result);
        let Some(keep) = &mut self.keep else { return };
        if self.results.values().any(Result::is_err) {
            keep.give_up();
        } else if self.results.len() == self.jobs.tasks().len() {
            keep.all_done();
        }
    }
}

impl Drop for Manage<'_> {
    /// Nobody waits for a job of a manager that has ended, also by a panic.
    fn drop(&mut self) {
        self.queue.iter().for_each(|queue| queue.over());
    }
}

/// With where the unit begins that failed, if nothing was said of the place.
fn located(error: JobError, task: &dyn Task) -> JobError {
    let Description { body, unit_bytes, list, .. } = task.description();
    match error {
        // What was said names one of them.
        JobError::Unit { unit, offset, what, tries } if list.is_some() => {
            let what = task.named(unit, what);
            JobError::Unit { unit, offset, what, tries }
        }
        JobError::Unit { unit, offset: None, what, tries } => {
            let offset = Some(body.0.saturating_add(unit.saturating_mul(*unit_bytes)));
            JobError::Unit { unit, offset, what, tries }
        }
        error => error,
    }
}

/// Why no record can be made, and so no end.
fn unsettled(nodes: &[NodeId], waited: Duration) -> String {
    let names: Vec<_> = nodes.iter().map(|node| node.0.to_string()).collect();
    format!(
        "what node {} put was not brought to the disk in {} s, by it or its group: see whether \
         the disk or the network there hangs; what was recorded before still counts",
        names.join(", "),
        waited.as_secs()
    )
}

#[cfg(test)]
mod tests;
