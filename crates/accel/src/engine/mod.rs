//! What moves the data: engines for files, and the memory engine.
//!
//! An engine sees independent operations on one file descriptor and one
//! memory range each. Tags, order, splitting, retries and depth are the
//! queue's (`queue.rs`).

pub(crate) mod copy;
mod faulty;
pub(crate) mod host;
pub(crate) mod memory;
mod pread;
mod uring;

use std::fmt;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::str::FromStr;
use std::sync::Arc;

pub use faulty::Faults;

use crate::arena::Arena;
use crate::queue::Direction;

/// Which engine moves file data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring if a probe of it works, else the thread pool.
    #[default]
    Auto,
    /// io_uring, one ring per accelerator; refused where the kernel refuses it.
    Uring,
    /// A pool of threads that call preadv2 and pwritev2.
    Pread,
}

impl FromStr for EngineChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "pread" => Ok(Self::Pread),
            other => {
                Err(format!("no engine is called '{other}'; engines are auto, uring and pread"))
            }
        }
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Pread => "pread",
        })
    }
}

/// An engine asked for by name does not work here.
#[derive(Debug, thiserror::Error)]
#[error("engine {engine} does not work here: {what}: {source}; use --engine pread or auto")]
pub struct EngineError {
    /// The engine's name.
    pub engine: &'static str,
    /// The step that failed.
    pub what: &'static str,
    /// What the kernel answered.
    pub source: io::Error,
}

/// One operation: `len` bytes between `memory` and `file` at `offset`.
#[derive(Clone)]
pub(crate) struct IoOp {
    pub(crate) id: u32,
    pub(crate) direction: Direction,
    pub(crate) file: Arc<File>,
    pub(crate) offset: u64,
    pub(crate) memory: NonNull<u8>,
    pub(crate) len: usize,
    /// Granularity of the file's direct I/O, 1 if buffered.
    pub(crate) align_bytes: u64,
    /// Keeps the memory mapped while the operation runs.
    #[allow(dead_code, reason = "held, not read")]
    pub(crate) arena: Arc<Arena>,
}

// SAFETY: an operation's memory is used by one engine thread at a time, and
// the arena it lies in is kept mapped by the operation itself.
unsafe impl Send for IoOp {}

/// How long `reap` may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all.
    Poll,
    /// Until something completes, or a kick.
    Block,
}

/// Takes completions: the operation's id, and bytes moved or why not.
pub(crate) type Done<'a> = &'a mut dyn FnMut(u32, io::Result<usize>);

/// Wakes an engine that blocks in `reap`, from any thread.
pub(crate) trait Kick: Send + Sync {
    fn kick(&self);
}

/// Moves data between files and local stores.
///
/// # Safety
/// 1. An engine touches an operation's memory only between `submit` and the
///    moment `reap` reports its completion, each operation exactly once.
/// 2. After `stop` returns it touches no memory at all. Dropping it stops it.
pub(crate) unsafe trait Engine {
    fn name(&self) -> &'static str;

    /// What was probed and found, for people.
    fn describe(&self) -> String;

    /// See [`EngineReport::fixed_buffers`].
    fn fixed_buffers(&self) -> Option<Result<(), String>> {
        None
    }

    /// Starts an operation; it may be batched until the next `reap`.
    ///
    /// # Safety
    /// The operation's memory stays valid and unused by others until its
    /// completion is reported or `stop` returns.
    unsafe fn submit(&mut self, op: IoOp);

    /// Hands batched operations to the device and reports completions. With
    /// `Wait::Block` returns after at least one completion or a kick.
    fn reap(&mut self, wait: Wait, done: Done<'_>) -> io::Result<()>;

    fn kicker(&self) -> Arc<dyn Kick>;

    /// Waits until nothing runs; completions not yet reported are lost.
    fn stop(&mut self);
}

/// Opens the engine `choice` names, or for `Auto` the first that works.
pub(crate) fn open(
    choice: EngineChoice,
    depth: usize,
    arena: &Arc<Arena>,
    faults: Option<Faults>,
) -> Result<Box<dyn Engine>, EngineError> {
    let engine: Box<dyn Engine> = match choice {
        EngineChoice::Uring => Box::new(uring::Uring::open(depth, arena)?),
        EngineChoice::Pread => Box::new(pread::PreadPool::open(depth, "asked for")),
        EngineChoice::Auto => match uring::Uring::open(depth, arena) {
            Ok(ring) => Box::new(ring),
            Err(error) => Box::new(pread::PreadPool::open(
                depth,
                &format!("io_uring: {}: {}", error.what, error.source),
            )),
        },
    };
    Ok(match faults {
        Some(faults) => Box::new(faulty::Faulty::new(engine, faults)),
        None => engine,
    })
}

/// Opens `choice` and says what it is; for `cellway info` and run headers.
///
/// # Errors
/// An engine asked for by name that the kernel refuses.
pub fn probe(choice: EngineChoice, local_store_bytes: usize) -> Result<EngineReport, EngineError> {
    let arena = Arena::new(local_store_bytes).map_err(|source| EngineError {
        engine: "any",
        what: "mapping a local store",
        source,
    })?;
    let engine = open(choice, 1, &Arc::new(arena), None)?;
    Ok(EngineReport::of(&*engine))
}

/// An engine, and how it works here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineReport {
    /// The engine's name, as `--engine` takes it.
    pub name: &'static str,
    /// How it works here and why, in a line.
    pub detail: String,
    /// Whether the local store is registered with the kernel, or why not;
    /// `None` for an engine that has no use for it.
    pub fixed_buffers: Option<Result<(), String>>,
}

impl EngineReport {
    pub(crate) fn of(engine: &dyn Engine) -> Self {
        let fixed_buffers = engine.fixed_buffers();
        Self { name: engine.name(), detail: engine.describe(), fixed_buffers }
    }
}
