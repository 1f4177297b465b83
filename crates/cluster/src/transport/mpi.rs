//! Over MPI, which need not be there when Cellway is built.
//!
//! [`Mpi::start`] has the `mpicc` of the site compile `shim.c`, which has plain C types
//! alone, and loads that: Open MPI and MPICH differ in every type of `mpi.h`. All else is
//! calls that do not wait: MPI goes on only while it is called, so [`Endpoint::receive`]
//! looks again and again.
//!
//! | variable | what it says |
//! |---|---|
//! | `CELLWAY_MPICC` | the `mpicc` of the `mpirun` in use, if not the first in `PATH` |
//! | `CELLWAY_MPI_SHIM` | a compiled `shim.c`; then no `mpicc` is called |
//! | `XDG_CACHE_HOME` | where compiled shims are kept, in `cellway/`; else `~/.cache` |

#[allow(unsafe_code)]
mod ffi;
mod launch;
mod pause;
mod site;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

pub use launch::WhenLost;

use super::{Endpoint, MESSAGE_BYTES_MAX, Received, TransportError};
use accel::Topology;
use stream::Options;

use crate::NodeId;
use ffi::{Calls, Fault, Transfer};
use pause::Pause;
use site::Site;

const NAME: &str = "MPI";

/// Tags: a message, and the last word of a peer, which sends nothing after it.
const MESSAGE: i32 = 0;
const END: i32 = 1;
/// Said after that by a peer that ends without MPI, for whose end nobody is to wait.
const GONE: i32 = 2;

/// How long it takes care that this is heard.
const GONE_AFTER: Duration = Duration::from_secs(1);

/// How long the end of MPI takes at most, where one may die in it.
const ENDED_WITHIN: Duration = Duration::from_secs(3);

/// No more messages are taken up while so many are coming in, or so many bytes.
const COMING_MAX: usize = 64;
const COMING_BYTES_MAX: usize = 64 << 20;
/// A message that is coming in for longer does not count: who sends it may be dead
/// where MPI does not tell.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// Peers whose sends are looked after at a time.
const SENDING_LOOKS: usize = 32;

fn error(what: impl Into<String>, cure: impl Into<String>) -> TransportError {
    TransportError { transport: NAME, what: what.into(), cure: cure.into() }
}

/// This process among those that `mpirun` started. Dropped without a close, it is lost.
#[derive(Debug)]
pub struct Mpi {
    calls: Calls,
    library: String,
    when_lost: WhenLost,
    own: u32,
    peers: Vec<Peer>,
    /// Those with something on its way to them.
    sending: VecDeque<u32>,
    /// In the order in which they were sent, of each peer.
    coming: VecDeque<Coming>,
    /// Told of as lost; what they sent before, their last word too, may not be taken up yet.
    lost: Vec<u32>,
    wakeup: Arc<Wakeup>,
    pause: Pause,
}

#[derive(Debug, Default)]
struct Peer {
    state: State,
    /// It left without a word, so it does not end MPI with the others.
    is_dead: bool,
    /// It has said its last word.
    has_ended: bool,
    sending: VecDeque<Transfer>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Here,
    /// It is lost or has left, but what it sent before is still coming in.
    Leaving,
    Gone,
}

/// A message that is coming in, or the end of its sender.
#[derive(Debug)]
struct Coming {
    from: u32,
    message: Option<Transfer>,
    /// When it was first seen to wait.
    since: Option<Instant>,
}

impl Coming {
    fn is_there(&self) -> bool {
        self.message.as_ref().is_none_or(Transfer::is_done)
    }

    fn bytes(&self) -> usize {
        self.message.as_ref().map_or(0, Transfer::count)
    }
}

/// Ends naps too.
#[derive(Debug, Default)]
struct Wakeup {
    state: Mutex<Wakes>,
    calls: Condvar,
}

#[derive(Debug, Default)]
struct Wakes {
    called: bool,
    naps: bool,
}

