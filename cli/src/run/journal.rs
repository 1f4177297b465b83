//! Runs that can be resumed: where the journal and the unfinished output are.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cellway::storage::{self, Input, Output, Partial};
use cellway::stream::{self, Journal, Plan, StreamError};
use cellway::{Kernel, Options};
use clap::Args;

use crate::exit::Usage;
use crate::signals;

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Resuming")]
pub(super) struct JournalArgs {
    /// Record in FILE what is done, so that after a crash, a failure or a signal
    /// the same command with --resume FILE goes on; FILE is removed once the run
    /// is complete. Till then the output is a hidden file beside OUTPUT
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    journal: Option<PathBuf>,
    /// Go on with the run recorded in FILE: the same kernel, parameters, INPUT
    /// and OUTPUT
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Least seconds between two records [default: 2]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    journal_every: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok();
    let time = number.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| time.as_secs() < 1 << 32).ok_or_else(|| "give a number of seconds".into())
}

/// A run that may start: its layout, its output, and its journal if it has one.
pub(super) struct Begun {
    pub(super) options: Options,
    pub(super) output: Option<Output>,
    pub(super) journal: Option<Journal>,
}

impl JournalArgs {
    /// The file, and the option that names it.
    pub(super) fn file(&self) -> Option<(&Path, &'static str)> {
        let journal = self.journal.as_deref().map(|path| (path, "--journal"));
        journal.or(self.resume.as_deref().map(|path| (path, "--resume")))
    }

    /// Whether the options fit together.
    pub(super) fn check(&self) -> Result<(), Usage> {
        match self.file() {
            Some((path, option)) if path == Path::new("-") => {
                Err(Usage(format!("a journal must be a file; give {option} a FILE")))
            }
            None if self.journal_every.is_some() => {
                Err(Usage("--journal-every needs a journal; give --journal FILE".into()))
            }
            _ => Ok(()),
        }
    }

    /// Begins a run of `kernel`, or goes on with one; `None` if that is complete.
    pub(super) fn begin<K: Kernel>(
        &self,
        (kernel, input): (&K, &Input),
        output: Option<&Path>,
        force: bool,
        options: Options,
    ) -> anyhow::Result<Option<Begun>> {
        let plan = |options: &Options| stream::plan(kernel, input, options);
        let how = |plan: &Plan| storage::Options { force, len_bytes: plan.output_bytes() };
        if let Some(path) = &self.resume {
            let journal = self.keep(Journal::open(path)?);
            let options = journal.options(&options);
            let plan = plan(&options)?;
            journal.check((kernel, input, &plan), output)?;
            let output = match (journal.partial(), journal.written()) {
                (None, _) => None,
                (Some(partial), None) => Some(partial.create(&how(&plan))?),
                (Some(partial), Some((identity, len_bytes))) => {
                    match partial.reopen(&how(&plan), identity, len_bytes)? {
                        Some(output) => Some(output),
                        None => {
                            journal.remove()?;
                            return Ok(None);
                        }
                    }
                }
            };
            return Ok(Some(Begun { options, output, journal: Some(journal) }));
        }
        let plan = plan(&options)?;
        let Some(path) = &self.journal else {
            let output = output.map(|output| Output::create(output, &how(&plan))).transpose()?;
            return Ok(Some(Begun { options, output, journal: None }));
        };
        let partial = output.map(|output| Partial::choose(output, force)).transpose()?;
        let run = (kernel, input, &plan);
        let journal = self.keep(Journal::create(path, force, run, partial.as_ref())?);
        let made = partial.map(|partial| partial.create(&how(&plan))).transpose();
        match made {
            Ok(output) => Ok(Some(Begun { options, output, journal: Some(journal) })),
            Err(error) => {
                // Nothing was done that one could go on from.
                journal.remove()?;
                Err(error.into())
            }
        }
    }

    /// From now on a signal tells how to go on, too.
    fn keep(&self, journal: Journal) -> Journal {
        signals::say_at_exit(Some(how_to_go_on(journal.name())));
        match self.journal_every {
            Some(time) => journal.every(time),
            None => journal,
        }
    }
}

/// A failure that a run with a journal recovers from.
#[derive(Debug)]
pub(super) struct Stopped {
    error: StreamError,
    journal: String,
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { error, journal } = self;
        write!(f, "{error}; then {}", how_to_go_on(journal))
    }
}

impl std::error::Error for Stopped {}

fn how_to_go_on(journal: &str) -> String {
    format!("go on by the same command with --resume {journal}")
}

/// Runs `work`; if it fails the user hears how to go on.
pub(super) fn resumable<T>(
    journal: &mut Option<Journal>,
    work: impl FnOnce(Option<&mut Journal>) -> Result<T, StreamError>,
) -> anyhow::Result<T> {
    let Some(journal) = journal else { return Ok(work(None)?) };
    let name = journal.name().to_owned();
    work(Some(journal)).map_err(|error| Stopped { error, journal: name }.into())
}

/// The run is complete.
pub(super) fn done(journal: Option<Journal>) -> anyhow::Result<()> {
    journal.map(Journal::remove).transpose()?;
    signals::say_at_exit(None);
    Ok(())
}
