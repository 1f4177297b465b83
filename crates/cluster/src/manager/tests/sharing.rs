//! What an idle node gets of that which others have.

use super::*;

/// Two nodes that have brought two units each, one in 1 s each and one in 10 s, and have two
/// each of the last four; with the leases of each.
fn paced() -> (Bench, [Epoch; 2], [Vec<Lease>; 2]) {
    let mut bench = Bench::new(Config::default());
    bench.on(Event::Submit(JOB, JobSpec { lease_units: Some(1), ..UNITS }));
    let epochs = [0, 1].map(|node| bench.joins(node));
    let [quick, slow] = epochs;
    let (of_quick, of_slow) = (bench.asks(0, quick, 2), bench.asks(1, slow, 2));
    for (node, epoch, lease, after) in [
        (0, quick, of_quick[0], 1),
        (0, quick, of_quick[1], 1),
        (1, slow, of_slow[0], 8),
        (1, slow, of_slow[1], 10),
    ] {
        bench.now += Duration::from_secs(after);
        bench.returns(node, epoch, lease);
    }
    let has = [bench.asks(0, quick, 4), bench.asks(1, slow, 4)];
    assert_eq!(has.each_ref().map(|has| ranges(has)), [[(4, 1), (5, 1)], [(6, 1), (7, 1)]]);
    (bench, epochs, has)
}

/// What a third node gets now, asking once.
fn third(bench: &mut Bench) -> Vec<(u64, u64)> {
    let epoch = bench.joins(2);
    ranges(&bench.asks(2, epoch, 1))
}

#[test]
fn an_idle_node_gets_the_lease_that_is_expected_last_whoever_had_one_first() {
    let (mut bench, ..) = paced();
    // 20 s from now; the others 10 s, 2 s and 1 s.
    assert_eq!(third(&mut bench), [(7, 1)]);
}

#[test]
fn a_lease_that_is_late_is_expected_to_take_as_long_again() {
    let (mut bench, [quick, slow], _) = paced();
    bench.now += Duration::from_secs(18);
    bench.beats(0, quick);
    bench.beats(1, slow);
    // The quick one is late by 17 s, the slow one's second is expected in 2 s.
    assert_eq!(third(&mut bench), [(4, 1)]);
}

#[test]
fn a_lease_begins_when_the_one_before_is_withdrawn() {
    let (mut bench, [quick, _], [of_quick, of_slow]) = paced();
    bench.now += Duration::from_secs(8);
    let others = [2, 3].map(|node| (node, bench.joins(node)));
    let got = others.map(|(node, epoch)| bench.asks(node, epoch, 1)[0]);
    // Of the slow one in 12 s, of the quick one 7 s and 6 s late, of the slow one in 2 s.
    assert_eq!(ranges(&got), [(7, 1), (4, 1)]);
    bench.says(3, ToManager::Leaving { epoch: others[1].1 });
    let did = bench.returns(3, others[1].1, got[1]);
    let withdraw = ToNode::Withdraw { epoch: quick, lease: of_quick[0].id };
    assert!(did.contains(&Action::Tell(NodeId(0), withdraw)), "{did:?}");
    // The other one of the quick one takes 1 s from now.
    let fourth = bench.joins(4);
    assert_eq!(ranges(&bench.asks(4, fourth, 1)), ranges(&of_slow[..1]));
}

#[test]
fn of_those_of_which_nothing_is_known_the_oldest_is_given() {
    let mut bench = bench();
    let epochs = [0, 1].map(|node| bench.joins(node));
    assert_eq!(ranges(&bench.asks(1, epochs[1], 1)), [(0, 4)]);
    bench.now += Duration::from_secs(1);
    assert_eq!(ranges(&bench.asks(0, epochs[0], 1)), [(4, 4)]);
    assert_eq!(third(&mut bench), [(0, 4)]);
}

/// One node that has a lease of all four units, and an idle one, which the first is asked for.
fn asked() -> (Bench, [Epoch; 2], Lease) {
    let deadline = Duration::from_millis(4);
    let mut bench = Bench::new(Config { deadline, ..Config::default() });
    bench.keeps = false;
    bench.on(Event::Submit(JOB, JobSpec { units: 4, ..UNITS }));
    let epochs = [0, 1].map(|node| bench.joins(node));
    let lease = bench.asks(0, epochs[0], 1)[0];
    let did = bench.says(1, ToManager::Ask { epoch: epochs[1], in_all: 1 });
    let shorten = ToNode::Shorten { epoch: epochs[0], lease: lease.id, units: 2 };
    assert_eq!(did, [Action::Tell(NodeId(0), shorten)]);
    (bench, epochs, lease)
}

/// The results that are merged next.
fn merged(did: &[Action<String>]) -> [&str; 2] {
    match did {
        [.., Action::Merge { into, from, .. }] => [into, from],
        _ => panic!("{did:?}"),
    }
}

