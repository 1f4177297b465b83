//! Serving a tree to other processes, by 9P2000 over streams.
//!
//! Each client has a thread, which alone reads, polls its calls and writes: a
//! call that waits holds up nobody, a client that does not read its replies
//! only itself.

mod bell;
mod calls;
mod connection;
mod conversation;
mod listen;
mod replies;

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use self::bell::Bell;
pub use self::connection::Connection;
use self::connection::poll_until;
use self::listen::Listener;
use crate::address::Address;
use crate::error::FsError;
use crate::server::FileServer;

/// How a tree is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// What each client may have.
    pub client: ninep::Limits,
    /// Clients at a time; further ones are hung up at once.
    pub connections: usize,
    /// How long a client may take to agree upon a version.
    pub handshake: Duration,
    /// How long a message may take from its first byte to its last.
    pub frame: Duration,
    /// Whether to listen where other machines come in. Nobody is asked who they are.
    pub remote: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            client: ninep::Limits::default(),
            connections: 64,
            handshake: Duration::from_secs(10),
            frame: Duration::from_secs(30),
            remote: false,
        }
    }
}

/// How long to wait when the system gives no more descriptors or threads.
const RETRY: Duration = Duration::from_millis(100);

/// A tree that is served. Dropped, it hangs up its clients and takes its socket away.
pub struct Serving {
    address: Address,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

/// Serves `root` at `at`, where `tcp:HOST:0` is any free port.
///
/// One client takes, besides what the tree keeps: a message in, two out and two
/// kept for the next, each [`ninep::Limits::msize`] long at most; up to
/// [`ninep::Limits::bytes`] for calls that wait; some 200 bytes for each fid, and the user's
/// name, 255 at most. Not counted is what a tree makes for a file that is open: the names of a
/// directory that is listed, a text of a tree of made-up files.
///
/// # Errors
/// Somebody listens there already; the address is none of this machine's, or
/// open to others without [`ServeOptions::remote`].
pub fn serve(
    at: &Address,
    root: Arc<dyn FileServer>,
    options: ServeOptions,
) -> Result<Serving, FsError> {
    let system = |error: std::io::Error| FsError::io(at.to_string(), &error);
    let bell = Bell::new().map_err(system)?;
    let listener = Listener::new(at, options.remote)?;
    let address = listener.address().clone();
    let rung = Arc::clone(&bell);
    let accepting = move || accept(&listener, &rung, &root, options);
    let thread = thread::Builder::new().name("9p listener".into()).spawn(accepting);
    Ok(Serving { address, bell, thread: Some(thread.map_err(system)?) })
}

impl Serving {
    /// Where it is served.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.bell.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Lets clients in until the bell rings.
fn accept(listener: &Listener, bell: &Bell, root: &Arc<dyn FileServer>, options: ServeOptions) {
    let mut clients: Vec<Connection> = Vec::new();
    let mut retry = None;
    loop {
        // After a failure it would be ready again at once.
        let wanted = if retry.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut both = [PollFd::new(listener, wanted), PollFd::new(bell, PollFlags::IN)];
        let polled = poll_until(&mut both, retry);
        let stopped = !both[1].revents().is_empty();
        if stopped || polled.is_err() {
            break;
        }
        if retry.take().is_some() {
            continue;
        }
        clients.retain(|client| !client.is_finished());
        let client = match listener.accept() {
            Ok(None) => continue,
            Ok(Some(_)) if clients.len() >= options.connections => continue,
            Ok(Some(stream)) => Connection::over(stream, Arc::clone(root), options),
            Err(error) => Err(error),
        };
        match client {
            Ok(client) => clients.push(client),
            Err(_) => retry = Some(Instant::now() + RETRY),
        }
    }
    // All at once, before one after the other is waited for.
    clients.iter().for_each(Connection::stop);
}

#[cfg(test)]
pub(crate) mod tests;
