//! The peers of an experiment: all go through the same steps, run after run, over one
//! transport.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use cellway::cluster::NodeId;
use cellway::cluster::drive::{self, Config, MANAGER, Report};
use cellway::cluster::task::Task;
use cellway::cluster::transport::{Endpoint, Received, TransportError};

use super::limited::Limited;

/// What peers say to each other between two runs begins so.
const WORD: &[u8] = b"\xffcellway bench\xff";

/// A peer that says nothing for so long is gone.
const PATIENCE: Duration = Duration::from_secs(120);

/// What went over the transport at this peer in one run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) sent: u64,
    pub(super) sent_bytes: u64,
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    /// From each message that came until the next that left, where these take turns.
    pub(super) turnaround: Duration,
}

struct Link {
    endpoint: Limited,
    traffic: Traffic,
    /// Whether each message is answered before the next comes.
    takes_turns: bool,
    /// When the last message came, unless one left since.
    heard: Option<Instant>,
}

/// Lent to one run, and there for the next.
struct Lent(Arc<Mutex<Link>>);

impl Lent {
    fn with<T>(&self, act: impl FnOnce(&mut Link) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Endpoint for Lent {
    fn own(&self) -> NodeId {
        self.with(|link| link.endpoint.own())
    }

    fn peers(&self) -> u32 {
        self.with(|link| link.endpoint.peers())
    }

    fn send(&mut self, to: NodeId, message: Vec<u8>) -> Result<(), TransportError> {
        self.with(|link| {
            link.traffic.sent += 1;
            link.traffic.sent_bytes += message.len() as u64;
            if let Some(heard) = link.heard.take() {
                link.traffic.turnaround += heard.elapsed();
            }
            link.endpoint.send(to, message)
        })
    }

    fn receive(&mut self, until: Option<Instant>) -> Result<Received, TransportError> {
        self.with(|link| {
            let received = link.endpoint.receive(until)?;
            if let Received::Message(_, message) = &received {
                link.traffic.received += 1;
                link.traffic.received_bytes += message.len() as u64;
                link.heard = link.takes_turns.then(Instant::now);
            }
            Ok(received)
        })
    }

    fn ends_all(&self) -> bool {
        self.with(|link| link.endpoint.ends_all())
    }

    fn waker(&self) -> Waker {
        self.with(|link| link.endpoint.waker())
    }

    fn close(self: Box<Self>, _: Instant) -> Result<(), TransportError> {
        Ok(())
    }
}

/// One of them.
pub(super) struct Peer(Lent);

impl Peer {
    pub(super) fn new(endpoint: Box<dyn Endpoint>) -> Self {
        let endpoint = Limited::new(endpoint);
        let traffic = Traffic::default();
        let link = Link { endpoint, traffic, takes_turns: false, heard: None };
        Self(Lent(Arc::new(Mutex::new(link))))
    }

    pub(super) fn manages(&self) -> bool {
        self.0.own() == MANAGER
    }

    pub(super) fn count(&self) -> u32 {
        self.0.peers()
    }

    /// What it sends goes over a link of so many bytes per second, or without a limit.
    pub(super) fn limit(&self, bytes_per_second: Option<f64>) {
        self.0.with(|link| link.endpoint.limit(bytes_per_second));
    }

    /// Does `task` with all others, which have met; at the manager, what came of it,
    /// and how long that took.
    pub(super) fn run(
        &self,
        task: &dyn Task,
        config: &Config,
    ) -> anyhow::Result<(Option<Report>, Duration, Traffic)> {
        self.meet(&[])?;
        self.0.with(|link| {
            (link.traffic, link.heard) = (Traffic::default(), None);
            link.takes_turns = config.hello.buffers == 1;
        });
        let started = Instant::now();
        let ran = drive::run(Box::new(Lent(self.0.0.clone())), &[task], config)?;
        Ok((ran.report, started.elapsed(), self.0.with(|link| link.traffic)))
    }

    /// Waits for all. The manager gets what each node says, in turn, nodes what it says.
    pub(super) fn meet(&self, word: &[u8]) -> anyhow::Result<Vec<Vec<u8>>> {
        let said = [WORD, word].concat();
        if !self.manages() {
            self.send(MANAGER, said)?;
            return Ok(vec![self.heard(MANAGER)?]);
        }
        let nodes = || (0..self.count()).map(NodeId).filter(|node| *node != MANAGER);
        let mut words: Vec<Option<Vec<u8>>> = nodes().map(|_| None).collect();
        while words.iter().any(Option::is_none) {
            let (from, word) = self.next()?;
            if let Some(place) = (from.0 as usize).checked_sub(1) {
                *words.get_mut(place).context("a peer that there is not")? = Some(word);
            }
        }
        nodes().try_for_each(|node| self.send(node, said.clone()))?;
        Ok(words.into_iter().flatten().collect())
    }

    /// The manager's numbers, for all.
    pub(super) fn agree<const N: usize>(&self, own: [u64; N]) -> anyhow::Result<[u64; N]> {
        let said = self.meet(&own.map(u64::to_le_bytes).concat())?;
        let Some(said) = said.first().filter(|_| !self.manages()) else { return Ok(own) };
        let (numbers, _) = said.as_chunks().0.split_first_chunk().context("numbers are missing")?;
        Ok(numbers.map(u64::from_le_bytes))
    }

    /// The number of each node, at the manager.
    pub(super) fn told(&self, own: u64) -> anyhow::Result<Vec<u64>> {
        let said = self.meet(&own.to_le_bytes())?;
        let nodes = said.iter().filter(|_| self.manages());
        Ok(nodes.filter_map(|word| Some(u64::from_le_bytes(*word.first_chunk()?))).collect())
    }

    /// Messages of so many bytes from the manager to the first node and of so many back,
    /// `rounds` times, with something done there between: how long each took. The other nodes
    /// have no part in it.
    pub(super) fn ping(
        &self,
        (there, back): (usize, usize),
        rounds: u32,
        mut between: impl FnMut(u32) -> anyhow::Result<()>,
    ) -> anyhow::Result<Duration> {
        self.meet(&[])?;
        let (node, mut message) = (NodeId(1), vec![7; there]);
        let started = Instant::now();
        for round in 0..rounds {
            // What came goes back: none is made.
            if self.manages() {
                message.resize(there, 7);
                self.send(node, message)?;
                message = self.message_of(node)?;
            } else if self.0.own() == node {
                message = self.message_of(MANAGER)?;
                between(round)?;
                message.resize(back, 7);
                self.send(MANAGER, std::mem::take(&mut message))?;
            }
        }
        let took = started.elapsed() / rounds.max(1);
        // Words of the others would be lost in it.
        if self.manages() {
            (2..self.count()).try_for_each(|other| self.send(NodeId(other), WORD.to_vec()))?;
        } else if self.0.own() != node {
            self.heard(MANAGER)?;
        }
        Ok(took)
    }

    fn send(&self, to: NodeId, message: Vec<u8>) -> anyhow::Result<()> {
        Ok(self.0.with(|link| link.endpoint.send(to, message))?)
    }

    fn heard(&self, of: NodeId) -> anyhow::Result<Vec<u8>> {
        loop {
            let (from, word) = self.next()?;
            if from == of {
                return Ok(word);
            }
        }
    }

    /// The next word. What a run left behind is none.
    fn next(&self) -> anyhow::Result<(NodeId, Vec<u8>)> {
        loop {
            let (from, bytes) = self.message()?;
            if let Some(word) = bytes.strip_prefix(WORD) {
                return Ok((from, word.to_vec()));
            }
        }
    }

    /// The next message of one with which nothing else is said: a run's came before its word.
    fn message_of(&self, of: NodeId) -> anyhow::Result<Vec<u8>> {
        loop {
            let (from, bytes) = self.message()?;
            if from == of {
                return Ok(bytes);
            }
        }
    }

    fn message(&self) -> anyhow::Result<(NodeId, Vec<u8>)> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            match self.0.with(|link| link.endpoint.receive(Some(until)))? {
                Received::Message(from, bytes) => return Ok((from, bytes)),
                // One node may be done while another still waits for the manager's word.
                Received::Left(peer) | Received::Lost(peer)
                    if self.manages() || peer == MANAGER =>
                {
                    bail!("peer {} is lost", peer.0)
                }
                Received::Left(_) | Received::Lost(_) | Received::Nothing => {}
            }
        }
        bail!("no peer said anything for {} s", PATIENCE.as_secs())
    }