#[test]
fn an_idle_node_gets_the_half_that_another_has_not_begun() {
    let (mut bench, [slow, idle], lease) = asked();
    assert_eq!(bench.asks(1, idle, 2), [], "no answer came yet");
    let given = leases(&bench.leaves(0, slow, (lease, 2), true));
    assert_eq!(ranges(&given), [(2, 2)]);
    // Said twice it means nothing more.
    assert_eq!(bench.leaves(0, slow, (lease, 2), true), []);
    assert_eq!(bench.returns(1, idle, given[0]).len(), 1);
    let did = bench.returns(0, slow, Lease { units: 2, ..lease });
    assert_eq!(merged(&did), ["0+2", "2+2"]);
    let counters = bench.manager.counters();
    assert_eq!((counters.shortened, counters.given_twice, counters.results), (1, 0, 2));
}

#[test]
fn what_is_begun_to_its_end_goes_to_the_idle_node_too() {
    let (mut bench, [slow, idle], lease) = asked();
    let again = leases(&bench.leaves(0, slow, (lease, 2), false));
    assert_eq!(ranges(&again), [(0, 4)]);
    let did = bench.returns(1, idle, again[0]);
    let withdraw = ToNode::Withdraw { epoch: slow, lease: lease.id };
    assert_eq!(did[0], Action::Tell(NodeId(0), withdraw));
}

#[test]
fn who_does_not_answer_is_not_waited_for_for_long() {
    let (mut bench, [slow, idle], lease) = asked();
    // A tick before is for something else.
    assert_eq!(bench.passes(Duration::from_millis(2)), []);
    assert_eq!((bench.beats(0, slow), bench.beats(1, idle)), (vec![], vec![]));
    assert_eq!(bench.passes(Duration::from_millis(2)), []);
    let again = leases(&bench.passes(Duration::from_millis(1)));
    assert_eq!(ranges(&again), [(0, 4)]);
    // Then it leaves the half: what the other one has is that half.
    let did = bench.leaves(0, slow, (lease, 2), true);
    let withdraw = ToNode::Withdraw { epoch: idle, lease: again[0].id };
    assert_eq!(did, [Action::Tell(NodeId(1), withdraw)]);
    assert_eq!(ranges(&bench.asks(1, idle, 2)), [(2, 2)]);
    assert_eq!(bench.returns(1, idle, again[0]), [Action::Drop("0+4".to_owned())]);
}

#[test]
fn a_result_tells_of_how_many_units_it_is() {
    // Its answer did not come.
    let (mut bench, [slow, _], lease) = asked();
    let did = bench.returns(0, slow, Lease { units: 2, ..lease });
    assert_eq!(ranges(&leases(&did)), [(2, 2)]);
    assert_eq!(bench.manager.counters().results, 1);
    // It had all before it was asked.
    let (mut bench, [slow, _], lease) = asked();
    let did = bench.returns(0, slow, lease);
    assert_eq!(did, [Action::Finished { job: JOB, result: Some("0+4".to_owned()) }]);
    // It was never asked for that.
    let (mut bench, [slow, _], lease) = asked();
    let did = bench.returns(0, slow, Lease { units: 3, ..lease });
    assert!(did.contains(&Action::Drop("0+3".to_owned())), "{did:?}");
    assert_eq!(ranges(&leases(&did)), [(0, 2)], "as if it was lost");
    assert_eq!(bench.manager.counters().results_dropped, 1);
}

#[test]
fn what_its_holder_has_not_begun_is_taken_from_it() {
    let (mut bench, [_, slow], [_, of_slow]) = paced();
    let idle = bench.joins(2);
    let did = bench.says(2, ToManager::Ask { epoch: idle, in_all: 1 });
    let withdraw = ToNode::Withdraw { epoch: slow, lease: of_slow[1].id };
    assert_eq!(did[0], Action::Tell(NodeId(1), withdraw));
    assert_eq!(ranges(&leases(&did)), [(7, 1)]);
    assert_eq!(bench.returns(1, slow, of_slow[1]), [Action::Drop("7+1".to_owned())]);
    assert_eq!(bench.manager.counters().given_twice, 0);
}

#[test]
fn no_third_node_gets_what_two_have() {
    let mut bench = bench();
    let epochs = [0, 1, 2].map(|node| bench.joins(node));
    bench.on(Event::Abort(JOB));
    bench.on(Event::Submit(JobId(2), JobSpec { units: 1, ..UNITS }));
    assert_eq!(bench.asks(0, epochs[0], 2).len(), 1);
    assert_eq!(bench.asks(1, epochs[1], 2).len(), 1);
    assert_eq!(bench.asks(2, epochs[2], 2).len(), 0);
    // One of them goes, so the third is next.
    assert_eq!(ranges(&leases(&bench.on(Event::Lost(NodeId(0))))), [(0, 1)]);
}

#[test]
fn a_span_goes_to_three_nodes_and_then_in_halves() {
    let mut bench = Bench::new(Config::default());
    bench.on(Event::Submit(JOB, JobSpec { units: 4, ..UNITS }));
    let slow = bench.joins(0);
    assert_eq!(bench.asks(0, slow, 1).len(), 1);
    for node in [1, 2] {
        let epoch = bench.joins(node);
        assert_eq!(ranges(&bench.asks(node, epoch, 1)), [(0, 4)]);
        assert_eq!(leases(&bench.on(Event::Lost(NodeId(node)))), []);
    }
    let epoch = bench.joins(3);
    assert_eq!(bench.asks(3, epoch, 2), []);
    assert_eq!(ranges(&leases(&bench.on(Event::Lost(NodeId(0))))), [(0, 2), (2, 2)]);
}
