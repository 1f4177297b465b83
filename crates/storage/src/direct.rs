//! Second descriptors that bypass the page cache.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::Kind;

/// What the kernel does not tell is taken to be a page, which every file
/// system with direct I/O is content with.
const ALIGN_UNTOLD_BYTES: usize = 4096;

/// An `O_DIRECT` descriptor of a file that is also open the ordinary way.
#[derive(Clone, Debug)]
pub struct DirectFile {
    /// The descriptor.
    pub file: Arc<File>,
    /// Buffers must start at a multiple of this many bytes.
    pub memory_align_bytes: usize,
    /// Offsets and lengths must be multiples of this many bytes. A read may
    /// reach past the file's end and comes back short there.
    pub offset_align_bytes: usize,
}

/// Why a file has no direct I/O.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: no direct I/O: {why}")]
pub struct DirectRefused {
    name: String,
    why: String,
}

/// Opens `file` once more, with `O_DIRECT`, and tries it with one read.
pub(crate) fn open(
    name: &str,
    file: &File,
    kind: Kind,
    access: OFlags,
) -> Result<DirectFile, DirectRefused> {
    let refused = |why: String| DirectRefused { name: name.to_owned(), why };
    if kind == Kind::Stream {
        return Err(refused("only files and block devices have it".to_owned()));
    }
    let direct = reopen(file, access | OFlags::DIRECT).map_err(|error| {
        refused(match error {
            Errno::INVAL => "its file system refuses it".to_owned(),
            Errno::NOENT => "/proc is not mounted".to_owned(),
            other => other.to_string(),
        })
    })?;
    let (memory_align_bytes, offset_align_bytes) = alignment(&direct).map_err(refused)?;
    try_read(&direct, memory_align_bytes, offset_align_bytes)
        .map_err(|error| refused(format!("a trial read of {offset_align_bytes} bytes: {error}")))?;
    Ok(DirectFile { file: Arc::new(direct), memory_align_bytes, offset_align_bytes })
}

/// Opens what `file` refers to, which need not have a name.
pub(crate) fn reopen(file: &File, flags: OFlags) -> rustix::io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}

/// Alignment of buffers and of offsets, in bytes.
fn alignment(file: &File) -> Result<(usize, usize), String> {
    // A kernel before 6.1 answers without the bit, one before 4.11 not at all.
    let told = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .ok()
        .filter(|stat| stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0)
        .map(|stat| (stat.stx_dio_mem_align as usize, stat.stx_dio_offset_align as usize));
    match told {
        None => Ok((ALIGN_UNTOLD_BYTES, ALIGN_UNTOLD_BYTES)),
        Some((memory, offset)) if memory.is_power_of_two() && offset.is_power_of_two() => {
            Ok((memory, offset))
        }
        Some((0, _) | (_, 0)) => Err("its file system refuses it for this file".to_owned()),
        Some((memory, offset)) => Err(format!("odd alignment: {memory} and {offset} bytes")),
    }
}

/// Some file systems accept the flag and refuse every transfer.
fn try_read(file: &File, memory_align_bytes: usize, len_bytes: usize) -> std::io::Result<()> {
    let mut memory = vec![0; len_bytes + memory_align_bytes];
    let start = memory.as_ptr().align_offset(memory_align_bytes);
    let buf = memory.get_mut(start..start + len_bytes).unwrap_or_default();
    loop {
        match file.read_at(buf, 0) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result.map(drop),
        }
    }
}
