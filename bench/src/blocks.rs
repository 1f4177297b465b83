//! Which blocks of a region one run works on, and in which order.

use std::cell::Cell;

use crate::args::Order;
use crate::permutation::Permutation;

/// A stretch of an endless tour of a region's blocks. Runs take stretches one
/// after the other, so that no run finds in a cache what the one before left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    pub(crate) block_bytes: usize,
    /// Blocks of this run.
    pub(crate) count: u64,
    first: u64,
    total: u64,
    order: Option<Permutation>,
}

impl Blocks {
    /// The stretch that follows `tour`, which moves on: about `count` blocks, an
    /// even number and at least two, but no more than the region has.
    pub(crate) fn take(
        tour: &Cell<u64>,
        region_bytes: u64,
        block_bytes: usize,
        order: Order,
        count: u64,
    ) -> Self {
        let total = (region_bytes / block_bytes as u64).max(2);
        let count = count.clamp(2, total) & !1;
        let first = tour.replace((tour.get() + count) % total);
        Self::new(region_bytes, block_bytes, order, first, count)
    }

    /// `count` blocks of a region of `region_bytes`, from the tour's place `first` on.
    fn new(region_bytes: u64, block_bytes: usize, order: Order, first: u64, count: u64) -> Self {
        let total = (region_bytes / block_bytes as u64).max(1);
        let random = (order == Order::Random).then(|| Permutation::new(total));
        Self { block_bytes, count: count.min(total), first: first % total, total, order: random }
    }

    /// Where block `number` of this run lies, in bytes; `number < count`.
    #[inline(always)]
    pub(crate) fn offset(&self, number: u64) -> u64 {
        let place = self.first + number;
        let place = if place < self.total { place } else { place - self.total };
        self.order.map_or(place, |order| order.at(place)) * self.block_bytes as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_tour_visits_every_block_once() {
        for order in [Order::Sequential, Order::Random] {
            for first in [0, 7, 99, 12345] {
                let blocks = Blocks::new(6400 + 63, 64, order, first, 1000);
                assert_eq!(blocks.count, 100);
                let mut offsets: Vec<u64> = (0..100).map(|number| blocks.offset(number)).collect();
                offsets.sort_unstable();
                assert!(offsets.into_iter().eq((0..100).map(|block| block * 64)));
            }
        }
    }
}
