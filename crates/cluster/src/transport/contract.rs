//! What every transport must do, as the part of one peer: the same on threads and in
//! processes of their own.

use std::collections::VecDeque;
use std::fmt::Display;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::{Endpoint, MESSAGE_BYTES_MAX, Received};
use crate::NodeId;

/// A peer that waits this long for something fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// More than transports keep of a message by themselves.
const LARGE_BYTES: usize = 2 << 20;

type Outcome<T = ()> = Result<T, String>;

/// The part of one peer. The others run theirs with the same seed.
///
/// # Errors
/// What a transport must not do.
pub fn run(endpoint: Box<dyn Endpoint>, seed: u64) -> Outcome {
    let mut peer = Peer::new(endpoint, seed)?;
    peer.step("all to all", all_to_all)?;
    peer.step("many small ones", many_small)?;
    peer.step("large ones both ways", large_both_ways)?;
    peer.step("a large one by looks", large_by_looks)?;
    peer.step("wakers", wakers)?;
    peer.step("times", times)?;
    peer.step("refused", refused)?;
    let waker = peer.endpoint.waker();
    close(peer)?;
    // It outlives its endpoint.
    waker.wake();
    Ok(())
}

/// What the others notice when a peer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// They are told.
    Told,
    /// Nothing.
    Silent,
}

/// The part of one peer where the last one is lost: it calls `die`.
///
/// # Errors
/// What a transport must not do.
pub fn run_with_loss(
    endpoint: Box<dyn Endpoint>,
    seed: u64,
    loss: Loss,
    die: impl FnOnce(Box<dyn Endpoint>),
) -> Outcome {
    const BYE: &[u8] = b"bye";
    let mut peer = Peer::new(endpoint, seed)?;
    peer.step("before a loss", all_to_all)?;
    let lost = peer.peers - 1;
    if peer.own == lost {
        // All others have got what this one sent.
        (0..lost).try_for_each(|from| peer.expect(from, BYE))?;
        die(peer.endpoint);
        return Ok(());
    }
    peer.send(lost, BYE.to_vec())?;
    if loss == Loss::Told {
        peer.doing = "being told of a loss";
        peer.until(|peer| peer.gone.contains(&lost))?;
        if peer.left.contains(&lost) {
            return Err(peer.fault("it died, and is said to have left"));
        }
    }
    peer.doing = "sending to the lost";
    for number in 0..20 {
        let bytes = if number % 2 == 0 { 8 } else { LARGE_BYTES };
        peer.send(lost, vec![number; bytes])?;
    }
    peer.peers = lost;
    peer.step("after a loss", all_to_all)?;
    peer.step("large ones after a loss", large_both_ways)?;
    let patience = if loss == Loss::Told { PATIENCE } else { Duration::from_millis(200) };
    // What is for the lost cannot leave, which is no failure of those that are there.
    let closed = peer.endpoint.close(Instant::now() + patience);
    closed.map_err(|error| format!("closing after a loss ({loss:?}): {error}"))
}

/// One peer, in its part.
struct Peer {
    endpoint: Box<dyn Endpoint>,
    own: u32,
    peers: u32,
    seed: u64,
    doing: &'static str,
    /// What came of each and was not yet asked for.
    came: Vec<VecDeque<Vec<u8>>>,
    gone: Vec<u32>,
    /// Those of them that said so.
    left: Vec<u32>,
}

impl Peer {
    fn new(endpoint: Box<dyn Endpoint>, seed: u64) -> Outcome<Self> {
        let (own, peers) = (endpoint.own().0, endpoint.peers());
        if own >= peers {
            return Err(format!("peer {own} of {peers}"));
        }
        let came = (0..peers).map(|_| VecDeque::new()).collect();
        Ok(Self { endpoint, own, peers, seed, doing: "", came, gone: Vec::new(), left: Vec::new() })
    }

    /// Does it, then waits until all peers have.
    fn step(&mut self, name: &'static str, step: fn(&mut Self) -> Outcome) -> Outcome {
        const DONE: &[u8] = b"done";
        self.doing = name;
        step(self)?;
        (0..self.peers).try_for_each(|to| self.send(to, DONE.to_vec()))?;
        (0..self.peers).try_for_each(|from| self.expect(from, DONE))
    }

    fn fault(&self, what: impl Display) -> String {
        let Self { own, peers, seed, doing, .. } = self;
        format!("{doing} (peer {own} of {peers}, seed {seed}): {what}")
    }

    fn next_in_ring(&self) -> u32 {
        (self.own + 1) % self.peers
    }

