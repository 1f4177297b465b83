//! One name further, and never further than that.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags,
};
use rustix::io::Errno;

use crate::error::{FsError, Kind};

/// What keeps a step below the directory it starts from.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV);

/// A step is tried so often where the kernel says that it was disturbed.
const TRIES_MAX: u32 = 64;

/// Opens `name` in `dir`.
pub(super) fn step(
    dir: impl AsFd,
    name: &str,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let mut tries = 1;
    loop {
        match rustix::fs::openat2(&dir, name, flags | OFlags::CLOEXEC, mode, BENEATH) {
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES_MAX => tries += 1,
            done => return done,
        }
    }
}

/// Whether the system can do that.
pub(super) fn probe(dir: impl AsFd) -> rustix::io::Result<()> {
    step(dir, ".", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map(drop)
}

/// What is known of `name` in `dir`, itself if it is a link, or of `dir` if it is "".
pub(super) fn look(dir: impl AsFd, name: &str) -> rustix::io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

pub(super) fn is_directory(seen: &Statx) -> bool {
    FileType::from_raw_mode(seen.stx_mode.into()) == FileType::Directory
}

/// Whether it is of what is shown: files, directories, nothing of other file systems.
pub(super) fn is_shown(seen: &Statx) -> bool {
    let kind = FileType::from_raw_mode(seen.stx_mode.into());
    matches!(kind, FileType::RegularFile | FileType::Directory)
        && !seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
}

/// What the kernel said about `name`.
pub(super) fn told(name: &str, error: Errno) -> FsError {
    let (kind, what) = match error {
        Errno::LOOP => (Kind::Permission, "a symbolic link, which is not followed"),
        Errno::XDEV => (Kind::Permission, "of another file system; serve that by itself"),
        Errno::MFILE | Errno::NFILE => {
            (Kind::Io, "too many open files; close some, or raise the limit (ulimit -n)")
        }
        Errno::AGAIN => (Kind::Busy, "somebody else holds a lease on it; try again"),
        Errno::TXTBSY => (Kind::Busy, "a program that runs"),
        _ => return FsError::io(name, &error.into()),
    };
    FsError::because(kind, name, what)
}