impl Wakeup {
    /// Whether it was called since it was asked last.
    fn take(&self) -> bool {
        std::mem::take(&mut self.lock().called)
    }

    fn nap(&self, time: Duration) {
        let mut state = self.lock();
        state.naps = !state.called;
        if state.naps {
            let woken = self.calls.wait_timeout(state, time);
            woken.unwrap_or_else(PoisonError::into_inner).0.naps = false;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Wakes> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        let mut state = self.lock();
        state.called = true;
        if state.naps {
            self.calls.notify_one();
        }
    }
}

/// MPI of a process whose peers all said that they end, until it [`leave`]s.
static CLOSED: Mutex<Option<(Calls, WhenLost)>> = Mutex::new(None);

fn closed() -> MutexGuard<'static, Option<(Calls, WhenLost)>> {
    CLOSED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process has started MPI: it must end by [`leave`].
#[must_use]
pub fn is_started() -> bool {
    ffi::is_running()
}

/// Whether others are lost or still at work, so that MPI cannot end: this process ends
/// without the destructors of MPI, which wait for them.
#[must_use]
pub fn must_leave() -> bool {
    is_started() && closed().is_none()
}

/// Ends MPI and this process, by `_exit` if it [`must_leave`].
///
/// MPI waits for ever for a peer that dies while it ends: where the others outlive one
/// that is lost, they wait for 3 s and go.
pub fn leave(code: i32) -> ! {
    if let Some((calls, when_lost)) = closed().take() {
        if when_lost != WhenLost::EndsAll {
            std::thread::spawn(move || {
                std::thread::sleep(ENDED_WITHIN);
                ffi::leave(code)
            });
        }
        // What is wrong MPI says itself; nothing depends on it any more.
        let _ = calls.end();
    }
    ffi::leave(code)
}

/// Whether an `mpirun` started this process, as its environment says.
#[must_use]
pub fn was_launched() -> bool {
    launch::STARTED.iter().any(|name| std::env::var_os(name).is_some())
}

/// Which of those that `mpirun` started this process is, whether it has started MPI or not.
#[must_use]
pub fn launched_as() -> Option<u32> {
    let rank = |name: &&str| std::env::var(name).ok()?.parse().ok();
    launch::RANK.iter().find_map(rank)
}

/// What one process takes of its machine: where several may use all its cores, as
/// without binding, its share of them, and it is left to the system which.
#[must_use]
pub fn share(options: Options) -> Options {
    let local_size = |name: &&str| std::env::var(name).ok()?.parse::<usize>().ok();
    let peers = launch::LOCAL_SIZE.iter().find_map(local_size).unwrap_or(1);
    let machine = Topology::read();
    let cores = machine.cores_allowed.len();
    if peers < 2 || machine.cores_online != Some(cores) {
        return options;
    }
    let accelerators = options.accelerators.or(Some((cores / peers).max(1)));
    Options { accelerators, unpinned: true, ..options }
}

impl Mpi {
    /// Starts MPI, once in a process; a process that no `mpirun` started is alone.
    ///
    /// # Errors
    /// If there is no `mpicc`, if it is not that of the `mpirun` in use, or MPI fails.
    pub fn start() -> Result<Self, TransportError> {
        let site = Site::new(|name| std::env::var_os(name));
        let shim = site.shim()?;
        let unusable = |what: String| {
            let cure = format!(
                "it was compiled by {}, which must be the mpicc of the mpirun in use: put the folder of \
                 that first in PATH, or name it by CELLWAY_MPICC; if the file was damaged, remove it",
                site.mpicc.display()
            );
            error(format!("{}: {what}", shim.display()), cure)
        };
        ffi::load(&shim).map_err(unusable)?;
        let (library, compiled_for) = ffi::library().unwrap_or_default();
        if !library.contains(&compiled_for) {
            return Err(unusable(format!("it is for {compiled_for:?}, and finds {library:?}")));
        }
        let library = library.split([',', '\n']).next().unwrap_or_default().to_owned();
        let variable = |name: &str| std::env::var(name).ok();
        let other_mpi = |what| {
            let cure = format!(
                "{} is of another MPI than mpirun: put the folder of that mpirun first in PATH, \
                 or name the mpicc beside it by CELLWAY_MPICC",
                site.mpicc.display()
            );
            error(format!("{library}: {what}"), cure)
        };
        if let Some(what) = launch::foreign(variable, &library) {
            return Err(other_mpi(what));
        }
        let failed = |what| error(format!("{library}: {what}"), "see what it printed itself");
        let (calls, started) = Calls::start().map_err(failed)?;
        let (own, peers) = (started.own as u32, started.peers as u32);
        if let Some(what) = launch::mismatch(variable, own, peers) {
            // It is alone, so nobody is waited for.
            let _ = calls.end();
            return Err(other_mpi(what));
        }
        Ok(Self {
            calls,
            library,
            when_lost: WhenLost::new(variable, started.reports_losses != 0),
            own,
            peers: (0..peers).map(|_| Peer::default()).collect(),
            sending: VecDeque::new(),
            coming: VecDeque::new(),
            lost: Vec::new(),
            wakeup: Arc::default(),
            pause: Pause::default(),
        })
    }

