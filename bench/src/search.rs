//! Binary search in a sorted array of 8-byte keys: all steps but the last
//! three may go to memory.

use std::io;

use cellway::accel::Lent;

use crate::hw::{Mem, Pages, prefetch};
use crate::irregular::Irregular;
use crate::measure::{Sample, Version};
use crate::permutation::Permutation;
use crate::program::{one_accelerator, run_timed};

/// The last steps stay in a cache line or two.
const LINE_KEYS: usize = 8;
/// Fewest and most searches of a run: the most touch several times what a
/// last-level cache keeps of the array.
const SEARCHES_MIN: u64 = 1 << 16;
const SEARCHES_MAX: u64 = 1 << 21;

pub(crate) struct Search {
    /// Key number i is 2 i: even keys are there, odd ones are not.
    keys: Mem<u64>,
    queries: Vec<u64>,
}

impl Search {
    /// Number of keys <= `query`, by the standard library.
    fn standard(&self, query: u64) -> u64 {
        self.keys.partition_point(|&key| key <= query) as u64
    }

    /// The same without a branch on what was read.
    fn branchless(&self, query: u64) -> u64 {
        let (mut from, mut len) = (0, self.keys.len());
        while len > 1 {
            let half = len / 2;
            from =
                std::hint::select_unpredictable(self.keys[from + half] <= query, from + half, from);
            len -= half;
        }
        (from + usize::from(self.keys[from] <= query)) as u64
    }

    /// Whether a step over `half` keys may have to wait for memory. The first
    /// steps may, too: everybody takes them, but keys a power of two apart
    /// compete for the same few lines of a cache.
    #[inline(always)]
    fn leaves_line(half: usize) -> bool {
        half >= LINE_KEYS
    }

    /// As many searches at once, step by step, as `from` has room for.
    fn together(&self, queries: &[u64], from: &mut [usize]) {
        from.fill(0);
        let mut len = self.keys.len();
        while len > 1 {
            let half = len / 2;
            let next_half = (len - half) / 2;
            for (from, query) in from.iter_mut().zip(queries) {
                let upper = self.keys[*from + half] <= *query;
                *from = std::hint::select_unpredictable(upper, *from + half, *from);
                if Self::leaves_line(next_half) {
                    prefetch(&self.keys[*from + next_half]);
                }
            }
            len -= half;
        }
        for (from, query) in from.iter_mut().zip(queries) {
            *from += usize::from(self.keys[*from] <= *query);
        }
    }

    fn hand(&self, depth: usize) -> u64 {
        let mut from = vec![0; depth];
        let mut sum = 0_u64;
        for queries in self.queries.chunks(depth) {
            let found = &mut from[..queries.len()];
            self.together(queries, found);
            sum = found.iter().fold(sum, |sum, &found| sum.wrapping_add(found as u64));
        }
        sum
    }

    /// `branchless` with each load that may go to memory replaced by one that
    /// waits its turn, by any number of threads, each with its share of the queries.
    fn threads(&self, threads: usize) -> anyhow::Result<Sample> {
        let keys = Lent::new(&self.keys);
        run_timed(&one_accelerator(threads), self.searches(), |cx, at| async move {
            let mut sum = 0_u64;
            for &query in self.queries.iter().skip(at.index()).step_by(at.count()) {
                let (mut from, mut len) = (0, keys.items().len());
                while len > 1 {
                    let half = len / 2;
                    let key = match Self::leaves_line(half) {
                        true => *cx.load(&keys, from + half).await,
                        false => keys.items()[from + half],
                    };
                    from = std::hint::select_unpredictable(key <= query, from + half, from);
                    len -= half;
                }
                let found = from + usize::from(keys.items()[from] <= query);
                sum = sum.wrapping_add(found as u64);
            }
            Ok(sum)
        })
    }

    fn all(&self, search: impl Fn(u64) -> u64) -> u64 {
        self.queries.iter().fold(0, |sum, &query| sum.wrapping_add(search(query)))
    }

    fn searches(&self) -> u64 {
        self.queries.len() as u64
    }
}

impl Irregular for Search {
    const TITLE: &'static str = "search: binary search in a sorted array of 8-byte keys";
    const ITEM: &'static str = "search";

    fn build(bytes: u64, pages: Pages) -> io::Result<Self> {
        let keys = (bytes / 8).max(1);
        let order = Permutation::new(2 * keys);
        let searches = (keys / 32).clamp(SEARCHES_MIN, SEARCHES_MAX);
        let queries = (0..searches).map(|search| order.at(search % (2 * keys))).collect();
        Ok(Self { keys: Mem::from_fn(keys as usize, pages, |index| 2 * index as u64)?, queries })
    }

    fn huge_bytes(&self) -> Option<u64> {
        self.keys.huge_bytes()
    }

    fn versions(&self, depths: &[usize]) -> Vec<Version<'_>> {
        let serial = Version::new("serial", 1, || {
            Ok(Sample::of(self.searches(), || self.all(|query| self.standard(query))))
        });
        let branchless = Version::new("branchless", 1, || {
            Ok(Sample::of(self.searches(), || self.all(|query| self.branchless(query))))
        });
        let hand = depths.iter().map(|&depth| {
            Version::new("hand", depth, move || {
                Ok(Sample::of(self.searches(), || self.hand(depth)))
            })
        });
        let threads =
            depths.iter().map(|&depth| Version::new("threads", depth, move || self.threads(depth)));
        [serial, branchless].into_iter().chain(hand).chain(threads).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_searches_count_the_keys_below() {
        for keys in [1, 2, 3, 1000, 1024] {
            let array = Search::build(keys * 8, Pages::Small).unwrap();
            for query in 0..2 * keys + 2 {
                let wanted = (query / 2 + 1).min(keys);
                assert_eq!(array.standard(query), wanted);
                assert_eq!(array.branchless(query), wanted, "{keys} keys, query {query}");
            }
            let sum = array.all(|query| array.standard(query));
            for depth in [1, 3, 64] {
                assert_eq!(array.hand(depth), sum, "{keys} keys, depth {depth}");
                let threads = array.threads(depth).unwrap();
                assert_eq!(threads.check, Some(sum), "{keys} keys, {depth} threads");
            }
        }
    }
}
