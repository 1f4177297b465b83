//! Which temporary files have a name, so that a signal can take them away.

use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::AtFlags;
use rustix::io::Errno;

/// Random names tried before giving up; the second is never needed in practice.
const NAMES_MAX: usize = 16;
/// A file name has at most 255 bytes; this much of the output's own is shown.
const OWN_NAME_BYTES_MAX: usize = 200;

static HIDDEN: Mutex<List> = Mutex::new(List(Vec::new()));

/// The hidden files there are now. Whoever holds it is alone in giving and
/// taking names.
#[derive(Debug)]
pub(crate) struct List(Vec<Arc<Entry>>);

#[derive(Debug)]
struct Entry {
    dir: Arc<OwnedFd>,
    name: OsString,
}

/// A hidden temporary file; dropping it removes it, unless it got its final
/// name. That takes the lock: never drop it under it.
#[derive(Debug)]
pub(crate) struct Hidden(Arc<Entry>);

/// While this lives no output gets its name and no temporary file is made.
/// Keep it until the process exits.
#[derive(Debug)]
#[must_use = "keep it until the process exits, or an output may still appear"]
pub struct Halted(#[expect(dead_code, reason = "holding the lock is its use")] Locked);

pub(crate) type Locked = MutexGuard<'static, List>;

/// Removes the temporary files of all unfinished outputs, and halts whatever
/// would finish or start one. For the thread that handles `SIGINT` and
/// `SIGTERM`, just before it exits.
pub fn remove_unfinished() -> Halted {
    let mut list = lock();
    for entry in list.0.drain(..) {
        entry.remove();
    }
    Halted(list)
}

/// Waits for the list.
pub(crate) fn lock() -> Locked {
    HIDDEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl List {
    /// Makes a hidden file in `dir` that `make` creates under the name it is
    /// given, with an error if there is such a name already.
    pub(crate) fn create<T>(
        &mut self,
        dir: &Arc<OwnedFd>,
        own_name: &OsString,
        mut make: impl FnMut(&OsString) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<(Hidden, T)> {
        for _ in 0..NAMES_MAX {
            let name = hidden_name(own_name);
            match make(&name) {
                Ok(made) => {
                    let entry = Arc::new(Entry { dir: Arc::clone(dir), name });
                    self.0.push(Arc::clone(&entry));
                    return Ok((Hidden(entry), made));
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EXIST)
    }
}

impl Hidden {
    /// One that stays when it is dropped, and whatever signal comes.
    pub(crate) fn kept(dir: &Arc<OwnedFd>, name: &OsStr) -> Self {
        Self(Arc::new(Entry { dir: Arc::clone(dir), name: name.to_owned() }))
    }

    pub(crate) fn name(&self) -> &OsString {
        &self.0.name
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let mut list = lock();
        if let Some(place) = list.0.iter().position(|entry| Arc::ptr_eq(entry, &self.0)) {
            list.0.swap_remove(place).remove();
        }
    }
}

impl Entry {
    fn remove(&self) {
        // It may have its final name by now, and then this one is gone.
        let removed = rustix::fs::unlinkat(&*self.dir, &self.name, AtFlags::empty());
        if removed == Err(Errno::ISDIR) {
            // What cannot be taken away stays where it is.
            let dir = Path::new("/proc/self/fd").join(self.dir.as_raw_fd().to_string());
            let _ = std::fs::remove_dir_all(dir.join(&self.name));
        }
    }
}

/// What stands before a hidden name's digits.
const MARK: &str = ".cellway-";

/// Whether a name is one that [`hidden_name`] gives.
#[must_use]
pub fn is_hidden_name(name: &OsStr) -> bool {
    own_name(name).is_some()
}

/// The name that one will have which is hidden, but for what did not fit.
pub(crate) fn own_name(hidden: &OsStr) -> Option<&str> {
    let (own_name, digits) = hidden.to_str()?.strip_prefix('.')?.rsplit_once(MARK)?;
    let is_one = digits.len() == 16 && u64::from_str_radix(digits, 16).is_ok();
    (is_one && !own_name.contains('/')).then_some(own_name)
}

/// `.NAME.cellway-` and 16 random hex digits.
#[must_use]
pub fn hidden_name(own_name: &OsStr) -> OsString {
    let own_name = own_name.to_string_lossy();
    let own_name = &own_name[..own_name.floor_char_boundary(OWN_NAME_BYTES_MAX)];
    let random = RandomState::new().hash_one(std::process::id());
    format!(".{own_name}{MARK}{random:016x}").into()
}

/// Whether somebody holds the list.
#[cfg(test)]
pub(crate) fn is_locked() -> bool {
    matches!(HIDDEN.try_lock(), Err(std::sync::TryLockError::WouldBlock))
}
