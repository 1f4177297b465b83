use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::message::frame_bytes;
use crate::{Names, Qid, Qids, Stat};

fn frame(tag: Tag, reply: Reply<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(tag, &mut bytes).unwrap();
    bytes
}

/// A client whose session takes messages of `msize` bytes.
fn client(msize: u32) -> Client {
    let (mut client, mut out) = (Client::new(1 << 16), Vec::new());
    client.version(&mut out).unwrap();
    let answer = frame(Tag::NONE, Reply::Version { msize, version: VERSION });
    assert_eq!(client.on_reply(&answer, &mut out), Ok(None));
    client
}

/// With the root of a tree.
fn attached(msize: u32) -> (Client, Fid) {
    let (mut client, mut out) = (client(msize), Vec::new());
    let fid = client.fid();
    let attach = Request::Attach { fid, afid: NOFID, uname: "", aname: "" };
    let tag = client.ask(&attach, &mut out).unwrap();
    let answer = frame(tag, Reply::Attach { qid: Qid::default() });
    assert!(client.on_reply(&answer, &mut out).unwrap().is_some());
    (client, fid)
}

#[test]
fn what_is_no_session_is_told() {
    let begin = |reply: Reply<'_>, tag| {
        let (mut client, mut out) = (Client::new(8192), Vec::new());
        assert_eq!(client.on_reply(&frame(tag, reply), &mut out), Err(Broken::Unasked(tag)));
        let mut client = Client::new(8192);
        client.version(&mut out).unwrap();
        assert_eq!(client.version(&mut out), Err(CannotAsk::NoRequest));
        let why = client.on_reply(&frame(tag, reply), &mut out).unwrap_err();
        assert!(!client.has_session());
        why
    };
    let version = |msize, version| begin(Reply::Version { msize, version }, Tag::NONE);
    assert_eq!(version(8193, VERSION), Broken::Msize(8193));
    assert_eq!(version(255, VERSION), Broken::Msize(255));
    assert_eq!(version(8192, "unknown"), Broken::Version("unknown".into()));
    let asked = Reply::Version { msize: 8192, version: VERSION };
    assert_eq!(begin(asked, Tag(0)), Broken::Unasked(Tag(0)));
    assert_eq!(begin(Reply::Clunk, Tag::NONE), Broken::Type(Tag::NONE));
    let refused = Reply::Error { ename: "go away" };
    assert_eq!(begin(refused, Tag::NONE), Broken::Version("go away".into()));
}

#[test]
fn what_cannot_be_asked_changes_nothing() {
    let (mut client, root) = attached(256);
    let (mut out, before) = (vec![1], format!("{client:?}"));
    let newfid = client.fid();
    let fresh = format!("{client:?}");
    assert_ne!(before, fresh);
    let names = Names::of(&["x"]).unwrap();
    let long = "x".repeat(200);
    let many = Names::of(&[&*long, &*long]).unwrap();
    let huge = "x".repeat(1 << 16);
    let data = [0; 233];
    for (request, why) in [
        (Request::Version { msize: 9, version: "" }, CannotAsk::NoRequest),
        (Request::Auth { afid: newfid, uname: "", aname: "" }, CannotAsk::NoRequest),
        (Request::Attach { fid: newfid, afid: 3, uname: "", aname: "" }, CannotAsk::NoRequest),
        (Request::Flush { oldtag: Tag(0) }, CannotAsk::NoRequest),
        (Request::Attach { fid: root, afid: NOFID, uname: "", aname: "" }, CannotAsk::Fid(root)),
        (Request::Walk { fid: root, newfid: root, names }, CannotAsk::Fid(root)),
        (Request::Walk { fid: newfid, newfid, names }, CannotAsk::Fid(newfid)),
        (Request::Walk { fid: root, newfid: 99, names }, CannotAsk::Fid(99)),
        (Request::Clunk { fid: newfid }, CannotAsk::Fid(newfid)),
        (Request::Stat { fid: 99 }, CannotAsk::Fid(99)),
        (
            Request::Walk { fid: root, newfid, names: many },
            CannotAsk::TooLong { bytes: 421, msize: 256 },
        ),
        (
            Request::Create { fid: root, name: &huge, perm: 0, mode: 0 },
            CannotAsk::Malformed(Malformed::Field(1 << 16)),
        ),
        (
            Request::Read { fid: root, offset: 0, count: 233 },
            CannotAsk::TooLong { bytes: 257, msize: 256 },
        ),
        (
            Request::Write { fid: root, offset: 0, data: &data },
            CannotAsk::TooLong { bytes: 257, msize: 256 },
        ),
    ] {
        assert_eq!(client.ask(&request, &mut out), Err(why), "{request:?}");
        assert_eq!(out, [1]);
    }
    // What fits just so is asked; what was asked for with the tag tried above, too.
    assert_eq!(
        client.ask(&Request::Read { fid: root, offset: 0, count: 232 }, &mut out),
        Ok(Tag(0))
    );
}

