//! What must hold of messages and of a session whatever comes in: run by
//! cargo-fuzz, and by proptests beside it.

use super::*;
use crate::{FEW, Names, Reply, kind};

/// Takes any bytes for a message: one that is read is written as the same bytes.
///
/// # Panics
/// Where something does not hold.
pub fn messages(data: &[u8]) {
    let whole = framed(data);
    for message in [data, &whole] {
        let mut again = Vec::new();
        if let Ok((tag, request)) = Request::decode(message) {
            request.encode(tag, &mut again).expect("it was read");
            assert_eq!(again, message);
        }
        again.clear();
        if let Ok((tag, reply)) = Reply::decode(message) {
            reply.encode(tag, &mut again).expect("it was read");
            assert_eq!(again, message);
        }
    }
    let (mut entries, mut again) = (data, Vec::new());
    while let Ok(entry) = Stat::decode(&mut entries) {
        entry.encode(&mut again).expect("it was read");
    }
    assert_eq!([&again, entries].concat(), data);
}

/// Takes any bytes for what a client sends and a tree answers, in turns: every
/// request has one reply with its tag, or was called off; what is held stays
/// below the limits.
///
/// # Panics
/// Where something does not hold.
pub fn session(data: &[u8]) {
    let mut bench = Bench::new();
    let mut from = Choices(data);
    while !from.0.is_empty() {
        let went_on = match from.number(8) {
            0 => {
                let len = from.number(64);
                bench.request(&framed(from.bytes(len)))
            }
            1 | 2 => {
                let call = from.number(8);
                bench.end(call, from.number(256) as u8);
                true
            }
            _ => bench.request(&request(&mut from)),
        };
        if !went_on {
            return;
        }
    }
    while !bench.calls.is_empty() {
        bench.end(0, 7);
    }
    assert!(bench.unanswered.values().all(|many| *many == 0), "{:?}", bench.unanswered);
}

const LIMITS: Limits = Limits { msize: 8192, fids: 6, calls: 4, bytes: 2 * 8192 };

/// A client, a tree, and what they wait for.
struct Bench {
    session: Session<u8, u8>,
    calls: Vec<(CallId, Call<u8, u8>)>,
    /// Requests that wait, by their tag.
    unanswered: HashMap<Tag, usize>,
    msize: usize,
}

impl Bench {
    fn new() -> Self {
        let msize = LIMITS.msize as usize;
        Self { session: Session::new(LIMITS), calls: Vec::new(), unanswered: HashMap::new(), msize }
    }

    /// Whether the connection is still of use.
    fn request(&mut self, frame: &[u8]) -> bool {
        let mut out = Vec::new();
        let Some(tag) = frame_tag(frame) else {
            assert!(self.session.request(frame, &mut out).is_err());
            return false;
        };
        let Ok(step) = self.session.request(frame, &mut out) else {
            assert!(frame.len() > MSIZE_MIN as usize, "{frame:?}");
            return false;
        };
        *self.unanswered.entry(tag).or_default() += 1;
        match step {
            Step::Replied => self.replied(tag, &out),
            Step::Call(id, call) => {
                assert_eq!(out, []);
                self.calls.push((id, call));
            }
            Step::Cancel(id) => {
                self.replied(tag, &out);
                let at = self.calls.iter().position(|(call, _)| *call == id);
                self.calls.remove(at.expect("what is called off was in flight"));
                *self.unanswered.get_mut(&id.tag).expect("it was asked for") -= 1;
                self.stale(id);
            }
            Step::Reset(removals) => {
                assert!(removals.len() <= LIMITS.fids);
                self.unanswered = HashMap::from([(tag, 1)]);
                self.replied(tag, &out);
                for (id, _) in std::mem::take(&mut self.calls).into_iter().chain(removals) {
                    self.stale(id);
                }
            }
        }
        let held: usize = self.calls.iter().map(|(_, call)| held(call)).sum();
        assert!(self.calls.len() <= LIMITS.calls && held <= LIMITS.bytes, "{:?}", self.calls);
        true
    }

