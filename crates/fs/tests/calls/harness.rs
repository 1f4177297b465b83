//! What the tests stand on.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Ends the process if the test that holds it hangs.
pub(crate) fn watch() -> Sender<()> {
    let (leash, called_off) = channel::<()>();
    std::thread::spawn(move || {
        if called_off.recv_timeout(Duration::from_secs(180)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("a test of file calls hangs");
            std::process::abort();
        }
    });
    leash
}