    /// Ends the transport, which others do as well.
    pub(super) fn close(self) -> anyhow::Result<()> {
        self.meet(&[])?;
        let Ok(link) = Arc::try_unwrap(self.0.0) else { bail!("a run still has its transport") };
        let link = link.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Box::new(link.endpoint).close(Instant::now() + PATIENCE)?)
    }
}

#[cfg(test)]
mod tests {
    use cellway::cluster::transport::local;

    use super::*;

    #[test]
    fn all_have_the_managers_numbers_and_it_has_theirs() {
        thread_each(3, |peer| {
            let own = u64::from(peer.0.own().0) + 7;
            assert_eq!(peer.agree([own, 1]).unwrap(), [7, 1]);
            let told = if peer.manages() { vec![8, 9] } else { Vec::new() };
            assert_eq!(peer.told(own).unwrap(), told);
            // What a run left behind is passed over.
            if !peer.manages() {
                peer.send(MANAGER, vec![1, 2, 3]).unwrap();
            }
            peer.ping((40, 2), 5, |_| Ok(())).unwrap();
            assert_eq!(peer.agree([own]).unwrap(), [7]);
            peer.close().unwrap();
        });
    }

    #[test]
    fn a_peer_that_is_lost_is_told() {
        thread_each(2, |peer| {
            if peer.manages() {
                let error = peer.meet(&[]).unwrap_err().to_string();
                assert_eq!(error, "peer 1 is lost");
            }
        });
    }

    #[test]
    fn a_node_that_is_done_before_another_is_no_loss_to_that() {
        thread_each(3, |peer| match peer.0.own().0 {
            0 => {
                assert_eq!(peer.next().unwrap_err().to_string(), "peer 1 is lost");
                peer.send(NodeId(2), WORD.to_vec()).unwrap();
            }
            2 => assert_eq!(peer.heard(MANAGER).unwrap(), Vec::<u8>::new()),
            _ => {}
        });
    }

    fn thread_each(peers: u32, part: impl Fn(Peer) + Sync) {
        let part = &part;
        std::thread::scope(|scope| {
            for endpoint in local::endpoints(peers) {
                scope.spawn(move || part(Peer::new(Box::new(endpoint))));
            }
        });
    }
}
