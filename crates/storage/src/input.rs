//! Inputs: what a path names, and whether it is still the same.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};

use crate::direct::{self, DirectFile, DirectRefused};
use crate::error::{InputError, InputErrorKind, shown};
use crate::sequential::SequentialReader;
use crate::{Kind, resident};

/// Names looked through for one like a missing file's.
const SIMILAR_NAMES_MAX: usize = 4096;

/// The file system of /sys, as `statfs` tells it.
const SYSFS_MAGIC: i64 = 0x6265_6572;

/// The device of the last file that was found outside /sys: not asked for each
/// of many files again.
static NOT_SYSFS: AtomicU64 = AtomicU64::new(u64::MAX);

/// Something to read.
#[derive(Debug)]
pub struct Input {
    name: String,
    /// `None` for standard input, which no name can be replaced under.
    path: Option<PathBuf>,
    file: Arc<File>,
    /// Where it begins in that.
    start_bytes: u64,
    kind: Kind,
    len_bytes: Option<u64>,
    opened: Metadata,
    /// Somebody puts bytes into it: [`Received`](crate::Received).
    received: bool,
}

impl Input {
    /// Opens `path`; `-` is standard input. Waits, as any program does, for a
    /// FIFO's writer.
    pub fn open(path: &Path) -> Result<Self, InputError> {
        if path == Path::new("-") || path == Path::new("/dev/stdin") {
            let name = "standard input".to_owned();
            let stdin = io::stdin().as_fd().try_clone_to_owned();
            let file = stdin.map_err(|error| InputError::read(&name, 0, &error))?;
            return Self::of(name, None, file.into());
        }
        let name = shown(path);
        // A terminal that is only read from must not become the controlling one.
        let flags = OFlags::NOCTTY.bits() as i32;
        let opened = File::options().read(true).custom_flags(flags).open(path);
        let file = opened.map_err(|error| cannot_open(&name, path, &error))?;
        Self::of(name, Some(path.to_owned()), file)
    }

    /// What comes out of `file`, a pipe or a socket, under a name for messages.
    ///
    /// # Errors
    /// What `file` is cannot be found out.
    pub fn stream(name: &str, file: File) -> Result<Self, InputError> {
        Self::of(name.to_owned(), None, file)
    }

    pub(crate) fn received(name: &str, file: Arc<File>) -> Result<Self, InputError> {
        let opened = file.metadata().map_err(|error| InputError::read(name, 0, &error))?;
        let (name, len_bytes, start_bytes) = (name.to_owned(), Some(opened.len()), 0);
        let (path, kind, received) = (None, Kind::File, true);
        Ok(Self { name, path, file, start_bytes, kind, len_bytes, opened, received })
    }

    /// Bytes `range` of one that is received, as an input of its own under `name`: several that
    /// are received together lie in it one after the other. It is read by offset.
    #[must_use]
    pub fn part(&self, name: &str, range: Range<u64>) -> Self {
        let len_bytes = self.len_bytes.unwrap_or(0);
        let [start, end] = [range.start, range.end].map(|at| at.min(len_bytes));
        Self {
            name: name.to_owned(),
            path: None,
            file: Arc::clone(&self.file),
            start_bytes: self.start_bytes + start,
            kind: self.kind,
            len_bytes: Some(end.saturating_sub(start)),
            opened: self.opened.clone(),
            received: self.received,
        }
    }

