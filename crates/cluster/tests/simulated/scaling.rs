//! How well nodes are used, in virtual time: exact, so no timing is measured.

use cellway_cluster::manager::{Config, Event};
use cellway_cluster::{JobId, JobSpec, Merging, NodeId};

use cellway_cluster::simulated::host::Host;
use cellway_cluster::simulated::world::{MS, Settings, What, World};

const MIB: u64 = 1 << 20;

/// How long a job takes, in seconds.
fn seconds(ns_per_unit: &[u64], units: u64, settings: Settings) -> f64 {
    run(ns_per_unit, units, settings, Config::default()).0
}

/// How long a job takes, in seconds, and the most results that waited to be
/// merged; its result is right.
fn run(ns_per_unit: &[u64], units: u64, settings: Settings, config: Config) -> (f64, usize) {
    run_with(ns_per_unit, units, None, settings, config)
}

/// The same with leases of so many units.
fn run_with(
    ns_per_unit: &[u64],
    units: u64,
    lease_units: Option<u64>,
    settings: Settings,
    config: Config,
) -> (f64, usize) {
    let hosts: Vec<_> = ns_per_unit.iter().map(|ns| Host::new(*ns, 2)).collect();
    let mut world = World::new(config, settings, hosts, 1);
    (0..ns_per_unit.len()).for_each(|at| world.at(0, What::Start(at)));
    let spec = JobSpec { units, unit_bytes: MIB, merging: Merging::AlongTree, lease_units };
    world.job(MS, 1, spec);
    world.at(2 * MS, What::Manager(Event::Drain));
    world.run(10_000_000);
    let (ended, how) = world.jobs[&JobId(1)].ended.as_ref().expect("it ended");
    let found = how.as_ref().expect("no fault").as_ref().expect("a result");
    let expected = world.expected(JobId(1)).unwrap();
    assert_eq!(found.float.to_bits(), expected.float.to_bits());
    ((*ended - MS) as f64 / 1e9, world.jobs[&JobId(1)].waiting_max)
}

#[test]
fn eight_nodes_that_compute_are_nearly_eight_times_as_fast() {
    for (units, ns_per_unit) in [(500, 100 * MS), (4096, 10 * MS), (50_000, MS)] {
        let alone = seconds(&[ns_per_unit], units, Settings::default());
        let eight = seconds(&[ns_per_unit; 8], units, Settings::default());
        println!("{units} units of {ns_per_unit} ns: {:.2} times as fast", alone / eight);
        assert!(alone / eight >= 6.9, "{units} units: {alone} s and {eight} s");
    }
}

#[test]
fn a_link_that_bounds_the_run_is_used() {
    for (units, ns_per_unit) in [(4096, MS), (2000, 20 * MS)] {
        let settings = Settings { ships: true, ..Settings::default() };
        let took = seconds(&[ns_per_unit; 8], units, settings);
        let used = (units * MIB) as f64 / 111e6 / took;
        println!("{units} units of {ns_per_unit} ns: {used:.3} of the link");
        assert!(used >= 0.96, "{units} units: {used} of the link");
    }
}

#[test]
fn one_slow_node_of_eight_costs_no_more_than_its_share() {
    for (units, ns_per_unit) in [(1024, 50 * MS), (4096, 10 * MS), (50_000, MS)] {
        let mut speeds = [ns_per_unit; 8];
        speeds[3] *= 4;
        let took = seconds(&speeds, units, Settings::default());
        let ideal = (units * ns_per_unit) as f64 / 1e9 / 7.25;
        println!("{units} units of {ns_per_unit} ns: {:.3} of the ideal time", took / ideal);
        assert!(took <= 1.1 * ideal, "{units} units: {took} s, ideal {ideal} s");
    }
}

