//! What a lease may have: by a buffer, and by the nodes that share it.

use super::*;

/// The first lease of a group of `nodes`.
fn first_lease(nodes: u32, config: Config, spec: JobSpec) -> Lease {
    let mut bench = Bench::new(config);
    bench.on(Event::Submit(JOB, spec));
    bench.says(0, ToManager::Hello(Hello { nodes, ..Hello::default() }));
    let epoch = bench.manager.members[&NodeId(0)].epoch;
    bench.asks(0, epoch, 1)[0]
}

#[test]
fn a_lease_is_for_all_nodes_of_a_group() {
    let spec = JobSpec { units: 64, ..UNITS };
    for (nodes, units) in [(0, 4), (1, 4), (2, 8), (3, 8), (4, 16), (u32::MAX, 64)] {
        assert_eq!(first_lease(nodes, Config::default(), spec).units, units, "{nodes}");
    }
    for (nodes, units) in [(1, 2), (4, 8), (5, 8), (8, 16)] {
        let config = Config { lease_bytes_max: 2, ..Config::default() };
        let spec = JobSpec { lease_units: Some(1000), ..spec };
        assert_eq!(first_lease(nodes, config, spec).units, units, "{nodes}");
    }
}

#[test]
fn a_node_with_no_room_for_a_unit_gets_none_and_is_none_to_wait_for() {
    let mut bench = Bench::new(Config::default());
    let Config { join_wait, deadline, .. } = Config::default();
    bench.on(Event::Submit(JOB, JobSpec { unit_bytes: 100, ..UNITS }));
    let hello = Hello { buffers: 4, buffer_bytes: 99, ..Hello::default() };
    bench.says(0, ToManager::Hello(hello));
    let epoch = bench.manager.members[&NodeId(0)].epoch;
    assert_eq!(bench.asks(0, epoch, 4), []);
    let mut failed = Vec::new();
    for _ in 0..=join_wait.as_secs() / deadline.as_secs() * 2 {
        bench.says(0, ToManager::Alive { epoch });
        failed.extend(bench.passes(deadline / 2));
    }
    assert_eq!(
        failed,
        [Action::Failed { job: JOB, error: JobError::NoNodes { waited: join_wait, said: None } }]
    );
}
