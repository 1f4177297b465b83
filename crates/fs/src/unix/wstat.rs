//! Changes to what is known of a file: all that is asked for, or nothing.
//!
//! What may fail comes first and is undone if a later step fails; a new length, which
//! cannot be undone, comes last. Left over is a time of change. Two things are beyond
//! this: a crash between two steps, and a time of the last write that cannot be set
//! a second time after the new length, which moved it.

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, RenameFlags, Statx, Timespec, Timestamps, UTIME_OMIT,
};
use rustix::io::Errno;

use super::file::END_MAX;
use super::held::Held;
use super::node::{PERMISSIONS, UnixNode};
use super::step::told;
use crate::error::{FsError, Kind};
use crate::name::checked_name;
use crate::server::Change;

/// A step that can be undone.
enum Done<'a> {
    Mtime,
    Group,
    Mode,
    /// The directory, and the name before.
    Name(&'a UnixNode, &'a str, String),
}

/// Why a change is refused before anything is looked at.
pub(crate) fn check(change: &Change, name: &str, is_directory: bool) -> Result<(), FsError> {
    let refuse = |kind, what: &str| Err(FsError::because(kind, name, what));
    if let Some(name) = &change.name {
        checked_name(name)?;
    }
    match change.length {
        Some(1..) if is_directory => return Err(FsError::new(Kind::IsDirectory, name)),
        Some(length) if length > END_MAX => return Err(FsError::new(Kind::TooLarge, name)),
        _ => {}
    }
    if let Some(mode) = change.mode {
        let is_to_be = mode & ninep::kind::DIRECTORY != 0;
        if is_to_be && !is_directory {
            return refuse(Kind::Permission, "a file does not become a directory");
        }
        if mode & !(ninep::kind::DIRECTORY | PERMISSIONS) != 0 {
            return refuse(Kind::Unsupported, "only permission bits can be changed");
        }
    }
    if change.gid.as_ref().is_some_and(|gid| gid_of(gid).is_none()) {
        return refuse(Kind::Unsupported, "a group is told by its number");
    }
    Ok(())
}

fn gid_of(gid: &str) -> Option<Gid> {
    // The last one means none to the kernel.
    gid.parse().ok().filter(|gid| *gid != u32::MAX).map(Gid::from_raw)
}

pub(super) fn apply(node: &UnixNode, change: &Change) -> Result<(), FsError> {
    check(change, &node.name(), node.is_directory)?;
    if *change == Change::default() {
        return sync(node);
    }
    node.export.must_be_writable(&node.name())?;
    let before = node.look()?;
    let old_name = node.name_now(&before);
    let resized = match change.length {
        Some(length) if !node.is_directory => Some((node.reopen(OFlags::WRONLY)?, length)),
        _ => None,
    };
    let mut done = Vec::new();
    let changed = steps(node, change, &before, &old_name, resized.as_ref(), &mut done);
    if changed.is_err() {
        done.into_iter().rev().for_each(|step| undo(node, step, &before));
    }
    // Also what came and went again may have been seen.
    node.wrote();
    changed
}

/// With nothing to change: what was written is to last (Plan 9 manual, section 5, `stat`).
fn sync(node: &UnixNode) -> Result<(), FsError> {
    let held = node.reopen(OFlags::RDONLY)?;
    rustix::fs::fsync(&held).map_err(|error| told(&node.name(), error))
}

fn steps<'a>(
    node: &'a UnixNode,
    change: &'a Change,
    before: &Statx,
    old_name: &str,
    resized: Option<&(Held, u64)>,
    done: &mut Vec<Done<'a>>,
) -> Result<(), FsError> {
    let failed = |error| told(old_name, error);
    if let Some(mtime) = change.mtime {
        set_times(node, None, mtime.into(), 0).map_err(failed)?;
        done.push(Done::Mtime);
    }
    if let Some(gid) = change.gid.as_deref().and_then(gid_of) {
        set_group(node, gid).map_err(failed)?;
        done.push(Done::Group);
    }
    if let Some(mode) = change.mode {
        // Bits that are not told stay.
        let bits = u32::from(before.stx_mode) & 0o7000 | mode & PERMISSIONS;
        node.change_mode(Mode::from_raw_mode(bits))?;
        done.push(Done::Mode);
    }
    if let Some(name) = change.name.as_deref().filter(|name| *name != old_name) {
        let above = node.above_as(old_name)?;
        rename(above, old_name, name)?;
        above.wrote();
        node.renamed(name);
        done.push(Done::Name(above, name, old_name.into()));
    }
    if let Some((held, length)) = resized {
        rustix::fs::ftruncate(held, *length).map_err(failed)?;
        if let Some(mtime) = change.mtime {
            set_times(node, None, mtime.into(), 0).map_err(failed)?;
        }
    }
    Ok(())
}

/// Never onto another file.
fn rename(above: &UnixNode, from: &str, to: &str) -> Result<(), FsError> {
    let flags = RenameFlags::NOREPLACE;
    rustix::fs::renameat_with(&above.held, from, &above.held, to, flags).map_err(|error| {
        if error == Errno::INVAL {
            let what = "its file system cannot rename without replacing";
            return FsError::because(Kind::Unsupported, from, what);
        }
        told(to, error)
    })
}

/// Puts back what was before; what fails now is beyond help.
fn undo(node: &UnixNode, step: Done<'_>, before: &Statx) {
    match step {
        Done::Mtime => {
            let (atime, mtime) = (before.stx_atime, before.stx_mtime);
            let atime = Timespec { tv_sec: atime.tv_sec, tv_nsec: atime.tv_nsec.into() };
            let _ = set_times(node, Some(atime), mtime.tv_sec, mtime.tv_nsec.into());
        }
        Done::Group => {
            let _ = set_group(node, Gid::from_raw(before.stx_gid));
        }
        Done::Mode => {
            let _ = node.change_mode(Mode::from_raw_mode(u32::from(before.stx_mode) & 0o7777));
        }
        Done::Name(above, now, before) => {
            if rename(above, now, &before).is_ok() {
                node.renamed(&before);
            }
        }
    }
}

fn set_times(
    node: &UnixNode,
    atime: Option<Timespec>,
    seconds: i64,
    nanoseconds: i64,
) -> rustix::io::Result<()> {
    let times = Timestamps {
        last_access: atime.unwrap_or(Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }),
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
    };
    rustix::fs::utimensat(&node.export.numbered, node.number(), &times, AtFlags::empty())
}

fn set_group(node: &UnixNode, gid: Gid) -> rustix::io::Result<()> {
    let here = &node.export.numbered;
    rustix::fs::chownat(here, node.number(), None, Some(gid), AtFlags::empty())
}
