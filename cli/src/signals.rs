//! Signals: what is unfinished is taken away, then the program ends.

use std::fs;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cellway::storage;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::exit::{self, Exit};

/// A further signal within this time is the same one: timeout(1) sends it to the program,
/// then to its group.
const TWICE: Duration = Duration::from_millis(500);

/// Folders to remove with all they hold.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// From now on a signal removes this folder with all it holds.
pub(crate) fn remove_at_exit(folder: PathBuf) {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(folder);
}

/// What to end first at a signal.
static ENDS: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

/// From now on a signal does this before the program ends.
pub(crate) fn end_at_exit(end: impl FnOnce() + Send + 'static) {
    ENDS.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(end));
}

/// What to say besides at a signal.
static LAST_WORDS: Mutex<Option<String>> = Mutex::new(None);

/// From now on a signal ends with this advice.
pub(crate) fn say_at_exit(words: Option<String>) {
    *LAST_WORDS.lock().unwrap_or_else(PoisonError::into_inner) = words;
}

/// Starts the thread that waits for signals. One that was ignored from the
/// start (`nohup`, a job in the background) stays so.
pub(crate) fn handle() -> anyhow::Result<()> {
    let ignored = ignored();
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !ignored.contains(signal));
    // Caught only so that it does not kill: the write that is too large fails.
    let mut signals = Signals::new(wanted.chain([SIGXFSZ])).context("signals cannot be handled")?;
    let wait = move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever().filter(|signal| *signal != SIGXFSZ) {
            match first {
                None => {
                    first = Some(Instant::now());
                    // What ends meanwhile may hang: a further signal is still heard.
                    if thread("leaving").spawn(move || leave(signal)).is_err() {
                        finish(signal);
                    }
                }
                Some(first) if first.elapsed() < TWICE => {}
                Some(_) => finish(signal),
            }
        }
    };
    thread("signals").spawn(wait).context("no thread for signals can be started")?;
    Ok(())
}

fn thread(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.into()).stack_size(64 << 10)
}

fn leave(signal: i32) {
    for end in ENDS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        end();
    }
    finish(signal);
}

/// Takes away what is unfinished, and exits; at once where that is under way already.
fn finish(signal: i32) {
    static UNDER_WAY: AtomicBool = AtomicBool::new(false);
    let code = Exit::Signal(signal as u8).code().into();
    if UNDER_WAY.swap(true, Ordering::Relaxed) {
        std::process::exit(code);
    }
    let _halted = storage::remove_unfinished();
    for folder in FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // A file may be made in it meanwhile; there is nobody to tell.
        let _ = fs::remove_dir_all(folder);
    }
    let name = match signal {
        SIGHUP => "SIGHUP",
        SIGINT => "SIGINT",
        _ => "SIGTERM",
    };
    // A terminal may show a progress bar on this line.
    let clear = if std::io::stderr().is_terminal() { "\r\x1b[2K" } else { "" };
    let words = LAST_WORDS.lock().unwrap_or_else(PoisonError::into_inner).take();
    let words = words.unwrap_or_else(|| "nothing unfinished is left behind".into());
    exit::tell(&format!("{clear}cellway: stopped by {name}; {words}"));
    std::process::exit(code);
}

/// The signals this process was started to ignore.
fn ignored() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    (1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1).collect()
}
