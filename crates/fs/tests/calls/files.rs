//! File calls against a plain vector, with what is in memory and with what is
//! not, from the host and from accelerators.

use std::io::SeekFrom;
use std::sync::Arc;
use std::task::Poll;

use accel::{Config, run};
use cellway_fs::{
    Answer, Caller, Change, File, FileServer, Files, FsError, Info, Kind, Node, OpenFile, OpenMode,
    RamServer, wait,
};
use ninep::Qid;
use proptest::prelude::*;

use crate::harness::watch;

/// Files in memory that do not say so, and let everybody wait for a turn.
struct Far<T: ?Sized>(Arc<T>);

async fn later() {
    let mut asked = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut asked, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn far_node(node: Arc<dyn Node>) -> Arc<dyn Node> {
    Arc::new(Far(node))
}

fn far_file(file: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
    Arc::new(Far(file))
}

impl FileServer for Far<RamServer> {
    fn attach<'a>(&'a self, user: &'a str, tree: &'a str) -> Answer<'a, Arc<dyn Node>> {
        Box::pin(async move {
            later().await;
            self.0.attach(user, tree).await.map(far_node)
        })
    }
}

impl Node for Far<dyn Node> {
    fn stat(&self) -> Answer<'_, Info> {
        self.0.stat()
    }
    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        Box::pin(async move { self.0.walk(name).await.map(far_node) })
    }
    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        Box::pin(async move { self.0.open(mode).await.map(far_file) })
    }
    fn create<'a>(
        &'a self,
        name: &'a str,
        permissions: u32,
        mode: OpenMode,
    ) -> Answer<'a, (Arc<dyn Node>, Arc<dyn OpenFile>)> {
        Box::pin(async move {
            let (node, file) = self.0.create(name, permissions, mode).await?;
            Ok((far_node(node), far_file(file)))
        })
    }
    fn remove(&self) -> Answer<'_, ()> {
        self.0.remove()
    }
    fn wstat<'a>(&'a self, change: &'a Change) -> Answer<'a, ()> {
        self.0.wstat(change)
    }
}

impl OpenFile for Far<dyn OpenFile> {
    fn qid(&self) -> Qid {
        self.0.qid()
    }
    fn read<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> Answer<'a, usize> {
        Box::pin(async move {
            later().await;
            self.0.read(offset, into).await
        })
    }
    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> Answer<'a, usize> {
        Box::pin(async move {
            later().await;
            self.0.write(offset, data).await
        })
    }
    fn entries(&self, from: u64, max: usize) -> Answer<'_, Vec<Info>> {
        self.0.entries(from, max)
    }
}

/// `#r` in memory, `#far` too but it does not say so.
fn files() -> Files {
    let far = Arc::new(Far(Arc::new(RamServer::new(64 << 20))));
    let files = Files::new("ann").with("#r", Arc::new(RamServer::new(64 << 20)));
    files.and_then(|files| files.with("#far", far)).expect("these are names")
}

const SERVERS: [&str; 2] = ["#r", "#far"];

#[derive(Clone, Debug)]
enum Call {
    Read(usize),
    Write(Vec<u8>),
    Pread(u64, usize),
    Pwrite(u64, Vec<u8>),
    Seek(SeekFrom),
    Cut(u64),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let place = 0_u64..200_000;
    let data = || prop::collection::vec(any::<u8>(), 0..5000);
    let len = || 0_usize..10_000;
    let seek = prop_oneof![
        place.clone().prop_map(SeekFrom::Start),
        (-9000_i64..9000).prop_map(SeekFrom::Current),
        (-9000_i64..9000).prop_map(SeekFrom::End),
    ];
    let call = prop_oneof![
        len().prop_map(Call::Read),
        data().prop_map(Call::Write),
        (place.clone(), len()).prop_map(|(at, len)| Call::Pread(at, len)),
        (place.clone(), data()).prop_map(|(at, data)| Call::Pwrite(at, data)),
        seek.prop_map(Call::Seek),
        place.prop_map(Call::Cut),
    ];
    prop::collection::vec(call, 1..30)
}

/// A file as a vector.
#[derive(Default)]
struct Plain {
    bytes: Vec<u8>,
    offset: u64,
}

impl Plain {
    fn read(&self, at: u64, len: usize) -> &[u8] {
        let start = usize::try_from(at).unwrap().min(self.bytes.len());
        &self.bytes[start..(start + len).min(self.bytes.len())]
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        let start = usize::try_from(at).unwrap();
        if !data.is_empty() {
            self.bytes.resize(self.bytes.len().max(start + data.len()), 0);
            self.bytes[start..start + data.len()].copy_from_slice(data);
        }
    }
}

