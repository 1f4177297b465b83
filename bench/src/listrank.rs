//! List ranking: the place of every node of a linked list in random order.
//!
//! The serial way follows the list and numbers the nodes. The sublist way
//! (Helman and JaJa, "Prefix computations on symmetric multiprocessors", 1999)
//! marks some nodes as heads of sublists, ranks each sublist by itself - any
//! number at a time -, sums up the sublists' lengths in list order, and adds
//! to each node's rank what lies before its sublist.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use cellway::accel::Lent;

use crate::hw::{Mem, Pages, prefetch};
use crate::irregular::Irregular;
use crate::measure::{Sample, Version};
use crate::permutation::Permutation;
use crate::program::one_accelerator;

/// Nodes per sublist on average. Small enough that the last sublists to end
/// do not matter, large enough that their number does not either.
const SUBLIST_NODES: u64 = 8192;

/// In [`Node::sublist`]: the node heads the sublist with this number.
const HEAD: u32 = 1 << 31;
/// In [`Node::next`]: the list ends here.
const END: u32 = u32::MAX;
/// A rank no node can have, to show that a version ranked every node.
const UNRANKED: u64 = u64::MAX;

/// Sixteen bytes; ranks are stored where they are needed, in the node.
#[repr(C, align(16))]
pub(crate) struct Node {
    next: u32,
    sublist: AtomicU32,
    rank: AtomicU64,
}

/// What walking a sublist found out.
#[derive(Clone, Copy)]
struct Found {
    sublist: u32,
    nodes: u64,
    /// The sublist that follows in the list.
    next: Option<u32>,
}

pub(crate) struct ListRank {
    nodes: Mem<Node>,
    first: u32,
}

/// Walks one sublist, a node per step.
struct Walker {
    sublist: u32,
    at: u32,
    rank: u64,
    next: Option<u32>,
}

impl ListRank {
    fn sublists(&self) -> u32 {
        // At most 2^31 nodes (see build), so the quotient fits.
        (self.nodes.len() as u64).div_ceil(SUBLIST_NODES) as u32
    }

    fn head(&self, sublist: u32) -> u32 {
        head(sublist, self.sublists(), self.nodes.len() as u64, self.first)
    }

    fn serial(&self) {
        let (mut at, mut rank) = (self.first, 0);
        while at != END {
            let node = &self.nodes[at as usize];
            node.rank.store(rank, Relaxed);
            rank += 1;
            at = node.next;
        }
    }

    /// Ranks by sublists; `walk` ranks within each of them and says what it found.
    fn by_sublists(&self, walk: impl FnOnce() -> anyhow::Result<Vec<Found>>) -> anyhow::Result<()> {
        for sublist in 0..self.sublists() {
            self.nodes[self.head(sublist) as usize].sublist.store(sublist | HEAD, Relaxed);
        }
        let mut found = walk()?;
        found.sort_unstable_by_key(|found| found.sublist);
        let mut before = vec![0; found.len()];
        let (mut at, mut nodes_before) = (Some(0), 0);
        while let Some(sublist) = at {
            before[sublist as usize] = nodes_before;
            nodes_before += found[sublist as usize].nodes;
            at = found[sublist as usize].next;
        }
        for node in self.nodes.iter() {
            let sublist = node.sublist.load(Relaxed) & !HEAD;
            node.rank.store(node.rank.load(Relaxed) + before[sublist as usize], Relaxed);
            node.sublist.store(0, Relaxed);
        }
        Ok(())
    }

    fn walker(&self, sublist: u32) -> Walker {
        Walker { sublist, at: self.head(sublist), rank: 0, next: None }
    }

    fn hand(&self, depth: usize) -> Vec<Found> {
        let mut heads = 0..self.sublists();
        let mut found = Vec::with_capacity(heads.len());
        let mut walkers: Vec<Walker> = heads.by_ref().take(depth).map(|s| self.walker(s)).collect();
        while !walkers.is_empty() {
            let mut index = 0;
            while index < walkers.len() {
                let walker = &mut walkers[index];
                if walker.step(&self.nodes[walker.at as usize]) {
                    prefetch(&self.nodes[walker.at as usize]);
                    index += 1;
                    continue;
                }
                found.push(walker.found());
                match heads.next() {
                    Some(sublist) => walkers[index] = self.walker(sublist),
                    None => _ = walkers.swap_remove(index),
                }
            }
        }
        found
    }

    /// One sublist per thread at a time: the serial walk, ended by the next head.
    fn threads(&self, threads: usize) -> anyhow::Result<Vec<Found>> {
        let nodes = Lent::new(&self.nodes);
        let heads = AtomicU32::new(0);
        let heads = &heads;
        let found = cellway::accel::run(&one_accelerator(threads), |cx, _| async move {
            let mut found = Vec::new();
            loop {
                let sublist = heads.fetch_add(1, Relaxed);
                if sublist >= self.sublists() {
                    return found;
                }
                let mut walker = self.walker(sublist);
                while walker.step(cx.load(&nodes, walker.at as usize).await) {}
                found.push(walker.found());
            }
        })?;
        Ok(found.concat())
    }

