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
//! Or write a *program*, an `async fn` that issues its own transfers, for
//! irregular access; see [`accel`].
//!
//! The layers beneath, each usable by itself: [`accel`] (one accelerator),
//! [`storage`] (inputs and outputs), [`stream`] (kernels over files),
//! [`kernels`] (those that come along).
#![forbid(unsafe_code)]

use std::path::Path;

pub use {accel, kernels, storage, stream};

pub use stream::{
    Block, Body, Cut, Effect, Head, Kernel, KernelError, MergeOrder, Options, Out, Outcome,
    StreamError, Unit,
};

/// How kernels are run over files.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Accelerators, threads, blocks, engine: see [`Options`].
    pub options: Options,
    /// Replace an existing output.
    pub force: bool,
    /// Bring the output to the disk before returning.
    pub sync: bool,
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
        stream::run(kernel, &input, None, &self.options, &stream::Progress::default())
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
        let plan = stream::plan(kernel, &input, &self.options)?;
        let options = storage::Options { force: self.force, len_bytes: plan.output_bytes() };
        let output = storage::Output::create(output, &options)?;
        let outcome = stream::run(
            kernel,
            &input,
            Some(&output),
            &self.options,
            &stream::Progress::default(),
        )?;
        output.commit(self.sync)?;
        Ok(outcome)
    }
}
