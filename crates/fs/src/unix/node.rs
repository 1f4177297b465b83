//! A file or directory below the root that is served.

use std::hash::Hash;
use std::sync::{Arc, Mutex};

use ninep::kind;
use rustix::fs::{Access, AtFlags, Mode, OFlags, Statx};
use rustix::io::Errno;
use rustix::path::DecInt;

use super::file::UnixFile;
use super::held::Held;
use super::listing::{Listing, Names};
use super::numbers::Identity;
use super::step::{is_directory, is_shown, look, step, told};
use super::{Export, wstat};
use crate::error::{FsError, Kind};
use crate::name::checked_name;
use crate::server::{Answer, Change, Info, Node, OpenFile, OpenMode, now};
use crate::sync::lock;

/// Directories below one another, at most: dropping the last of them drops all.
pub(crate) const DEPTH_MAX: u32 = 1000;

/// Permission bits, the only ones that are told and changed.
pub(crate) const PERMISSIONS: u32 = 0o777;

/// A file or directory, held.
#[derive(Clone)]
pub(crate) struct UnixNode(Arc<Place>);

pub(crate) struct Place {
    pub(super) export: Arc<Export>,
    pub(super) held: Held,
    /// The directory it was found in; none above the root.
    above: Option<UnixNode>,
    /// As it was called last.
    name: Mutex<String>,
    depth: u32,
    pub(super) identity: Identity,
    pub(super) is_directory: bool,
    /// Of its qid.
    pub(super) path: u64,
}

impl std::ops::Deref for UnixNode {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.0
    }
}

impl UnixNode {
    pub(super) fn root(export: Arc<Export>, held: Held) -> Result<Self, FsError> {
        let seen = look(&held, "").map_err(|error| told("/", error))?;
        Ok(Self::found(export, held, None, "/", &seen))
    }

    fn found(
        export: Arc<Export>,
        held: Held,
        above: Option<UnixNode>,
        name: &str,
        seen: &Statx,
    ) -> Self {
        let identity = Identity::of(seen);
        Self(Arc::new(Place {
            path: export.numbers.path(identity),
            depth: above.as_ref().map_or(0, |above| above.depth + 1),
            name: Mutex::new(name.into()),
            is_directory: is_directory(seen),
            export,
            held,
            above,
            identity,
        }))
    }

    /// The node of what `held` is: the entry `name` of this directory.
    fn entry(&self, name: &str, held: Held) -> Result<Self, FsError> {
        let seen = look(&held, "").map_err(|error| told(name, error))?;
        if !is_shown(&seen) {
            let what = "neither a file nor a directory; nothing else is served";
            return Err(FsError::because(Kind::Permission, name, what));
        }
        if self.depth >= DEPTH_MAX {
            let what = format!("more than {DEPTH_MAX} directories below one another");
            return Err(FsError::because(Kind::BadName, name, what));
        }
        Ok(Self::found(self.export.clone(), held, Some(self.clone()), name, &seen))
    }

    pub(crate) fn step(&self, name: &str) -> Result<Self, FsError> {
        checked_name(name)?;
        self.must_be_directory(name)?;
        let open = || step(&self.held, name, OFlags::PATH, Mode::empty());
        self.entry(name, self.export.seats.hold(name, open)?)
    }

    /// What is known of the entry `name`; nothing of one that is not shown.
    pub(crate) fn look_at(&self, name: &str) -> Result<Option<Info>, FsError> {
        match look(&self.held, name) {
            Ok(seen) if is_shown(&seen) => {
                let path = self.export.numbers.path(Identity::of(&seen));
                Ok(Some(self.export.info(path, name, &seen)))
            }
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(told(name, error)),
        }
    }

