//! Between threads of one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::task::{Wake, Waker};
use std::time::Instant;

use super::{Endpoint, Received, TransportError};
use crate::NodeId;

/// One peer. Dropped, it is lost to the others, which get what it sent before.
#[derive(Debug)]
pub struct Local {
    is_closed: bool,
    own: NodeId,
    inbox: Receiver<Received>,
    /// Of all peers, by their numbers.
    inboxes: Arc<[Sender<Received>]>,
    wakeup: Arc<Wakeup>,
}

/// So many peers that reach each other.
#[must_use]
pub fn endpoints(peers: u32) -> Vec<Local> {
    let (inboxes, all): (Vec<_>, Vec<_>) = (0..peers).map(|_| mpsc::channel()).unzip();
    let inboxes: Arc<[_]> = inboxes.into();
    let numbered = all.into_iter().zip(inboxes.iter()).zip(0..);
    let endpoint = |((inbox, own_inbox), own): ((_, &Sender<_>), _)| Local {
        is_closed: false,
        own: NodeId(own),
        inbox,
        inboxes: inboxes.clone(),
        wakeup: Arc::new(Wakeup { pending: AtomicBool::new(false), inbox: own_inbox.clone() }),
    };
    numbered.map(endpoint).collect()
}

impl Endpoint for Local {
    fn own(&self) -> NodeId {
        self.own
    }

    fn peers(&self) -> u32 {
        self.inboxes.len() as u32
    }

    fn send(&mut self, to: NodeId, message: Vec<u8>) -> Result<(), TransportError> {
        super::check(NAME, self.peers(), to, &message)?;
        if let Some(inbox) = self.inboxes.get(to.0 as usize) {
            // Who is gone has no inbox any more.
            let _ = inbox.send(Received::Message(self.own, message));
        }
        Ok(())
    }

    fn receive(&mut self, until: Option<Instant>) -> Result<Received, TransportError> {
        let received = match until {
            None => self.inbox.recv().map_err(RecvTimeoutError::from),
            Some(until) => self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())),
        };
        if received == Ok(Received::Nothing) {
            self.wakeup.pending.swap(false, Ordering::AcqRel);
        }
        // Else the time is over: this peer has a sender of its own, so there is always one.
        Ok(received.unwrap_or(Received::Nothing))
    }

    fn waker(&self) -> Waker {
        self.wakeup.clone().into()
    }

    fn close(mut self: Box<Self>, _: Instant) -> Result<(), TransportError> {
        // What was sent is in the inboxes.
        self.is_closed = true;
        Ok(())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        for (inbox, number) in self.inboxes.iter().zip(0..) {
            if number != self.own.0 {
                let ends = if self.is_closed { Received::Left } else { Received::Lost };
                let _ = inbox.send(ends(self.own));
            }
        }
    }
}

/// What errors call this transport.
const NAME: &str = "threads";

/// Puts [`Received::Nothing`] into the inbox, once until it is taken out.
#[derive(Debug)]
struct Wakeup {
    pending: AtomicBool,
    inbox: Sender<Received>,
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        if !self.pending.swap(true, Ordering::AcqRel) {
            let _ = self.inbox.send(Received::Nothing);
        }
    }
}
