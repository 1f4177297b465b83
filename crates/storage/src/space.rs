//! Room on the disk, claimed before the work instead of missed in the middle.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{FallocateFlags, StatVfs};
use rustix::io::Errno;

use crate::error::{OutputError, OutputErrorKind, shown};

/// Bytes this process may still write on the disk that holds `dir`.
pub fn free_bytes(dir: &Path) -> io::Result<u64> {
    Ok(free(&rustix::fs::statvfs(dir)?))
}

fn free(stat: &StatVfs) -> u64 {
    // A share of most disks is kept for root.
    let root = rustix::process::geteuid().is_root();
    let blocks = if root { stat.f_bfree } else { stat.f_bavail };
    blocks.saturating_mul(stat.f_frsize)
}

/// Gives the empty `file` in `dir` its length and, where the file system can,
/// its blocks.
pub(crate) fn reserve(
    name: &str,
    file: &File,
    dir: &Path,
    len_bytes: u64,
) -> Result<(), OutputError> {
    if len_bytes == 0 {
        return Ok(());
    }
    let full = |free_bytes: u64| {
        let what = format!("needs {len_bytes} bytes, {free_bytes} are free in {}", shown(dir));
        let cure = "free some space, or write to another disk";
        OutputError::new(OutputErrorKind::NoSpace, name, what, cure)
    };
    let stat = rustix::fs::fstatvfs(file).ok();
    // Asked first, because a claim that cannot succeed fills the disk for
    // everybody until it fails. Some file systems report no blocks at all.
    if let Some(stat) = &stat
        && stat.f_blocks > 0
        && free(stat) < len_bytes
    {
        return Err(full(free(stat)));
    }
    let sized = match rustix::io::retry_on_intr(|| {
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len_bytes)
    }) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            rustix::fs::ftruncate(file, len_bytes)
        }
        result => result,
    };
    match sized {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC) => Err(full(stat.as_ref().map_or(0, free))),
        Err(error) => {
            let doing = format!("cannot be given {len_bytes} bytes");
            Err(OutputError::os(name, &doing, &error.into()))
        }
    }
}