    /// Whether something is called so, shown or not.
    pub(crate) fn has(&self, name: &str) -> Result<bool, FsError> {
        match look(&self.held, name) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(told(name, error)),
        }
    }

    /// Of its qid.
    pub(crate) fn path(&self) -> u64 {
        self.path
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.is_directory
    }

    /// A number that `what` has and nobody can find out without the server's key.
    pub(crate) fn hash(&self, what: impl Hash) -> u64 {
        self.export.numbers.hash(what)
    }

    /// What is known of it but its name, which is left out.
    pub(crate) fn info_unnamed(&self) -> Result<Info, FsError> {
        Ok(self.export.info(self.path, "", &self.look()?))
    }

    pub(super) fn info(&self) -> Result<Info, FsError> {
        let seen = self.look()?;
        Ok(self.export.info(self.path, &self.name_now(&seen), &seen))
    }

    pub(crate) fn names(&self) -> Result<Vec<String>, FsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        Names::read(&self.name(), &self.reopen(flags)?)
    }

    /// Opens it; of directories see [`Self::names`].
    pub(crate) fn open_file(&self, mode: OpenMode) -> Result<UnixFile, FsError> {
        self.may_open(mode)?;
        let held = self.reopen(flags_of(mode))?;
        if mode.truncate {
            self.wrote();
        }
        Ok(UnixFile::new(self.clone(), held, mode))
    }

    fn may_open(&self, mode: OpenMode) -> Result<(), FsError> {
        let changes = mode.write || mode.truncate;
        if self.is_directory && (changes || mode.execute) {
            return Err(FsError::new(Kind::IsDirectory, self.name()));
        }
        if !(mode.read || mode.write || mode.execute) {
            return Err(FsError::new(Kind::BadMode, self.name()));
        }
        if changes {
            self.export.must_be_writable(&self.name())?;
        }
        if mode.execute {
            let (here, number) = (&self.export.numbered, self.number());
            rustix::fs::accessat(here, number, Access::EXEC_OK, AtFlags::EACCESS)
                .map_err(|error| told(&self.name(), error))?;
        }
        Ok(())
    }

    pub(super) fn opened(&self, mode: OpenMode) -> Result<Arc<dyn OpenFile>, FsError> {
        if self.is_directory {
            self.may_open(mode)?;
            return Ok(Arc::new(Listing::of(self.clone())?));
        }
        Ok(Arc::new(self.open_file(mode)?))
    }

    /// Another descriptor of the same file. Its kind is known, so this never waits.
    pub(super) fn reopen(&self, flags: OFlags) -> Result<Held, FsError> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let here = &self.export.numbered;
        let open = || rustix::fs::openat(here, self.number(), flags, Mode::empty());
        self.export.seats.hold(&self.name(), open)
    }

    pub(super) fn make(
        &self,
        name: &str,
        permissions: u32,
        mode: OpenMode,
    ) -> Result<(Self, Arc<dyn OpenFile>), FsError> {
        checked_name(name)?;
        self.must_be_directory(name)?;
        self.export.must_be_writable(name)?;
        let permissions = permissions_below(name, permissions, self.look()?.stx_mode.into())?;
        let bits = Mode::from_raw_mode(permissions & PERMISSIONS);
        if permissions & kind::DIRECTORY != 0 {
            if mode.write || mode.truncate || mode.execute {
                return Err(FsError::new(Kind::IsDirectory, name));
            }
            let node = self.make_directory(name, bits)?;
            let open = node.opened(mode).inspect_err(|_| drop(node.unlink(name)))?;
            self.wrote();
            return Ok((node, open));
        }
        if !(mode.read || mode.write || mode.execute) {
            return Err(FsError::new(Kind::BadMode, name));
        }
        let flags = flags_of(mode) | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let open = self.export.seats.hold(name, || step(&self.held, name, flags, bits))?;
        let node = self.make_node(name, &open, bits).inspect_err(|_| {
            // As if it had not been made, unless it is another by now.
            let same = |there: &Statx| look(&open, "").is_ok_and(|own| is_same(&own, there));
            if look(&self.held, name).is_ok_and(|there| same(&there)) {
                let _ = rustix::fs::unlinkat(&self.held, name, AtFlags::empty());
            }
        })?;
        self.wrote();
        Ok((node.clone(), Arc::new(UnixFile::new(node, open, mode))))
    }

    /// The node of a file just made and open.
    fn make_node(&self, name: &str, open: &Held, bits: Mode) -> Result<Self, FsError> {
        // The process's umask is not the caller's.
        rustix::fs::fchmod(open, bits).map_err(|error| told(name, error))?;
        let here = &self.export.numbered;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let held = self
            .export
            .seats
            .hold(name, || rustix::fs::openat(here, DecInt::from_fd(open), flags, Mode::empty()))?;
        self.entry(name, held)
    }

    fn make_directory(&self, name: &str, bits: Mode) -> Result<Self, FsError> {
        rustix::fs::mkdirat(&self.held, name, bits).map_err(|error| told(name, error))?;
        let node = self.step(name).inspect_err(|_| {
            // Only an empty directory goes by that.
            let _ = rustix::fs::unlinkat(&self.held, name, AtFlags::REMOVEDIR);
        })?;
        // What the umask took away comes back, to what looks like it was just made.
        let seen = node.look()?;
        let mode = Mode::from_raw_mode(seen.stx_mode.into());
        let is_own = seen.stx_uid == rustix::process::geteuid().as_raw();
        let got = mode & Mode::from_raw_mode(PERMISSIONS);
        if is_own && got != bits && bits.contains(got) {
            let special = mode & (Mode::SUID | Mode::SGID | Mode::SVTX);
            node.change_mode(bits | special)?;
        }
        Ok(node)
    }

    pub(super) fn change_mode(&self, mode: Mode) -> Result<(), FsError> {
        let here = &self.export.numbered;
        rustix::fs::chmodat(here, self.number(), mode, AtFlags::empty())
            .map_err(|error| told(&self.name(), error))
    }

    fn unlink(&self, name: &str) -> Result<(), FsError> {
        let above = self.above_as(name)?;
        let flags = if self.is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        rustix::fs::unlinkat(&above.held, name, flags).map_err(|error| told(name, error))?;
        above.wrote();
        // A directory's links are its own entries.
        if self.is_directory || self.look().is_ok_and(|seen| seen.stx_nlink == 0) {
            self.export.numbers.removed(self.identity);
        }
        Ok(())
    }

    /// Its directory, in which it still is `name`. Between this look and what is
    /// done then, who may write to the directory can put another file there.
    pub(super) fn above_as(&self, name: &str) -> Result<&Self, FsError> {
        let Some(above) = &self.above else {
            let what = "the root of a tree stays what it is";
            return Err(FsError::because(Kind::Permission, "/", what));
        };
        let there = look(&above.held, name).map_err(|error| told(name, error))?;
        if Identity::of(&there) != self.identity {
            let what = "renamed or removed by somebody else";
            return Err(FsError::because(Kind::NotFound, name, what));
        }
        Ok(above)
    }

    /// Takes note of a change to what it holds, once it is made.
    pub(super) fn wrote(&self) {
        self.export.numbers.wrote(self.path);
    }

    pub(super) fn look(&self) -> Result<Statx, FsError> {
        look(&self.held, "").map_err(|error| told(&self.name(), error))
    }

    /// What the kernel calls it by now.
    pub(super) fn name_now(&self, seen: &Statx) -> String {
        let before = self.name();
        if self.above.is_none() || seen.stx_nlink == 0 {
            return before;
        }
        let Ok(path) = rustix::fs::readlinkat(&self.export.numbered, self.number(), Vec::new())
        else {
            return before;
        };
        let name = path.to_str().ok().and_then(|path| path.rsplit('/').next());
        // So ends the path of a name that is gone, of a file that has others.
        match name {
            Some(name) if name.strip_suffix(" (deleted)") != Some(&*before) => {
                self.renamed(name);
                name.into()
            }
            _ => before,
        }
    }

    pub(super) fn renamed(&self, name: &str) {
        name.clone_into(&mut lock(&self.name));
    }

    pub(super) fn name(&self) -> String {
        lock(&self.name).clone()
    }

    /// Its descriptor's name below `/proc/self/fd`.
    pub(super) fn number(&self) -> DecInt {
        DecInt::from_fd(&self.held)
    }

    fn must_be_directory(&self, name: &str) -> Result<(), FsError> {
        if self.is_directory { Ok(()) } else { Err(FsError::new(Kind::NotDirectory, name)) }
    }
}

