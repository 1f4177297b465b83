//! How a run with or without a journal begins.

use std::path::Path;

use storage::{Input, Listed, OutDir, Output, Partial};

use super::Journal;
use super::file::is_torn;
use crate::error::StreamError;
use crate::kernel::{Effect, Kernel};
use crate::many::plan_all;
use crate::plan::{Options, Plan};
use crate::run::{check_journaled, plan};
use crate::share::plan_shares;

/// Whether a run has a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep<'p> {
    /// None.
    Nothing,
    /// It begins one.
    Anew(&'p Path),
    /// It goes on with one.
    Resume(&'p Path),
    /// It goes on with one if there is one that tells of something, else begins it.
    Either(&'p Path),
}

/// A run that may start: its layout, its output, and its journal if it has one.
#[derive(Debug)]
pub struct Begun {
    /// What was asked for, and the journal's blocks.
    pub options: Options,
    /// `None` if it has its name already: the run is complete, and has nothing left to do.
    pub output: Option<Output>,
    /// To be removed once the result is out.
    pub journal: Option<Journal>,
}

impl Begun {
    /// Begins a run over one input, or goes on with one. With `force` an output
    /// may replace what is there, and a new journal an old one.
    ///
    /// # Errors
    /// Those of [`Journal::create`], [`Journal::open`] and [`Journal::check`], and
    /// of making the output.
    pub fn one<K: Kernel>(
        (kernel, input): (&K, &Input),
        output: Option<&Path>,
        keep: Keep<'_>,
        force: bool,
        options: &Options,
    ) -> Result<Self, StreamError> {
        Self::begin((kernel, input), output, keep, force, (options, false))
    }

    /// As [`Begun::one`], of a run that nodes have their shares in; the journal takes [`Pieces`](super::Pieces).
    ///
    /// # Errors
    /// Those of [`Begun::one`], and of what nodes cannot share.
    pub fn on_nodes<K: Kernel>(
        (kernel, input): (&K, &Input),
        output: Option<&Path>,
        keep: Keep<'_>,
        force: bool,
        options: &Options,
    ) -> Result<Self, StreamError> {
        Self::begin((kernel, input), output, keep, force, (options, true))
    }

    fn begin<K: Kernel>(
        (kernel, input): (&K, &Input),
        output: Option<&Path>,
        keep: Keep<'_>,
        force: bool,
        (options, on_nodes): (&Options, bool),
    ) -> Result<Self, StreamError> {
        // A rewrite that is shared is laid out as it is, and then made a reduction of.
        let is_shared = on_nodes && kernel.effect() != Effect::Rewrite;
        let plan = |options: &Options| match is_shared {
            true => plan_shares(kernel, input, None, options),
            false => plan(kernel, input, options),
        };
        let how = |plan: &Plan| storage::Options { force, len_bytes: plan.output_bytes() };
        let anew = |path, force_journal| {
            let plan = plan(options)?;
            check_journaled(&plan)?;
            let partial = output.map(|output| Partial::choose(output, force)).transpose()?;
            let run = (kernel, input, &plan);
            let journal = Journal::create_by(path, force_journal, run, partial.as_ref(), on_nodes)?;
            match partial.map(|partial| partial.create(&how(&plan))).transpose() {
                Ok(output) => {
                    // Nodes have the journal's units, whatever is cached by then.
                    let options = if on_nodes { journal.options(options) } else { options.clone() };
                    Ok(Self { options, output, journal: Some(journal) })
                }
                Err(error) => {
                    // Nothing was done that one could go on from.
                    journal.remove()?;
                    Err(error.into())
                }
            }
        };
        let resume = |path| {
            let journal = Journal::open(path)?;
            let options = journal.options(options);
            let plan = plan(&options)?;
            journal.check_by((kernel, input, &plan), output, on_nodes)?;
            let output = match (journal.partial(), journal.written()) {
                (None, _) => None,
                (Some(partial), None) => Some(partial.create(&how(&plan))?),
                (Some(partial), Some((identity, len_bytes))) => {
                    partial.reopen(&how(&plan), identity, len_bytes)?
                }
            };
            Ok(Self { options, output, journal: Some(journal) })
        };
        match keep {
            Keep::Nothing => {
                // What has no output is laid out by the run alone.
                let create = |output| -> Result<_, StreamError> {
                    Ok(Output::create(output, &how(&plan(options)?))?)
                };
                let output = output.map(create).transpose()?;
                Ok(Self { options: options.clone(), output, journal: None })
            }
            Keep::Anew(path) => anew(path, force),
            Keep::Resume(path) => resume(path),
            // One that was torn at its start tells of nothing.
            Keep::Either(path) if path.exists() && !is_torn(path) => resume(path),
            Keep::Either(path) => anew(path, path.exists()),
        }
    }

    /// Begins a run over several inputs, or goes on with one; outputs go to `out_dir`.
    ///
    /// # Errors
    /// Those of [`Journal::create_all`], [`Journal::open`] and
    /// [`Journal::check_all`], and of preparing the directory.
    pub fn many<K: Kernel>(
        run: (&K, &[Listed], &Options),
        out_dir: Option<&Path>,
        keep: Keep<'_>,
        force: bool,
    ) -> Result<(Option<OutDir>, Option<Journal>), StreamError> {
        Self::begin_many(run, out_dir, keep, (force, false))
    }

    /// As [`Begun::many`], of a run that nodes have their shares in; the journal takes
    /// [`Pieces`](super::Pieces), of units of its length ([`Journal::options`]).
    ///
    /// # Errors
    /// Those of [`Begun::many`].
    pub fn many_on_nodes<K: Kernel>(
        run: (&K, &[Listed], &Options),
        out_dir: Option<&Path>,
        keep: Keep<'_>,
        force: bool,
    ) -> Result<(Option<OutDir>, Option<Journal>), StreamError> {
        Self::begin_many(run, out_dir, keep, (force, true))
    }

    fn begin_many<K: Kernel>(
        run: (&K, &[Listed], &Options),
        out_dir: Option<&Path>,
        keep: Keep<'_>,
        (force, on_nodes): (bool, bool),
    ) -> Result<(Option<OutDir>, Option<Journal>), StreamError> {
        let prepare = || out_dir.map(|dir| OutDir::prepare(dir, run.1, force)).transpose();
        let anew = |path, force_journal| {
            check_journaled(&plan_all(run.0, run.1, run.2)?)?;
            let dir = prepare()?;
            let journal = Journal::create_all_by(path, force_journal, run, dir.as_ref(), on_nodes)?;
            Ok((dir, Some(journal)))
        };
        let resume = |path| {
            let journal = Journal::open(path)?;
            journal.check_all_by(run, out_dir, on_nodes)?;
            let done = journal.inputs_done();
            let go_on = |dir| OutDir::go_on(dir, run.1, done, force);
            Ok((out_dir.map(go_on).transpose()?, Some(journal)))
        };
        match keep {
            Keep::Nothing => Ok((prepare()?, None)),
            Keep::Anew(path) => anew(path, force),
            Keep::Resume(path) => resume(path),
            Keep::Either(path) if path.exists() && !is_torn(path) => resume(path),
            Keep::Either(path) => anew(path, path.exists()),
        }
    }
}
