//! Nodes that are members no more.

use super::*;

#[test]
fn memberships_that_end_leave_nothing_behind() {
    let mut bench = Bench::new(Config::default());
    for _ in 0..100 {
        let epoch = bench.joins(0);
        assert_eq!(bench.asks(0, epoch, 2).len(), 0);
        bench.on(Event::Lost(NodeId(0)));
    }
    assert!(bench.manager.waiting.is_empty());
}

#[test]
fn a_node_that_leaves_by_its_last_result_leaves_no_pace() {
    let mut bench = bench();
    let epoch = bench.joins(0);
    let lease = bench.asks(0, epoch, 1)[0];
    bench.says(0, ToManager::Leaving { epoch });
    bench.returns(0, epoch, lease);
    assert!(bench.manager.members.is_empty());
    assert!(bench.manager.jobs.values().all(|job| job.paces.is_empty()));
}

#[test]
fn a_node_that_is_to_leave_before_it_joins_or_joins_again_gets_nothing() {
    let mut bench = bench();
    assert_eq!(bench.on(Event::Leave(NodeId(0))), []);
    let epoch = bench.joins(1);
    assert_eq!(bench.asks(1, epoch, 1).len(), 1);
    assert_eq!(bench.on(Event::Leave(NodeId(1))), []);
    bench.on(Event::Lost(NodeId(1)));
    for node in [0, 1] {
        let epoch = bench.joins(node);
        let did = bench.says(node, ToManager::Ask { epoch, in_all: 1 });
        assert_eq!(did, [Action::Tell(NodeId(node), ToNode::Dismissed { epoch })]);
    }
}

#[test]
fn what_a_node_cannot_do_is_free_for_others_however_many_cannot() {
    let mut bench = bench();
    for node in 1..20 {
        let epoch = bench.joins(node);
        assert_eq!(bench.asks(node, epoch, 1).len(), 1);
        assert_eq!(bench.says(node, ToManager::Unfit { epoch, why: node.to_string() }), []);
    }
    let counters = bench.manager.counters();
    assert_eq!((counters.refused, counters.lost, counters.failures), (19, 0, 0));
    let epoch = bench.joins(0);
    assert_eq!(ranges(&bench.asks(0, epoch, 1)), [(0, 1)]);
    bench.says(0, ToManager::Unfit { epoch, why: "last".into() });
    let join_wait = bench.manager.config.join_wait;
    let error = JobError::NoNodes { waited: join_wait, said: Some("last".into()) };
    assert_eq!(bench.passes(join_wait), [Action::Failed { job: JOB, error }]);
}

#[test]
fn who_asks_in_vain_for_what_was_lost_on_its_way_joins_anew() {
    let mut bench = Bench::new(Config::default());
    let spec = JobSpec { units: 2, lease_units: Some(1), ..UNITS };
    assert_eq!(bench.on(Event::Submit(JOB, spec)), []);
    let (first, second, third) = (bench.joins(0), bench.joins(1), bench.joins(2));
    let lease = bench.asks(0, first, 1)[0];
    assert_eq!(bench.asks(2, third, 1).len(), 1);
    // Of neither the lease nor its end anything arrives.
    assert_eq!(ranges(&bench.asks(1, second, 1)), ranges(&[lease]));
    let withdrawn = bench.returns(0, first, lease);
    assert!(matches!(withdrawn[..], [Action::Tell(NodeId(1), ToNode::Withdraw { .. })]));
    let again = ToManager::Ask { epoch: second, in_all: 1 };
    assert_eq!(bench.says(1, again.clone()), []);
    let deadline = Config::default().deadline;
    assert_eq!(bench.passes(deadline / 2), []);
    assert_eq!(bench.says(1, again.clone()), []);
    assert_eq!(bench.passes(deadline / 2), [fenced(0, first), fenced(2, third)]);
    assert_eq!(bench.says(1, again)[0], fenced(1, second));
}
