//! Names for data: every resource of a job is a file, reached by the same calls.
//!
//! A [`FileServer`] is a tree of files under one name: `#U` the files of the
//! system, `#r` those in main memory (CellFS, Table 1). Programs on accelerators
//! and host code open, read and write them by the same calls; other processes
//! do by 9P2000.
//!
//! The key decision: a server answers with futures, so one that waits (a pipe, another
//! machine) stops the thread that asked and no other.
#![forbid(unsafe_code)]

mod address;
mod caller;
mod client;
#[cfg(test)]
pub(crate) mod conformance;
mod coroutine;
mod error;
mod exports;
mod file;
mod files;
mod handle;
mod job;
mod log;
mod memory;
mod name;
mod net;
mod pipe;
mod pread;
mod private;
mod ram;
mod serve;
mod server;
mod sync;
mod synthetic;
mod tcp;
mod unix;

pub use address::{Address, AddressError};
pub use caller::{Caller, Host, wait};
pub use client::{Remote, RemoteFile, RemoteNode};
pub use coroutine::{Coroutine, CoroutineError, cormain};
pub use error::{FsError, Kind};
pub use exports::Exports;
pub use file::File;
pub use files::Files;
pub use handle::Handle;
pub use job::{JobServer, Shown};
pub use log::LogServer;
pub use memory::{FileMemory, Stretch};
pub use net::{DialName, NetServer};
pub use ninep::{Qid, kind};
pub use pipe::{PipeServer, PipeWatch};
pub use private::PrivateServer;
pub use ram::RamServer;
pub use serve::{Connection, ServeOptions, Serving, serve};
pub use server::{Answer, Change, FileServer, Info, Node, OpenFile, OpenMode, now, read_from};
pub use synthetic::Synthetic;
pub use unix::UnixServer;
