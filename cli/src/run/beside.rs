//! What a run writes besides its result: statistics and a trace.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cellway::storage::{self, Output, OutputError, SequentialWriter};
use cellway::stream::{Progress, Stats, Trace};

use super::names::Drained;
use super::stats::{Files, StatsFile, StatsJson};
use super::window::Window;
use super::{Run, is_stdout, went};
use crate::exit::{self, Told};
use crate::stdout::Stdout;

/// Statistics or a trace: opened before the run, so that a wrong name shows early, it
/// appears whole at the end and replaces what had its name.
pub(super) struct Beside {
    file: Output,
    drained: Option<Drained>,
}

impl Beside {
    pub(super) fn create(window: &Window, path: &Path) -> anyhow::Result<Self> {
        let drained = Drained::create(window, path, true, false)?;
        let options = storage::Options { force: true, len_bytes: None };
        let file = Output::create(drained.as_ref().map_or(path, Drained::path), &options)?;
        Ok(Self { file, drained })
    }

    pub(super) fn sequential(&self) -> SequentialWriter {
        self.file.sequential()
    }

    /// It was written, and nobody writes to it any more: `written` says how that went.
    pub(super) fn close(self, written: Result<(), OutputError>) -> anyhow::Result<Closed> {
        let Self { file, drained } = self;
        match (written.and_then(|()| file.commit(false)), drained) {
            (Ok(()), Some(mut drained)) => {
                drained.close();
                Ok(Closed(Some(drained)))
            }
            (Err(error), Some(drained)) => {
                Err(drained.abandon().map_or(error.into(), |error| crate::fs::told(&error)))
            }
            (done, None) => Ok(done.map(|()| Closed(None))?),
        }
    }
}

/// One that is whole: those who read it may still be at it.
pub(super) struct Closed(Option<Drained>);

impl Closed {
    /// Until nobody needs this process for it any more.
    fn wait(self) -> anyhow::Result<()> {
        self.0.map_or(Ok(()), Drained::commit)
    }
}

/// What is not done with yet when the result is out. Readers come in any order, or never: each
/// file is closed before any of them is waited for.
#[derive(Default)]
pub(super) struct Left {
    trace: RefCell<Option<(Arc<Progress>, Beside)>>,
    stats: RefCell<Option<Closed>>,
}

impl Left {
    fn end(&self) -> anyhow::Result<()> {
        let close = |(progress, file): (Arc<Progress>, Beside)| {
            progress.trace().map(|trace| file.close(trace.finish()))
        };
        let trace = self.trace.take().and_then(close).transpose();
        let stats = self.stats.take().map_or(Ok(()), Closed::wait);
        trace?.map_or(Ok(()), Closed::wait).and(stats)
    }
}

impl Run<'_> {
    /// Does `work`, and has it leave a trace if one is asked for.
    pub(super) fn watched<T>(
        &self,
        len_bytes: Option<u64>,
        work: impl FnOnce(&Progress) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let file = self.args.trace.as_deref().map(|path| Beside::create(&self.window, path));
        let file = file.transpose()?;
        let progress = match &file {
            Some(file) => Progress::traced(Trace::new(file.sequential())),
            None => Progress::default(),
        };
        let progress = if self.window.is_open() { progress.observed() } else { progress };
        let progress = Arc::new(progress);
        self.left.trace.replace(file.map(|file| (progress.clone(), file)));
        self.window.show(&progress, len_bytes, self.args.told());
        let done = work(&progress);
        self.window.end(&done);
        done
    }

    pub(super) fn open_stats(&self) -> anyhow::Result<Option<StatsFile>> {
        let file = self.args.stats.as_deref().filter(|path| !is_stdout(path));
        let file = file.filter(|_| self.nodes.manages());
        file.map(|path| StatsFile::create(&self.window, path)).transpose()
    }

    /// What a run says once its result is out.
    pub(super) fn conclude(
        &self,
        stats_file: Option<StatsFile>,
        files: Files,
        stats: &Stats,
        commit: Duration,
    ) -> anyhow::Result<()> {
        let name = self.args.kernel.name();
        let json = StatsJson::new(&name, files, stats, commit);
        if self.args.verbose {
            exit::tell(&went(stats));
        }
        if let Some(file) = stats_file {
            self.left.stats.replace(Some(file.write(&json)?));
        }
        if self.args.stats_on_stdout() {
            json.write(Stdout::lock())?;
        }
        Ok(())
    }

    /// The run is over, but for who reads what it leaves beside: a run that failed leaves a
    /// trace too, of how far it got, and says before why it failed.
    pub(super) fn end(&self, done: anyhow::Result<()>) -> anyhow::Result<()> {
        let Err(error) = done else { return self.left.end() };
        if self.left.trace.borrow().is_none() {
            return Err(error);
        }
        let code = exit::of_failure(&error);
        if let Err(error) = self.left.end() {
            exit::of_failure(&error);
        }
        Err(Told(code).into())
    }
}
