//! 9P2000 as others speak it: plan9port's encoder behind python-9p, and the clients
//! of python-9p and of 9fans.net/go.

use std::fs;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use ninep::{FEW, Few, Names, Qid, Qids, Reply, Request, Stat, Tag};
use serde_json::{Value, json};

use crate::fs::Served;
use crate::program::{Folder, Watchdog, finish, names, skip};

/// Clients at once, of each language.
const CLIENTS: usize = 4;

/// Processes that make messages, each its part of them: Python uses one core each.
const PYTHONS: u64 = 4;

/// Where `cargo xtask test` makes the peers: in the build folder.
fn peer(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("peers").join(name);
    if path.exists() {
        return Some(path);
    }
    let what = format!("{} is not there; run cargo xtask test, which makes it", path.display());
    skip(name, &what);
    None
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/python").join(name)
}

/// What file `n` of the peers holds.
fn pattern(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + n + (at >> 8)) as u8).collect()
}

/// Runs a peer's program on a served directory, then looks into that.
fn work(peer: &mut Command, served: &Served, export: &Path, language: &str, first_len: usize) {
    let child = peer.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    assert_eq!(finish(child.unwrap()).ok_text(), "");
    for n in 0..CLIENTS {
        let dir = export.join(format!("{language}-{n}"));
        assert_eq!(names(&dir), ["renamed"]);
        let content = fs::read(dir.join("renamed")).unwrap();
        assert_eq!(content, pattern(n, first_len + 1000 * n), "{language} {n}");
        assert_eq!(dir.join("renamed").metadata().unwrap().mode() & 0o7777, 0o600);
        // Cellway's own client sees the same.
        let path = format!("data/{language}-{n}");
        assert!(served.fs("ls", &[&path]).ok_text().ends_with(" renamed\n"));
        assert_eq!(served.fs("cat", &[&format!("{path}/renamed")]).ok(), content);
    }
}

#[test]
fn clients_of_other_languages_work_on_a_served_directory() {
    let folder = Folder::new();
    let export = folder.path("export");
    fs::create_dir(&export).unwrap();
    fs::write(export.join("big"), pattern(99, 3_000_000)).unwrap();
    let clients = CLIENTS.to_string();
    let socket = folder.path("socket");
    let served = Served::new(&format!("unix:{}", socket.display()), &[("data", &export)]);
    if let Some(go) = peer("go-9p") {
        let mut go = Command::new(go);
        go.arg("unix").arg(&socket).args(["data", &clients]);
        work(&mut go, &served, &export, "go", 300_000);
    }
    if let Some(python) = peer("python/bin/python") {
        let mut python = Command::new(python);
        python.arg(script("files.py")).arg(&socket).args(["data", &clients]);
        work(&mut python, &served, &export, "python", 60_000);
    }
    served.end();
    assert!(!socket.exists());
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 32) as usize % bound
    }

    /// Any number of so many bits, small and largest ones often.
    fn bits(&mut self, bits: u32) -> u64 {
        let any = self.next() >> (64 - bits);
        match self.below(4) {
            0 => any >> self.below(bits as usize),
            1 => [0, 1, u64::MAX >> (64 - bits)][self.below(3)],
            _ => any,
        }
    }

    fn u32(&mut self) -> u32 {
        self.bits(32) as u32
    }

    fn text(&mut self) -> String {
        let most = [1, 8, 8, 40][self.below(4)];
        let len = self.below(most);
        let one = |random: &mut Self| {
            let bits = [7, 7, 7, 11, 16, 20][random.below(6)];
            char::from_u32(random.bits(bits) as u32).filter(|c| *c != '\0').unwrap_or('-')
        };
        (0..len).map(|_| one(self)).collect()
    }

    fn qid(&mut self) -> Qid {
        Qid { kind: self.bits(8) as u8, version: self.u32(), path: self.bits(64) }
    }
}

/// What random messages borrow.
struct Parts {
    numbers: [u32; 4],
    /// As plan9port has it, an offset or length is not negative.
    long: u64,
    texts: Vec<String>,
    qids: Vec<Qid>,
    data: Vec<u8>,
}

impl Parts {
    /// With so many texts and qids besides those that every message may need.
    fn new(random: &mut Random, few: usize) -> Self {
        let most = [1, 20, 300, 9000][random.below(4)];
        let mut data = vec![0; random.below(most)];
        data.chunks_mut(8).for_each(|some| {
            some.copy_from_slice(&random.next().to_le_bytes()[..some.len()]);
        });
        Self {
            numbers: std::array::from_fn(|_| random.u32()),
            long: random.bits(63),
            texts: (0..4 + few).map(|_| random.text()).collect(),
            qids: (0..1 + few).map(|_| random.qid()).collect(),
            data,
        }
    }