    /// Ends one of the calls.
    fn end(&mut self, call: usize, how: u8) {
        if self.calls.is_empty() {
            return;
        }
        let (id, call) = self.calls.remove(call % self.calls.len());
        let mut out = Vec::new();
        let qid = Qid { kind: kind::of(u32::from(how) << 24), version: 1, path: 2 };
        let few = |many: usize| Qids::of(&[qid; FEW][..many]).expect("there are few");
        let whole = [0; LIMITS.msize as usize];
        let mut data = 0;
        let done = match call {
            _ if how == 0 => Err("a\0reason"),
            _ if how == 1 => Ok(Done::Changed),
            Call::Attach { .. } => Ok(Done::Attach(how, qid)),
            Call::Walk { names, .. } => {
                let found = few(usize::from(how) % (names.len() + 1));
                Ok(Done::Walk(found, (how > 7).then_some(how)))
            }
            Call::Open { .. } => Ok(Done::Open(how, qid)),
            Call::Create { .. } => Ok(Done::Create(how, how, qid)),
            Call::Read { count, .. } => {
                data = count >> (how % 8);
                Ok(Done::Read(data))
            }
            Call::Entries { count, .. } => {
                let len = (count as usize >> (how % 8)).min(whole.len());
                Ok(Done::Entries(&whole[..len], u64::from(how)))
            }
            Call::Write { data, .. } => Ok(Done::Write(data.len() as u32 >> (how % 8))),
            Call::Stat { .. } => Ok(Done::Stat(Stat { qid, name: "x", ..Stat::DONT_TOUCH })),
            Call::Remove { .. } | Call::Wstat { .. } => Ok(Done::Changed),
        };
        assert_eq!(self.session.done(id, done, &mut out), data as usize);
        out.resize(out.len() + data as usize, 0);
        self.replied(id.tag, &out);
        self.stale(id);
    }

    /// `out` is one reply to `tag`.
    fn replied(&mut self, tag: Tag, out: &[u8]) {
        assert!(out.len() <= self.msize);
        let (to, _) = Reply::decode(out).expect("replies can be read");
        assert_eq!(to, tag);
        let waiting = self.unanswered.get_mut(&tag).filter(|many| **many > 0);
        *waiting.expect("it was asked for") -= 1;
    }

    /// Nothing comes of a call that has ended.
    fn stale(&mut self, id: CallId) {
        let mut out = Vec::new();
        assert_eq!(self.session.done(id, Ok(Done::Changed), &mut out), 0);
        assert_eq!(out, []);
    }
}

/// What a call keeps, in bytes.
fn held(call: &Call<u8, u8>) -> usize {
    match call {
        Call::Attach { user, tree } => user.len() + tree.len(),
        Call::Walk { names, .. } => names.iter().map(String::len).sum(),
        Call::Create { name, .. } => name.len(),
        Call::Read { count, .. } | Call::Entries { count, .. } => *count as usize,
        Call::Write { data, .. } => data.len(),
        Call::Wstat { change, .. } => change.name.iter().chain(&change.gid).map(String::len).sum(),
        Call::Open { .. } | Call::Remove { .. } | Call::Stat { .. } => 0,
    }
}

/// `fields` behind the length that they have.
fn framed(fields: &[u8]) -> Vec<u8> {
    [&(fields.len() as u32 + 4).to_le_bytes()[..], fields].concat()
}

/// Bytes that decide.
struct Choices<'d>(&'d [u8]);

impl<'d> Choices<'d> {
    fn bytes(&mut self, len: usize) -> &'d [u8] {
        let (some, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        some
    }

    /// One below `end`, which is 256 at most.
    fn number(&mut self, end: usize) -> usize {
        self.bytes(1).first().map_or(0, |byte| usize::from(*byte)) % end
    }

