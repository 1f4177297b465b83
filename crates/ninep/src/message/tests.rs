use super::*;
use proptest::prelude::*;

/// A message as the manual writes it: fields one after the other.
fn raw(kind: u8, tag: u16, fields: &[&[u8]]) -> Vec<u8> {
    let fields = fields.concat();
    let len = (HEADER_BYTES + fields.len()) as u32;
    [&len.to_le_bytes()[..], &[kind], &tag.to_le_bytes(), &fields].concat()
}

#[track_caller]
fn asks(request: Request<'_>, kind: u8, fields: &[&[u8]]) {
    let bytes = raw(kind, 0x1234, fields);
    let mut made = Vec::new();
    request.encode(Tag(0x1234), &mut made).unwrap();
    assert_eq!(made, bytes);
    assert_eq!(Request::decode(&bytes), Ok((Tag(0x1234), request)));
}

#[track_caller]
fn answers(reply: Reply<'_>, kind: u8, fields: &[&[u8]]) {
    let bytes = raw(kind, 7, fields);
    let mut made = Vec::new();
    reply.encode(Tag(7), &mut made).unwrap();
    assert_eq!(made, bytes);
    assert_eq!(Reply::decode(&bytes), Ok((Tag(7), reply)));
}

const QID: Qid = Qid { kind: 0x80, version: 0x0403_0201, path: 0x0807_0605_0403_0201 };
const QID_BYTES: &[u8] = &[0x80, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8];

fn stat() -> (Stat<'static>, Vec<u8>) {
    let stat = Stat {
        kernel_type: 0x0201,
        kernel_dev: 3,
        qid: QID,
        mode: 0x8000_01ED,
        atime: 4,
        mtime: 5,
        length: 6,
        name: "n",
        uid: "",
        gid: "gg",
        muid: "m",
    };
    let fields: &[&[u8]] = &[
        &[1, 2],
        &[3, 0, 0, 0],
        QID_BYTES,
        &[0xED, 1, 0, 0x80],
        &[4, 0, 0, 0],
        &[5, 0, 0, 0],
        &[6, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, b'n'],
        &[0, 0],
        &[2, 0, b'g', b'g'],
        &[1, 0, b'm'],
    ];
    let fields = fields.concat();
    let bytes = [&(fields.len() as u16).to_le_bytes()[..], &fields].concat();
    (stat, bytes)
}

#[test]
fn requests_are_the_manual_s_bytes() {
    let version: &[u8] = &[6, 0, b'9', b'P', b'2', b'0', b'0', b'0'];
    let (one, two): (&[u8], &[u8]) = (&[1, 0, 0, 0], &[2, 0, 0, 0]);
    asks(Request::Version { msize: 8192, version: "9P2000" }, 100, &[&[0, 32, 0, 0], version]);
    asks(Request::Auth { afid: 1, uname: "u", aname: "" }, 102, &[one, &[1, 0, b'u'], &[0, 0]]);
    let nofid = crate::NOFID;
    asks(
        Request::Attach { fid: 1, afid: nofid, uname: "", aname: "x" },
        104,
        &[one, &[255; 4], &[0, 0], &[1, 0, b'x']],
    );
    asks(Request::Flush { oldtag: Tag(0x0201) }, 108, &[&[1, 2]]);
    let names = Names::of(&["a", ".."]).unwrap();
    asks(
        Request::Walk { fid: 1, newfid: 2, names },
        110,
        &[one, two, &[2, 0], &[1, 0, b'a'], &[2, 0, b'.', b'.']],
    );
    asks(Request::Open { fid: 1, mode: 0x11 }, 112, &[one, &[0x11]]);
    asks(
        Request::Create { fid: 1, name: "f", perm: 0o644, mode: 1 },
        114,
        &[one, &[1, 0, b'f'], &[0xA4, 1, 0, 0], &[1]],
    );
    let offset: &[u8] = &[0, 0, 0, 0, 1, 0, 0, 0];
    asks(Request::Read { fid: 1, offset: 1 << 32, count: 2 }, 116, &[one, offset, two]);
    asks(Request::Write { fid: 1, offset: 1 << 32, data: b"hi" }, 118, &[one, offset, two, b"hi"]);
    asks(Request::Clunk { fid: 1 }, 120, &[one]);
    asks(Request::Remove { fid: 1 }, 122, &[one]);
    asks(Request::Stat { fid: 1 }, 124, &[one]);
    let (stat, bytes) = stat();
    let len = (bytes.len() as u16).to_le_bytes();
    asks(Request::Wstat { fid: 1, stat }, 126, &[one, &len, &bytes]);
}

