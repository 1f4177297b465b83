//! The compute node of a peer: it hands leases to this machine's accelerators, or
//! has the peer's own thread compute those that are short.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread::Scope;
use std::time::Duration;

use serde_bytes::ByteBuf;
use stream::{RANGES_OPEN, Stats};

use super::fetch::{Came, Fetch};
use super::jobs::{Jobs, Known};
use super::keep::Settler;
use super::{Bring, Brought, ClusterError, Config, OWN_MAX, caught};
use crate::node::{Action, Event, Left};
use crate::task::{Description, Ended, Of, Session, Task};
use crate::wire::{Message, too_long};
use crate::{Failure, JobId, Lease, LeaseId, Node, NodeId, ToManager, ToNode};

/// How a node worked is told of so many jobs.
const STATS_MAX: usize = 64;

/// A job may have one after another, the first of which is still about to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionId(u64);

/// Leases that one session computes: of a job, and either read or sent.
type Kind = (JobId, bool);

/// What computes leases of one kind.
#[derive(Clone)]
pub(super) struct Works<'env> {
    pub(super) id: SessionId,
    kind: Kind,
    pub(super) session: Arc<dyn Session + 'env>,
}

/// How a node worked, and why it left before the end, where the others do without it.
pub(super) type Worked = (Vec<Stats>, Option<String>);

/// A job whose lease held the peer's own thread for so long, though it was thought to be short,
/// is not computed there any more: the manager heard nothing meanwhile.
const HELD_MAX: Duration = Duration::from_secs(1);

/// A lease that is computed.
#[derive(Clone, Copy)]
struct Given {
    to: SessionId,
    lease: Lease,
    /// It was not stopped.
    wanted: bool,
}

pub(super) struct Compute<'scope, 'env> {
    own: NodeId,
    /// Of this peer, or another.
    manager: NodeId,
    node: Node,
    jobs: Jobs<'env>,
    /// Room for actions: what one brings about has others while it is carried out.
    rooms: Vec<Vec<Action<ByteBuf>>>,
    /// Units of the jobs that it was told of, or why they cannot be done here.
    told: BTreeMap<JobId, Result<u64, String>>,
    known: Known,
    /// Why none of them can.
    unfit: Option<String>,
    /// Bytes that are sent.
    fetch: Fetch,
    /// On accelerators, at what is worked at.
    beside: Option<Works<'env>>,
    /// On the peer's own thread. Others wait for that of a manager's peer, and end with it
    /// where a unit hangs, so there it has none.
    own_thread: Option<Works<'env>>,
    /// What a unit took last, in seconds, of which job.
    unit_took: Option<(JobId, f64)>,
    /// The last job that held this thread for too long.
    held_up: Option<JobId>,
    /// The last one.
    sessions: SessionId,
    /// Sessions that have not ended.
    working: usize,
    stats: Vec<Stats>,
    /// What accelerators have.
    given: BTreeMap<LeaseId, Given>,
    /// What is computed when they have nothing of another kind: no memory is for both.
    waiting: VecDeque<Lease>,
    /// The last job that failed with several leases, none of which was to blame: it gets them
    /// one at a time.
    alone: Option<JobId>,
    left: Option<Left>,
    timer: Option<Duration>,
    settler: Settler<'scope, 'env>,
    bring: Bring,
    scope: &'scope Scope<'scope, 'env>,
}

impl<'scope, 'env> Compute<'scope, 'env> {
    pub(super) fn new(
        (own, manager): (NodeId, NodeId),
        tasks: &'env [&'env dyn Task],
        config: &Config,
        bring: Bring,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Self {
        Self {
            own,
            manager,
            node: Node::new(config.hello.clone()).patience(config.patience).at_once(RANGES_OPEN),
            jobs: Jobs::new(tasks),
            rooms: Vec::new(),
            told: BTreeMap::new(),
            known: Known::default(),
            unfit: config.unfit.clone(),
            fetch: Fetch::new(own, config.ship),
            beside: None,
            own_thread: None,
            unit_took: None,
            held_up: None,
            sessions: SessionId(0),
            working: 0,
            stats: Vec::new(),
            given: BTreeMap::new(),
            waiting: VecDeque::new(),
            alone: None,
            left: None,
            timer: None,
            settler: Settler::new(tasks, bring.clone(), scope),
            bring,
            scope,
        }
    }

    pub(super) fn start(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        self.on(now, Event::Start, out);
    }

    /// Joins another manager, for its own is lost.
    pub(super) fn join(
        &mut self,
        now: Duration,
        manager: NodeId,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        (self.manager, self.left) = (manager, None);
        self.start(now, out);
    }

    /// There is no other one, for all was done.
    pub(super) fn end_done(&mut self) {
        self.left = Some(Left::Dismissed);
    }

