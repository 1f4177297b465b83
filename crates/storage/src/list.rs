//! Many inputs: which there are, and in what order, before any is read.

use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::error::{InputError, InputErrorKind, shown};
use crate::input::cannot_open;
use crate::unfinished::is_hidden_name;

/// An input that was found and not opened yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    path: Box<Path>,
    /// So many bytes at the path's end are its name.
    name_bytes: usize,
    len_bytes: Option<u64>,
    identity: (u64, u64),
    modified: (i64, i64),
}

impl Listed {
    fn new(path: PathBuf, name_bytes: usize, stat: &Metadata) -> Self {
        let len_bytes = stat.is_file().then_some(stat.len());
        let identity = (stat.dev(), stat.ino());
        let modified = (stat.mtime(), stat.mtime_nsec());
        Self { path: path.into(), name_bytes, len_bytes, identity, modified }
    }

    /// What to open.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path for messages.
    #[must_use]
    pub fn shown(&self) -> String {
        shown(&self.path)
    }

    /// Its own name; below a directory that was asked for, the path from there.
    #[must_use]
    pub fn name(&self) -> &Path {
        let bytes = self.path.as_os_str().as_bytes();
        Path::new(OsStr::from_bytes(&bytes[bytes.len() - self.name_bytes..]))
    }

    /// A file's length in bytes; `None` for devices and pipes.
    #[must_use]
    pub fn len_bytes(&self) -> Option<u64> {
        self.len_bytes
    }

    /// Device and inode number: equal for two names of one file.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// When its content last changed: seconds and nanoseconds.
    #[must_use]
    pub fn modified(&self) -> (i64, i64) {
        self.modified
    }
}

/// Finds out what `paths` are, in their order. With `recursive` a directory
/// stands for the files in it and below, sorted by the bytes of their paths;
/// links, devices, pipes and sockets in it are passed over, and what has the name
/// of an output that is not whole ([`is_hidden_name`]): one of this very run may be there
/// already. Links among `paths` themselves are followed.
///
/// # Errors
/// What cannot be looked at, and a directory without `recursive`.
pub fn list(paths: &[PathBuf], recursive: bool) -> Result<Vec<Listed>, InputError> {
    let mut listed = Vec::new();
    for path in paths {
        let found = path.metadata().map_err(|error| cannot_open(&shown(path), path, &error))?;
        if !found.is_dir() {
            let name_bytes = path.file_name().map_or(0, OsStr::len);
            listed.push(Listed::new(path.clone(), name_bytes, &found));
        } else if recursive {
            walk(path, &mut listed)?;
        } else {
            let cure = "give --recursive to read the files in it";
            let name = &shown(path);
            return Err(InputError::new(InputErrorKind::NotAFile, name, "is a directory", cure));
        }
    }
    Ok(listed)
}

/// What a directory holds, as far as it counts.
struct Found {
    name: OsString,
    /// `None` for a directory.
    file: Option<Metadata>,
}

impl Found {
    fn of(entry: std::io::Result<DirEntry>) -> std::io::Result<Option<Self>> {
        let entry = entry?;
        let kind = entry.file_type()?;
        if !kind.is_dir() && !kind.is_file() || is_hidden_name(&entry.file_name()) {
            return Ok(None);
        }
        let file = if kind.is_file() { Some(entry.metadata()?) } else { None };
        Ok(Some(Self { name: entry.file_name(), file }))
    }

    /// Sorts as the paths do that begin with it.
    fn key(&self) -> impl Iterator<Item = &u8> {
        let end: &[u8] = if self.file.is_none() { b"/" } else { b"" };
        self.name.as_bytes().iter().chain(end)
    }
}

/// Lists the files below `root`. Only one directory is open at a time.
fn walk(root: &Path, listed: &mut Vec<Listed>) -> Result<(), InputError> {
    let mut path = root.to_owned();
    // The rest of each directory on the way to the one at hand.
    let mut rests = vec![entries(&path)?.into_iter()];
    let mut name_bytes = 0;
    while let Some(rest) = rests.last_mut() {
        match rest.next() {
            None => {
                rests.pop();
                let last = path.file_name().map_or(0, OsStr::len);
                name_bytes = usize::saturating_sub(name_bytes, last + 1);
                if !rests.is_empty() {
                    path.pop();
                }
            }
            Some(Found { name, file: Some(stat) }) => {
                let own_bytes = name_bytes + name.len();
                listed.push(Listed::new(path.join(name), own_bytes, &stat));
            }
            Some(Found { name, file: None }) => {
                name_bytes += name.len() + 1;
                path.push(name);
                rests.push(entries(&path)?.into_iter());
            }
        }
    }
    Ok(())
}

