//! What manager and nodes say to each other.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::task::Has;

/// What a transport calls a node: a rank, a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// One membership of a node, from its welcome until it leaves or is lost. No two are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// A job. Jobs are served in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// One giving of a range to one node. Later ones have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseId(pub u64);

/// A range of units to be computed: all of it, with one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its number.
    pub id: LeaseId,
    /// The job whose units these are.
    pub job: JobId,
    /// The first unit.
    pub first: u64,
    /// How many; at least one.
    pub units: u64,
}

impl Lease {
    /// Whether a job of so many units has all of its own.
    pub(crate) fn is_within(&self, units: u64) -> bool {
        self.units > 0 && self.first.checked_add(self.units).is_some_and(|end| end <= units)
    }

    /// Whether the two have a unit in common.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let end = |of: &Self| of.first.saturating_add(of.units);
        self.job == other.job && self.first < end(other) && other.first < end(self)
    }
}

/// The version of these messages.
pub const PROTOCOL: u32 = 6;

/// What a node says of itself before it gets work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of its side.
    pub protocol: u32,
    /// The build of its program.
    pub build: String,
    /// Leases it keeps at a time: received, computed, returned; at least one.
    pub buffers: u32,
    /// The most bytes of one lease: of one that is sent its units a buffer's share of what it
    /// has for these; `u64::MAX` where a node reads for itself, and of a group.
    pub buffer_bytes: u64,
    /// Nodes that share each lease: 1, or those of a group.
    pub nodes: u32,
    /// The tasks it has, in their order; none of one that does not say.
    pub tasks: Vec<Has>,
}

impl Default for Hello {
    /// One node with two buffers of any size.
    fn default() -> Self {
        let build = env!("CARGO_PKG_VERSION").to_owned();
        let (buffer_bytes, tasks) = (u64::MAX, Vec::new());
        Self { protocol: PROTOCOL, build, buffers: 2, buffer_bytes, nodes: 1, tasks }
    }
}

/// Why a node gets no work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum Refusal {
    /// Other messages.
    #[error("the manager speaks protocol {ours}, this node {theirs}; run the same build on both")]
    Protocol { ours: u32, theirs: u32 },
    /// Another program.
    #[error("the manager is build {ours}, this node {theirs}; run the same build on both")]
    Build { ours: String, theirs: String },
    /// No work can be given.
    #[error(
        "this node has {buffers} buffers of {buffer_bytes} bytes; give it one of one byte or more"
    )]
    Buffers { buffers: u32, buffer_bytes: u64 },
    /// It would compute something else: what differs, and what to do about it.
    #[error("{why}")]
    Task { why: String },
    /// Enough nodes.
    #[error("the manager has {nodes_max} nodes, which is its limit; raise it or join later")]
    Full { nodes_max: usize },
}

/// Why a lease was not computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The unit that failed, if that is known.
    pub unit: Option<u64>,
    /// Where in the input, in bytes, if there is one place.
    pub offset: Option<u64>,
    /// What happened, and what to do about it.
    pub what: String,
}

/// From a node; `R` is the result of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum ToManager<R> {
    /// To join; said again until it is answered.
    Hello(Hello),
    /// For work: so many leases were asked for in all since the node joined.
    /// Said twice it asks for no more.
    Ask { epoch: Epoch, in_all: u64 },
    /// What a lease came to, or its first `units`: it was [shortened](ToNode::Shorten).
    Result { epoch: Epoch, lease: LeaseId, units: u64, result: R },
    /// A lease that came to nothing.
    Failed { epoch: Epoch, lease: LeaseId, failure: Failure },
    /// What came of [`ToNode::Shorten`]: whether it computes so many units of the lease.
    Shortened { epoch: Epoch, lease: LeaseId, units: u64, is_shorter: bool },
    /// Still there, and is the manager? It answers [`ToNode::Alive`].
    Alive { epoch: Epoch },
    /// What it has is its last.
    Leaving { epoch: Epoch },
    /// It cannot do what it was given, and leaves: why, and what to do about it.
    Unfit { epoch: Epoch, why: String },
}

impl<R> ToManager<R> {
    /// With another result, if it has one.
    pub(crate) fn map<T>(
        self,
        result_of: impl FnOnce((Epoch, LeaseId, u64), R) -> T,
    ) -> ToManager<T> {
        match self {
            Self::Hello(hello) => ToManager::Hello(hello),
            Self::Ask { epoch, in_all } => ToManager::Ask { epoch, in_all },
            Self::Result { epoch, lease, units, result } => {
                let result = result_of((epoch, lease, units), result);
                ToManager::Result { epoch, lease, units, result }
            }
            Self::Failed { epoch, lease, failure } => ToManager::Failed { epoch, lease, failure },
            Self::Shortened { epoch, lease, units, is_shorter } => {
                ToManager::Shortened { epoch, lease, units, is_shorter }
            }
            Self::Alive { epoch } => ToManager::Alive { epoch },
            Self::Leaving { epoch } => ToManager::Leaving { epoch },
            Self::Unfit { epoch, why } => ToManager::Unfit { epoch, why },
        }
    }
}

/// To a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum ToNode {
    /// It is a member, and is to be heard of at least once per `heartbeat`.
    Welcome { epoch: Epoch, heartbeat: Duration },
    /// It is none.
    Refused(Refusal),
    /// Work. A node that does not read for itself asks for the bytes, by messages that are the
    /// transport's; in the simulation they go along.
    Lease { epoch: Epoch, lease: Lease },
    /// Nobody waits for that lease any more.
    Withdraw { epoch: Epoch, lease: LeaseId },
    /// Another node could do what that lease has after its first units, if none of it is begun.
    Shorten { epoch: Epoch, lease: LeaseId, units: u64 },
    /// That membership is over, and all of its work with it; the node may join anew.
    Fenced { epoch: Epoch },
    /// The manager is still there.
    Alive { epoch: Epoch },
    /// There is no more work: leave.
    Dismissed { epoch: Epoch },
}
