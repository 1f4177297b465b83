//! What file servers promise, of each of them.

mod big;
mod conformance;
mod harness;
mod model;
mod private;
mod race;
mod ram;
mod remote;
mod unix;