    /// What becomes of the others when a process is lost.
    #[must_use]
    pub fn when_lost(&self) -> WhenLost {
        self.when_lost
    }

    /// The MPI in use, with its version.
    #[must_use]
    pub fn library(&self) -> &str {
        &self.library
    }

    fn failed(&self, what: &str) -> TransportError {
        error(format!("{}: {what}", self.library), "see what mpirun printed")
    }

    /// What `fault` is for the transport: a loss is told later, anything else ends it.
    fn passed(&mut self, fault: Fault) -> Result<(), TransportError> {
        match fault {
            Fault::Lost => self.find_lost(),
            Fault::Failed(what) => Err(self.failed(&what)),
        }
    }

    /// Sends to a peer that still receives.
    fn start_sending(&mut self, to: u32, bytes: Vec<u8>, tag: i32) -> Result<(), TransportError> {
        let Some(peer) = self.peers.get_mut(to as usize) else { return Ok(()) };
        // One that has said its last word waits for that of this peer.
        if peer.is_dead || (peer.state != State::Here && tag == MESSAGE) {
            return Ok(());
        }
        let mut transfer = match self.calls.send(bytes, to, tag) {
            Ok(transfer) => transfer,
            Err(fault) => return self.passed(fault),
        };
        match self.calls.test(&mut transfer) {
            Ok(true) => {}
            Ok(false) => {
                if peer.sending.is_empty() {
                    self.sending.push_back(to);
                }
                peer.sending.push_back(transfer);
            }
            Err(fault) => return self.passed(fault),
        }
        Ok(())
    }

    /// Frees what has left.
    fn look_after_sending(&mut self) -> Result<(), TransportError> {
        for _ in 0..self.sending.len().min(SENDING_LOOKS) {
            let Some(to) = self.sending.pop_front() else { break };
            let Some(peer) = self.peers.get_mut(to as usize) else { continue };
            let mut fault = None;
            while let Some(transfer) = peer.sending.front_mut() {
                match self.calls.test(transfer) {
                    Ok(false) => break,
                    Ok(true) => {}
                    Err(error) => fault = Some(error.worse(fault)),
                }
                peer.sending.pop_front();
            }
            if !peer.sending.is_empty() {
                self.sending.push_back(to);
            }
            if let Some(fault) = fault {
                self.passed(fault)?;
            }
        }
        Ok(())
    }

