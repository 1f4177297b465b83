//! The server's side of one connection.

mod ask;
mod fids;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod refused;
mod settle;

use std::collections::HashMap;

pub use ask::Change;
use fids::{Fids, File};
use refused::{Refused, refuse};

use crate::message::{frame_bytes, frame_tag};
use crate::stat::{Qid, Stat};
use crate::{Fid, HEADER_BYTES, Qids, Request, Tag};

/// The least that a session's longest message has, in bytes.
pub const MSIZE_MIN: u32 = 4096;

/// What a message may have besides the data of a read or a write, in bytes.
pub const IO_HEADER_BYTES: u32 = 24;

/// What one client may have of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Its longest message, in bytes; [`MSIZE_MIN`] at least.
    pub msize: u32,
    /// Fids at a time.
    pub fids: usize,
    /// Requests that wait for the tree.
    pub calls: usize,
    /// Bytes of these, and of what they read, together. At least two messages are allowed.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { msize: 1 << 20, fids: 1 << 14, calls: 1 << 10, bytes: 8 << 20 }
    }
}

/// A call of the tree, until it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    tag: Tag,
    serial: u64,
}

/// What the tree is to do: `N` is a file of it, `O` one that is open.
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each call says what its fields are")]
pub enum Call<N, O> {
    /// The root of `tree`, for `user`.
    Attach { user: String, tree: String },
    /// Along one name or more from a directory; `..` of the root is the root.
    Walk { from: N, names: Vec<String> },
    /// To open it. Of [`mode`](crate::mode) only reading, writing, executing and truncating are left.
    Open { node: N, mode: u8 },
    /// To make a file in a directory and open it.
    Create { parent: N, name: String, permissions: u32, mode: u8 },
    /// Up to `count` bytes.
    Read { open: O, offset: u64, count: u32 },
    /// Entries of a directory from the `from`-th on, `count` bytes of them at most.
    Entries { open: O, from: u64, count: u32 },
    /// All of `data`.
    Write { open: O, offset: u64, data: Vec<u8> },
    /// To remove it.
    Remove { node: N },
    /// What is known of it.
    Stat { node: N },
    /// All of `change`, or nothing.
    Wstat { node: N, change: Change },
}

/// How a [`Call`] ended well.
#[derive(Debug)]
pub enum Done<'d, N, O> {
    /// The root.
    Attach(N, Qid),
    /// What was found, as far as it was; what the last name led to, if all were.
    Walk(Qids, Option<N>),
    /// The file, opened.
    Open(O, Qid),
    /// The new file, and the same opened.
    Create(N, O, Qid),
    /// So many bytes, which the caller appends to the reply.
    Read(u32),
    /// Whole entries, and how many they are; none at the end.
    Entries(&'d [u8], u64),
    /// So many bytes were written.
    Write(u32),
    /// What is known.
    Stat(Stat<'d>),
    /// Removed, or changed.
    Changed,
}

/// What the server's side does about a request, besides what it replied.
#[derive(Debug)]
pub enum Step<N, O> {
    /// No more than that.
    Replied,
    /// Make this call, then tell [`Session::done`].
    Call(CallId, Call<N, O>),
    /// Call this one off before the replies go out: the client may use its tag again.
    Cancel(CallId),
    /// Call all off before the replies go out; then remove these files, which
    /// nobody waits for.
    Reset(Vec<(CallId, Call<N, O>)>),
}

/// What cannot be answered: the connection is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HangUp {
    /// No room for a tag.
    #[error("a message of {0} bytes; the shortest has 7")]
    Short(usize),
    /// More than was agreed upon.
    #[error("a message of {bytes} bytes, where {max} are the most")]
    Long {
        /// Its length.
        bytes: usize,
        /// The most.
        max: usize,
    },
}

/// What the reply to a call in flight will be.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Attach { fid: Fid },
    Walk { newfid: Fid, names: usize },
    Open { fid: Fid, mode: u8 },
    Create { fid: Fid, mode: u8 },
    Read { count: u32 },
    Entries { fid: Fid, offset: u64, from: u64, count: u32 },
    Write { count: u32 },
    Clunk,
    Remove,
    Stat,
    Wstat,
}

