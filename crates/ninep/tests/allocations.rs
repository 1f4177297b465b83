//! Whatever arrives, nobody allocates more than two of the longest messages for it.
//!
//! A program of its own, since what counts the bytes is its allocator.

use cellway_ninep::{
    Call, CallId, Client, Done, Fid, HEADER_BYTES, Limits, NOFID, Names, Qid, Qids, Reply, Request,
    Session, Stat, Step, Tag, VERSION, kind, mode,
};
use proptest::prelude::*;
use proptest::sample::Index;

const MSIZE: u32 = 8192;

/// What one step may allocate beside two messages: sixteen names, a table's next size with few
/// fids and calls in it, an error's text, the clunks that wait.
const BESIDE_BYTES: u64 = 4096;

/// So few that the tables stay small.
const LIMITS: Limits = Limits { msize: MSIZE, fids: 8, calls: 8, bytes: 2 * MSIZE as usize };

/// Does it, and looks at how much memory it had at a time.
#[track_caller]
fn bounded<T>(input: &[u8], step: impl FnOnce() -> T) -> T {
    let mut result = None;
    let had = allocation_counter::measure(|| result = Some(step()));
    let most = 2 * u64::from(MSIZE) + BESIDE_BYTES;
    let head = &input[..input.len().min(64)];
    assert!(had.bytes_max <= most, "{} bytes for {} as {head:?}", had.bytes_max, input.len());
    result.expect("it was done")
}

/// Reads it as each of what it could be, which allocates nothing.
fn decode(bytes: &[u8]) {
    let had = allocation_counter::measure(|| {
        let _ = (Request::decode(bytes), Reply::decode(bytes));
        let mut entries = bytes;
        while Stat::decode(&mut entries).is_ok() {}
    });
    assert_eq!(had.count_total, 0, "{:?}", &bytes[..bytes.len().min(64)]);
}

const DIRECTORY: Qid = Qid { kind: kind::of(kind::DIRECTORY), version: 0, path: 1 };
const FILE: Qid = Qid { kind: 0, version: 0, path: 2 };

/// A session with a directory as fid 0, a file open to read and write as 1, a directory
/// open to read as 2, and a tree that answers.
struct Server {
    session: Session<(), ()>,
    calls: Vec<(CallId, Call<(), ()>)>,
}

impl Server {
    fn new() -> Self {
        let mut server = Self { session: Session::new(LIMITS), calls: Vec::new() };
        let (none, file) = (Names::none(), Names::of(&["f"]).unwrap());
        for request in [
            Request::Version { msize: MSIZE, version: VERSION },
            Request::Attach { fid: 0, afid: NOFID, uname: "u", aname: "" },
            Request::Walk { fid: 0, newfid: 1, names: file },
            Request::Open { fid: 1, mode: mode::READ_WRITE },
            Request::Walk { fid: 0, newfid: 2, names: none },
            Request::Open { fid: 2, mode: mode::READ },
        ] {
            let tag = if matches!(request, Request::Version { .. }) { Tag::NONE } else { Tag(9) };
            let mut frame = Vec::new();
            request.encode(tag, &mut frame).unwrap();
            server.take(&frame);
            server.answer(0);
        }
        server
    }

    fn take(&mut self, bytes: &[u8]) {
        let step = bounded(bytes, || self.session.request(bytes, &mut Vec::new()));
        match step {
            Ok(Step::Call(id, call)) => self.calls.push((id, call)),
            Ok(Step::Cancel(id)) => self.calls.retain(|(other, _)| *other != id),
            Ok(Step::Reset(_)) => self.calls.clear(),
            Ok(Step::Replied) | Err(_) => {}
        }
    }

