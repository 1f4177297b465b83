//! What the tests stand on: a watchdog, skips with a reason, and calls on
//! files by path.

use std::cell::Cell;
use std::fmt::Debug;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use cellway_fs::{Answer, Change, FileServer, FsError, Info, Kind, Node, OpenFile, OpenMode};

/// Seconds after which a test counts as hung.
const HUNG_AFTER_SECONDS: u64 = 300;

/// Ends the process if the test that holds it hangs.
pub(crate) struct Watchdog {
    /// Dropped with the test, which calls the dog off.
    _leash: Sender<()>,
}

/// Watches the current test until the result is dropped.
pub(crate) fn watch() -> Watchdog {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let (leash, called_off) = channel::<()>();
    std::thread::spawn(move || {
        let patience = Duration::from_secs(HUNG_AFTER_SECONDS);
        if called_off.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            // Not by `eprintln`, which the test harness would swallow.
            let _ = writeln!(std::io::stderr(), "{name} hangs: nothing for {patience:?}");
            std::process::abort();
        }
    });
    Watchdog { _leash: leash }
}

/// Notes that something could not be tested here; with CI=true that fails.
pub(crate) fn skip(what: &str, reason: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "SKIP {what}: {reason}");
    println!("SKIP {what}: {reason}");
}

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `test` on servers whose calls may wait.
pub(crate) fn may_wait(test: impl FnOnce()) {
    MAY_WAIT.set(true);
    test();
    MAY_WAIT.set(false);
}

/// Whether calls may wait, as those of servers elsewhere do.
pub(crate) fn is_elsewhere() -> bool {
    MAY_WAIT.get()
}

/// What a call answers, which must not wait unless that is allowed.
pub(crate) fn get<T>(mut answer: Answer<'_, T>) -> Result<T, FsError> {
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending if is_elsewhere() => pollster::block_on(answer),
        Poll::Pending => panic!("this server is not to wait"),
    }
}

/// Of what kind the failure is that there must be.
#[track_caller]
pub(crate) fn kind<T>(result: Result<T, FsError>) -> Kind {
    match result {
        Ok(_) => panic!("this must fail"),
        Err(error) => error.kind(),
    }
}

pub(crate) const READ: OpenMode =
    OpenMode { read: true, write: false, execute: false, truncate: false };
pub(crate) const WRITE: OpenMode =
    OpenMode { read: false, write: true, execute: false, truncate: false };
pub(crate) const BOTH: OpenMode =
    OpenMode { read: true, write: true, execute: false, truncate: false };
pub(crate) const CUT: OpenMode =
    OpenMode { read: false, write: true, execute: false, truncate: true };

pub(crate) const DIRECTORY: u32 = ninep::kind::DIRECTORY;

type Made = (Arc<dyn Node>, Arc<dyn OpenFile>);

/// A tree, and calls on it by path.
#[derive(Clone)]
pub(crate) struct Tree(pub(crate) Arc<dyn Node>);

impl Tree {
    pub(crate) fn of(server: &dyn FileServer) -> Self {
        Self(get(server.attach("glenda", "")).expect("every server has a root"))
    }

    pub(crate) fn walk(&self, path: &str) -> Result<Arc<dyn Node>, FsError> {
        let mut node = self.0.clone();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            node = get(node.walk(name))?;
        }
        Ok(node)
    }

    pub(crate) fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn OpenFile>, FsError> {
        get(self.walk(path)?.open(mode))
    }

    pub(crate) fn create(&self, path: &str, perm: u32, mode: OpenMode) -> Result<Made, FsError> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        get(self.walk(above)?.create(name, perm, mode))
    }

    /// A file with that content, made or written over.
    pub(crate) fn put(&self, path: &str, content: &[u8]) -> Result<(), FsError> {
        let open = match self.create(path, 0o666, WRITE) {
            Err(error) if error.kind() == Kind::Exists => self.open(path, CUT)?,
            made => made?.1,
        };
        assert_eq!(get(open.write(0, content))?, content.len());
        Ok(())
    }

    pub(crate) fn make_dir(&self, path: &str) -> Result<Arc<dyn Node>, FsError> {
        Ok(self.create(path, DIRECTORY | 0o777, READ)?.0)
    }

    pub(crate) fn content(&self, path: &str) -> Result<Vec<u8>, FsError> {
        content(&*self.open(path, READ)?)
    }

    pub(crate) fn stat(&self, path: &str) -> Result<Info, FsError> {
        get(self.walk(path)?.stat())
    }

    pub(crate) fn remove(&self, path: &str) -> Result<(), FsError> {
        get(self.walk(path)?.remove())
    }

    pub(crate) fn wstat(&self, path: &str, change: &Change) -> Result<(), FsError> {
        get(self.walk(path)?.wstat(change))
    }

    /// The names in a directory, sorted.
    pub(crate) fn names(&self, path: &str) -> Result<Vec<String>, FsError> {
        let mut names: Vec<_> =
            entries(&*self.open(path, READ)?, 7)?.into_iter().map(|info| info.name).collect();
        names.sort();
        Ok(names)
    }
}

