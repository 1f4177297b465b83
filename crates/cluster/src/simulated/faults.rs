//! What goes wrong, by seed: with messages, with nodes, and between any two events.

use crate::{Epoch, Failure, Hello, JobId, Lease, LeaseId, NodeId, PROTOCOL, ToManager, ToNode};

use super::found::Found;
use super::host::Came;
use super::world::{MS, What, World};

/// What nodes say of failures.
pub const BAD: &str = "bad";
pub const BLIND: &str = "the input cannot be opened";
pub const UNSTARTED: &str = "the device is gone";
pub const KERNEL: &str = "this node's kernel is another";

/// Where a unit that fails is, by its number.
pub const UNIT_BYTES: u64 = 10;

/// What is wrong with a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flaw {
    #[default]
    None,
    /// Its program is another, which its hello says: of that build,
    Build,
    /// or of other messages.
    Protocol,
    /// It has no buffer.
    Buffers,
    /// It would compute something else, and finds out when it is told of the job.
    Kernel,
    /// It cannot open what it is to read.
    Blind { names_unit: bool },
    /// So many sessions of each process do not start.
    Unstarted(u32),
    /// Its results are none of this kernel's.
    Foreign,
}

impl Flaw {
    /// What such a node says of itself.
    #[must_use]
    pub fn hello(self, buffers: u32) -> Hello {
        let hello = Hello { buffers, ..Hello::default() };
        match self {
            Self::Build => Hello { build: "of yesterday".to_owned(), ..hello },
            Self::Protocol => Hello { protocol: PROTOCOL + 1, ..hello },
            Self::Buffers => Hello { buffers: 0, ..hello },
            _ => hello,
        }
    }

    /// Whether it is to be no member.
    #[must_use]
    pub fn is_refused(self) -> bool {
        matches!(self, Self::Build | Self::Protocol | Self::Buffers)
    }
}

/// What becomes of a message.
pub(super) enum Fate {
    Comes,
    IsGarbled,
    IsLost,
}

impl World {
    pub(super) fn fate(&mut self) -> Fate {
        let (garbled, lost) = (self.settings.garbled, self.settings.lost);
        if garbled > 0 && self.random.one_in(garbled) {
            self.befalls("messages cut or changed");
            return Fate::IsGarbled;
        }
        if lost > 0 && self.random.one_in(lost) {
            self.befalls("messages lost");
            return Fate::IsLost;
        }
        Fate::Comes
    }

    /// When a message comes for the second time, if it does.
    pub(super) fn comes_twice(&mut self, arrives: u64) -> Option<u64> {
        let twice = self.settings.twice;
        let later = self.random.below(500 * MS);
        (twice > 0 && self.random.one_in(twice)).then(|| {
            self.befalls("messages that came twice");
            arrives + later
        })
    }

    /// A fault between any two events.
    pub(super) fn strike(&mut self) {
        if self.strikes == 0 || !self.random.one_in(30) {
            return;
        }
        self.strikes -= 1;
        let back = self.random.below(3000 * MS);
        if self.random.one_in(6) {
            self.after(0, What::PauseManager);
            return self.after(back, What::ResumeManager);
        }
        let mortal = self.hosts.len() - usize::from(self.survivor);
        let at = usize::from(self.survivor) + self.random.below(mortal as u64) as usize;
        if at >= self.hosts.len() {
            return;
        }
        let (fault, remedy) = match self.random.below(3) {
            0 => (What::Kill(at), What::Start(at)),
            1 => (What::Pause(at), What::Resume(at)),
            _ => (What::Hang(at), What::Kill(at)),
        };
        self.after(0, fault);
        if !self.random.one_in(3) {
            self.after(back, remedy);
        }
    }

    /// What was never asked for, to either side.
    pub(super) fn stray(&mut self, at: usize) {
        self.befalls("messages invented");
        let to_node = Came::Told(self.stray_to_node());
        self.after(0, What::ToNode(at, self.hosts[at].process, to_node));
        let (node, to_manager) = self.stray_to_manager();
        self.after(0, What::ToManager(node, Some(to_manager)));
    }

    /// A message that a node must not believe.
    fn stray_to_node(&mut self) -> ToNode {
        let epoch = Epoch((1 << 40) + self.random.below(10));
        let id = LeaseId(self.random.below(100));
        let lease = Lease { id, job: JobId(1), first: 0, units: 1 };
        match self.random.below(5) {
            0 => ToNode::Lease { epoch, lease },
            4 => ToNode::Shorten { epoch, lease: id, units: self.random.below(3) },
            1 => ToNode::Withdraw { epoch, lease: id },
            2 => ToNode::Fenced { epoch },
            _ => ToNode::Dismissed { epoch },
        }
    }

    /// One that the manager must not believe.
    fn stray_to_manager(&mut self) -> (NodeId, ToManager<Found>) {
        let node = NodeId(self.random.below(self.hosts.len() as u64 + 2) as u32);
        // Epochs and leases of that number never were.
        let never = LeaseId((1 << 40) + self.random.below(10));
        let known = self.out.values().map(|of| (of.0, of.1)).next();
        let (node, epoch) = known.filter(|_| self.random.one_in(2)).unwrap_or((node, Epoch(0)));
        // Another node has that one.
        let others = self.out.iter().find(|(_, of)| of.0 != node).map(|(lease, _)| *lease);
        let lease = others.filter(|_| self.random.one_in(2)).unwrap_or(never);
        let result = Found::foreign(&self.live);
        let units = self.random.below(9);
        let message = match self.random.below(5) {
            0 => ToManager::Result { epoch, lease, units, result },
            4 => ToManager::Shortened { epoch, lease, units, is_shorter: units > 4 },
            1 => {
                let failure = Failure { unit: Some(3), offset: None, what: String::new() };
                ToManager::Failed { epoch, lease, failure }
            }
            2 => ToManager::Ask { epoch: Epoch(0), in_all: u64::MAX },
            _ => ToManager::Leaving { epoch: Epoch(0) },
        };
        (node, message)
    }
}
