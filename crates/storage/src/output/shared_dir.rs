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
use crate::error::{OutputError, OutputErrorKind, shown};
use crate::name::Name;
use crate::publish;
use crate::unfinished::{self, Hidden, hidden_name, is_hidden_name};

/// What its hidden name is made of.
const OUTPUTS: &str = "outputs";

/// More files are brought to the disk with all of their file system.
const SYNCED_MAX: usize = 64;

/// A hidden folder in which files are written by number, each by several processes.
/// None needs to stay open: any can be opened again, until it is taken out to get its
/// name. The folder goes with what is in it when that is dropped which made it, unless it
/// is one that a run which goes on after this one is to find.
#[derive(Debug)]
pub struct SharedDir {
    path: PathBuf,
    is_kept: bool,
    /// Whether a file in it can have a second name outside.
    has_links: bool,
    /// `None` for who joined it, and of one that is kept.
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
        let place = Name::resolve(&shown_as, &whole.join(OUTPUTS))?;
        let make = |name: &OsString| rustix::fs::mkdirat(&*place.dir, name, Mode::RWXU);
        let (hidden, ()) =
            unfinished::lock().create(&place.dir, &place.name, make).map_err(failed)?;
        let path = whole.join(hidden.name());
        Ok(Self { path, is_kept: false, has_links: false, _hidden: Some(hidden) })
    }

    /// Chooses where one in the folder `dir` may lie that outlives its run; nothing is made yet.
    ///
    /// # Errors
    /// If there is no such place.
    pub fn choose(dir: &Path) -> Result<PathBuf, OutputError> {
        let whole = std::path::absolute(dir)
            .map_err(|error| OutputError::os(&shown(dir), "cannot be written", &error))?;
        Ok(whole.join(hidden_name(OUTPUTS.as_ref())))
    }

    /// Opens one that was chosen, by this run or one before, and that stays until
    /// [`SharedDir::discard`]; makes it if it is not there and `may_be_new`.
    ///
    /// # Errors
    /// If it is gone with what was written, or cannot be made.
    pub fn keep(path: &Path, may_be_new: bool) -> Result<Self, OutputError> {
        let name = shown(path);
        let lost = |what: &str| {
            let cure = "start anew with --journal and --force";
            Err(OutputError::new(OutputErrorKind::Lost, &name, what, cure))
        };
        if !path.file_name().is_some_and(is_hidden_name) {
            return lost("is a folder whose name was never given");
        }
        let found = path.symlink_metadata();
        if found.as_ref().is_ok_and(|found| !found.is_dir()) {
            return lost("is no folder any more");
        }
        if found.is_err() {
            if !may_be_new {
                return lost("is gone, with what was written to it");
            }
            let made = rustix::fs::mkdir(path, Mode::RWXU);
            made.map_err(|error| OutputError::os(&name, "cannot be made", &error.into()))?;
            // Its own name is to survive a power loss too.
            let beside = path.parent().unwrap_or(path);
            let synced = File::open(beside).and_then(|dir| dir.sync_all());
            synced.map_err(|error| OutputError::os(&name, "cannot be made", &error))?;
        }
        let has_links = has_links(path);
        Ok(Self { path: path.to_owned(), is_kept: true, has_links, _hidden: None })
    }

    /// Removes one that was kept.
    ///
    /// # Errors
    /// If it is there and cannot be.
    pub fn discard(path: &Path) -> std::io::Result<()> {
        if !path.file_name().is_some_and(is_hidden_name) {
            return Ok(());
        }
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether a run that goes on after this one is to find what is in it.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// One that another process made.
    #[must_use]
    pub fn join(path: &Path) -> Self {
        Self { path: path.to_owned(), is_kept: false, has_links: false, _hidden: None }
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

    /// How many bytes the file of that number has; `None` if nobody has opened it.
    #[must_use]
    pub fn len_bytes(&self, number: u64) -> Option<u64> {
        Some(self.path.join(number.to_string()).symlink_metadata().ok()?.len())
    }

    /// Brings what is in it to the disk, whoever of this machine wrote it.
    ///
    /// # Errors
    /// If that fails.
    pub fn settle(&self) -> Result<(), OutputError> {
        let failed = |error: std::io::Error| {
            OutputError::os(&shown(&self.path), "cannot be brought to the disk", &error)
        };
        let files = || self.path.read_dir().map_err(failed);
        if files()?.nth(SYNCED_MAX).is_some() {
            return publish::settle(&self.path);
        }
        // What others write to the file system meanwhile is not waited for.
        for file in files()? {
            let file = file.and_then(|file| File::open(file.path())).map_err(failed)?;
            file.sync_all().map_err(failed)?;
        }
        File::open(&self.path).and_then(|dir| dir.sync_all()).map_err(failed)
    }

    /// Takes the file of that number out, to be committed under the name `place`. It is
    /// empty if nobody has opened it. Of a folder that is kept it stays there too.
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
        let (kind, len_bytes) = (Kind::File, options.len_bytes);
        if self.is_kept {
            if let Some(len_bytes) = len_bytes {
                // It is compared with what an earlier run may have given that name.
                rustix::fs::ftruncate(&file, len_bytes).map_err(failed)?;
            }
            let pending = Some(Pending { name, force: options.force, old, hidden: None });
            let mut output = Output { name: shown_as, file, kind, len_bytes, pending };
            if !self.has_links {
                output.unshare()?;
            }
            return Ok(output);
        }
        let from = self.path.join(number.to_string());
        let rename = |hidden: &OsString| rustix::fs::renameat(CWD, &from, &*name.dir, hidden);
        let moved = unfinished::lock().create(&name.dir, &name.name, rename);
        let (hidden, ()) = moved.map_err(failed)?;
        let pending = Pending { name, force: options.force, old, hidden: Some(hidden) };
        Ok(Output { name: shown_as, file, kind, len_bytes, pending: Some(pending) })
    }
}

