//! What is too large for a journal's records.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// A folder beside a journal, of numbered files. It is made with the first file,
/// and goes with the journal.
#[derive(Clone, Debug)]
pub struct Beside {
    folder: PathBuf,
}

impl Beside {
    /// The journal's own is given to
    /// [`Kernel::save_beside`](crate::Kernel::save_beside); others are for tests.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Makes a file, or an old one empty, to be written and read.
    ///
    /// # Errors
    /// Those of the file system, as with all that follow.
    pub fn create(&self, number: u64) -> io::Result<File> {
        match std::fs::create_dir(&self.folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        options.open(self.folder.join(number.to_string()))
    }

    /// Opens a file to be read.
    pub fn open(&self, number: u64) -> io::Result<File> {
        File::open(self.folder.join(number.to_string()))
    }

    /// Removes all files but these.
    pub fn retain(&self, numbers: &[u64]) -> io::Result<()> {
        let entries = match self.folder.read_dir() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if number.is_some_and(|number| !numbers.contains(&number)) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Makes the files' names, and the folder's, survive a power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match File::open(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            folder => folder?.sync_all()?,
        }
        super::file::sync_folder(&self.folder)
    }

    pub(crate) fn remove(&self) -> io::Result<()> {
        self.retain(&[])?;
        match std::fs::remove_dir(&self.folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