    fn previous_in_ring(&self) -> u32 {
        (self.own + self.peers - 1) % self.peers
    }

    /// What one peer sends another in this step, of any length; both can say.
    fn content(&self, from: u32, to: u32, number: u64, bytes: usize) -> Vec<u8> {
        let step = self.doing.bytes().map(u64::from).sum();
        Random::new(&[self.seed, step, from.into(), to.into(), number]).bytes(bytes)
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Outcome {
        self.endpoint.send(NodeId(to), message).map_err(|error| self.fault(error))
    }

    /// Receives once and keeps what came; false if nothing did.
    fn receive(&mut self, until: Instant) -> Outcome<bool> {
        let received = self.endpoint.receive(Some(until)).map_err(|error| self.fault(error))?;
        let (Received::Left(from) | Received::Lost(from) | Received::Message(from, _)) = received
        else {
            return Ok(false);
        };
        if self.gone.contains(&from.0) {
            return Err(self.fault(format!("something of peer {} after its loss", from.0)));
        }
        match (received, self.came.get_mut(from.0 as usize)) {
            (_, None) => return Err(self.fault(format!("something of peer {}", from.0))),
            (Received::Message(_, message), Some(came)) => came.push_back(message),
            (received, Some(_)) => {
                self.gone.push(from.0);
                self.left.extend(matches!(received, Received::Left(_)).then_some(from.0));
            }
        }
        Ok(true)
    }

    /// Receives until it is there.
    fn until(&mut self, is_there: impl Fn(&Self) -> bool) -> Outcome {
        let patience = Instant::now() + PATIENCE;
        while !is_there(self) {
            if !self.receive(patience)? {
                return Err(self.fault("a wait ended, though nobody woke it"));
            }
        }
        Ok(())
    }

    /// Receives until nothing comes; others may be a step ahead, so something may.
    fn until_nothing(&mut self, until: Instant) -> Outcome {
        while self.receive(until)? {}
        Ok(())
    }

    fn expect(&mut self, from: u32, expected: &[u8]) -> Outcome {
        let of = from as usize;
        self.until(|peer| !peer.came[of].is_empty() || peer.gone.contains(&from))?;
        let Some(message) = self.came[of].pop_front() else {
            return Err(self.fault(format!("peer {from} is lost")));
        };
        if message == expected {
            return Ok(());
        }
        let (is, should) = (message.len(), expected.len());
        let at = message.iter().zip(expected).position(|(is, should)| is != should);
        Err(self.fault(format!("{is} bytes of peer {from}, not {should}; they differ at {at:?}")))
    }
}

/// Each sends to each, itself too, in a random order.
fn all_to_all(peer: &mut Peer) -> Outcome {
    const MESSAGES: u64 = 30;
    let (own, peers) = (peer.own, peer.peers);
    let message = |peer: &Peer, from: u32, to: u32, number: u64| {
        let mut random = Random::new(&[peer.seed, from.into(), to.into(), number]);
        let bytes = match random.below(8) {
            // Some of those that are not sent at once.
            _ if random.below(10 * u64::from(peers)) == 0 => random.below(LARGE_BYTES as u64),
            0 => 0,
            1 => 1,
            2..6 => random.below(150) * 2 + 1,
            6 => 4090 + random.below(12),
            _ => random.below(100_000),
        };
        peer.content(from, to, number, bytes as usize)
    };
    let mut random = Random::new(&[peer.seed, own.into()]);
    let mut to_send: Vec<_> = (0..peers).map(|to| (to, 0)).collect();
    while !to_send.is_empty() {
        let at = random.below(to_send.len() as u64) as usize;
        let (to, number) = to_send[at];
        peer.send(to, message(peer, own, to, number))?;
        to_send[at].1 += 1;
        if number + 1 == MESSAGES {
            to_send.swap_remove(at);
        }
        if random.below(4) == 0 {
            peer.receive(Instant::now())?;
        }
    }
    for number in 0..MESSAGES {
        for from in 0..peers {
            peer.expect(from, &message(peer, from, own, number))?;
        }
    }
    Ok(())
}

/// Round a ring, with many under way.
fn many_small(peer: &mut Peer) -> Outcome {
    const MESSAGES: u64 = 20_000;
    let content = |number: u64| number.to_le_bytes()[..(number % 9) as usize].to_vec();
    (0..MESSAGES).try_for_each(|number| peer.send(peer.next_in_ring(), content(number)))?;
    let previous = peer.previous_in_ring();
    (0..MESSAGES).try_for_each(|number| peer.expect(previous, &content(number)))
}

/// Everybody sends before anybody receives.
fn large_both_ways(peer: &mut Peer) -> Outcome {
    let (next, previous, own) = (peer.next_in_ring(), peer.previous_in_ring(), peer.own);
    let bytes = LARGE_BYTES + 1;
    for to in [next, previous, own] {
        peer.send(to, peer.content(own, to, 0, bytes))?;
    }
    for from in [previous, next, own] {
        peer.expect(from, &peer.content(from, own, 0, bytes))?;
    }
    Ok(())
}

/// Messages go on their way while a peer only looks and never waits.
fn large_by_looks(peer: &mut Peer) -> Outcome {
    let (next, previous) = (peer.next_in_ring(), peer.previous_in_ring());
    peer.send(next, peer.content(peer.own, next, 0, LARGE_BYTES))?;
    let (past, patience) = (Instant::now(), Instant::now() + PATIENCE);
    while peer.came[previous as usize].is_empty() {
        if !peer.receive(past)? && Instant::now() >= patience {
            return Err(peer.fault("it does not come"));
        }
        std::thread::yield_now();
    }
    peer.expect(previous, &peer.content(previous, peer.own, 0, LARGE_BYTES))
}

/// A waker ends a wait that has begun, or else the next.
fn wakers(peer: &mut Peer) -> Outcome {
    let waker = peer.endpoint.waker();
    let patience = Instant::now() + PATIENCE;
    waker.wake_by_ref();
    peer.until_nothing(patience)?;
    // Later and later, so that some find it waiting in every way it has.
    for round in 0..20 {
        let waker = waker.clone();
        let waking = std::thread::spawn(move || wake_after(&waker, 1 << round));
        peer.until_nothing(patience)?;
        waking.join().map_err(|_| peer.fault("the waking thread panicked"))?;
    }
    if Instant::now() >= patience {
        return Err(peer.fault("a waker did not end a wait"));
    }
    Ok(())
}

fn wake_after(waker: &Waker, turns: u64) {
    (0..turns).for_each(|_| std::hint::spin_loop());
    waker.wake_by_ref();
}

/// A time in the past is a look, one in the future a wait.
fn times(peer: &mut Peer) -> Outcome {
    let now = Instant::now();
    for until in [now.checked_sub(Duration::from_secs(1)).unwrap_or(now), now] {
        peer.until_nothing(until)?;
    }
    for ms in [0, 1, 30] {
        let until = Instant::now() + Duration::from_millis(ms);
        peer.until_nothing(until)?;
        if Instant::now() < until {
            return Err(peer.fault("a wait ended before its time"));
        }
    }
    Ok(())
}

/// What cannot be sent harms nothing else.
fn refused(peer: &mut Peer) -> Outcome {
    let too_long = vec![0; MESSAGE_BYTES_MAX + 1];
    for (to, message) in [(peer.peers, vec![1]), (u32::MAX, vec![1]), (peer.own, too_long)] {
        let bytes = message.len();
        if peer.endpoint.send(NodeId(to), message).is_ok() {
            return Err(peer.fault(format!("{bytes} bytes for peer {to} are on their way")));
        }
    }
    Ok(())
}

/// Even peers send and close at once; odd ones send to them all the same, receive, and are
/// told that they left.
fn close(mut peer: Peer) -> Outcome {
    peer.doing = "closing";
    let (own, peers) = (peer.own, peer.peers);
    for to in (0..peers).filter(|to| to % 2 != own % 2) {
        peer.send(to, peer.content(own, to, 0, LARGE_BYTES))?;
        peer.send(to, Vec::new())?;
    }
    for from in (0..peers).step_by(2).filter(|_| own % 2 == 1) {
        peer.expect(from, &peer.content(from, own, 0, LARGE_BYTES))?;
        peer.expect(from, &[])?;
        peer.until(|peer| peer.gone.contains(&from))?;
        if !peer.left.contains(&from) {
            return Err(peer.fault(format!("peer {from} closed, and is called lost")));
        }
    }
    let closed = peer.endpoint.close(Instant::now() + PATIENCE);
    closed.map_err(|error| format!("closing (peer {own} of {peers}): {error}"))
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn new(seeds: &[u64]) -> Self {
        Self(seeds.iter().fold(0, |seed, number| Self(seed ^ number).next()))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        for place in bytes.chunks_mut(8) {
            place.copy_from_slice(&self.next().to_le_bytes()[..place.len()]);
        }
        bytes
    }
}
