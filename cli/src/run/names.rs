//! Files of a run that are a file server's: `#p/pipe`, `#n/HOST/file`.
//!
//! `#U` and, to read, `#R` are the system's files, so their names are paths. Others are
//! streamed: a thread moves bytes between the file's calls and a pipe that the run reads or
//! writes. What it ran into is told before a result is, or an output keeps its name.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Context as _;
use cellway::fs::{self, Change, Files, FsError, Kind, OpenMode, PipeWatch, wait};
use cellway::storage::{self, Input, InputError};
use clap::builder::{PathBufValueParser, TypedValueParser};

use super::window::Window;
use crate::exit::Usage;
use crate::fs::told;

/// Moved at once.
const MOVED_BYTES: usize = 1 << 20;

/// A path of the command line: the names of `#U` are those of the system.
pub(super) fn any() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| parse(path.into_os_string()))
}

/// A path of what is locked, renamed and brought to the disk, as only the system's files are.
pub(super) fn local() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| parse_local(path.into_os_string()))
}

fn parse(text: OsString) -> Result<PathBuf, String> {
    const PLAIN: &str = "a file whose name begins with # is ./#..";
    let bytes = text.as_bytes();
    let Some(server) = ["#U", "#R"].into_iter().find(|name| bytes.starts_with(name.as_bytes()))
    else {
        return match (bytes, text.to_str()) {
            ([b'#', ..], None) => Err(format!("names of servers are text, UTF-8; {PLAIN}")),
            _ => Ok(text.into()),
        };
    };
    match bytes.get(server.len()..).unwrap_or_default() {
        [] => Err(format!("{server} is the root of the system's files; name one: {server}/PATH")),
        [b'/', ..] if server == "#R" => Ok(text.into()),
        path @ [b'/', ..] => Ok(OsStr::from_bytes(path).into()),
        _ => Err(format!("after {server} comes a /, as in {server}/home/ann/data; {PLAIN}")),
    }
}

fn parse_local(text: OsString) -> Result<PathBuf, String> {
    let path = parse(text)?;
    if is_named(&path) {
        return Err("file servers promise no lock, nor that what is written survives a power \
                    loss; give a path of this machine (#U/PATH is PATH), or ./#.. for a name \
                    that begins with #"
            .into());
    }
    Ok(path)
}

/// Whether a path is the name of a server's file.
fn is_named(path: &Path) -> bool {
    path.as_os_str().as_bytes().starts_with(b"#")
}

fn name(path: &Path) -> Option<&str> {
    path.to_str().filter(|_| is_named(path))
}

/// Whether one of two would take the place of the other.
pub(super) fn is_same(written: &Path, kept: &Path) -> bool {
    match is_named(written) || is_named(kept) {
        true => written == kept,
        false => storage::same_file(written, kept),
    }
}

/// What is read by a path: nothing is changed by that, so those of `#R` are the system's.
pub(super) fn read_only(path: &Path) -> &Path {
    match path.as_os_str().as_bytes().strip_prefix(b"#R") {
        Some(path @ [b'/', ..]) => Path::new(OsStr::from_bytes(path)),
        _ => path,
    }
}

/// The files of a run, and what it is like.
pub(super) struct Given<'a> {
    pub(super) inputs: &'a [PathBuf],
    pub(super) key: Option<&'a Path>,
    pub(super) output: Option<&'a Path>,
    /// Statistics and trace.
    pub(super) beside: [Option<&'a Path>; 2],
    pub(super) is_many: bool,
    pub(super) has_journal: bool,
    pub(super) is_served: bool,
}

