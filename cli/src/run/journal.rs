//! Runs that can be resumed: where the journal is, and what is said of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cellway::Kernel;
use cellway::storage::{self, Input, Output};
use cellway::stream::{Begun, Journal, JournalErrorKind, Keep, StreamError, plan};
use clap::Args;

use super::{Run, names};
use crate::exit::Usage;
use crate::signals;

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Resuming")]
pub(super) struct JournalArgs {
    /// Record in FILE what is done, so that after a crash, a failure or a signal
    /// the same command with --resume FILE goes on, on nodes with any number of them; FILE is removed once the run
    /// is complete. Till then OUTPUT, or that of a large INPUT of many, is a hidden
    /// file beside it, and what a wordcount has found a hidden folder beside FILE,
    /// which is on this machine, #U/PATH or PATH. On nodes a wordcount of more different
    /// words than fit --table-bytes goes on without new records, a hidden folder in
    /// --out-dir has all outputs until the last is whole, and what rewrites make lies in one,
    /// and on the disk twice until OUTPUT has its name
    #[arg(long, value_name = "FILE", conflicts_with = "resume", value_parser = names::local())]
    journal: Option<PathBuf>,
    /// Go on with the run recorded in FILE: the same kernel, parameters, INPUTs,
    /// none of them changed, and OUTPUT or --out-dir
    #[arg(long, value_name = "FILE", value_parser = names::local())]
    resume: Option<PathBuf>,
    /// Least seconds between two records, which become up to 16 times as many where
    /// recording takes long [default: 2]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    journal_every: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok();
    let time = number.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| time.as_secs() < 1 << 32).ok_or_else(|| "give a number of seconds".into())
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

    /// Whether the run has a journal.
    pub(super) fn keep(&self) -> Keep<'_> {
        match (&self.journal, &self.resume) {
            (Some(path), _) => Keep::Anew(path),
            (None, Some(path)) => Keep::Resume(path),
            (None, None) => Keep::Nothing,
        }
    }

    /// From now on a signal tells how to go on, too.
    pub(super) fn begun(&self, journal: Journal) -> Journal {
        signals::say_at_exit(Some(how_to_go_on(journal.name())));
        match self.journal_every {
            Some(time) => journal.every(time),
            None => journal,
        }
    }
}

impl Run<'_> {
    /// Makes the output, and the journal if there is to be one.
    pub(super) fn begin<K: Kernel>(
        &self,
        kernel: &K,
        input: &Input,
        output: Option<&Path>,
    ) -> anyhow::Result<Begun> {
        let (args, options) = (self.args, self.args.layout.options());
        let keeps = args.journal.file().is_some() && self.nodes.manages();
        if self.nodes.share_output() && !keeps {
            let len_bytes = plan(kernel, input, &options)?.output_bytes();
            let how = storage::Options { force: args.force, len_bytes };
            let output = output.map(|output| Output::create_shared(output, &how)).transpose()?;
            return Ok(Begun { options, output, journal: None });
        }
        let run = (kernel, input);
        let begun = match self.nodes.is_none() || !keeps {
            true => Begun::one(run, output, args.journal.keep(), args.force, &options)?,
            false => Begun::on_nodes(run, output, args.journal.keep(), args.force, &options)?,
        };
        let journal = begun.journal.map(|journal| args.journal.begun(journal));
        Ok(Begun { journal, ..begun })
    }
}

/// A failure that a run with a journal recovers from.
#[derive(Debug)]
pub(super) struct Stopped {
    error: String,
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
    work(Some(journal)).map_err(|error| failed(error, &name))
}

/// The user hears how to go on, unless what this journal tells is of no use.
pub(super) fn failed(error: StreamError, journal: &str) -> anyhow::Error {
    match error {
        StreamError::Journal(ref unfit) if unfit.kind() == JournalErrorKind::Unfit => error.into(),
        error => stopped(&error, journal),
    }
}

/// A failure after which the run goes on with `journal`.
pub(super) fn stopped(error: &dyn std::fmt::Display, journal: &str) -> anyhow::Error {
    Stopped { error: error.to_string(), journal: journal.to_owned() }.into()
}

/// The run is complete.
pub(super) fn done(journal: Option<Journal>) -> anyhow::Result<()> {
    journal.map(Journal::remove).transpose()?;
    signals::say_at_exit(None);
    Ok(())
}