fn has_links(dir: &Path) -> bool {
    let [file, link] = ["file", "link"].map(|name| dir.join(name));
    // A run that was killed here leaves both, and the journal's lock keeps others out.
    let _ = std::fs::remove_file(&link);
    let made = File::create(&file).and_then(|_| std::fs::hard_link(&file, &link));
    let _ = std::fs::remove_file(link);
    let _ = std::fs::remove_file(file);
    made.is_ok()
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

    #[test]
    fn what_is_kept_is_found_again_and_stays_until_it_is_discarded() {
        let dir = disk_dir();
        let path = SharedDir::choose(dir.path()).unwrap();
        assert!(SharedDir::keep(&path, false).unwrap_err().to_string().contains("is gone"));
        let made = SharedDir::keep(&path, true).unwrap();
        made.open(7, "it").unwrap().file().write_all_at(b"abcd", 0).unwrap();
        assert!(made.has_links && names(&path) == ["7"]);
        drop(made);
        // A run was killed when it had looked for links.
        for left in ["file", "link"] {
            std::fs::write(path.join(left), "").unwrap();
        }
        let again = SharedDir::keep(&path, false).unwrap();
        assert!(again.has_links && names(&path) == ["7"]);
        assert_eq!((again.len_bytes(7), again.len_bytes(8)), (Some(4), None));
        let take = |name: &str, again: &SharedDir| {
            let options = Options { force: false, len_bytes: Some(3) };
            again.take(7, &dir.path().join(name), &options).unwrap().commit(false).unwrap();
            std::fs::read(dir.path().join(name)).unwrap()
        };
        assert_eq!(take("seven", &again), b"abc");
        // Where it was taken from it still is, as after a kill.
        let without_links = SharedDir { has_links: false, ..again };
        assert_eq!(take("copied", &without_links), b"abc");
        SharedDir::discard(&path).unwrap();
        SharedDir::discard(&path).unwrap();
        assert_eq!(names(dir.path()), ["copied", "seven"]);
        for other in ["seven", "folder"] {
            assert!(SharedDir::keep(&dir.path().join(other), true).is_err());
            SharedDir::discard(&dir.path().join(other)).unwrap();
        }
        assert_eq!(names(dir.path()), ["copied", "seven"]);
    }
}
