//! How a manager and its compute nodes reach each other: whole messages between
//! numbered peers.

#[doc(hidden)]
pub mod contract;
pub mod local;
pub mod mpi;

use std::task::Waker;
use std::time::Instant;

use crate::NodeId;

/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// One peer's end. Messages from one peer to another arrive whole, unchanged and
/// in the order they were sent, or the receiver is told that the sender is lost.
/// It is moved to the thread that calls it, and is called by that one only.
pub trait Endpoint: Send {
    /// This peer's number.
    fn own(&self) -> NodeId;

    /// How many peers there were at the start, this one included: numbers 0, 1, ...
    fn peers(&self) -> u32;

    /// Starts to send `message`, which is the transport's until it has left. One
    /// to this peer itself is received here; one to a peer that is lost goes nowhere.
    ///
    /// # Errors
    /// A message of more than [`MESSAGE_BYTES_MAX`] bytes, a number that no peer
    /// has, or a transport that has failed as a whole.
    fn send(&mut self, to: NodeId, message: Vec<u8>) -> Result<(), TransportError>;

    /// The next thing that happened; waits for it until `until`, or without end.
    /// What was sent goes on its way meanwhile.
    ///
    /// # Errors
    /// If the transport has failed as a whole.
    fn receive(&mut self, until: Option<Instant>) -> Result<Received, TransportError>;

    /// Whether a peer that ends before the first one, even in good order, ends all.
    fn ends_all(&self) -> bool {
        false
    }

    /// Ends a wait of [`Endpoint::receive`], this one or else the next, from any thread.
    fn waker(&self) -> Waker;

    /// Waits until all that was sent to peers that are not lost has left, and ends
    /// this side: the others learn that this peer has left. One that has not taken all at
    /// `until` is lost.
    ///
    /// # Errors
    /// If the transport has failed as a whole.
    fn close(self: Box<Self>, until: Instant) -> Result<(), TransportError>;
}

/// What happened at an [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A message came.
    Message(NodeId, Vec<u8>),
    /// A peer has ended: it said so, after all that it sent.
    Left(NodeId),
    /// A peer is gone without a word. One of the two is said once for each; nothing of it
    /// comes afterwards.
    Lost(NodeId),
    /// Nothing did: the time is over, or a waker was used.
    Nothing,
}

/// Why a transport cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{transport}: {what}; {cure}")]
pub struct TransportError {
    /// Which transport.
    pub transport: &'static str,
    /// What happened, and to whom.
    pub what: String,
    /// What the user can do about it.
    pub cure: String,
}

/// Refuses a message that `transport` with so many peers cannot send.
fn check(
    transport: &'static str,
    peers: u32,
    to: NodeId,
    message: &[u8],
) -> Result<(), TransportError> {
    if to.0 >= peers {
        let what = format!("there is no peer {}: the last is {}", to.0, peers.saturating_sub(1));
        let cure = "this is a mistake in the program".to_owned();
        return Err(TransportError { transport, what, cure });
    }
    if message.len() > MESSAGE_BYTES_MAX {
        let what = format!(
            "a message of {} bytes for peer {} is longer than {MESSAGE_BYTES_MAX}",
            message.len(),
            to.0
        );
        let cure = "take smaller leases, or a kernel with smaller results".to_owned();
        return Err(TransportError { transport, what, cure });
    }
    Ok(())
}
