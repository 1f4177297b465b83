//! The manager of a peer: it sends what was decided, and merges, on a thread of its
//! own what takes long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Sender};
use std::thread::Scope;
use std::time::{Duration, Instant};

use serde_bytes::ByteBuf;

use stream::Piece;

use super::keep::{Keep, Step, Units};
use super::ship::Shipper;
use super::{Bring, Brought, ClusterError, MANAGER, OWN_MAX, Report, caught};
use crate::manager::{Action, Config, Event, MergeId, Merging};
use crate::task::{Part, Task};
use crate::wire::Message;
use crate::{Epoch, JobError, JobId, Lease, LeaseId, Manager, NodeId, ToManager, ToNode};

/// The result of a lease.
#[derive(Debug)]
pub(super) struct Held {
    what: What,
    /// Of these, where that is kept.
    units: Units,
}

#[derive(Debug)]
enum What {
    /// As it came.
    Saved(ByteBuf),
    /// As it was merged.
    Part(Part),
}

impl Held {
    fn load(self, task: &dyn Task) -> Result<Part, String> {
        match self.what {
            What::Saved(saved) => task.load(&saved),
            What::Part(part) => Ok(part),
        }
    }

    fn merge(mut self, mut from: Self, task: &dyn Task) -> Result<Self, String> {
        let mut units = std::mem::take(&mut self.units);
        units.add_all(std::mem::take(&mut from.units));
        let part = task.merge(self.load(task)?, from.load(task)?)?;
        Ok(Self { what: What::Part(part), units })
    }

    fn piece(&self, job: JobId, task: &dyn Task) -> Result<Piece, String> {
        let part = match &self.what {
            What::Saved(saved) => saved.to_vec(),
            What::Part(part) => task.save(part)?,
        };
        Ok(Piece { job: job.0, units: self.units.ranges().to_vec(), part })
    }
}

/// Two results to be merged.
struct Pair {
    id: MergeId,
    job: usize,
    into: Held,
    from: Held,
}

impl Pair {
    fn merged(self, tasks: &[&dyn Task]) -> Brought {
        let Self { id, job, into, from } = self;
        let began = Instant::now();
        let merged = caught("a merge", || {
            let task = tasks.get(job).ok_or("there is no such job")?;
            into.merge(from, *task)
        });
        Brought::Merged(id, merged, began.elapsed())
    }
}

pub(super) struct Manage<'env> {
    manager: Manager<Held>,
    tasks: &'env [&'env dyn Task],
    actions: Vec<Action<Held>>,
    merges: Sender<Pair>,
    /// Merges under way, and those that wait for a record.
    merging: usize,
    held_back: Vec<Pair>,
    keep: Option<Keep>,
    /// Whether all jobs are there, and no end was told of yet.
    is_submitted: bool,
    /// Why this cannot go on.
    failure: Option<String>,
    shipper: Shipper,
    /// How long the last merge took.
    merge_took: Duration,
    bring: Bring,
    timer: Option<Duration>,
    results: BTreeMap<JobId, Result<Option<Held>, JobError>>,
    /// Which jobs a node knows.
    told: BTreeSet<(NodeId, JobId)>,
    /// Peers that were not told yet that all is done.
    expected: BTreeSet<NodeId>,
    /// When to wait for them no more.
    ends: Option<Duration>,
}

