//! Outputs: whole under their name, or not there.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Gid, Mode, OFlags, SeekFrom, Stat, Uid};
use rustix::io::Errno;

use crate::Kind;
use crate::direct::{self, DirectFile, DirectRefused};
use crate::error::{OutputError, OutputErrorKind, shown};
use crate::name::{Name, not_a_file};
use crate::sequential::SequentialWriter;
use crate::unfinished::{self, Hidden};
use crate::{publish, space};

/// Bytes of two files that are compared at once.
const COMPARED_BYTES: usize = 16 << 10;

/// How an output is made.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Replace an existing file, or overwrite a block device.
    pub force: bool,
    /// Its length in bytes, where that is known: the space is claimed at once,
    /// so that a full disk shows before the work, and the file gets exactly
    /// that length.
    pub len_bytes: Option<u64>,
}

/// Something to write. A file appears under its name in [`Output::commit`];
/// dropping it before leaves nothing. Pipes and devices are written straight.
#[derive(Debug)]
pub struct Output {
    name: String,
    file: Arc<File>,
    kind: Kind,
    len_bytes: Option<u64>,
    /// `None` for what is written straight.
    pending: Option<Pending>,
}

/// A file that has no name yet.
#[derive(Debug)]
struct Pending {
    name: Name,
    force: bool,
    old: Option<Stat>,
    hidden: Option<Hidden>,
}

impl Output {
    /// Opens `path`; `-` is standard output, which is written straight
    /// whatever it is. Symbolic links are followed to the end, so the file a
    /// link stands for is replaced and the link stays; of a file with several
    /// hard links only this name is. Waits for a FIFO's reader.
    pub fn create(path: &Path, options: &Options) -> Result<Self, OutputError> {
        Self::create_by(path, options, true)
    }

    /// As [`Output::create`], and other processes can [`Output::join`] it: a file
    /// has a hidden name until it is committed. What is written straight cannot be shared.
    ///
    /// # Errors
    /// Those of [`Output::create`], and of what is no file.
    pub fn create_shared(path: &Path, options: &Options) -> Result<Self, OutputError> {
        let output = Self::create_by(path, options, false)?;
        match output.shared_path() {
            Some(_) => Ok(output),
            None => {
                let what = "is written straight, by one process only";
                let cure = "name a file";
                Err(OutputError::new(OutputErrorKind::Unwritable, &output.name, what, cure))
            }
        }
    }

    /// Where other processes find it.
    #[must_use]
    pub fn shared_path(&self) -> Option<PathBuf> {
        let Pending { name, hidden, .. } = self.pending.as_ref()?;
        Some(name.dir_path.join(hidden.as_ref()?.name()))
    }

    /// Makes it this process's own: a copy, where others that did not end could still
    /// write to it.
    ///
    /// # Errors
    /// Where there is no room for another, or it cannot be copied.
    pub fn unshare(&mut self) -> Result<(), OutputError> {
        let Some(pending) = &mut self.pending else { return Ok(()) };
        let failed = |error: Errno| OutputError::os(&self.name, "cannot be copied", &error.into());
        let mode = rustix::fs::fstat(&self.file).map_err(failed)?.st_mode;
        let made = publish::create(&pending.name, Mode::from_raw_mode(mode), true);
        let (file, hidden) = made.map_err(failed)?;
        let len = rustix::fs::fstat(&self.file).map_err(failed)?.st_size.cast_unsigned();
        let (mut from, mut to) = (0, 0);
        while from < len {
            let rest = usize::try_from(len - from).unwrap_or(usize::MAX);
            let copied = rustix::fs::copy_file_range(
                &*self.file,
                Some(&mut from),
                &file,
                Some(&mut to),
                rest,
            );
            if copied.map_err(failed)? == 0 {
                // Somebody cut it short: a part of it is not the output.
                let ended = io::ErrorKind::UnexpectedEof.into();
                return Err(OutputError::os(&self.name, "cannot be copied", &ended));
            }
        }
        (self.file, pending.hidden) = (Arc::new(file), hidden);
        Ok(())
    }

