//! The file a journal is in.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::{self, BufReader, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use storage::{Input, Listed, OutDir, Partial, SharedDir, shown};

use super::{Beside, Header, JournalError, JournalErrorKind, OutputMark, PAYLOAD_BYTES_MAX};
use super::{Record, Unreadable};
use crate::error::StreamError;
use crate::kernel::Kernel;
use crate::plan::{Options, Plan};

/// Time between two records, unless something else is asked for.
const EVERY: Duration = Duration::from_secs(2);

/// How far a run has come, in a file: what the next run may go on from. Only
/// one process has it at a time.
#[derive(Debug)]
pub struct Journal {
    name: String,
    path: PathBuf,
    file: File,
    header: Header,
    last: Option<Record>,
    /// Bytes that are whole, before the first record is appended: what comes
    /// after them goes then.
    torn_from: Option<u64>,
    every: Duration,
    /// When the next record is due.
    due: Option<Instant>,
    /// Of several inputs the one that is worked on, and its output.
    place: (u64, Option<OutputMark>),
}

/// The output of a run that has none, or none yet.
pub(crate) const NO_FILE: (u64, u64) = (0, 0);

/// Most of a run's time that records take: one in so many.
const RECORDS_SHARE: u32 = 16;

impl Journal {
    /// Begins the journal of a run that is laid out as `plan` says; a run with
    /// an output writes it to `partial`, which is made after the journal so
    /// that a crash leaves none that no journal tells of. With `force` the
    /// journal of an older run is replaced, and its unfinished output removed.
    ///
    /// # Errors
    /// A run that cannot be resumed, a file of that name, or one that cannot
    /// be written.
    pub fn create<K: Kernel>(
        path: &Path,
        force: bool,
        run: (&K, &Input, &Plan),
        partial: Option<&Partial>,
    ) -> Result<Self, JournalError> {
        Self::create_by(path, force, run, partial, false)
    }

    /// As [`Journal::create`], of a run `on_nodes` or without.
    pub(super) fn create_by<K: Kernel>(
        path: &Path,
        force: bool,
        run: (&K, &Input, &Plan),
        partial: Option<&Partial>,
        on_nodes: bool,
    ) -> Result<Self, JournalError> {
        let header = Header::of_one(&shown(path), run, partial.map(OutputMark::of))?;
        Self::begin(path, force, Header { on_nodes, ..header })
    }

    /// As [`Journal::create`], of a run over several inputs, whose outputs go to
    /// `out_dir`, which is prepared.
    ///
    /// # Errors
    /// Those of [`Journal::create`], options that do not fit, and an output that
    /// would replace an input.
    pub fn create_all<K: Kernel>(
        path: &Path,
        force: bool,
        run: (&K, &[Listed], &Options),
        out_dir: Option<&OutDir>,
    ) -> Result<Self, StreamError> {
        Self::create_all_by(path, force, run, out_dir, false)
    }

    /// As [`Journal::create_all`], of a run `on_nodes` or without.
    pub(super) fn create_all_by<K: Kernel>(
        path: &Path,
        force: bool,
        run: (&K, &[Listed], &Options),
        out_dir: Option<&OutDir>,
        on_nodes: bool,
    ) -> Result<Self, StreamError> {
        let header = Header::of_many(&shown(path), run, out_dir.map(OutDir::path))?;
        let header = Header { on_nodes, ..header };
        if let Some(dir) = out_dir {
            dir.check_apart(run.1)?;
        }
        Ok(Self::begin(path, force, header)?)
    }