    fn fid(&mut self) -> Fid {
        match self.number(12) {
            11 => crate::NOFID,
            fid => fid as Fid,
        }
    }

    fn name(&mut self) -> &'static str {
        const LONG: &str = match str::from_utf8(&[b'x'; 1500]) {
            Ok(long) => long,
            Err(_) => "",
        };
        ["a", "b", "..", ".", "", "a/b", "name", LONG][self.number(8)]
    }
}

/// A message that is one, often in a session of few fids and tags.
fn request(from: &mut Choices<'_>) -> Vec<u8> {
    let tag = [Tag(1), Tag(2), Tag(3), Tag(4), Tag(5), Tag::NONE][from.number(6)];
    let long = [0; 3000];
    let offset = [0, 0, 100, u64::MAX][from.number(4)];
    let request = match from.number(24) {
        0 => {
            let msize = [1 << 20, 8192, 4096, 100][from.number(4)];
            Request::Version { msize, version: ["9P2000", "9P2000.L", "9P"][from.number(3)] }
        }
        1 => Request::Auth { afid: from.fid(), uname: "u", aname: "" },
        2 | 3 => {
            let afid = if from.number(8) == 0 { 1 } else { crate::NOFID };
            Request::Attach { fid: from.fid(), afid, uname: from.name(), aname: from.name() }
        }
        4 | 5 => Request::Flush { oldtag: Tag(from.number(6) as u16) },
        6..9 => {
            let names: Vec<_> =
                (0..from.number(FEW + 1)).map(|_| ["a", ".."][from.number(2)]).collect();
            let names = Names::of(&names).expect("there are few");
            Request::Walk { fid: from.fid(), newfid: from.fid(), names }
        }
        9 => {
            let names = Names::of(&[from.name(), from.name()]).expect("there are few");
            Request::Walk { fid: from.fid(), newfid: from.fid(), names }
        }
        10..13 => Request::Open {
            fid: from.fid(),
            mode: [0, 1, 2, 3, 0x10, 0x40, 0x52, 0x80][from.number(8)],
        },
        13 => {
            let perm = [0o644, 0o755 | kind::DIRECTORY, u32::MAX][from.number(3)];
            Request::Create {
                fid: from.fid(),
                name: from.name(),
                perm,
                mode: [0, 1, 0x41][from.number(3)],
            }
        }
        14..17 => Request::Read {
            fid: from.fid(),
            offset,
            count: [0, 99, 5000, u32::MAX][from.number(4)],
        },
        17 | 18 => Request::Write { fid: from.fid(), offset, data: &long[..from.number(256) * 11] },
        19 => Request::Clunk { fid: from.fid() },
        20 => Request::Remove { fid: from.fid() },
        21 => Request::Stat { fid: from.fid() },
        _ => {
            let keep = Stat::DONT_TOUCH;
            let mode = [keep.mode, 0o600, 0o700 | kind::DIRECTORY][from.number(3)];
            let length = [keep.length, 0, 9][from.number(3)];
            let stat = Stat { name: from.name(), gid: from.name(), mode, length, ..keep };
            Request::Wstat { fid: from.fid(), stat }
        }
    };
    let mut message = Vec::new();
    request.encode(tag, &mut message).expect("the fields fit");
    message
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_are_read_as_they_are_written(data: Vec<u8>) {
            super::messages(&data);
        }

        #[test]
        fn messages_of_each_type_are_read_as_they_are_written(
            kind in 98_u8..130,
            fields in prop::collection::vec(0_u8..3, 0..80),
        ) {
            super::messages(&[&[kind, 1, 0][..], &fields].concat());
        }

        #[test]
        fn every_request_of_a_session_has_one_reply(
            data in prop::collection::vec(any::<u8>(), 0..2000),
        ) {
            super::session(&data);
            // That of a session which has begun.
            super::session(&[&[7, 0, 0, 0, 1, 0][..], &data].concat());
        }
    }
}