#[test]
fn a_server_that_breaks_the_protocol_is_found_out() {
    let qids = Qids::of(&[Qid::default(); 2]).unwrap();
    let ask = |reply: Reply<'_>, tag: u16| {
        let (mut client, root) = attached(256);
        let mut out = Vec::new();
        let newfid = client.fid();
        let names = Names::of(&["x"]).unwrap();
        let requests = [
            Request::Read { fid: root, offset: 0, count: 3 },
            Request::Write { fid: root, offset: 0, data: b"abc" },
            Request::Walk { fid: root, newfid, names },
            Request::Stat { fid: root },
        ];
        for (place, request) in requests.iter().enumerate() {
            assert_eq!(client.ask(request, &mut out), Ok(Tag(place as u16)));
        }
        let why = client.on_reply(&frame(Tag(tag), reply), &mut out).unwrap_err();
        assert!(!client.has_session());
        assert_eq!(client.ask(&requests[3], &mut out), Err(CannotAsk::NoSession));
        why
    };
    let count = |asked, got| Broken::Count { asked, got };
    assert_eq!(ask(Reply::Read { data: b"abcd" }, 0), count(3, 4));
    assert_eq!(ask(Reply::Write { count: 4 }, 1), count(3, 4));
    assert_eq!(ask(Reply::Walk { qids }, 2), count(1, 2));
    assert_eq!(ask(Reply::Wstat, 3), Broken::Type(Tag(3)));
    assert_eq!(ask(Reply::Stat { stat: Stat::DONT_TOUCH }, 4), Broken::Unasked(Tag(4)));
    assert_eq!(ask(Reply::Flush, 0), Broken::Type(Tag(0)));
    assert_eq!(ask(Reply::Flush, REQUESTS_MAX), Broken::Unasked(Tag(REQUESTS_MAX)));
    let none = Tag::NONE;
    assert_eq!(ask(Reply::Version { msize: 256, version: VERSION }, none.0), Broken::Unasked(none));
    let long = "x".repeat(256);
    let size = Broken::Size { bytes: 265, msize: 256 };
    assert_eq!(ask(Reply::Error { ename: &long }, 3), size);
    let client = client(256);
    assert_eq!(client.check_size(6), Err(Broken::Size { bytes: 6, msize: 256 }));
    assert_eq!((client.check_size(7), client.check_size(256)), (Ok(()), Ok(())));
}

#[test]
fn tags_end_and_come_back() {
    let (mut client, root) = attached(256);
    let mut out = Vec::new();
    let stat = Request::Stat { fid: root };
    for tag in 0..REQUESTS_MAX {
        assert_eq!(client.ask(&stat, &mut out), Ok(Tag(tag)));
    }
    assert_eq!(client.ask(&stat, &mut out), Err(CannotAsk::Busy));
    // A flush always has a tag; the flushed one is taken until it is answered.
    out.clear();
    client.flush(Tag(7), &mut out);
    client.flush(Tag(7), &mut out);
    let flush = Tag(REQUESTS_MAX + 7);
    assert_eq!(Request::decode(&out), Ok((flush, Request::Flush { oldtag: Tag(7) })));
    let late = Reply::Error { ename: "late" };
    assert_eq!(client.on_reply(&frame(Tag(7), late), &mut out), Ok(None));
    assert_eq!(client.ask(&stat, &mut out), Err(CannotAsk::Busy));
    assert_eq!(client.on_reply(&frame(flush, Reply::Flush), &mut out), Ok(None));
    assert_eq!(client.ask(&stat, &mut out), Ok(Tag(7)));
    // A fid that is released waits with its clunk for them all.
    out.clear();
    client.release(root, &mut out);
    for tag in 0..REQUESTS_MAX {
        assert_eq!(out, b"");
        let answer = frame(Tag(tag), late);
        let end = client.on_reply(&answer, &mut out).unwrap();
        assert_eq!(end, Some((Tag(tag), End::Refused("late"))));
    }
    assert!(matches!(Request::decode(&out), Ok((_, Request::Clunk { fid })) if fid == root));
}