#[test]
fn a_lost_node_costs_no_more_than_its_share() {
    // Leases that cost what those of a table of words do, 256 KiB at 300 MB/s. It holds for these
    // moments without sharing as well, whose own tests are the manager's.
    const UNIT_BYTES: u64 = 256 << 10;
    const NS_PER_UNIT: u64 = 870_000;
    let settings = Settings { lease_ns: 2 * MS, merge_ns: 6 * MS / 5, ..Settings::default() };
    for (nodes, units) in [(3, 8192), (3, 65_536), (8, 65_536)] {
        // After the loss was told, in the time that the others need for what was left.
        let over_ideal = |death: u64| {
            let hosts: Vec<_> = (0..nodes).map(|_| Host::new(NS_PER_UNIT, 2)).collect();
            let mut world = World::new(Config::default(), settings.clone(), hosts, 1);
            (0..nodes).for_each(|at| world.at(0, What::Start(at)));
            let merging = Merging::AlongTree;
            world.job(MS, 1, JobSpec { units, unit_bytes: UNIT_BYTES, merging, lease_units: None });
            world.at(2 * MS, What::Manager(Event::Drain));
            world.at(death, What::Die(1));
            world.at(death + 50 * MS, What::Manager(Event::Lost(NodeId(1))));
            world.run(10_000_000);
            let (ended, how) = world.jobs[&JobId(1)].ended.as_ref().expect("it ended");
            assert_eq!(how.as_ref().unwrap().as_ref().unwrap().units, units);
            let loss = world.manager.counters().last_loss.filter(|loss| loss.bytes_left > 0)?;
            let ideal = (loss.bytes_left / UNIT_BYTES * NS_PER_UNIT) as f64 / (nodes - 1) as f64;
            Some((*ended as f64 - loss.after.as_nanos() as f64) / ideal)
        };
        let whole = units * NS_PER_UNIT / nodes as u64;
        let ratios: Vec<_> =
            (0..100).filter_map(|moment| over_ideal(MS + whole * moment / 100)).collect();
        let worst = ratios.iter().copied().fold(0.0, f64::max);
        println!("{nodes} nodes, {units} units, {} deaths: {worst:.3} at worst", ratios.len());
        assert!(ratios.len() >= 90 && worst <= 1.2, "{ratios:?}");
    }
}

#[test]
fn few_results_wait_to_be_merged_and_slow_merges_hold_up_nobody() {
    // Nodes of all speeds, so that the tree has holes far apart; merges that
    // keep up, and merges that do not.
    let speeds: Vec<_> = (1..=16).map(|node| node * MS / 4).collect();
    for merge_ns in [0, MS, 30 * MS] {
        let settings = Settings { merge_ns, ..Settings::default() };
        let config = Config { lease_bytes_max: u64::MAX, ..Config::default() };
        let (took, waiting) = run(&speeds, 30_000, settings, config);
        println!("merges of {merge_ns} ns: {waiting} results waited, {took:.1} s");
        assert!(took <= 2.0 * 30_000.0 / 13_522.0, "merges of {merge_ns} ns: {took} s");
        // Twice 15 levels and 32 leases that are out, or the backlog's 64 and the leases.
        assert!(waiting <= if merge_ns == 0 { 2 * (15 + 32) } else { 64 + 32 }, "{waiting}");
    }
}

#[test]
fn four_hundred_nodes_are_used() {
    let took = seconds(&[10 * MS; 400], 100_000, Settings::default());
    let ideal = 100_000.0 * 0.01 / 400.0;
    println!("400 nodes: {:.3} of the ideal time", took / ideal);
    assert!(took <= 1.1 * ideal, "{took} s, ideal {ideal} s");
}

#[test]
fn measured_leases_are_as_good_as_the_best_length() {
    // What a lease costs its node, and what a merge takes: from sums to tables of words.
    for (lease_ns, merge_ns) in [(MS / 50, MS / 50), (MS, MS), (6 * MS, 4 * MS)] {
        for nodes in [2, 8] {
            let settings = Settings { lease_ns, merge_ns, ..Settings::default() };
            let took = |lease_units| {
                let (settings, config) = (settings.clone(), Config::default());
                run_with(&vec![6 * MS; nodes], 512 * nodes as u64, lease_units, settings, config).0
            };
            let lengths = (0..=6).map(|level| 1 << level);
            let (best, units) = lengths
                .map(|units| (took(Some(units)), units))
                .fold((f64::MAX, 0), |one, other| if other.0 < one.0 { other } else { one });
            let ratio = took(None) / best;
            println!(
                "a lease {lease_ns} ns, a merge {merge_ns} ns, {nodes} nodes: best {units} units, {best:.3} s; \
                 measured {ratio:.3} of that"
            );
            assert!(ratio <= 1.05, "{ratio}");
        }
    }
}
