//! Endpoints with faults, and what else a test puts between peers.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use cellway_cluster::drive::{self, ClusterError, Config, Ran, Report};
use cellway_cluster::task::Task;
use cellway_cluster::transport::local::{Local, endpoints};
use cellway_cluster::transport::{Endpoint, Received, TransportError};
use cellway_cluster::{Message, NodeId};

/// Splitmix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Never, if that is 0.
    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        many > 0 && self.below(many) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Once in so many messages; 0: never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) dropped: u64,
    pub(crate) twice: u64,
    pub(crate) flipped: u64,
    pub(crate) cut: u64,
    pub(crate) late: u64,
    /// A peer is reported lost; nothing passes between the two from then on.
    pub(crate) lost: u64,
    /// The thread stands still.
    pub(crate) stopped: u64,
    /// The transport fails as a whole after so many calls.
    pub(crate) dies_after: Option<u64>,
    /// So many of these in all, but for the last.
    pub(crate) many: u64,
}

/// What a test has a transport do besides.
pub(crate) trait Hook: Send {
    /// Before it looks for a message.
    fn receives(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    fn ends_all(&self) -> bool {
        false
    }

    /// Whether it takes leave of the others.
    fn closes(&self, _own: NodeId, _until: Instant) -> bool {
        true
    }
}

/// A transport with such a thing.
pub(crate) struct Hooked<H>(pub(crate) Local, pub(crate) H);

impl<H: Hook> Endpoint for Hooked<H> {
    fn own(&self) -> NodeId {
        self.0.own()
    }

    fn peers(&self) -> u32 {
        self.0.peers()
    }

    fn send(&mut self, to: NodeId, message: Vec<u8>) -> Result<(), TransportError> {
        self.0.send(to, message)
    }

    fn receive(&mut self, until: Option<Instant>) -> Result<Received, TransportError> {
        self.1.receives()?;
        self.0.receive(until)
    }

    fn ends_all(&self) -> bool {
        self.1.ends_all()
    }

    fn waker(&self) -> Waker {
        self.0.waker()
    }

    fn close(self: Box<Self>, until: Instant) -> Result<(), TransportError> {
        match self.1.closes(self.0.own(), until) {
            true => Box::new(self.0).close(until),
            false => Ok(()),
        }
    }
}

/// One that has died.
fn died(transport: &'static str) -> TransportError {
    TransportError { transport, what: "it died".to_owned(), cure: "none".to_owned() }
}

/// Dies when it is told to, without a word.
pub(crate) struct Dies(pub(crate) mpsc::Receiver<()>);

impl Hook for Dies {
    fn receives(&mut self) -> Result<(), TransportError> {
        match self.0.try_recv() {
            Ok(()) => Err(died("it")),
            Err(_) => Ok(()),
        }
    }

    fn closes(&self, _: NodeId, _: Instant) -> bool {
        false
    }
}

pub(crate) struct Faulty {
    inner: Local,
    faults: Faults,
    random: Random,
    calls: u64,
    lost: BTreeSet<NodeId>,
    /// On its way until then; messages do not overtake one another.
    held: VecDeque<(NodeId, Vec<u8>)>,
    until: Instant,
}

const LATE: Duration = Duration::from_millis(20);

impl Faulty {
    pub(crate) fn new(inner: Local, faults: Faults, random: Random) -> Self {
        let (lost, held, until) = (BTreeSet::new(), VecDeque::new(), Instant::now());
        Self { inner, faults, random, calls: 0, lost, held, until }
    }

    fn strikes(&mut self, one_in: u64) -> bool {
        let strikes = self.faults.many > 0 && self.random.one_in(one_in);
        self.faults.many -= u64::from(strikes);
        strikes
    }

    fn call(&mut self) -> Result<(), TransportError> {
        self.calls += 1;
        self.alive()
    }

    fn alive(&self) -> Result<(), TransportError> {
        if self.faults.dies_after.is_some_and(|calls| self.calls > calls) {
            return Err(died("faulty"));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        if self.until <= Instant::now() {
            for (to, message) in std::mem::take(&mut self.held) {
                self.inner.send(to, message)?;
            }
        }
        Ok(())
    }
}

impl Endpoint for Faulty {
    fn own(&self) -> NodeId {
        self.inner.own()
    }

    fn peers(&self) -> u32 {
        self.inner.peers()
    }

