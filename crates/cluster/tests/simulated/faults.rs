//! Every job ends: with the one right result, or with the error that its faults imply.

use std::collections::BTreeMap;
use std::time::Duration;

use cellway_cluster::manager::{Config, Event};
use cellway_cluster::{JobError, JobId, JobSpec, Merging};

use cellway_cluster::simulated::found::Random;
use cellway_cluster::simulated::host::Host;
use cellway_cluster::simulated::world::{MS, Settings, What, World};

use crate::Seed;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// `CELLWAY_SEED` runs one seed, `CELLWAY_SEEDS` so many; else as many as make
/// a million steps, in which all that can happen has to.
#[test]
fn every_job_ends_as_it_should() {
    let mut told = BTreeMap::new();
    if let Some(seed) = number("CELLWAY_SEED") {
        let seed = Seed(seed);
        run(seed.0, &mut told);
        return;
    }
    let (mut steps, mut next, seeds) = (0, 0, number("CELLWAY_SEEDS"));
    while seeds.map_or(steps < 1_000_000, |seeds| next < seeds) {
        let seed = Seed(next);
        steps += run(seed.0, &mut told);
        next += 1;
    }
    println!("{steps} steps over {next} seeds: {told:#?}");
    let is_all_there = told.len() == 13 && told.values().all(|many| *many >= 10);
    assert!(steps < 1_000_000 || is_all_there, "{told:#?}");
}

fn config(random: &mut Random) -> Config {
    Config {
        deadline: Duration::from_millis(1000),
        join_wait: Duration::from_millis(5000),
        overdue: Duration::from_millis(random.pick(&[200, 2000, 60_000])),
        lease_max: Duration::from_millis(30_000),
        lease_bytes_max: random.pick(&[100, 10_000, 1 << 40]),
        guided_factor: random.pick(&[1.0, 2.0, 4.0]),
        merges_max: random.pick(&[1, 3]),
        backlog_max: random.pick(&[0, 4, 64]),
        // Here nodes are lost for no fault of the units.
        losses_max: u32::MAX,
        ..Config::default()
    }
}

fn settings(random: &mut Random) -> Settings {
    Settings {
        latency_ns: random.pick(&[0, MS / 10, 20 * MS]),
        jitter_ns: random.pick(&[0, MS, 100 * MS]),
        ships: random.one_in(2),
        bytes_per_second: random.pick(&[1_000_000, 111_000_000]),
        fetch_ns: random.pick(&[0, 3 * MS]),
        lease_ns: random.pick(&[0, MS]),
        merge_ns: random.pick(&[0, MS, 30 * MS]),
        twice: random.pick(&[0, 5, 50]),
        ..Settings::default()
    }
}

fn hosts(random: &mut Random) -> Vec<Host> {
    let many = 1 + random.below(8);
    let one = |_| {
        let ns_per_unit = random.pick(&[MS / 10, MS, 10 * MS, 200 * MS]);
        Host::new(ns_per_unit, 1 + random.below(3) as u32)
    };
    (0..many).map(one).collect()
}

/// Jobs of all kinds; those that are to fail say so.
fn jobs(world: &mut World) {
    let many = 1 + world.random.below(4);
    for id in 1..=many {
        let random = &mut world.random;
        let units = random.pick(&[0, 1, 2, 3, 7, 64, 100, 200, 500]);
        let spec = JobSpec {
            units,
            unit_bytes: random.pick(&[0, 1, 1000]),
            merging: random.pick(&[
                Merging::AlongTree,
                Merging::AlongTree,
                Merging::AnyOrder,
                Merging::Nothing,
            ]),
            lease_units: random.pick(&[None, None, Some(1), Some(16)]),
        };
        let at = random.below(2000 * MS);
        let failing: Vec<_> = match random.below(4) {
            0 if units > 0 => (0..random.below(6)).map(|_| random.below(units)).collect(),
            _ => Vec::new(),
        };
        let times = random.pick(&[1, 2, u32::MAX]);
        let (named, aborted) = (random.one_in(2), random.one_in(8));
        let abort_at = at + random.below(3000 * MS);
        let job = world.job(at, id, spec);
        job.failing = failing.into_iter().map(|unit| (unit, times)).collect();
        job.failures_named = named;
        if aborted {
            world.at(abort_at, What::Manager(Event::Abort(JobId(id))));
        }
    }
}

/// Kills, pauses, joins and leaves; host 0 stays if there is to be a `survivor`.
fn faults(world: &mut World, survivor: bool) {
    let hosts = world.hosts.len();
    for at in 0..hosts {
        let late = world.random.below(3) * world.random.below(1500 * MS);
        world.at(if at == 0 { 0 } else { late }, What::Start(at));
    }
    for _ in 0..world.random.below(12) {
        let random = &mut world.random;
        let (host, at) = (random.below(hosts as u64) as usize, random.below(4000 * MS));
        if host == 0 && survivor {
            continue;
        }
        let back = at + random.below(4000 * MS);
        match random.below(6) {
            0 => world.at(at, What::Kill(host)),
            1 => {
                world.at(at, What::Kill(host));
                world.at(back, What::Start(host));
            }
            2 => {
                world.at(at, What::Pause(host));
                world.at(back, What::Resume(host));
            }
            3 => world.at(at, What::Leave(host)),
            4 => world.at(at, What::Hang(host)),
            _ => world.at(at, What::Stray(host)),
        }
    }
}

