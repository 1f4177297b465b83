//! What one file call costs in this process, and what an open file and a thread
//! take.

use std::hint::black_box;
use std::sync::Arc;

use cellway::accel::{Config, Cx};
use fs::{Files, OpenFile, OpenMode, wait};
use ninep::{Call, Done, Limits, NOFID, Reply, Request, Session, Step, Tag, VERSION, mode};

use crate::args::{Rounds, show_bytes};
use crate::filemem::{Ram, make};
use crate::hw::Pages;
use crate::machine::Machine;
use crate::measure::{Sample, Version, paired};
use crate::program::{on_one_core, one_accelerator, run_timed};
use crate::table::{Cell, Table};

const SIZES: [usize; 5] = [64, 512, 4 << 10, 16 << 10, 128 << 10];
/// Bytes of one run.
const RUN_BYTES: usize = 256 << 20;
const READS_MAX: usize = 200_000;

/// A file in memory, and how it is reached.
struct Case {
    ram: Ram,
    open: Arc<dyn OpenFile>,
    bytes: Vec<u8>,
    reads: usize,
}

/// Costs of reads of memory that the core's cache has, by their length.
pub(super) fn table(rounds: &Rounds, machine: &Machine) -> anyhow::Result<Table> {
    let columns = [
        ("read", "B"),
        ("memcpy", "ns"),
        ("file call", "ns"),
        ("of a program", "ns"),
        ("boxed", "ns"),
        ("9P2000", "ns"),
        ("more than memcpy", "ns"),
        ("memcpy / call", "x"),
        ("9P2000 / call", "x"),
    ];
    let title = "fs-bandwidth: one read of a file in memory, in the core's cache";
    let mut table = Table::new(title, machine, &columns);
    for len in SIZES {
        let row = on_one_core(|| row(rounds, len))?;
        table.row(std::iter::once(show_bytes(len as u64).into()).chain(row));
    }
    table.note("file call: File::pread on the host; of a program: on an accelerator");
    table.note("boxed: OpenFile::read, through a boxed future");
    table.note("9P2000: that through both ends of a session in this process, without a socket");
    Ok(table)
}

fn row(rounds: &Rounds, len: usize) -> anyhow::Result<Vec<Cell>> {
    let ram = Ram::new(Pages::Small, len as u64)?;
    make(&ram.files, "#r/data", len as u64, |at| at as u8)?;
    let open = ram.open("data")?;
    let bytes = (0..len).map(|at| at as u8).collect();
    let reads = if rounds.quick { 10 } else { (RUN_BYTES / len).min(READS_MAX) };
    let case = Case { ram, open, bytes, reads };
    let mut versions = [
        Version::new("memcpy", 1, || Ok(case.memcpy())),
        Version::new("file call", 1, || case.call()),
        Version::new("of a program", 1, || case.call_of_program()),
        Version::new("boxed", 1, || case.boxed()),
        Version::new("9P2000", 1, || case.messages()),
    ];
    let costs = paired(rounds.count(), &mut versions)?;
    let ns: Vec<f64> = (0..versions.len()).map(|version| costs.item_ns(version).median).collect();
    let ratios = [costs.speedup(1, 0).median, costs.speedup(1, 4).median];
    let more = ns[1] - ns[0];
    Ok(ns.into_iter().chain([more]).chain(ratios).map(Cell::from).collect())
}

/// What a read adds to the check sum.
fn check(buf: &[u8]) -> u64 {
    buf.last().map_or(0, |byte| u64::from(*byte))
}