    fn begin(path: &Path, force: bool, mut header: Header) -> Result<Self, JournalError> {
        let name = shown(path);
        let own_name = path.file_name().unwrap_or_default();
        header.beside = storage::hidden_name(own_name).into_vec();
        if force {
            replace(&name, path)?;
        }
        let mut options = File::options();
        let made = options.read(true).write(true).create_new(true).open(path);
        let mut file = made.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                let cure = format!("go on with --resume {name}, or give --force to start anew");
                JournalError::new(JournalErrorKind::Exists, &name, "exists already", cure)
            }
            _ => JournalError::io(&name, "cannot be made", &error),
        })?;
        lock(&name, &file)?;
        let started = file
            .write_all(&super::start(&header))
            .and_then(|()| file.sync_data())
            .and_then(|()| sync_folder(path));
        if let Err(error) = started {
            // Nothing was recorded, so nothing is lost.
            let _ = std::fs::remove_file(path);
            return Err(JournalError::io(&name, "cannot be written", &error));
        }
        let (path, every, place) = (path.to_owned(), EVERY, (0, None));
        let (last, torn_from, due) = (None, None, None);
        Ok(Self { name, path, file, header, last, torn_from, every, due, place })
    }

    /// Opens a journal to go on from its last whole record.
    ///
    /// # Errors
    /// If it cannot be read, is none, or is another process's.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let name = shown(path);
        let failed = |error: io::Error| JournalError::io(&name, "cannot be read", &error);
        let file = File::options().read(true).write(true).open(path).map_err(failed)?;
        let unreadable = |what: &str, cure: String| {
            Err(JournalError::new(JournalErrorKind::Unreadable, &name, what, cure))
        };
        if !file.metadata().map_err(failed)?.is_file() {
            return unreadable("is no file, so it is no journal", "check the name".into());
        }
        lock(&name, &file)?;
        let recovered = match super::recover(&mut BufReader::new(&file)).map_err(failed)? {
            Ok(recovered) => recovered,
            Err(Unreadable::NoJournal) => {
                return unreadable("is no journal of cellway", "check the name".into());
            }
            Err(Unreadable::Version) => {
                let cure = "go on with the version that wrote it, or remove it and start anew";
                return unreadable("is a journal of another version", cure.into());
            }
            Err(Unreadable::NoHeader) if !is_torn(path) => {
                let cure = "remove it and what its run left hidden beside its output, start anew";
                return unreadable("has records, and its header is damaged", cure.into());
            }
            Err(Unreadable::NoHeader) => {
                let cure =
                    format!("nothing was done yet: start anew with --journal {name} --force");
                return unreadable("ends before its first record", cure);
            }
        };
        let super::Recovered { header, last, whole_bytes } = recovered;
        if !storage::is_hidden_name(OsStr::from_bytes(&header.beside)) {
            return unreadable("names a folder that was never given a name", "start anew".into());
        }
        let (path, torn_from) = (path.to_owned(), Some(whole_bytes));
        let (every, due, place) = (EVERY, None, (0, None));
        Ok(Self { name, path, file, header, last, torn_from, every, due, place })
    }

    /// The least time between two records; up to sixteen times as much where
    /// records take long. After a crash so much work is done anew.
    #[must_use]
    pub fn every(mut self, time: Duration) -> Self {
        self.every = time;
        self
    }

    /// The name for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The options of the run that goes on: units are those of the journal,
    /// unless others are asked for, which [`Journal::check`] refuses.
    #[must_use]
    pub fn options(&self, options: &Options) -> Options {
        let block_bytes = options.block_bytes.or(Some(self.header.block_bytes));
        Options { block_bytes, ..options.clone() }
    }

    /// Whether the run that `plan` lays out is the journal's; `output` is
    /// where it is to go.
    ///
    /// # Errors
    /// What is different.
    pub fn check<K: Kernel>(
        &self,
        run: (&K, &Input, &Plan),
        output: Option<&Path>,
    ) -> Result<(), JournalError> {
        self.check_by(run, output, false)
    }

    /// As [`Journal::check`], of a run `on_nodes` or without.
    pub(super) fn check_by<K: Kernel>(
        &self,
        run: (&K, &Input, &Plan),
        output: Option<&Path>,
        on_nodes: bool,
    ) -> Result<(), JournalError> {
        let output = output.map(|path| {
            let path = path.as_os_str().as_bytes().to_vec();
            OutputMark { path, partial: Vec::new() }
        });
        let now = Header { on_nodes, ..Header::of_one(&self.name, run, output)? };
        self.header.check(&self.name, &now)
    }

    /// As [`Journal::check`], of a run over several inputs, whose outputs go to
    /// `out_dir`.
    ///
    /// # Errors
    /// What is different, or options that do not fit.
    pub fn check_all<K: Kernel>(
        &self,
        run: (&K, &[Listed], &Options),
        out_dir: Option<&Path>,
    ) -> Result<(), StreamError> {
        self.check_all_by(run, out_dir, false)
    }

    /// As [`Journal::check_all`], of a run `on_nodes` or without.
    pub(super) fn check_all_by<K: Kernel>(
        &self,
        (kernel, inputs, options): (&K, &[Listed], &Options),
        out_dir: Option<&Path>,
        on_nodes: bool,
    ) -> Result<(), StreamError> {
        let run = (kernel, inputs, &self.options(options));
        let now = Header { on_nodes, ..Header::of_many(&self.name, run, out_dir)? };
        Ok(self.header.check(&self.name, &now)?)
    }

    /// The unfinished output of a run that has one.
    #[must_use]
    pub fn partial(&self) -> Option<Partial> {
        let last = self.last.as_ref().and_then(|last| last.unfinished.as_ref());
        let last = last.filter(|_| !self.header.on_nodes);
        last.or(self.header.output.as_ref()).and_then(OutputMark::partial)
    }

    /// The folder of what nodes made that has no place in an output yet.
    pub(super) fn folder(&self) -> Option<&Path> {
        let last = self.last.as_ref().and_then(|last| last.unfinished.as_ref());
        last.filter(|_| self.header.on_nodes).map(OutputMark::path)
    }

    /// Its device and inode, and how many of its bytes are whole; `None` before
    /// it was made.
    #[must_use]
    pub fn written(&self) -> Option<((u64, u64), u64)> {
        let last = self.last.as_ref().filter(|last| last.output != NO_FILE);
        last.map(|last| (last.output, last.output_bytes))
    }

    /// How many of several inputs are done, with their outputs if they have any.
    #[must_use]
    pub fn inputs_done(&self) -> usize {
        self.last.as_ref().map_or(0, |last| usize::try_from(last.inputs).unwrap_or(usize::MAX))
    }

    /// All of so many inputs have their outputs, from a run on nodes.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn all_named(&mut self, inputs: usize) -> Result<(), JournalError> {
        let last = self.last.clone().unwrap_or_default();
        self.append(Record { inputs: inputs as u64, ..last })
    }

    /// Removes it, and what is beside it: the run is complete, or nothing of it
    /// is worth keeping.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(self) -> Result<(), JournalError> {
        // First the journal: one that is there has all that it tells of. But for what
        // nodes made, which may be much, and is in outputs by now that it tells of too.
        let removed = self
            .folder()
            .map_or(Ok(()), SharedDir::discard)
            .and_then(|()| std::fs::remove_file(&self.path))
            .and_then(|()| self.beside().remove());
        removed.map_err(|error| {
            JournalError::io(&self.name, "is done with, and cannot be removed", &error)
        })
    }

    /// The folder for what is too large for its records.
    pub(crate) fn beside(&self) -> Beside {
        Beside::new(self.path.with_file_name(OsStr::from_bytes(&self.header.beside)))
    }

    pub(crate) fn sync_beside(&self) -> Result<(), JournalError> {
        self.beside().sync().map_err(|error| self.failed(&error))
    }

    pub(super) fn failed(&self, error: &io::Error) -> JournalError {
        JournalError::io(&self.name, "cannot be written", error)
    }

    /// When the next record is due.
    pub(crate) fn due(&mut self) -> Instant {
        *self.due.get_or_insert_with(|| Instant::now() + self.every)
    }

    /// A record was made, from `since` on.
    pub(crate) fn recorded(&mut self, since: Instant) {
        let now = Instant::now();
        self.due = Some(now + pause(self.every, now - since));
    }

    /// From now on it is about one of several inputs.
    pub(crate) fn turn_to(&mut self, input: usize, unfinished: Option<&Partial>) {
        self.place = (input as u64, unfinished.map(OutputMark::of));
    }

    /// From now on records tell of that folder.
    pub(super) fn keep_folder(&mut self, folder: &Path) {
        self.place.1 = Some(OutputMark::of_folder(folder));
    }

    /// From now on it is about what the last record is about.
    pub(super) fn go_on(&mut self) {
        if let Some(last) = &self.last {
            self.place = (last.inputs, last.unfinished.clone());
        }
    }

    /// The last record, if it is about the input that is worked on.
    pub(crate) fn of_input(&self) -> Option<&Record> {
        self.last.as_ref().filter(|last| last.inputs == self.place.0)
    }

    /// A record of the input that is worked on, none of which is done.
    pub(crate) fn blank(&self) -> Record {
        let (inputs, unfinished) = self.place.clone();
        Record { inputs, unfinished, ..Record::default() }
    }

    pub(crate) fn last(&self) -> Option<&Record> {
        self.last.as_ref()
    }

    /// Appends a record, which is on the disk at return.
    pub(crate) fn append(&mut self, mut record: Record) -> Result<(), JournalError> {
        record.sequence = self.last.as_ref().map_or(0, |last| last.sequence + 1);
        let entry = super::entry(&record);
        if entry.len() > PAYLOAD_BYTES_MAX {
            let what = format!("a result of {} bytes is too large for it", record.part.len());
            let cure = "run without a journal";
            return Err(JournalError::new(JournalErrorKind::Unfit, &self.name, what, cure));
        }
        if let Some(whole_bytes) = self.torn_from.take() {
            let cut = self.file.set_len(whole_bytes);
            let cut = cut.and_then(|()| self.file.seek(SeekFrom::Start(whole_bytes)));
            cut.map_err(|error| self.failed(&error))?;
        }
        let written = self.file.write_all(&entry).and_then(|()| self.file.sync_data());
        written.map_err(|error| self.failed(&error))?;
        self.last = Some(record);
        Ok(())
    }
}