/// One thing that happens between the two.
#[derive(Clone, Debug)]
enum Event {
    /// The client asks for something of a file; the kind is one of six.
    Ask(u8, Index),
    Flush(Index),
    Release(Index),
    /// The server answers a request: well, in part, or with an error.
    Answer(Index, u8),
    /// The server answers a flush, having done what was asked for or not.
    AnswerFlush(Index, bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0_u8..6, any::<Index>()).prop_map(|(kind, which)| Event::Ask(kind, which)),
        1 => any::<Index>().prop_map(Event::Flush),
        1 => any::<Index>().prop_map(Event::Release),
        4 => (any::<Index>(), 0_u8..4).prop_map(|(which, how)| Event::Answer(which, how)),
        1 => (any::<Index>(), any::<bool>()).prop_map(|(which, done)| Event::AnswerFlush(which, done)),
    ]
}

/// What a server asks itself about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Make { newfid: Fid, names: usize },
    End { fid: Fid, remove: bool },
    Stat,
}

/// A server that checks what the client may do, and what the client believes.
#[derive(Default)]
struct Server {
    fids: BTreeSet<Fid>,
    /// Those a flush left open whether they are there.
    maybe: BTreeSet<Fid>,
    pending: BTreeMap<u16, Wanted>,
    /// Flush's tag, and that of the request.
    flushes: BTreeMap<u16, u16>,
}

impl Server {
    fn take(&mut self, out: &mut Vec<u8>) {
        let mut rest = &out[..];
        while !rest.is_empty() {
            let (message, later) = rest.split_at(frame_bytes(rest).unwrap());
            rest = later;
            let (tag, request) = Request::decode(message).unwrap();
            let flushed = |tag| self.flushes.values().any(|oldtag| *oldtag == tag);
            assert!(!self.pending.contains_key(&tag.0) && !flushed(tag.0), "{tag:?} is under way");
            let named = match request {
                Request::Clunk { fid } | Request::Stat { fid } | Request::Remove { fid } => {
                    Some(fid)
                }
                Request::Walk { fid, .. } => Some(fid),
                _ => None,
            };
            if let Some(fid) = named {
                let known = self.fids.contains(&fid) || self.maybe.contains(&fid);
                assert!(known, "{request:?}: the server never heard of that fid");
            }
            let wanted = match request {
                Request::Flush { oldtag } => {
                    assert!(self.pending.contains_key(&oldtag.0), "{oldtag:?} is not under way");
                    self.flushes.insert(tag.0, oldtag.0);
                    continue;
                }
                Request::Walk { newfid, names, .. } => Wanted::Make { newfid, names: names.len() },
                Request::Clunk { fid } => {
                    let others = self.pending.values().filter(
                        |wanted| matches!(wanted, Wanted::End { fid: other, .. } if *other == fid),
                    );
                    assert_eq!(others.count(), 0, "clunked twice");
                    Wanted::End { fid, remove: false }
                }
                Request::Remove { fid } => Wanted::End { fid, remove: true },
                Request::Stat { .. } => Wanted::Stat,
                _ => unreachable!("{request:?}"),
            };
            if let Wanted::Make { newfid, .. } = wanted {
                assert!(!self.fids.contains(&newfid), "{request:?}: that fid is in use");
                assert!(!self.maybe.contains(&newfid), "{request:?}: that fid may be in use");
                let made = self.pending.values().any(
                    |wanted| matches!(wanted, Wanted::Make { newfid: other, .. } if *other == newfid),
                );
                assert!(!made, "{request:?}: that fid is asked for");
            }
            self.pending.insert(tag.0, wanted);
        }
        out.clear();
    }

    /// What is done, and the answer.
    fn answer(&mut self, tag: u16, how: u8) -> Vec<u8> {
        let wanted = self.pending.remove(&tag).unwrap();
        let (tag, error) = (Tag(tag), Reply::Error { ename: "no" });
        match (wanted, how) {
            (Wanted::End { fid, remove }, how) => {
                self.fids.remove(&fid);
                self.maybe.remove(&fid);
                let done = if remove { Reply::Remove } else { Reply::Clunk };
                frame(tag, if how == 0 { error } else { done })
            }
            (_, 0) => frame(tag, error),
            (Wanted::Make { names, .. }, 1) if names > 0 => frame(
                tag,
                Reply::Walk { qids: Qids::of(&vec![Qid::default(); names - 1]).unwrap() },
            ),
            (Wanted::Make { newfid, names }, _) => {
                self.fids.insert(newfid);
                frame(tag, Reply::Walk { qids: Qids::of(&vec![Qid::default(); names]).unwrap() })
            }
            (Wanted::Stat, _) => frame(tag, Reply::Stat { stat: Stat::DONT_TOUCH }),
        }
    }

