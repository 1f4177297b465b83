//! How often each word occurred, in a fixed amount of memory: an open-addressing
//! table whose slots hold the first 16 bytes of a word, and an arena for the rest.

use std::cmp::Ordering;
use std::hash::{BuildHasher, Hasher};
use std::io;

use foldhash::fast::RandomState;

use super::WORD_BYTES_MAX;

/// Bytes of a word that its slot holds: most words fit.
const HEAD_BYTES: usize = 16;
/// For each length, which bits of a head are the word's.
const HEAD_MASKS: [u128; HEAD_BYTES + 1] = {
    let mut masks = [u128::MAX; HEAD_BYTES + 1];
    let mut len = 0;
    while len < HEAD_BYTES {
        masks[len] = (1 << (8 * len)) - 1;
        len += 1;
    }
    masks
};
const SLOTS_MIN: usize = 1 << 10;

/// Words counted together.
pub(super) const BATCH_WORDS: usize = 32;

/// The least memory a table works in: enough for the longest word.
pub(super) const TABLE_BYTES_MIN: u64 = 256 << 10;

/// In which order words are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// By the words' bytes.
    Word,
    /// Most frequent first, equally frequent ones by their bytes.
    Count,
}

impl Order {
    pub(super) fn compare(self, a: (&[u8], u64), b: (&[u8], u64)) -> Ordering {
        match self {
            Self::Word => a.0.cmp(b.0),
            Self::Count => b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)),
        }
    }
}

/// A word, split as the table keeps it.
#[derive(Clone, Copy, Default)]
pub(super) struct Word<'a> {
    /// The first bytes, padded with zeros; the first one is the lowest.
    head: u128,
    tail: &'a [u8],
    len_bytes: u32,
}

impl<'a> Word<'a> {
    /// The word `text[start..end]`, of 1 to [`WORD_BYTES_MAX`] bytes.
    #[inline(always)]
    pub(super) fn in_text(text: &'a [u8], start: usize, end: usize) -> Self {
        let word = &text[start..end];
        let head = match text[start..].first_chunk::<HEAD_BYTES>() {
            // One load and a mask instead of a loop over the bytes.
            Some(first) => u128::from_le_bytes(*first) & HEAD_MASKS[word.len().min(HEAD_BYTES)],
            None => word.iter().rev().fold(0, |head, byte| head << 8 | u128::from(*byte)),
        };
        Self {
            head,
            tail: word.get(HEAD_BYTES..).unwrap_or_default(),
            len_bytes: word.len() as u32,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len_bytes as usize
    }

    /// Appends `count`, and itself as [`stream::save_bytes`] does.
    #[inline(always)]
    pub(super) fn save(&self, count: u64, out: &mut Vec<u8>) {
        // One length for all is copied by a few moves, then shortened.
        let mut fields = [0; 16 + HEAD_BYTES];
        fields[..8].copy_from_slice(&count.to_le_bytes());
        fields[8..16].copy_from_slice(&u64::from(self.len_bytes).to_le_bytes());
        fields[16..].copy_from_slice(&self.head.to_le_bytes());
        out.extend_from_slice(&fields);
        out.truncate(out.len() - HEAD_BYTES.saturating_sub(self.len()));
        out.extend_from_slice(self.tail);
    }
}

/// Half a cache line; `len_bytes` is 0 in a free slot.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    head: u128,
    count: u64,
    len_bytes: u32,
    /// Where the rest of a word longer than 16 bytes lies in the arena.
    tail_at: u32,
}

impl Slot {
    fn tail<'a>(&self, tails: &'a [u8]) -> &'a [u8] {
        let tail_bytes = (self.len_bytes as usize).saturating_sub(HEAD_BYTES);
        if tail_bytes == 0 { &[] } else { &tails[self.tail_at as usize..][..tail_bytes] }
    }

    fn holds(&self, word: &Word<'_>, tails: &[u8]) -> bool {
        self.head == word.head
            && self.len_bytes == word.len_bytes
            && (word.tail.is_empty() || self.tail(tails) == word.tail)
    }

    /// As [`Order::compare`] on the whole words.
    fn compare(&self, other: &Slot, order: Order, tails: &[u8]) -> Ordering {
        let by_word = || {
            let heads = self.head.swap_bytes().cmp(&other.head.swap_bytes());
            // Equal heads may be a word and the same with zero bytes appended.
            heads
                .then_with(|| self.tail(tails).cmp(other.tail(tails)))
                .then(self.len_bytes.cmp(&other.len_bytes))
        };
        match order {
            Order::Word => by_word(),
            Order::Count => other.count.cmp(&self.count).then_with(by_word),
        }
    }
}