    /// Ends all calls: 0 well, 1 with the longest text there is, else with what was not asked for.
    fn answer(&mut self, how: u8) {
        let why = "why not? ".repeat(7000);
        for (id, call) in std::mem::take(&mut self.calls) {
            let (entries, name) = (vec![7; MSIZE as usize], "n".repeat(60_000));
            let qid = if matches!(call, Call::Attach { .. }) { DIRECTORY } else { FILE };
            let whole = Stat { name: &name[..(MSIZE - 100) as usize], ..Stat::DONT_TOUCH };
            let done = match call {
                _ if how == 1 => Err(&*why),
                _ if how > 1 => Ok(Done::Stat(Stat { name: &name, ..Stat::DONT_TOUCH })),
                Call::Attach { .. } => Ok(Done::Attach((), qid)),
                Call::Walk { names, .. } => {
                    Ok(Done::Walk(Qids::of(&vec![qid; names.len()]).unwrap(), Some(())))
                }
                Call::Open { .. } => Ok(Done::Open((), qid)),
                Call::Create { .. } => Ok(Done::Create((), (), qid)),
                Call::Read { count, .. } => Ok(Done::Read(count)),
                Call::Entries { count, .. } => Ok(Done::Entries(&entries[..count as usize], 1)),
                Call::Write { data, .. } => Ok(Done::Write(data.len() as u32)),
                Call::Stat { .. } => Ok(Done::Stat(whole)),
                Call::Remove { .. } | Call::Wstat { .. } => Ok(Done::Changed),
            };
            bounded(&[how], || self.session.done(id, done, &mut Vec::new()));
        }
    }
}

/// A client that has asked for something of each kind, and the tags of that.
fn client() -> (Client, Vec<Tag>) {
    let (mut client, mut out) = (Client::new(MSIZE), Vec::new());
    client.version(&mut out).unwrap();
    hear(&mut client, &reply(Tag::NONE, Reply::Version { msize: MSIZE, version: VERSION }));
    let mut fid = || -> Fid { client.fid() };
    let (root, made, other, gone, clunked) = (fid(), fid(), fid(), fid(), fid());
    let names = Names::of(&["a"; 16]).unwrap();
    for newfid in [root, other, gone, clunked] {
        let attach = Request::Attach { fid: newfid, afid: NOFID, uname: "", aname: "" };
        let tag = client.ask(&attach, &mut out).unwrap();
        hear(&mut client, &reply(tag, Reply::Attach { qid: DIRECTORY }));
    }
    let count = client.io_bytes_max();
    let asked = [
        Request::Walk { fid: root, newfid: made, names },
        Request::Open { fid: root, mode: 0 },
        Request::Create { fid: other, name: "a", perm: 0, mode: 0 },
        Request::Read { fid: root, offset: 0, count },
        Request::Write { fid: root, offset: 0, data: &[0; 100] },
        Request::Stat { fid: root },
        Request::Wstat { fid: root, stat: Stat::DONT_TOUCH },
        Request::Remove { fid: gone },
        Request::Clunk { fid: clunked },
    ];
    let mut tags: Vec<_> = asked.iter().map(|one| client.ask(one, &mut out).unwrap()).collect();
    // One that is flushed, and its flush.
    let flushed = client.ask(&Request::Stat { fid: other }, &mut out).unwrap();
    client.flush(flushed, &mut out);
    client.release(other, &mut out);
    tags.extend([flushed, Tag(flushed.0 + cellway_ninep::REQUESTS_MAX)]);
    (client, tags)
}

fn reply(tag: Tag, reply: Reply<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    reply.encode(tag, &mut frame).unwrap();
    frame
}

/// Whether the client still talks to such a server.
fn hear(client: &mut Client, frame: &[u8]) -> bool {
    bounded(frame, || client.on_reply(frame, &mut Vec::new()).is_ok())
}

