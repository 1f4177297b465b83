//! A transport of which what this peer sends goes over a link of so many bytes per second.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

use cellway::cluster::NodeId;
use cellway::cluster::transport::{Endpoint, Received, TransportError};

/// Sends one message after the other, each as long as the link takes for it. The sender does
/// not wait for that.
pub(super) struct Limited {
    inner: Box<dyn Endpoint>,
    bytes_per_second: Option<f64>,
    /// When the link has carried what it was given.
    free: Instant,
    /// What it carries, by when it is there.
    held: VecDeque<(Instant, NodeId, Vec<u8>)>,
}

impl Limited {
    /// A link without a limit.
    pub(super) fn new(inner: Box<dyn Endpoint>) -> Self {
        Self { inner, bytes_per_second: None, free: Instant::now(), held: VecDeque::new() }
    }

    /// From now on it carries so many, or any number.
    pub(super) fn limit(&mut self, bytes_per_second: Option<f64>) {
        self.bytes_per_second = bytes_per_second;
    }

    /// Hands over what is there by now.
    fn carry(&mut self) -> Result<(), TransportError> {
        if self.held.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        while let Some((_, to, message)) = self.held.pop_front_if(|(there, ..)| *there <= now) {
            self.inner.send(to, message)?;
        }
        Ok(())
    }
}

impl Endpoint for Limited {
    fn own(&self) -> NodeId {
        self.inner.own()
    }

    fn peers(&self) -> u32 {
        self.inner.peers()
    }

    fn send(&mut self, to: NodeId, message: Vec<u8>) -> Result<(), TransportError> {
        if self.bytes_per_second.is_none() && self.held.is_empty() {
            return self.inner.send(to, message);
        }
        let takes = self.bytes_per_second.map_or(0.0, |rate| message.len() as f64 / rate);
        let begins = self.free.max(Instant::now());
        self.free = begins + Duration::from_secs_f64(takes);
        self.held.push_back((self.free, to, message));
        self.carry()
    }

    fn receive(&mut self, until: Option<Instant>) -> Result<Received, TransportError> {
        loop {
            self.carry()?;
            let next = self.held.front().map(|(there, ..)| *there);
            let received = self.inner.receive(until.into_iter().chain(next).min())?;
            if received != Received::Nothing {
                return Ok(received);
            }
            let now = Instant::now();
            let was_for_link = next.is_some_and(|next| next <= now);
            if !was_for_link || until.is_some_and(|until| until <= now) {
                return Ok(received);
            }
        }
    }

    fn ends_all(&self) -> bool {
        self.inner.ends_all()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn close(mut self: Box<Self>, until: Instant) -> Result<(), TransportError> {
        while let Some((there, ..)) = self.held.front() {
            std::thread::sleep(there.saturating_duration_since(Instant::now()));
            self.carry()?;
        }
        self.inner.close(until)
    }
}

#[cfg(test)]
mod tests {
    use cellway::cluster::transport::local;

    use super::*;

    #[test]
    fn messages_come_in_order_and_no_faster_than_the_link() {
        let mut ends = local::endpoints(2).into_iter();
        let (mut link, mut other) =
            (Limited::new(Box::new(ends.next().unwrap())), ends.next().unwrap());
        link.limit(Some(1e6));
        let (started, node) = (Instant::now(), other.own());
        for number in 0..10 {
            link.send(node, vec![number; 1000]).unwrap();
        }
        let until = started + Duration::from_millis(10);
        assert_eq!(link.receive(Some(until)), Ok(Received::Nothing));
        // What was due at the very end.
        link.limit(None);
        link.send(node, vec![10]).unwrap();
        assert!(link.free >= started + Duration::from_millis(10));
        assert_eq!(Box::new(link).close(until), Ok(()));
        for number in 0..10 {
            let (from, message) = (NodeId(0), vec![number; 1000]);
            assert_eq!(other.receive(None), Ok(Received::Message(from, message)));
        }
        assert_eq!(other.receive(None), Ok(Received::Message(NodeId(0), vec![10])));
    }

    #[test]
    fn a_wake_ends_a_wait_though_the_link_is_busy() {
        let mut ends = local::endpoints(2).into_iter();
        let (mut link, mut other) =
            (Limited::new(Box::new(ends.next().unwrap())), ends.next().unwrap());
        link.limit(Some(1.0));
        link.send(NodeId(1), vec![0; 1000]).unwrap();
        link.carry().unwrap();
        assert_eq!(other.receive(Some(Instant::now())), Ok(Received::Nothing), "it takes 1000 s");
        link.waker().wake();
        assert_eq!(link.receive(None), Ok(Received::Nothing));
    }
}