impl<'env> Manage<'env> {
    pub(super) fn new<'scope>(
        tasks: &'env [&'env dyn Task],
        config: Config,
        peers: u32,
        bring: Bring,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Self {
        let shipper = Shipper::new(tasks, bring.clone(), scope);
        let (merges, pairs) = mpsc::channel::<Pair>();
        let brings = bring.clone();
        scope.spawn(move || pairs.into_iter().for_each(|pair| brings.bring(pair.merged(tasks))));
        Self {
            manager: Manager::new(config),
            tasks,
            actions: Vec::new(),
            merges,
            merging: 0,
            held_back: Vec::new(),
            keep: None,
            is_submitted: false,
            failure: None,
            shipper,
            merge_took: Duration::MAX,
            bring,
            timer: None,
            results: BTreeMap::new(),
            told: BTreeSet::new(),
            expected: (0..peers).map(NodeId).filter(|peer| *peer != MANAGER).collect(),
            ends: None,
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
        for (task, number) in self.tasks.iter().zip(0..) {
            self.on(now, Event::Submit(JobId(number), task.spec()), out);
        }
        for Piece { job, units, part } in done.into_iter().flatten() {
            let job = JobId(job);
            if let Some(task) = self.tasks.get(job.0 as usize) {
                task.recorded(units.iter().map(|units| units.end - units.start).sum());
            }
            let held = self.held(job, units.iter().cloned().collect(), ByteBuf::from(part));
            self.on(now, Event::Recorded { job, units, result: held }, out);
        }
        self.is_submitted = true;
        self.go_on(now, out);
    }

    /// The result of units, which are to be recorded.
    fn held(&mut self, job: JobId, units: Units, saved: ByteBuf) -> Held {
        let is_empty = self
            .tasks
            .get(job.0 as usize)
            .is_some_and(|task| task.spec().merging == Merging::Nothing);
        if let Some(keep) = self.keep.as_mut().filter(|_| is_empty) {
            keep.done(job, units.clone());
        }
        Held { what: What::Saved(saved), units }
    }

    /// One that comes from a node.
    fn returned(&mut self, node: NodeId, epoch: Epoch, lease: LeaseId, saved: ByteBuf) -> Held {
        let counts = self.keep.as_ref().and_then(|_| self.manager.counts(node, epoch, lease));
        let Some(Lease { job, first, units, .. }) = counts else {
            return Held { what: What::Saved(saved), units: Units::default() };
        };
        if let Some(keep) = &mut self.keep {
            keep.returned(node);
        }
        self.held(job, std::iter::once(first..first + units).collect(), saved)
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
        let manager = &self.manager;
        match keep.next(now, self.merging, |node| manager.has_member(node)) {
            Step::None => {}
            Step::Ask(nodes, number) => {
                out.extend(nodes.into_iter().map(|node| (node, Message::Settle(number))));
            }
            Step::Snapshot => {
                let pieces = self.pieces();
                match (pieces, &mut self.keep) {
                    (Ok(pieces), Some(keep)) => keep.snapshot(pieces),
                    (Err(why), Some(keep)) => {
                        // What was recorded before still counts.
                        if !keep.pass_over(now) {
                            self.failure = Some(why);
                            keep.give_up();
                        }
                    }
                    (_, None) => {}
                }
                for pair in std::mem::take(&mut self.held_back) {
                    self.merge(pair);
                }
                self.go_on(now, out);
            }
        }
    }

    /// All results that there are.
    fn pieces(&self) -> Result<Vec<Piece>, String> {
        let held = self.held_back.iter();
        let held =
            held.flat_map(|pair| [&pair.into, &pair.from].map(|of| (JobId(pair.job as u64), of)));
        let over = self
            .results
            .iter()
            .filter_map(|(job, result)| Some((*job, result.as_ref().ok()?.as_ref()?)));
        let all = self.manager.results().chain(held).chain(over);
        all.map(|(job, held)| {
            let task = self.tasks.get(job.0 as usize).ok_or("there is no such job")?;
            held.piece(job, *task)
        })
        .collect()
    }

    fn merge(&mut self, pair: Pair) {
        if self.keep.as_ref().is_some_and(Keep::holds_back) {
            return self.held_back.push(pair);
        }
        self.merging += 1;
        if self.merge_took <= OWN_MAX {
            return self.bring.leave(pair.merged(self.tasks));
        }
        // Its thread ends after this.
        let _ = self.merges.send(pair);
    }

    pub(super) fn heard(
        &mut self,
        now: Duration,
        node: NodeId,
        message: ToManager<ByteBuf>,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let message = match message {
            ToManager::Result { epoch, lease, result } => {
                let result = self.returned(node, epoch, lease, result);
                ToManager::Result { epoch, lease, result }
            }
            ToManager::Hello(hello) => ToManager::Hello(hello),
            ToManager::Ask { epoch, in_all } => ToManager::Ask { epoch, in_all },
            ToManager::Failed { epoch, lease, failure } => {
                ToManager::Failed { epoch, lease, failure }
            }
            ToManager::Alive { epoch } => ToManager::Alive { epoch },
            ToManager::Leaving { epoch } => ToManager::Leaving { epoch },
            ToManager::Unfit { epoch, why } => {
                self.expected.remove(&node);
                ToManager::Unfit { epoch, why }
            }
        };
        self.on(now, Event::From(node, message), out);
    }

    /// A node asks for bytes of a lease.
    pub(super) fn fetch(&mut self, node: NodeId, lease: LeaseId, offset: u64, len: u64) {
        let job = self.manager.job_of(node, lease);
        self.shipper.ask(node, job, (lease, offset, len));
    }

    /// They were read.
    pub(super) fn read(&mut self, node: NodeId) {
        self.shipper.answered(node);
    }

    /// Nothing of `node` that is under way counts any more.
    pub(super) fn fence(&mut self, now: Duration, node: NodeId, out: &mut Vec<(NodeId, Message)>) {
        self.on(now, Event::Lost(node), out);
    }

    pub(super) fn lost(&mut self, now: Duration, node: NodeId, out: &mut Vec<(NodeId, Message)>) {
        self.expected.remove(&node);
        self.on(now, Event::Lost(node), out);
    }

    pub(super) fn merged(
        &mut self,
        now: Duration,
        merge: MergeId,
        (result, took): (Result<Held, String>, Duration),
        out: &mut Vec<(NodeId, Message)>,
    ) {
        self.merging -= 1;
        self.merge_took = took;
        self.on(now, Event::Merged(merge, result), out);
    }

    pub(super) fn tick(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        if self.timer.is_some_and(|due| due <= now) {
            self.timer = None;
            self.on(now, Event::Tick, out);
        }
        self.go_on(now, out);
    }

    /// When there is something to be done though nothing happens.
    pub(super) fn due(&mut self, now: Duration, linger: Duration) -> Option<Duration> {
        if self.manager.is_drained() && self.ends.is_none() {
            self.ends = Some(now.saturating_add(linger));
        }
        let of_record = self.keep.as_ref().and_then(Keep::due);
        [self.timer, self.ends, of_record].into_iter().flatten().min()
    }

    /// Whether all is done, and everybody knows.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        let is_late = self.ends.is_some_and(|ends| ends <= now);
        self.manager.is_drained() && (self.expected.is_empty() || is_late)
    }

    pub(super) fn end(mut self) -> Result<Report, ClusterError> {
        let mut results = Vec::new();
        for (task, number) in self.tasks.iter().zip(0..) {
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
        Ok(Report { results, counters: self.manager.counters() })
    }

    fn on(&mut self, now: Duration, event: Event<Held>, out: &mut Vec<(NodeId, Message)>) {
        let mut actions = std::mem::take(&mut self.actions);
        self.manager.on(now, event, &mut actions);
        for action in actions.drain(..) {
            self.carry_out(action, out);
        }
        self.actions = actions;
        self.go_on(now, out);
    }

    fn carry_out(&mut self, action: Action<Held>, out: &mut Vec<(NodeId, Message)>) {
        match action {
            Action::Tell(node, message) => {
                match &message {
                    ToNode::Welcome { .. } => self.told.retain(|(of, _)| *of != node),
                    ToNode::Lease { lease, .. } => {
                        let task = self.tasks.get(lease.job.0 as usize);
                        if let Some(task) = task.filter(|_| self.told.insert((node, lease.job))) {
                            let description = task.description().clone();
                            out.push((node, Message::Job(lease.job, description)));
                        }
                    }
                    ToNode::Refused(_) | ToNode::Dismissed { .. } => {
                        self.expected.remove(&node);
                    }
                    ToNode::Withdraw { .. } | ToNode::Fenced { .. } | ToNode::Alive { .. } => {}
                }
                out.push((node, Message::ToNode(message)));
            }
            Action::Merge { id, job, into, from } => {
                self.merge(Pair { id, job: job.0 as usize, into, from });
            }
            Action::Drop(_) => {}
            Action::Finished { job, result } => self.ended(job, Ok(result)),
            Action::Failed { job, error } => self.ended(job, Err(error)),
            Action::SetTimer(at) => self.timer = Some(at),
        }
    }

    fn ended(&mut self, job: JobId, result: Result<Option<Held>, JobError>) {
        self.results.insert(job, result);
        let Some(keep) = &mut self.keep else { return };
        if self.results.values().any(Result::is_err) {
            keep.give_up();
        } else if self.results.len() == self.tasks.len() {
            keep.all_done();
        }
    }
}