    fn of(name: String, path: Option<PathBuf>, file: File) -> Result<Self, InputError> {
        let failed = |error: io::Error| InputError::read(&name, 0, &error);
        let opened = file.metadata().map_err(failed)?;
        if opened.is_dir() {
            return Err(not_a_file(&name, "is a directory"));
        }
        let (kind, len_bytes) = if opened.file_type().is_block_device() {
            let end = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| failed(e.into()))?;
            rustix::fs::seek(&file, SeekFrom::Start(0)).map_err(|e| failed(e.into()))?;
            (Kind::BlockDevice, Some(end))
        } else if opened.is_file()
            && is_positional(&file, &opened, path.is_none()).map_err(failed)?
        {
            (Kind::File, Some(opened.len()))
        } else {
            (Kind::Stream, None)
        };
        let (file, start_bytes, received) = (Arc::new(file), 0, false);
        Ok(Self { name, path, file, start_bytes, kind, len_bytes, opened, received })
    }

    /// The name for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its length in bytes when it was opened; `None` for a stream.
    #[must_use]
    pub fn len_bytes(&self) -> Option<u64> {
        self.len_bytes
    }

    /// The descriptor, through the page cache.
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Where it begins in the descriptor's file, in bytes: 0, but for [`Input::part`].
    #[must_use]
    pub fn start_bytes(&self) -> u64 {
        self.start_bytes
    }

    /// Device and inode number: equal for two names of one file.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        (self.opened.dev(), self.opened.ino())
    }

    /// When its content last changed before it was opened: seconds and
    /// nanoseconds; zeros for what is no file.
    #[must_use]
    pub fn modified(&self) -> (i64, i64) {
        match self.kind {
            Kind::File => (self.opened.mtime(), self.opened.mtime_nsec()),
            Kind::BlockDevice | Kind::Stream => (0, 0),
        }
    }

    /// A second descriptor that bypasses the page cache, tried with a read.
    pub fn open_direct(&self) -> Result<DirectFile, DirectRefused> {
        direct::open(&self.name, &self.file, self.kind, OFlags::RDONLY)
    }

    /// The share of its pages that are cached, 0 to 1, from a sample of 64;
    /// `None` for streams and where the kernel does not tell.
    #[must_use]
    pub fn resident_share(&self) -> Option<f64> {
        resident::share(&self.file, self.len_bytes?)
    }

    /// Reads some bytes from `offset` on, through the page cache: none only at the end.
    ///
    /// # Errors
    /// Those of the system.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // What is past the end may be another input's.
        let left = self.len_bytes.filter(|_| self.received);
        let left = left.map_or(u64::MAX, |len| len.saturating_sub(offset)).min(buf.len() as u64);
        let buf = buf.get_mut(..left as usize).unwrap_or_default();
        if buf.is_empty() {
            return Ok(0);
        }
        self.file.read_at(buf, self.start_bytes.saturating_add(offset))
    }

    /// Fills `buf` from `offset`, through the page cache.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), InputError> {
        let mut filled = 0;
        while filled < buf.len() {
            let at = offset + filled as u64;
            let failed = |error: &io::Error| Err(InputError::read(&self.name, at, error));
            match self.read_at(&mut buf[filled..], at) {
                Ok(0) => return failed(&ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return failed(&error),
            }
        }
        Ok(())
    }

    /// Whether a read of its start would wait for a disk.
    #[must_use]
    pub fn is_cold(&self) -> bool {
        let mut byte = [0];
        let mut bufs = [io::IoSliceMut::new(&mut byte)];
        let read = rustix::io::preadv2(&self.file, &mut bufs, 0, ReadWriteFlags::NOWAIT);
        self.kind == Kind::File && read == Err(Errno::AGAIN)
    }

    /// Has it read into the page cache, without waiting for that.
    pub fn read_ahead(&self) {
        // What cannot be done in advance is done when it is read.
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::WillNeed);
    }

    /// Reads it from start to end; one reader at a time.
    #[must_use]
    pub fn sequential(&self) -> SequentialReader {
        SequentialReader::new(&self.name, Arc::clone(&self.file))
    }

    /// What happened to a file since it was opened: `None` if it still has its
    /// size and time of change and its name still leads to it. For
    /// [`InputError::changed`]. Ask before the output is committed, which may
    /// take the input's name.
    pub fn changed(&self) -> Result<Option<String>, InputError> {
        if self.kind != Kind::File || self.received {
            return Ok(None);
        }
        let named = self.path.as_ref().and_then(|path| path.metadata().ok());
        let named = named.map(|named| ((named.dev(), named.ino()) == self.identity(), named));
        let written = match &named {
            // One look at the name tells all.
            Some((true, now)) => self.differs(now.len(), modified(now)),
            _ => self.written()?,
        };
        // A file that was removed could still be read to its end.
        let replaced = matches!(named, Some((false, _)));
        let replaced =
            replaced.then(|| "was replaced by another file while it was read".to_owned());
        Ok(written.or(replaced))
    }

    /// As [`Input::changed`], wherever its name leads to now: what was read of it is
    /// still in it. Takes less than half the time.
    pub fn written(&self) -> Result<Option<String>, InputError> {
        if self.kind != Kind::File || self.received {
            return Ok(None);
        }
        let failed = |error: Errno| InputError::read(&self.name, 0, &error.into());
        // The standard library asks for more, which takes longer.
        let now = rustix::fs::fstat(&self.file).map_err(failed)?;
        Ok(self.differs(now.st_size as u64, (now.st_mtime, now.st_mtime_nsec as i64)))
    }

    /// In what it is another one than it was: its length, or when it was written last.
    fn differs(&self, now_bytes: u64, now_modified: (i64, i64)) -> Option<String> {
        let was_bytes = self.opened.len();
        if was_bytes != now_bytes {
            return Some(format!("went from {was_bytes} to {now_bytes} bytes while it was read"));
        }
        let is_same = now_modified == modified(&self.opened);
        (!is_same).then(|| "was written to while it was read".to_owned())
    }
}

