//! The file a journal is in.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::{self, BufReader, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use storage::{Input, Kind, Partial, shown};

use super::{
    Beside, Header, InputMark, JournalError, JournalErrorKind, OutputMark, PAYLOAD_BYTES_MAX,
};
use super::{Record, Unreadable};
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
    pub(crate) every: Duration,
}

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
        (kernel, input, plan): (&K, &Input, &Plan),
        partial: Option<&Partial>,
    ) -> Result<Self, JournalError> {
        let name = shown(path);
        let mut header = describe(&name, kernel, input, plan, partial)?;
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
        let path = path.to_owned();
        Ok(Self { name, path, file, header, last: None, torn_from: None, every: EVERY })
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
        Ok(Self { name, path, file, header, last, torn_from, every: EVERY })
    }

    /// The least time between two records. After a crash at most so much work
    /// is done anew.
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
        (kernel, input, plan): (&K, &Input, &Plan),
        output: Option<&Path>,
    ) -> Result<(), JournalError> {
        use JournalErrorKind::{Changed, OtherRun};
        let Header {
            kernel: name, parameters, input: mark, body, block_bytes, output: out, ..
        } = &self.header;
        let now = describe(&self.name, kernel, input, plan, None)?;
        let wrong =
            |kind, what: String, cure: &str| Err(JournalError::new(kind, &self.name, what, cure));
        if now.kernel != *name {
            let what = format!("is the journal of {name}, not of {}", now.kernel);
            return wrong(OtherRun, what, "give the kernel it was begun with");
        }
        if now.parameters != *parameters {
            let what = format!("{name} had other parameters");
            return wrong(OtherRun, what, "give those the journal was begun with");
        }
        if now.input.identity != mark.identity {
            let what = format!("is the journal of a run over {}, another file", mark.name);
            return wrong(OtherRun, what, "give the same INPUT");
        }
        if (&now.input.len_bytes, &now.input.modified, &now.body)
            != (&mark.len_bytes, &mark.modified, body)
        {
            let what = format!("{} was changed since the journal was begun", input.name());
            return wrong(Changed, what, "start anew with --journal and --force");
        }
        if plan.block_bytes != *block_bytes {
            let what = format!("was begun with blocks of {block_bytes} bytes");
            return wrong(OtherRun, what, "leave --block out");
        }
        let same = match (out, output) {
            (None, None) => true,
            (Some(mark), Some(path)) => {
                storage::same_place(Path::new(OsStr::from_bytes(&mark.path)), path)
            }
            _ => false,
        };
        if !same {
            let to = out.as_ref().map(|mark| shown(Path::new(OsStr::from_bytes(&mark.path))));
            let what = format!("is of a run that writes {}", to.as_deref().unwrap_or("nothing"));
            return wrong(OtherRun, what, "give the same OUTPUT");
        }
        Ok(())
    }

    /// The unfinished output of a run that has one.
    #[must_use]
    pub fn partial(&self) -> Option<Partial> {
        self.header.output.as_ref().map(OutputMark::partial)
    }

    /// Its device and inode, and how many of its bytes are whole; `None` before
    /// it was made.
    #[must_use]
    pub fn written(&self) -> Option<((u64, u64), u64)> {
        self.last.as_ref().map(|last| (last.output, last.output_bytes))
    }

    /// Removes it, and what is beside it: the run is complete, or nothing of it
    /// is worth keeping.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(self) -> Result<(), JournalError> {
        // First the journal: one that is there has all that it tells of.
        let removed = std::fs::remove_file(&self.path).and_then(|()| self.beside().remove());
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

    fn failed(&self, error: &io::Error) -> JournalError {
        JournalError::io(&self.name, "cannot be written", error)
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

impl OutputMark {
    fn partial(&self) -> Partial {
        let (path, name) = (OsStr::from_bytes(&self.path), OsStr::from_bytes(&self.partial));
        Partial::named(Path::new(path), name)
    }
}

/// What must be the same for this run to go on; an error if it never can.
fn describe<K: Kernel>(
    name: &str,
    kernel: &K,
    input: &Input,
    plan: &Plan,
    partial: Option<&Partial>,
) -> Result<Header, JournalError> {
    let unfit =
        |what: String, cure: &str| JournalError::new(JournalErrorKind::Unfit, name, what, cure);
    let parameters = kernel.parameters().map_err(|error| unfit(error.what, &error.cure))?;
    let (Some(len_bytes), true) = (input.len_bytes(), input.kind() != Kind::Stream) else {
        let what = format!("{} cannot be read again, so nothing can be resumed", input.name());
        return Err(unfit(what, "read a file, or run without a journal"));
    };
    let input = InputMark {
        name: input.name().to_owned(),
        identity: input.identity(),
        len_bytes,
        modified: input.modified(),
    };
    let output = partial.map(|partial| OutputMark {
        path: partial.path().as_os_str().as_bytes().to_vec(),
        partial: partial.name().as_bytes().to_vec(),
    });
    Ok(Header {
        kernel: kernel.name().to_owned(),
        parameters,
        input,
        body: plan.body.clone(),
        block_bytes: plan.block_bytes,
        beside: Vec::new(),
        output,
    })
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
        old.beside().remove().map_err(failed)?;
    }
    std::fs::remove_file(path).map_err(failed)
}

/// Whether a journal was torn before its header was whole.
fn is_torn(path: &Path) -> bool {
    let recovered = File::open(path).and_then(|file| super::recover(&mut BufReader::new(file)));
    matches!(recovered, Ok(Err(Unreadable::NoHeader)))
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
