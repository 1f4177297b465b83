//! INPUT and OUTPUT that are files of a file server: `#p/pipe`, `#n/HOST/file`.
//!
//! `#U` are the system's files, so its names are paths. Others are streamed: a
//! thread moves bytes between the file's calls and a pipe that the run reads or
//! writes. What it ran into is told before a result is, or an output keeps its name.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Context as _;
use cellway::fs::{self, Files, FsError, Kind, OpenMode, wait};
use cellway::storage::{self, Input};

use crate::exit::Usage;

/// Moved at once.
const MOVED_BYTES: usize = 1 << 20;
/// A path of the command line: the names of `#U` are those of the system.
pub(super) fn parse(text: OsString) -> Result<PathBuf, String> {
    match text.to_str().and_then(|text| text.strip_prefix("#U")) {
        Some("") => Err("#U is the root of the system's files; name one: #U/PATH".into()),
        Some(path) if path.starts_with('/') => Ok(path.into()),
        Some(_) => Err(
            "after #U comes a /, as in #U/home/ann/data; a file whose name begins with # is ./#.."
                .into(),
        ),
        None => Ok(text.into()),
    }
}

/// Whether a path is the name of a server's file.
pub(super) fn is_named(path: &Path) -> bool {
    name(path).is_some()
}

fn name(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| text.starts_with('#'))
}

/// Whether a run with these, alone or not, and a journal or not, can be.
pub(super) fn check(
    inputs: &[PathBuf],
    output: Option<&Path>,
    is_many: bool,
    has_journal: bool,
    is_served: bool,
) -> Result<(), Usage> {
    let mut named = inputs.iter().map(PathBuf::as_path).chain(output).filter(|path| is_named(path));
    if let (Some(path), true) = (named.clone().next(), is_many) {
        let what = "cannot be one of several INPUTs, nor of those for --out-dir; give it alone";
        return Err(Usage(format!("{} {what}", path.display())));
    }
    if let (Some(path), true) = (named.next(), has_journal) {
        let what = "cannot be gone on with; a run with a journal takes files";
        return Err(Usage(format!("{} {what}", path.display())));
    }
    let gone = output
        .and_then(name)
        .filter(|name| ["#R", "#r"].iter().any(|server| name.split('/').next() == Some(server)));
    if let Some(name) = gone {
        let what =
            "would be gone with the run; write to a file, a pipe (#p) or another machine (#n)";
        return Err(Usage(format!("{name} {what}")));
    }
    let mut pipes = inputs.iter().map(PathBuf::as_path).chain(output).filter_map(pipe_name);
    if let (Some(name), false) = (pipes.next(), is_served) {
        let what = "is a pipe of this run, and nobody is at its other end; give --serve unix:PATH";
        return Err(Usage(format!("#p/{name} {what}, and use it by `cellway fs`")));
    }
    Ok(())
}

/// The name of a pipe of this run.
pub(super) fn pipe_name(path: &Path) -> Option<&str> {
    name(path)?.strip_prefix("#p/")
}

/// An input, and who feeds it.
pub(super) struct Fed {
    pub(super) input: Input,
    feed: Option<JoinHandle<Result<(), FsError>>>,
}

impl Fed {
    pub(super) fn open(files: &Files, path: &Path) -> anyhow::Result<Self> {
        let Some(name) = name(path) else {
            return Ok(Self { input: Input::open(path)?, feed: None });
        };
        if let Some(path) = name.strip_prefix("#R/") {
            // Nothing is changed by reading it.
            let input = Input::open(&Path::new("/").join(path))?;
            return Ok(Self { input, feed: None });
        }
        let file = match pipe_name(path) {
            Some(_) => wait(files.create_new(name, 0o600, OpenMode::READ))?,
            None => wait(files.open(name, OpenMode::READ))?,
        };
        let (reader, writer) = pipe()?;
        let input = Input::stream(name, File::from(OwnedFd::from(reader)))?;
        let feed = spawn("feed", move || feed(file, writer))?;
        Ok(Self { input, feed: Some(feed) })
    }

    /// The input was read to its end: whether that was the end of the file, too.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.feed.map_or(Ok(()), |thread| Ok(joined(thread)?))
    }
}

/// Moves all of `file` into the pipe.
fn feed(mut file: fs::File, mut into: PipeWriter) -> Result<(), FsError> {
    let mut buf = vec![0; MOVED_BYTES];
    loop {
        let len = wait(file.read(&mut buf))?;
        let read = buf.get(..len).unwrap_or_default();
        // Who does not read on has failed by itself, or seen enough.
        if len == 0 || into.write_all(read).is_err() {
            return Ok(());
        }
    }
}

/// An output, and who drains it. Dropped after the run's own, it leaves no part behind.
pub(super) struct Drained {
    /// What the run writes to.
    path: PathBuf,
    /// Open until it is known whether what was written is all: only then it ends.
    writer: Option<PipeWriter>,
    is_whole: Arc<AtomicBool>,
    drain: Option<JoinHandle<Result<(), FsError>>>,
}