impl Case {
    /// Times `read`, which reads again and again.
    fn timed(
        &self,
        mut read: impl AsyncFnMut(&mut [u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<Sample> {
        let mut buf = vec![0; self.bytes.len()];
        let mut failed = Ok(());
        let sample = Sample::of(self.reads as u64, || {
            let mut sum = 0_u64;
            failed = wait(async {
                for _ in 0..self.reads {
                    read(black_box(&mut buf)).await?;
                    sum += check(&buf);
                }
                Ok(())
            });
            sum
        });
        failed.map(|()| sample)
    }

    fn memcpy(&self) -> Sample {
        let mut buf = vec![0; self.bytes.len()];
        Sample::of(self.reads as u64, || {
            let mut sum = 0_u64;
            for _ in 0..self.reads {
                black_box(&mut buf).copy_from_slice(black_box(&self.bytes));
                sum += check(&buf);
            }
            sum
        })
    }

    fn call(&self) -> anyhow::Result<Sample> {
        let file = wait(self.ram.files.open("#r/data", OpenMode::READ))?;
        self.timed(async |buf| whole(file.pread(0, buf).await?, buf))
    }

    fn call_of_program(&self) -> anyhow::Result<Sample> {
        let (files, len, reads) = (&self.ram.files, self.bytes.len(), self.reads);
        let config = Config { pin: false, ..one_accelerator(1) };
        run_timed(&config, reads as u64, |cx, _| async move {
            let file = files.on(&cx).open("#r/data", OpenMode::READ).await?;
            let mut buf = cx.alloc(len)?;
            let mut sum = 0_u64;
            for _ in 0..reads {
                whole(file.pread(0, &mut buf).await?, &buf)?;
                sum += check(&buf);
            }
            Ok(sum)
        })
    }

    fn boxed(&self) -> anyhow::Result<Sample> {
        self.timed(async |buf| whole(self.open.read(0, buf).await?, buf))
    }

    fn messages(&self) -> anyhow::Result<Sample> {
        let mut ends = BothEnds::new(&self.open)?;
        self.timed(async |buf| ends.read(buf).await)
    }
}

/// The fid of the file.
const FID: u32 = 1;

/// Both ends of a 9P2000 session in which a file is open.
struct BothEnds {
    session: Session<(), Arc<dyn OpenFile>>,
    asked: Vec<u8>,
    answered: Vec<u8>,
    /// Where the server reads to.
    data: Vec<u8>,
}

impl BothEnds {
    fn new(open: &Arc<dyn OpenFile>) -> anyhow::Result<Self> {
        let limits = Limits::default();
        let (asked, answered, data) = (Vec::new(), Vec::new(), vec![0; limits.msize as usize]);
        let mut ends = Self { session: Session::new(limits), asked, answered, data };
        let (msize, qid) = (limits.msize, open.qid());
        let attach = Request::Attach { fid: FID, afid: NOFID, uname: "bench", aname: "" };
        ends.ask(Tag::NONE, &Request::Version { msize, version: VERSION }, None)?;
        ends.ask(Tag(1), &attach, Some(Done::Attach((), qid)))?;
        let opened = Some(Done::Open(open.clone(), qid));
        ends.ask(Tag(1), &Request::Open { fid: FID, mode: mode::READ }, opened)?;
        Ok(ends)
    }

    /// Asks, and lets the server do what `done` says it did.
    fn ask(
        &mut self,
        tag: Tag,
        request: &Request<'_>,
        done: Option<Done<'_, (), Arc<dyn OpenFile>>>,
    ) -> anyhow::Result<()> {
        self.asked.clear();
        self.answered.clear();
        request.encode(tag, &mut self.asked)?;
        let step = self.session.request(&self.asked, &mut self.answered)?;
        if let (Step::Call(id, _), Some(done)) = (step, done) {
            let _none = self.session.done(id, Ok(done), &mut self.answered);
        }
        match Reply::decode(&self.answered)? {
            (_, Reply::Error { ename }) => anyhow::bail!("{ename}"),
            _ => Ok(()),
        }
    }

    async fn read(&mut self, buf: &mut [u8]) -> anyhow::Result<()> {
        let count = u32::try_from(buf.len())?;
        self.asked.clear();
        self.answered.clear();
        Request::Read { fid: FID, offset: 0, count }.encode(Tag(1), &mut self.asked)?;
        let step = self.session.request(&self.asked, &mut self.answered)?;
        let Step::Call(id, Call::Read { open, offset, count }) = step else {
            anyhow::bail!("a read became another call: {:?}", Reply::decode(&self.answered));
        };
        let room = self.data.get_mut(..count as usize).unwrap_or_default();
        let read = open.read(offset, room).await?;
        let done = Done::Read(u32::try_from(read)?);
        let appended = self.session.done(id, Ok(done), &mut self.answered);
        self.answered.extend_from_slice(self.data.get(..appended).unwrap_or_default());
        let (_, Reply::Read { data }) = Reply::decode(&self.answered)? else {
            anyhow::bail!("a read got another reply");
        };
        whole(data.len(), buf)?;
        buf.copy_from_slice(data);
        Ok(())
    }
}

fn whole(read: usize, buf: &[u8]) -> anyhow::Result<()> {
    anyhow::ensure!(read == buf.len(), "a read of {} bytes gave {read}", buf.len());
    Ok(())
}

/// What a program keeps for an open file and a thread: the paper's client and
/// coroutines took 20 KiB of the local store, besides the stacks.
pub(super) fn footprint(machine: &Machine) -> anyhow::Result<Table> {
    let title = "fs-bandwidth: what a thread and its open file take (section 5: 20 KiB)";
    let mut table = Table::new(title, machine, &[("what", ""), ("size", "B")]);
    let ram = Ram::new(Pages::Small, 1 << 20)?;
    make(&ram.files, "#r/data", 1 << 20, |_| 0)?;
    let files = &ram.files;
    let config = Config { pin: false, ..one_accelerator(1) };
    let sizes = cellway::accel::run(&config, |cx, _| async move {
        let files = files.on(&cx);
        let mut buf = cx.alloc(64)?;
        let call = size_of_val(&files.open("#r/data", OpenMode::READ));
        let file = files.open("#r/data", OpenMode::READ).await?;
        let read = size_of_val(&file.pread(0, &mut buf));
        let thread = size_of_val(&reader(&cx, files.clone()));
        anyhow::Ok([call, size_of_val(&file), read, thread])
    })?;
    let names = ["an open under way", "a file that is open", "a read under way"];
    for sizes in sizes {
        for (name, size) in
            names.into_iter().chain(["a thread that opens and reads a file"]).zip(sizes?)
        {
            table.row([name.into(), size.into()]);
        }
    }
    table.row(["a coroutine's stack, at least".into(), (16_usize << 10).into()]);
    table.note(
        "a thread's size holds its calls and its file; its local store holds its buffers only",
    );
    Ok(table)
}

/// A program as plain as can be.
async fn reader<'env>(cx: &Cx<'env>, files: Files<Cx<'env>>) -> anyhow::Result<usize> {
    let mut buf = cx.alloc(64)?;
    let mut file = files.open("#r/data", OpenMode::READ).await?;
    Ok(file.read(&mut buf).await?)
}
