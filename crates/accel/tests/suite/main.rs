//! Tests of the accelerator through its public names: transfers on every
//! engine, cooperative threads, mailboxes, deadlocks, and what is dropped.

#![forbid(unsafe_code)]

mod conformance;
mod deadlock;
mod drops;
mod foreign;
mod harness;
mod host;
mod mail;
mod parcels;
mod refused;
mod stackful;
mod threads;
