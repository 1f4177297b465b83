//! Every job ends: with the one right result, or with the error that its faults imply.

use std::collections::BTreeMap;
use std::time::Duration;

use cellway_cluster::manager::{Config, Event};
use cellway_cluster::{JobError, JobId, JobSpec, Merging};

use cellway_cluster::simulated::faults::{BAD, BLIND, Flaw, KERNEL, UNIT_BYTES, UNSTARTED};
use cellway_cluster::simulated::found::{FOREIGN, Random};
use cellway_cluster::simulated::host::Host;
use cellway_cluster::simulated::world::{JobState, MS, Settings, What, World};

use crate::Seed;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// What [`tell`] tells of.
const TOLD: usize = 31;

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
    let is_all_there = told.len() == TOLD && told.values().all(|many| *many >= 10);
    assert!(steps < 1_000_000 || is_all_there, "{} of {TOLD}: {told:#?}", told.len());
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
        garbled: random.pick(&[0, 0, 0, 20, 200]),
        lost: random.pick(&[0, 0, 0, 20, 200]),
        goes_on: 2,
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

/// What is wrong with some, but not with host 0 if it is to be a `survivor`.
fn flaws(hosts: &mut [Host], random: &mut Random, survivor: bool) {
    // Results that cannot be read end all jobs, so there are few.
    let foreign = random.one_in(5);
    for host in hosts.iter_mut().skip(usize::from(survivor)) {
        host.flaw = match random.below(30) {
            0 => Flaw::Build,
            1 => Flaw::Protocol,
            2 => Flaw::Buffers,
            3 => Flaw::Kernel,
            4 => Flaw::Blind { names_unit: random.one_in(2) },
            5 | 8 => Flaw::Unstarted(random.pick(&[1, 3, u32::MAX])),
            6 | 7 if foreign => Flaw::Foreign,
            _ => Flaw::None,
        };
    }
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
        match random.below(8) {
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
            5 => {
                world.at(at, What::PauseManager);
                world.at(back, What::ResumeManager);
            }
            6 => {
                world.at(at, What::PauseAll);
                world.at(back, What::ResumeAll);
            }
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
            assert_eq!(*tries, 3);
            unit_failed(world, job, *unit, (*offset, what));
        }
        Err(JobError::Result { what } | JobError::Merge { what }) => {
            assert!(has(world, |flaw| flaw == Flaw::Foreign), "{id:?}: {what}");
            assert_eq!(what, FOREIGN);
        }
        Err(JobError::Aborted) => {}
        Err(JobError::NoNodes { said, .. }) => {
            assert!(!survivor, "{id:?}: a node was there");
            let is_said = |why: &String| {
                has(world, |flaw| match flaw {
                    Flaw::Build => why.contains("the manager is build "),
                    Flaw::Protocol => why.contains("the manager speaks protocol "),
                    Flaw::Buffers => why.contains("this node has 0 buffers"),
                    Flaw::Kernel => why == KERNEL,
                    _ => false,
                })
            };
            assert!(said.as_ref().is_none_or(is_said), "{said:?}");
        }
        Err(error) => panic!("{id:?}: {error}"),
    }
}

fn has(world: &World, is_it: impl Fn(Flaw) -> bool) -> bool {
    world.hosts.iter().any(|host| is_it(host.flaw))
}

/// A unit is named for what it was, or for what the nodes were where it was tried.
fn unit_failed(world: &World, job: &JobState, unit: u64, (offset, what): (Option<u64>, &str)) {
    let place = Some(unit * UNIT_BYTES);
    let is_blind = |flaw| matches!(flaw, Flaw::Blind { .. });
    let is_unstarted = |flaw| matches!(flaw, Flaw::Unstarted(_));
    match what {
        BAD => {
            let left = job.failing.get(&unit);
            let others = has(world, |flaw| is_blind(flaw) || is_unstarted(flaw));
            assert!(left == Some(&u32::MAX) || left.is_some() && others, "unit {unit}");
            assert_eq!(offset, place.filter(|_| job.failures_named));
        }
        BLIND => {
            assert!(has(world, is_blind), "unit {unit}");
            assert!(offset.is_none() || offset == place, "{offset:?}");
        }
        UNSTARTED => assert!(has(world, is_unstarted) && offset.is_none(), "unit {unit}"),
        _ => panic!("unit {unit}: {what}"),
    }
}

