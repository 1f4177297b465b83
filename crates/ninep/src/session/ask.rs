//! What is asked, and whether it may be.

use super::fids::File;
use super::refused::{Refused, answer, refuse};
use super::{Asked, Call, CallId, Ends, InFlight, MSIZE_MIN, Session, Step};
use crate::stat::Stat;
use crate::{Fid, NOFID, Qid, Qids, Reply, Request, Tag, VERSION, VERSION_UNKNOWN, kind, mode};

/// What a wstat changes; all of it or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// A new last part of the path: a rename within its directory.
    pub name: Option<String>,
    /// A new length: cut, or filled up with zeros.
    pub length: Option<u64>,
    /// New permission bits; directories stay directories.
    pub mode: Option<u32>,
    /// A new time of the last write, in seconds since 1970.
    pub mtime: Option<u32>,
    /// A new group.
    pub gid: Option<String>,
}

type Asks<N, O> = Result<Step<N, O>, Refused>;

impl<N: Clone, O: Clone> Session<N, O> {
    pub(super) fn take(
        &mut self,
        asked: Asked,
        request: Request<'_>,
        out: &mut Vec<u8>,
    ) -> Asks<N, O> {
        if let Request::Version { msize, version } = request {
            let reset = Step::Reset(self.reset());
            match self.version(msize, version) {
                Ok(reply) => answer(asked.tag, reply, out),
                Err(refused) => refuse(asked.tag, &refused, out),
            }
            return Ok(reset);
        }
        self.msize.ok_or(Refused::NoVersion)?;
        if asked.tag == Tag::NONE {
            return Err(Refused::NoTag);
        }
        if self.calls.contains_key(&asked.tag) {
            return Err(Refused::TagInUse(asked.tag.0));
        }
        self.ask(asked, request, out)
    }

