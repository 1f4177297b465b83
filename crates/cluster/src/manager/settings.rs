//! What a manager may do, and what it tells of what it did.

use std::time::Duration;

use crate::{Hello, JobId, NodeId, PROTOCOL, Refusal};

/// Limits and times of a manager.
#[derive(Clone, Debug)]
pub struct Config {
    /// The build that nodes must have.
    pub build: String,
    /// A node that was not heard of for so long is lost.
    pub deadline: Duration,
    /// A job fails after so long without a node that asks for work and can hold a unit.
    pub join_wait: Duration,
    /// Whether a node that has nothing gets of what others have.
    pub shares: bool,
    /// Of a lease that is out for so long an idle node gets even while others are to be given.
    pub overdue: Duration,
    /// The holder of a lease that is out for so long is lost, though it may be
    /// heard of: a kernel can hang.
    pub lease_max: Duration,
    /// A unit that failed so often ends its job.
    pub tries_max: usize,
    /// Units whose holders were lost so often end their job: they may be the reason.
    pub losses_max: u32,
    /// Nodes at a time.
    pub nodes_max: usize,
    /// Leases of one node at a time.
    pub buffers_max: u32,
    /// Jobs at a time.
    pub jobs_max: usize,
    /// Bytes of a lease of one node, if a unit is no longer and its [buffer](Hello::buffer_bytes)
    /// is no shorter.
    pub lease_bytes_max: u64,
    /// What giving and taking a lease costs the manager; leases are long enough
    /// that this is 2% of its time.
    pub lease_cost: Duration,
    /// A lease is one in so many parts of a node's share of what is left.
    pub guided_factor: f64,
    /// Merges of one job at a time, where any order will do.
    pub merges_max: usize,
    /// Results that may wait while merges are under way, before no leases are given.
    pub backlog_max: usize,
    /// Epochs and leases have greater numbers: of a manager that was started
    /// anew, those of the one before are none of its own.
    pub serial: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            build: Hello::default().build,
            deadline: Duration::from_secs(10),
            join_wait: Duration::from_secs(60),
            shares: true,
            overdue: Duration::from_secs(60),
            lease_max: Duration::from_secs(3600),
            tries_max: 3,
            losses_max: 8,
            nodes_max: 4096,
            buffers_max: 16,
            jobs_max: 1024,
            lease_bytes_max: 64 << 20,
            lease_cost: Duration::from_micros(50),
            guided_factor: 4.0,
            merges_max: 1,
            backlog_max: 64,
            serial: 0,
        }
    }
}

impl Config {
    /// How often a node is to be heard of.
    pub(crate) fn heartbeat(&self) -> Duration {
        self.deadline / 4
    }

    /// Whether a node can work here.
    pub(crate) fn admit(&self, hello: &Hello) -> Result<(), Refusal> {
        let Hello { protocol, build, buffers, buffer_bytes, nodes: _, tasks: _ } = hello;
        if *protocol != PROTOCOL {
            return Err(Refusal::Protocol { ours: PROTOCOL, theirs: *protocol });
        }
        if *build != self.build {
            return Err(Refusal::Build { ours: self.build.clone(), theirs: build.clone() });
        }
        if *buffers == 0 || *buffer_bytes == 0 {
            return Err(Refusal::Buffers { buffers: *buffers, buffer_bytes: *buffer_bytes });
        }
        Ok(())
    }
}

/// Why a job ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum JobError {
    /// One unit cannot be computed.
    #[error("unit {unit}{} failed {tries} times: {what}", .offset.map(|o| format!(" at byte {o}")).unwrap_or_default())]
    Unit { unit: u64, offset: Option<u64>, what: String, tries: usize },
    /// Perhaps it kills its nodes.
    #[error(
        "{losses} nodes were lost one after another with units {first} to {} in hand: run those on \
         one machine to see whether the kernel crashes or hangs", first + units - 1
    )]
    Lost { first: u64, units: u64, losses: u32 },
    /// Nobody is there.
    #[error(
        "no node with a buffer for a unit asked for work in {} s{}: start compute nodes, then the job again", .waited.as_secs(),
        .said.as_ref().map(|why| format!(", and the last that left said: {why}")).unwrap_or_default()
    )]
    NoNodes { waited: Duration, said: Option<String> },
    /// Two results do not go together.
    #[error("two results cannot be merged: {what}")]
    Merge { what: String },
    /// All units were computed, but what came of them is no result of this job.
    #[error("the result cannot be read: {what}")]
    Result { what: String },
    /// As was asked for.
    #[error("the job was aborted")]
    Aborted,
    /// Two jobs of one number; the first goes on.
    #[error("there is a job {} already, which goes on: give each a number of its own", .job.0)]
    Number { job: JobId },
    /// More than can be counted.
    #[error("{units} units are more than 2^62: make them longer")]
    Units { units: u64 },
    /// Too many jobs.
    #[error("the manager has {jobs_max} jobs, which is its limit; submit it when one has ended")]
    Full { jobs_max: usize },
    /// It came after [`Event::Drain`](super::Event::Drain).
    #[error("the manager takes no more jobs: it is about to end")]
    Draining,
}

/// What happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Memberships.
    pub joined: u64,
    /// Nodes refused.
    pub refused: u64,
    /// Memberships that ended by fencing.
    pub lost: u64,
    /// Messages of memberships that were over, or never were.
    pub stale: u64,
    /// Leases given, those of the next two included.
    pub given: u64,
    /// Leases of units that were given before in vain.
    pub given_again: u64,
    /// Leases of units that another node has as well.
    pub given_twice: u64,
    /// Leases whose second half was left to others.
    pub shortened: u64,
    /// Leases taken back.
    pub withdrawn: u64,
    /// Results that counted.
    pub results: u64,
    /// Results and failures that came late, twice, or of leases that never were.
    pub results_dropped: u64,
    /// Leases that failed.
    pub failures: u64,
    /// What was to be done when the last membership ended by fencing.
    pub last_loss: Option<Loss>,
}

/// How far all jobs were when a node was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Which node.
    pub node: NodeId,
    /// When, counted as the manager's events are.
    pub after: Duration,
    /// Bytes of units that had no result.
    pub bytes_left: u64,
    /// Those of them that other nodes had in hand.
    pub bytes_out: u64,
}
