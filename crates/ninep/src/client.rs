//! The client's side of a connection: which requests are under way, which fids
//! are held, and what each answer means.

use std::collections::VecDeque;

use crate::bytes::Malformed;
use crate::message::{HEADER_BYTES, Reply, Request};
use crate::session::IO_HEADER_BYTES;
use crate::{Fid, NOFID, Tag, VERSION};

/// Requests under way at once, at most. Flushes have tags of their own beside them.
pub const REQUESTS_MAX: u16 = 512;

/// The shortest message length a session can do with, in bytes.
const MSIZE_MIN: u32 = 256;

/// Why a request cannot be sent; nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotAsk {
    /// Every tag is under way: ask again when an answer has come.
    #[error("{REQUESTS_MAX} requests are under way")]
    Busy,
    /// The version is not agreed on, or the server broke the protocol.
    #[error("there is no session")]
    NoSession,
    /// The client itself begins sessions and flushes; authentication it does not do.
    #[error("that is no request of a session")]
    NoRequest,
    /// It, or its answer, is longer than a message of the session.
    #[error("{bytes} bytes do not fit a message of {msize}")]
    TooLong {
        /// What it takes.
        bytes: usize,
        /// What a message has.
        msize: u32,
    },
    /// That fid was not handed out, was released, or stands for no file (or already for one).
    #[error("fid {0} cannot be used so")]
    Fid(Fid),
    /// Fields that fit into no message.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// What a server did that no server may do. The connection is of no use any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Bytes that are no reply.
    #[error("the server sent what is no reply: {0}")]
    Malformed(#[from] Malformed),
    /// A message shorter or longer than any may be.
    #[error("the server sent a message of {bytes} bytes, where 7 to {msize} are allowed")]
    Size {
        /// Of the message.
        bytes: usize,
        /// Of the session.
        msize: u32,
    },
    /// An answer to nothing.
    #[error("the server answered tag {}, which asks for nothing", .0.0)]
    Unasked(Tag),
    /// An answer to something else.
    #[error("the server answered tag {} with a message of another type", .0.0)]
    Type(Tag),
    /// More bytes, or more names, than were asked for.
    #[error("the server answered with {got}, where at most {asked} were asked for")]
    Count {
        /// By the request.
        asked: u32,
        /// With the reply.
        got: u32,
    },
    /// Another protocol.
    #[error("the server speaks {0:?}, not 9P2000")]
    Version(String),
    /// Messages that are too short, or longer than the client takes.
    #[error("the server wants messages of {0} bytes")]
    Msize(u32),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "it is looked at, not kept")]
pub enum End<'f> {
    /// With the reply that belongs to it. A walk may have gone a part of the way only:
    /// then there are fewer qids than names, and its new fid stands for nothing.
    Done(Reply<'f>),
    /// With an error, in the server's words.
    Refused(&'f str),
}

/// What a request needs of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Attach,
    Walk { newfid: Fid, names: usize },
    Open,
    Create,
    Read { count: u32 },
    Write { count: u32 },
    Clunk,
    Remove,
    Stat,
    Wstat,
}

/// Who hears of a request's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Asker,
    Nobody,
    /// Nobody; and its tag stays taken until the flush is answered.
    Flushed {
        answered: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    what: What,
    fid: Fid,
    heard: Heard,
}

/// What the server takes a fid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// Not handed out here.
    Free,
    ForNothing,
    ForAFile,
    /// For nothing, once the clunk or remove under way is answered.
    Ending,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    stands: Stands,
    /// Requests under way that name it.
    requests: u32,
    released: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Asked,
    Session,
    Broken,
}

