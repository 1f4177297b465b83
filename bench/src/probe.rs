//! Hash table probes: each walks a bucket's whole chain of 8 to 15 nodes that
//! lie at random places; half find their key in the last node, half nothing.

use std::io;

use cellway::accel::{Cx, Lent};

use crate::hw::{Mem, Pages, prefetch};
use crate::irregular::Irregular;
use crate::measure::{Sample, Version};
use crate::permutation::{Permutation, odd_inverse};
use crate::program::{one_accelerator, run_timed};

/// Eight buckets in a row have chains of 8, 9, .. 15 nodes: where each starts
/// among the nodes of the eight.
const CHAIN_STARTS: [u64; 9] = [0, 8, 17, 27, 38, 50, 63, 77, 92];
/// Fewest probes of a run.
const PROBES_MIN: u64 = 1 << 16;
/// Hashing multiplies by this odd number, so that every hash has its key.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// In [`Entry::next`] and the heads: no further node.
const NONE: u32 = u32::MAX;

/// A node of a chain.
#[repr(C, align(32))]
pub(crate) struct Entry {
    key: u64,
    value: u64,
    next: u32,
}

pub(crate) struct Probe {
    /// Per bucket its chain's first node.
    heads: Mem<u32>,
    entries: Mem<Entry>,
    /// The keys to look up; more than once when they are few.
    keys: Vec<u64>,
    laps: u64,
}

/// Where a chain is being walked, for the versions that walk several.
#[derive(Clone, Copy)]
struct Cursor {
    key: u64,
    at: u32,
    /// `at` is a bucket's number, not yet a node's.
    in_heads: bool,
}

impl Probe {
    #[inline(always)]
    fn bucket(&self, key: u64) -> usize {
        bucket_of(key, self.heads.len() as u64) as usize
    }

    fn probes(&self) -> u64 {
        self.keys.len() as u64 * self.laps
    }

    fn look_up(&self, key: u64) -> Option<u64> {
        let mut at = self.heads[self.bucket(key)];
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.key == key {
                return Some(entry.value);
            }
            at = entry.next;
        }
        None
    }

    fn serial(&self) -> u64 {
        let laps = (0..self.laps).flat_map(|_| &self.keys);
        laps.fold(0, |sum, &key| sum.wrapping_add(self.look_up(key).unwrap_or(1)))
    }

    fn hand(&self, depth: usize) -> u64 {
        let mut keys = (0..self.laps).flat_map(|_| &self.keys).copied();
        let mut cursors: Vec<Cursor> =
            keys.by_ref().take(depth).map(|key| self.start(key)).collect();
        let mut sum = 0_u64;
        while !cursors.is_empty() {
            let mut index = 0;
            while index < cursors.len() {
                let Some(value) = self.step(&mut cursors[index]) else {
                    index += 1;
                    continue;
                };
                sum = sum.wrapping_add(value);
                match keys.next() {
                    Some(key) => {
                        cursors[index] = self.start(key);
                        index += 1;
                    }
                    None => _ = cursors.swap_remove(index),
                }
            }
        }
        sum
    }

    /// `look_up` with each load replaced by one that waits its turn.
    async fn look_up_in_turn(&self, cx: &Cx<'_>, key: u64) -> Option<u64> {
        let (heads, entries) = (Lent::new(&self.heads), Lent::new(&self.entries));
        let mut at = *cx.load(&heads, self.bucket(key)).await;
        while at != NONE {
            let entry = cx.load(&entries, at as usize).await;
            if entry.key == key {
                return Some(entry.value);
            }
            at = entry.next;
        }
        None
    }

    /// The serial loop, by any number of threads, each with its share of the keys.
    fn threads(&self, threads: usize) -> anyhow::Result<Sample> {
        run_timed(&one_accelerator(threads), self.probes(), |cx, at| async move {
            let mut sum = 0_u64;
            for _ in 0..self.laps {
                for &key in self.keys.iter().skip(at.index()).step_by(at.count()) {
                    sum = sum.wrapping_add(self.look_up_in_turn(&cx, key).await.unwrap_or(1));
                }
            }
            Ok(sum)
        })
    }

    fn start(&self, key: u64) -> Cursor {
        let bucket = self.bucket(key);
        prefetch(&self.heads[bucket]);
        Cursor { key, at: bucket as u32, in_heads: true }
    }

    /// One load; the value (1 for none) when the probe is done.
    #[inline(always)]
    fn step(&self, cursor: &mut Cursor) -> Option<u64> {
        if cursor.in_heads {
            cursor.at = self.heads[cursor.at as usize];
            cursor.in_heads = false;
        } else {
            let entry = &self.entries[cursor.at as usize];
            if entry.key == cursor.key {
                return Some(entry.value);
            }
            cursor.at = entry.next;
        }
        if cursor.at == NONE {
            return Some(1);
        }
        prefetch(&self.entries[cursor.at as usize]);
        None
    }
}