    /// A version's answer; the session has ended.
    fn version<'v>(&mut self, msize: u32, version: &'v str) -> Result<Reply<'v>, Refused> {
        if msize < MSIZE_MIN {
            return Err(Refused::SmallMsize(msize));
        }
        let msize = msize.min(self.limits.msize);
        // What follows, as in `9P2000.u`, are extensions, which the answer declines.
        let known = version.starts_with(VERSION);
        self.msize = known.then_some(msize);
        Ok(Reply::Version { msize, version: if known { VERSION } else { VERSION_UNKNOWN } })
    }

    fn ask(&mut self, asked: Asked, request: Request<'_>, out: &mut Vec<u8>) -> Asks<N, O> {
        match request {
            Request::Version { .. } | Request::Auth { .. } => Err(Refused::NoAuth),
            Request::Attach { fid, afid, uname, aname } => {
                self.attach(asked, fid, afid, uname, aname)
            }
            Request::Flush { oldtag } => Ok(self.flush(asked, oldtag, out)),
            Request::Walk { fid, newfid, names } if names.is_empty() => {
                self.fids.copy(fid, newfid)?;
                answer(asked.tag, Reply::Walk { qids: Qids::none() }, out);
                Ok(Step::Replied)
            }
            Request::Walk { fid, newfid, names } => self.walk(asked, fid, newfid, &names),
            Request::Open { fid, mode } => {
                let file = self.fids.closed(fid)?;
                let call = Call::Open { node: file.node.clone(), mode: openable(file.qid, mode)? };
                self.call(asked, Ends::Open { fid, mode }, call)
            }
            Request::Create { fid, name, perm, mode } => self.create(asked, fid, name, perm, mode),
            Request::Read { fid, offset, count } => self.read(asked, fid, offset, count),
            Request::Write { fid, offset, data } => self.write(asked, fid, offset, data),
            Request::Clunk { fid } => match self.fids.remove(fid)?.removed_on_clunk() {
                Some(node) => self.call(asked, Ends::Clunk, Call::Remove { node }),
                None => {
                    answer(asked.tag, Reply::Clunk, out);
                    Ok(Step::Replied)
                }
            },
            Request::Remove { fid } => {
                let node = self.fids.remove(fid)?.node;
                self.call(asked, Ends::Remove, Call::Remove { node })
            }
            Request::Stat { fid } => {
                let node = self.fids.known(fid)?.node.clone();
                self.call(asked, Ends::Stat, Call::Stat { node })
            }
            Request::Wstat { fid, stat } => {
                let file = self.fids.known(fid)?;
                let call = Call::Wstat { node: file.node.clone(), change: change(file, &stat)? };
                self.call(asked, Ends::Wstat, call)
            }
        }
    }

    /// Begins a call. What it holds is no longer than its request.
    fn call(&mut self, asked: Asked, ends: Ends, call: Call<N, O>) -> Asks<N, O> {
        self.room(asked.bytes)?;
        self.serial += 1;
        let Asked { tag, bytes } = asked;
        let serial = self.serial;
        if let Some(fid) = ends.fid() {
            self.fids.reserve(fid, serial);
        }
        self.bytes += bytes;
        self.calls.insert(tag, InFlight { serial, bytes, ends });
        Ok(Step::Call(CallId { tag, serial }, call))
    }

    fn room(&self, bytes: usize) -> Result<(), Refused> {
        if self.calls.len() >= self.limits.calls {
            return Err(Refused::ManyCalls(self.limits.calls));
        }
        if bytes > self.limits.bytes - self.bytes {
            return Err(Refused::ManyBytes { bytes, left: self.limits.bytes - self.bytes });
        }
        Ok(())
    }

    fn flush(&mut self, asked: Asked, oldtag: Tag, out: &mut Vec<u8>) -> Step<N, O> {
        answer(asked.tag, Reply::Flush, out);
        let Some(call) = self.end(oldtag) else { return Step::Replied };
        if let Some(fid) = call.ends.fid() {
            self.fids.release(fid, call.serial);
        }
        Step::Cancel(CallId { tag: oldtag, serial: call.serial })
    }

    fn attach(&mut self, asked: Asked, fid: Fid, afid: Fid, user: &str, tree: &str) -> Asks<N, O> {
        if afid != NOFID {
            return Err(Refused::NoAuth);
        }
        self.fids.vacant(fid)?;
        let call = Call::Attach { user: user.into(), tree: tree.into() };
        self.call(asked, Ends::Attach { fid }, call)
    }

    fn walk(&mut self, asked: Asked, fid: Fid, newfid: Fid, names: &[&str]) -> Asks<N, O> {
        let from = self.fids.closed(fid)?;
        if !is_directory(from.qid) {
            return Err(Refused::NotDirectory);
        }
        if names.iter().any(|name| *name != ".." && !is_name(name)) {
            return Err(Refused::BadName);
        }
        let from = from.node.clone();
        if newfid != fid {
            self.fids.vacant(newfid)?;
        }
        let ends = Ends::Walk { newfid, names: names.len() };
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        self.call(asked, ends, Call::Walk { from, names })
    }

    fn create(
        &mut self,
        asked: Asked,
        fid: Fid,
        name: &str,
        permissions: u32,
        mode: u8,
    ) -> Asks<N, O> {
        let parent = self.fids.closed(fid)?;
        if !is_directory(parent.qid) {
            return Err(Refused::NotDirectory);
        }
        if !is_name(name) {
            return Err(Refused::BadName);
        }
        if permissions & !(kind::ALL | 0o777) != 0 {
            return Err(Refused::BadKind(permissions));
        }
        let made = Qid { kind: kind::of(permissions), ..Qid::default() };
        let call = Call::Create {
            parent: parent.node.clone(),
            name: name.into(),
            permissions,
            mode: openable(made, mode)?,
        };
        self.call(asked, Ends::Create { fid, mode }, call)
    }

    fn read(&mut self, mut asked: Asked, fid: Fid, offset: u64, count: u32) -> Asks<N, O> {
        let count = count.min(self.io_bytes());
        asked.bytes += count as usize;
        let (qid, opened) = self.fids.open(fid)?;
        if !mode::reads(opened.mode) {
            return Err(Refused::BadMode);
        }
        let open = opened.open.clone();
        if !is_directory(qid) {
            offset.checked_add(count.into()).ok_or(Refused::TooLarge)?;
            return self.call(asked, Ends::Read { count }, Call::Read { open, offset, count });
        }
        let from = match offset {
            0 => 0,
            offset if offset == opened.end => opened.entries,
            _ => return Err(Refused::DirectoryOffset { offset, end: opened.end }),
        };
        self.fids.idle(fid)?;
        let ends = Ends::Entries { fid, offset, from, count };
        self.call(asked, ends, Call::Entries { open, from, count })
    }

    fn write(&mut self, asked: Asked, fid: Fid, offset: u64, data: &[u8]) -> Asks<N, O> {
        let (_, opened) = self.fids.open(fid)?;
        if !mode::writes(opened.mode) {
            return Err(Refused::BadMode);
        }
        let open = opened.open.clone();
        let count = u32::try_from(data.len()).map_err(|_| Refused::TooLarge)?;
        offset.checked_add(count.into()).ok_or(Refused::TooLarge)?;
        // Before the copy.
        self.room(asked.bytes)?;
        self.call(asked, Ends::Write { count }, Call::Write { open, offset, data: data.into() })
    }
}

