use super::*;
use crate::{NOFID, Names, Reply, kind, mode};

const DIRECTORY: Qid = Qid { kind: 0x80, version: 0, path: 1 };
const FILE: Qid = Qid { kind: 0, version: 0, path: 2 };

/// A session whose files are letters.
struct Bench(Session<char, char>);

impl Bench {
    fn begun() -> Self {
        let mut bench = Self(Session::new(Limits::default()));
        bench.step(Tag::NONE, Request::Version { msize: 8192, version: "9P2000" });
        bench
    }

    /// With fid 0 for the root, fid 1 for a file opened with `mode`.
    fn open(mode: u8) -> Self {
        let mut bench = Self::begun();
        bench.ends(attach(0), Done::Attach('/', DIRECTORY));
        let names = Names::of(&["f"]).unwrap();
        let qids = Qids::of(&[FILE]).unwrap();
        bench.ends(Request::Walk { fid: 0, newfid: 1, names }, Done::Walk(qids, Some('f')));
        bench.ends(Request::Open { fid: 1, mode }, Done::Open('o', FILE));
        bench
    }

    fn step(&mut self, tag: Tag, request: Request<'_>) -> (Step<char, char>, Vec<u8>) {
        let (mut frame, mut out) = (Vec::new(), Vec::new());
        request.encode(tag, &mut frame).unwrap();
        (self.0.request(&frame, &mut out).unwrap(), out)
    }