    fn stat(&self) -> (Stat<'_>, Value) {
        let [mode, atime, mtime, kernel_dev] = self.numbers;
        let [name, uid, gid, muid] = [0, 1, 2, 3].map(|at| &*self.texts[at]);
        let (kernel_type, qid, length) = (atime as u16, self.qids[0], self.long);
        let stat =
            Stat { kernel_type, kernel_dev, qid, mode, atime, mtime, length, name, uid, gid, muid };
        let fields = [json!(kernel_type), json!(kernel_dev), told(qid)];
        let rest = json!([mode, atime, mtime, length, name, uid, gid, muid]);
        let rest = rest.as_array().unwrap().iter().cloned();
        (stat, fields.into_iter().chain(rest).collect())
    }

    fn data(&self) -> Value {
        let digit = |number: u8| char::from(b"0123456789abcdef"[usize::from(number)]);
        self.data
            .iter()
            .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
            .collect::<String>()
            .into()
    }

    /// The request of that number, and what Python is told of it.
    fn request(&self, which: usize) -> (Request<'_>, &'static str, Value) {
        let [fid, newfid, perm, count] = self.numbers;
        let [name, other] = [0, 1].map(|at| &*self.texts[at]);
        let (mode, offset) = (perm as u8, self.long);
        match which {
            0 => (
                Request::Version { msize: fid, version: name },
                "Tversion",
                json!({"msize": fid, "version": name}),
            ),
            1 => (
                Request::Auth { afid: fid, uname: name, aname: other },
                "Tauth",
                json!({"afid": fid, "uname": name, "aname": other}),
            ),
            2 => (
                Request::Attach { fid, afid: newfid, uname: name, aname: other },
                "Tattach",
                json!({"fid": fid, "afid": newfid, "uname": name, "aname": other}),
            ),
            3 => {
                let oldtag = fid as u16;
                (Request::Flush { oldtag: Tag(oldtag) }, "Tflush", json!({"oldtag": oldtag}))
            }
            4 => {
                let texts: Vec<&str> = self.texts.iter().skip(4).map(|text| &**text).collect();
                (
                    Request::Walk { fid, newfid, names: Names::of(&texts).unwrap() },
                    "Twalk",
                    json!({"fid": fid, "newfid": newfid, "wname": texts}),
                )
            }
            5 => (Request::Open { fid, mode }, "Topen", json!({"fid": fid, "mode": mode})),
            6 => (
                Request::Create { fid, name, perm, mode },
                "Tcreate",
                json!({"fid": fid, "name": name, "perm": perm, "mode": mode}),
            ),
            7 => (
                Request::Read { fid, offset, count },
                "Tread",
                json!({"fid": fid, "offset": offset, "count": count}),
            ),
            8 => (
                Request::Write { fid, offset, data: &self.data },
                "Twrite",
                json!({"fid": fid, "offset": offset, "data": self.data()}),
            ),
            9 => (Request::Clunk { fid }, "Tclunk", json!({"fid": fid})),
            10 => (Request::Remove { fid }, "Tremove", json!({"fid": fid})),
            11 => (Request::Stat { fid }, "Tstat", json!({"fid": fid})),
            _ => {
                let (stat, told) = self.stat();
                (Request::Wstat { fid, stat }, "Twstat", json!({"fid": fid, "stat": told}))
            }
        }
    }

