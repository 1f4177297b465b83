//! 9P2000 as bytes: the messages by which CellFS's programs reach files, and
//! any 9P client a running job.
//!
//! A [`Request`] goes to a server, a [`Reply`] with the same [`Tag`] comes
//! back. [`Request::decode`] and [`Reply::decode`] look at a whole message and
//! copy nothing: names and data lie in the bytes they were given, and encoding
//! only appends. A [`Session`] is the server's side of a connection: which fids
//! stand for what, and which requests are in flight. There is no I/O here.
//!
//! ```
//! use cellway_ninep::{Names, Request, Tag, frame_bytes};
//!
//! let mut bytes = Vec::new();
//! let walk = Request::Walk { fid: 1, newfid: 2, names: Names::of(&["data", "a.bmp"])? };
//! walk.encode(Tag(7), &mut bytes)?;
//!
//! assert_eq!(frame_bytes(&bytes), Some(bytes.len()));
//! assert_eq!(Request::decode(&bytes)?, (Tag(7), walk));
//! # Ok::<(), cellway_ninep::Malformed>(())
//! ```
//!
//! All numbers are little-endian; a message is `size[4] type[1] tag[2]` and its
//! fields; a string is `len[2]` and that many bytes of UTF-8 (Plan 9 manual,
//! section 5, `intro`). The message types are those of the CellFS paper's Table 2.
#![forbid(unsafe_code)]

mod bytes;
mod client;
mod message;
mod session;
mod stat;

pub use bytes::Malformed;
pub use client::{Broken, CannotAsk, Client, End, REQUESTS_MAX};
pub use message::{FEW, Few, HEADER_BYTES, Names, Qids, Reply, Request, frame_bytes, frame_tag};
#[cfg(any(test, fuzzing))]
pub use session::fuzzed;
pub use session::{
    Call, CallId, Change, Done, HangUp, IO_HEADER_BYTES, Limits, MSIZE_MIN, Session, Step,
};
pub use stat::{Qid, Stat};

/// Tells a request and its reply from others that are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u16);

impl Tag {
    /// That of [`Request::Version`], and of nothing else.
    pub const NONE: Tag = Tag(u16::MAX);
}

/// A client's number for a file.
pub type Fid = u32;

/// No fid: that of an attach without authentication.
pub const NOFID: Fid = u32::MAX;

/// The version that is spoken here.
pub const VERSION: &str = "9P2000";

/// A version that a server does not know.
pub const VERSION_UNKNOWN: &str = "unknown";

/// How a file is opened: one of the first four, and flags.
pub mod mode {
    /// Read.
    pub const READ: u8 = 0;
    /// Write.
    pub const WRITE: u8 = 1;
    /// Read and write.
    pub const READ_WRITE: u8 = 2;
    /// Execute, which is read where permission to execute is asked for.
    pub const EXECUTE: u8 = 3;
    /// Cut the file to no length first.
    pub const TRUNCATE: u8 = 0x10;
    /// Remove the file when the fid is clunked.
    pub const REMOVE_ON_CLUNK: u8 = 0x40;
    /// The bits of the first four.
    pub const ACCESS: u8 = 3;

    /// Whether a file opened so is read.
    #[must_use]
    pub const fn reads(mode: u8) -> bool {
        mode & ACCESS != WRITE
    }

    /// Whether a file opened so is written.
    #[must_use]
    pub const fn writes(mode: u8) -> bool {
        matches!(mode & ACCESS, WRITE | READ_WRITE)
    }
}

/// What a file is besides its permission bits, in the upper bits of
/// [`Stat::mode`]; shifted down by 24 the type of a [`Qid`].
pub mod kind {
    /// A directory.
    pub const DIRECTORY: u32 = 0x8000_0000;
    /// Writes go to the end.
    pub const APPEND: u32 = 0x4000_0000;
    /// One client at a time.
    pub const EXCLUSIVE: u32 = 0x2000_0000;
    /// Not backed up.
    pub const TEMPORARY: u32 = 0x0400_0000;
    /// All of these.
    pub const ALL: u32 = DIRECTORY | APPEND | EXCLUSIVE | TEMPORARY;

    /// The type of the qid of a file with this mode.
    #[must_use]
    pub const fn of(mode: u32) -> u8 {
        ((mode & ALL) >> 24) as u8
    }
}
