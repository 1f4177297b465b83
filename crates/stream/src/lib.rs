//! One machine: a kernel streamed over a file, device or pipe, in memory that
//! is known before the run.
//!
//! The user writes a [`Kernel`]: a function over a block. [`run`] cuts the
//! input into units, and on every accelerator a few cooperative threads each
//! do the naive loop: get a unit into the local store, compute, put it back.
//! While one computes, the transfers of the others go on; nothing is double
//! buffered by hand. Results come back as an [`Outcome`]. [`run_all`] does the same
//! for many inputs, however small.
//!
//! ```
//! use cellway_stream::{Block, Effect, Kernel, KernelError, Options, Unit, run};
//!
//! /// Counts zero bytes.
//! struct Zeros;
//!
//! impl Kernel for Zeros {
//!     type Part = u64;
//!     type Header = ();
//!     fn name(&self) -> &str { "zeros" }
//!     fn effect(&self) -> Effect { Effect::Reduce }
//!     fn part(&self, _accelerators: usize) -> u64 { 0 }
//!     fn block(&self, _: &Unit<'_>, block: Block<'_>, part: &mut u64) -> Result<(), KernelError> {
//!         *part += block.data.iter().filter(|byte| **byte == 0).count() as u64;
//!         Ok(())
//!     }
//!     fn merge(&self, part: &mut u64, later: u64) -> Result<(), KernelError> {
//!         *part += later;
//!         Ok(())
//!     }
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("data");
//! # std::fs::write(&path, [1, 0, 2, 0, 0])?;
//! let input = storage::Input::open(&path)?;
//! let outcome = run(&Zeros, &input, None, &Options::default(), &Default::default())?;
//! assert_eq!(outcome.part, 3);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! The key decision: the split is *pure* ([`Plan`]), made and printed before
//! anything is touched; what runs then only follows it.
#![forbid(unsafe_code)]

mod chain;
mod control;
mod error;
mod fold;
mod gate;
mod job;
mod journal;
mod kernel;
mod leases;
mod many;
mod memory;
mod merge;
mod paths;
mod pipeline;
mod plan;
mod recent;
mod run;
mod saved;
mod scheme;
mod share;
mod sink;
mod source;
mod spool;
mod stats;
mod trace;
mod watch;

pub use chain::{Chain, Transform};
pub use control::{Control, Wish};
pub use error::StreamError;
pub use fold::Fold;
#[cfg(any(test, fuzzing))]
pub use journal::fuzzed;
pub use journal::{Begun, Beside, Journal, JournalError, JournalErrorKind, Keep, Piece, Pieces};
pub use kernel::{
    Block, Body, Cut, Effect, Head, Kernel, KernelError, MergeOrder, Out, OutState, Unit,
};
pub use many::{Outputs, plan_all, plan_lens, run_all, run_all_journaled};
pub use memory::{floor_bytes, peak_rss_bytes, rss_bytes};
pub use merge::EARLY_PARTS_MAX;
pub use paths::Direct;
pub use pipeline::Pipeline;
pub use plan::{Options, Plan, PlanError};
pub use recent::{Done, ThreadSteps};
pub use run::{plan, run, run_journaled};
pub use saved::{Saved, save_bytes};
pub use scheme::{STAGING_DEFAULT, Scheme};
pub use share::{Drive, Part, RANGES_OPEN, Shares, Unfound, plan_shares, run_shares, step_shares};
pub use spool::{Spans, Spool, Spooled};
pub use stats::{Outcome, Progress, Rates, Spent, Stats, Step};
pub use trace::Trace;
