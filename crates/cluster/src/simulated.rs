//! A manager and its nodes in virtual time: links, nodes of any speed, and faults by
//! seed, for tests and measurements. What must never be is asserted.

pub mod faults;
pub mod found;
pub mod host;
pub mod tree;
pub mod world;
