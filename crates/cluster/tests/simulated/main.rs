//! Manager and nodes in virtual time: links, nodes of any speed, and faults by seed.

mod faults;
mod found;
mod host;
mod scaling;
mod world;