impl Given<'_> {
    /// Whether such a run can be.
    pub(super) fn check(&self) -> Result<(), Usage> {
        let inputs = self.inputs.iter().map(PathBuf::as_path);
        if let Some(name) = inputs.chain(self.output).find_map(name) {
            let what = match (self.is_many, self.has_journal) {
                (true, _) => Some(
                    "comes by a server, and several INPUTs, or those for --out-dir, are paths \
                    that are opened in their turn; give it alone",
                ),
                (_, true) => Some("cannot be gone on with; a run with a journal takes files"),
                _ => None,
            };
            if let Some(what) = what {
                return Err(Usage(format!("{name} {what}")));
            }
        }
        self.check_servers()
    }

    fn check_servers(&self) -> Result<(), Usage> {
        let read = self.inputs.iter().map(PathBuf::as_path).chain(self.key);
        let written = || self.output.into_iter().chain(self.beside.into_iter().flatten());
        let is_gone =
            |name: &&str| ["#R", "#r"].iter().any(|server| name.split('/').next() == Some(server));
        if let Some(name) = written().filter_map(name).find(is_gone) {
            let what =
                "would be gone with the run; write to a file, a pipe (#p) or another machine (#n)";
            return Err(Usage(format!("{name} {what}")));
        }
        let mut pipes: Vec<_> = read.chain(written()).filter_map(pipe_name).collect();
        if let (Some(name), false) = (pipes.first(), self.is_served) {
            let what =
                "is a pipe of this run, and nobody is at its other end; give --serve unix:PATH";
            return Err(Usage(format!("#p/{name} {what}, and use it by `cellway fs`")));
        }
        pipes.sort_unstable();
        let twice = pipes.windows(2).find(|two| two.first() == two.last());
        if let Some(name) = twice.and_then(<[_]>::first) {
            let what = "is asked for twice, and a pipe has one use; name another";
            return Err(Usage(format!("#p/{name} {what}")));
        }
        Ok(())
    }
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

/// A server's file that is read; `None` if `path` is no server's name.
fn open<'p>(files: &Files, path: &'p Path) -> anyhow::Result<Option<(&'p str, fs::File)>> {
    let Some(name) = name(path) else { return Ok(None) };
    let opened = match pipe_name(path) {
        // Somebody outside may have made it already.
        Some(_) => made_or_there(files, name, OpenMode::READ),
        None => wait(files.open(name, OpenMode::READ)),
    };
    Ok(Some((name, opened.map_err(|error| told(&error))?)))
}

/// What a file begins with, all of it if that is no more than `max` bytes, and its name.
pub(super) fn read(files: &Files, path: &Path, max: usize) -> anyhow::Result<(String, Vec<u8>)> {
    let path = read_only(path);
    let Some((name, mut file)) = open(files, path)? else {
        let (input, mut content) = (Input::open(path)?, Vec::new());
        let read = input.file().as_ref().take(max as u64).read_to_end(&mut content);
        read.map_err(|error| InputError::read(input.name(), 0, &error))?;
        return Ok((input.name().to_owned(), content));
    };
    let (mut content, mut len) = (vec![0; max], 0);
    while let Some(rest @ [_, ..]) = content.get_mut(len..) {
        match wait(file.read(rest)).map_err(|error| told(&error))? {
            0 => break,
            read => len += read,
        }
    }
    content.truncate(len);
    Ok((name.to_owned(), content))
}

impl Fed {
    pub(super) fn open(files: &Files, path: &Path) -> anyhow::Result<Self> {
        let Some((name, file)) = open(files, path)? else {
            return Ok(Self { input: Input::open(path)?, feed: None });
        };
        let (reader, writer) = pipe()?;
        let input = Input::stream(name, File::from(OwnedFd::from(reader)))?;
        let feed = spawn("feed", move || feed(file, writer))?;
        Ok(Self { input, feed: Some(feed) })
    }

    /// What the feed ran into, of a run that failed.
    pub(super) fn failed(self) -> Option<FsError> {
        let ended = self.feed.filter(JoinHandle::is_finished);
        ended.and_then(|thread| joined(thread).err())
    }

    /// The input was read to its end: whether that was the end of the file, too.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.feed.map_or(Ok(()), |thread| joined(thread).map_err(|error| told(&error)))
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
    /// Of a pipe of this run.
    pipe: Option<PipeWatch>,
}