#[test]
fn replies_are_the_manual_s_bytes() {
    let version: &[u8] = &[7, 0, b'u', b'n', b'k', b'n', b'o', b'w', b'n'];
    answers(Reply::Version { msize: 1, version: "unknown" }, 101, &[&[1, 0, 0, 0], version]);
    answers(Reply::Auth { aqid: QID }, 103, &[QID_BYTES]);
    answers(Reply::Attach { qid: QID }, 105, &[QID_BYTES]);
    answers(Reply::Error { ename: "no" }, 107, &[&[2, 0, b'n', b'o']]);
    answers(Reply::Flush, 109, &[]);
    let qids = Qids::of(&[QID, QID]).unwrap();
    answers(Reply::Walk { qids }, 111, &[&[2, 0], QID_BYTES, QID_BYTES]);
    answers(Reply::Open { qid: QID, iounit: 1 }, 113, &[QID_BYTES, &[1, 0, 0, 0]]);
    answers(Reply::Create { qid: QID, iounit: 0 }, 115, &[QID_BYTES, &[0; 4]]);
    answers(Reply::Read { data: b"abc" }, 117, &[&[3, 0, 0, 0], b"abc"]);
    answers(Reply::Write { count: 9 }, 119, &[&[9, 0, 0, 0]]);
    answers(Reply::Clunk, 121, &[]);
    answers(Reply::Remove, 123, &[]);
    let (stat, bytes) = stat();
    answers(Reply::Stat { stat }, 125, &[&(bytes.len() as u16).to_le_bytes(), &bytes]);
    answers(Reply::Wstat, 127, &[]);
}

#[test]
fn what_is_no_message_is_told_why() {
    let ask = |kind, fields: &[&[u8]]| Request::decode(&raw(kind, 1, fields)).unwrap_err();
    assert_eq!(ask(106, &[&[0, 0]]), Malformed::Type(106));
    assert_eq!(ask(121, &[]), Malformed::Type(121));
    assert_eq!(ask(120, &[&[0; 3]]), Malformed::Short);
    assert_eq!(ask(120, &[&[0; 5]]), Malformed::Long);
    assert_eq!(ask(110, &[&[0; 8], &[17, 0], &[0; 34]]), Malformed::Many(17));
    assert_eq!(ask(100, &[&[0; 4], &[1, 0, 0xFF]]), Malformed::Text);
    assert_eq!(ask(100, &[&[0; 4], &[1, 0, 0]]), Malformed::Text);
    assert_eq!(Reply::decode(&raw(120, 1, &[&[0; 4]])), Err(Malformed::Type(120)));
    assert_eq!(Reply::decode(&raw(0, 1, &[])), Err(Malformed::Type(0)));
    // A size that is not the message's.
    let mut bytes = raw(120, 1, &[&[0; 4]]);
    bytes[0] -= 1;
    assert_eq!(Request::decode(&bytes), Err(Malformed::Long));
    bytes[0] += 2;
    assert_eq!(Request::decode(&bytes), Err(Malformed::Short));
    assert_eq!((frame_bytes(&bytes), frame_tag(&bytes)), (Some(12), Some(Tag(1))));
    assert_eq!((frame_bytes(&bytes[..3]), frame_tag(&bytes[..6])), (None, None));
}

#[test]
fn fields_that_do_not_fit_append_nothing() {
    let long = "x".repeat(1 << 16);
    let mut out = vec![1, 2, 3];
    let error = Reply::Error { ename: &long }.encode(Tag(1), &mut out);
    assert_eq!(error, Err(Malformed::Field(1 << 16)));
    let stat = Stat { name: &long[..40_000], uid: &long[..40_000], ..Stat::DONT_TOUCH };
    assert!(Request::Wstat { fid: 1, stat }.encode(Tag(1), &mut out).is_err());
    assert_eq!(out, [1, 2, 3]);
    assert_eq!(Names::of(&[""; 17]), Err(Malformed::Many(17)));
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[^\\x00]{0,12}"]
}

/// What the messages borrow.
#[derive(Clone, Debug)]
struct Parts {
    tag: u16,
    numbers: [u32; 4],
    longs: [u64; 2],
    texts: Vec<String>,
    data: Vec<u8>,
    count: usize,
}

prop_compose! {
    fn parts()(
        tag in any::<u16>(), numbers in any::<[u32; 4]>(), longs in any::<[u64; 2]>(),
        texts in prop::collection::vec(text(), FEW), data in prop::collection::vec(any::<u8>(), 0..200),
        count in 0..=FEW,
    ) -> Parts {
        Parts { tag, numbers, longs, texts, data, count }
    }
}

impl Parts {
    fn qid(&self) -> Qid {
        Qid { kind: self.numbers[0] as u8, version: self.numbers[1], path: self.longs[0] }
    }

