//! What a read costs another process: over a unix socket, beside the bare
//! exchange of as many bytes between two threads that do nothing else.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fs::{Address, ServeOptions};
use ninep::{NOFID, Names, Reply, Request, Tag, VERSION, frame_bytes, mode};

use crate::args::{Rounds, show_bytes};
use crate::filemem::{Ram, make};
use crate::hw::Pages;
use crate::machine::Machine;
use crate::measure::Spread;
use crate::table::Table;

/// Bytes of a reply before its data: size, type, tag, count.
const HEADER_BYTES: usize = 4 + 1 + 2 + 4;
/// Bytes of a read: size, type, tag, fid, offset, count.
const ASK_BYTES: usize = 4 + 1 + 2 + 4 + 8 + 4;
const MSIZE: u32 = 1 << 20;
/// What is read: a page, and as much as a message holds.
const SIZES: [usize; 3] = [4 << 10, 64 << 10, MSIZE as usize - ninep::IO_HEADER_BYTES as usize];
/// Bytes that are read in one round.
const ROUND_BYTES: usize = 64 << 20;
const READS_MAX: usize = 4000;
const FID: u32 = 1;

/// Round trips and rates, by the length of a read.
pub(super) fn table(rounds: &Rounds, machine: &Machine) -> anyhow::Result<Table> {
    let columns = [
        ("read", "B"),
        ("bare p50", "us"),
        ("9P2000 p50", "us"),
        ("bare", "GB/s"),
        ("9P2000", "GB/s"),
        ("9P2000 / bare", "x"),
    ];
    let title = "fs-bandwidth: one read after the other over a unix socket, messages of 1 MiB";
    let mut table = Table::new(title, machine, &columns);
    let dir = tempfile::tempdir()?;
    let at = Address::unix(dir.path().join("socket"))?;
    let file_bytes = MSIZE.into();
    let ram = Ram::new(Pages::Small, file_bytes)?;
    make(&ram.files, "#r/data", file_bytes, |at| at as u8)?;
    let serving = fs::serve(&at, ram.server(), ServeOptions::default())?;
    let mut client = Client::connect(&at)?;
    for len in SIZES {
        let reads = if rounds.quick { 3 } else { (ROUND_BYTES / len).min(READS_MAX) };
        let (mut bare, mut served) = (Vec::new(), Vec::new());
        for _ in 0..rounds.count() {
            bare.push(echoed(len, reads)?);
            served.push(client.times(len, reads)?);
        }
        let rate = |times: &Vec<Vec<Duration>>| {
            let of_one = |times: &Vec<Duration>| {
                (len * reads) as f64 / times.iter().sum::<Duration>().as_nanos() as f64
            };
            Spread::of(times.iter().map(of_one)).median
        };
        let (bare_rate, served_rate) = (rate(&bare), rate(&served));
        let cells = [p50_us(bare), p50_us(served), bare_rate, served_rate, served_rate / bare_rate];
        table.row(std::iter::once(show_bytes(len as u64).into()).chain(cells.map(Into::into)));
    }
    drop(serving);
    table.note("bare: a thread that takes a request's bytes and sends as many as the reply has");
    Ok(table)
}

fn p50_us(rounds: Vec<Vec<Duration>>) -> f64 {
    let all = rounds.into_iter().flatten().map(|time| time.as_nanos() as f64 / 1e3);
    Spread::of(all).median
}

/// Times `reads` exchanges: `ask` is sent, and what comes back fills `reply`.
fn exchanges(
    stream: &mut UnixStream,
    ask: &[u8],
    reply: &mut [u8],
    reads: usize,
) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(reads);
    for _ in 0..reads {
        let start = Instant::now();
        stream.write_all(ask)?;
        stream.read_exact(reply)?;
        times.push(start.elapsed());
    }
    Ok(times)
}

/// The bare exchange.
fn echoed(len: usize, reads: usize) -> anyhow::Result<Vec<Duration>> {
    let (mut here, mut there) = UnixStream::pair()?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut ask, reply) = ([0; ASK_BYTES], vec![0; HEADER_BYTES + len]);
            // The other end is closed after the last one.
            while there.read_exact(&mut ask).is_ok() && there.write_all(&reply).is_ok() {}
        });
        let times = exchanges(&mut here, &[0; ASK_BYTES], &mut vec![0; HEADER_BYTES + len], reads);
        drop(here);
        times
    })
}

/// A client that has the file open.
struct Client(UnixStream);

impl Client {
    fn connect(at: &Address) -> anyhow::Result<Self> {
        let Address::Unix(path) = at else { anyhow::bail!("{at} is no unix socket") };
        let mut client = Self(UnixStream::connect(path)?);
        let attach = Request::Attach { fid: 0, afid: NOFID, uname: "bench", aname: "" };
        client.ask(Tag::NONE, &Request::Version { msize: MSIZE, version: VERSION })?;
        client.ask(Tag(1), &attach)?;
        client.ask(Tag(1), &Request::Walk { fid: 0, newfid: FID, names: Names::of(&["data"])? })?;
        client.ask(Tag(1), &Request::Open { fid: FID, mode: mode::READ })?;
        Ok(client)
    }

    fn ask(&mut self, tag: Tag, request: &Request<'_>) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        request.encode(tag, &mut bytes)?;
        self.0.write_all(&bytes)?;
        bytes.resize(4, 0);
        self.0.read_exact(&mut bytes)?;
        let whole = frame_bytes(&bytes).context("a reply without a length")?;
        bytes.resize(whole, 0);
        self.0.read_exact(bytes.get_mut(4..).unwrap_or_default())?;
        match Reply::decode(&bytes)? {
            (_, Reply::Error { ename }) => anyhow::bail!("{ename}"),
            _ => Ok(()),
        }
    }

    fn times(&mut self, len: usize, reads: usize) -> anyhow::Result<Vec<Duration>> {
        let mut ask = Vec::new();
        Request::Read { fid: FID, offset: 0, count: u32::try_from(len)? }
            .encode(Tag(1), &mut ask)?;
        let mut reply = vec![0; HEADER_BYTES + len];
        let times = exchanges(&mut self.0, &ask, &mut reply, reads)?;
        match Reply::decode(&reply)? {
            (_, Reply::Read { data }) if data.len() == len => Ok(times),
            other => anyhow::bail!("a read of {len} bytes got {other:?}"),
        }
    }
}
