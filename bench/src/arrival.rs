//! The disciplines of the experiments in memory: whether anything goes on
//! before a transfer's block has arrived.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::args::Discipline;
use crate::hw::load_fence;

/// How the programs of one run wait for their blocks. Shared by the threads of
/// one accelerator, as its core is.
#[derive(Debug)]
pub(crate) struct Arrival {
    discipline: Discipline,
    /// Zero, once the last block waited for has arrived.
    arrived: AtomicU64,
    zero: u64,
}

impl Arrival {
    pub(crate) fn new(discipline: Discipline) -> Self {
        // Hidden from the compiler, which would see no dependency otherwise.
        Self { discipline, arrived: AtomicU64::new(0), zero: black_box(0) }
    }

    /// `place`; under [`Discipline::Dependency`] not known before the last
    /// block waited for has arrived.
    #[inline(always)]
    pub(crate) fn before(&self, place: u64) -> u64 {
        match self.discipline {
            Discipline::Dependency => place + self.arrived.load(Relaxed),
            Discipline::Fence | Discipline::Plain => place,
        }
    }

    /// Waits for `block`, as its transfer's end.
    #[inline(always)]
    pub(crate) fn wait(&self, block: &[u8]) {
        match self.discipline {
            Discipline::Fence => load_fence(),
            Discipline::Dependency => {
                let last = block.last().copied().unwrap_or(0);
                self.arrived.store(u64::from(last) & self.zero, Relaxed);
            }
            Discipline::Plain => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_what_they_are_and_depend_on_the_last_byte() {
        for discipline in [Discipline::Fence, Discipline::Dependency, Discipline::Plain] {
            let arrival = Arrival::new(discipline);
            arrival.wait(&[1, 2, 3]);
            arrival.wait(&[]);
            assert_eq!(arrival.before(7), 7);
        }
        // A mask of ones instead of zeros shows what a place depends on.
        let arrival = Arrival { zero: u64::MAX, ..Arrival::new(Discipline::Dependency) };
        arrival.wait(&[1, 2, 3]);
        assert_eq!(arrival.before(7), 10);
    }
}