/// Whether a file may be called so.
fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains('/')
}

fn is_directory(qid: Qid) -> bool {
    qid.kind & kind::of(kind::DIRECTORY) != 0
}

/// What the tree has to know of `mode`: all but the removal, which is the session's.
fn openable(qid: Qid, mode: u8) -> Result<u8, Refused> {
    if mode & !(mode::ACCESS | mode::TRUNCATE | mode::REMOVE_ON_CLUNK) != 0 {
        return Err(Refused::BadOpenMode(mode));
    }
    // Open(5): nor is a directory cut, or removed on close.
    if is_directory(qid) && (mode::writes(mode) || mode > mode::ACCESS) {
        return Err(Refused::IsDirectory);
    }
    Ok(mode & !mode::REMOVE_ON_CLUNK)
}

/// What a wstat asks for, if it may: stat(5).
fn change<N, O>(file: &File<N, O>, stat: &Stat<'_>) -> Result<Change, Refused> {
    const KEEP: Stat<'static> = Stat::DONT_TOUCH;
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let change = Change {
        name: text(stat.name),
        length: (stat.length != KEEP.length).then_some(stat.length),
        mode: (stat.mode != KEEP.mode).then_some(stat.mode),
        mtime: (stat.mtime != KEEP.mtime).then_some(stat.mtime),
        gid: text(stat.gid),
    };
    // Clients that set both times send both; the last read is the server's to tell.
    let atime = stat.atime != KEEP.atime && change.mtime.is_none();
    let refused = if (stat.kernel_type, stat.kernel_dev) != (KEEP.kernel_type, KEEP.kernel_dev) {
        "its device"
    } else if stat.qid != KEEP.qid {
        "its qid"
    } else if atime {
        "when it was last read"
    } else if !stat.uid.is_empty() {
        "who owns it"
    } else if !stat.muid.is_empty() {
        "who wrote to it last"
    } else if change.name.is_some() && !is_name(stat.name) {
        return Err(Refused::BadName);
    } else if is_directory(file.qid) && change.length.is_some_and(|length| length != 0) {
        return Err(Refused::IsDirectory);
    } else if let Some(mode) = change.mode {
        if mode & !(kind::ALL | 0o777) != 0 {
            return Err(Refused::BadKind(mode));
        }
        if (mode & kind::DIRECTORY != 0) == is_directory(file.qid) {
            return Ok(change);
        }
        "whether it is a directory"
    } else {
        return Ok(change);
    };
    Err(Refused::Fixed(refused))
}