    /// Whether its manager is lost.
    pub(super) fn is_orphan(&self) -> bool {
        self.left == Some(Left::Lost)
    }

    pub(super) fn told(
        &mut self,
        now: Duration,
        message: ToNode,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let is_welcome = matches!(message, ToNode::Welcome { .. });
        if is_welcome {
            self.fetch.anew();
        }
        if let ToNode::Lease { lease, .. } = &message {
            // One that is not known is found out when it is to be computed.
            self.known.gives(lease.job);
        }
        self.on(now, Event::Told(message), out);
        if let Some(why) = self.unfit.as_ref().filter(|_| is_welcome) {
            let why = format!("node {}: {why}", self.own.0);
            self.on(now, Event::Unfit(why), out);
        }
    }

    /// Bytes came.
    pub(super) fn fetched(
        &mut self,
        now: Duration,
        of: (LeaseId, u64),
        bytes: Result<Vec<u8>, String>,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        match self.fetch.came(now, of, bytes) {
            Came::Part => {}
            Came::All(lease) => self.on(now, Event::Fetched(lease), out),
            Came::Failed(lease, what) => {
                self.fetch.end(lease);
                let failure = self.failure(&what);
                self.on(now, Event::Failed(lease, failure), out);
            }
        }
        self.fetch.ask(now, out);
    }

    pub(super) fn garbled(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        self.on(now, Event::Garbled, out);
    }

    /// The manager is gone: it was lost, or has ended.
    pub(super) fn lost(&mut self, now: Duration, why: Left, out: &mut Vec<(NodeId, Message)>) {
        let event = if why == Left::Lost { Event::Lost } else { Event::Ended };
        self.on(now, event, out);
    }

    /// Whether this node can do that job, which is that task.
    pub(super) fn job(&mut self, job: JobId, number: u32, description: &Description) {
        let task = self.jobs.open(job, number, &description.parameters);
        let fits = task.and_then(|task| {
            task.join(description)?;
            self.fetch.job(job, description, &*task)
        });
        self.told.insert(job, fits.map(|()| description.units()));
        let node = &self.node;
        for older in self.known.tells(job, |job| node.has_lease_of(job)) {
            self.told.remove(&older);
            self.jobs.close(older);
            self.fetch.forget(older);
        }
    }

    pub(super) fn ended(
        &mut self,
        now: Duration,
        (session, lease): (SessionId, LeaseId),
        ended: Ended,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        // It may be told of once more when its session is over, and be in another one then.
        let Some(given) = self.given.get(&lease).filter(|given| given.to == session).copied()
        else {
            return;
        };
        self.given.remove(&lease);
        if let Ended::Computed(_, took) = &ended {
            let Lease { job, units, .. } = given.lease;
            self.unit_took = Some((job, took.as_secs_f64() / units.max(1) as f64));
            let was_here = self.own_thread.as_ref().is_some_and(|own| own.id == given.to);
            if was_here && *took >= HELD_MAX {
                self.held_up = Some(job);
            }
        }
        if matches!(ended, Ended::Computed(..)) {
            self.fetch.computed(now, lease);
        }
        self.fetch.end(lease);
        let event = match ended {
            Ended::Computed(saved, _) => match too_long(saved.len()) {
                None => Event::Computed(lease, ByteBuf::from(saved)),
                Some(what) => Event::Failed(lease, self.failure(&what)),
            },
            Ended::Failed(failure) => Event::Failed(lease, failure),
            Ended::Stopped => Event::Stopped(lease),
        };
        self.on(now, event, out);
        self.compute_waiting(now, out);
    }

    /// The accelerators have let go of a job: of their own accord if they failed.
    pub(super) fn over(
        &mut self,
        now: Duration,
        session: SessionId,
        ended: Result<Box<Stats>, String>,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        self.working -= 1;
        self.stepped(now, session, ended, out);
    }

    /// This thread has.
    pub(super) fn stepped(
        &mut self,
        now: Duration,
        session: SessionId,
        ended: Result<Box<Stats>, String>,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        for works in [&mut self.beside, &mut self.own_thread] {
            works.take_if(|works| works.id == session);
        }
        let error = match ended {
            Ok(stats) => return self.worked(*stats),
            Err(error) => error,
        };
        let held = self.given.values().filter(|given| given.to == session).copied();
        let held: Vec<_> = held.collect();
        if let [one] = held[..] {
            let failed = Ended::Failed(self.failure(&error));
            return self.ended(now, (session, one.lease.id), failed, out);
        }
        for Given { lease, wanted, .. } in held.into_iter().rev() {
            if wanted {
                // One of them does it again.
                self.alone = Some(lease.job);
                self.given.remove(&lease.id);
                self.waiting.push_front(lease);
            } else {
                self.ended(now, (session, lease.id), Ended::Stopped, out);
            }
        }
        self.compute_waiting(now, out);
    }