/// Makes a call on a file and on a vector; both must agree.
async fn make<C: Caller>(file: &mut File<C>, plain: &mut Plain, call: &Call) {
    match call {
        Call::Read(len) | Call::Pread(_, len) => {
            let mut seen = vec![1; *len];
            let (count, at) = match call {
                Call::Pread(at, _) => (file.pread(*at, &mut seen).await, *at),
                _ => (file.read(&mut seen).await, plain.offset),
            };
            let count = count.unwrap();
            assert!(seen[..count] == *plain.read(at, *len), "{call:?}");
            plain.offset += if matches!(call, Call::Read(_)) { count as u64 } else { 0 };
        }
        Call::Write(data) => {
            assert_eq!(file.write(data).await, Ok(data.len()));
            plain.write(plain.offset, data);
            plain.offset += data.len() as u64;
        }
        Call::Pwrite(at, data) => {
            assert_eq!(file.pwrite(*at, data).await, Ok(data.len()));
            plain.write(*at, data);
        }
        Call::Seek(to) => {
            let wanted = match *to {
                SeekFrom::Start(at) => Some(at),
                SeekFrom::Current(by) => plain.offset.checked_add_signed(by),
                SeekFrom::End(by) => (plain.bytes.len() as u64).checked_add_signed(by),
            };
            let got = file.seek(*to).await;
            assert_eq!(got.as_ref().ok().copied(), wanted, "{got:?}");
            plain.offset = wanted.unwrap_or(plain.offset);
        }
        Call::Cut(to) => {
            let change = Change { length: Some(*to), ..Change::default() };
            assert_eq!(file.wstat(&change).await, Ok(()));
            plain.bytes.resize(usize::try_from(*to).unwrap(), 0);
        }
    }
    assert_eq!(file.stat().await.unwrap().length, plain.bytes.len() as u64);
}

async fn make_all<C: Caller>(files: &Files<C>, name: &str, calls: &[Call]) -> u32 {
    let mut file = files.create(name, 0o644, OpenMode::READ_WRITE).await.unwrap();
    let mut plain = Plain::default();
    for call in calls {
        make(&mut file, &mut plain, call).await;
    }
    let version = file.qid().version;
    file.close();
    version
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn calls_do_what_they_do_to_a_vector(calls in calls()) {
        let _dog = watch();
        let files = &files();
        let versions = SERVERS.map(|server| {
            wait(make_all(files, &format!("{server}/file"), &calls))
        });
        // Both ways count the same changes.
        prop_assert_eq!(versions[0], versions[1]);
        // And from accelerators, stackless and on stacks of their own.
        let config = Config { threads: 2, near_bytes: 0, pin: false, ..Config::default() };
        run(&Config { accelerators: 2, ..config }, |cx, at| {
            let calls = &calls;
            async move {
                let name = format!("{}/file{}", SERVERS[at.thread], at.index());
                let files = files.on(&cx);
                make_all(&files, &name, calls).await;
                let stackful = cx.spawn_stackful(256 << 10, move |stack| {
                    stack.wait(make_all(&files, &name, calls));
                });
                stackful.unwrap().await;
            }
        }).unwrap();
    }
}

fn kind<T>(result: Result<T, FsError>) -> Option<Kind> {
    result.err().map(|error| error.kind())
}

#[test]
fn names_lead_to_servers() {
    let _dog = watch();
    let files = files();
    let told = |name| wait(files.stat(name)).unwrap_err().to_string();
    assert_eq!(told("#x/a"), "#x/a: there is no #x; here are #far #r");
    assert_eq!(told("data/a"), "data/a: names without # are those of #U; here are #far #r");
    assert_eq!(told("#r/a/b"), "#r/a/b: file does not exist");
    assert_eq!(
        wait(Files::new("ann").stat("#r/a")).unwrap_err().to_string(),
        "#r/a: there are no files in this job"
    );
    for bad in ["r", "#", "#a/b", ""] {
        let server = Arc::new(RamServer::new(0));
        assert_eq!(kind(Files::new("ann").with(bad, server)), Some(Kind::BadName), "{bad:?}");
    }
    let files = files.with("#U", Arc::new(RamServer::new(1 << 20))).unwrap();
    wait(async {
        files.mkdir("#r/dir", 0o755).await.unwrap();
        for name in ["#r/dir/file", "#r/dir/../dir/./file", "#r//dir//file/", "#r/../../dir/file"] {
            files.create(name, 0o644, OpenMode::WRITE).await.unwrap();
        }
        let listed = files.readdir("#r/dir").await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(files.stat("#r").await.unwrap().name, "/");
        files.create("plain", 0o644, OpenMode::WRITE).await.unwrap();
        for name in ["plain", "/plain", "#U/plain", "./plain"] {
            assert_eq!(files.stat(name).await.unwrap().name, "plain");
        }
    });
}

