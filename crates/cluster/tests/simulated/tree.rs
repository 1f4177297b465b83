//! Managers of managers.

use std::time::Duration;

use cellway_cluster::manager::Config;
use cellway_cluster::simulated::found::Random;
use cellway_cluster::simulated::tree::{Settings, Tree};
use cellway_cluster::simulated::world::MS;
use cellway_cluster::{JobSpec, Merging};

use crate::Seed;

fn config() -> Config {
    Config { deadline: Duration::from_secs(1), lease_bytes_max: u64::MAX, ..Config::default() }
}

fn tree(units: u64, seed: u64) -> Tree {
    let merging = Merging::AlongTree;
    let spec = JobSpec { units, unit_bytes: 1 << 20, merging, lease_units: None };
    Tree::new(Settings::default(), config(), spec, seed)
}

/// How long it took, in seconds; the answer has the bits of one manager's.
fn ends(tree: &mut Tree) -> f64 {
    tree.run(1_000_000);
    let expected = tree.expected();
    let (ended, how) = tree.ended.as_ref().expect("it ended");
    let found = how.as_ref().expect("no unit fails").as_ref().expect("a result");
    assert_eq!((found.units, found.sum), (expected.units, expected.sum));
    assert_eq!(found.float.to_bits(), expected.float.to_bits());
    *ended as f64 / 1e9
}

#[test]
fn sixty_four_nodes_below_managers_of_managers_are_used() {
    const UNITS: u64 = 64 * 500;
    let mut tree = tree(UNITS, 0);
    assert_eq!((tree.inner(), tree.leaves()), (1..21, 21..85));
    let took = ends(&mut tree);
    let alone = (UNITS * 10 * MS) as f64 / 1e9;
    println!("{took:.2} s, {:.1} times as fast as one node; {} steps", alone / took, tree.steps);
    assert!(alone / took >= 0.9 * 64.0, "{took} s");
}

#[test]
fn managers_that_die_leave_their_nodes_to_the_root() {
    let (mut orphans, mut leased) = (0, 0);
    for seed in 0..20 {
        let seed = Seed(seed);
        let mut tree = tree(64 * 30, seed.0);
        let mut random = Random(seed.0 << 32);
        let inner = 1 + random.below(20) as usize;
        tree.kill(inner, random.below(280 * MS), random.below(2000 * MS));
        let took = ends(&mut tree);
        println!("{inner}: {took:.2} s, {} steps", tree.steps);
        orphans += tree.orphans.len();
        leased += tree.orphans_leased;
    }
    assert!(orphans >= 40 && leased >= 100, "{orphans} orphans got {leased} leases");
}

#[test]
fn a_root_that_died_goes_on_where_it_was() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..20 {
        let seed = Seed(seed);
        let mut tree = tree(64 * 30, seed.0);
        let mut random = Random(seed.0 << 32);
        let at = random.below(280 * MS);
        tree.kill(0, at, random.below(2000 * MS));
        let took = ends(&mut tree);
        let units: u64 = tree.records.iter().map(|(_, units, _)| units).sum();
        assert_eq!(units, 64 * 30, "no unit counts twice");
        kept += tree.recorded_at_start;
        lost += 64 * 30 - tree.recorded_at_start;
        println!("{} ms: {took:.2} s, {} units were recorded", at / MS, tree.recorded_at_start);
    }
    assert!(kept >= 64 * 30 && lost >= 64 * 30, "{kept} kept, {lost} not");
}