    fn send(&mut self, to: NodeId, mut message: Vec<u8>) -> Result<(), TransportError> {
        self.call()?;
        self.flush()?;
        let Faults { dropped, twice, flipped, cut, late, .. } = self.faults;
        if self.lost.contains(&to) || self.strikes(dropped) {
            return Ok(());
        }
        let len = message.len() as u64;
        if self.strikes(flipped) {
            let at = self.random.below(len) as usize;
            message[at] ^= 1 << self.random.below(8);
        }
        if self.strikes(cut) {
            message.truncate(self.random.below(len) as usize);
        }
        if self.held.is_empty() && self.strikes(late) {
            self.until = Instant::now() + LATE;
        }
        if self.strikes(twice) {
            self.held.push_back((to, message.clone()));
        }
        self.held.push_back((to, message));
        self.flush()
    }

    fn receive(&mut self, until: Option<Instant>) -> Result<Received, TransportError> {
        self.call()?;
        self.flush()?;
        if self.strikes(self.faults.stopped) {
            thread::sleep(Duration::from_millis(self.random.below(200)));
        }
        if self.strikes(self.faults.lost) {
            let peer = NodeId(self.random.below(self.peers().into()) as u32);
            if peer != self.own() && self.lost.insert(peer) {
                return Ok(Received::Lost(peer));
            }
        }
        // What is held goes on its way meanwhile.
        let sends = (!self.held.is_empty()).then_some(self.until);
        let received = self.inner.receive(until.into_iter().chain(sends).min())?;
        Ok(match received {
            Received::Message(from, _) if self.lost.contains(&from) => Received::Nothing,
            Received::Left(peer) | Received::Lost(peer) if !self.lost.insert(peer) => {
                Received::Nothing
            }
            received => received,
        })
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn close(mut self: Box<Self>, until: Instant) -> Result<(), TransportError> {
        self.alive()?;
        self.until = Instant::now();
        self.flush()?;
        Box::new(self.inner).close(until)
    }
}

/// Tells of what goes through, and may hold its thread up.
pub(crate) struct Watched {
    inner: Local,
    sends: Box<dyn FnMut(NodeId, Message) + Send>,
    receives: Box<dyn FnMut() + Send>,
}

impl Watched {
    /// `sends` gets each message when it was sent; `receives` is called before one is received.
    pub(crate) fn boxed(
        inner: Local,
        sends: impl FnMut(NodeId, Message) + Send + 'static,
        receives: impl FnMut() + Send + 'static,
    ) -> Box<dyn Endpoint> {
        Box::new(Self { inner, sends: Box::new(sends), receives: Box::new(receives) })
    }
}

impl Endpoint for Watched {
    fn own(&self) -> NodeId {
        self.inner.own()
    }

    fn peers(&self) -> u32 {
        self.inner.peers()
    }

    fn send(&mut self, to: NodeId, message: Vec<u8>) -> Result<(), TransportError> {
        let sent = Message::from_bytes(&message).unwrap();
        self.inner.send(to, message)?;
        sent.into_iter().for_each(|sent| (self.sends)(to, sent));
        Ok(())
    }

    fn receive(&mut self, until: Option<Instant>) -> Result<Received, TransportError> {
        (self.receives)();
        self.inner.receive(until)
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn close(self: Box<Self>, until: Instant) -> Result<(), TransportError> {
        Box::new(self.inner).close(until)
    }
}

/// What a peer did, that the others see end.
pub(crate) type Ended = Result<Option<Report>, ClusterError>;

pub(crate) fn run(endpoint: Box<dyn Endpoint>, tasks: &[&dyn Task], config: &Config) -> Ended {
    let Ran { report, farewell, .. } = drive::run(endpoint, tasks, config)?;
    farewell.say()?;
    Ok(report)
}

/// So many endpoints.
pub(crate) fn locals<const N: usize>() -> [Local; N] {
    endpoints(N as u32).try_into().expect("as many as asked for")
}

/// What `run` comes to, on a thread of its own, for it may never end.
pub(crate) fn watched<T: Send + 'static>(
    what: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (tell, told) = mpsc::channel();
    let runs = thread::spawn(move || tell.send(run()));
    match told.recv_timeout(Duration::from_secs(120)) {
        Ok(found) => found,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} does not end"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match runs.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => panic!("{what} ended without a word"),
        },
    }
}
