//! What was changed in a directory: names made, renamed and gone.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, Weak};

use super::Tree;
use super::entry::{Entry, Own};
use super::memory::Share;
use crate::error::{FsError, Kind};
use crate::server::Info;
use crate::sync::lock;
use crate::unix::UnixNode;

/// What a changed name takes, about, besides the name itself.
const NAME_BYTES: usize = 512;

/// So many entries that nobody holds any more are remembered, at least.
const HELD_MIN: usize = 64;

#[derive(Default)]
pub(super) struct State {
    /// Nothing is made in it any more.
    is_removed: bool,
    changed: BTreeMap<String, Changed>,
    /// Entries that are on the disk as they are here, while somebody holds them:
    /// whoever walks to one gets the same.
    held: HashMap<String, Weak<Entry>>,
    /// How many of those are there at the next look for some to forget.
    held_max: usize,
}

/// A name that is not, or not any more, as on the disk.
struct Changed {
    /// None: gone.
    entry: Option<Arc<Entry>>,
    _share: Share,
}

impl State {
    fn set(&mut self, tree: &Tree, name: &str, entry: Option<Arc<Entry>>) -> Result<(), FsError> {
        if let Some(changed) = self.changed.get_mut(name) {
            changed.entry = entry;
            return Ok(());
        }
        let _share = tree.memory.take(name, NAME_BYTES + 2 * name.len())?;
        self.changed.insert(name.into(), Changed { entry, _share });
        Ok(())
    }

    fn hold(&mut self, name: &str, entry: &Arc<Entry>) {
        if self.held.len() >= self.held_max.max(HELD_MIN) {
            self.held.retain(|_, entry| entry.strong_count() > 0);
            self.held_max = 2 * self.held.len();
        }
        self.held.insert(name.into(), Arc::downgrade(entry));
    }
}