fn entries(dir: &Path) -> Result<Vec<Found>, InputError> {
    let failed = |error: std::io::Error| cannot_open(&shown(dir), dir, &error);
    let found = dir.read_dir().map_err(failed)?.map(Found::of);
    let mut found: Vec<_> =
        found.filter_map(Result::transpose).collect::<Result<_, _>>().map_err(failed)?;
    found.sort_unstable_by(|a, b| a.key().cmp(b.key()));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::disk_dir;
    use proptest::prelude::*;

    fn names(listed: &[Listed]) -> Vec<&Path> {
        listed.iter().map(Listed::name).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn a_tree_is_listed_by_the_bytes_of_its_paths(
            paths in prop::collection::btree_set("[a.0-]{1,2}(/[a.0-]{1,2}){0,3}", 0..40),
            slash in any::<bool>(),
        ) {
            let dir = disk_dir();
            let mut made = Vec::new();
            for path in paths {
                let whole = dir.path().join(&path);
                let is_plain = !path.split('/').any(|name| name.trim_matches('.').is_empty());
                let parent = whole.parent().unwrap();
                if is_plain && std::fs::create_dir_all(parent).is_ok() && !whole.exists() {
                    std::fs::write(whole, &path).unwrap();
                    made.push(path);
                }
            }
            made.sort();
            let root = if slash { dir.path().join("") } else { dir.path().to_owned() };
            let listed = list(&[root], true).unwrap();
            prop_assert_eq!(names(&listed), made.iter().map(Path::new).collect::<Vec<_>>());
            for (listed, path) in listed.iter().zip(&made) {
                prop_assert_eq!(listed.len_bytes(), Some(path.len() as u64));
                prop_assert_eq!(std::fs::read_to_string(listed.path()).unwrap(), path.as_str());
            }
        }
    }

    #[test]
    fn links_are_followed_where_they_are_asked_for() {
        let dir = disk_dir();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("sub")).unwrap();
        std::fs::write(path("sub/file"), "abc").unwrap();
        std::os::unix::fs::symlink("sub", path("to-dir")).unwrap();
        std::os::unix::fs::symlink("sub/file", path("to-file")).unwrap();
        std::os::unix::fs::symlink("nowhere", path("dangling")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        assert_eq!(names(&list(&[path("")], true).unwrap()), [Path::new("sub/file")]);
        let both = list(&[path("to-file"), path("to-dir")], true).unwrap();
        assert_eq!(names(&both), [Path::new("to-file"), Path::new("file")]);
        assert_eq!(both[0].identity(), both[1].identity());
        assert_eq!(list(&["/dev/null".into()], false).unwrap()[0].len_bytes(), None);
    }

    #[test]
    fn what_is_not_whole_yet_is_passed_over() {
        let dir = disk_dir();
        let path = |name: &str| dir.path().join(name);
        let (dirs, file) =
            (path("out/.outputs.cellway-00000000000007be"), "out/.in.cellway-00000000000000a1");
        std::fs::create_dir_all(&dirs).unwrap();
        for path in [dirs.join("0"), path(file), path(".in.cellway"), path("in")] {
            std::fs::write(path, "abc").unwrap();
        }
        let listed = list(&[path("")], true).unwrap();
        assert_eq!(names(&listed), [Path::new(".in.cellway"), Path::new("in")]);
        // Who asks for one by name gets it.
        assert_eq!(list(&[path(file)], true).unwrap().len(), 1);
    }

    #[test]
    fn what_cannot_be_listed_is_named() {
        let dir = disk_dir();
        let path = |name: &str| dir.path().join(name);
        let refused = |name: &str| list(&[path("."), path(name)], true).unwrap_err();
        assert_eq!(refused("missing").kind(), InputErrorKind::Missing);
        let error = list(&[path("")], false).unwrap_err();
        assert_eq!(error.kind(), InputErrorKind::NotAFile);
        assert!(
            error.to_string().ends_with("is a directory; give --recursive to read the files in it")
        );
        crate::testing::obeying_permissions(|| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::create_dir(path("closed")).unwrap();
            std::fs::set_permissions(path("closed"), PermissionsExt::from_mode(0o0)).unwrap();
            let error = list(&[path("")], true).unwrap_err();
            assert_eq!(error.kind(), InputErrorKind::Denied);
            assert!(error.to_string().contains("closed: permission denied"), "{error}");
        });
    }
}