    fn stat(&self) -> Stat<'_> {
        let [a, b, c, d] = self.numbers;
        let [name, uid, gid, muid] = [0, 1, 2, 3].map(|at| &*self.texts[at]);
        let (kernel_type, kernel_dev, length) = (a as u16, b, self.longs[1]);
        let (qid, mode, atime, mtime) = (self.qid(), b, c, d);
        Stat { kernel_type, kernel_dev, qid, mode, atime, mtime, length, name, uid, gid, muid }
    }

    fn requests(&self) -> Vec<Request<'_>> {
        let [fid, newfid, count, perm] = self.numbers;
        let texts: Vec<&str> = self.texts.iter().map(|text| &**text).collect();
        let (uname, aname, mode, data) = (texts[0], texts[1], count as u8, &self.data[..]);
        let names = Names::of(&texts[..self.count]).unwrap();
        vec![
            Request::Version { msize: fid, version: uname },
            Request::Auth { afid: fid, uname, aname },
            Request::Attach { fid, afid: newfid, uname, aname },
            Request::Flush { oldtag: Tag(fid as u16) },
            Request::Walk { fid, newfid, names },
            Request::Open { fid, mode },
            Request::Create { fid, name: uname, perm, mode },
            Request::Read { fid, offset: self.longs[0], count },
            Request::Write { fid, offset: self.longs[0], data },
            Request::Clunk { fid },
            Request::Remove { fid },
            Request::Stat { fid },
            Request::Wstat { fid, stat: self.stat() },
        ]
    }

    fn replies(&self) -> Vec<Reply<'_>> {
        let (qid, iounit, text) = (self.qid(), self.numbers[2], &*self.texts[0]);
        vec![
            Reply::Version { msize: iounit, version: text },
            Reply::Auth { aqid: qid },
            Reply::Attach { qid },
            Reply::Error { ename: text },
            Reply::Flush,
            Reply::Walk { qids: Qids::of(&vec![qid; self.count]).unwrap() },
            Reply::Open { qid, iounit },
            Reply::Create { qid, iounit },
            Reply::Read { data: &self.data },
            Reply::Write { count: iounit },
            Reply::Clunk,
            Reply::Remove,
            Reply::Stat { stat: self.stat() },
            Reply::Wstat,
        ]
    }
}

/// Whatever `bytes` are: no panic, and what is a message is that message only.
fn look(bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut again = Vec::new();
    if let Ok((tag, request)) = Request::decode(bytes) {
        request.encode(tag, &mut again).unwrap();
        prop_assert_eq!(&again, bytes);
    }
    again.clear();
    if let Ok((tag, reply)) = Reply::decode(bytes) {
        reply.encode(tag, &mut again).unwrap();
        prop_assert_eq!(&again, bytes);
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_message_comes_back(parts in parts()) {
        let tag = Tag(parts.tag);
        for request in parts.requests() {
            let mut bytes = Vec::new();
            request.encode(tag, &mut bytes).unwrap();
            prop_assert_eq!(frame_bytes(&bytes), Some(bytes.len()));
            prop_assert_eq!(Request::decode(&bytes), Ok((tag, request)));
        }
        for reply in parts.replies() {
            let mut bytes = Vec::new();
            reply.encode(tag, &mut bytes).unwrap();
            prop_assert_eq!(Reply::decode(&bytes), Ok((tag, reply)));
        }
    }

    #[test]
    fn what_is_cut_off_is_short_wherever(parts in parts()) {
        for request in parts.requests() {
            let mut bytes = Vec::new();
            request.encode(Tag(parts.tag), &mut bytes).unwrap();
            for len in 0..bytes.len() {
                prop_assert_eq!(Request::decode(&bytes[..len]), Err(Malformed::Short));
                if len >= HEADER_BYTES {
                    // Told to be no longer, too.
                    let mut cut = bytes[..len].to_vec();
                    cut[..4].copy_from_slice(&(len as u32).to_le_bytes());
                    prop_assert_eq!(Request::decode(&cut), Err(Malformed::Short));
                }
            }
        }
    }

    #[test]
    fn changed_messages_are_messages_or_none(parts in parts(), changes in any::<[(u16, u8); 3]>()) {
        let (mut messages, tag) = (Vec::new(), Tag(parts.tag));
        for request in parts.requests() {
            messages.push(Vec::new());
            request.encode(tag, messages.last_mut().unwrap()).unwrap();
        }
        for reply in parts.replies() {
            messages.push(Vec::new());
            reply.encode(tag, messages.last_mut().unwrap()).unwrap();
        }
        for mut bytes in messages {
            for (at, byte) in changes {
                let at = usize::from(at) % bytes.len();
                bytes[at] = byte;
                look(&bytes)?;
            }
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_none(mut bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        look(&bytes)?;
        let len = bytes.len() as u32;
        if let Some(size) = bytes.first_chunk_mut() {
            *size = len.to_le_bytes();
        }
        for kind in 98..130 {
            if let Some(place) = bytes.get_mut(4) {
                *place = kind;
            }
            look(&bytes)?;
        }
    }

    #[test]
    fn entries_of_a_directory_come_off_one_by_one(parts in prop::collection::vec(parts(), 0..5)) {
        let mut bytes = Vec::new();
        for parts in &parts {
            let before = bytes.len();
            parts.stat().encode(&mut bytes).unwrap();
            prop_assert_eq!(bytes.len() - before, parts.stat().encoded_bytes());
        }
        let mut rest = &bytes[..];
        for parts in &parts {
            prop_assert_eq!(Stat::decode(&mut rest), Ok(parts.stat()));
        }
        prop_assert!(rest.is_empty());
    }
}
