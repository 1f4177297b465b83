//! Numbers for files that are open and in memory, to be told to other threads.

use std::sync::{Mutex, MutexGuard, Weak};

use crate::file::Opened;
use crate::sync::lock;

/// A number for a file that is open and lies in memory: two words, as fit a
/// mailbox. It is no address: whoever has it may do what the file was opened
/// for, through [`Files::adopt`](crate::Files::adopt), and once the file was
/// closed, cut or removed it stands for none. Other programs may cut or remove a file of
/// `#U` unseen: there it ends when the file is closed here or found to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// A place in the table of open files.
    pub index: u32,
    /// Which one of those that had this place.
    pub generation: u32,
}

/// The files that have handles.
#[derive(Default)]
pub(crate) struct Handles {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    /// That of the next handle for this place, or of the one that stands.
    generation: u32,
    /// Counts who has it open.
    opened: Weak<Opened>,
    memory_generation: u64,
}

impl Handles {
    /// A handle for a file whose memory has this generation.
    pub(crate) fn enter(&self, opened: &Weak<Opened>, memory_generation: u64) -> Option<Handle> {
        let table = &mut *self.table();
        let opened = opened.clone();
        if let Some(index) = table.free.pop() {
            let slot = table.slots.get_mut(index as usize)?;
            *slot = Slot { opened, memory_generation, ..*slot };
            return Some(Handle { index, generation: slot.generation });
        }
        let index = u32::try_from(table.slots.len()).ok()?;
        table.slots.push(Slot { generation: 0, opened, memory_generation });
        Some(Handle { index, generation: 0 })
    }

    /// What a handle stands for, and the generation its memory had.
    pub(crate) fn find(&self, handle: Handle) -> Option<(Weak<Opened>, u64)> {
        let table = self.table();
        let slot = table.slots.get(handle.index as usize)?;
        (slot.generation == handle.generation)
            .then(|| (slot.opened.clone(), slot.memory_generation))
    }

    /// The file is closed.
    pub(crate) fn leave(&self, handle: Handle) {
        let table = &mut *self.table();
        let Some(slot) = table.slots.get_mut(handle.index as usize) else { return };
        slot.opened = Weak::new();
        // A place whose numbers are used up stays empty.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            table.free.push(handle.index);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}