impl Export {
    pub(super) fn must_be_writable(&self, name: &str) -> Result<(), FsError> {
        if self.read_only {
            let what = "permission denied: the tree is served for reading only";
            return Err(FsError::because(Kind::Permission, name, what));
        }
        Ok(())
    }

    fn info(&self, path: u64, name: &str, seen: &Statx) -> Info {
        let seconds = |time: i64| u32::try_from(time.max(0)).unwrap_or(u32::MAX);
        let is_directory = is_directory(seen);
        Info {
            qid: self.numbers.qid(path, seen),
            mode: u32::from(seen.stx_mode) & PERMISSIONS
                | if is_directory { kind::DIRECTORY } else { 0 },
            atime: seconds(seen.stx_atime.tv_sec),
            mtime: seconds(seen.stx_mtime.tv_sec),
            length: if is_directory { 0 } else { seen.stx_size },
            name: name.into(),
            uid: seen.stx_uid.to_string(),
            gid: seen.stx_gid.to_string(),
            muid: String::new(),
        }
    }
}

fn is_same(one: &Statx, other: &Statx) -> bool {
    Identity::of(one) == Identity::of(other)
}

/// The permissions a new file gets in a directory with `mode` (Plan 9 manual,
/// section 5, `open`).
pub(crate) fn permissions_below(name: &str, asked: u32, mode: u32) -> Result<u32, FsError> {
    if asked & !(kind::DIRECTORY | PERMISSIONS) != 0 {
        let what = "append-only, exclusive and temporary files are not to be had here";
        return Err(FsError::because(Kind::Unsupported, name, what));
    }
    let given_on = if asked & kind::DIRECTORY != 0 { 0o777 } else { 0o666 };
    Ok(asked & (!given_on | mode & given_on))
}

fn flags_of(mode: OpenMode) -> OFlags {
    let reads = mode.read || mode.execute;
    let access = match (reads, mode.write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    if mode.truncate { access | OFlags::TRUNC } else { access }
}

impl Node for UnixNode {
    fn stat(&self) -> Answer<'_, Info> {
        now(self.info())
    }

    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        now(self.step(name).map(|node| Arc::new(node) as Arc<dyn Node>))
    }

    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        now(self.opened(mode))
    }

    fn create<'a>(
        &'a self,
        name: &'a str,
        permissions: u32,
        mode: OpenMode,
    ) -> Answer<'a, (Arc<dyn Node>, Arc<dyn OpenFile>)> {
        let made = self.make(name, permissions, mode);
        now(made.map(|(node, open)| (Arc::new(node) as Arc<dyn Node>, open)))
    }

    fn remove(&self) -> Answer<'_, ()> {
        let removed = || {
            self.export.must_be_writable(&self.name())?;
            self.unlink(&self.name_now(&self.look()?))
        };
        now(removed())
    }

    fn wstat<'a>(&'a self, change: &'a Change) -> Answer<'a, ()> {
        now(wstat::apply(self, change))
    }
}