    fn reply(&self, which: usize) -> (Reply<'_>, &'static str, Value) {
        let ([msize, iounit, count, _], qid) = (self.numbers, self.qids[0]);
        let text = &*self.texts[0];
        match which {
            0 => (
                Reply::Version { msize, version: text },
                "Rversion",
                json!({"msize": msize, "version": text}),
            ),
            1 => (Reply::Auth { aqid: qid }, "Rauth", json!({"aqid": told(qid)})),
            2 => (Reply::Attach { qid }, "Rattach", json!({"qid": told(qid)})),
            3 => (Reply::Error { ename: text }, "Rerror", json!({"ename": text})),
            4 => (Reply::Flush, "Rflush", json!({})),
            5 => {
                let qids: Few<Qid> = Qids::of(&self.qids[1..]).unwrap();
                let told: Vec<_> = qids.iter().map(|qid| told(*qid)).collect();
                (Reply::Walk { qids }, "Rwalk", json!({"wqid": told}))
            }
            6 => {
                (Reply::Open { qid, iounit }, "Ropen", json!({"qid": told(qid), "iounit": iounit}))
            }
            7 => (
                Reply::Create { qid, iounit },
                "Rcreate",
                json!({"qid": told(qid), "iounit": iounit}),
            ),
            8 => (Reply::Read { data: &self.data }, "Rread", json!({"data": self.data()})),
            9 => (Reply::Write { count }, "Rwrite", json!({"count": count})),
            10 => (Reply::Clunk, "Rclunk", json!({})),
            11 => (Reply::Remove, "Rremove", json!({})),
            12 => {
                let (stat, told) = self.stat();
                (Reply::Stat { stat }, "Rstat", json!({"stat": told}))
            }
            _ => (Reply::Wstat, "Rwstat", json!({})),
        }
    }
}

fn told(qid: Qid) -> Value {
    json!([qid.kind, qid.version, qid.path])
}

/// Requests and replies there are.
const KINDS: usize = 13 + 14;
/// Those with a list.
const WALKS: [usize; 2] = [4, 13 + 5];

/// Makes the message, checks that it comes back, and appends its bytes to `bytes`.
/// What Python is to make of it.
fn message(random: &mut Random, bytes: &mut Vec<u8>) -> Value {
    let which = random.below(KINDS);
    let few = if WALKS.contains(&which) { random.below(FEW + 1) } else { 0 };
    let (parts, tag) = (Parts::new(random, few), Tag(random.bits(16) as u16));
    bytes.clear();
    let (kind, fields) = match which {
        which @ 0..13 => {
            let (request, kind, fields) = parts.request(which);
            request.encode(tag, bytes).unwrap();
            assert_eq!(Request::decode(bytes), Ok((tag, request)));
            (kind, fields)
        }
        which => {
            let (reply, kind, fields) = parts.reply(which - 13);
            reply.encode(tag, bytes).unwrap();
            assert_eq!(Reply::decode(bytes), Ok((tag, reply)));
            (kind, fields)
        }
    };
    json!([tag.0, kind, fields])
}

/// One Python makes these messages, and so many.
fn compare(python: &Path, seed: u64, count: usize) {
    let mut child = Command::new(python)
        .arg(script("messages.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let _watchdog = Watchdog::of(&child);
    let mut lines = BufWriter::new(child.stdin.take().unwrap());
    let mut made = BufReader::new(child.stdout.take().unwrap());
    // As many wait in it as the pipes to Python and back hold, no more.
    let (asked, awaited) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut random = Random(seed);
            for _ in 0..count {
                let mut bytes = Vec::new();
                let told = message(&mut random, &mut bytes).to_string();
                // Whoever fails has gone, which is seen below.
                if writeln!(lines, "{told}").is_err() || asked.send((told, bytes)).is_err() {
                    return;
                }
            }
        });
        let mut theirs = Vec::new();
        for number in 0..count {
            let Ok((told, bytes)) = awaited.recv() else {
                panic!("Python ended before message {number} of seed {seed}");
            };
            theirs.resize(bytes.len(), 0);
            let read = made.read_exact(&mut theirs);
            assert!(read.is_ok(), "message {number} of seed {seed}: {told}: {read:?}");
            assert!(theirs == bytes, "message {number} of seed {seed}: {told}");
        }
    });
    assert_eq!(made.read(&mut [0]).unwrap(), 0, "more than was asked for");
    assert!(child.wait().unwrap().success());
}

/// Every message is the same bytes here and there, and is read there as what it is.
/// `CELLWAY_MESSAGES` says how many; `CELLWAY_SEED` which.
#[test]
fn messages_are_the_bytes_that_plan9port_makes() {
    let Some(python) = peer("python/bin/python") else { return };
    let number = |name, default| {
        std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
    };
    let count = number("CELLWAY_MESSAGES", 20_000);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("CELLWAY_SEED", now.as_nanos() as u64) | 1;
    println!("CELLWAY_SEED={seed} CELLWAY_MESSAGES={count}");
    std::thread::scope(|scope| {
        for part in 0..PYTHONS {
            let (python, seed) = (&python, seed.wrapping_add(part << 32));
            let count = (count + part) / PYTHONS;
            scope.spawn(move || compare(python, seed, count as usize));
        }
    });
}
