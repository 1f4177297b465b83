//! A compute node: asks for work as its buffers become free, and gives up what
//! nobody waits for.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Epoch, Failure, Hello, JobId, Lease, LeaseId, Refusal, ToManager, ToNode};

/// What happened; `R` is the result of a lease.
#[derive(Clone, Debug)]
pub enum Event<R> {
    /// The manager can be reached.
    Start,
    /// The manager said something. A lease's bytes may still be on their way.
    Told(ToNode),
    /// The bytes of a lease are there, or need not be.
    Fetched(LeaseId),
    /// A lease was computed.
    Computed(LeaseId, R),
    /// What came of [`Action::Shorten`].
    Shortened(LeaseId, u64, bool),
    /// It was not: its bytes cannot be had, or a unit failed.
    Failed(LeaseId, Failure),
    /// A result has left its buffer.
    Sent(LeaseId),
    /// What [`Action::Stop`] asked for.
    Stopped(LeaseId),
    /// The node is to leave when it has done what it has.
    Leave,
    /// The manager cannot be reached any more.
    Lost,
    /// The manager has ended, though nothing was heard of that: the node was stopped for so
    /// long that it is no member.
    Ended,
    /// Something came of the manager that cannot be read: what it was is not known.
    Garbled,
    /// The node cannot do what it was given.
    Unfit(String),
    /// The time asked for by [`Action::SetTimer`] is there; any other does no harm.
    Tick,
}

/// What is to be done, in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<R> {
    /// Send this. After a result, [`Event::Sent`].
    Say(ToManager<R>),
    /// Bring the bytes of a lease into a free buffer; then [`Event::Fetched`] or [`Event::Failed`].
    Fetch(Lease),
    /// Compute it; then [`Event::Computed`] or [`Event::Failed`]. As many
    /// [at a time](Node::at_once) as it may.
    Compute(Lease),
    /// Leave off fetching or computing it, or let its buffer go; then
    /// [`Event::Stopped`], unless it ended by itself.
    Stop(LeaseId),
    /// Compute only so many of its units, unless later ones are begun; then [`Event::Shortened`].
    Shorten(LeaseId, u64),
    /// Nobody wants that result.
    Drop(R),
    /// The node is no member any more, and will not be by itself.
    Left(Left),
    /// Send [`Event::Tick`] at that time; an earlier wish counts no more.
    SetTimer(Duration),
}

/// Why a node left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Left {
    /// There is no more work.
    #[error("the manager has no more work")]
    Dismissed,
    /// It cannot work here.
    #[error(transparent)]
    Refused(Refusal),
    /// It cannot do what it was given.
    #[error("{0}")]
    Unfit(String),
    /// The connection ended, or the manager was silent for too long.
    #[error("the manager cannot be reached any more: see how it ended, then start this node again")]
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Out,
    Joining,
    In(Epoch),
}

/// Where a buffer is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Fetching,
    Ready,
    Computing,
    Returning,
    /// Until its buffer is given back, for nobody; the accelerators may have it still.
    Stopping {
        computing: bool,
    },
}

/// How long a node waits for a manager that says nothing, if it is not told otherwise:
/// as long as a manager waits for nodes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Of a node that is no member yet.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Keeps as many leases as it has buffers: while one is computed the next is
/// received and the one before is returned (Cell Connector, 4.3.2). When it is
/// told that its membership is over it drops all and joins anew. What it says and
/// hears no answer to it says again each heartbeat.
#[derive(Debug)]
pub struct Node {
    hello: Hello,
    /// Leases it computes at a time.
    at_once: usize,
    state: State,
    leaving: bool,
    heartbeat: Duration,
    patience: Duration,
    /// When it last said something.
    said: Duration,
    /// Heartbeats since the manager was heard of. Time that the node itself was
    /// stopped is none.
    unheard: u32,
    timer: Option<Duration>,
    /// What has a buffer.
    work: BTreeMap<LeaseId, (Lease, Stage)>,
    /// Leases asked for and received in this membership.
    asked: u64,
    received: u64,
    /// Of an earlier number is no new lease.
    last: LeaseId,
}