    /// Of very many jobs the last ones are told of together.
    fn worked(&mut self, stats: Stats) {
        let is_full = self.stats.len() >= STATS_MAX;
        match self.stats.last_mut() {
            Some(last) if is_full => last.add(&stats),
            _ => self.stats.push(stats),
        }
    }

    /// Brings what was put here to the disk.
    pub(super) fn settle(&mut self, number: u64) {
        self.settler.settle(number);
    }

    /// It is there, or not.
    pub(super) fn settled(&mut self) {
        self.settler.settled();
    }

    /// What this thread is to compute, in steps.
    pub(super) fn own_thread(&self) -> Option<&Works<'env>> {
        self.own_thread.as_ref()
    }

    /// Whether that has a lease which is not done.
    pub(super) fn is_computed(&self, session: SessionId) -> bool {
        self.given.values().any(|given| given.to == session)
    }

    /// One with no unit to blame.
    fn failure(&self, what: &str) -> Failure {
        Failure { unit: None, offset: None, what: format!("node {}: {what}", self.own.0) }
    }

    pub(super) fn tick(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        if self.timer.take_if(|due| *due <= now).is_some() {
            self.on(now, Event::Tick, out);
        }
    }

    /// When there is something to be done though nothing happens.
    pub(super) fn due(&self) -> Option<Duration> {
        self.timer
    }

    pub(super) fn is_over(&self) -> bool {
        self.left.is_some()
    }

    /// Lets the accelerators go; whether some are still to tell how they worked.
    pub(super) fn closes(&mut self) -> bool {
        self.close();
        self.working > 0
    }

    /// What accelerators have: of which kernel which units.
    pub(super) fn given(&self) -> BTreeMap<LeaseId, String> {
        let given = self.given.iter().filter_map(|(id, Given { lease, .. })| {
            let task = self.jobs.get(lease.job)?;
            let last = lease.first + lease.units - 1;
            let kernel = &task.description().kernel;
            Some((*id, format!("{kernel}: unit {} to {last}", lease.first)))
        });
        given.collect()
    }

    /// How it worked.
    pub(super) fn end(mut self) -> Result<Worked, ClusterError> {
        let stats = std::mem::take(&mut self.stats);
        match self.left.take() {
            None | Some(Left::Dismissed) => Ok((stats, None)),
            Some(Left::Unfit(why)) => Ok((stats, Some(why))),
            Some(Left::Refused(why)) => Ok((stats, Some(format!("node {}: {why}", self.own.0)))),
            Some(why) => Err(ClusterError::Left { node: self.own, why }),
        }
    }

    fn on(&mut self, now: Duration, event: Event<ByteBuf>, out: &mut Vec<(NodeId, Message)>) {
        let mut actions = self.rooms.pop().unwrap_or_default();
        self.node.on(now, event, &mut actions);
        for action in actions.drain(..) {
            self.carry_out(now, action, out);
        }
        self.rooms.push(actions);
    }

    fn carry_out(
        &mut self,
        now: Duration,
        action: Action<ByteBuf>,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        match action {
            Action::Say(message) => {
                // It is the transport's now, which has a copy.
                let sent = match &message {
                    ToManager::Result { lease, .. } => Some(*lease),
                    _ => None,
                };
                out.push((self.manager, Message::ToManager(message)));
                if let Some(lease) = sent {
                    self.on(now, Event::Sent(lease), out);
                }
            }
            Action::Fetch(lease) if self.fetch.begin(&lease) => self.fetch.ask(now, out),
            // Accelerators read for themselves.
            Action::Fetch(lease) => self.on(now, Event::Fetched(lease.id), out),
            Action::Compute(lease) => {
                self.waiting.push_back(lease);
                self.compute_waiting(now, out);
            }
            Action::Stop(lease) => match self.given.get_mut(&lease) {
                Some(given) => {
                    given.wanted = false;
                    let works = self.beside.iter().chain(&self.own_thread);
                    // An earlier session ends by itself.
                    if let Some(works) = works.into_iter().find(|works| works.id == given.to) {
                        works.session.stop(lease);
                    }
                }
                None => {
                    self.waiting.retain(|waiting| waiting.id != lease);
                    self.fetch.end(lease);
                    self.on(now, Event::Stopped(lease), out);
                    self.compute_waiting(now, out);
                }
            },
            Action::Shorten(lease, units) => {
                let is_shorter = self.shorten(lease, units);
                self.on(now, Event::Shortened(lease, units, is_shorter), out);
            }
            Action::Drop(_) => {}
            Action::Left(why) => self.left = Some(why),
            Action::SetTimer(at) => self.timer = Some(at),
        }
    }

    /// Whether only so many units of it are computed now.
    fn shorten(&mut self, id: LeaseId, units: u64) -> bool {
        if let Some(lease) = self.waiting.iter_mut().find(|lease| lease.id == id) {
            lease.units = units;
            return true;
        }
        let Some(given) = self.given.get_mut(&id) else { return false };
        let works = self.beside.iter().chain(&self.own_thread);
        let works = works.into_iter().find(|works| works.id == given.to);
        let is_shorter = works.is_some_and(|works| works.session.shorten(id, units));
        if is_shorter {
            given.lease.units = units;
            self.fetch.shortened(&given.lease);
        }
        is_shorter
    }

    /// Those whose turn it is.
    fn compute_waiting(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        while let Some(next) = self.waiting.front() {
            let (kind, is_alone) = (self.kind(next), self.alone == Some(next.job));
            if self.given.values().any(|given| is_alone || self.kind(&given.lease) != kind) {
                return;
            }
            if let Some(lease) = self.waiting.pop_front() {
                self.compute(now, &lease, out);
            }
        }
    }

    fn kind(&self, lease: &Lease) -> Kind {
        (lease.job, self.fetch.was_sent(lease.id))
    }

    fn compute(&mut self, now: Duration, lease: &Lease, out: &mut Vec<(NodeId, Message)>) {
        let known = match self.told.get(&lease.job) {
            // What it was told of that job did not come.
            None => return self.garbled(now, out),
            Some(known) => known.as_ref().map_err(String::as_str),
        };
        let refused = match (known, self.jobs.get(lease.job)) {
            (Ok(units), Some(task)) if lease.is_within(*units) => match self.works(lease, &task) {
                Ok(to) => {
                    let given = Given { to: to.id, lease: *lease, wanted: true };
                    self.given.insert(lease.id, given);
                    self.fetch.computes(now, lease);
                    return to.session.give(lease);
                }
                Err(why) => why,
            },
            // Others do without it.
            (Err(why), _) => {
                let why = format!("node {}: {why}", self.own.0);
                return self.on(now, Event::Unfit(why), out);
            }
            (Ok(_), _) => "the job has no such units; this is a bug in Cellway".to_owned(),
        };
        self.fetch.end(lease.id);
        let failure = self.failure(&refused);
        self.on(now, Event::Failed(lease.id, failure), out);
    }

    /// What computes that lease; what computed others is to end.
    fn works(&mut self, lease: &Lease, task: &Of<'env>) -> Result<Works<'env>, String> {
        let job = lease.job;
        let kind = self.kind(lease);
        for works in [&mut self.beside, &mut self.own_thread] {
            if let Some(other) = works.take_if(|works| works.kind != kind) {
                other.session.close();
            }
        }
        let is_short = self.unit_took.is_some_and(|(of, took)| {
            of == job && took * lease.units as f64 <= OWN_MAX.as_secs_f64()
        });
        let is_short = is_short && self.held_up != Some(job);
        if is_short && self.own != self.manager && task.can_step() {
            let begun = match self.own_thread.take() {
                Some(begun) => begun,
                None => self.begin(kind, task, Bring::leave)?,
            };
            return Ok(self.own_thread.insert(begun).clone());
        }
        if let Some(works) = &self.beside {
            return Ok(works.clone());
        }
        let works = self.begin(kind, task, Bring::bring)?;
        let (runs, id, bring) = (works.session.clone(), works.id, self.bring.clone());
        self.working += 1;
        self.scope.spawn(move || {
            let ended = caught("a kernel", || runs.run().map_err(|error| error.to_string()));
            bring.bring(Brought::Over(id, ended.map(Box::new)));
        });
        Ok(self.beside.insert(works).clone())
    }

    fn begin(
        &mut self,
        kind: Kind,
        task: &Of<'env>,
        brings: fn(&Bring, Brought),
    ) -> Result<Works<'env>, String> {
        let sent = kind.1.then(|| self.fetch.input(kind.0)).transpose()?;
        self.sessions.0 += 1;
        let (id, bring) = (self.sessions, self.bring.clone());
        let tell = move |lease, ended| brings(&bring, Brought::Ended(id, lease, ended));
        let session = task.session(sent, Box::new(tell)).into();
        Ok(Works { id, kind, session })
    }

    /// Nobody waits for what is given any more.
    fn close(&mut self) {
        for works in [self.beside.take(), self.own_thread.take()].into_iter().flatten() {
            let given = self.given.iter().filter(|(_, given)| given.to == works.id);
            given.for_each(|(lease, _)| works.session.stop(*lease));
            works.session.close();
        }
    }
}

impl Drop for Compute<'_, '_> {
    /// The accelerators of a peer that fails end too.
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
