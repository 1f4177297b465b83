//! Unfinished outputs that outlive their run, so that another run goes on.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{Options, Output, Pending, exists};
use crate::error::{OutputError, OutputErrorKind, shown};
use crate::name::{Name, not_a_file};
use crate::unfinished::{Hidden, hidden_name, is_hidden_name};
use crate::{Kind, publish, space};

/// A file output under a hidden name beside its final one. It stays when its
/// [`Output`] is dropped, or the process is killed, and can be opened again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    path: PathBuf,
    name: OsString,
}

impl Partial {
    /// Chooses a hidden name for the file `path`; nothing is made yet.
    ///
    /// # Errors
    /// If there is one and `force` is not given, or `path` can be no file: what
    /// is written straight cannot be gone on with.
    pub fn choose(path: &Path, force: bool) -> Result<Self, OutputError> {
        let shown_as = shown(path);
        let is_stdout = path == Path::new("-") || path == Path::new("/dev/stdout");
        match path.metadata() {
            Ok(found) if found.is_dir() => return Err(not_a_file(&shown_as, "is a directory")),
            Ok(found) if found.is_file() && !is_stdout && !force => return Err(exists(&shown_as)),
            Ok(found) if found.is_file() && !is_stdout => {}
            Err(_) if !is_stdout => {}
            _ => {
                let what = "is written straight, so a run that writes it cannot be resumed";
                let cure = "write to a file, or run without a journal";
                return Err(OutputError::new(OutputErrorKind::Unwritable, &shown_as, what, cure));
            }
        }
        let name = hidden_name(&Name::resolve(&shown_as, path)?.name);
        let path = std::path::absolute(path)
            .map_err(|error| OutputError::os(&shown_as, "cannot be written", &error))?;
        Ok(Self { path, name })
    }

    /// One that was chosen in an earlier run.
    #[must_use]
    pub fn named(path: &Path, name: &OsStr) -> Self {
        Self { path: path.to_owned(), name: name.to_owned() }
    }

    /// The final name, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The hidden name, in the same folder.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Makes the file, as [`Output::create`] does, and its name survive a power
    /// loss. An older one of that hidden name, of which nothing is known, goes.
    ///
    /// # Errors
    /// Those of [`Output::create`]; nothing is left then.
    pub fn create(&self, options: &Options) -> Result<Output, OutputError> {
        let (shown_as, place, old) = self.place(options)?;
        let failed = |error: Errno| {
            let doing = format!("no file can be made in {}", shown(&place.dir_path));
            OutputError::os(&shown_as, &doing, &error.into())
        };
        let mode = Mode::from_raw_mode(if old.is_some() { 0o600 } else { 0o666 });
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
        self.unlink(&place);
        let file = rustix::fs::openat(&*place.dir, &self.name, flags, mode).map_err(failed)?;
        let file = File::from(file);
        let made =
            space::reserve(&shown_as, &file, &place.dir_path, options.len_bytes.unwrap_or(0))
                .and_then(|()| publish::sync_dir(&file, &place.dir).map_err(failed));
        made.inspect_err(|_| self.unlink(&place))?;
        Ok(self.output(shown_as, place, file, old, options))
    }

    /// Opens the file again, of which `len_bytes` bytes were written; where the
    /// length is not known beforehand, what comes after them is cut off. `None`
    /// if it was committed meanwhile: the run is complete.
    ///
    /// # Errors
    /// Those of [`Output::create`], and if it is missing, another file than
    /// that of device and inode `identity`, or shorter.
    pub fn reopen(
        &self,
        options: &Options,
        identity: (u64, u64),
        len_bytes: u64,
    ) -> Result<Option<Output>, OutputError> {
        let shown_as = shown(&self.path);
        let failed =
            |error: Errno| OutputError::os(&shown_as, "cannot be gone on with", &error.into());
        let place = Name::resolve(&shown_as, &self.path)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let lost = |what: &str| {
            let what = format!("its unfinished file {} {what}", shown(Path::new(&self.name)));
            let cure = "start anew with --journal and --force";
            Err(OutputError::new(OutputErrorKind::Lost, &shown_as, what, cure))
        };
        let opened = match is_hidden_name(&self.name) {
            true => rustix::fs::openat(&*place.dir, &self.name, flags, Mode::empty()),
            false => return lost("has a name that was never given"),
        };
        let file = match opened {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => {
                let found = place.stat().map_err(failed)?;
                if found.is_some_and(|found| (found.st_dev, found.st_ino) == identity) {
                    return Ok(None);
                }
                return lost("is missing");
            }
            Err(error) => return Err(failed(error)),
        };
        let found = rustix::fs::fstat(&file).map_err(failed)?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if !is_file || (found.st_dev, found.st_ino) != identity {
            return lost("is another file");
        }
        if (found.st_size as u64) < len_bytes {
            return lost("is shorter than it was");
        }
        // Asked only now: a complete run has the name itself.
        let (shown_as, place, old) = self.place(options)?;
        if options.len_bytes.is_none() {
            rustix::fs::ftruncate(&file, len_bytes).map_err(failed)?;
        }
        Ok(Some(self.output(shown_as.clone(), place, file, old, options)))
    }

    /// Removes the file if it is that of device and inode `identity`; one of
    /// which nothing is known is nobody else's, for its name is random.
    pub fn discard(&self, identity: Option<(u64, u64)>) {
        let Ok(place) = Name::resolve("", &self.path) else { return };
        let found = rustix::fs::statat(&*place.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        let is_ours =
            |found: Stat| identity.is_none_or(|identity| (found.st_dev, found.st_ino) == identity);
        if found.is_ok_and(is_ours) {
            self.unlink(&place);
        }
    }

    fn unlink(&self, place: &Name) {
        if is_hidden_name(&self.name) {
            // If it is not there, all the better.
            let _ = rustix::fs::unlinkat(&*place.dir, &self.name, AtFlags::empty());
        }
    }

    /// The final name, and what has it now.
    fn place(&self, options: &Options) -> Result<(String, Name, Option<Stat>), OutputError> {
        let shown_as = shown(&self.path);
        let place = Name::resolve(&shown_as, &self.path)?;
        let old = place
            .stat()
            .map_err(|error| OutputError::os(&shown_as, "cannot be written", &error.into()))?;
        if let Some(old) = &old {
            if !options.force {
                return Err(exists(&shown_as));
            }
            place.check_replaceable(&shown_as, old)?;
        }
        Ok((shown_as, place, old))
    }

    fn output(
        &self,
        shown_as: String,
        place: Name,
        file: File,
        old: Option<Stat>,
        options: &Options,
    ) -> Output {
        let hidden = Some(Hidden::kept(&place.dir, &self.name));
        let pending = Some(Pending { name: place, force: options.force, old, hidden });
        let len_bytes = options.len_bytes;
        Output { name: shown_as, file: Arc::new(file), kind: Kind::File, len_bytes, pending }
    }
}

#[cfg(test)]
mod tests;