impl Drained {
    /// `None` if `path` is no server's name.
    pub(super) fn create(
        window: &Window,
        path: &Path,
        force: bool,
        sync: bool,
    ) -> anyhow::Result<Option<Self>> {
        let Some(name) = name(path) else { return Ok(None) };
        let (file, part) = create(&window.files, name, force)?;
        let watch = pipe_name(path).map(|name| window.pipes.watch(name)).transpose()?;
        let (reader, writer) = pipe()?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
        let is_whole = Arc::new(AtomicBool::new(false));
        let whole = is_whole.clone();
        let drain = spawn("drain", move || {
            let drained = drain(file, reader);
            match part {
                Some(part) if drained.is_ok() && whole.load(Ordering::SeqCst) => part.keep(sync),
                Some(part) => part.discard(),
                None => Ok(()),
            }
            .and(drained)
        })?;
        Ok(Some(Self { path, writer: Some(writer), is_whole, drain: Some(drain), pipe: watch }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// All is written, and no output open any more: whoever reads it finds its end.
    pub(super) fn close(&mut self) {
        self.is_whole.store(true, Ordering::SeqCst);
        self.writer = None;
    }

    /// Closes it, and waits until it is where it was to be.
    pub(super) fn commit(mut self) -> anyhow::Result<()> {
        self.close();
        self.end().map_err(|error| told(&error))?;
        // Who reads a pipe of this run needs it until the end.
        Ok(self.pipe.take().map_or(Ok(()), |pipe| wait(pipe.finished()))?)
    }

    /// The run failed, and its output is not open any more: what the file's
    /// server said, if that was why.
    pub(super) fn abandon(mut self) -> Option<FsError> {
        self.end().err()
    }

    fn end(&mut self) -> Result<(), FsError> {
        if let (Some(pipe), false) = (&self.pipe, self.is_whole.load(Ordering::SeqCst)) {
            pipe.break_off();
        }
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
    Ok((made_or_there(files, name, OpenMode::WRITE).map_err(|error| told(&error))?, None))
}

/// Makes a file, or opens one that is there.
fn made_or_there(files: &Files, name: &str, mode: OpenMode) -> Result<fs::File, FsError> {
    wait(files.create_new(name, 0o600, mode)).or_else(|refused| {
        wait(files.open(name, mode)).map_err(|error| match error.kind() {
            Kind::NotFound => refused,
            _ => error,
        })
    })
}

/// A file of another machine that is written under a hidden name.
struct Part {
    files: Files,
    hidden: String,
    name: String,
    last: String,
    /// What the old file is called meanwhile.
    old: String,
    force: bool,
}

impl Part {
    fn create(files: &Files, name: &str, force: bool) -> anyhow::Result<(fs::File, Self)> {
        let exists = wait(files.stat(name)).is_ok();
        if exists && !force {
            anyhow::bail!("{name} exists; give --force to replace it");
        }
        let (above, last) = name.rsplit_once('/').unwrap_or(("", name));
        let hide = |what: &str| {
            let own = format!("{last}.{what}{}", std::process::id());
            storage::hidden_name(own.as_ref()).to_string_lossy().into_owned()
        };
        let (hidden, old) = (format!("{above}/{}", hide("")), hide("old."));
        let file = wait(files.create_new(&hidden, 0o644, OpenMode::WRITE))
            .map_err(|error| told(&error.named(name)))?;
        let (name, last) = (name.to_owned(), last.to_owned());
        Ok((file, Self { files: files.clone(), hidden, name, last, old, force }))
    }

    /// It is whole, and on the disk with `sync`: the file of that name gives way, if it may.
    /// Until the new one has the name the old one is there, at last under a hidden one.
    fn keep(self, sync: bool) -> Result<(), FsError> {
        let Self { files, hidden, name, last, old, force } = &self;
        let rename = |from: &str, to: &str| wait(files.rename(from, to));
        // A wstat that changes nothing asks for that (Plan 9 manual, section 5, `stat`).
        let synced = if sync { wait(files.wstat(hidden, &Change::default())) } else { Ok(()) };
        let moved = match (&synced, force) {
            (Ok(()), true) => rename(name, old),
            _ => Err(FsError::new(Kind::NotFound, name)),
        };
        let aside = self.beside(old);
        let named = synced.and_then(|()| match &moved {
            Err(error) if error.kind() != Kind::NotFound => Err(error.clone()),
            _ => rename(hidden, last),
        });
        match (named, moved) {
            (Ok(()), Ok(())) => wait(files.remove(&aside)),
            (Ok(()), Err(_)) => Ok(()),
            (Err(error), moved) => {
                // The old one first; a part that stays there is the lesser evil.
                let _ = moved.and_then(|()| rename(&aside, last));
                let _ = wait(files.remove(hidden));
                Err(error)
            }
        }
    }

    fn beside(&self, last: &str) -> String {
        let (above, _) = self.name.rsplit_once('/').unwrap_or(("", &self.name));
        format!("{above}/{last}")
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