/// How jobs ended, and what befell nodes and leases on the way.
fn tell(world: &World, told: &mut BTreeMap<&'static str, u64>) {
    for job in world.jobs.values() {
        let how = match job.ended.as_ref().map(|(_, how)| how) {
            Some(Ok(_)) => "jobs with a result",
            Some(Err(JobError::Unit { what, .. })) if what == BAD => "jobs with a unit that fails",
            Some(Err(JobError::Unit { what, .. })) if what == BLIND => "jobs that were not opened",
            Some(Err(JobError::Unit { .. })) => "jobs that did not start",
            Some(Err(JobError::Result { .. } | JobError::Merge { .. })) => {
                "jobs with a foreign result"
            }
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
        ("nodes refused", of.refused),
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
    for (what, many) in &world.befell {
        *told.entry(what).or_default() += many;
    }
}

fn run(seed: u64, told: &mut BTreeMap<&'static str, u64>) -> u64 {
    let mut random = Random(seed << 32);
    let (config, settings) = (config(&mut random), settings(&mut random));
    let mut hosts = hosts(&mut random);
    let survivor = !random.one_in(4);
    flaws(&mut hosts, &mut random, survivor);
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

/// Nodes that can do nothing do not end a job that the others can do.
#[test]
fn what_one_node_cannot_do_the_others_do() {
    const EVER: u32 = u32::MAX;
    for flaw in [
        Flaw::Build,
        Flaw::Kernel,
        Flaw::Blind { names_unit: false },
        Flaw::Blind { names_unit: true },
        Flaw::Unstarted(EVER),
    ] {
        for seed in 0..20 {
            let seed = Seed(seed);
            let mut hosts: Vec<_> = (0..4).map(|_| Host::new(MS, 2)).collect();
            hosts[seed.0 as usize % 4].flaw = flaw;
            let config = config(&mut Random(seed.0));
            let mut world = World::new(config, Settings::default(), hosts, seed.0);
            (0..4).for_each(|at| world.at(0, What::Start(at)));
            let merging = Merging::AlongTree;
            let spec = JobSpec { units: 300, unit_bytes: 1, merging, lease_units: None };
            world.job(MS, 1, spec);
            world.at(2 * MS, What::Manager(Event::Drain));
            world.run(100_000);
            check(&world, JobId(1), true);
            let ended = world.jobs[&JobId(1)].ended.as_ref();
            assert!(ended.is_some_and(|(_, how)| how.is_ok()), "{flaw:?}: {ended:?}");
            assert!(world.befell.values().sum::<u64>() > 0, "{flaw:?} did nothing");
            let counters = world.manager.counters();
            let says_so = flaw.is_refused() || flaw == Flaw::Kernel;
            assert_eq!((counters.lost, counters.refused > 0), (0, says_so), "{flaw:?}");
            world.check_empty();
        }
    }
}

/// Of what was cut or changed its receiver knows at once; nothing is waited for.
#[test]
fn what_cannot_be_read_costs_less_than_what_is_lost() {
    for seed in 0..20 {
        let seed = Seed(seed);
        let config = Config { lease_max: Duration::from_secs(100_000), ..Config::default() };
        let settings = Settings { garbled: 10, ..Settings::default() };
        let mut world = World::new(config, settings, vec![Host::new(MS, 2)], seed.0);
        world.at(0, What::Start(0));
        let merging = Merging::AlongTree;
        let spec = JobSpec { units: 300, unit_bytes: 1, merging, lease_units: Some(1) };
        world.job(MS, 1, spec);
        world.at(2 * MS, What::Manager(Event::Drain));
        world.run(100_000);
        check(&world, JobId(1), true);
        let seconds = world.jobs[&JobId(1)].ended.as_ref().map(|(at, _)| at / 1000 / MS);
        assert!(seconds.is_some_and(|seconds| seconds < 60), "{seconds:?} s");
        assert!(world.befell["messages cut or changed"] >= 50);
        world.check_empty();
    }
}

/// A machine that is stopped as a whole goes on where it was.
#[test]
fn who_was_stopped_together_loses_nobody() {
    for seed in 0..20 {
        let seed = Seed(seed);
        let hosts = (0..3).map(|_| Host::new(MS, 2)).collect();
        let mut world = World::new(config(&mut Random(seed.0)), Settings::default(), hosts, seed.0);
        (0..3).for_each(|at| world.at(0, What::Start(at)));
        let merging = Merging::AlongTree;
        let spec = JobSpec { units: 3000, unit_bytes: 1, merging, lease_units: None };
        world.job(MS, 1, spec);
        world.at(2 * MS, What::Manager(Event::Drain));
        let at = (20 + world.random.below(800)) * MS;
        world.at(at, What::PauseAll);
        world.at(at + 60_000 * MS, What::ResumeAll);
        world.run(100_000);
        check(&world, JobId(1), true);
        assert_eq!(world.manager.counters().lost, 0);
        world.check_empty();
    }
}