#[inline(always)]
fn bucket_of(key: u64, buckets: u64) -> u64 {
    let hash = key.wrapping_mul(HASH_FACTOR);
    ((u128::from(hash) * u128::from(buckets)) >> 64) as u64
}

/// The key number `number` of the many that hash to `bucket`.
fn key_in(bucket: u64, buckets: u64, number: u64) -> u64 {
    let least_hash = (u128::from(bucket) << 64).div_ceil(u128::from(buckets)) as u64;
    (least_hash + number).wrapping_mul(const { odd_inverse(HASH_FACTOR) })
}

/// Nodes before those of `bucket`, when all are counted bucket by bucket.
fn nodes_before(bucket: u64) -> u64 {
    bucket / 8 * CHAIN_STARTS[8] + CHAIN_STARTS[(bucket % 8) as usize]
}

/// The bucket that node `number`, counted bucket by bucket, belongs to.
fn bucket_with(number: u64) -> u64 {
    let within = number % CHAIN_STARTS[8];
    number / CHAIN_STARTS[8] * 8 + CHAIN_STARTS.partition_point(|&start| start <= within) as u64 - 1
}

impl Irregular for Probe {
    const TITLE: &'static str =
        "probe: hash table, chains of 8-15 nodes of 32 bytes at random places";
    const ITEM: &'static str = "probe";

    fn build(bytes: u64, pages: Pages) -> io::Result<Self> {
        let bytes_per_eight = CHAIN_STARTS[8] * size_of::<Entry>() as u64 + 8 * 4;
        let buckets = (bytes / bytes_per_eight).max(1) * 8;
        let entries = nodes_before(buckets);
        if entries >= u64::from(NONE) {
            let limit = "a table may have 2^32 - 2 nodes (128 GiB); use fewer --bytes";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, limit));
        }
        let places = Permutation::new(entries);
        let entry = |index: usize| {
            let number = places.place_of(index as u64);
            let bucket = bucket_with(number);
            let last = number + 1 == nodes_before(bucket + 1);
            let next = if last { NONE } else { places.at(number + 1) as u32 };
            let key = key_in(bucket, buckets, number - nodes_before(bucket));
            Entry { key, value: number, next }
        };
        let entries = Mem::from_fn(entries as usize, pages, entry)?;
        let head = |bucket: usize| places.at(nodes_before(bucket as u64)) as u32;
        let heads = Mem::from_fn(buckets as usize, pages, head)?;
        let order = Permutation::new(buckets);
        let key = |probe: u64| {
            let bucket = order.at(probe);
            let nodes = nodes_before(bucket + 1) - nodes_before(bucket);
            key_in(bucket, buckets, nodes - u64::from(probe.is_multiple_of(2)))
        };
        // Half the buckets: at 1 GiB still several times what a cache holds.
        let keys: Vec<u64> = (0..buckets / 2).map(key).collect();
        let laps = PROBES_MIN.div_ceil(keys.len() as u64);
        Ok(Self { heads, entries, keys, laps })
    }

    fn huge_bytes(&self) -> Option<u64> {
        self.entries.huge_bytes()
    }

    fn versions(&self, depths: &[usize]) -> Vec<Version<'_>> {
        let serial = Version::new("serial", 1, || Ok(Sample::of(self.probes(), || self.serial())));
        let hand = depths.iter().map(|&depth| {
            Version::new("hand", depth, move || Ok(Sample::of(self.probes(), || self.hand(depth))))
        });
        let threads =
            depths.iter().map(|&depth| Version::new("threads", depth, move || self.threads(depth)));
        std::iter::once(serial).chain(hand).chain(threads).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_have_8_to_15_nodes_and_every_second_key_is_there() {
        let table = Probe::build(1 << 20, Pages::Small).unwrap();
        let buckets = table.heads.len() as u64;
        let mut nodes = 0;
        for bucket in 0..buckets {
            let (mut at, mut chain) = (table.heads[bucket as usize], 0);
            while at != NONE {
                let entry = &table.entries[at as usize];
                assert_eq!(bucket_of(entry.key, buckets), bucket);
                assert_eq!(table.look_up(entry.key), Some(entry.value));
                (at, chain) = (entry.next, chain + 1);
            }
            assert_eq!(chain, 8 + bucket % 8);
            nodes += chain as usize;
        }
        assert_eq!(nodes, table.entries.len());
        for (probe, &key) in table.keys.iter().enumerate() {
            assert_eq!(table.look_up(key).is_some(), probe % 2 == 0, "probe {probe}");
        }
    }

    #[test]
    fn walking_many_chains_finds_the_same() {
        let table = Probe::build(100_000, Pages::Small).unwrap();
        let serial = table.serial();
        for depth in [1, 2, 7, 64] {
            assert_eq!(table.hand(depth), serial, "depth {depth}");
            assert_eq!(table.threads(depth).unwrap().check, Some(serial), "{depth} threads");
        }
    }
}