    /// Opens what another process made by [`Output::create_shared`] and will
    /// commit, to write to it beside that one.
    ///
    /// # Errors
    /// If it is not there.
    pub fn join(path: &Path) -> Result<Self, OutputError> {
        let own_name = path.file_name().and_then(unfinished::own_name);
        let whole = own_name.map_or(path.to_owned(), |own_name| path.with_file_name(own_name));
        let name = still_hidden(&shown(&whole), path);
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|error| cannot_join(&name, &error))?;
        Ok(Self::straight(name, file, Kind::File))
    }

    /// With `unnamed` false as on a file system without `O_TMPFILE`.
    fn create_by(path: &Path, options: &Options, unnamed: bool) -> Result<Self, OutputError> {
        if path == Path::new("-") || path == Path::new("/dev/stdout") {
            let name = "standard output".to_owned();
            let stdout = io::stdout().as_fd().try_clone_to_owned();
            let file = stdout.map_err(|error| OutputError::write(&name, 0, &error))?;
            return Ok(Self::straight(name, file.into(), Kind::Stream));
        }
        let name = shown(path);
        match path.metadata() {
            Ok(found) if found.is_dir() => Err(not_a_file(&name, "is a directory")),
            Ok(found) if !found.is_file() => Self::open_straight(name, path, &found, options),
            _ => Self::create_file(name, path, options, unnamed),
        }
    }

    fn straight(name: String, file: File, kind: Kind) -> Self {
        Self { name, file: Arc::new(file), kind, len_bytes: None, pending: None }
    }

    fn open_straight(
        name: String,
        path: &Path,
        found: &Metadata,
        options: &Options,
    ) -> Result<Self, OutputError> {
        let block_device = found.file_type().is_block_device();
        if block_device && !options.force {
            let what = "is a block device, whose content would be lost";
            return Err(OutputError::new(OutputErrorKind::Exists, &name, what, "give --force"));
        }
        // Exclusive means for a block device: not while it is mounted.
        let flags = OFlags::NOCTTY | if block_device { OFlags::EXCL } else { OFlags::empty() };
        let flags = flags.bits() as i32;
        let opened = File::options().write(true).custom_flags(flags).open(path);
        let file = opened.map_err(|error| cannot_open(&name, &error))?;
        // It may have been exchanged for a file meanwhile, which is not overwritten.
        if file.metadata().is_ok_and(|opened| opened.is_file()) {
            return Err(exists(&name));
        }
        if !block_device {
            return Ok(Self::straight(name, file, Kind::Stream));
        }
        let size = rustix::fs::seek(&file, SeekFrom::End(0))
            .and_then(|size_bytes| rustix::fs::seek(&file, SeekFrom::Start(0)).map(|_| size_bytes))
            .map_err(|error| OutputError::write(&name, 0, &error.into()))?;
        if let Some(len) = options.len_bytes.filter(|len_bytes| *len_bytes > size) {
            let what = format!("has {size} bytes, {len} are needed");
            let cure = "write to a larger device";
            return Err(OutputError::new(OutputErrorKind::NoSpace, &name, what, cure));
        }
        Ok(Self::straight(name, file, Kind::BlockDevice))
    }

    fn create_file(
        shown_as: String,
        path: &Path,
        options: &Options,
        unnamed: bool,
    ) -> Result<Self, OutputError> {
        let failed = |error: Errno| OutputError::os(&shown_as, "cannot be written", &error.into());
        let name = Name::resolve(&shown_as, path)?;
        let old = name.stat().map_err(failed)?;
        if let Some(old) = &old {
            if !options.force {
                return Err(exists(&shown_as));
            }
            name.check_replaceable(&shown_as, old)?;
        }
        // Who may read the old one is settled at the end; till then, nobody else.
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let (file, hidden) =
            publish::create(&name, Mode::from_raw_mode(mode), unnamed).map_err(|error| {
                let doing = format!("no file can be made in {}", shown(&name.dir_path));
                OutputError::os(&shown_as, &doing, &error.into())
            })?;
        let len_bytes = options.len_bytes;
        space::reserve(&shown_as, &file, &name.dir_path, len_bytes.unwrap_or(0))?;
        let pending = Some(Pending { name, force: options.force, old, hidden });
        Ok(Self { name: shown_as, file: Arc::new(file), kind: Kind::File, len_bytes, pending })
    }

    /// The name for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is; standard output is a stream even when it leads to a file.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The descriptor, through the page cache. A file can also be read back.
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// A second descriptor that bypasses the page cache. A last write may
    /// reach past a file's length; [`Output::commit`] cuts it off if
    /// [`Options::len_bytes`] was given.
    pub fn open_direct(&self) -> Result<DirectFile, DirectRefused> {
        direct::open(&self.name, &self.file, self.kind, OFlags::RDWR)
    }

    /// Writes it from start to end; one writer at a time.
    #[must_use]
    pub fn sequential(&self) -> SequentialWriter {
        SequentialWriter::new(&self.name, Arc::clone(&self.file))
    }

    /// Whether the file `path` holds what was written to this one from start to end.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub(crate) fn is_same_as(&self, path: &Path) -> Result<bool, OutputError> {
        let failed = |error: io::Error| OutputError::os(&self.name, "cannot be compared", &error);
        let (len, other) = (self.file.metadata(), File::open(path).map_err(failed)?);
        let len = len.map_err(failed)?.len();
        if other.metadata().map_err(failed)?.len() != len {
            return Ok(false);
        }
        let (mut ours, mut theirs) = ([0; COMPARED_BYTES], [0; COMPARED_BYTES]);
        let mut at = 0;
        while at < len {
            let bytes = COMPARED_BYTES.min((len - at) as usize);
            self.file.read_exact_at(&mut ours[..bytes], at).map_err(failed)?;
            other.read_exact_at(&mut theirs[..bytes], at).map_err(failed)?;
            if ours[..bytes] != theirs[..bytes] {
                return Ok(false);
            }
            at += bytes as u64;
        }
        Ok(true)
    }

    /// Ends the output: a file gets its exact length, its mode (that of the
    /// file it replaces, with its owner where allowed; else 0666 less the
    /// umask) and its name, which nothing may have taken meanwhile unless
    /// `force` was given. With `sync` all of it is on the disk at return;
    /// without, a power loss may take it. Nobody may write to it any more.
    pub fn commit(self, sync: bool) -> Result<(), OutputError> {
        let Self { name: shown_as, file, kind, len_bytes, pending } = self;
        let failed = |doing: &'static str| {
            let shown_as = shown_as.clone();
            move |error: Errno| OutputError::os(&shown_as, doing, &error.into())
        };
        if let (Some(len_bytes), Some(_)) = (len_bytes, &pending) {
            rustix::fs::ftruncate(&file, len_bytes).map_err(failed("cannot be cut to length"))?;
        }
        if let Some(old) = pending.as_ref().and_then(|pending| pending.old.as_ref()) {
            take_rights(&file, old).map_err(failed("cannot be given the old file's mode"))?;
        }
        if sync && kind != Kind::Stream {
            rustix::io::retry_on_intr(|| rustix::fs::fsync(&file))
                .map_err(failed("cannot be brought to the disk"))?;
        }
        let Some(Pending { name, force, hidden, .. }) = pending else {
            return Ok(());
        };
        publish::publish(&file, &name, force, hidden).map_err(|error| match error {
            Errno::EXIST => exists(&shown_as),
            Errno::ISDIR => not_a_file(&shown_as, "has become a directory"),
            other => failed("cannot be given its name")(other),
        })?;
        if sync {
            publish::sync_dir(&file, &name.dir)
                .map_err(failed("is written, but its name may not survive a power loss"))?;
        }
        Ok(())
    }
}

