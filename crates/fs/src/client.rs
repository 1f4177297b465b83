//! Another machine's or process's files, by 9P2000.

mod connection;
mod file;
mod socket;

use std::sync::Arc;
use std::time::Duration;

use ninep::{Fid, NOFID, Names, Reply, Request};

use crate::address::Address;
use crate::error::{FsError, Kind};
use crate::server::{Answer, FileServer, Node};
use connection::Connection;
pub use file::{RemoteFile, RemoteNode};

/// The tree that a server elsewhere gives, over one connection; clones share it.
///
/// Any number of calls may be under way, from programs on accelerators and from host code.
/// Reads and writes longer than a message go as several, those of plain files
/// at the same time. A call that is dropped is called off at the server
/// (flush(5)): a long write may have been done in part then, and of a pipe what was already on
/// its way to a read is lost. When the connection ends, every
/// call fails, now and later; connect again then.
///
/// ```no_run
/// use std::time::Duration;
/// use cellway_fs::{Address, OpenMode, Remote};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let address: Address = "unix:/tmp/cellway.sock".parse()?;
/// let remote = Remote::connect(&address, Duration::from_secs(5))?;
/// let file = remote.root("glenda", "").await?.walk_to(&["data", "a.bmp"]).await?;
/// let open = file.open_file(OpenMode { read: true, ..OpenMode::default() }).await?;
/// let mut header = [0; 54];
/// let len = open.read_at(0, &mut header).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Remote(Arc<Connection>);

impl Remote {
    /// How long [`connect`](Self::connect) mostly waits.
    pub const PATIENCE: Duration = Duration::from_secs(5);

    /// Connects and agrees on the version, all within `patience`. Waits meanwhile: host
    /// code calls it, before its programs start; `#n` calls it on a thread of its own.
    ///
    /// # Errors
    /// Nobody listens there, or does not answer in time as a 9P2000 server.
    pub fn connect(address: &Address, patience: Duration) -> Result<Self, FsError> {
        Connection::open(address, patience).map(|connection| Self(Arc::new(connection)))
    }

    /// Where the server is.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.0.address()
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// Whether nothing else has the connection: no clone, no file.
    pub(crate) fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// The root of the server's tree `tree` (mostly ""), for `user`.
    ///
    /// # Errors
    /// The server refuses it, or the connection ended.
    pub async fn root(&self, user: &str, tree: &str) -> Result<RemoteNode, FsError> {
        let fid = Held::new(&self.0);
        let name = self.address().to_string();
        let request = Request::Attach { fid: fid.fid, afid: NOFID, uname: user, aname: tree };
        let frame = self.0.call(&name, request).await?;
        let Ok((_, Reply::Attach { qid })) = Reply::decode(&frame) else {
            return Err(unexpected(&name));
        };
        drop(frame);
        Ok(RemoteNode::new(fid, name, qid))
    }
}

impl FileServer for Remote {
    fn attach<'a>(&'a self, user: &'a str, tree: &'a str) -> Answer<'a, Arc<dyn Node>> {
        Box::pin(async move { Ok(Arc::new(self.root(user, tree).await?) as Arc<dyn Node>) })
    }
}

/// A fid, given back when it is dropped.
#[derive(Debug)]
struct Held {
    connection: Arc<Connection>,
    fid: Fid,
}

impl Held {
    fn new(connection: &Arc<Connection>) -> Self {
        Self { connection: Arc::clone(connection), fid: connection.fid() }
    }

    /// Another fid for the file `names` away from this one's, and what it found there.
    async fn walk(&self, at: &str, names: &[&str]) -> Result<(Self, ninep::Qids), FsError> {
        let next = Self::new(&self.connection);
        let some = Names::of(names)
            .map_err(|error| FsError::because(Kind::BadName, at, error.to_string()))?;
        let request = Request::Walk { fid: self.fid, newfid: next.fid, names: some };
        let first = names.first().map(|name| below(at, name));
        let frame = self.connection.call(first.as_deref().unwrap_or(at), request).await?;
        match Reply::decode(&frame) {
            Ok((_, Reply::Walk { qids })) => match names.get(..=qids.len()) {
                // A part of the way.
                Some(way) => Err(FsError::new(Kind::NotFound, below(at, &way.join("/")))),
                None => Ok((next, qids)),
            },
            _ => Err(unexpected(at)),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.connection.release(self.fid);
    }
}

/// The name of the entry `name` of the directory `at`, for messages.
fn below(at: &str, name: &str) -> String {
    format!("{}/{name}", at.trim_end_matches('/'))
}

/// The session checks the types of replies, so this is not met.
fn unexpected(name: &str) -> FsError {
    FsError::because(Kind::Io, name, "the server's reply is of another type")
}

/// What servers say, in part, and what it means: Plan 9's, Unix's, and ours, which
/// begin with the text of the kind.
const WORDS: &[(&str, Kind)] = &[
    ("file does not exist", Kind::NotFound),
    ("permission denied", Kind::Permission),
    ("file already exists", Kind::Exists),
    ("not a directory", Kind::NotDirectory),
    ("is a directory", Kind::IsDirectory),
    ("directory is not empty", Kind::NotEmpty),
    ("bad file name", Kind::BadName),
    ("file is not open for that", Kind::BadMode),
    ("file is in use", Kind::Busy),
    ("no space left", Kind::NoSpace),
    ("beyond what a file can hold", Kind::TooLarge),
    ("interrupted", Kind::Interrupted),
    ("nobody reads or writes at the other end", Kind::Closed),
    ("not supported", Kind::Unsupported),
    ("not found", Kind::NotFound),
    ("no such file", Kind::NotFound),
    ("not permitted", Kind::Permission),
    ("read-only", Kind::Permission),
    ("file exists", Kind::Exists),
    ("not empty", Kind::NotEmpty),
    ("file name", Kind::BadName),
    ("not open", Kind::BadMode),
    ("in use", Kind::Busy),
    ("too large", Kind::TooLarge),
    ("broken pipe", Kind::Closed),
];

/// A server's error about the file `name`.
fn refused(name: &str, ename: &str) -> FsError {
    let said = ename.to_lowercase();
    let begins = WORDS.iter().find(|(words, _)| said.starts_with(words));
    let kind = begins.or_else(|| WORDS.iter().find(|(words, _)| said.contains(words)));
    match kind.map(|(_, kind)| *kind) {
        Some(kind) if said.ends_with(&kind.to_string()) => FsError::new(kind, name),
        Some(kind) => FsError::because(kind, name, ename),
        None => FsError::because(Kind::Io, name, ename),
    }
}

#[cfg(test)]
mod tests;
