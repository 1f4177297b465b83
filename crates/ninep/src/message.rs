//! The messages: what is asked, and what is answered.

use std::fmt;
use std::ops::Deref;

use crate::bytes::{Malformed, Reader, Writer};
use crate::stat::{Qid, Stat};
use crate::{Fid, Tag};

/// Bytes before a message's own fields: size, type and tag.
pub const HEADER_BYTES: usize = 4 + 1 + 2;

/// Names of a walk, at most.
pub const FEW: usize = 16;

/// The length in bytes of the message that `bytes` begin with, its own four
/// included; `None` while those are not all there. Less than [`HEADER_BYTES`]
/// is no message's.
#[must_use]
pub fn frame_bytes(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|len| u32::from_le_bytes(*len) as usize)
}

/// The tag of a message, also of one that is none otherwise.
#[must_use]
pub fn frame_tag(message: &[u8]) -> Option<Tag> {
    let header: &[u8; HEADER_BYTES] = message.first_chunk()?;
    Some(Tag(u16::from_le_bytes([header[5], header[6]])))
}

/// Up to [`FEW`] of something, which a walk goes along.
#[derive(Clone, Copy)]
pub struct Few<T> {
    all: [T; FEW],
    count: usize,
}

/// What is walked along.
pub type Names<'m> = Few<&'m str>;

/// What was found there.
pub type Qids = Few<Qid>;

impl<T: Copy + Default> Few<T> {
    /// None.
    #[must_use]
    pub fn none() -> Self {
        Self { all: [T::default(); FEW], count: 0 }
    }

    /// All of `some`.
    ///
    /// # Errors
    /// There are more than [`FEW`].
    pub fn of(some: &[T]) -> Result<Self, Malformed> {
        let mut few = Self::none();
        let many = Malformed::Many(u16::try_from(some.len()).unwrap_or(u16::MAX));
        few.all.get_mut(..some.len()).ok_or(many)?.copy_from_slice(some);
        few.count = some.len();
        Ok(few)
    }

    fn read<'m>(
        from: &mut Reader<'m>,
        mut one: impl FnMut(&mut Reader<'m>) -> Result<T, Malformed>,
    ) -> Result<Self, Malformed> {
        let count = from.u16()?;
        let mut few = Self::none();
        let places = few.all.get_mut(..count.into()).ok_or(Malformed::Many(count))?;
        for place in places {
            *place = one(from)?;
        }
        few.count = count.into();
        Ok(few)
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.all[..self.count]
    }
}

impl<T: fmt::Debug> fmt::Debug for Few<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self[..].fmt(f)
    }
}

impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl<T: Eq> Eq for Few<T> {}

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each message says what its fields are; their names are the manual's"
)]
pub enum Request<'m> {
    /// Begins a session: the longest message the client takes, in bytes, and what it speaks.
    Version { msize: u32, version: &'m str },
    /// For a fid to authenticate by.
    Auth { afid: Fid, uname: &'m str, aname: &'m str },
    /// For the root of a tree.
    Attach { fid: Fid, afid: Fid, uname: &'m str, aname: &'m str },
    /// Not to answer a request any more.
    Flush { oldtag: Tag },
    /// To go from `fid` along names, and call `newfid` what is there.
    Walk { fid: Fid, newfid: Fid, names: Names<'m> },
    /// To open a file; see [`mode`](crate::mode).
    Open { fid: Fid, mode: u8 },
    /// To make a file in the directory `fid`, which becomes that file, opened.
    Create { fid: Fid, name: &'m str, perm: u32, mode: u8 },
    /// For bytes of a file, or entries of a directory.
    Read { fid: Fid, offset: u64, count: u32 },
    /// To write bytes.
    Write { fid: Fid, offset: u64, data: &'m [u8] },
    /// To forget a fid.
    Clunk { fid: Fid },
    /// To remove a file, and to forget its fid in any case.
    Remove { fid: Fid },
    /// For what is known of a file.
    Stat { fid: Fid },
    /// To change that; see [`Stat::DONT_TOUCH`].
    Wstat { fid: Fid, stat: Stat<'m> },
}

/// What a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each message says what its fields are; their names are the manual's"
)]
pub enum Reply<'m> {
    /// The longest message of the session, in bytes, and what is spoken.
    Version { msize: u32, version: &'m str },
    /// What authenticates.
    Auth { aqid: Qid },
    /// The tree's root.
    Attach { qid: Qid },
    /// Why a request was not carried out.
    Error { ename: &'m str },
    /// The request will not be answered any more.
    Flush,
    /// What was found, as far as it was.
    Walk { qids: Qids },
    /// The file, and what is read or written at once, in bytes; 0 if that is not said.
    Open { qid: Qid, iounit: u32 },
    /// As for open.
    Create { qid: Qid, iounit: u32 },
    /// Bytes; none at the file's end.
    Read { data: &'m [u8] },
    /// How many bytes were written.
    Write { count: u32 },
    /// Forgotten.
    Clunk,
    /// Removed.
    Remove,
    /// What is known.
    Stat { stat: Stat<'m> },
    /// Changed.
    Wstat,
}

/// Appends a message: `fields` are behind its header, whose size is known then.
fn encode(
    kind: u8,
    tag: Tag,
    out: &mut Vec<u8>,
    fields: impl FnOnce(&mut Writer<'_>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let start = out.len();
    let mut writer = Writer(out);
    writer.u32(0);
    writer.u8(kind);
    writer.u16(tag.0);
    let end = fields(&mut writer).and_then(|()| {
        let len = out.len() - start;
        u32::try_from(len).map_err(|_| Malformed::Field(len))
    });
    match end {
        Ok(len) => {
            out[start..start + 4].copy_from_slice(&len.to_le_bytes());
            Ok(())
        }
        Err(error) => {
            out.truncate(start);
            Err(error)
        }
    }
}

/// A message's type, tag and fields.
fn open(message: &[u8]) -> Result<(u8, Tag, Reader<'_>), Malformed> {
    let mut reader = Reader(message);
    let len = reader.u32()? as usize;
    match message.len() {
        there if there < len => return Err(Malformed::Short),
        there if there > len => return Err(Malformed::Long),
        _ => {}
    }
    Ok((reader.u8()?, Tag(reader.u16()?), reader))
}

/// Appends what comes before the `count` bytes of the reply to a read.
pub(crate) fn read_header(tag: Tag, count: u32, out: &mut Vec<u8>) {
    let mut out = Writer(out);
    out.u32((HEADER_BYTES as u32 + 4).saturating_add(count));
    out.u8(types::READ + 1);
    out.u16(tag.0);
    out.u32(count);
}

/// The types of requests; that of a reply is one more.
mod types {
    pub(super) const VERSION: u8 = 100;
    pub(super) const AUTH: u8 = 102;
    pub(super) const ATTACH: u8 = 104;
    /// Of the reply alone: nobody asks for an error.
    pub(super) const ERROR: u8 = 106;
    pub(super) const FLUSH: u8 = 108;
    pub(super) const WALK: u8 = 110;
    pub(super) const OPEN: u8 = 112;
    pub(super) const CREATE: u8 = 114;
    pub(super) const READ: u8 = 116;
    pub(super) const WRITE: u8 = 118;
    pub(super) const CLUNK: u8 = 120;
    pub(super) const REMOVE: u8 = 122;
    pub(super) const STAT: u8 = 124;
    pub(super) const WSTAT: u8 = 126;
}

impl<'m> Request<'m> {
    fn kind(&self) -> u8 {
        match self {
            Self::Version { .. } => types::VERSION,
            Self::Auth { .. } => types::AUTH,
            Self::Attach { .. } => types::ATTACH,
            Self::Flush { .. } => types::FLUSH,
            Self::Walk { .. } => types::WALK,
            Self::Open { .. } => types::OPEN,
            Self::Create { .. } => types::CREATE,
            Self::Read { .. } => types::READ,
            Self::Write { .. } => types::WRITE,
            Self::Clunk { .. } => types::CLUNK,
            Self::Remove { .. } => types::REMOVE,
            Self::Stat { .. } => types::STAT,
            Self::Wstat { .. } => types::WSTAT,
        }
    }

    /// Appends the message.
    ///
    /// # Errors
    /// Fields that fit into no message; nothing is appended then.
    pub fn encode(&self, tag: Tag, out: &mut Vec<u8>) -> Result<(), Malformed> {
        encode(self.kind(), tag, out, |out| self.write(out))
    }

    fn write(&self, out: &mut Writer<'_>) -> Result<(), Malformed> {
        match *self {
            Self::Version { msize, version } => {
                out.u32(msize);
                out.text(version)?;
            }
            Self::Auth { afid, uname, aname } => {
                out.u32(afid);
                out.text(uname)?;
                out.text(aname)?;
            }
            Self::Attach { fid, afid, uname, aname } => {
                out.u32(fid);
                out.u32(afid);
                out.text(uname)?;
                out.text(aname)?;
            }
            Self::Flush { oldtag } => out.u16(oldtag.0),
            Self::Walk { fid, newfid, ref names } => {
                out.u32(fid);
                out.u32(newfid);
                out.u16(names.count as u16);
                names.iter().try_for_each(|name| out.text(name))?;
            }
            Self::Open { fid, mode } => {
                out.u32(fid);
                out.u8(mode);
            }
            Self::Create { fid, name, perm, mode } => {
                out.u32(fid);
                out.text(name)?;
                out.u32(perm);
                out.u8(mode);
            }
            Self::Read { fid, offset, count } => {
                out.u32(fid);
                out.u64(offset);
                out.u32(count);
            }
            Self::Write { fid, offset, data } => {
                out.u32(fid);
                out.u64(offset);
                out.data(data)?;
            }
            Self::Clunk { fid } | Self::Remove { fid } | Self::Stat { fid } => out.u32(fid),
            Self::Wstat { fid, ref stat } => {
                out.u32(fid);
                out.stat(stat)?;
            }
        }
        Ok(())
    }

    /// The request that all of `message` is.
    ///
    /// # Errors
    /// It is none; [`frame_tag`] may tell whom to answer.
    pub fn decode(message: &'m [u8]) -> Result<(Tag, Self), Malformed> {
        let (kind, tag, mut from) = open(message)?;
        let request = match kind {
            types::VERSION => Self::Version { msize: from.u32()?, version: from.text()? },
            types::AUTH => {
                Self::Auth { afid: from.u32()?, uname: from.text()?, aname: from.text()? }
            }
            types::ATTACH => Self::Attach {
                fid: from.u32()?,
                afid: from.u32()?,
                uname: from.text()?,
                aname: from.text()?,
            },
            types::FLUSH => Self::Flush { oldtag: Tag(from.u16()?) },
            types::WALK => Self::Walk {
                fid: from.u32()?,
                newfid: from.u32()?,
                names: Few::read(&mut from, Reader::text)?,
            },
            types::OPEN => Self::Open { fid: from.u32()?, mode: from.u8()? },
            types::CREATE => Self::Create {
                fid: from.u32()?,
                name: from.text()?,
                perm: from.u32()?,
                mode: from.u8()?,
            },
            types::READ => Self::Read { fid: from.u32()?, offset: from.u64()?, count: from.u32()? },
            types::WRITE => {
                Self::Write { fid: from.u32()?, offset: from.u64()?, data: from.data()? }
            }
            types::CLUNK => Self::Clunk { fid: from.u32()? },
            types::REMOVE => Self::Remove { fid: from.u32()? },
            types::STAT => Self::Stat { fid: from.u32()? },
            types::WSTAT => Self::Wstat { fid: from.u32()?, stat: from.stat()? },
            other => return Err(Malformed::Type(other)),
        };
        from.end()?;
        Ok((tag, request))
    }
}

impl<'m> Reply<'m> {
    fn kind(&self) -> u8 {
        1 + match self {
            Self::Version { .. } => types::VERSION,
            Self::Auth { .. } => types::AUTH,
            Self::Attach { .. } => types::ATTACH,
            Self::Error { .. } => types::ERROR,
            Self::Flush => types::FLUSH,
            Self::Walk { .. } => types::WALK,
            Self::Open { .. } => types::OPEN,
            Self::Create { .. } => types::CREATE,
            Self::Read { .. } => types::READ,
            Self::Write { .. } => types::WRITE,
            Self::Clunk => types::CLUNK,
            Self::Remove => types::REMOVE,
            Self::Stat { .. } => types::STAT,
            Self::Wstat => types::WSTAT,
        }
    }

    /// Appends the message.
    ///
    /// # Errors
    /// Fields that fit into no message; nothing is appended then.
    pub fn encode(&self, tag: Tag, out: &mut Vec<u8>) -> Result<(), Malformed> {
        encode(self.kind(), tag, out, |out| self.write(out))
    }

    fn write(&self, out: &mut Writer<'_>) -> Result<(), Malformed> {
        match *self {
            Self::Version { msize, version } => {
                out.u32(msize);
                out.text(version)?;
            }
            Self::Auth { aqid: qid } | Self::Attach { qid } => out.qid(qid),
            Self::Error { ename } => out.text(ename)?,
            Self::Walk { ref qids } => {
                out.u16(qids.count as u16);
                qids.iter().for_each(|qid| out.qid(*qid));
            }
            Self::Open { qid, iounit } | Self::Create { qid, iounit } => {
                out.qid(qid);
                out.u32(iounit);
            }
            Self::Read { data } => out.data(data)?,
            Self::Write { count } => out.u32(count),
            Self::Stat { ref stat } => out.stat(stat)?,
            Self::Flush | Self::Clunk | Self::Remove | Self::Wstat => {}
        }
        Ok(())
    }

    /// The reply that all of `message` is.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(message: &'m [u8]) -> Result<(Tag, Self), Malformed> {
        let (kind, tag, mut from) = open(message)?;
        let reply = match kind.wrapping_sub(1) {
            types::VERSION => Self::Version { msize: from.u32()?, version: from.text()? },
            types::AUTH => Self::Auth { aqid: from.qid()? },
            types::ATTACH => Self::Attach { qid: from.qid()? },
            types::ERROR => Self::Error { ename: from.text()? },
            types::FLUSH => Self::Flush,
            types::WALK => Self::Walk { qids: Few::read(&mut from, Reader::qid)? },
            types::OPEN => Self::Open { qid: from.qid()?, iounit: from.u32()? },
            types::CREATE => Self::Create { qid: from.qid()?, iounit: from.u32()? },
            types::READ => Self::Read { data: from.data()? },
            types::WRITE => Self::Write { count: from.u32()? },
            types::CLUNK => Self::Clunk,
            types::REMOVE => Self::Remove,
            types::STAT => Self::Stat { stat: from.stat()? },
            types::WSTAT => Self::Wstat,
            _ => return Err(Malformed::Type(kind)),
        };
        from.end()?;
        Ok((tag, reply))
    }
}

#[cfg(test)]
mod tests;
