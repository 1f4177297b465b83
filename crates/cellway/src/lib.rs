//! Stream data that is larger than memory through a naive loop: get a block,
//! compute, put it back. Cellway overlaps the rest, in memory bounded before
//! the run.
//!
//! Write a [`Kernel`] (a function over a block) and give it a file:
//!
//! ```
//! use cellway::{Block, Config, Effect, Kernel, KernelError, Unit};
//!
//! /// Flips every bit.
//! struct Invert;
//!
//! impl Kernel for Invert {
//!     type Part = ();
//!     type Header = ();
//!     fn name(&self) -> &str { "invert" }
//!     fn effect(&self) -> Effect { Effect::Transform }
//!     fn part(&self, _accelerators: usize) {}
//!     fn block(&self, _: &Unit<'_>, block: Block<'_>, _: &mut ()) -> Result<(), KernelError> {
//!         block.data.iter_mut().for_each(|byte| *byte = !*byte);
//!         Ok(())
//!     }
//!     fn merge(&self, _: &mut (), _: ()) -> Result<(), KernelError> { Ok(()) }
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let (input, output) = (dir.path().join("in"), dir.path().join("out"));
//! # std::fs::write(&input, [0, 1, 254])?;
//! let outcome = Config::default().transform(&Invert, &input, &output)?;
//! assert_eq!(std::fs::read(&output)?, [255, 254, 1]);
//! assert_eq!(outcome.stats.bytes_out, 3);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! A run of hours goes on after a crash if it has a journal, and the call is made again:
//! `Config { journal: Some("run.journal".into()), ..Config::default() }`.
//!
//! Or write a *program*, an `async fn` that issues its own transfers, for
//! irregular access; see [`accel`].
//!
//! The layers beneath, each usable by itself: [`accel`] (one accelerator),
//! [`storage`] (inputs and outputs), [`stream`] (kernels over files),
//! [`kernels`] (those that come along), [`fs`] (file servers, and file calls),
//! [`record`] (typed parameters, units and results), [`cluster`] (many machines).
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use {accel, cluster, fs, kernels, record, storage, stream};

/// A struct whose layout travels with it: see [`record`].
pub use record::Record;

pub use stream::{
    Block, Body, Cut, Effect, Head, Kernel, KernelError, MergeOrder, Options, Out, Outcome,
    StreamError, Unit,
};

use stream::{Begun, Keep, Progress};

/// How kernels are run over files.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Accelerators, threads, blocks, engine: see [`Options`].
    pub options: Options,
    /// Replace an existing output.
    pub force: bool,
    /// Bring the output to the disk before returning.
    pub sync: bool,
    /// Record in this file what is done. After a crash or a failure the same call
    /// goes on from there; once the result is returned the file is gone.
    pub journal: Option<PathBuf>,
    /// The least time between two records: see [`stream::Journal::every`]. Default 2 s.
    pub journal_every: Option<Duration>,
}

impl Config {
    /// Streams the file `input` through a reduction and returns its result.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn reduce<K: Kernel>(
        &self,
        kernel: &K,
        input: &Path,
    ) -> Result<Outcome<K::Part>, StreamError> {
        let input = storage::Input::open(input)?;
        let (outcome, begun) = self.stream(kernel, &input, None)?;
        begun.journal.map(stream::Journal::remove).transpose()?;
        Ok(outcome)
    }

    /// Streams the file `input` through a transform into `output`, which
    /// appears whole or not at all.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn transform<K: Kernel>(
        &self,
        kernel: &K,
        input: &Path,
        output: &Path,
    ) -> Result<Outcome<K::Part>, StreamError> {
        let input = storage::Input::open(input)?;
        let (outcome, begun) = self.stream(kernel, &input, Some(output))?;
        begun.output.map(|output| output.commit(self.sync)).transpose()?;
        begun.journal.map(stream::Journal::remove).transpose()?;
        Ok(outcome)
    }

    fn stream<K: Kernel>(
        &self,
        kernel: &K,
        input: &storage::Input,
        output: Option<&Path>,
    ) -> Result<(Outcome<K::Part>, Begun), StreamError> {
        let keep = self.journal.as_deref().map_or(Keep::Nothing, Keep::Either);
        let mut begun = Begun::one((kernel, input), output, keep, self.force, &self.options)?;
        if let Some(time) = self.journal_every {
            begun.journal = begun.journal.map(|journal| journal.every(time));
        }
        let (progress, Begun { options, output, journal }) = (Progress::default(), &mut begun);
        let (output, journal) = (output.as_ref(), journal.as_mut());
        let outcome = stream::run_journaled(kernel, input, output, options, &progress, journal)?;
        Ok((outcome, begun))
    }
}