    fn look_after_coming(&mut self) -> Result<(), TransportError> {
        let mut fault = None;
        let calls = &mut self.calls;
        self.coming.retain_mut(|coming| match coming.message.as_mut().map(|one| calls.test(one)) {
            None | Some(Ok(_)) => true,
            Some(Err(error)) => {
                fault = Some(error.worse(fault.take()));
                false
            }
        });
        fault.map_or(Ok(()), |fault| self.passed(fault))
    }

    /// The first that is there, of those that nothing of the same peer goes before.
    fn deliver(&mut self) -> Option<Received> {
        let mut at = 0;
        while let Some(coming) = self.coming.get(at) {
            let from = coming.from;
            if !coming.is_there() || self.coming.iter().take(at).any(|before| before.from == from) {
                at += 1;
                continue;
            }
            let message = self.coming.remove(at)?.message;
            let peer = self.peers.get_mut(from as usize)?;
            if peer.state == State::Gone {
                continue;
            }
            let Some(message) = message else {
                peer.state = State::Gone;
                let ends = if peer.has_ended { Received::Left } else { Received::Lost };
                return Some(ends(NodeId(from)));
            };
            return message.into_bytes().map(|bytes| Received::Message(NodeId(from), bytes));
        }
        None
    }

    fn has_room(&mut self) -> bool {
        if self.coming.is_empty() {
            return true;
        }
        let now = Instant::now();
        let (mut count, mut bytes) = (0, 0);
        for coming in &mut self.coming {
            let since = *coming.since.get_or_insert(now);
            if now.saturating_duration_since(since) < STUCK_AFTER {
                (count, bytes) = (count + 1, bytes + coming.bytes());
            }
        }
        count < COMING_MAX && bytes < COMING_BYTES_MAX
    }

    /// Starts to receive the next message, if there is one; whether there may be more.
    fn take_up(&mut self) -> Result<bool, TransportError> {
        if !self.has_room() {
            return Ok(false);
        }
        let matched = match self.calls.matched() {
            Ok(Some(matched)) => matched,
            Ok(None) => return Ok(false),
            Err(fault) => {
                let known = self.lost.len();
                // Those whose loss was in the way of what else is there are known now.
                return self.passed(fault).map(|()| self.lost.len() > known);
            }
        };
        let from = matched.from as u32;
        if !usize::try_from(matched.count).is_ok_and(|count| count <= MESSAGE_BYTES_MAX) {
            let what = format!("a message of peer {from} is longer than {MESSAGE_BYTES_MAX} bytes");
            return Err(self.failed(&what));
        }
        let mut transfer = match self.calls.receive(&matched) {
            Ok(transfer) => transfer,
            Err(fault) => return self.passed(fault).map(|()| true),
        };
        if let Err(fault) = self.calls.test(&mut transfer) {
            return self.passed(fault).map(|()| true);
        }
        if let Some(peer) = self.peers.get_mut(from as usize) {
            peer.has_ended |= matched.tag == END;
            peer.is_dead |= matched.tag == GONE;
        }
        let message = (matched.tag == MESSAGE).then_some(transfer);
        if message.is_none() {
            self.leaves(from);
        } else {
            self.coming.push_back(Coming { from, message, since: None });
        }
        Ok(true)
    }

    /// A peer is lost, or has left, after all it sent until now.
    fn leaves(&mut self, peer: u32) {
        if let Some(known) = self.peers.get_mut(peer as usize).filter(|it| it.state == State::Here)
        {
            known.state = State::Leaving;
            self.coming.push_back(Coming { from: peer, message: None, since: None });
        }
    }

    /// Asks MPI who is lost. What was on its way from and to them ends here.
    fn find_lost(&mut self) -> Result<(), TransportError> {
        let lost = match self.calls.lost(self.peers.len() as u32) {
            Ok(lost) => lost,
            Err(fault) => return Err(self.failed(&format!("{fault:?}"))),
        };
        for number in lost {
            let Some(peer) = self.peers.get_mut(number as usize) else { continue };
            if peer.state == State::Here && !self.lost.contains(&number) {
                peer.is_dead = true;
                self.lost.push(number);
            }
            for mut transfer in peer.sending.drain(..) {
                // MPI is through with it, by an error; else it is never freed.
                let _ = self.calls.test(&mut transfer);
            }
            self.sending.retain(|to| *to != number);
            self.coming.retain(|coming| coming.from != number || coming.is_there());
        }
        Ok(())
    }