/// Gives `file` the owner, where that is allowed, and the mode of `old`.
fn take_rights(file: &File, old: &Stat) -> rustix::io::Result<()> {
    let new = rustix::fs::fstat(file)?;
    let (uid, gid) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
    let same = (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid);
    let kept = same || rustix::fs::fchown(file, Some(uid), Some(gid)).is_ok();
    if !kept {
        // A member of the group may at least give it to the group.
        let _ = rustix::fs::fchown(file, None, Some(gid));
    }
    let mut mode = Mode::from_raw_mode(old.st_mode);
    if !kept {
        // Set-user-id is meant for the old owner alone.
        mode -= Mode::SUID | Mode::SGID;
        if rustix::fs::fstat(file)?.st_gid != old.st_gid {
            // So are rights of the old group: ours gets what everybody had.
            let others = old.st_mode & 0o007;
            mode = Mode::from_raw_mode(mode.as_raw_mode() & !0o070 | others << 3);
        }
    }
    rustix::fs::fchmod(file, mode)
}

fn exists(shown_as: &str) -> OutputError {
    let cure = "give --force to replace it, or another name";
    OutputError::new(OutputErrorKind::Exists, shown_as, "exists already", cure)
}

/// What is called `name` while it lies at a hidden `path`.
fn still_hidden(name: &str, path: &Path) -> String {
    let folder = path.parent().unwrap_or(path);
    format!("{name} (hidden in {} until it is whole)", shown(folder))
}

/// Why what another process made cannot be opened.
fn cannot_join(name: &str, error: &io::Error) -> OutputError {
    if error.kind() == io::ErrorKind::NotFound {
        let cure = "write to a folder that all processes see under the same name";
        let what = format!("cannot be opened: {error}");
        return OutputError::new(OutputErrorKind::Unwritable, name, what, cure);
    }
    cannot_open(name, error)
}

fn cannot_open(name: &str, error: &io::Error) -> OutputError {
    match Errno::from_io_error(error) {
        Some(Errno::BUSY) => {
            let what = "is in use, perhaps mounted";
            OutputError::new(OutputErrorKind::Unwritable, name, what, "unmount it first")
        }
        Some(Errno::NXIO) => not_a_file(name, "is a socket, or its device is gone"),
        _ => OutputError::os(name, "cannot be opened", error),
    }
}

mod partial;
mod shared_dir;
#[cfg(test)]
mod tests;

pub use partial::Partial;
pub use shared_dir::SharedDir;