impl Ends {
    /// The fid that waits for it.
    fn fid(self) -> Option<Fid> {
        match self {
            Self::Attach { fid }
            | Self::Walk { newfid: fid, .. }
            | Self::Open { fid, .. }
            | Self::Create { fid, .. }
            | Self::Entries { fid, .. } => Some(fid),
            _ => None,
        }
    }
}

/// A request's tag, and the bytes that it takes while it is in flight.
#[derive(Clone, Copy)]
struct Asked {
    tag: Tag,
    bytes: usize,
}

#[derive(Debug)]
struct InFlight {
    serial: u64,
    bytes: usize,
    ends: Ends,
}

/// The server's side of one connection: whole messages in, replies and calls of
/// the tree out. It does no I/O and knows no tree: `N` stands for a file of it,
/// `O` for one that is open; dropping the last `O` closes it.
///
/// Calls end in any order. A flush, and a version in mid-session, are answered
/// at once, since the calls they stop are called off before that goes out.
/// A tag that is used again while its call is in flight is refused by an error
/// with that tag; the call goes on.
#[derive(Debug)]
pub struct Session<N, O> {
    limits: Limits,
    /// As agreed upon by a version.
    msize: Option<u32>,
    fids: Fids<N, O>,
    calls: HashMap<Tag, InFlight>,
    /// Of all calls.
    bytes: usize,
    serial: u64,
}

impl<N: Clone, O: Clone> Session<N, O> {
    /// Waits for a version.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let msize = limits.msize.max(MSIZE_MIN);
        let bytes = limits.bytes.max(2 * msize as usize);
        Self {
            limits: Limits { msize, bytes, ..limits },
            msize: None,
            fids: Fids::new(limits.fids),
            calls: HashMap::new(),
            bytes: 0,
            serial: 0,
        }
    }

    /// Whether a version was agreed upon.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.msize.is_some()
    }

    /// The length of the message that `bytes` begin with, once its first four are there.
    ///
    /// # Errors
    /// It will be no message, or one that is too long.
    pub fn frame(&self, bytes: &[u8]) -> Result<Option<usize>, HangUp> {
        let max = self.message_bytes();
        match frame_bytes(bytes) {
            Some(bytes) if bytes < HEADER_BYTES => Err(HangUp::Short(bytes)),
            Some(bytes) if bytes > max => Err(HangUp::Long { bytes, max }),
            bytes => Ok(bytes),
        }
    }

    /// Takes a whole message; what can be answered at once is appended to `out`.
    ///
    /// # Errors
    /// One that cannot be answered.
    pub fn request(&mut self, frame: &[u8], out: &mut Vec<u8>) -> Result<Step<N, O>, HangUp> {
        self.frame(frame)?;
        let tag = frame_tag(frame).ok_or(HangUp::Short(frame.len()))?;
        let step = match Request::decode(frame) {
            Ok((_, request)) => self.take(Asked { tag, bytes: frame.len() }, request, out),
            Err(malformed) => Err(Refused::Malformed(malformed)),
        };
        Ok(step.unwrap_or_else(|refused| {
            refuse(tag, &refused, out);
            Step::Replied
        }))
    }

    /// The files that the client has open.
    pub fn opened(&self) -> impl Iterator<Item = &O> {
        self.fids.opened()
    }

    /// Ends the session: all calls are off. What is still to be removed.
    pub fn reset(&mut self) -> Vec<(CallId, Call<N, O>)> {
        self.msize = None;
        self.bytes = 0;
        self.calls = HashMap::new();
        let files = self.fids.clear().filter_map(File::removed_on_clunk);
        files
            .map(|node| {
                self.serial += 1;
                (CallId { tag: Tag::NONE, serial: self.serial }, Call::Remove { node })
            })
            .collect()
    }

    /// The longest message now, in bytes.
    #[must_use]
    pub fn message_bytes(&self) -> usize {
        self.msize.unwrap_or(MSIZE_MIN) as usize
    }

    /// The most that is read at once.
    fn io_bytes(&self) -> u32 {
        self.msize.unwrap_or(MSIZE_MIN) - IO_HEADER_BYTES
    }

    /// A call in flight, which is none from now on.
    fn end(&mut self, tag: Tag) -> Option<InFlight> {
        let call = self.calls.remove(&tag)?;
        self.bytes -= call.bytes;
        Some(call)
    }
}

#[cfg(test)]
mod tests;