    fn look(&mut self) -> Result<Option<Received>, TransportError> {
        self.look_after_sending()?;
        self.look_after_coming()?;
        loop {
            let received = self.deliver();
            if received.is_some() {
                return Ok(received);
            }
            if self.take_up()? {
                continue;
            }
            if self.lost.is_empty() || !self.has_room() {
                return Ok(None);
            }
            for peer in std::mem::take(&mut self.lost) {
                self.leaves(peer);
            }
        }
    }

    /// Ends without MPI.
    fn say_gone(&mut self) -> Result<(), TransportError> {
        let own = self.own;
        for to in (0..self.peers()).filter(|to| *to != own) {
            self.start_sending(to, Vec::new(), GONE)?;
        }
        let (mut pause, until) = (Pause::default(), Instant::now() + GONE_AFTER);
        while !self.sending.is_empty() && pause.wait(Some(until), thread::sleep) {
            self.look()?;
        }
        Ok(())
    }

    /// Whether all others have left or said that they do.
    fn is_last(&self) -> bool {
        let others = self.peers.iter().zip(0..).filter(|(_, number)| *number != self.own);
        others.into_iter().all(|(peer, _)| peer.state != State::Here)
    }
}

impl Endpoint for Mpi {
    fn own(&self) -> NodeId {
        NodeId(self.own)
    }

    fn peers(&self) -> u32 {
        self.peers.len() as u32
    }

    fn send(&mut self, to: NodeId, message: Vec<u8>) -> Result<(), TransportError> {
        super::check(NAME, self.peers(), to, &message)?;
        self.start_sending(to.0, message, MESSAGE)
    }

    fn receive(&mut self, until: Option<Instant>) -> Result<Received, TransportError> {
        self.pause.begin();
        loop {
            if let Some(received) = self.look()? {
                return Ok(received);
            }
            if self.wakeup.take() || !self.pause.wait(until, |time| self.wakeup.nap(time)) {
                return Ok(Received::Nothing);
            }
        }
    }

    fn ends_all(&self) -> bool {
        self.when_lost == WhenLost::EndsAll
    }

    fn waker(&self) -> Waker {
        self.wakeup.clone().into()
    }

    /// Besides, waits until the others close, for MPI ends for all at once, and drops what
    /// they send meanwhile. If some are lost, or at work when the time is over, MPI cannot
    /// end: see [`must_leave`]. It ends when this process does, by [`leave`].
    fn close(mut self: Box<Self>, until: Instant) -> Result<(), TransportError> {
        let own = self.own;
        for to in (0..self.peers()).filter(|to| *to != own) {
            self.start_sending(to, Vec::new(), END)?;
        }
        let mut pause = Pause::default();
        while !(self.sending.is_empty() && self.is_last()) {
            match self.look()? {
                Some(_) => pause = Pause::default(),
                None if pause.wait(Some(until), thread::sleep) => {}
                None => break,
            }
        }
        // Who takes nothing for so long is as good as dead, where MPI does not tell. What is on
        // its way there is never freed.
        for to in std::mem::take(&mut self.sending) {
            if let Some(peer) = self.peers.get_mut(to as usize) {
                peer.is_dead = true;
                peer.sending.clear();
            }
        }
        // Who has said its last word may have said since that it waits no more.
        while self.take_up()? {}
        if !self.is_last() || self.peers.iter().any(|peer| peer.is_dead) {
            return self.say_gone();
        }
        *closed() = Some((self.calls, self.when_lost));
        Ok(())
    }
}