/// The client's side of a connection, without the connection: requests are
/// appended to a buffer, whole replies are taken.
///
/// ```
/// use cellway_ninep::{Client, End, NOFID, Qid, Reply, Request, Tag, VERSION};
///
/// let mut client = Client::new(8192);
/// let mut out = Vec::new();
/// client.version(&mut out)?;
/// // What the server is to send, here made by hand.
/// let mut frame = Vec::new();
/// Reply::Version { msize: 4096, version: VERSION }.encode(Tag::NONE, &mut frame)?;
/// client.on_reply(&frame, &mut out)?;
/// assert_eq!(client.msize(), 4096);
///
/// let fid = client.fid();
/// let attach = Request::Attach { fid, afid: NOFID, uname: "glenda", aname: "" };
/// let tag = client.ask(&attach, &mut out)?;
/// frame.clear();
/// Reply::Attach { qid: Qid::default() }.encode(tag, &mut frame)?;
/// let end = client.on_reply(&frame, &mut out)?;
/// assert_eq!(end, Some((tag, End::Done(Reply::Attach { qid: Qid::default() }))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client {
    phase: Phase,
    msize: u32,
    /// By tag.
    requests: Vec<Option<UnderWay>>,
    free_tags: Vec<u16>,
    /// By fid.
    fids: Vec<Held>,
    free_fids: Vec<Fid>,
    /// Released, to be clunked as soon as there is a tag.
    clunks: VecDeque<Fid>,
}

impl Client {
    /// A client that takes messages of up to `msize` bytes (at least 256).
    #[must_use]
    pub fn new(msize: u32) -> Self {
        Self {
            phase: Phase::New,
            msize: msize.max(MSIZE_MIN),
            requests: Vec::new(),
            free_tags: Vec::new(),
            fids: Vec::new(),
            free_fids: Vec::new(),
            clunks: VecDeque::new(),
        }
    }

    /// The longest message, in bytes: what both sides agreed on, before that what this one takes.
    #[must_use]
    pub fn msize(&self) -> u32 {
        self.msize
    }

    /// Most bytes of one read or write.
    #[must_use]
    pub fn io_bytes_max(&self) -> u32 {
        self.msize.saturating_sub(IO_HEADER_BYTES)
    }

    /// Whether the version is agreed on, and the server kept to the protocol since.
    #[must_use]
    pub fn has_session(&self) -> bool {
        self.phase == Phase::Session
    }

    /// Appends the request that begins the session. Its answer ends nothing in
    /// [`on_reply`](Self::on_reply).
    ///
    /// # Errors
    /// [`CannotAsk::NoRequest`] unless it is the first.
    pub fn version(&mut self, out: &mut Vec<u8>) -> Result<(), CannotAsk> {
        if self.phase != Phase::New {
            return Err(CannotAsk::NoRequest);
        }
        Request::Version { msize: self.msize, version: VERSION }.encode(Tag::NONE, out)?;
        self.phase = Phase::Asked;
        Ok(())
    }

    /// A fid for an attach or a walk. It is the caller's until
    /// [`release`](Self::release), also after a clunk or remove that was asked for: who
    /// has it may let go of it later than the answer comes.
    pub fn fid(&mut self) -> Fid {
        let new = Held { stands: Stands::ForNothing, requests: 0, released: false };
        let fid = self.free_fids.pop().unwrap_or(self.fids.len() as Fid);
        match self.fids.get_mut(fid as usize) {
            Some(held) => *held = new,
            None => self.fids.push(new),
        }
        fid
    }

    /// Gives a fid back: it is clunked once no request that names it is under
    /// way, and handed out again after the answer.
    pub fn release(&mut self, fid: Fid, out: &mut Vec<u8>) {
        if let Some(held) = self.held(fid).filter(|held| !held.released) {
            held.released = true;
            self.settle(fid);
            self.clunk(out);
        }
    }