/// So many free slots, unless memory is short.
fn free_slots(count: usize) -> Option<Vec<Slot>> {
    let mut slots = Vec::new();
    slots.try_reserve_exact(count).ok()?;
    slots.resize(count, Slot::default());
    Some(slots)
}

/// The table has no room for another word.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

/// Counts by word.
#[derive(Debug)]
pub(super) struct Table {
    /// A power of two of them, or none before [`Table::reserve`].
    slots: Vec<Slot>,
    slots_max: usize,
    tails_max: usize,
    used: usize,
    tails: Vec<u8>,
    /// Seeded at random, so that no input can be made to collide.
    hash: RandomState,
}

impl Table {
    /// A table that never takes more than `bytes`, which count as
    /// [`TABLE_BYTES_MIN`] if they are fewer. Reserve it before words are added.
    pub(super) fn new(bytes: u64) -> Self {
        let bytes = usize::try_from(bytes.max(TABLE_BYTES_MIN)).unwrap_or(usize::MAX);
        // While the table doubles, the old slots are there too: 3/2 of the size.
        let slot_bytes = size_of::<Slot>() * 3 / 2;
        let slots_max = 1 << (bytes / 4 * 3 / slot_bytes).ilog2();
        let tails_max = (bytes - slots_max * slot_bytes).min(u32::MAX as usize);
        debug_assert!(tails_max >= WORD_BYTES_MAX);
        Self {
            slots: Vec::new(),
            slots_max,
            tails_max,
            used: 0,
            tails: Vec::new(),
            hash: RandomState::default(),
        }
    }

    /// Takes the memory a table begins with, unless it has it: for so many words, if there is as
    /// much.
    ///
    /// # Errors
    /// The bytes that could not be had.
    pub(super) fn reserve(&mut self, words: usize) -> Result<(), usize> {
        if self.slots.is_empty() {
            // Untouched memory costs nothing, and a fixed arena never moves.
            self.tails.try_reserve_exact(self.tails_max).map_err(|_| self.tails_max)?;
            let least = SLOTS_MIN.min(self.slots_max);
            // At most half of them are used, as when it grows.
            let slots = words.saturating_mul(2).checked_next_power_of_two();
            let slots = slots.map_or(self.slots_max, |slots| slots.clamp(least, self.slots_max));
            let free = free_slots(slots).or_else(|| free_slots(least));
            self.slots = free.ok_or(least * size_of::<Slot>())?;
        }
        Ok(())
    }

    /// How many different words there are.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Counts a word `count` times more, unless there is no room.
    pub(super) fn add(&mut self, word: &Word<'_>, count: u64) -> Result<(), Full> {
        self.add_hashed(word, self.hash_of(word), count)
    }

