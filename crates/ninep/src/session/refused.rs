//! Why a request is not carried out.

use crate::{Fid, Malformed, Reply, Tag};

/// Longest text of an error, in bytes.
const ENAME_BYTES_MAX: usize = 1024;

/// What the client is told. Texts that are only a reason are those that trees
/// and other systems give, which clients look for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("{0}")]
    Tree(String),
    #[error("bad message: {0}")]
    Malformed(Malformed),
    #[error("the session has not begun: send a version first")]
    NoVersion,
    #[error("an msize of {0} bytes is too small: ask for 4096 or more")]
    SmallMsize(u32),
    #[error("only a version goes without a tag")]
    NoTag,
    #[error("tag {0} is in use: take one whose reply is there")]
    TagInUse(u16),
    #[error("authentication not required")]
    NoAuth,
    #[error("{fid} is no fid", fid = crate::NOFID)]
    NoFid,
    #[error("fid {0} is unknown: attach or walk to a file first")]
    UnknownFid(Fid),
    #[error("fid {0} is in use: clunk it first")]
    FidInUse(Fid),
    #[error("fid {0} is busy: wait for the reply to the request before")]
    Busy(Fid),
    #[error("fid {0} is open: walk to the file again")]
    Open(Fid),
    #[error("fid {0} is not open")]
    NotOpen(Fid),
    #[error("{0} fids are all that one client may have: clunk some")]
    ManyFids(usize),
    #[error("{0} requests are all that may wait: wait for replies")]
    ManyCalls(usize),
    #[error("{bytes} bytes are more than the {left} left for requests that wait")]
    ManyBytes { bytes: usize, left: usize },
    #[error("file is not open for that")]
    BadMode,
    #[error("open mode {0:#x} is not one of open(5)")]
    BadOpenMode(u8),
    #[error("mode {0:#o} says more than directory, append, exclusive, temporary and permissions")]
    BadKind(u32),
    #[error("bad file name")]
    BadName,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("beyond what a file can hold")]
    TooLarge,
    #[error("a directory is read from 0 or on from {end}, not from {offset}")]
    DirectoryOffset { offset: u64, end: u64 },
    #[error("wstat cannot change {0}")]
    Fixed(&'static str),
    #[error("the reply fits into no message: {0}")]
    Reply(Malformed),
    #[error("the reply is longer than {0} bytes: ask for a larger msize")]
    LongReply(usize),
    #[error("the tree gave what it was not asked for")]
    Mismatch,
}

/// Appends a reply that fits into any message.
pub(super) fn answer(tag: Tag, reply: Reply<'_>, out: &mut Vec<u8>) {
    // Nothing in such a reply is long, or no text.
    let encoded = reply.encode(tag, out);
    debug_assert_eq!(encoded, Ok(()));
}

/// What of a text may be told.
pub(super) fn ename(text: &str) -> &str {
    text.get(..text.floor_char_boundary(ENAME_BYTES_MAX)).unwrap_or(text)
}

/// Appends the error.
pub(super) fn refuse(tag: Tag, refused: &Refused, out: &mut Vec<u8>) {
    let text = refused.to_string().replace('\0', "?");
    answer(tag, Reply::Error { ename: ename(&text) }, out);
}
