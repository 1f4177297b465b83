//! Many machines: a manager gives ranges of units to compute nodes, takes what
//! they find and puts it together (Cell Connector, chapter 4). All but [`transport`]
//! only decides. That has no I/O, no clock, no threads and no randomness, so it runs
//! by the million in virtual time; a driver carries it out over a transport.
//!
//! - A *unit* is a number below [`JobSpec::units`]: a block of the stream layer's plan.
//! - A [`Lease`] is a range of units with one atomic result. It is a node of one
//!   fixed binary tree over the units ([`stream::Fold`] has its order).
//! - An [`Epoch`] is one membership of a node. It is over before any of its
//!   leases goes to another.
//!
//! [`Manager::on`] and [`Node::on`] take one event and append what is to be done:
//!
//! ```
//! use std::time::Duration;
//! use cellway_cluster::manager::{Action, Config, Event};
//! use cellway_cluster::{Hello, JobId, JobSpec, Manager, Merging, NodeId, ToManager, ToNode};
//!
//! let (node, job) = (NodeId(0), JobId(1));
//! let mut manager = Manager::<u64>::new(Config::default());
//! let mut on = |event| {
//!     let mut actions = Vec::new();
//!     manager.on(Duration::ZERO, event, &mut actions);
//!     actions
//! };
//! let spec = JobSpec { units: 1, unit_bytes: 1 << 20, merging: Merging::AnyOrder, lease_units: None };
//! on(Event::Submit(job, spec));
//! let joined = on(Event::From(node, ToManager::Hello(Hello::default())));
//! let Action::Tell(_, ToNode::Welcome { epoch, .. }) = joined[0] else { panic!() };
//! let asked = on(Event::From(node, ToManager::Ask { epoch, in_all: 2 }));
//! let Action::Tell(_, ToNode::Lease { lease, .. }) = asked[0] else { panic!() };
//! let ended = on(Event::From(node, ToManager::Result { epoch, lease: lease.id, units: lease.units, result: 42 }));
//! assert_eq!(ended, [Action::Finished { job, result: Some(42) }]);
//! ```
#![deny(unsafe_code)]

pub mod drive;
pub mod manager;
mod message;
pub mod node;
#[cfg(feature = "simulated")]
#[doc(hidden)]
pub mod simulated;
pub mod submanager;
pub mod task;
pub mod transport;
mod tree;
mod wire;

pub use manager::{Counters, JobError, JobSpec, Loss, Manager, Merging, Progress};
pub use message::{
    Epoch, Failure, Hello, JobId, Lease, LeaseId, NodeId, PROTOCOL, Refusal, ToManager, ToNode,
};
pub use node::Node;
pub use submanager::Submanager;
pub use tree::UNITS_MAX;
pub use wire::{Garbled, Message};