    /// Counts each word as often more as its number says, up to the first one for which there
    /// is no room. Returns how many there were: all of them if the table is not full.
    #[inline(always)]
    pub(super) fn add_each(&mut self, words: &[Word<'_>], count: impl Fn(usize) -> u64) -> usize {
        let mut hashes = [0; BATCH_WORDS];
        let mut touched = 0;
        for (hash, word) in hashes.iter_mut().zip(words) {
            *hash = self.hash_of(word);
            touched |= self.slots[self.home(*hash)].len_bytes;
        }
        // The loads above depend on nothing, so that the memory serves them
        // together; those of the searches below would wait for each other.
        std::hint::black_box(touched);
        let full = words
            .iter()
            .zip(hashes)
            .enumerate()
            .position(|(at, (word, hash))| self.add_hashed(word, hash, count(at)).is_err());
        full.unwrap_or(words.len().min(BATCH_WORDS))
    }

    #[inline(always)]
    fn add_hashed(&mut self, word: &Word<'_>, hash: u64, count: u64) -> Result<(), Full> {
        let mut at = self.home(hash);
        loop {
            let slot = &mut self.slots[at];
            if slot.holds(word, &self.tails) {
                slot.count += count;
                return Ok(());
            }
            if slot.len_bytes == 0 {
                return self.insert(at, word, count);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    #[inline(always)]
    fn hash_of(&self, word: &Word<'_>) -> u64 {
        let mut hasher = self.hash.build_hasher();
        if !word.tail.is_empty() {
            hasher.write(word.tail);
        }
        hasher.write_u128(word.head);
        hasher.finish()
    }

    /// Where the search for a word begins.
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    #[cold]
    fn insert(&mut self, at: usize, word: &Word<'_>, count: u64) -> Result<(), Full> {
        if word.tail.len() > self.tails.capacity() - self.tails.len() {
            return Err(Full);
        }
        // Searches are short in a table that is half full at most; the largest one is filled more.
        let slots = self.slots.len();
        let can_grow = slots < self.slots_max && (self.used + 1) * 2 > slots;
        if can_grow && self.grow().is_ok() {
            return self.add(word, count);
        }
        if (self.used + 1) * 4 > slots * 3 {
            return Err(Full);
        }
        let tail_at = self.tails.len() as u32;
        self.tails.extend_from_slice(word.tail);
        self.slots[at] = Slot { head: word.head, count, len_bytes: word.len_bytes, tail_at };
        self.used += 1;
        Ok(())
    }

    /// Doubles the slots. A table that gets no memory for that is full.
    fn grow(&mut self) -> Result<(), Full> {
        let twice = free_slots(self.slots.len() * 2).ok_or(Full)?;
        let old = std::mem::replace(&mut self.slots, twice);
        let mask = self.slots.len() - 1;
        for slot in old.iter().filter(|slot| slot.len_bytes > 0) {
            let word =
                Word { head: slot.head, tail: slot.tail(&self.tails), len_bytes: slot.len_bytes };
            let mut at = self.home(self.hash_of(&word));
            while self.slots[at].len_bytes > 0 {
                at = (at + 1) & mask;
            }
            self.slots[at] = *slot;
        }
        Ok(())
    }

    /// Hands out the first `limit` words in order and empties the table.
    pub(super) fn drain(
        &mut self,
        order: Order,
        limit: u64,
        mut emit: impl FnMut(&[u8], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        // Sorted in place: the table's memory is all there is.
        let Self { slots, tails, .. } = self;
        let mut used = 0;
        for at in 0..slots.len() {
            if slots[at].len_bytes > 0 {
                slots.swap(used, at);
                used += 1;
            }
        }
        slots[..used].sort_unstable_by(|a, b| a.compare(b, order, tails));
        let mut word = Vec::with_capacity(WORD_BYTES_MAX);
        let mut emit_all = || {
            for slot in &slots[..used.min(usize::try_from(limit).unwrap_or(usize::MAX))] {
                word.clear();
                word.extend_from_slice(
                    &slot.head.to_le_bytes()[..HEAD_BYTES.min(slot.len_bytes as usize)],
                );
                word.extend_from_slice(slot.tail(tails));
                emit(&word, slot.count)?;
            }
            Ok(())
        };
        let emitted = emit_all();
        self.slots.fill(Slot::default());
        self.tails.clear();
        self.used = 0;
        emitted
    }

    /// The most memory the table has taken so far, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        (self.slots.capacity() * size_of::<Slot>() * 3 / 2 + self.tails.capacity()) as u64
    }

    /// Adds another table's words to `into`, in any order.
    pub(super) fn for_each<E>(
        &self,
        mut into: impl FnMut(&Word<'_>, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        for slot in self.slots.iter().filter(|slot| slot.len_bytes > 0) {
            let word =
                Word { head: slot.head, tail: slot.tail(&self.tails), len_bytes: slot.len_bytes };
            into(&word, slot.count)?;
        }
        Ok(())
    }
}
