//! Outputs that several processes write, many of them, before any has its name.

use std::ffi::OsString;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FallocateFlags, Mode};
use rustix::io::Errno;

use super::{Options, Output, Pending, cannot_join, exists, still_hidden};
use crate::Kind;
use crate::error::{OutputError, shown};
use crate::name::Name;
use crate::unfinished::{self, Hidden};

/// A hidden folder in which files are written by number, each by several processes.
/// None needs to stay open: any can be opened again, until it is taken out to get its
/// name. The folder goes with what is in it when that is dropped which made it.
#[derive(Debug)]
pub struct SharedDir {
    path: PathBuf,
    /// `None` for who joined it.
    _hidden: Option<Hidden>,
}

impl SharedDir {
    /// Makes one in the folder `dir`.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn create(dir: &Path) -> Result<Self, OutputError> {
        let shown_as = shown(dir);
        let failed =
            |error: Errno| OutputError::os(&shown_as, "no folder can be made in it", &error.into());
        let whole = std::path::absolute(dir)
            .map_err(|error| OutputError::os(&shown_as, "cannot be written", &error))?;
        let place = Name::resolve(&shown_as, &whole.join("outputs"))?;
        let make = |name: &OsString| rustix::fs::mkdirat(&*place.dir, name, Mode::RWXU);
        let (hidden, ()) =
            unfinished::lock().create(&place.dir, &place.name, make).map_err(failed)?;
        Ok(Self { path: whole.join(hidden.name()), _hidden: Some(hidden) })
    }

    /// One that another process made.
    #[must_use]
    pub fn join(path: &Path) -> Self {
        Self { path: path.to_owned(), _hidden: None }
    }

    /// Where other processes find it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file of that number, which is made if nobody has opened it, to write to
    /// it beside others. In messages it is `name`, which the user knows, and where it lies.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn open(&self, number: u64, name: &str) -> Result<Output, OutputError> {
        let (name, mut options) = (still_hidden(name, &self.path), File::options());
        let file = options.read(true).write(true).create(true).truncate(false);
        let file = file.open(self.path.join(number.to_string()));
        let file = file.map_err(|error| cannot_join(&name, &error))?;
        Ok(Output::straight(name, file, Kind::File))
    }

    /// Takes the file of that number out, to be committed under the name `place`. It is
    /// empty if nobody has opened it.
    ///
    /// # Errors
    /// Those of [`Output::create`], and if it lies on another file system.
    pub fn take(
        &self,
        number: u64,
        place: &Path,
        options: &Options,
    ) -> Result<Output, OutputError> {
        let shown_as = shown(place);
        let failed = |error: Errno| OutputError::os(&shown_as, "cannot be written", &error.into());
        let name = Name::resolve(&shown_as, place)?;
        let old = name.stat().map_err(failed)?;
        if let Some(old) = &old {
            if !options.force {
                return Err(exists(&shown_as));
            }
            name.check_replaceable(&shown_as, old)?;
        }
        let file = Arc::clone(self.open(number, &shown_as)?.file());
        let from = self.path.join(number.to_string());
        let rename = |hidden: &OsString| rustix::fs::renameat(CWD, &from, &*name.dir, hidden);
        let moved = unfinished::lock().create(&name.dir, &name.name, rename);
        let (hidden, ()) = moved.map_err(failed)?;
        let (kind, len_bytes) = (Kind::File, options.len_bytes);
        let pending = Pending { name, force: options.force, old, hidden: Some(hidden) };
        Ok(Output { name: shown_as, file, kind, len_bytes, pending: Some(pending) })
    }
}

impl Output {
    /// The folder it will be in; `None` of what is written straight.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.pending.as_ref().map(|pending| &*pending.name.dir_path)
    }

    /// Reads back what was written.
    ///
    /// # Errors
    /// If it cannot be, or is not there.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), OutputError> {
        let read = self.file.read_exact_at(buf, offset);
        read.map_err(|error| OutputError::os(&self.name, "cannot be read back", &error))
    }

    /// Gives bytes back to the disk that are not needed any more, where the file system
    /// can; else they go with the file.
    pub fn free(&self, range: Range<u64>) {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let len = range.end.saturating_sub(range.start);
        let _ = rustix::fs::fallocate(&*self.file, how, range.start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{disk_dir, names};

    #[test]
    fn what_fails_is_told_by_the_name_that_the_user_knows() {
        let dir = disk_dir();
        let made = SharedDir::create(dir.path()).unwrap();
        let joined = SharedDir::join(made.path());
        let folder = dir.path().display();
        let output = joined.open(1, "out.txt").unwrap();
        assert_eq!(output.name(), format!("out.txt (hidden in {folder} until it is whole)"));
        let error = output.read_exact_at(&mut [0], 0).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: cannot be read back: ", output.name())), "{error}");
        drop(made);
        let gone = joined.open(2, "out.txt").unwrap_err();
        let wanted = format!(
            "out.txt (hidden in {folder} until it is whole): cannot be opened: No such file or \
             directory (os error 2); write to a folder that all processes see under the same name"
        );
        assert_eq!(gone.to_string(), wanted);
        assert_eq!(
            gone.into_parts().1,
            "write to a folder that all processes see under the same name"
        );
        let file =
            Output::create_shared(&dir.path().join("whole.txt"), &Options::default()).unwrap();
        let path = file.shared_path().unwrap();
        drop(file);
        let gone = Output::join(&path).unwrap_err().to_string();
        let name = format!("{folder}/whole.txt (hidden in {folder} until it is whole): ");
        assert!(gone.starts_with(&name), "{gone}");
    }

    #[test]
    fn what_several_write_by_number_gets_its_name_when_it_is_taken() {
        let dir = disk_dir();
        let made = SharedDir::create(dir.path()).unwrap();
        let joined = SharedDir::join(made.path());
        made.open(7, "it").unwrap().file().write_all_at(b"abc", 0).unwrap();
        joined.open(7, "it").unwrap().file().write_all_at(b"def+", 3).unwrap();
        joined.open(8, "it").unwrap();
        let place = dir.path().join("seven");
        let options = Options { force: false, len_bytes: Some(6) };
        let output = made.take(7, &place, &options).unwrap();
        assert!(!place.exists());
        output.commit(false).unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"abcdef");
        assert!(made.take(8, &place, &options).is_err(), "another has the name");
        let empty = dir.path().join("empty");
        made.take(9, &empty, &Options::default()).unwrap().commit(false).unwrap();
        assert_eq!(std::fs::read(&empty).unwrap(), b"");
        drop(joined);
        assert!(made.path().join("8").exists());
        drop(made);
        assert_eq!(names(dir.path()), ["empty", "seven"]);
    }
}
