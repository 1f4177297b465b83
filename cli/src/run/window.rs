//! `--serve`: other processes look into the run, by 9P2000.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cellway::StreamError;
use cellway::fs::{
    self, Address, Exports, FileServer, Files, JobServer, LogServer, NetServer, PipeServer,
    RamServer, ServeOptions, Serving, Shown,
};
use cellway::stream::{Progress, Wish};

use super::RunArgs;
use crate::{exit, signals};

/// What a pipe holds; what the log keeps for readers.
const PIPE_BYTES: usize = 1 << 20;
const LOG_BYTES: usize = 1 << 20;
/// How long a connection to another server may take to be made.
const PATIENCE: Duration = Duration::from_secs(10);
/// What the files in memory may take.
const RAM_BYTES: u64 = 1 << 30;

/// The files of this run's servers, and who may reach them from outside.
pub(super) struct Window {
    pub(super) files: Files,
    pub(super) pipes: PipeServer,
    jobs: JobServer,
    /// Seen until the window is closed.
    shown: RefCell<Option<(Shown, Arc<Progress>)>>,
    serving: Arc<Mutex<Option<Serving>>>,
}

impl Window {
    /// Opens it to others at `at`.
    pub(super) fn open(at: Option<&Address>) -> anyhow::Result<Self> {
        let log = Arc::new(LogServer::new(LOG_BYTES, |text| {
            use std::io::Write as _;
            // Nobody is left to be told that standard error is closed.
            let _ = std::io::stderr().write_all(text);
        }));
        let (pipes, jobs) = (PipeServer::new(PIPE_BYTES), JobServer::new());
        let ram = Arc::new(RamServer::new(RAM_BYTES));
        let serve = |at: &Address| -> anyhow::Result<Serving> {
            let mut trees: Vec<(String, Arc<dyn FileServer>)> = Vec::new();
            if matches!(at, Address::Unix(_)) {
                // Only its owner comes in by a socket of mode 0600.
                trees.push(("job".into(), Arc::new(jobs.clone())));
                trees.push(("l".into(), log.clone()));
                trees.push(("p".into(), Arc::new(pipes.clone())));
                trees.push(("r".into(), ram.clone()));
            } else {
                trees.push(("job".into(), jobs.read_only()));
            }
            let serving = fs::serve(at, Arc::new(Exports::new(trees)?), ServeOptions::default())?;
            let at = serving.address();
            exit::tell(&format!("this run can be looked into: cellway fs ls {at} /job/0"));
            Ok(serving)
        };
        let serving = Arc::new(Mutex::new(None));
        if let Some(at) = at {
            // Its socket goes with it, however early a signal comes.
            let mut place = lock(&serving);
            let leaving = serving.clone();
            signals::end_at_exit(move || drop(lock(&leaving).take()));
            *place = Some(serve(at)?);
        }
        let files = Files::new("job")
            .with("#l", log)?
            .with("#n", Arc::new(NetServer::new(PATIENCE)))?
            .with("#p", Arc::new(pipes.clone()))?
            .with("#r", ram)?
            .with("#job", Arc::new(jobs.clone()))?;
        Ok(Self { files, pipes, jobs, shown: RefCell::default(), serving })
    }

    /// Whether somebody may look in.
    pub(super) fn is_open(&self) -> bool {
        lock(&self.serving).is_some()
    }

    /// Shows a run while the result is kept.
    pub(super) fn show(
        &self,
        progress: &Arc<Progress>,
        total_bytes: Option<u64>,
        parameters: serde_json::Value,
    ) {
        if self.is_open() {
            let pipes = self.pipes.clone();
            let at_cancel = move || pipes.break_off();
            let shown = self.jobs.show(progress.clone(), total_bytes, parameters, at_cancel);
            *self.shown.borrow_mut() = Some((shown, progress.clone()));
        }
    }

    /// Why the run failed, where its input or output broke off because of that.
    pub(super) fn why(&self, broke_off: anyhow::Error) -> anyhow::Error {
        let wish = self.shown.borrow().as_ref().map(|(_, progress)| progress.control().wish());
        if wish == Some(Wish::Cancel) { StreamError::Cancelled.into() } else { broke_off }
    }

    /// The run that is shown has ended.
    pub(super) fn end<T>(&self, run: &anyhow::Result<T>) {
        if let Some((shown, _)) = &*self.shown.borrow() {
            shown.end(run.as_ref().err().map(|error| format!("{error:#}")).as_deref());
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        drop(lock(&self.serving).take());
    }
}

fn lock(serving: &Mutex<Option<Serving>>) -> MutexGuard<'_, Option<Serving>> {
    serving.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RunArgs {
    /// What the run was started with.
    pub(super) fn told(&self) -> serde_json::Value {
        let arguments = std::env::args_os().map(|argument| argument.display().to_string());
        let files = self.files.iter().map(|path| path.display().to_string());
        serde_json::json!({
            "kernel": self.kernel.name(),
            "files": files.collect::<Vec<_>>(),
            "arguments": arguments.collect::<Vec<_>>(),
        })
    }
}