impl Entry {
    fn state(&self, name: &str) -> Result<MutexGuard<'_, State>, FsError> {
        let names = self.names.as_ref().ok_or_else(|| FsError::new(Kind::NotDirectory, name))?;
        Ok(lock(names))
    }

    /// The directory it is in, and what was changed there.
    fn above(&self) -> Result<(&Arc<Entry>, MutexGuard<'_, State>), FsError> {
        let Some(above) = &self.above else {
            let what = "the root of a tree stays what it is";
            return Err(FsError::because(Kind::Permission, "/", what));
        };
        Ok((above, above.state(&self.name())?))
    }

    /// Whether the disk has that name here.
    fn is_on_disk(&self, name: &str) -> Result<bool, FsError> {
        self.base.as_ref().map_or(Ok(false), |base| base.has(name))
    }

    fn has(&self, state: &State, name: &str) -> Result<bool, FsError> {
        match state.changed.get(name) {
            Some(changed) => Ok(changed.entry.is_some()),
            None => self.is_on_disk(name),
        }
    }

    pub(super) fn walk(self: &Arc<Self>, name: &str) -> Result<Arc<Entry>, FsError> {
        let mut state = self.state(name)?;
        let missing = || FsError::new(Kind::NotFound, name);
        if let Some(changed) = state.changed.get(name) {
            return changed.entry.clone().ok_or_else(missing);
        }
        if let Some(entry) = state.held.get(name).and_then(Weak::upgrade) {
            return Ok(entry);
        }
        let base = self.base.as_ref().ok_or_else(missing)?;
        let entry = Entry::on_disk(self, name, base.step(name)?);
        state.hold(name, &entry);
        Ok(entry)
    }

    /// What is known of the entry `name`; nothing of one that is gone or not shown.
    pub(super) fn look_at(&self, tree: &Tree, name: &str) -> Result<Option<Info>, FsError> {
        let state = self.state(name)?;
        if let Some(changed) = state.changed.get(name) {
            return changed.entry.as_ref().map(|entry| entry.info(tree)).transpose();
        }
        if let Some(entry) = state.held.get(name).and_then(Weak::upgrade) {
            return entry.info(tree).map(Some);
        }
        let Some(mut info) = self.base.as_ref().map_or(Ok(None), |base| base.look_at(name))? else {
            return Ok(None);
        };
        info.qid.path = self.path_on_disk(name, info.qid.path);
        Ok(Some(info))
    }

    /// The names of all entries.
    pub(super) fn all_names(&self) -> Result<Vec<String>, FsError> {
        self.names_but_gone(&*self.state(&self.name())?)
    }

    fn names_but_gone(&self, state: &State) -> Result<Vec<String>, FsError> {
        let mut names = self.base.as_ref().map(UnixNode::names).transpose()?.unwrap_or_default();
        names.retain(|name| !state.changed.contains_key(name));
        let made = state.changed.iter().filter(|(_, changed)| changed.entry.is_some());
        names.extend(made.map(|(name, _)| name.clone()));
        Ok(names)
    }

    pub(super) fn make(
        self: &Arc<Self>,
        tree: &Tree,
        name: &str,
        own: Own,
        is_directory: bool,
    ) -> Result<Arc<Entry>, FsError> {
        self.keep(tree)?;
        let entry = Entry::made(tree, self, name, own, is_directory)?;
        let mut state = self.state(name)?;
        if state.is_removed {
            return Err(FsError::because(Kind::NotFound, name, "its directory was removed"));
        }
        if self.has(&state, name)? {
            return Err(FsError::new(Kind::Exists, name));
        }
        state.set(tree, name, Some(entry.clone()))?;
        entry.is_kept.store(true, Ordering::Release);
        drop(state);
        self.touch(tree)?;
        Ok(entry)
    }

    pub(super) fn remove(self: &Arc<Self>, tree: &Tree) -> Result<(), FsError> {
        let name = self.name();
        self.above.as_ref().map_or(Ok(()), |above| above.keep(tree))?;
        let (above, mut state) = self.above()?;
        let name = self.still(name)?;
        let mut below = self.names.is_some().then(|| self.state(&name)).transpose()?;
        let left = below.as_deref().map(|below| self.names_but_gone(below)).transpose()?;
        if left.is_some_and(|left| !left.is_empty()) {
            return Err(FsError::new(Kind::NotEmpty, name));
        }
        above.leave(&mut state, tree, &name)?;
        self.is_removed.store(true, Ordering::Release);
        if let Some(below) = &mut below {
            below.is_removed = true;
            // Names that are gone from it: nobody can ask for them.
            below.changed.clear();
        }
        drop((below, state));
        above.touch(tree)
    }

    /// A rename within its directory, never onto another file.
    pub(super) fn rename(self: &Arc<Self>, tree: &Tree, to: &str) -> Result<(), FsError> {
        self.keep(tree)?;
        let (above, mut state) = self.above()?;
        let from = self.still(self.name())?;
        if from == to {
            return Ok(());
        }
        if above.has(&state, to)? {
            return Err(FsError::new(Kind::Exists, to));
        }
        let was_changed = state.changed.contains_key(to);
        state.set(tree, to, Some(self.clone()))?;
        if let Err(error) = above.leave(&mut state, tree, &from) {
            match was_changed {
                true => state.set(tree, to, None)?,
                false => drop(state.changed.remove(to)),
            }
            return Err(error);
        }
        self.set_name(to);
        drop(state);
        above.touch(tree)
    }

    /// Its name, read again while those of its directory are locked.
    fn still(&self, name: String) -> Result<String, FsError> {
        if self.is_removed.load(Ordering::Acquire) {
            return Err(FsError::because(Kind::NotFound, name, "was removed"));
        }
        Ok(self.name())
    }

    /// Makes `name` be gone.
    fn leave(&self, state: &mut State, tree: &Tree, name: &str) -> Result<(), FsError> {
        match self.is_on_disk(name)? {
            true => state.set(tree, name, None)?,
            false => drop(state.changed.remove(name)),
        }
        state.held.remove(name);
        Ok(())
    }

    /// Takes note of changed names.
    fn touch(self: &Arc<Self>, tree: &Tree) -> Result<(), FsError> {
        self.change(tree, |own| {
            own.written(tree);
            Ok(())
        })
    }

    pub(super) fn keep_in_above(self: &Arc<Self>, tree: &Tree) -> Result<(), FsError> {
        let (_, mut state) = self.above()?;
        // One that was removed is its holders' alone.
        if !self.is_removed.load(Ordering::Acquire) && !self.is_kept.load(Ordering::Acquire) {
            state.set(tree, &self.name(), Some(self.clone()))?;
            self.is_kept.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Forgets what was changed in it, and gives what is there now.
    pub(super) fn forget_names(&self) -> Vec<Arc<Entry>> {
        let Some(names) = &self.names else { return Vec::new() };
        let changed = std::mem::take(&mut lock(names).changed);
        changed.into_values().filter_map(|changed| changed.entry).collect()
    }
}
