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