/// All a file holds.
pub(crate) fn content(open: &dyn OpenFile) -> Result<Vec<u8>, FsError> {
    let mut all = Vec::new();
    let mut piece = vec![0; 70_000];
    loop {
        match get(open.read(all.len() as u64, &mut piece))? {
            0 => return Ok(all),
            count => all.extend_from_slice(&piece[..count]),
        }
    }
}

/// All entries of an open directory, `max` at a time.
pub(crate) fn entries(open: &dyn OpenFile, max: usize) -> Result<Vec<Info>, FsError> {
    let mut all = Vec::new();
    loop {
        let some = get(open.entries(all.len() as u64, max))?;
        assert!(some.len() <= max);
        if some.is_empty() {
            return Ok(all);
        }
        all.extend(some);
    }
}

/// That two are the same, said with what was done.
#[track_caller]
pub(crate) fn same<T: PartialEq + Debug>(what: impl Debug, ours: T, reference: T) {
    assert_eq!(ours, reference, "after {what:?}");
}

/// Runs `test` on a thread that obeys permission bits even as root.
pub(crate) fn obeying_permissions(test: impl FnOnce() + Send) {
    use rustix::thread::CapabilitySet;
    let waits = MAY_WAIT.get();
    let obey = || {
        MAY_WAIT.set(waits);
        let mut sets = rustix::thread::capabilities(None).expect("they can be asked for");
        sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        rustix::thread::set_capabilities(None, sets).expect("they can be given up");
        test();
    };
    std::thread::scope(|scope| scope.spawn(obey).join()).expect("see above");
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mixed = |at: u64| at.wrapping_mul(0xD6E8_FEB8_6659_FD93).rotate_left(32) ^ at;
    (0..len as u64).map(|at| (mixed(mixed(at + 1 + (seed << 32))) >> 40) as u8).collect()
}

/// Tells the same test in a child process which folder to work in.
const CHILD: &str = "CELLWAY_FS_CHILD";

/// Runs `test`, which is called `name`, in a process of its own with a file system
/// of 1 MiB at the folder it is given.
pub(crate) fn on_a_small_disk(name: &str, test: impl FnOnce(&Path)) {
    let _dog = watch();
    if let Some(disk) = std::env::var_os(CHILD) {
        return test(Path::new(&disk));
    }
    let dir = tempfile::tempdir().expect("a folder");
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).expect("a folder in it");
    let mount = "mount -t tmpfs -o size=1m tmpfs \"$DISK\"";
    // The second is for everybody but root.
    let wrappers: [&[&str]; 2] = [&["unshare", "-m"], &["unshare", "-rm"]];
    let run = |wrapper: &[&str], script: &str| {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).args(["sh", "-c", script, "sh"]);
        command.arg(std::env::current_exe().expect("this program"));
        command.args(["--exact", "--nocapture", name]).env("DISK", &disk).env(CHILD, &disk);
        command.output()
    };
    let works = |wrapper: &&&[&str]| run(wrapper, mount).is_ok_and(|run| run.status.success());
    let Some(wrapper) = wrappers.iter().find(works) else {
        return skip(name, "no mount namespace can be made");
    };
    let ran = run(wrapper, &format!("{mount} && exec \"$@\"")).expect("as before");
    let told = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && told.contains("1 passed"), "{told}");
}