    /// Appends a request, whose end [`on_reply`](Self::on_reply) tells.
    /// After a clunk or a remove the fid stands for nothing, whatever comes of it.
    ///
    /// # Errors
    /// See [`CannotAsk`]; the request is not sent, and nothing has changed.
    pub fn ask(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<Tag, CannotAsk> {
        if self.phase != Phase::Session {
            return Err(CannotAsk::NoSession);
        }
        let (what, fid) = Self::what(request).ok_or(CannotAsk::NoRequest)?;
        self.check_fids(what, fid)?;
        let (io_bytes, msize) = (self.io_bytes_max(), self.msize);
        if let What::Read { count } | What::Write { count } = what
            && count > io_bytes
        {
            let bytes = u64::from(count) + u64::from(IO_HEADER_BYTES);
            return Err(CannotAsk::TooLong { bytes: bytes as usize, msize });
        }
        let tag = self.free_tag().ok_or(CannotAsk::Busy)?;
        let start = out.len();
        request.encode(Tag(tag), out)?;
        let bytes = out.len() - start;
        if bytes > msize as usize {
            out.truncate(start);
            return Err(CannotAsk::TooLong { bytes, msize });
        }
        self.begin(tag, UnderWay { what, fid, heard: Heard::Asker });
        Ok(Tag(tag))
    }

    /// Nobody waits for the end of `tag` any more: the server is told, and
    /// `on_reply` keeps it for itself. A clunk is not called off.
    pub fn flush(&mut self, tag: Tag, out: &mut Vec<u8>) {
        let Some(Some(request)) = self.requests.get_mut(usize::from(tag.0)) else { return };
        if request.heard != Heard::Asker {
            return;
        }
        if request.what == What::Clunk {
            request.heard = Heard::Nobody;
            return;
        }
        request.heard = Heard::Flushed { answered: false };
        // It cannot fail: it has one field, of two bytes.
        let _ = Request::Flush { oldtag: tag }.encode(Tag(tag.0 + REQUESTS_MAX), out);
    }

    /// Checks a message's length, which its first four bytes tell, before the rest is read.
    ///
    /// # Errors
    /// [`Broken::Size`].
    pub fn check_size(&self, bytes: usize) -> Result<(), Broken> {
        if (HEADER_BYTES..=self.msize as usize).contains(&bytes) {
            return Ok(());
        }
        Err(Broken::Size { bytes, msize: self.msize })
    }

    /// Takes a whole message of the server. Gives the request that ended by it, if
    /// somebody waits for that; appends what is to be sent now.
    ///
    /// # Errors
    /// The server broke the protocol. From then on nothing can be asked.
    pub fn on_reply<'f>(
        &mut self,
        frame: &'f [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(Tag, End<'f>)>, Broken> {
        let ended = self.take(frame);
        match &ended {
            Ok(_) => self.clunk(out),
            Err(_) => self.phase = Phase::Broken,
        }
        ended
    }

