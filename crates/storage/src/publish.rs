//! The moment an output gets its name.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use crate::error::{OutputError, shown};
use crate::name::Name;
use crate::unfinished::{self, Hidden};

/// A new file in the folder of `name`: without a name where the file system
/// and /proc allow that and `unnamed` asks for it, else a hidden one. `mode`
/// is subject to the umask.
pub(crate) fn create(
    name: &Name,
    mode: Mode,
    unnamed: bool,
) -> rustix::io::Result<(File, Option<Hidden>)> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    if unnamed {
        let made = rustix::fs::openat(&*name.dir, c".", flags | OFlags::TMPFILE, mode);
        if let Ok(file) = made
            && rustix::fs::stat(fd_path(&file)).is_ok()
        {
            return Ok((file.into(), None));
        }
    }
    // What is wrong with the folder itself is said by this second attempt.
    let flags = flags | OFlags::CREATE | OFlags::EXCL;
    let open = |hidden: &_| rustix::fs::openat(&*name.dir, hidden, flags, mode);
    let (hidden, file) = unfinished::lock().create(&name.dir, &name.name, open)?;
    Ok((file.into(), Some(hidden)))
}

/// Gives `file` its name, atomically: without `force` only if nothing has that
/// name yet (`EEXIST`), with `force` in place of what has it.
pub(crate) fn publish(
    file: &File,
    name: &Name,
    force: bool,
    mut hidden: Option<Hidden>,
) -> rustix::io::Result<()> {
    // Declared after `hidden`, so released before `hidden` is dropped.
    let mut list = unfinished::lock();
    let hidden = match &mut hidden {
        Some(hidden) => hidden,
        none => {
            match link(file, name, &name.name) {
                Err(Errno::EXIST) if force => {}
                result => return result,
            }
            // No call replaces a name by a file that has none.
            let (hidden, ()) =
                list.create(&name.dir, &name.name, |hidden| link(file, name, hidden))?;
            none.insert(hidden)
        }
    };
    if force {
        renameat(&*name.dir, hidden.name(), &*name.dir, &name.name)
    } else {
        rename_to_free(hidden, name)
    }
}

/// Renames without replacing; NFS cannot do it in one call.
fn rename_to_free(hidden: &Hidden, name: &Name) -> rustix::io::Result<()> {
    let (dir, from, to) = (&*name.dir, hidden.name(), &name.name);
    match renameat_with(dir, from, dir, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            linkat(dir, from, dir, to, AtFlags::empty())?;
            // If it stays, it goes when `hidden` does, unless that is kept.
            let _ = unlinkat(dir, from, AtFlags::empty());
            Ok(())
        }
        result => result,
    }
}

fn link(file: &File, name: &Name, to: &OsString) -> rustix::io::Result<()> {
    linkat(CWD, fd_path(file), &*name.dir, to, AtFlags::SYMLINK_FOLLOW)
}

/// Brings all that was written to the file system of a folder, and its names, to the disk.
pub(crate) fn settle(dir: &Path) -> Result<(), OutputError> {
    let failed = |error: std::io::Error| {
        OutputError::os(&shown(dir), "cannot be brought to the disk", &error)
    };
    let dir = File::open(dir).map_err(failed)?;
    rustix::fs::syncfs(dir).map_err(|error| failed(error.into()))
}

/// Makes the new name survive a power loss.
pub(crate) fn sync_dir(file: &File, dir: &OwnedFd) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, c".", flags, Mode::empty()) {
        Ok(dir) => rustix::fs::fsync(dir),
        // One may be allowed to write to a folder and not to read it.
        Err(Errno::ACCESS) => rustix::fs::syncfs(file),
        Err(error) => Err(error),
    }
}

fn fd_path(file: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