fn modified(stat: &Metadata) -> (i64, i64) {
    (stat.mtime(), stat.mtime_nsec())
}

/// Whether a regular file can be read by offset from its start: not standard
/// input that was read from before, and not a file of /proc or /sys, which says
/// it has no bytes, or a page of them, whatever it gives.
fn is_positional(file: &File, opened: &Metadata, inherited: bool) -> io::Result<bool> {
    if inherited && rustix::fs::tell(file)? != 0 {
        return Ok(false);
    }
    if opened.len() == 0 {
        return Ok(file.read_at(&mut [0], 0)? == 0);
    }
    if NOT_SYSFS.load(Ordering::Relaxed) == opened.dev() {
        return Ok(true);
    }
    let is_sysfs = rustix::fs::fstatfs(file)?.f_type == SYSFS_MAGIC;
    if !is_sysfs {
        NOT_SYSFS.store(opened.dev(), Ordering::Relaxed);
    }
    Ok(!is_sysfs)
}

fn not_a_file(name: &str, what: &str) -> InputError {
    InputError::new(InputErrorKind::NotAFile, name, what, "name a file, a device or a pipe")
}

pub(crate) fn cannot_open(name: &str, path: &Path, error: &io::Error) -> InputError {
    match error.kind() {
        ErrorKind::NotFound => missing(name, path),
        ErrorKind::PermissionDenied => {
            let cure = "ask its owner for the right to read it (`ls -l` shows who has it)";
            InputError::new(InputErrorKind::Denied, name, "permission denied", cure)
        }
        // What opening a socket answers.
        _ if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
            not_a_file(name, "is a socket, or its device is gone")
        }
        _ => {
            let what = format!("cannot be opened: {error}");
            InputError::new(InputErrorKind::Read, name, what, "check the name")
        }
    }
}

fn missing(name: &str, path: &Path) -> InputError {
    let (what, cure) = if let Ok(target) = path.read_link() {
        let what = format!("is a link to {}, which does not exist", shown(&target));
        (what, "repair the link".to_owned())
    } else if let Some(similar) = similar(path) {
        ("no such file".to_owned(), format!("did you mean {}?", shown(&similar)))
    } else {
        ("no such file".to_owned(), "check the name".to_owned())
    };
    InputError::new(InputErrorKind::Missing, name, what, cure)
}

/// The file in the same folder with the name most like `path`'s.
fn similar(path: &Path) -> Option<PathBuf> {
    let wanted = path.file_name()?.to_str()?;
    let parent = path.parent()?;
    let folder = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let typos_max = wanted.chars().count().div_ceil(4).min(3);
    let names = folder.read_dir().ok()?.take(SIMILAR_NAMES_MAX).flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .map(|name| (typos(wanted, &name), name))
        .filter(|(typos, _)| *typos <= typos_max)
        .min()
        .map(|(_, name)| parent.join(name))
}

fn typos(wanted: &str, name: &str) -> usize {
    strsim::osa_distance(&wanted.to_lowercase(), &name.to_lowercase())
}

#[cfg(test)]
mod tests;
