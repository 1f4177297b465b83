//! An input that others send, piece by piece.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags};

use crate::Input;
use crate::error::{InputError, InputErrorKind};

/// A file in memory with holes, of which only the pages that are needed take any.
#[derive(Debug)]
pub struct Received {
    name: String,
    file: Arc<File>,
    len_bytes: u64,
    page_bytes: u64,
    /// What is needed; one range as often as it was asked for.
    needed: Vec<Range<u64>>,
}

impl Received {
    /// An input of so many bytes, none of which is there, under a name for messages.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn new(name: &str, len_bytes: u64) -> Result<Self, InputError> {
        let made = rustix::fs::memfd_create("cellway-received", MemfdFlags::CLOEXEC);
        let made = made.map_err(io::Error::from).map(File::from);
        let made = made.and_then(|file| file.set_len(len_bytes).map(|()| file));
        let file = Arc::new(made.map_err(|error| no_memory(name, &error))?);
        let page_bytes = rustix::param::page_size() as u64;
        Ok(Self { name: name.to_owned(), file, len_bytes, page_bytes, needed: Vec::new() })
    }

    /// To be read where bytes were put and are needed. It never changes.
    ///
    /// # Errors
    /// The file cannot be looked at.
    pub fn input(&self) -> Result<Input, InputError> {
        Input::received(&self.name, Arc::clone(&self.file))
    }

    /// Bytes of `range` are kept from now on.
    pub fn need(&mut self, range: Range<u64>) {
        self.needed.push(range);
    }

    /// Puts bytes where they belong; what is past the end is left out.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), InputError> {
        let room = self.len_bytes.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let bytes = bytes.get(..room).unwrap_or(bytes);
        self.file.write_all_at(bytes, offset).map_err(|error| no_memory(&self.name, &error))
    }

    /// One need of `range` less: pages that nobody needs any more are given back.
    ///
    /// # Errors
    /// The file cannot have holes.
    pub fn forget(&mut self, range: &Range<u64>) -> Result<(), InputError> {
        let Some(place) = self.needed.iter().position(|needed| needed == range) else {
            return Ok(());
        };
        self.needed.swap_remove(place);
        let mut kept: Vec<_> = self.needed.iter().map(|needed| self.pages(needed)).collect();
        kept.sort_unstable_by_key(|pages| pages.start);
        let pages = self.pages(range);
        let mut from = pages.start;
        // Up to the end there is a last piece.
        for next in kept.into_iter().chain(std::iter::once(pages.end..pages.end)) {
            let until = next.start.min(pages.end);
            if from < until {
                let (flags, bytes) = (FallocateFlags::PUNCH_HOLE, until - from);
                let flags = flags | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, flags, from, bytes)
                    .map_err(|error| no_memory(&self.name, &error.into()))?;
            }
            from = from.max(next.end);
        }
        Ok(())
    }

    /// All pages with a byte of `range`.
    fn pages(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.end.checked_next_multiple_of(self.page_bytes).unwrap_or(u64::MAX);
        range.start / self.page_bytes * self.page_bytes..end
    }
}

fn no_memory(name: &str, error: &io::Error) -> InputError {
    let what = format!("has no memory to be sent to: {error}");
    InputError::new(InputErrorKind::Read, name, what, "let fewer bytes be sent at a time")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use proptest::prelude::*;

    use super::*;

    /// A byte for each place.
    fn byte(at: u64) -> u8 {
        (at % 251) as u8 + 1
    }

    fn bytes(range: &Range<u64>) -> Vec<u8> {
        range.clone().map(byte).collect()
    }

    const LEN: u64 = 100_003;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn what_is_needed_is_there_and_nothing_else_is(
            steps in prop::collection::vec((0..LEN, 0..30_000_u64, any::<prop::sample::Index>()), 1..20),
        ) {
            let mut received = Received::new("it", LEN).unwrap();
            let input = received.input().unwrap();
            let mut needed: Vec<Range<u64>> = Vec::new();
            for (start, len, index) in steps {
                if needed.len() > 3 || (len % 3 == 0 && !needed.is_empty()) {
                    let range = needed.swap_remove(index.index(needed.len()));
                    received.forget(&range).unwrap();
                } else {
                    let range = start..(start + len).min(LEN);
                    received.need(range.clone());
                    received.put(range.start, &bytes(&range)).unwrap();
                    needed.push(range);
                }
                for range in &needed {
                    let mut found = vec![0; (range.end - range.start) as usize];
                    input.read_exact_at(&mut found, range.start).unwrap();
                    prop_assert!(found == bytes(range));
                }
                let pages = needed.iter().map(|range| (range.end - range.start) / 4096 + 2);
                let most_bytes = pages.sum::<u64>() * received.page_bytes;
                let held_bytes = received.file.metadata().unwrap().blocks() * 512;
                prop_assert!(held_bytes <= most_bytes, "{held_bytes} of {needed:?}");
            }
            prop_assert_eq!(input.changed().unwrap(), None);
        }
    }

    #[test]
    fn its_parts_are_inputs_that_end_where_the_next_begins() {
        let received = Received::new("all", 10).unwrap();
        received.put(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).unwrap();
        let all = received.input().unwrap();
        let part = all.part("it", 3..7);
        let mut found = [0; 9];
        assert_eq!((part.len_bytes(), part.start_bytes(), part.name()), (Some(4), 3, "it"));
        assert_eq!(part.read_at(&mut found, 1).unwrap(), 3);
        assert_eq!(found[..4], [5, 6, 7, 0]);
        part.read_exact_at(&mut found[..4], 0).unwrap();
        assert_eq!(found[..4], [4, 5, 6, 7]);
        assert!(part.read_exact_at(&mut found[..2], 3).is_err());
        assert_eq!(part.read_at(&mut found, u64::MAX).unwrap(), 0);
        assert_eq!(part.changed().unwrap(), None);
        // None of what is past its end, nor of another's.
        let ends = [(7..90, 3), (10..10, 0), (20..30, 0)];
        assert!(
            ends.iter().all(|(range, len)| all.part("", range.clone()).len_bytes() == Some(*len))
        );
        assert_eq!(part.part("", 2..9).len_bytes(), Some(2));
    }

    #[test]
    fn it_has_its_length_and_takes_no_more() {
        let received = Received::new("it", 5).unwrap();
        received.put(3, &[1, 2, 3, 4]).unwrap();
        received.put(9, &[1]).unwrap();
        let input = received.input().unwrap();
        let mut found = [9; 5];
        input.read_exact_at(&mut found, 0).unwrap();
        assert_eq!((input.len_bytes(), found, input.name()), (Some(5), [0, 0, 0, 1, 2], "it"));
        assert!(input.read_exact_at(&mut found, 1).is_err());
        assert_eq!(Received::new("none", 0).unwrap().input().unwrap().len_bytes(), Some(0));
    }
}