/// Messages of each type, with texts and data of such lengths.
fn messages(tag: Tag, text: usize, data: usize, few: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (text, data) = ("x".repeat(text), vec![5; data]);
    let (text, data) = (&*text, &*data);
    let stat = Stat { name: text, gid: text, mode: 0o600, ..Stat::DONT_TOUCH };
    let shown = Stat { uid: text, muid: text, ..stat };
    let names = Names::of(&vec![text; few]).unwrap();
    let qids = Qids::of(&vec![FILE; few]).unwrap();
    let requests = [
        Request::Version { msize: MSIZE, version: text },
        Request::Version { msize: u32::MAX, version: VERSION },
        Request::Auth { afid: 3, uname: text, aname: text },
        Request::Attach { fid: 3, afid: NOFID, uname: text, aname: text },
        Request::Flush { oldtag: Tag(1) },
        Request::Walk { fid: 0, newfid: 4, names },
        Request::Open { fid: 0, mode: 0 },
        Request::Create { fid: 0, name: text, perm: 0o600, mode: 0 },
        Request::Read { fid: 1, offset: 0, count: u32::MAX },
        Request::Read { fid: 2, offset: 0, count: MSIZE },
        Request::Write { fid: 1, offset: 0, data },
        Request::Clunk { fid: 1 },
        Request::Remove { fid: 1 },
        Request::Stat { fid: 1 },
        Request::Wstat { fid: 1, stat },
    ];
    let replies = [
        Reply::Version { msize: MSIZE, version: text },
        Reply::Auth { aqid: FILE },
        Reply::Attach { qid: FILE },
        Reply::Error { ename: text },
        Reply::Flush,
        Reply::Walk { qids },
        Reply::Open { qid: FILE, iounit: u32::MAX },
        Reply::Create { qid: FILE, iounit: 1 },
        Reply::Read { data },
        Reply::Write { count: u32::MAX },
        Reply::Clunk,
        Reply::Remove,
        Reply::Stat { stat: shown },
        Reply::Wstat,
    ];
    let bytes = |encode: &dyn Fn(&mut Vec<u8>) -> bool| {
        let mut bytes = Vec::new();
        encode(&mut bytes).then_some(bytes)
    };
    // What fits into no message is none.
    let ask = |one: &Request<'_>| bytes(&|out| one.encode(tag, out).is_ok());
    let answer = |one: &Reply<'_>| bytes(&|out| one.encode(tag, out).is_ok());
    (requests.iter().filter_map(ask).collect(), replies.iter().filter_map(answer).collect())
}

/// What is done to a message.
#[derive(Clone, Debug)]
enum Harm {
    Byte(Index, u8),
    /// A length or count, where one may be, that is none.
    Lie(Index, u32),
    Cut(Index),
    Add(usize),
    /// Its size is that of the message again.
    Refit,
}

fn harm() -> impl Strategy<Value = Harm> {
    const LIES: [u32; 9] =
        [0, 17, 0xFFFF, 0x10000, MSIZE, MSIZE + 1, 4 * MSIZE, i32::MAX as u32, u32::MAX];
    prop_oneof![
        2 => any::<(Index, u8)>().prop_map(|(at, byte)| Harm::Byte(at, byte)),
        3 => (any::<Index>(), prop::sample::select(&LIES))
            .prop_map(|(at, lie)| Harm::Lie(at, lie)),
        1 => any::<Index>().prop_map(Harm::Cut),
        1 => (1..4 * MSIZE as usize).prop_map(Harm::Add),
        3 => Just(Harm::Refit),
    ]
}

fn harmed(mut bytes: Vec<u8>, harms: &[Harm]) -> Vec<u8> {
    for harm in harms {
        if bytes.is_empty() {
            break;
        }
        match harm {
            Harm::Byte(at, byte) => *at.get_mut(&mut bytes) = *byte,
            // Lengths stand at the beginning, mostly.
            Harm::Lie(at, lie) => lie_at(&mut bytes, at.index(48), *lie),
            Harm::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Harm::Add(count) => bytes.resize(bytes.len() + count, b'y'),
            Harm::Refit => refit(&mut bytes),
        }
    }
    bytes
}