impl Drained {
    /// `None` if `path` is no server's name.
    pub(super) fn create(files: &Files, path: &Path, force: bool) -> anyhow::Result<Option<Self>> {
        let Some(name) = name(path) else { return Ok(None) };
        let (file, part) = create(files, name, force)?;
        let (reader, writer) = pipe()?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
        let is_whole = Arc::new(AtomicBool::new(false));
        let whole = is_whole.clone();
        let drain = spawn("drain", move || {
            let drained = drain(file, reader);
            match part {
                Some(part) if drained.is_ok() && whole.load(Ordering::SeqCst) => part.keep(),
                Some(part) => part.discard(),
                None => Ok(()),
            }
            .and(drained)
        })?;
        Ok(Some(Self { path, writer: Some(writer), is_whole, drain: Some(drain) }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// All is written, and no output open any more.
    pub(super) fn commit(mut self) -> anyhow::Result<()> {
        self.is_whole.store(true, Ordering::SeqCst);
        Ok(self.end()?)
    }

    /// The run failed, and its output is not open any more: what the file's
    /// server said, if that was why.
    pub(super) fn abandon(mut self) -> Option<FsError> {
        self.end().err()
    }

    fn end(&mut self) -> Result<(), FsError> {
        self.writer = None;
        self.drain.take().map_or(Ok(()), joined)
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        // Of a run that failed: that is what is told.
        let _ = self.end();
    }
}

/// A file to write to; one of another machine is a part of itself until it is whole.
fn create(files: &Files, name: &str, force: bool) -> anyhow::Result<(fs::File, Option<Part>)> {
    if name.starts_with("#n/") {
        let (file, part) = Part::create(files, name, force)?;
        return Ok((file, Some(part)));
    }
    // A pipe or a log is written straight, as those of the system are.
    let file = match wait(files.create_new(name, 0o600, OpenMode::WRITE)) {
        Ok(file) => file,
        Err(error) => match wait(files.open(name, OpenMode::WRITE)) {
            Err(missing) if missing.kind() == Kind::NotFound => return Err(error.into()),
            opened => opened?,
        },
    };
    Ok((file, None))
}

/// A file of another machine that is written under a hidden name.
struct Part {
    files: Files,
    hidden: String,
    name: String,
    last: String,
    force: bool,
}

impl Part {
    fn create(files: &Files, name: &str, force: bool) -> anyhow::Result<(fs::File, Self)> {
        let exists = wait(files.stat(name)).is_ok();
        if exists && !force {
            anyhow::bail!("{name} exists; give --force to replace it");
        }
        let (above, last) = name.rsplit_once('/').unwrap_or(("", name));
        let own = format!("{last}.{}", std::process::id());
        let hidden = storage::hidden_name(own.as_ref());
        let hidden = format!("{above}/{}", hidden.to_string_lossy());
        let file = wait(files.create_new(&hidden, 0o644, OpenMode::WRITE))?;
        let (name, last) = (name.to_owned(), last.to_owned());
        Ok((file, Self { files: files.clone(), hidden, name, last, force }))
    }

    /// It is whole: the file of that name gives way, if it may.
    fn keep(self) -> Result<(), FsError> {
        let removed = match self.force {
            true => wait(self.files.remove(&self.name)),
            false => Ok(()),
        };
        let renamed = match removed {
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => wait(self.files.rename(&self.hidden, &self.last)),
        };
        renamed.inspect_err(|_| drop(wait(self.files.remove(&self.hidden))))
    }

    fn discard(self) -> Result<(), FsError> {
        wait(self.files.remove(&self.hidden))
    }
}

/// Moves all of the pipe into `file`.
fn drain(mut file: fs::File, mut from: PipeReader) -> Result<(), FsError> {
    let mut buf = vec![0; MOVED_BYTES];
    loop {
        let len = from.read(&mut buf).map_err(|error| FsError::io("a pipe", &error))?;
        if len == 0 {
            return Ok(());
        }
        wait(file.write_all(buf.get(..len).unwrap_or_default()))?;
    }
}

fn pipe() -> anyhow::Result<(PipeReader, PipeWriter)> {
    io::pipe().context("no pipe can be made")
}

fn spawn(
    name: &str,
    work: impl FnOnce() -> Result<(), FsError> + Send + 'static,
) -> anyhow::Result<JoinHandle<Result<(), FsError>>> {
    thread::Builder::new().name(name.into()).spawn(work).context("no thread can be started")
}

fn joined(thread: JoinHandle<Result<(), FsError>>) -> Result<(), FsError> {
    let panicked = |_| Err(FsError::because(Kind::Io, "a thread of the host", "has panicked"));
    thread.join().unwrap_or_else(panicked)
}