    fn answer_flush(&mut self, flush: u16, done: bool) -> Vec<u8> {
        let oldtag = self.flushes.remove(&flush).unwrap();
        match self.pending.remove(&oldtag) {
            Some(Wanted::Make { newfid, .. }) if done => _ = self.fids.insert(newfid),
            Some(Wanted::Make { newfid, .. }) => _ = self.maybe.insert(newfid),
            Some(Wanted::End { fid, remove: true }) if done => {
                self.fids.remove(&fid);
                self.maybe.insert(fid);
            }
            _ => {}
        }
        frame(Tag(flush), Reply::Flush)
    }
}

struct Pair {
    client: Client,
    server: Server,
    out: Vec<u8>,
    /// Fids the client's user holds, and whether they stand for a file.
    held: BTreeMap<Fid, bool>,
    asked: BTreeMap<u16, Wanted>,
}

impl Pair {
    fn ask(&mut self, kind: u8, which: &Index) {
        let files: Vec<Fid> = self.held.iter().filter(|held| *held.1).map(|held| *held.0).collect();
        if files.is_empty() {
            return;
        }
        let fid = *which.get(&files);
        let names = Names::of(&["a"; 2][..usize::from(kind % 3)]).unwrap();
        let (request, wanted) = match kind {
            0..3 => {
                let newfid = self.client.fid();
                assert_eq!(self.held.insert(newfid, false), None, "a fid was handed out twice");
                let wanted = Wanted::Make { newfid, names: names.len() };
                (Request::Walk { fid, newfid, names }, wanted)
            }
            3 => (Request::Remove { fid }, Wanted::End { fid, remove: true }),
            4 => (Request::Clunk { fid }, Wanted::End { fid, remove: false }),
            _ => (Request::Stat { fid }, Wanted::Stat),
        };
        let tag = self.client.ask(&request, &mut self.out).unwrap();
        if let Wanted::End { fid, .. } = wanted {
            self.held.insert(fid, false);
        }
        assert_eq!(self.asked.insert(tag.0, wanted), None);
        self.server.take(&mut self.out);
    }

    fn hear(&mut self, frame: &[u8], silent: bool) {
        let end = self.client.on_reply(frame, &mut self.out).unwrap();
        assert_eq!(end.is_some(), !silent);
        if let Some((tag, end)) = end {
            let wanted = self.asked.remove(&tag.0).unwrap();
            if let Wanted::Make { newfid, names } = wanted
                && let Some(stands) = self.held.get_mut(&newfid)
            {
                *stands = match end {
                    End::Done(Reply::Walk { qids }) => qids.len() == names,
                    End::Done(Reply::Attach { .. }) => true,
                    _ => false,
                };
            }
        }
        self.server.take(&mut self.out);
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Ask(kind, which) => self.ask(*kind, which),
            Event::Flush(which) if !self.asked.is_empty() => {
                let tags: Vec<u16> = self.asked.keys().copied().collect();
                let tag = *which.get(&tags);
                let wanted = self.asked.remove(&tag).unwrap();
                self.client.flush(Tag(tag), &mut self.out);
                if let Wanted::Make { newfid, .. } = wanted
                    && self.held.remove(&newfid).is_some()
                {
                    self.client.release(newfid, &mut self.out);
                }
                self.server.take(&mut self.out);
            }
            Event::Release(which) if !self.held.is_empty() => {
                let fids: Vec<Fid> = self.held.keys().copied().collect();
                let fid = *which.get(&fids);
                self.held.remove(&fid);
                self.client.release(fid, &mut self.out);
                self.server.take(&mut self.out);
            }
            Event::Answer(which, how) if !self.server.pending.is_empty() => {
                let tags: Vec<u16> = self.server.pending.keys().copied().collect();
                let tag = *which.get(&tags);
                let silent = !self.asked.contains_key(&tag);
                let frame = self.server.answer(tag, *how);
                self.hear(&frame, silent);
            }
            Event::AnswerFlush(which, done) if !self.server.flushes.is_empty() => {
                let tags: Vec<u16> = self.server.flushes.keys().copied().collect();
                let frame = self.server.answer_flush(*which.get(&tags), *done);
                self.hear(&frame, true);
            }
            _ => {}
        }
    }
}