    fn take<'f>(&mut self, frame: &'f [u8]) -> Result<Option<(Tag, End<'f>)>, Broken> {
        self.check_size(frame.len())?;
        let (tag, reply) = Reply::decode(frame)?;
        match self.phase {
            Phase::Asked => self.agree(tag, reply).map(|()| None),
            Phase::Session => match tag.0.checked_sub(REQUESTS_MAX) {
                Some(flushed) => self.flushed(flushed, tag, reply).map(|()| None),
                None => self.end(tag, reply),
            },
            Phase::New | Phase::Broken => Err(Broken::Unasked(tag)),
        }
    }

    fn agree(&mut self, tag: Tag, reply: Reply<'_>) -> Result<(), Broken> {
        let (msize, version) = match reply {
            _ if tag != Tag::NONE => return Err(Broken::Unasked(tag)),
            Reply::Version { msize, version } => (msize, version),
            Reply::Error { ename } => return Err(Broken::Version(ename.to_owned())),
            _ => return Err(Broken::Type(tag)),
        };
        if version != VERSION {
            return Err(Broken::Version(version.to_owned()));
        }
        if !(MSIZE_MIN..=self.msize).contains(&msize) {
            return Err(Broken::Msize(msize));
        }
        self.msize = msize;
        self.phase = Phase::Session;
        Ok(())
    }

    /// A request is answered.
    fn end<'f>(&mut self, tag: Tag, reply: Reply<'f>) -> Result<Option<(Tag, End<'f>)>, Broken> {
        let place = self.requests.get_mut(usize::from(tag.0)).ok_or(Broken::Unasked(tag))?;
        let request = place.as_mut().ok_or(Broken::Unasked(tag))?;
        let UnderWay { what, fid, heard } = *request;
        if heard == (Heard::Flushed { answered: true }) {
            return Err(Broken::Unasked(tag));
        }
        let end = match reply {
            Reply::Error { ename } => End::Refused(ename),
            reply if what.is_answered_by(&reply)? => End::Done(reply),
            _ => return Err(Broken::Type(tag)),
        };
        match heard {
            Heard::Flushed { .. } => request.heard = Heard::Flushed { answered: true },
            Heard::Asker | Heard::Nobody => {
                *place = None;
                self.free_tags.push(tag.0);
            }
        }
        self.note(what, fid, Some(&end));
        Ok((heard == Heard::Asker).then_some((tag, end)))
    }

    /// The flush of the request `oldtag` is answered: its tag is free.
    fn flushed(&mut self, oldtag: u16, tag: Tag, reply: Reply<'_>) -> Result<(), Broken> {
        let place = self.requests.get_mut(usize::from(oldtag)).ok_or(Broken::Unasked(tag))?;
        let Some(UnderWay { what, fid, heard: Heard::Flushed { answered } }) = *place else {
            return Err(Broken::Unasked(tag));
        };
        if reply != Reply::Flush {
            return Err(Broken::Type(tag));
        }
        *place = None;
        self.free_tags.push(oldtag);
        if !answered {
            self.note(what, fid, None);
        }
        Ok(())
    }

    /// What a request's end makes of its fids. `None`: it was flushed, and a server may
    /// have done it all the same. A clunk of what stands for nothing does no harm.
    fn note(&mut self, what: What, fid: Fid, end: Option<&End<'_>>) {
        let stands = match (what, end) {
            (What::Attach, None | Some(End::Done(_))) => Some((fid, Stands::ForAFile)),
            (What::Walk { newfid, .. }, None) => Some((newfid, Stands::ForAFile)),
            (What::Walk { newfid, names }, Some(End::Done(Reply::Walk { qids })))
                if qids.len() == names =>
            {
                Some((newfid, Stands::ForAFile))
            }
            (What::Remove, None) => Some((fid, Stands::ForAFile)),
            (What::Clunk | What::Remove, Some(_)) => Some((fid, Stands::ForNothing)),
            _ => None,
        };
        if let Some((fid, stands)) = stands
            && let Some(held) = self.held(fid)
        {
            held.stands = stands;
        }
        for fid in what.fids(fid) {
            if let Some(held) = self.held(fid) {
                held.requests = held.requests.saturating_sub(1);
            }
            self.settle(fid);
        }
    }

    /// A fid that nobody holds and no request names is clunked, or free.
    fn settle(&mut self, fid: Fid) {
        let Some(held) = self.held(fid).filter(|held| held.released && held.requests == 0) else {
            return;
        };
        match held.stands {
            Stands::ForNothing => {
                held.stands = Stands::Free;
                self.free_fids.push(fid);
            }
            Stands::ForAFile => {
                held.stands = Stands::Ending;
                self.clunks.push_back(fid);
            }
            Stands::Free | Stands::Ending => {}
        }
    }

    /// Sends the clunks that wait, as far as there are tags.
    fn clunk(&mut self, out: &mut Vec<u8>) {
        while self.phase == Phase::Session
            && let Some(fid) = self.clunks.front().copied()
            && let Some(tag) = self.free_tag()
        {
            self.clunks.pop_front();
            // It cannot fail: it has one field, of four bytes.
            let _ = Request::Clunk { fid }.encode(Tag(tag), out);
            self.begin(tag, UnderWay { what: What::Clunk, fid, heard: Heard::Nobody });
        }
    }

    /// A tag that is not under way, not yet taken.
    fn free_tag(&mut self) -> Option<u16> {
        if self.free_tags.is_empty() && self.requests.len() < usize::from(REQUESTS_MAX) {
            self.free_tags.push(self.requests.len() as u16);
            self.requests.push(None);
        }
        self.free_tags.last().copied()
    }

    /// Takes the tag that [`free_tag`](Self::free_tag) gave.
    fn begin(&mut self, tag: u16, request: UnderWay) {
        self.free_tags.pop();
        if let Some(place) = self.requests.get_mut(usize::from(tag)) {
            *place = Some(request);
        }
        for fid in request.what.fids(request.fid) {
            if let Some(held) = self.held(fid) {
                held.requests += 1;
            }
        }
        if matches!(request.what, What::Clunk | What::Remove)
            && let Some(held) = self.held(request.fid)
        {
            held.stands = Stands::Ending;
        }
    }

    fn held(&mut self, fid: Fid) -> Option<&mut Held> {
        self.fids.get_mut(fid as usize).filter(|held| held.stands != Stands::Free)
    }

    fn check_fids(&mut self, what: What, fid: Fid) -> Result<(), CannotAsk> {
        let mut is = |fid, stands| match self.held(fid) {
            Some(held)
                if held.stands == stands
                    && !held.released
                    && (stands == Stands::ForAFile || held.requests == 0) =>
            {
                Ok(())
            }
            _ => Err(CannotAsk::Fid(fid)),
        };
        match what {
            What::Attach => is(fid, Stands::ForNothing),
            What::Walk { newfid, .. } => {
                is(fid, Stands::ForAFile)?;
                is(newfid, Stands::ForNothing)
            }
            _ => is(fid, Stands::ForAFile),
        }
    }

    fn what(request: &Request<'_>) -> Option<(What, Fid)> {
        Some(match *request {
            Request::Attach { fid, afid: NOFID, .. } => (What::Attach, fid),
            Request::Walk { fid, newfid, ref names } => {
                (What::Walk { newfid, names: names.len() }, fid)
            }
            Request::Open { fid, .. } => (What::Open, fid),
            Request::Create { fid, .. } => (What::Create, fid),
            Request::Read { fid, count, .. } => (What::Read { count }, fid),
            Request::Write { fid, data, .. } => {
                (What::Write { count: u32::try_from(data.len()).unwrap_or(u32::MAX) }, fid)
            }
            Request::Clunk { fid } => (What::Clunk, fid),
            Request::Remove { fid } => (What::Remove, fid),
            Request::Stat { fid } => (What::Stat, fid),
            Request::Wstat { fid, .. } => (What::Wstat, fid),
            Request::Version { .. }
            | Request::Auth { .. }
            | Request::Attach { .. }
            | Request::Flush { .. } => return None,
        })
    }
}

