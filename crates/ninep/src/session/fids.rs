//! A client's fids.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::refused::Refused;
use crate::{Fid, NOFID, Qid, mode};

/// What a fid stands for.
#[derive(Clone, Debug)]
pub(super) struct File<N, O> {
    pub(super) node: N,
    pub(super) qid: Qid,
    pub(super) opened: Option<Opened<O>>,
}

#[derive(Clone, Debug)]
pub(super) struct Opened<O> {
    pub(super) open: O,
    /// As it was asked for.
    pub(super) mode: u8,
    /// Of a directory: the offset at which its reads go on.
    pub(super) end: u64,
    /// How many entries were read up to there.
    pub(super) entries: u64,
}

impl<N, O> File<N, O> {
    /// What is to be removed when its fid goes. The file is closed first.
    pub(super) fn removed_on_clunk(self) -> Option<N> {
        let opened = self.opened?;
        (opened.mode & mode::REMOVE_ON_CLUNK != 0).then_some(self.node)
    }
}

#[derive(Debug)]
struct Slot<N, O> {
    /// None while the call that brings it is in flight.
    file: Option<File<N, O>>,
    /// The call that changes the slot.
    owner: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Fids<N, O> {
    max: usize,
    slots: HashMap<Fid, Slot<N, O>>,
}

impl<N: Clone, O: Clone> Fids<N, O> {
    pub(super) fn new(max: usize) -> Self {
        Self { max, slots: HashMap::new() }
    }

    /// Those that are open.
    pub(super) fn opened(&self) -> impl Iterator<Item = &O> {
        let files = self.slots.values().filter_map(|slot| slot.file.as_ref());
        files.filter_map(|file| file.opened.as_ref()).map(|opened| &opened.open)
    }

    pub(super) fn known(&self, fid: Fid) -> Result<&File<N, O>, Refused> {
        let file = self.slots.get(&fid).and_then(|slot| slot.file.as_ref());
        file.ok_or(Refused::UnknownFid(fid))
    }

    /// That no call changes it.
    pub(super) fn idle(&self, fid: Fid) -> Result<(), Refused> {
        let busy = self.slots.get(&fid).is_some_and(|slot| slot.owner.is_some());
        if busy { Err(Refused::Busy(fid)) } else { Ok(()) }
    }

    /// One that is neither open, nor about to be.
    pub(super) fn closed(&self, fid: Fid) -> Result<&File<N, O>, Refused> {
        let file = self.known(fid)?;
        if file.opened.is_some() {
            return Err(Refused::Open(fid));
        }
        self.idle(fid)?;
        Ok(file)
    }

    pub(super) fn open(&self, fid: Fid) -> Result<(Qid, &Opened<O>), Refused> {
        let file = self.known(fid)?;
        let opened = file.opened.as_ref().ok_or(Refused::NotOpen(fid))?;
        Ok((file.qid, opened))
    }

    /// That it is free for a new file.
    pub(super) fn vacant(&self, fid: Fid) -> Result<(), Refused> {
        if fid == NOFID {
            return Err(Refused::NoFid);
        }
        if self.slots.contains_key(&fid) {
            return Err(Refused::FidInUse(fid));
        }
        if self.slots.len() >= self.max { Err(Refused::ManyFids(self.max)) } else { Ok(()) }
    }

    /// Lets `newfid` stand for the same file.
    pub(super) fn copy(&mut self, fid: Fid, newfid: Fid) -> Result<(), Refused> {
        let file = self.closed(fid)?.clone();
        if newfid != fid {
            self.vacant(newfid)?;
            self.slots.insert(newfid, Slot { file: Some(file), owner: None });
        }
        Ok(())
    }

    /// Keeps it for the call `owner`.
    pub(super) fn reserve(&mut self, fid: Fid, owner: u64) {
        self.slots.entry(fid).or_insert(Slot { file: None, owner: None }).owner = Some(owner);
    }

    /// The place of the file that the call `owner` brings or changes.
    pub(super) fn owned(
        &mut self,
        fid: Fid,
        owner: u64,
    ) -> Result<&mut Option<File<N, O>>, Refused> {
        let slot = self.slots.get_mut(&fid).filter(|slot| slot.owner == Some(owner));
        slot.map(|slot| &mut slot.file).ok_or(Refused::UnknownFid(fid))
    }

    /// The call `owner` has ended.
    pub(super) fn release(&mut self, fid: Fid, owner: u64) {
        let Entry::Occupied(mut slot) = self.slots.entry(fid) else { return };
        if slot.get().owner != Some(owner) {
            return;
        }
        if slot.get().file.is_none() {
            slot.remove();
        } else {
            slot.get_mut().owner = None;
        }
    }

    /// Forgets it, also while a call changes it.
    pub(super) fn remove(&mut self, fid: Fid) -> Result<File<N, O>, Refused> {
        self.known(fid)?;
        let slot = self.slots.remove(&fid);
        slot.and_then(|slot| slot.file).ok_or(Refused::UnknownFid(fid))
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = File<N, O>> + use<N, O> {
        std::mem::take(&mut self.slots).into_values().filter_map(|slot| slot.file)
    }
}
