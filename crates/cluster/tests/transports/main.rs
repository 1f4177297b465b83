//! The contract of every transport.

mod jobs;
mod local;
mod mpi;

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longer than any test here takes.
const HUNG_AFTER: Duration = Duration::from_secs(400);

/// Another one each time; a failure tells it.
fn seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Ends the process if what is returned is not dropped in time.
fn watch() -> Sender<()> {
    let (leash, called_off) = mpsc::channel();
    std::thread::spawn(move || {
        if called_off.recv_timeout(HUNG_AFTER) == Err(RecvTimeoutError::Timeout) {
            std::process::abort();
        }
    });
    leash
}
