//! A file of non-zero bytes that no cache holds, for direct I/O.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use cellway::accel::Region;
use rustix::fs::{Advice, OFlags, fadvise};

use crate::hw::resident_bytes;

/// Offsets, lengths and buffers of direct I/O are multiples of this: enough
/// for every device with 512-byte or 4 KiB sectors.
const DIRECT_ALIGN_BYTES: usize = 4096;
const WRITE_BYTES: usize = 1 << 20;

/// A temporary file, opened for direct I/O and dropped from the page cache.
#[derive(Debug)]
pub struct ColdFile {
    file: Arc<File>,
    bytes: u64,
    on_disk: tempfile::NamedTempFile,
}

impl ColdFile {
    /// Creates a file of `bytes` bytes (rounded up to 4 KiB) in `folder`.
    ///
    /// # Errors
    /// A full disk, a folder that cannot be written, or a file system without
    /// direct I/O.
    pub fn create(folder: &Path, bytes: u64) -> anyhow::Result<Self> {
        let bytes = bytes.next_multiple_of(DIRECT_ALIGN_BYTES as u64);
        let file = Self::create_inner(folder, bytes).with_context(|| cannot_make(folder, bytes))?;
        file.drop_cached()?;
        Ok(file)
    }

    fn create_inner(folder: &Path, bytes: u64) -> io::Result<Self> {
        let mut on_disk = tempfile::Builder::new().prefix("cellway-bench-").tempfile_in(folder)?;
        write_words(&mut on_disk, bytes)?;
        on_disk.as_file().sync_all()?;
        let direct = OFlags::DIRECT.bits().cast_signed();
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(direct).open(on_disk.path())?;
        Ok(Self { file: Arc::new(file), bytes, on_disk })
    }

    /// Writes back and forgets what the page cache holds of it.
    ///
    /// # Errors
    /// When the file cannot be written back.
    pub fn drop_cached(&self) -> io::Result<()> {
        self.on_disk.as_file().sync_all()?;
        fadvise(self.on_disk.as_file(), 0, None, Advice::DontNeed)?;
        Ok(())
    }

    /// How much of it the page cache holds, in bytes.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        resident_bytes(self.on_disk.as_file(), self.bytes)
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What offsets, lengths and buffers must be multiples of, in bytes.
    #[must_use]
    pub fn align_bytes(&self) -> usize {
        DIRECT_ALIGN_BYTES
    }

    /// Its name.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.on_disk.path().to_owned()
    }

    /// The whole of it, by direct I/O.
    #[must_use]
    pub fn region(&self) -> Region<'static> {
        let name = self.on_disk.path().to_string_lossy();
        Region::direct_file(self.file.clone(), 0..self.bytes, &name, DIRECT_ALIGN_BYTES as u64)
    }
}

/// What is told where a test file cannot be made.
pub(crate) fn cannot_make(folder: &Path, bytes: u64) -> String {
    let mib = bytes.div_ceil(1 << 20);
    format!("cannot make a test file of {mib} MiB in {}; choose another folder", folder.display())
}

/// Writes `bytes` bytes, a multiple of 8, without a zero word.
pub(crate) fn write_words(to: &mut impl io::Write, bytes: u64) -> io::Result<()> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let mut left = bytes;
    while left > 0 {
        let piece: Vec<u8> = std::iter::repeat_with(|| {
            // xorshift never yields 0.
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_le_bytes()
        })
        .take(WRITE_BYTES.min(left as usize) / 8)
        .flatten()
        .collect();
        to.write_all(&piece)?;
        left -= piece.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn a_cold_file_has_no_zero_words_and_is_in_no_cache() {
        let file = match ColdFile::create(&std::env::temp_dir(), 3 << 20) {
            Ok(file) => file,
            Err(error) => return crate::skip("direct I/O", &error.to_string()),
        };
        assert_eq!(file.resident_bytes().unwrap(), 0);
        let mut bytes = Vec::new();
        File::open(file.path()).unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, file.bytes());
        assert!(bytes.as_chunks::<8>().0.iter().all(|&word| word != [0; 8]));
        assert_eq!(file.resident_bytes().unwrap(), file.bytes());
        file.drop_cached().unwrap();
        assert_eq!(file.resident_bytes().unwrap(), 0);
    }

    #[test]
    fn a_folder_that_is_none_is_named() {
        let error = ColdFile::create(Path::new("/proc/none"), 4096).unwrap_err().to_string();
        assert!(error.contains("/proc/none"), "{error}");
    }
}
