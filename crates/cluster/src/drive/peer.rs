//! One peer's loop: what comes in goes to its manager and its node, what they say goes out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::Scope;
use std::time::{Duration, Instant};

use accel::Step;
use serde_bytes::ByteBuf;
use stream::{Control, Piece, Pieces, StreamError, Wish};

use super::compute::{Compute, Worked, Works};
use super::keep::Keep;
use super::layout::Layout;
use super::manage::Manage;
use super::queue::Queue;
use super::ship::Asked;
use super::submanage::Submanage;
use super::{
    Bring, Brought, ClusterError, Config, Farewell, LETS_GO, LINGER_MAX, MANAGER, Ran, Report,
    caught,
};
use crate::node::Left;
use crate::task::{Task, said};
use crate::transport::{Endpoint, Received};
use crate::wire::{Message, Packet};
use crate::{LeaseId, NodeId};

/// So many messages at most are received before what is due, though more are there.
const AHEAD_MAX: u32 = 1 << 16;

/// How long this thread computes before it looks for messages again, and how long it
/// waits for one at least and at most before it looks for what it reads.
const LOOK_AFTER: Duration = Duration::from_micros(10);
/// How often it looks whether the run is still paused.
const PAUSED_LOOK: Duration = Duration::from_millis(10);
const IDLE_MAX: Duration = Duration::from_micros(200);

/// One peer: the manager of all or of a group, or none, and a node.
pub(super) struct Peer<'scope, 'env> {
    endpoint: Box<dyn Endpoint>,
    started: Instant,
    /// Who may pause the run.
    control: Option<&'env Control>,
    linger: Duration,
    layout: Layout,
    /// The peer of its manager; of the first its own.
    above: NodeId,
    /// Those that are gone.
    lost: BTreeSet<NodeId>,
    /// The first one is, for all was done.
    has_root_ended: bool,
    manage: Option<Manage<'env>>,
    /// What the manager keeps, till it starts.
    kept: Option<(Keep, Vec<Piece>)>,
    submanage: Option<Submanage<'scope, 'env>>,
    compute: Option<Compute<'scope, 'env>>,
    brought: Receiver<Brought>,
    /// From this peer to itself.
    to_self: VecDeque<Message>,
    /// Messages received while something was due, and since when none was there.
    ahead: u32,
    quiet: u32,
    /// When it looked for messages last.
    looked: Duration,
}

/// What came of jobs at the manager, how the node worked, and who was refused.
type Did = (Option<Report>, Worked, Vec<String>);

/// What a peer did, and what of it still runs though nobody waits for it: it hangs, or takes
/// very long.
pub(super) type Ended = (Result<Ran, ClusterError>, Option<String>);

/// Tells those that their manager is none, and the one of all that they will come.
pub(super) fn orphaned(nodes: Vec<NodeId>) -> impl Iterator<Item = (NodeId, Message)> {
    let root = (!nodes.is_empty()).then_some(MANAGER);
    let told: Vec<_> = nodes.iter().copied().chain(root).collect();
    told.into_iter().map(move |to| (to, Message::Orphans(nodes.clone())))
}

/// By the leases that accelerators have, if it is these.
fn hangs(node: NodeId, given: &BTreeMap<LeaseId, String>) -> String {
    let node = node.0;
    if given.is_empty() {
        return format!("node {node}: what it merges, reads or brings to the disk has not ended");
    }
    let given: Vec<_> = given.values().map(String::as_str).collect();
    format!("node {node}: {} has not ended", given.join("; "))
}