impl Node {
    /// A node that is no member yet.
    #[must_use]
    pub fn new(hello: Hello) -> Self {
        Self {
            hello,
            at_once: 1,
            state: State::Out,
            leaving: false,
            heartbeat: HEARTBEAT,
            patience: PATIENCE,
            said: Duration::ZERO,
            unheard: 0,
            timer: None,
            work: BTreeMap::new(),
            asked: 0,
            received: 0,
            last: LeaseId(0),
        }
    }

    /// It leaves when the manager has been silent for `patience`, longer by a heartbeat at most.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, heartbeat: HEARTBEAT.min(patience / 8), ..self }
    }

    /// It computes so many leases at a time, instead of one.
    #[must_use]
    pub fn at_once(self, leases: usize) -> Self {
        Self { at_once: leases, ..self }
    }

    /// It is to leave once it is a member anew.
    pub(crate) fn leave_next(&mut self) {
        self.leaving = true;
    }

    /// Takes what happened at `now`, counted from any fixed start, and appends what is to be done.
    pub fn on<R>(&mut self, now: Duration, event: Event<R>, actions: &mut Vec<Action<R>>) {
        let from = actions.len();
        let is_due = matches!(event, Event::Tick);
        if matches!(event, Event::Start | Event::Told(_) | Event::Garbled) {
            self.unheard = 0;
        }
        match event {
            Event::Start => self.start(actions),
            Event::Told(message) => self.told(message, actions),
            Event::Fetched(lease) => self.advance(lease, Stage::Fetching, Stage::Ready),
            Event::Computed(lease, result) => self.computed(lease, result, actions),
            Event::Failed(lease, failure) => self.failed(lease, failure, actions),
            Event::Shortened(lease, units, is_shorter) => {
                self.shortened(lease, units, is_shorter, actions);
            }
            Event::Sent(lease) | Event::Stopped(lease) => self.freed(lease),
            Event::Leave => self.leave(actions),
            Event::Unfit(why) => self.unfit(why, actions),
            Event::Lost => self.leave_off(Left::Lost, actions),
            Event::Ended => self.leave_off(Left::Dismissed, actions),
            Event::Garbled if self.state != State::Out => {
                self.stop_all(actions);
                self.join(actions);
            }
            Event::Garbled => {}
            Event::Tick => {}
        }
        self.compute(actions);
        self.ask(actions);
        self.beat(now, from, is_due, actions);
    }

    /// Leases that have a buffer, those included that nobody waits for.
    #[must_use]
    pub fn buffers_used(&self) -> usize {
        self.work.len()
    }

    /// Whether a lease of that job has a buffer.
    #[must_use]
    pub fn has_lease_of(&self, job: JobId) -> bool {
        self.work.values().any(|(lease, _)| lease.job == job)
    }

    fn start<R>(&mut self, actions: &mut Vec<Action<R>>) {
        if self.state == State::Out {
            self.leaving = false;
            // Another manager has numbers of its own.
            self.last = LeaseId(0);
            self.join(actions);
        }
    }

    fn join<R>(&mut self, actions: &mut Vec<Action<R>>) {
        self.state = State::Joining;
        actions.push(Action::Say(ToManager::Hello(self.hello.clone())));
    }

    fn told<R>(&mut self, message: ToNode, actions: &mut Vec<Action<R>>) {
        match message {
            ToNode::Welcome { epoch, heartbeat } => self.welcome(epoch, heartbeat, actions),
            ToNode::Refused(refusal) if self.state == State::Joining => {
                self.leave_off(Left::Refused(refusal), actions);
            }
            ToNode::Lease { epoch, lease }
                if self.state == State::In(epoch) && lease.id > self.last =>
            {
                self.last = lease.id;
                self.received += 1;
                if self.work.len() < self.hello.buffers as usize {
                    self.work.insert(lease.id, (lease, Stage::Fetching));
                    actions.push(Action::Fetch(lease));
                }
            }
            ToNode::Withdraw { epoch, lease } if self.state == State::In(epoch) => {
                self.stop(lease, actions);
            }
            ToNode::Shorten { epoch, lease, units } if self.state == State::In(epoch) => {
                self.shorten(lease, units, actions);
            }
            ToNode::Fenced { epoch } if self.state == State::In(epoch) => {
                self.stop_all(actions);
                if self.leaving {
                    return self.leave_off(Left::Dismissed, actions);
                }
                self.join(actions);
            }
            ToNode::Dismissed { epoch } if self.state == State::In(epoch) => {
                self.leave_off(Left::Dismissed, actions);
            }
            // Of a membership that is over.
            _ => {}
        }
    }

    fn welcome<R>(&mut self, epoch: Epoch, heartbeat: Duration, actions: &mut Vec<Action<R>>) {
        match self.state {
            State::Out => return actions.push(Action::Say(ToManager::Leaving { epoch })),
            State::In(current) if current >= epoch => return,
            State::In(_) | State::Joining => self.stop_all(actions),
        }
        self.state = State::In(epoch);
        (self.heartbeat, self.timer) = (heartbeat, None);
        (self.asked, self.received) = (0, 0);
        if self.leaving {
            actions.push(Action::Say(ToManager::Leaving { epoch }));
        }
    }

    fn leave<R>(&mut self, actions: &mut Vec<Action<R>>) {
        self.leaving = true;
        if let State::In(epoch) = self.state {
            actions.push(Action::Say(ToManager::Leaving { epoch }));
        }
    }

    fn unfit<R>(&mut self, why: String, actions: &mut Vec<Action<R>>) {
        if let State::In(epoch) = self.state {
            actions.push(Action::Say(ToManager::Unfit { epoch, why: why.clone() }));
            self.leave_off(Left::Unfit(why), actions);
        }
    }

    fn leave_off<R>(&mut self, why: Left, actions: &mut Vec<Action<R>>) {
        self.stop_all(actions);
        if self.state != State::Out {
            self.state = State::Out;
            actions.push(Action::Left(why));
        }
    }

    fn stop_all<R>(&mut self, actions: &mut Vec<Action<R>>) {
        for lease in self.work.keys().copied().collect::<Vec<_>>() {
            self.stop(lease, actions);
        }
    }

    /// What is being sent goes its way.
    fn stop<R>(&mut self, lease: LeaseId, actions: &mut Vec<Action<R>>) {
        if let Some((_, stage)) = self.work.get_mut(&lease)
            && !matches!(stage, Stage::Returning | Stage::Stopping { .. })
        {
            *stage = Stage::Stopping { computing: *stage == Stage::Computing };
            actions.push(Action::Stop(lease));
        }
    }

    /// What has come to something, or is about to, tells by itself.
    fn shorten<R>(&mut self, id: LeaseId, units: u64, actions: &mut Vec<Action<R>>) {
        match self.work.get(&id) {
            Some((lease, _)) if lease.units == units => self.shortened(id, units, true, actions),
            Some((lease, Stage::Computing)) if units > 0 && units < lease.units => {
                actions.push(Action::Shorten(id, units));
            }
            // It is not begun.
            Some((lease, Stage::Fetching | Stage::Ready)) if units > 0 && units < lease.units => {
                self.shortened(id, units, true, actions);
            }
            Some(_) => self.shortened(id, units, false, actions),
            None => {}
        }
    }

    fn shortened<R>(
        &mut self,
        id: LeaseId,
        units: u64,
        is_shorter: bool,
        actions: &mut Vec<Action<R>>,
    ) {
        let State::In(epoch) = self.state else { return };
        let Some((lease, stage)) = self.work.get_mut(&id) else { return };
        if !matches!(stage, Stage::Fetching | Stage::Ready | Stage::Computing) {
            return;
        }
        if is_shorter {
            lease.units = units;
        }
        actions.push(Action::Say(ToManager::Shortened { epoch, lease: id, units, is_shorter }));
    }

    fn advance(&mut self, lease: LeaseId, from: Stage, to: Stage) {
        if let Some((_, stage)) = self.work.get_mut(&lease)
            && *stage == from
        {
            *stage = to;
        }
    }

    fn computed<R>(&mut self, lease: LeaseId, result: R, actions: &mut Vec<Action<R>>) {
        match (self.work.get_mut(&lease), self.state) {
            (Some((Lease { units, .. }, stage @ Stage::Computing)), State::In(epoch)) => {
                *stage = Stage::Returning;
                let units = *units;
                actions.push(Action::Say(ToManager::Result { epoch, lease, units, result }));
            }
            _ => {
                self.freed(lease);
                actions.push(Action::Drop(result));
            }
        }
    }

    fn failed<R>(&mut self, lease: LeaseId, failure: Failure, actions: &mut Vec<Action<R>>) {
        let stage = self.work.get(&lease).map(|(_, stage)| *stage);
        self.freed(lease);
        if let (Some(Stage::Fetching | Stage::Computing), State::In(epoch)) = (stage, self.state) {
            actions.push(Action::Say(ToManager::Failed { epoch, lease, failure }));
        }
    }

    fn freed(&mut self, lease: LeaseId) {
        self.work.remove(&lease);
    }

    /// Computes the oldest leases that are there, beside others while it may.
    fn compute<R>(&mut self, actions: &mut Vec<Action<R>>) {
        while let Some(lease) = self.next() {
            self.advance(lease.id, Stage::Ready, Stage::Computing);
            actions.push(Action::Compute(lease));
        }
    }

    /// What is to be computed; nothing that has a unit of what the accelerators have.
    fn next(&self) -> Option<Lease> {
        let computed = || {
            let all = self.work.values().filter(|(_, stage)| {
                matches!(stage, Stage::Computing | Stage::Stopping { computing: true })
            });
            all.map(|(lease, _)| lease)
        };
        if computed().count() >= self.at_once {
            return None;
        }
        let mut ready = self.work.values().filter(|(_, stage)| *stage == Stage::Ready);
        ready.find_map(|(lease, _)| (!computed().any(|of| of.meets(lease))).then_some(*lease))
    }

    /// Asks for a lease per free buffer, unless the accelerators still have
    /// what they were told to leave off: perhaps they never will.
    fn ask<R>(&mut self, actions: &mut Vec<Action<R>>) {
        let State::In(epoch) = self.state else { return };
        let stuck = Stage::Stopping { computing: true };
        if self.work.values().any(|(_, stage)| *stage == stuck) {
            return;
        }
        let expected = self.asked.saturating_sub(self.received) + self.work.len() as u64;
        let free = u64::from(self.hello.buffers).saturating_sub(expected);
        if free > 0 && !self.leaving {
            self.asked += free;
            actions.push(Action::Say(ToManager::Ask { epoch, in_all: self.asked }));
        }
    }

    /// Lets itself be heard of when it had nothing to say for long, and says again
    /// what may have been lost; leaves if nobody answers.
    fn beat<R>(&mut self, now: Duration, from: usize, is_due: bool, actions: &mut Vec<Action<R>>) {
        if self.state == State::Out {
            self.timer = None;
            return;
        }
        if actions.iter().skip(from).any(|action| matches!(action, Action::Say(_))) {
            self.said = now;
        } else if is_due && now.saturating_sub(self.said) >= self.heartbeat {
            if self.heartbeat.saturating_mul(self.unheard) >= self.patience {
                return self.leave_off(Left::Lost, actions);
            }
            self.unheard += 1;
            self.said = now;
            self.say_again(actions);
        }
        if self.timer.is_none_or(|due| due <= now) {
            let due = self.said.saturating_add(self.heartbeat);
            self.timer = Some(due);
            actions.push(Action::SetTimer(due));
        }
    }

    fn say_again<R>(&self, actions: &mut Vec<Action<R>>) {
        match self.state {
            State::Out => {}
            State::Joining => actions.push(Action::Say(ToManager::Hello(self.hello.clone()))),
            State::In(epoch) => {
                if self.leaving {
                    actions.push(Action::Say(ToManager::Leaving { epoch }));
                } else if self.asked > self.received {
                    actions.push(Action::Say(ToManager::Ask { epoch, in_all: self.asked }));
                }
                actions.push(Action::Say(ToManager::Alive { epoch }));
            }
        }
    }
}

#[cfg(test)]
mod tests;
