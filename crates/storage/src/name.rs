//! Where an output will appear: a folder held open, and a name in it.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;

use crate::error::{OutputError, OutputErrorKind, shown};

/// As many links as the kernel follows.
const LINKS_MAX: usize = 40;

/// A name in a folder. The folder is held open, so that it stays the same one
/// if it is moved during the run.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) dir: Arc<OwnedFd>,
    pub(crate) dir_path: PathBuf,
    pub(crate) name: OsString,
}

impl Name {
    /// Finds the folder of `path`, after all symbolic links, dangling ones too.
    pub(crate) fn resolve(shown_as: &str, path: &Path) -> Result<Self, OutputError> {
        let failed = |error| OutputError::os(shown_as, "cannot be written", &error);
        let path = follow_links(path).map_err(failed)?;
        let bytes = path.as_os_str().as_bytes();
        let name = path.file_name().filter(|_| !bytes.ends_with(b"/") && !bytes.ends_with(b"/."));
        let Some(name) = name else {
            return Err(not_a_file(shown_as, "names a directory"));
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let dir_path = parent.unwrap_or(Path::new(".")).to_owned();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&dir_path, flags, Mode::empty())
            .map_err(|error| no_parent(shown_as, &dir_path, error))?;
        Ok(Self { dir: Arc::new(dir), name: name.to_owned(), dir_path })
    }

    /// What has the name now; `None` if nothing has.
    pub(crate) fn stat(&self) -> rustix::io::Result<Option<Stat>> {
        match rustix::fs::statat(&*self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Says at the start what would keep `old` from being replaced at the end.
    pub(crate) fn check_replaceable(&self, shown_as: &str, old: &Stat) -> Result<(), OutputError> {
        let refuse = |what: &str, cure: &str| {
            Err(OutputError::new(OutputErrorKind::Unwritable, shown_as, what, cure))
        };
        if self.is_mount_point() {
            let what = "is a mount point, which cannot be replaced";
            return refuse(what, "write beside it and copy, or mount its folder instead");
        }
        let me = rustix::process::geteuid();
        let dir = rustix::fs::fstat(&*self.dir)
            .map_err(|error| OutputError::os(shown_as, "cannot be written", &error.into()))?;
        let sticky = Mode::from_raw_mode(dir.st_mode).contains(Mode::SVTX);
        let mine = me.is_root() || [old.st_uid, dir.st_uid].contains(&me.as_raw());
        if sticky && !mine {
            let what = "belongs to somebody else, in a folder where only owners replace files";
            return refuse(what, "write to another folder");
        }
        Ok(())
    }

    /// A file can have something mounted on it, as containers do.
    fn is_mount_point(&self) -> bool {
        let mount = |name: &Path, flags| {
            rustix::fs::statx(&*self.dir, name, flags, StatxFlags::MNT_ID)
                .ok()
                .filter(|stat| stat.stx_mask & StatxFlags::MNT_ID.bits() != 0)
                .map(|stat| stat.stx_mnt_id)
        };
        let dir = mount(Path::new(""), AtFlags::EMPTY_PATH);
        let file = mount(Path::new(&self.name), AtFlags::SYMLINK_NOFOLLOW);
        matches!((dir, file), (Some(dir), Some(file)) if dir != file)
    }
}

/// Whether two names stand for one regular file, or would if both were written:
/// neither spelling nor links, dangling ones too, make a difference.
#[must_use]
pub fn same_file(a: &Path, b: &Path) -> bool {
    if let (Ok(a), Ok(b)) = (a.metadata(), b.metadata()) {
        return a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino());
    }
    same_place(a, b)
}

/// Whether two names are one place: the same name in the same folder, whatever
/// is there, after all symbolic links.
#[must_use]
pub fn same_place(a: &Path, b: &Path) -> bool {
    // What cannot be resolved cannot be written either, and says so then.
    let place = |path: &Path| {
        let Name { dir, name, .. } = Name::resolve("", path).ok()?;
        let dir = rustix::fs::fstat(&*dir).ok()?;
        Some((dir.st_dev, dir.st_ino, name))
    };
    place(a).is_some_and(|a| place(b) == Some(a))
}

pub(crate) fn not_a_file(shown_as: &str, what: &str) -> OutputError {
    let cure = "name a file in it, a device or a pipe";
    OutputError::new(OutputErrorKind::Unwritable, shown_as, what, cure)
}

/// The file that `path` finally stands for, which need not exist.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        // The kernel resolves the folders; only the last name may dangle.
        let Ok(target) = path.read_link() else {
            return Ok(path);
        };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(Errno::LOOP.into())
}

fn no_parent(shown_as: &str, dir: &Path, error: Errno) -> OutputError {
    let dir = shown(dir);
    let (what, cure) = match error {
        Errno::NOENT => (format!("folder {dir} does not exist"), format!("mkdir -p {dir}")),
        Errno::NOTDIR => (format!("{dir} is not a folder"), "check the name".to_owned()),
        other => {
            let what = format!("folder {dir} cannot be opened: {}", io::Error::from(other));
            (what, "write to another folder".to_owned())
        }
    };
    OutputError::new(OutputErrorKind::Unwritable, shown_as, what, cure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_has_many_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("sub")).unwrap();
        std::fs::write(path("old"), "").unwrap();
        std::fs::hard_link(path("old"), path("hard")).unwrap();
        for (target, link) in [("old", "soft"), ("new", "dangling"), (".", "here")] {
            std::os::unix::fs::symlink(target, path(link)).unwrap();
        }
        for (a, b) in [
            ("old", "hard"),
            ("old", "soft"),
            ("new", "./new"),
            ("new", "sub/../new"),
            ("new", "here/new"),
            ("new", "dangling"),
            ("here/dangling", "sub/../new"),
        ] {
            assert!(same_file(&path(a), &path(b)) && same_file(&path(b), &path(a)), "{a}, {b}");
        }
        for (a, b) in [("old", "new"), ("new", "sub/new"), ("new", "newer"), ("no/a", "no/a")] {
            assert!(!same_file(&path(a), &path(b)), "{a}, {b}");
        }
        assert!(!same_file(Path::new("/dev/null"), Path::new("/dev/null")), "a device holds both");
    }
}
