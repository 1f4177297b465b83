//! Pointer chase: follow one random cycle through 64-byte nodes. The plainest
//! case of irregular access: no address is known before the load before it.

use std::io;

use cellway::accel::Lent;

use crate::hw::{Mem, Pages, prefetch};
use crate::irregular::Irregular;
use crate::measure::{Sample, Version};
use crate::permutation::Permutation;
use crate::program::{one_accelerator, run_timed};

/// Fewest hops of a run: small footprints are walked several times.
const HOPS_MIN: u64 = 1 << 20;

/// A cache line with a pointer and something to read.
#[repr(C, align(64))]
pub(crate) struct Node {
    next: u64,
    payload: [u64; 7],
}

pub(crate) struct Walk {
    nodes: Mem<Node>,
    order: Permutation,
    laps: u64,
}

impl Walk {
    /// Where chain `chain` of `chains` starts and how many hops it makes in a
    /// lap: together they visit every node once, whatever their number.
    fn chain(&self, chain: usize, chains: usize) -> (u64, u64) {
        let nodes = self.nodes.len() as u64;
        let bound = |chain: usize| nodes * chain as u64 / chains as u64;
        (self.order.at(bound(chain) % nodes), bound(chain + 1) - bound(chain))
    }

    fn hops(&self) -> u64 {
        self.nodes.len() as u64 * self.laps
    }

    /// Sums up `hops` nodes from `at` on.
    fn serial(&self, mut at: u64, hops: u64) -> u64 {
        let mut sum = 0_u64;
        for _ in 0..hops {
            let node = &self.nodes[at as usize];
            sum = sum.wrapping_add(node.payload[0]);
            at = node.next;
        }
        sum
    }

    /// One lap by `depth` chains in turn.
    fn hand(&self, depth: usize) -> u64 {
        let mut chains: Vec<(u64, u64)> = (0..depth).map(|c| self.chain(c, depth)).collect();
        let together = chains.iter().map(|chain| chain.1).min().unwrap_or(0);
        let mut sum = 0_u64;
        for _ in 0..together {
            for (at, _) in &mut chains {
                let node = &self.nodes[*at as usize];
                sum = sum.wrapping_add(node.payload[0]);
                *at = node.next;
                prefetch(&self.nodes[*at as usize]);
            }
        }
        let rest = chains.iter().map(|&(at, hops)| self.serial(at, hops - together));
        rest.fold(sum, u64::wrapping_add)
    }

    /// The serial loop, by any number of threads, each on its part of the cycle.
    fn threads(&self, threads: usize) -> anyhow::Result<Sample> {
        let nodes = Lent::new(&self.nodes);
        run_timed(&one_accelerator(threads), self.hops(), |cx, at| {
            let (start, hops) = self.chain(at.index(), at.count());
            async move {
                let mut sum = 0_u64;
                for _ in 0..self.laps {
                    let mut place = start;
                    for _ in 0..hops {
                        let node = cx.load(&nodes, place as usize).await;
                        sum = sum.wrapping_add(node.payload[0]);
                        place = node.next;
                    }
                }
                Ok(sum)
            }
        })
    }

    fn sample(&self, lap: impl Fn() -> u64) -> Sample {
        Sample::of(self.hops(), || (0..self.laps).fold(0, |sum, _| sum.wrapping_add(lap())))
    }
}

impl Irregular for Walk {
    const TITLE: &'static str = "walk: pointer chase, one random cycle of 64-byte nodes";
    const ITEM: &'static str = "hop";

    fn build(bytes: u64, pages: Pages) -> io::Result<Self> {
        let nodes = (bytes / size_of::<Node>() as u64).max(1);
        let order = Permutation::new(nodes);
        let node = |index: usize| {
            let next = order.at((order.place_of(index as u64) + 1) % nodes);
            Node { next, payload: [index as u64; 7] }
        };
        let laps = HOPS_MIN.div_ceil(nodes);
        Ok(Self { nodes: Mem::from_fn(nodes as usize, pages, node)?, order, laps })
    }

    fn huge_bytes(&self) -> Option<u64> {
        self.nodes.huge_bytes()
    }

    fn versions(&self, depths: &[usize]) -> Vec<Version<'_>> {
        let (start, hops) = self.chain(0, 1);
        let serial =
            Version::new("serial", 1, move || Ok(self.sample(|| self.serial(start, hops))));
        let hand = depths.iter().map(|&depth| {
            Version::new("hand", depth, move || Ok(self.sample(|| self.hand(depth))))
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
    fn any_number_of_chains_visits_every_node_once_a_lap() {
        let walk = Walk::build(64 * 1000, Pages::Small).unwrap();
        let all: u64 = (0..1000).sum();
        assert_eq!(walk.serial(walk.chain(0, 1).0, 1000), all);
        for depth in [1, 2, 7, 64] {
            assert_eq!(walk.hand(depth), all, "depth {depth}");
            let threads = walk.threads(depth).unwrap();
            assert_eq!(threads.check, Some(all * walk.laps), "{depth} threads");
        }
    }
}