    /// A sum that depends on the rank of every node; forgets the ranks, so that
    /// the next version cannot live on this one's.
    fn check_and_forget(&self) -> u64 {
        self.nodes.iter().zip(1_u64..).fold(0, |sum, (node, number)| {
            let rank = node.rank.swap(UNRANKED, Relaxed);
            sum.wrapping_add(rank.wrapping_mul(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        })
    }

    fn sample(&self, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Sample> {
        let start = Instant::now();
        work()?;
        let seconds = start.elapsed().as_secs_f64();
        let check = Some(self.check_and_forget());
        Ok(Sample { seconds, items: self.nodes.len() as u64, check })
    }
}

/// The node that heads sublist `sublist` of `sublists`: evenly spaced in
/// memory, which is at random places of the list; sublist 0 starts where the
/// list does.
fn head(sublist: u32, sublists: u32, nodes: u64, first: u32) -> u32 {
    let spaced = (u64::from(sublist) * nodes / u64::from(sublists)) as u32;
    match sublist {
        0 => first,
        // The list's first node heads sublist 0 already.
        _ if spaced == first => spaced + 1,
        _ => spaced,
    }
}

impl Walker {
    /// Ranks `node`, which lies at `self.at`, and goes on to the next; `false`
    /// at the end of the list, or when `node` heads another sublist.
    #[inline(always)]
    fn step(&mut self, node: &Node) -> bool {
        let mark = node.sublist.load(Relaxed);
        if mark & HEAD == 0 {
            node.sublist.store(self.sublist, Relaxed);
        } else if mark & !HEAD != self.sublist {
            self.next = Some(mark & !HEAD);
            return false;
        }
        node.rank.store(self.rank, Relaxed);
        self.rank += 1;
        self.at = node.next;
        node.next != END
    }

    fn found(&self) -> Found {
        Found { sublist: self.sublist, nodes: self.rank, next: self.next }
    }
}

impl Irregular for ListRank {
    const TITLE: &'static str =
        "listrank: the rank of every node of a random list of 16-byte nodes";
    const ITEM: &'static str = "node";

    fn build(bytes: u64, pages: Pages) -> io::Result<Self> {
        let nodes = (bytes / size_of::<Node>() as u64).max(1);
        if nodes >= u64::from(HEAD) {
            let limit = "a list may have 2^31 - 1 nodes (32 GiB); use fewer --bytes";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, limit));
        }
        let order = Permutation::new(nodes);
        let node = |index: usize| {
            let place = order.place_of(index as u64);
            let next = if place + 1 == nodes { END } else { order.at(place + 1) as u32 };
            Node { next, sublist: AtomicU32::new(0), rank: AtomicU64::new(UNRANKED) }
        };
        Ok(Self { nodes: Mem::from_fn(nodes as usize, pages, node)?, first: order.at(0) as u32 })
    }

    fn huge_bytes(&self) -> Option<u64> {
        self.nodes.huge_bytes()
    }

    fn versions(&self, depths: &[usize]) -> Vec<Version<'_>> {
        let serial = Version::new("serial", 1, || {
            self.sample(|| {
                self.serial();
                Ok(())
            })
        });
        let hand = depths.iter().map(|&depth| {
            let rank = move || self.by_sublists(|| Ok(self.hand(depth)));
            Version::new("hand", depth, move || self.sample(rank))
        });
        let threads = depths.iter().map(|&depth| {
            let rank = move || self.by_sublists(|| self.threads(depth));
            Version::new("threads", depth, move || self.sample(rank))
        });
        std::iter::once(serial).chain(hand).chain(threads).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(list: &ListRank) -> Vec<u64> {
        list.nodes.iter().map(|node| node.rank.load(Relaxed)).collect()
    }

    #[test]
    fn heads_are_distinct_wherever_the_list_starts() {
        for first in 0..20 {
            let mut heads: Vec<u32> = (0..10).map(|sublist| head(sublist, 10, 20, first)).collect();
            assert_eq!(heads[0], first);
            heads.sort_unstable();
            heads.dedup();
            assert_eq!(heads.len(), 10, "first {first}");
            assert!(heads.iter().all(|&head| head < 20));
        }
    }

    #[test]
    fn all_versions_give_each_node_its_place_in_the_list() {
        for nodes in [1, 2, 3, 8191, 8192, 8193, 50_000] {
            let list = ListRank::build(nodes * 16, Pages::Small).unwrap();
            let order = Permutation::new(nodes);
            let places: Vec<u64> = (0..nodes).map(|node| order.place_of(node)).collect();
            list.serial();
            assert_eq!(ranks(&list), places, "serial, {nodes} nodes");
            for depth in [1, 2, 5, 64] {
                list.check_and_forget();
                list.by_sublists(|| Ok(list.hand(depth))).unwrap();
                assert_eq!(ranks(&list), places, "hand {depth}, {nodes} nodes");
                list.check_and_forget();
                list.by_sublists(|| list.threads(depth)).unwrap();
                assert_eq!(ranks(&list), places, "threads {depth}, {nodes} nodes");
            }
        }
    }
}
