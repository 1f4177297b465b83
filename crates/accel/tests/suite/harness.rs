//! What the tests stand on: a watchdog, skips with a reason, and regions of
//! every kind.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cellway_accel::{Config, EngineChoice, Region, probe};
use tempfile::NamedTempFile;

/// Seconds after which a test counts as hung.
const HUNG_AFTER_SECONDS: u64 = 180;

/// Ends the process if the test that holds it hangs.
pub(crate) struct Watchdog {
    /// Dropped with the test, which calls the dog off.
    _leash: Sender<()>,
}

/// Watches the current test until the result is dropped.
pub(crate) fn watch() -> Watchdog {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let (leash, called_off) = channel::<()>();
    let patience = HUNG_AFTER_SECONDS * if drops_asked().is_some() { 20 } else { 1 };
    std::thread::spawn(move || {
        if called_off.recv_timeout(Duration::from_secs(patience)) == Err(RecvTimeoutError::Timeout)
        {
            // Not by `eprintln`, which the test harness would swallow.
            let _ = writeln!(std::io::stderr(), "{name} hangs: nothing for {patience} s");
            std::process::abort();
        }
    });
    Watchdog { _leash: leash }
}

/// Random drops to make, if the environment says (under valgrind: fewer).
pub(crate) fn drops_asked() -> Option<usize> {
    std::env::var("CELLWAY_DROPS").ok()?.parse().ok()
}

/// Notes that something could not be tested here; with CI=true that fails.
pub(crate) fn skip(what: &str, reason: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "SKIP {what}: {reason}");
    println!("SKIP {what}: {reason}");
}

/// One accelerator with one thread, not pinned: tests run side by side.
pub(crate) fn small() -> Config {
    Config {
        accelerators: 1,
        threads: 1,
        threads_max: 64,
        local_store_bytes: 8 << 20,
        near_bytes: 0,
        pin: false,
        ..Config::default()
    }
}

/// The engines that work here, by name.
pub(crate) fn engines() -> Vec<EngineChoice> {
    let mut engines = vec![EngineChoice::Pread];
    match probe(EngineChoice::Uring, 4096) {
        Ok(_) => engines.push(EngineChoice::Uring),
        Err(error) => skip("engine uring", &error.to_string()),
    }
    engines
}

/// Where a region's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    Memory,
    /// A file through the page cache.
    Buffered,
    /// A file by direct I/O.
    Direct,
}

/// Bytes behind a region, to be looked at when the run is over.
pub(crate) struct Backed {
    memory: Vec<u8>,
    file: Option<(NamedTempFile, Arc<File>)>,
    /// What offsets and lengths of puts must be multiples of.
    pub(crate) align: usize,
}

impl Backed {
    pub(crate) fn new(backing: Backing, content: &[u8]) -> Self {
        match backing {
            Backing::Memory => Self { memory: content.to_vec(), file: None, align: 1 },
            Backing::Buffered => Self::in_file(content, 0, 1),
            Backing::Direct => {
                Self::in_file(content, libc::O_DIRECT, direct_align().unwrap_or(4096))
            }
        }
    }

    fn in_file(content: &[u8], flags: i32, align: usize) -> Self {
        let mut named = test_file();
        named.write_all(content).unwrap();
        let options = || OpenOptions::new().read(true).write(true).custom_flags(flags).clone();
        let file = Arc::new(options().open(named.path()).unwrap());
        Self { memory: Vec::new(), file: Some((named, file)), align }
    }

    /// The region of all bytes.
    pub(crate) fn region(&mut self) -> Region<'_> {
        let len = self.file.as_ref().map_or(0, |(_, file)| file.metadata().unwrap().len());
        self.region_of(0, len)
    }

    /// For a file the region of bytes `start..end`, which may lie beyond its end.
    pub(crate) fn region_of(&mut self, start: u64, end: u64) -> Region<'_> {
        match &self.file {
            None => Region::memory_mut(&mut self.memory),
            Some((_, file)) => {
                Region::direct_file(file.clone(), start..end, "the-file", self.align as u64)
            }
        }
    }

    /// The bytes as they are now.
    pub(crate) fn content(&self) -> Vec<u8> {
        match &self.file {
            None => self.memory.clone(),
            Some((named, _)) => std::fs::read(named.path()).unwrap(),
        }
    }

    pub(crate) fn set_len(&self, len: u64) {
        let (_, file) = self.file.as_ref().expect("only files are cut short");
        file.set_len(len).unwrap();
    }
}

/// A file on the file system the build is on, which is not tmpfs as a rule.
pub(crate) fn test_file() -> NamedTempFile {
    NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The alignment of direct I/O in the folder of the test files, if it has it.
pub(crate) fn direct_align() -> Option<usize> {
    static ALIGN: OnceLock<Option<usize>> = OnceLock::new();
    *ALIGN.get_or_init(|| {
        let named = test_file();
        let file =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(named.path()).ok()?;
        let (flags, mask) = (rustix::fs::AtFlags::EMPTY_PATH, rustix::fs::StatxFlags::DIOALIGN);
        let stat = rustix::fs::statx(&file, c"", flags, mask).ok();
        let told = stat.map(|stat| stat.stx_dio_offset_align.max(stat.stx_dio_mem_align) as usize);
        Some(told.filter(|align| *align > 0).unwrap_or(4096))
    })
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    // Made once: it is long, and asked for often.
    static BASE: OnceLock<Vec<u8>> = OnceLock::new();
    let mixed = |at: u64| at.wrapping_mul(0xD6E8_FEB8_6659_FD93).rotate_left(32) ^ at;
    let base = BASE.get_or_init(|| {
        let bytes = (0..9u64 << 20).map(|at| (mixed(mixed(at + 1)) >> 40) as u8);
        bytes.collect()
    });
    let from = (mixed(seed.wrapping_add(1)) >> 20) as usize % (1 << 20);
    base[from..from + len].to_vec()
}