/// Frames as a server might send them, some of them changed.
fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let texts = prop_oneof![Just("9P2000".to_owned()), "[a-z]{0,9}"];
    let one = (0_usize..14, any::<(u16, u32, bool)>(), texts, any::<Option<(u8, u8)>>());
    let made = one.prop_map(|(kind, (tag, number, small), text, change)| {
        let qids = Qids::of(&[Qid::default(); 16][..number as usize % 17]).unwrap();
        let qid = Qid::default();
        let data = vec![7; number as usize % 300];
        let reply = [
            Reply::Version { msize: number, version: &text },
            Reply::Auth { aqid: qid },
            Reply::Attach { qid },
            Reply::Error { ename: &text },
            Reply::Flush,
            Reply::Walk { qids },
            Reply::Open { qid, iounit: number },
            Reply::Create { qid, iounit: number },
            Reply::Read { data: &data },
            Reply::Write { count: number },
            Reply::Clunk,
            Reply::Remove,
            Reply::Stat { stat: Stat::DONT_TOUCH },
            Reply::Wstat,
        ][kind];
        let mut bytes = frame(Tag(if small { tag % 8 } else { tag }), reply);
        if let Some((at, byte)) = change {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        bytes
    });
    prop::collection::vec(made, 0..40)
}

#[test]
fn after_a_remove_a_fid_is_its_holders_until_that_lets_go() {
    let (mut client, root) = attached(8192);
    let mut out = Vec::new();
    let tag = client.ask(&Request::Remove { fid: root }, &mut out).unwrap();
    assert!(client.on_reply(&frame(tag, Reply::Remove), &mut out).unwrap().is_some());
    assert_ne!(client.fid(), root);
    client.release(root, &mut out);
    assert_eq!(client.fid(), root);
}

proptest! {
    #[test]
    fn tags_and_fids_are_used_once_at_a_time(
        events in prop::collection::vec(event(), 0..300), rest in any::<[Index; 8]>(),
    ) {
        let (client, root) = attached(8192);
        let server = Server { fids: [root].into(), ..Server::default() };
        let held = [(root, true)].into();
        let (out, asked) = (Vec::new(), BTreeMap::new());
        let mut pair = Pair { client, server, out, held, asked };
        for event in &events {
            pair.happen(event);
        }
        // When all is given back and answered, nothing is left at either end.
        for turn in 0.. {
            let which = rest[turn % rest.len()];
            let (held, pending) = (pair.held.len(), pair.server.pending.len());
            let event = match () {
                () if held > 0 => Event::Release(which),
                () if !pair.server.flushes.is_empty() => Event::AnswerFlush(which, turn % 2 == 0),
                () if pending > 0 => Event::Answer(which, turn as u8 % 4),
                () => break,
            };
            pair.happen(&event);
        }
        prop_assert_eq!(&pair.server.fids, &BTreeSet::new());
        prop_assert_eq!(&pair.server.maybe, &BTreeSet::new());
        prop_assert!(pair.client.requests.iter().all(Option::is_none));
        prop_assert!(pair.client.fids.iter().all(|held| held.stands == Stands::Free));
        prop_assert_eq!(pair.client.free_fids.len(), pair.client.fids.len());
        prop_assert_eq!(pair.client.free_tags.len(), pair.client.requests.len());
    }

    #[test]
    fn no_server_makes_it_panic(frames in frames(), flushed: [u16; 3], begun: bool) {
        let (mut client, mut out) = (Client::new(512), Vec::new());
        if begun {
            let root;
            (client, root) = attached(256);
            let newfid = client.fid();
            let names = Names::of(&["a"; 3]).unwrap();
            for request in [
                Request::Stat { fid: root },
                Request::Read { fid: root, offset: 0, count: 100 },
                Request::Walk { fid: root, newfid, names },
                Request::Clunk { fid: root },
            ] {
                client.ask(&request, &mut out).unwrap();
            }
            flushed.iter().for_each(|tag| client.flush(Tag(tag % 8), &mut out));
            client.release(newfid, &mut out);
        } else {
            client.version(&mut out).unwrap();
        }
        let mut broken = false;
        for frame in &frames {
            let heard = client.on_reply(frame, &mut out).is_err();
            prop_assert!(heard || !broken, "a broken session went on");
            broken |= heard;
        }
        prop_assert!(out.len() < 1000);
    }
}