impl What {
    fn fids(self, fid: Fid) -> impl Iterator<Item = Fid> {
        let newfid = match self {
            Self::Walk { newfid, .. } => Some(newfid),
            _ => None,
        };
        [fid].into_iter().chain(newfid)
    }

    /// Whether a reply has the request's type; its counts are checked with it.
    fn is_answered_by(self, reply: &Reply<'_>) -> Result<bool, Broken> {
        let counts = match (self, reply) {
            (Self::Walk { names, .. }, Reply::Walk { qids }) => {
                Some((names as u32, qids.len() as u32))
            }
            (Self::Read { count }, Reply::Read { data }) => Some((count, data.len() as u32)),
            (Self::Write { count }, Reply::Write { count: got }) => Some((count, *got)),
            _ => None,
        };
        match counts {
            Some((asked, got)) if got > asked => Err(Broken::Count { asked, got }),
            Some(_) => Ok(true),
            None => Ok(matches!(
                (self, reply),
                (Self::Attach, Reply::Attach { .. })
                    | (Self::Open, Reply::Open { .. })
                    | (Self::Create, Reply::Create { .. })
                    | (Self::Clunk, Reply::Clunk)
                    | (Self::Remove, Reply::Remove)
                    | (Self::Stat, Reply::Stat { .. })
                    | (Self::Wstat, Reply::Wstat)
            )),
        }
    }
}

#[cfg(test)]
mod tests;