    #[track_caller]
    fn call(&mut self, tag: u16, request: Request<'_>) -> CallId {
        match self.step(Tag(tag), request) {
            (Step::Call(id, _), out) if out.is_empty() => id,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    #[track_caller]
    fn ends(&mut self, request: Request<'_>, done: Done<'_, char, char>) {
        let id = self.call(9, request);
        let mut out = Vec::new();
        assert_eq!(self.0.done(id, Ok(done), &mut out), 0);
        let (_, reply) = Reply::decode(&out).unwrap();
        assert!(!matches!(reply, Reply::Error { .. }), "{request:?}: {reply:?}");
    }

    #[track_caller]
    fn refuses(&mut self, request: Request<'_>, why: &str) {
        let (_, out) = self.step(Tag(8), request);
        assert_eq!(error(&out), why, "{request:?}");
    }
}

fn attach(fid: Fid) -> Request<'static> {
    Request::Attach { fid, afid: NOFID, uname: "u", aname: "" }
}

#[track_caller]
fn error(out: &[u8]) -> &str {
    match Reply::decode(out).unwrap().1 {
        Reply::Error { ename } => ename,
        other => panic!("{other:?} is no error"),
    }
}

#[test]
fn a_fid_that_goes_while_it_is_opened_is_not_opened() {
    let mut bench = Bench::begun();
    bench.ends(attach(0), Done::Attach('/', DIRECTORY));
    let open = bench.call(1, Request::Open { fid: 0, mode: mode::READ });
    bench.refuses(
        Request::Open { fid: 0, mode: mode::READ },
        "fid 0 is busy: wait for the reply to the request before",
    );
    let (step, out) = bench.step(Tag(2), Request::Clunk { fid: 0 });
    assert!(matches!(step, Step::Replied));
    assert_eq!(Reply::decode(&out).unwrap().1, Reply::Clunk);
    // Another file by the same number is none of the first call's.
    bench.ends(attach(0), Done::Attach('/', DIRECTORY));
    let mut out = Vec::new();
    assert_eq!(bench.0.done(open, Ok(Done::Open('o', DIRECTORY)), &mut out), 0);
    assert_eq!(error(&out), "fid 0 is unknown: attach or walk to a file first");
    bench.refuses(Request::Read { fid: 0, offset: 0, count: 1 }, "fid 0 is not open");
}

#[test]
fn what_a_cancelled_call_would_bring_does_not_come() {
    let mut bench = Bench::begun();
    let attached = bench.call(1, attach(0));
    bench.refuses(attach(0), "fid 0 is in use: clunk it first");
    bench.refuses(Request::Clunk { fid: 0 }, "fid 0 is unknown: attach or walk to a file first");
    let (step, out) = bench.step(Tag(2), Request::Flush { oldtag: Tag(1) });
    assert!(matches!(step, Step::Cancel(id) if id == attached));
    assert_eq!(Reply::decode(&out).unwrap(), (Tag(2), Reply::Flush));
    // The tag and the fid are free, and a late end is none of theirs.
    let again = bench.call(1, attach(0));
    let mut out = Vec::new();
    assert_eq!(bench.0.done(attached, Ok(Done::Attach('/', DIRECTORY)), &mut out), 0);
    assert_eq!(out, []);
    assert_eq!(bench.0.done(again, Err("no"), &mut out), 0);
    assert_eq!(error(&out), "no");
    bench.call(1, attach(0));
}

#[test]
fn files_to_be_removed_on_clunk_are_when_the_session_ends() {
    let mut bench = Bench::open(mode::READ | mode::REMOVE_ON_CLUNK);
    let version = Request::Version { msize: 4096, version: "9P2000.u" };
    let (step, out) = bench.step(Tag::NONE, version);
    let Step::Reset(removals) = step else { panic!("{step:?}") };
    assert_eq!(removals.len(), 1);
    assert_eq!(removals[0].1, Call::Remove { node: 'f' });
    let reply = Reply::Version { msize: 4096, version: "9P2000" };
    assert_eq!(Reply::decode(&out).unwrap(), (Tag::NONE, reply));
    let mut out = Vec::new();
    assert_eq!(bench.0.done(removals[0].0, Ok(Done::Changed), &mut out), 0);
    assert_eq!(out, []);
    assert_eq!(bench.0.reset(), []);
}

#[test]
fn reads_leave_room_for_the_header_and_say_how_much_follows() {
    let mut bench = Bench::open(mode::READ);
    let request = Request::Read { fid: 1, offset: 5, count: u32::MAX };
    let (step, _) = bench.step(Tag(3), request);
    let Step::Call(id, Call::Read { open: 'o', offset: 5, count: 8168 }) = step else {
        panic!("{step:?}")
    };
    let mut out = Vec::new();
    assert_eq!(bench.0.done(id, Ok(Done::Read(3)), &mut out), 3);
    assert_eq!(out.len(), HEADER_BYTES + 4);
    out.extend_from_slice(b"abc");
    assert_eq!(Reply::decode(&out).unwrap(), (Tag(3), Reply::Read { data: b"abc" }));
    bench.refuses(Request::Write { fid: 1, offset: 0, data: b"" }, "file is not open for that");
    let beyond = Request::Read { fid: 1, offset: u64::MAX, count: 1 };
    bench.refuses(beyond, "beyond what a file can hold");
}

#[test]
fn a_tree_that_gives_too_much_is_not_believed() {
    let mut bench = Bench::open(mode::READ_WRITE);
    let mut refused = |request, done| {
        let id = bench.call(1, request);
        let mut out = Vec::new();
        assert_eq!(bench.0.done(id, Ok(done), &mut out), 0);
        assert_eq!(error(&out), "the tree gave what it was not asked for");
    };
    refused(Request::Read { fid: 1, offset: 0, count: 10 }, Done::Read(11));
    refused(Request::Write { fid: 1, offset: 0, data: b"abc" }, Done::Write(4));
    refused(Request::Stat { fid: 1 }, Done::Changed);
    let long = "x".repeat(9000);
    let id = bench.call(1, Request::Stat { fid: 1 });
    let mut out = Vec::new();
    assert_eq!(
        bench.0.done(id, Ok(Done::Stat(Stat { name: &long, ..Stat::DONT_TOUCH })), &mut out),
        0
    );
    assert_eq!(error(&out), "the reply is longer than 8192 bytes: ask for a larger msize");
    let id = bench.call(1, Request::Stat { fid: 1 });
    out.clear();
    assert_eq!(bench.0.done(id, Err(&"\u{fc}\0".repeat(9000)), &mut out), 0);
    assert!(out.len() <= 1024 + HEADER_BYTES + 2, "{}", out.len());
}

#[test]
fn limits_are_kept() {
    let limits = Limits { msize: 8192, fids: 2, calls: 3, bytes: 1 };
    let mut bench = Bench(Session::new(limits));
    bench.step(Tag::NONE, Request::Version { msize: u32::MAX, version: "9P2000" });
    bench.ends(attach(0), Done::Attach('/', DIRECTORY));
    bench.ends(attach(1), Done::Attach('f', FILE));
    bench.refuses(attach(2), "2 fids are all that one client may have: clunk some");
    bench.ends(Request::Open { fid: 1, mode: mode::READ }, Done::Open('o', FILE));
    let read = Request::Read { fid: 1, offset: 0, count: 8168 };
    bench.call(1, read);
    let second = bench.call(2, read);
    // 16384 less twice 8168 and the 23 of the request.
    bench.refuses(read, "8191 bytes are more than the 2 left for requests that wait");
    assert_eq!(bench.0.done(second, Err("no"), &mut Vec::new()), 0);
    for tag in [2, 3] {
        bench.call(tag, Request::Stat { fid: 1 });
    }
    bench.refuses(Request::Stat { fid: 1 }, "3 requests are all that may wait: wait for replies");
    // A fid goes in any case.
    bench.refuses(Request::Remove { fid: 1 }, "3 requests are all that may wait: wait for replies");
    bench.refuses(Request::Stat { fid: 1 }, "fid 1 is unknown: attach or walk to a file first");
}

#[test]
fn a_wstat_is_looked_at_whole_before_it_is_asked_for() {
    let mut bench = Bench::open(mode::READ);
    const KEEP: Stat<'static> = Stat::DONT_TOUCH;
    let mut refused = |fid, stat, why| bench.refuses(Request::Wstat { fid, stat }, why);
    let owner = "wstat cannot change who owns it";
    refused(1, Stat { name: "new", uid: "me", ..KEEP }, owner);
    refused(1, Stat { name: "a/b", ..KEEP }, "bad file name");
    refused(1, Stat { name: "..", mode: 0o600, ..KEEP }, "bad file name");
    let directory = "wstat cannot change whether it is a directory";
    refused(1, Stat { mode: 0o755 | kind::DIRECTORY, ..KEEP }, directory);
    refused(0, Stat { mode: 0o755, length: 0, ..KEEP }, directory);
    refused(0, Stat { length: 1, ..KEEP }, "is a directory");
    refused(1, Stat { qid: FILE, ..KEEP }, "wstat cannot change its qid");
    let (step, _) = bench.step(
        Tag(1),
        Request::Wstat {
            fid: 1,
            stat: Stat { name: "n", gid: "g", length: 3, mode: 0o600, mtime: 4, atime: 5, ..KEEP },
        },
    );
    let Step::Call(_, Call::Wstat { node: 'f', change }) = step else { panic!("{step:?}") };
    let (name, gid) = (Some("n".to_owned()), Some("g".to_owned()));
    let (length, mode, mtime) = (Some(3), Some(0o600), Some(4));
    assert_eq!(change, Change { name, length, mode, mtime, gid });
}

#[test]
fn a_directory_is_read_by_one_request_after_the_other() {
    let mut bench = Bench::begun();
    bench.ends(attach(0), Done::Attach('/', DIRECTORY));
    bench.ends(Request::Open { fid: 0, mode: mode::READ }, Done::Open('o', DIRECTORY));
    let read = |offset| Request::Read { fid: 0, offset, count: 1000 };
    let first = bench.call(1, read(0));
    bench.refuses(read(0), "fid 0 is busy: wait for the reply to the request before");
    let mut out = Vec::new();
    assert_eq!(bench.0.done(first, Ok(Done::Entries(&[0; 300], 4)), &mut out), 0);
    assert_eq!(Reply::decode(&out).unwrap().1, Reply::Read { data: &[0; 300] });
    bench.refuses(read(299), "a directory is read from 0 or on from 300, not from 299");
    let (step, _) = bench.step(Tag(1), read(300));
    let Step::Call(second, call) = step else { panic!("{step:?}") };
    assert_eq!(call, Call::Entries { open: 'o', from: 4, count: 1000 });
    // One that fails, or is called off, moves nothing.
    assert_eq!(bench.0.done(second, Err("no"), &mut out), 0);
    bench.call(1, read(300));
    bench.step(Tag(2), Request::Flush { oldtag: Tag(1) });
    let (step, _) = bench.step(Tag(1), read(0));
    let Step::Call(_, Call::Entries { from: 0, .. }) = step else { panic!("{step:?}") };
}

#[test]
fn a_tree_opens_for_access_alone() {
    let mut bench = Bench::begun();
    bench.ends(attach(0), Done::Attach('f', FILE));
    let mode = mode::WRITE | mode::TRUNCATE | mode::REMOVE_ON_CLUNK;
    let (step, _) = bench.step(Tag(1), Request::Open { fid: 0, mode });
    let Step::Call(_, call) = step else { panic!("{step:?}") };
    assert_eq!(call, Call::Open { node: 'f', mode: mode::WRITE | mode::TRUNCATE });
}
