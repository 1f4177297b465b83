//! A file of non-zero bytes that the page cache holds as a whole.

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use tempfile::TempDir;

use crate::coldfile::{cannot_make, write_words};
use crate::hw::resident_bytes;

/// A temporary file in a folder of its own, written back and cached.
pub(crate) struct CachedFile {
    folder: TempDir,
    file: File,
    bytes: u64,
}

impl CachedFile {
    /// Its name in its folder.
    pub(crate) const NAME: &str = "data";

    /// Creates a file of `bytes` bytes, a multiple of 8, in a new folder in `folder`.
    pub(crate) fn create(folder: &Path, bytes: u64) -> anyhow::Result<Self> {
        Self::create_inner(folder, bytes).with_context(|| cannot_make(folder, bytes))
    }

    fn create_inner(folder: &Path, bytes: u64) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("cellway-bench-").tempdir_in(folder)?;
        let path = folder.path().join(Self::NAME);
        let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
        write_words(&mut file, bytes)?;
        // Or the disk would be busy with it meanwhile, and blocks not be known.
        file.sync_all()?;
        Ok(Self { folder, file, bytes })
    }

    /// The folder that has nothing else.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Whether what was measured was measured in memory.
    pub(crate) fn check_cached(&self) -> anyhow::Result<()> {
        let (held, bytes) = (resident_bytes(&self.file, self.bytes)?, self.bytes);
        anyhow::ensure!(
            held >= bytes,
            "the page cache has {held} of the test file's {bytes} bytes left; use fewer --bytes"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_file_is_in_memory_and_one_that_was_dropped_is_told() {
        let file = CachedFile::create(Path::new("/var/tmp"), 3 << 20).unwrap();
        assert_eq!(std::fs::metadata(file.folder().join(CachedFile::NAME)).unwrap().len(), 3 << 20);
        file.check_cached().unwrap();
        rustix::fs::fadvise(&file.file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if resident_bytes(&file.file, 3 << 20).unwrap() == 3 << 20 {
            return crate::skip("a file out of the cache", "it lies in memory for good here");
        }
        let error = file.check_cached().unwrap_err().to_string();
        assert!(error.ends_with("use fewer --bytes"), "{error}");
    }
}