fn check(world: &World, id: JobId, survivor: bool) {
    let job = &world.jobs[&id];
    let (_, how) = job.ended.as_ref().unwrap_or_else(|| panic!("{id:?} never ended"));
    match how {
        Ok(found) => {
            let forever = job.failing.iter().find(|(_, left)| **left == u32::MAX);
            assert_eq!(forever, None, "{id:?} ended though a unit fails");
            let expected = world.expected(id);
            let whole = |found: &cellway_cluster::simulated::found::Found| (found.units, found.sum);
            assert_eq!(found.as_ref().map(whole), expected.as_ref().map(whole), "{id:?}");
            if job.spec.merging == Merging::AlongTree {
                let bits = |found: &cellway_cluster::simulated::found::Found| found.float.to_bits();
                assert_eq!(found.as_ref().map(bits), expected.as_ref().map(bits), "{id:?}");
            }
        }
        Err(JobError::Unit { unit, offset, what, tries }) => {
            assert_eq!(job.failing.get(unit), Some(&u32::MAX), "unit {unit} does not fail");
            assert_eq!((what.as_str(), *tries), ("bad", 3));
            assert_eq!(*offset, job.failures_named.then_some(unit * 10));
        }
        Err(JobError::Aborted) => {}
        Err(JobError::NoNodes { .. }) => assert!(!survivor, "{id:?}: a node was there"),
        Err(error) => panic!("{id:?}: {error}"),
    }
}

/// How jobs ended, and what befell nodes and leases on the way.
fn tell(world: &World, told: &mut BTreeMap<&'static str, u64>) {
    for job in world.jobs.values() {
        let how = match job.ended.as_ref().map(|(_, how)| how) {
            Some(Ok(_)) => "jobs with a result",
            Some(Err(JobError::Unit { .. })) => "jobs with a unit that fails",
            Some(Err(JobError::Aborted)) => "jobs aborted",
            Some(Err(JobError::NoNodes { .. })) => "jobs without nodes",
            _ => "jobs that ended in another way",
        };
        *told.entry(how).or_default() += 1;
    }
    let of = world.manager.counters();
    for (what, many) in [
        ("memberships", of.joined),
        ("nodes lost", of.lost),
        ("stale messages", of.stale),
        ("leases given again", of.given_again),
        ("leases given twice", of.given_twice),
        ("leases withdrawn", of.withdrawn),
        ("leases failed", of.failures),
        ("results", of.results),
        ("results dropped", of.results_dropped),
    ] {
        *told.entry(what).or_default() += many;
    }
}

fn run(seed: u64, told: &mut BTreeMap<&'static str, u64>) -> u64 {
    let mut random = Random(seed << 32);
    let (config, settings) = (config(&mut random), settings(&mut random));
    let hosts = hosts(&mut random);
    let survivor = !random.one_in(4);
    let mut world = World::new(config, settings, hosts, random.draw());
    jobs(&mut world);
    faults(&mut world, survivor);
    world.survivor = survivor;
    world.strikes = world.random.pick(&[0, 0, 3, 10]);
    world.at(10_000 * MS, What::Manager(Event::Drain));
    world.run(1_000_000);
    for id in world.jobs.keys().copied().collect::<Vec<_>>() {
        check(&world, id, survivor);
    }
    tell(&world, told);
    world.check_empty();
    world.steps
}

/// A unit that ends its process, which is started again and again.
#[test]
fn a_unit_that_kills_nodes_ends_its_job_alone() {
    for seed in 0..20 {
        let seed = Seed(seed);
        let hosts = (0..4).map(|_| Host::new(MS, 2)).collect();
        let config = Config { losses_max: 8, ..config(&mut Random(seed.0)) };
        let mut world = World::new(config, Settings::default(), hosts, seed.0);
        (0..4).for_each(|at| world.at(0, What::Start(at)));
        let spec =
            JobSpec { units: 300, unit_bytes: 1, merging: Merging::AlongTree, lease_units: None };
        world.job(MS, 1, spec).killer = Some(seed.0 * 7);
        world.job(2 * MS, 2, spec);
        world.at(3 * MS, What::Manager(Event::Drain));
        world.run(100_000);
        let ended = world.jobs[&JobId(1)].ended.as_ref().map(|(_, how)| how);
        assert!(matches!(ended, Some(Err(JobError::Lost { losses: 8.., .. }))), "{ended:?}");
        check(&world, JobId(2), true);
        assert!(world.jobs[&JobId(2)].ended.as_ref().is_some_and(|(_, how)| how.is_ok()));
        world.check_empty();
    }
}