/// How long units are taken after a record that took `cost`.
fn pause(every: Duration, cost: Duration) -> Duration {
    (cost * RECORDS_SHARE).clamp(every, every * RECORDS_SHARE)
}

/// Removes an older run's journal and its unfinished output, but nothing that
/// is not a journal.
fn replace(name: &str, path: &Path) -> Result<(), JournalError> {
    let old = match Journal::open(path) {
        Ok(journal) => Some(journal),
        Err(error) => match path.metadata() {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(()),
            Ok(found) if found.is_file() && is_torn(path) => None,
            _ => return Err(error),
        },
    };
    let failed = |error: io::Error| JournalError::io(name, "cannot be replaced", &error);
    if let Some(old) = old {
        if let Some(partial) = old.partial() {
            partial.discard(old.written().map(|(identity, _)| identity));
        }
        old.folder().map_or(Ok(()), SharedDir::discard).map_err(failed)?;
        old.beside().remove().map_err(failed)?;
    }
    std::fs::remove_file(path).map_err(failed)
}

/// Whether a journal was torn before its header was whole.
pub(super) fn is_torn(path: &Path) -> bool {
    let open = || File::open(path).map(BufReader::new);
    let recovered = open().and_then(|mut file| super::recover(&mut file));
    matches!(recovered, Ok(Err(Unreadable::NoHeader)))
        && matches!(open().and_then(|mut file| super::has_records(&mut file)), Ok(false))
}

impl Drop for Journal {
    /// Closed, the file would stay locked for as long as a process that another thread
    /// has just forked has it too.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

fn lock(name: &str, file: &File) -> Result<(), JournalError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let (what, cure) = ("is in use by another run", "let that one end first");
            Err(JournalError::new(JournalErrorKind::Busy, name, what, cure))
        }
        // Some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Makes the names in the folder of `path` survive a power loss.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match File::open(parent.unwrap_or(Path::new("."))) {
        Ok(folder) => folder.sync_all(),
        // One may be allowed to write to a folder and not to read it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costly_records_are_made_less_often() {
        let ms = Duration::from_millis;
        let paces = [(0, 9), (2000, 0), (2000, 125), (2000, 200), (2000, 2000), (2000, 9000)];
        let found = paces.map(|(every, cost)| pause(ms(every), ms(cost)).as_millis());
        assert_eq!(found, [0, 2000, 2000, 3200, 32_000, 32_000]);
    }
}