impl<'scope, 'env> Peer<'scope, 'env> {
    pub(super) fn new(
        endpoint: Box<dyn Endpoint>,
        tasks: &'env [&'env dyn Task],
        config: &Config,
        scope: &'scope Scope<'scope, 'env>,
        (journal, queue): (Option<Pieces<'env>>, Option<Arc<Queue<'env>>>),
    ) -> Result<Self, ClusterError> {
        let (to, brought) = mpsc::channel();
        let bring = Bring { to, waker: endpoint.waker() };
        let (own, peers) = (endpoint.own(), endpoint.peers());
        let layout = Layout::new(peers, config.fanout);
        let (above, manages) = (layout.above(own), own == MANAGER);
        let mut config = config.clone();
        // Of these all may be there, whatever the limit for those that come later.
        config.manager.nodes_max = config.manager.nodes_max.max(peers as usize);
        config.manager.jobs_max = config.manager.jobs_max.max(tasks.len());
        config.hello.tasks = said(tasks);
        let config = &config;
        let manage = manages.then(|| Manage::new((tasks, queue), config, layout, &bring, scope));
        let is_fit = config.unfit.is_none();
        let has_group = !manages && is_fit && layout.below(own).next().is_some();
        let submanage =
            has_group.then(|| Submanage::new(own, layout, tasks, config, bring.clone(), scope));
        // Who lost its manager, and is not told so, comes when that was silent for as long.
        let waits = (config.manager.heartbeat(), config.patience);
        let journal = journal.filter(|_| manages);
        let kept = journal.map(|journal| Keep::new(tasks, journal, waits, bring.clone(), scope));
        let kept = kept.transpose()?;
        let computes = !manages || config.manager_computes;
        let nodes = (own, if has_group { own } else { above });
        let compute = computes.then(|| Compute::new(nodes, tasks, config, bring, scope));
        // The first one may take long over its result, and serve without one that leaves. It is
        // not waited for where nobody would tell that it is lost.
        let linger = if !manages && endpoint.ends_all() { LINGER_MAX } else { config.linger };
        let started = Instant::now();
        let (to_self, ahead, quiet, looked) = (VecDeque::new(), 0, 0, Duration::ZERO);
        Ok(Self {
            endpoint,
            started,
            control: tasks.iter().find_map(|task| task.control()),
            linger,
            layout,
            above,
            lost: BTreeSet::new(),
            has_root_ended: false,
            manage,
            kept,
            submanage,
            compute,
            brought,
            to_self,
            ahead,
            quiet,
            looked,
        })
    }

    pub(super) fn run(mut self) -> Ended {
        let worked = self.work();
        let until = Instant::now() + LETS_GO;
        if worked.is_ok() {
            self.lets_go(until);
        }
        let node = self.endpoint.own();
        let mut given = self.compute.as_ref().map(Compute::given).unwrap_or_default();
        let ran = match worked.and_then(|()| self.end()) {
            Ok((report, (stats, unfit), refused)) => {
                let farewell = Farewell { endpoint: self.endpoint, linger: self.linger };
                Ok(Ran { report, stats, unfit, refused, farewell })
            }
            Err(error) => {
                // What went wrong matters more than whether the others hear of it.
                let _ = self.endpoint.close(Instant::now());
                Err(error)
            }
        };
        // Threads end with what they work for. Each can bring something until it has ended.
        drop((self.kept, self.manage, self.submanage, self.compute));
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.brought.recv_timeout(left) {
                Ok(Brought::Ended(_, lease, _)) => drop(given.remove(&lease)),
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return (ran, None),
                Err(RecvTimeoutError::Timeout) => return (ran, Some(hangs(node, &given))),
            }
        }
    }

    fn work(&mut self) -> Result<(), ClusterError> {
        let now = self.now();
        let mut out = Vec::new();
        if let Some(manage) = &mut self.manage {
            manage.start(now, self.kept.take(), &mut out);
        }
        match &mut self.submanage {
            Some(submanage) => submanage.start(now, &mut out),
            None if self.manage.is_some() => {}
            // It may be unfit to manage those.
            None => out.extend(orphaned(self.layout.below(self.endpoint.own()).collect())),
        }
        if let Some(compute) = &mut self.compute {
            compute.start(now, &mut out);
        }
        while !self.is_over() {
            match self.compute.as_ref().and_then(Compute::own_thread).cloned() {
                Some(works) => self.compute(&works, &mut out)?,
                None => self.turn(None, &mut out)?,
            }
        }
        self.send(&mut out)
    }

    /// The accelerators let go of what nobody waits for, and tell how they worked.
    fn lets_go(&mut self, until: Instant) {
        let mut unsent = Vec::new();
        while self.compute.as_mut().is_some_and(Compute::closes) {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(brought) = self.brought.recv_timeout(left) else { break };
            self.take(brought, &mut unsent);
        }
    }

    fn end(&mut self) -> Result<Did, ClusterError> {
        let refused = match (&self.manage, &self.submanage) {
            (Some(manage), _) => manage.refused(),
            (None, Some(group)) => group.refused(),
            (None, None) => Vec::new(),
        };
        let worked = self.compute.take().map(Compute::end).transpose();
        let report = self.manage.take().map(Manage::end).transpose();
        let group = self.submanage.take().map(Submanage::end).transpose();
        let (stats, unfit) = worked?.unwrap_or_default();
        Ok((report?, (stats, unfit.or(group?.flatten())), refused))
    }

    /// Goes on, while this thread computes too.
    fn compute(
        &mut self,
        works: &Works<'env>,
        out: &mut Vec<(NodeId, Message)>,
    ) -> Result<(), ClusterError> {
        let mut went = Ok(Ok(()));
        let ended = caught("a kernel", || {
            let mut is_closed = false;
            let stepped = works.session.step(&mut |step| {
                // A closed one does what it has by itself, and gets no more.
                if std::mem::replace(&mut is_closed, true) {
                    return;
                }
                let mut of_kernel = None;
                let mut step = || {
                    let stepped = catch_unwind(AssertUnwindSafe(&mut *step));
                    stepped.unwrap_or_else(|panic| {
                        of_kernel = Some(panic);
                        Ok(Step::Ended)
                    })
                };
                let step = AssertUnwindSafe(|| self.step(works, &mut step, out));
                went = catch_unwind(step);
                // It ends by itself, also where the transport did.
                works.session.close();
                if let Some(panic) = of_kernel {
                    resume_unwind(panic);
                }
            });
            stepped.map_err(|error| error.to_string())
        });
        // What panicked there was no kernel, and is not gone on with.
        went.unwrap_or_else(|panic| resume_unwind(panic))?;
        let now = self.now();
        if let Some(compute) = &mut self.compute {
            compute.stepped(now, works.id, ended.map(Box::new), out);
        }
        Ok(())
    }

    /// Steps until that fails, or is not what this thread computes any more.
    fn step(
        &mut self,
        works: &Works<'env>,
        step: &mut dyn FnMut() -> Result<Step, StreamError>,
        out: &mut Vec<(NodeId, Message)>,
    ) -> Result<(), ClusterError> {
        let mut next_idle = LOOK_AFTER;
        while self.goes_on(works) {
            let has_run = match step() {
                Ok(Step::Ran) => true,
                Ok(Step::Idle) => false,
                Ok(Step::Ended) | Err(_) => return Ok(()),
            };
            // Of the lease that this step ended, at once.
            if has_run && let Ok(brought) = self.brought.try_recv() {
                self.take(brought, out);
                self.send(out)?;
                if !self.goes_on(works) {
                    return Ok(());
                }
            }
            let computes = self.compute.as_ref().is_some_and(|own| own.is_computed(works.id));
            if computes && has_run && self.now().saturating_sub(self.looked) < LOOK_AFTER {
                continue;
            }
            // What does not run reads or writes, or the run is paused.
            let wait = if has_run { Duration::ZERO } else { next_idle };
            next_idle = IDLE_MAX.min(LOOK_AFTER.max(2 * wait));
            self.turn(computes.then_some(wait), out)?;
        }
        Ok(())
    }

    /// Whether this thread is to compute that.
    fn goes_on(&self, works: &Works<'env>) -> bool {
        let own = self.compute.as_ref().and_then(Compute::own_thread);
        own.is_some_and(|own| own.id == works.id) && !self.is_over()
    }

    /// Does what is next, or waits for it, for so long.
    fn turn(
        &mut self,
        wait: Option<Duration>,
        out: &mut Vec<(NodeId, Message)>,
    ) -> Result<(), ClusterError> {
        self.send(out)?;
        if let Some(why) = self.manage.as_mut().and_then(Manage::failure) {
            return Err(ClusterError::Record(why));
        }
        if let Some(message) = self.to_self.pop_front() {
            self.message(self.now(), (self.endpoint.own(), message), out);
            return Ok(());
        }
        if let Ok(brought) = self.brought.try_recv() {
            self.take(brought, out);
            return Ok(());
        }
        // Time passes also where this peer does not run: what came before that
        // which is due is told first. A wake may stand before messages, once.
        let now = self.now();
        let due = self.due(now);
        let is_due = due.is_some_and(|due| due <= now);
        if is_due && (self.quiet == 2 || self.ahead == AHEAD_MAX) {
            (self.ahead, self.quiet) = (0, 0);
            self.tick(out);
            return Ok(());
        }
        let until = due.into_iter().chain(wait.map(|wait| now.saturating_add(wait))).min();
        let mut until = until.and_then(|until| self.started.checked_add(until + self.paused()));
        if self.control.is_some_and(|control| control.wish() == Wish::Pause) {
            // What is due next comes no nearer.
            until = Some(until.unwrap_or_else(Instant::now).max(Instant::now() + PAUSED_LOOK));
        }
        let received = self.endpoint.receive(until)?;
        // Who does not wait needs no other look at the clock.
        let now = if wait == Some(Duration::ZERO) { now } else { self.now() };
        self.looked = now;
        self.quiet = if is_due && received == Received::Nothing { self.quiet + 1 } else { 0 };
        self.ahead = if is_due { self.ahead + 1 } else { 0 };
        match received {
            Received::Message(from, bytes) => match Message::from_bytes(&bytes) {
                Ok(messages) => {
                    for message in messages {
                        self.message(now, (from, message), out);
                    }
                }
                Err(_) => self.garbled(from, out),
            },
            Received::Left(peer) => self.lost(peer, Left::Dismissed, out),
            Received::Lost(peer) => self.lost(peer, Left::Lost, out),
            Received::Nothing => {}
        }
        Ok(())
    }

    /// While a run is paused nobody has more time behind him, nor less before him.
    fn now(&self) -> Duration {
        self.started.elapsed().saturating_sub(self.paused())
    }

    fn paused(&self) -> Duration {
        self.control.map_or(Duration::ZERO, Control::paused)
    }

    fn is_over(&self) -> bool {
        let still_manages = match (&self.manage, &self.submanage) {
            (Some(manage), _) => !manage.is_over(self.now()),
            (None, Some(submanage)) => !submanage.is_over(self.now()),
            (None, None) => false,
        };
        !still_manages && self.compute.as_ref().is_none_or(Compute::is_over)
    }

    /// Sends what there is to be sent.
    fn send(&mut self, out: &mut Vec<(NodeId, Message)>) -> Result<(), ClusterError> {
        let mut packet = Packet::default();
        let mut messages = out.drain(..).peekable();
        while let Some((to, message)) = messages.next() {
            if to == self.endpoint.own() {
                self.to_self.push_back(message);
                continue;
            }
            packet.push(&message);
            if packet.is_full() || messages.peek().is_none_or(|(next, _)| *next != to) {
                self.endpoint.send(to, std::mem::take(&mut packet).into_bytes())?;
            }
        }
        Ok(())
    }

    fn message(
        &mut self,
        now: Duration,
        (from, message): (NodeId, Message),
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let is_own = from == self.endpoint.own();
        // What the manager above says is for the group, if there is one.
        let group = self.submanage.as_mut().filter(|_| !is_own);
        let is_of_manager = is_own || from == self.above;
        match (message, &mut self.manage, group, &mut self.compute) {
            (Message::ToManager(message), Some(manage), ..) => {
                manage.heard(now, from, message, out);
            }
            (Message::ToManager(message), None, ..) => {
                if let Some(submanage) = &mut self.submanage {
                    submanage.heard(now, from, message, out);
                }
            }
            (Message::Settled(number, failed), Some(manage), ..) => {
                manage.settled(now, from, (number, failed), out);
            }
            (Message::Settled(number, failed), None, Some(group), _) => {
                group.settled(now, from, (number, failed), out);
            }
            (Message::Fetch { job, lease, offset, len }, Some(manage), ..) => {
                manage.fetch(Asked { node: from, job: Some(job), lease, offset, len });
            }
            (Message::Fetched { lease, offset, bytes }, .., Some(compute)) if from == MANAGER => {
                let bytes = bytes.map(ByteBuf::into_vec);
                compute.fetched(now, (lease, offset), bytes, out);
            }
            (Message::Unread, .., Some(compute)) if from == MANAGER => compute.garbled(now, out),
            (Message::Orphans(nodes), Some(manage), ..) => {
                let below = |node: &NodeId| self.layout.above(*node) == from;
                let is_there = |node: &NodeId| below(node) && !self.lost.contains(node);
                manage.expect(nodes.into_iter().filter(is_there));
            }
            // Of one that is this peer's manager no more.
            _ if !is_of_manager => {}
            (Message::ToNode(message), _, Some(group), _) => group.told(now, message, out),
            (Message::ToNode(message), .., Some(compute)) => compute.told(now, message, out),
            (Message::Job(job, task, description), _, Some(group), _) => {
                group.job(now, (job, task), *description, out);
            }
            (Message::Job(job, task, description), .., Some(compute)) => {
                compute.job(job, task, &description);
            }
            (Message::Orphans(_), ..) => {
                let why = if self.has_root_ended { Left::Dismissed } else { Left::Lost };
                self.lost_above(why, out);
            }
            (Message::Settle(number), _, Some(group), _) => group.settle(now, number, out),
            (Message::Settle(number), .., Some(compute)) => compute.settle(number),
            _ => {}
        }
    }

    /// What was lost with it nobody knows: who sent it, or got it, begins anew.
    fn garbled(&mut self, from: NodeId, out: &mut Vec<(NodeId, Message)>) {
        let now = self.now();
        if let Some(manage) = &mut self.manage
            && !manage.fence(now, from, out)
        {
            out.push((from, Message::Unread));
        }
        if let Some(submanage) = &mut self.submanage {
            submanage.fence(now, from, out);
            if from == self.above {
                submanage.garbled(now, out);
            }
        }
        // The manager of all sends bytes too.
        let is_of_node = from == MANAGER || from == self.above && self.submanage.is_none();
        if let Some(compute) = self.compute.as_mut().filter(|_| is_of_node) {
            compute.garbled(now, out);
        }
    }

    /// To who is below it this is why it is their manager no more.
    fn lost(&mut self, peer: NodeId, why: Left, out: &mut Vec<(NodeId, Message)>) {
        let now = self.now();
        self.lost.insert(peer);
        self.has_root_ended |= peer == MANAGER && why == Left::Dismissed;
        if let Some(manage) = &mut self.manage {
            // One that ended let those below it go.
            let orphans = self.layout.below(peer).filter(|_| why == Left::Lost);
            let orphans = orphans.filter(|below| !self.lost.contains(below));
            manage.lost(now, peer, orphans, out);
        }
        if let Some(submanage) = &mut self.submanage {
            submanage.lost(now, peer, out);
        }
        if peer == self.above {
            self.lost_above(why, out);
        }
    }

    /// The manager of this peer is none any more.
    fn lost_above(&mut self, why: Left, out: &mut Vec<(NodeId, Message)>) {
        let now = self.now();
        match (&mut self.submanage, &mut self.compute) {
            (Some(submanage), _) => submanage.lost_above(now, why, out),
            (None, Some(compute)) => compute.lost(now, why, out),
            (None, None) => {}
        }
        self.join_root(out);
    }

    /// Who has lost its manager joins that of all, or ends if that is lost: well, if all was done.
    fn join_root(&mut self, out: &mut Vec<(NodeId, Message)>) {
        let now = self.now();
        let is_last = self.above == MANAGER || self.lost.contains(&MANAGER);
        match (&mut self.submanage, &mut self.compute) {
            (Some(submanage), _) if submanage.is_orphan() && self.has_root_ended => {
                submanage.end_done(now, out);
            }
            (None, Some(compute)) if compute.is_orphan() && self.has_root_ended => {
                compute.end_done();
            }
            (Some(submanage), _) if submanage.is_orphan() => match is_last {
                true => submanage.end_lost(now, out),
                false => submanage.join(now, MANAGER, out),
            },
            (None, Some(compute)) if compute.is_orphan() && !is_last => {
                compute.join(now, MANAGER, out);
            }
            _ => return,
        }
        self.above = MANAGER;
    }

    fn take(&mut self, brought: Brought, out: &mut Vec<(NodeId, Message)>) {
        let now = self.now();
        match (brought, &mut self.manage, &mut self.submanage, &mut self.compute) {
            (Brought::Merged(merge, result, took), Some(manage), ..) => {
                manage.merged(now, merge, (result, took), out);
            }
            (Brought::Merged(merge, result, took), _, Some(submanage), _) => {
                submanage.merged(now, merge, (result, took), out);
            }
            (Brought::Saved(of, saved), _, Some(submanage), _) => {
                submanage.saved(now, of, saved, out);
            }
            (Brought::Ended(session, lease, ended), .., Some(compute)) => {
                compute.ended(now, (session, lease), ended, out);
            }
            (Brought::Over(job, ended), .., Some(compute)) => compute.over(now, job, ended, out),
            (Brought::Settled(number, settled), _, submanage, compute) => {
                match (submanage, compute) {
                    (Some(submanage), _) => submanage.settled_own(),
                    (None, Some(compute)) => compute.settled(),
                    (None, None) => {}
                }
                out.push((self.above, Message::Settled(number, settled.err())));
            }
            (Brought::Recorded(recorded), Some(manage), ..) => {
                let after = recorded.map(|due| due.saturating_duration_since(Instant::now()));
                manage.recorded(now, after, out);
            }
            (Brought::Order(order), Some(manage), ..) => manage.ordered(now, &order, out),
            (Brought::Read(node, message), Some(manage), ..) => {
                manage.read(node);
                out.push((node, message));
            }
            _ => {}
        }
    }

    /// When something is due next.
    fn due(&mut self, now: Duration) -> Option<Duration> {
        let linger = self.linger;
        let of_manager = self.manage.as_mut().and_then(|manage| manage.due(now, linger));
        let of_group = self.submanage.as_mut().and_then(|group| group.due(now, linger));
        let of_node = self.compute.as_ref().and_then(Compute::due);
        [of_manager, of_group, of_node].into_iter().flatten().min()
    }

    fn tick(&mut self, out: &mut Vec<(NodeId, Message)>) {
        let now = self.now();
        if let Some(manage) = &mut self.manage {
            manage.tick(now, out);
        }
        if let Some(submanage) = &mut self.submanage {
            submanage.tick(now, out);
        }
        if let Some(compute) = &mut self.compute {
            compute.tick(now, out);
        }
        // It may have been silent for too long.
        self.join_root(out);
    }
}