fn lie_at(bytes: &mut [u8], at: usize, lie: u32) {
    for (place, byte) in bytes.iter_mut().skip(at).zip(lie.to_le_bytes()) {
        *place = byte;
    }
}

fn refit(bytes: &mut [u8]) {
    let len = bytes.len() as u32;
    if let Some(size) = bytes.first_chunk_mut() {
        *size = len.to_le_bytes();
    }
}

/// Lengths about those that matter.
fn len() -> impl Strategy<Value = usize> {
    let whole = MSIZE as usize;
    prop_oneof![0..300usize, whole / 2 - 50..whole / 2, whole - 60..whole + 10, 0..4 * whole]
}

#[test]
fn lengths_that_lie_wherever_they_stand() {
    for (text, data, few) in [(3, 5, 2), (400, 8000, 16), (4000, 8168, 1)] {
        let (requests, replies) = messages(Tag(1), text, data, few);
        for (message, is_request) in
            requests.iter().map(|one| (one, true)).chain(replies.iter().map(|one| (one, false)))
        {
            for at in 0..message.len().min(80) {
                for lie in [0xFFFF, MSIZE, u32::MAX] {
                    let mut bytes = message.clone();
                    lie_at(&mut bytes, at, lie);
                    if at >= 4 {
                        refit(&mut bytes);
                    }
                    decode(&bytes);
                    if is_request {
                        let mut server = Server::new();
                        server.take(&bytes);
                        server.answer(0);
                    } else {
                        let (mut client, tags) = client();
                        for tag in tags {
                            if at >= HEADER_BYTES {
                                bytes[5..7].copy_from_slice(&tag.0.to_le_bytes());
                            }
                            if !hear(&mut client, &bytes) {
                                break;
                            }
                        }
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..300), kinds in 98..130u8) {
        decode(&bytes);
        Server::new().take(&bytes);
        hear(&mut client().0, &bytes);
        refit(&mut bytes);
        if let Some(place) = bytes.get_mut(4) {
            *place = kinds;
        }
        decode(&bytes);
        Server::new().take(&bytes);
        hear(&mut client().0, &bytes);
    }

    #[test]
    fn requests_that_are_long_cut_or_harmed(
        all in prop::collection::vec(
            (any::<Index>(), len(), len(), 0..17usize, prop::collection::vec(harm(), 0..4), 0..3u8),
            1..12,
        ),
    ) {
        let mut server = Server::new();
        // Before there is a session, too.
        let mut bare = Server { session: Session::new(LIMITS), calls: Vec::new() };
        for (number, (which, text, data, few, harms, how)) in all.into_iter().enumerate() {
            let (requests, _) = messages(Tag(number as u16), text, data, few);
            let bytes = harmed(which.get(&requests).clone(), &harms);
            decode(&bytes);
            server.take(&bytes);
            bare.take(&bytes);
            if number % 3 == 2 {
                server.answer(how);
            }
        }
        server.answer(0);
        server.session.reset();
    }

    #[test]
    fn replies_that_are_long_cut_or_harmed(
        all in prop::collection::vec(
            (any::<Index>(), any::<Index>(), len(), len(), 0..17usize,
             prop::collection::vec(harm(), 0..3)),
            1..12,
        ),
    ) {
        let (mut talking, tags) = client();
        for (which, tag, text, data, few, harms) in all {
            let (_, replies) = messages(*tag.get(&tags), text, data, few);
            let bytes = harmed(which.get(&replies).clone(), &harms);
            decode(&bytes);
            if !hear(&mut talking, &bytes) {
                (talking, _) = client();
            }
            // What answers the version.
            let mut new = Client::new(MSIZE);
            new.version(&mut Vec::new()).unwrap();
            let mut bytes = bytes;
            if let Some(place) = bytes.get_mut(5..7) {
                place.fill(0xFF);
            }
            hear(&mut new, &bytes);
        }
    }
}
