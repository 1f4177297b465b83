//! Sources and sinks of a run: files, block devices, pipes.
//!
//! An [`Input`] knows what it is, how long it is, how much of it is cached and
//! whether somebody changed it since it was opened. An [`Output`] appears whole
//! under its name or not at all: it is written as a file without a name and
//! gets its name in [`Output::commit`], so a killed run has nothing to clean
//! up (but when it replaces a file: a kill in the instant between link and
//! rename leaves a hidden one). Pipes and devices cannot promise that and are
//! written straight. [`list`] finds many inputs, and an [`OutDir`] holds their
//! outputs.
//!
//! Both hand out plain descriptors; what moves the bytes is somebody else's.
//! The rival to the file without a name is a hidden temporary file renamed at
//! the end. It remains as the fallback for file systems that lack `O_TMPFILE`;
//! a `SIGKILL` leaves that one behind. A [`Partial`] is left behind on purpose: what
//! goes on after a crash has to find it.
//!
//! ```
//! use std::os::unix::fs::FileExt as _;
//! use cellway_storage::{Input, Options, Output};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let (from, to) = (dir.path().join("from"), dir.path().join("to"));
//! # std::fs::write(&from, "abc")?;
//! let input = Input::open(&from)?;
//! let mut block = [0; 3];
//! input.file().read_exact_at(&mut block, 0)?;
//!
//! let options = Options { force: false, len_bytes: input.len_bytes() };
//! let output = Output::create(&to, &options)?;
//! output.file().write_all_at(&block, 0)?;
//! assert!(!to.exists());
//! output.commit(true)?;
//! assert_eq!(std::fs::read(&to)?, b"abc");
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod direct;
mod error;
mod input;
mod list;
mod name;
mod out_dir;
mod output;
mod publish;
mod received;
mod resident;
mod sequential;
mod space;
mod unfinished;

pub use direct::{DirectFile, DirectRefused};
pub use error::{InputError, InputErrorKind, OutputError, OutputErrorKind, shown};
pub use input::Input;
pub use list::{Listed, list};
pub use name::{same_file, same_place};
pub use out_dir::OutDir;
pub use output::{Options, Output, Partial, SharedDir};
pub use received::Received;
pub use sequential::{SequentialReader, SequentialWriter};
pub use space::free_bytes;
pub use unfinished::{Halted, hidden_name, is_hidden_name, remove_unfinished};

/// What stands behind a source or a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file: positional transfers, known length.
    File,
    /// A block device: positional transfers, known length.
    BlockDevice,
    /// A pipe, FIFO, terminal or character device: one byte after the other.
    Stream,
}

#[cfg(test)]
mod testing;