#[test]
fn files_are_made_listed_renamed_and_removed() {
    let _dog = watch();
    let files = files();
    for server in SERVERS {
        wait(async {
            let name = |name: &str| format!("{server}/{name}");
            let mut file = files.create(&name("a"), 0o644, OpenMode::WRITE).await.unwrap();
            file.write_all(b"first").await.unwrap();
            assert_eq!(kind(file.read(&mut [0]).await), Some(Kind::BadMode));
            let again = files.create_new(&name("a"), 0o644, OpenMode::WRITE).await;
            assert_eq!(kind(again), Some(Kind::Exists));
            files.create(&name("a"), 0o644, OpenMode::WRITE).await.unwrap();
            assert_eq!(files.stat(&name("a")).await.unwrap().length, 0);
            files.rename(&name("a"), "b").await.unwrap();
            assert_eq!(kind(files.rename(&name("b"), "c/d").await), Some(Kind::BadName));
            assert_eq!(kind(files.stat(&name("a")).await), Some(Kind::NotFound));
            for number in 0..300 {
                let name = name(&format!("many{number}"));
                files.create(&name, 0o644, OpenMode::WRITE).await.unwrap().close();
            }
            assert_eq!(files.readdir(server).await.unwrap().len(), 301);
            files.remove(&name("b")).await.unwrap();
            let error = files.open(&name("b"), OpenMode::READ).await.err().unwrap();
            assert_eq!(error.to_string(), format!("{server}/b: file does not exist"));
            let mut short = files.open(&name("many0"), OpenMode::READ).await.unwrap();
            assert_eq!(kind(short.write(b"x").await), Some(Kind::BadMode));
            let error = short.read_exact(&mut [0; 7]).await.unwrap_err();
            assert_eq!(error.to_string(), format!("{server}/many0: ends at 0, 7 bytes too soon"));
        });
    }
}

#[test]
fn a_handle_stands_for_one_open_file() {
    let _dog = watch();
    let files = &files();
    wait(async {
        let far = files.create("#far/a", 0o644, OpenMode::WRITE).await.unwrap();
        assert_eq!(far.handle(), None);
        let mut file = files.create("#r/a", 0o644, OpenMode::READ_WRITE).await.unwrap();
        file.write_all(b"0123456789").await.unwrap();
        let reader = files.open("#r/a", OpenMode::READ).await.unwrap();
        let handle = reader.handle().unwrap();
        // Another accelerator reads by it, and may do no more than its owner.
        run(&Config { accelerators: 1, threads: 1, pin: false, ..Config::default() }, |cx, _| {
            let (index, generation) = (handle.index, handle.generation);
            async move {
                let handle = cellway_fs::Handle { index, generation };
                let mut adopted = files.on(&cx).adopt(handle).unwrap();
                let mut seen = [0; 10];
                adopted.read_exact(&mut seen).await.unwrap();
                assert_eq!(&seen, b"0123456789");
                assert_eq!(kind(adopted.write(b"x").await), Some(Kind::BadMode));
            }
        })
        .unwrap();
        // Counted: it stands until the last one is closed.
        let adopted = files.adopt(handle).unwrap();
        reader.close();
        assert!(files.adopt(handle).is_ok());
        adopted.close();
        assert_eq!(kind(files.adopt(handle)), Some(Kind::NotFound));
        // Its place is used again, under another number.
        let next = files.open("#r/a", OpenMode::READ).await.unwrap();
        let after = next.handle().unwrap();
        assert!(after.index == handle.index && after.generation != handle.generation);
        assert_eq!(kind(files.adopt(handle)), Some(Kind::NotFound));
        // Cut or removed, it is stale; the open file itself reads on.
        let change = Change { length: Some(5), ..Change::default() };
        files.wstat("#r/a", &change).await.unwrap();
        assert!(files.adopt(after).err().unwrap().to_string().contains("stale"));
        let mut seen = [0; 10];
        assert_eq!(next.pread(0, &mut seen).await, Ok(5));
        let last = files.open("#r/a", OpenMode::READ).await.unwrap();
        files.remove("#r/a").await.unwrap();
        assert_eq!(kind(files.adopt(last.handle().unwrap())), Some(Kind::NotFound));
        assert_eq!(last.pread(2, &mut seen).await, Ok(3));
    });
}

#[test]
fn calls_of_the_host_may_be_made_by_any_thread() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let files = is_send(files());
    let mut file =
        is_send(wait(is_send(files.create("#r/a", 0o644, OpenMode::READ_WRITE)))).unwrap();
    wait(is_send(file.write_all(b"x"))).unwrap();
    wait(is_send(file.pread(0, &mut [0]))).unwrap();
}
