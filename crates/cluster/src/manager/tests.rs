mod hostile;
mod leaving;
mod room;
mod sharing;

use super::*;
use crate::{Hello, Lease, PROTOCOL, Refusal};

const JOB: JobId = JobId(1);

const UNITS: JobSpec =
    JobSpec { units: 8, unit_bytes: 1, merging: Merging::AlongTree, lease_units: Some(4) };

/// A manager of results that are text, at a time.
struct Bench {
    manager: Manager<String>,
    now: Duration,
    /// When it wants a tick.
    due: Option<Duration>,
    /// Nodes are past the first half of all they have, if they are asked for the second.
    keeps: bool,
}

type Did = Vec<Action<String>>;

impl Bench {
    fn new(config: Config) -> Self {
        Self { manager: Manager::new(config), now: Duration::ZERO, due: None, keeps: true }
    }

    fn on(&mut self, event: Event<String>) -> Did {
        let mut actions = Vec::new();
        self.manager.on(self.now, event, &mut actions);
        actions.retain(|action| match action {
            Action::SetTimer(at) => {
                self.due = Some(*at);
                false
            }
            _ => true,
        });
        let is_shorten = |action: &mut Action<_>| {
            matches!(action, Action::Tell(_, ToNode::Shorten { .. })) && self.keeps
        };
        for asked in actions.extract_if(.., is_shorten).collect::<Vec<_>>() {
            if let Action::Tell(node, ToNode::Shorten { epoch, lease, units }) = asked {
                let kept = ToManager::Shortened { epoch, lease, units, is_shorter: false };
                actions.extend(self.on(Event::From(node, kept)));
            }
        }
        actions
    }

    fn says(&mut self, node: u32, message: ToManager<String>) -> Did {
        self.on(Event::From(NodeId(node), message))
    }

    #[track_caller]
    fn joins(&mut self, node: u32) -> Epoch {
        let did = self.says(node, ToManager::Hello(Hello { buffers: 4, ..Hello::default() }));
        match did[..] {
            [Action::Tell(_, ToNode::Welcome { epoch, .. })] => epoch,
            _ => panic!("{did:?}"),
        }
    }

    /// What it gets for its first so many wishes.
    fn asks(&mut self, node: u32, epoch: Epoch, in_all: u64) -> Vec<Lease> {
        leases(&self.says(node, ToManager::Ask { epoch, in_all }))
    }

    fn returns(&mut self, node: u32, epoch: Epoch, lease: Lease) -> Did {
        let result = format!("{}+{}", lease.first, lease.units);
        self.says(node, ToManager::Result { epoch, lease: lease.id, units: lease.units, result })
    }

    /// It answers whether it leaves all but the first `units` of a lease.
    fn leaves(&mut self, node: u32, epoch: Epoch, (lease, units): (Lease, u64), does: bool) -> Did {
        let (lease, is_shorter) = (lease.id, does);
        self.says(node, ToManager::Shortened { epoch, lease, units, is_shorter })
    }

    fn fails(&mut self, node: u32, epoch: Epoch, lease: Lease, unit: Option<u64>) -> Did {
        let failure = Failure { unit, offset: unit.map(|unit| unit * 10), what: "bad".to_owned() };
        self.says(node, ToManager::Failed { epoch, lease: lease.id, failure })
    }

    fn passes(&mut self, time: Duration) -> Did {
        let (until, mut did) = (self.now + time, Vec::new());
        while let Some(due) = self.due.take_if(|due| *due <= until) {
            self.now = self.now.max(due);
            did.extend(self.on(Event::Tick));
        }
        self.now = until;
        did
    }

    fn beats(&mut self, node: u32, epoch: Epoch) -> Did {
        let did = self.says(node, ToManager::Alive { epoch });
        did.into_iter().filter(|action| *action != alive(node, epoch)).collect()
    }
}

fn leases(did: &[Action<String>]) -> Vec<Lease> {
    let of = |action: &Action<String>| match action {
        Action::Tell(_, ToNode::Lease { lease, .. }) => Some(*lease),
        _ => None,
    };
    did.iter().filter_map(of).collect()
}

fn fenced(node: u32, epoch: Epoch) -> Action<String> {
    Action::Tell(NodeId(node), ToNode::Fenced { epoch })
}

fn alive(node: u32, epoch: Epoch) -> Action<String> {
    Action::Tell(NodeId(node), ToNode::Alive { epoch })
}

fn ranges(leases: &[Lease]) -> Vec<(u64, u64)> {
    leases.iter().map(|lease| (lease.first, lease.units)).collect()
}

fn bench() -> Bench {
    let mut bench = Bench::new(Config::default());
    assert_eq!(bench.on(Event::Submit(JOB, UNITS)), []);
    bench
}

#[test]
fn who_does_not_fit_is_told_what_differs() {
    let mut bench = Bench::new(Config { nodes_max: 1, ..Config::default() });
    let fits = Hello::default();
    let says = |hello: &Hello, bench: &mut Bench| match &bench
        .says(1, ToManager::Hello(hello.clone()))[..]
    {
        [Action::Tell(_, ToNode::Refused(refusal))] => refusal.to_string(),
        did => panic!("{did:?}"),
    };
    let other = Hello { protocol: PROTOCOL + 1, ..fits.clone() };
    assert!(
        says(&other, &mut bench)
            .contains(&format!("protocol {PROTOCOL}, this node {}", PROTOCOL + 1))
    );
    let other = Hello { build: "x".to_owned(), ..fits.clone() };
    assert!(says(&other, &mut bench).contains("this node x"));
    let other = Hello { buffers: 0, ..fits.clone() };
    assert!(says(&other, &mut bench).contains("0 buffers"));
    bench.says(0, ToManager::Hello(fits.clone()));
    assert_eq!(says(&fits, &mut bench), Refusal::Full { nodes_max: 1 }.to_string());
    assert_eq!(bench.manager.counters().refused, 4);
    // One that was a member is none any more.
    let why = "another kernel".to_owned();
    let did = bench.on(Event::Refuse(NodeId(0), why.clone()));
    assert_eq!(did[0], Action::Tell(NodeId(0), ToNode::Refused(Refusal::Task { why })));
    assert!(!bench.manager.has_member(NodeId(0)));
    assert_eq!((bench.manager.counters().refused, bench.manager.counters().lost), (5, 1));
}

#[test]
fn a_lost_node_is_fenced_before_its_leases_go_on_in_halves() {
    let mut bench = bench();
    let (first, second) = (bench.joins(0), bench.joins(1));
    assert_eq!(ranges(&bench.asks(0, first, 1)), [(0, 4)]);
    assert_eq!(ranges(&bench.asks(1, second, 4)), [(4, 4)]);
    bench.now = Duration::from_secs(3);
    let did = bench.on(Event::Lost(NodeId(0)));
    assert_eq!((&did[0], ranges(&leases(&did))), (&fenced(0, first), vec![(0, 2), (2, 2)]));
    let (node, after) = (NodeId(0), bench.now);
    let loss = Some(Loss { node, after, bytes_left: 8, bytes_out: 4 });
    assert_eq!(bench.manager.counters().last_loss, loss);
    // What it says from then on counts for nothing.
    let lost = Lease { id: LeaseId(3), job: JOB, first: 0, units: 4 };
    let dropped = Action::Drop("0+4".to_owned());
    assert_eq!(bench.returns(0, first, lost), [fenced(0, first), dropped]);
    assert_eq!(bench.manager.counters().stale, 1);
}

#[test]
fn what_an_earlier_membership_says_is_none_of_the_new_one() {
    let mut bench = bench();
    let before = bench.joins(0);
    assert_eq!(bench.asks(0, before, 1).len(), 1);
    let epoch = bench.joins(0);
    let deadline = bench.manager.config.deadline;
    bench.now = deadline / 2;
    for message in [
        ToManager::Ask { epoch: before, in_all: 4 },
        ToManager::Leaving { epoch: before },
        ToManager::Alive { epoch: before },
    ] {
        assert_eq!(bench.says(0, message), [fenced(0, before)]);
    }
    assert_eq!(bench.passes(deadline / 2), [fenced(0, epoch)], "nothing was heard of it");
}

#[test]
fn silence_for_the_deadline_is_a_loss_and_a_word_is_not() {
    let mut bench = bench();
    let (talks, silent) = (bench.joins(0), bench.joins(1));
    let half = bench.manager.config.deadline / 2;
    bench.asks(0, talks, 1);
    bench.asks(1, silent, 1);
    assert_eq!(bench.passes(half), []);
    assert_eq!(bench.says(0, ToManager::Alive { epoch: talks }), [alive(0, talks)]);
    assert_eq!(bench.passes(half), [fenced(1, silent)]);
    assert_eq!(ranges(&bench.asks(0, talks, 3)), [(4, 2), (6, 2)]);
}

#[test]
fn time_that_the_manager_itself_was_stopped_counts_against_nobody() {
    let mut bench = bench();
    let (first, second) = (bench.joins(0), bench.joins(1));
    bench.asks(0, first, 1);
    bench.asks(1, second, 1);
    bench.now += 10 * bench.manager.config.deadline;
    bench.due = None;
    assert_eq!(bench.on(Event::Tick), []);
    assert_eq!(bench.beats(0, first), []);
    let beats = 2 * bench.manager.config.heartbeat();
    assert_eq!(bench.passes(beats - Duration::from_nanos(1)), []);
    assert_eq!(bench.passes(Duration::from_nanos(1)), [fenced(1, second)]);
}

#[test]
fn a_hello_that_is_said_again_before_its_welcome_is_heard_is_one() {
    let mut bench = bench();
    let epoch = bench.joins(0);
    assert_eq!(bench.joins(0), epoch);
    bench.asks(0, epoch, 1);
    // Then it knows nothing of what it had.
    assert_ne!(bench.joins(0), epoch);
    assert_eq!(bench.manager.counters().lost, 1);
}

#[test]
fn the_first_of_two_results_wins_and_the_other_node_is_told() {
    let mut bench = bench();
    let (slow, quick) = (bench.joins(0), bench.joins(1));
    let of_slow = bench.asks(0, slow, 2);
    assert_eq!(ranges(&of_slow), [(0, 4), (4, 4)]);
    let again = bench.asks(1, quick, 2);
    // One only, since it is not idle any more.
    assert_eq!(ranges(&again), [(0, 4)]);
    let did = bench.returns(1, quick, again[0]);
    let withdraw = ToNode::Withdraw { epoch: slow, lease: of_slow[0].id };
    assert_eq!(did[0], Action::Tell(NodeId(0), withdraw));
    assert_eq!(ranges(&leases(&did)), [(4, 4)], "the next oldest goes to who is idle");
    assert_eq!(bench.returns(0, slow, of_slow[0]), [Action::Drop("0+4".to_owned())]);
    assert_eq!(bench.returns(1, quick, again[0]), [Action::Drop("0+4".to_owned())]);
    assert_eq!(bench.manager.counters().results_dropped, 2);
    let did = bench.returns(0, slow, of_slow[1]);
    let Action::Merge { id, into, from, .. } = did.into_iter().next_back().unwrap() else {
        panic!("nothing to merge")
    };
    assert_eq!((into.as_str(), from.as_str()), ("0+4", "4+4"));
    let result = Some("all".to_owned());
    let finished = Action::Finished { job: JOB, result: result.clone() };
    assert_eq!(bench.on(Event::Merged(id, Ok("all".to_owned()))), [finished]);
    let twice = bench.on(Event::Merged(id, Ok("all".to_owned())));
    assert_eq!(twice, [Action::Drop("all".to_owned())]);
}

#[test]
fn who_failed_at_what_another_has_does_not_get_it_again() {
    let mut bench = Bench::new(Config::default());
    bench.on(Event::Submit(JOB, JobSpec { units: 4, ..UNITS }));
    let (slow, fails) = (bench.joins(0), bench.joins(1));
    let lease = bench.asks(0, slow, 1)[0];
    let shared = bench.asks(1, fails, 1)[0];
    assert_eq!(bench.fails(1, fails, shared, Some(2)), []);
    assert_eq!(bench.asks(1, fails, 2), []);
    // The other may still do it.
    assert_eq!(bench.returns(0, slow, lease).len(), 1);
    assert_eq!(bench.manager.progress().count(), 0);
}

#[test]
fn asking_twice_gets_no_more_and_nobody_gets_more_than_it_has_buffers() {
    let mut bench = Bench::new(Config::default());
    bench.on(Event::Submit(JOB, JobSpec { units: 100, lease_units: Some(1), ..UNITS }));
    let epoch = bench.joins(0);
    assert_eq!(bench.asks(0, epoch, 2).len(), 2);
    assert_eq!(bench.asks(0, epoch, 2).len(), 0);
    assert_eq!(bench.asks(0, epoch, 1).len(), 0);
    assert_eq!(bench.asks(0, epoch, u64::MAX).len(), 2);
    assert_eq!(bench.asks(0, epoch, u64::MAX).len(), 0);
}

#[test]
fn a_unit_that_fails_three_times_ends_its_job_and_no_other() {
    let mut bench = bench();
    bench.on(Event::Submit(JobId(2), UNITS));
    let epochs = [0, 1, 2].map(|node| bench.joins(node));
    let lease = bench.asks(0, epochs[0], 1)[0];
    let other = bench.asks(1, epochs[1], 1)[0];
    assert_eq!(ranges(&[lease, other]), [(0, 4), (4, 4)]);
    assert_eq!(bench.fails(0, epochs[0], lease, Some(2)), []);
    // Alone, and elsewhere: the node where it failed gets the others.
    assert_eq!(ranges(&bench.asks(0, epochs[0], 3)), [(0, 2), (3, 1)]);
    bench.returns(1, epochs[1], other);
    let alone = bench.asks(1, epochs[1], 2);
    assert_eq!(ranges(&alone), [(2, 1)]);
    assert_eq!(bench.fails(1, epochs[1], alone[0], None), []);
    let last = bench.asks(2, epochs[2], 1);
    assert_eq!(ranges(&last), [(2, 1)]);
    let did = bench.fails(2, epochs[2], last[0], Some(99));
    let error = JobError::Unit { unit: 2, offset: Some(990), what: "bad".to_owned(), tries: 3 };
    assert_eq!(error.to_string(), "unit 2 at byte 990 failed 3 times: bad");
    assert!(did.contains(&Action::Failed { job: JOB, error }), "{did:?}");
    let withdrawn =
        |action: &&Action<_>| matches!(action, Action::Tell(_, ToNode::Withdraw { .. }));
    assert_eq!(did.iter().filter(withdrawn).count(), 2);
    assert!(did.contains(&Action::Drop("4+4".to_owned())));
    assert_eq!(bench.manager.progress().map(|of| of.job).collect::<Vec<_>>(), [JobId(2)]);
}

#[test]
fn units_that_end_their_nodes_end_their_job() {
    let mut bench = Bench::new(Config { losses_max: 3, ..Config::default() });
    bench.on(Event::Submit(JOB, JobSpec { units: 4, ..UNITS }));
    let mut did = Vec::new();
    for node in 0..3 {
        let epoch = bench.joins(node);
        assert_eq!(bench.asks(node, epoch, 1)[0].first, 0);
        did = bench.on(Event::Lost(NodeId(node)));
    }
    let error = JobError::Lost { first: 0, units: 1, losses: 3 };
    assert_eq!(did[1..], [Action::Failed { job: JOB, error }]);
}

#[test]
fn a_kernel_that_hangs_costs_its_node_the_membership() {
    let mut bench = bench();
    let epoch = bench.joins(0);
    bench.asks(0, epoch, 1);
    let lease_max = bench.manager.config.lease_max;
    let beat = bench.manager.config.heartbeat();
    while bench.now + beat < lease_max {
        assert_eq!(bench.beats(0, epoch), []);
        assert_eq!(bench.passes(beat), []);
    }
    let left = lease_max - bench.now - Duration::from_millis(1);
    assert_eq!(bench.passes(left), []);
    assert_eq!(bench.passes(Duration::from_millis(1)), [fenced(0, epoch)]);
}

#[test]
fn a_job_without_nodes_waits_and_then_fails() {
    let mut bench = bench();
    let join_wait = bench.manager.config.join_wait;
    let epoch = bench.joins(0);
    bench.asks(0, epoch, 1);
    bench.now += Duration::from_secs(5);
    bench.on(Event::Lost(NodeId(0)));
    assert_eq!(bench.passes(join_wait - Duration::from_nanos(1)), []);
    let error = JobError::NoNodes { waited: join_wait, said: None };
    let did = bench.passes(Duration::from_nanos(1));
    assert_eq!(did, [Action::Failed { job: JOB, error }]);
}

#[test]
fn a_node_that_joins_but_never_asks_is_none_to_wait_for() {
    let mut bench = bench();
    let epoch = bench.joins(0);
    let (deadline, join_wait) = (bench.manager.config.deadline, bench.manager.config.join_wait);
    let mut did = Vec::new();
    while did.is_empty() && bench.now < 2 * join_wait {
        did = bench.beats(0, epoch);
        did.extend(bench.passes(deadline / 2));
    }
    assert_eq!(
        did,
        [Action::Failed { job: JOB, error: JobError::NoNodes { waited: join_wait, said: None } }]
    );
}

#[test]
fn nothing_to_do_is_done_at_once_and_who_waits_is_served_when_work_comes() {
    let mut bench = Bench::new(Config::default());
    let finished = Action::Finished { job: JOB, result: None };
    assert_eq!(bench.on(Event::Submit(JOB, JobSpec { units: 0, ..UNITS })), [finished]);
    let many = JobSpec { units: u64::MAX, ..UNITS };
    let error = JobError::Units { units: u64::MAX };
    assert_eq!(bench.on(Event::Submit(JOB, many)), [Action::Failed { job: JOB, error }]);
    let epochs = [0, 1, 2].map(|node| bench.joins(node));
    for (node, epoch) in (0..).zip(epochs) {
        assert_eq!(bench.asks(node, epoch, 2), []);
    }
    let did = bench.on(Event::Submit(JobId(2), JobSpec { lease_units: Some(8), ..UNITS }));
    let to: Vec<_> = did
        .iter()
        .map(|action| match action {
            Action::Tell(node, _) => node.0,
            _ => panic!("{did:?}"),
        })
        .collect();
    assert_eq!(to, [0, 1], "all to the first, the same to one that is idle");
}

#[test]
fn who_leaves_ends_what_it_has_and_a_drain_ends_all() {
    let mut bench = bench();
    let (first, second) = (bench.joins(0), bench.joins(1));
    let lease = bench.asks(0, first, 1)[0];
    assert_eq!(bench.says(0, ToManager::Leaving { epoch: first }), []);
    assert_eq!(bench.asks(0, first, 4), []);
    let did = bench.returns(0, first, lease);
    assert_eq!(did, [Action::Tell(NodeId(0), ToNode::Dismissed { epoch: first })]);
    assert_eq!(bench.on(Event::Drain), []);
    let refused = bench.on(Event::Submit(JobId(2), UNITS));
    assert_eq!(refused, [Action::Failed { job: JobId(2), error: JobError::Draining }]);
    let lease = bench.asks(1, second, 1)[0];
    let did = bench.returns(1, second, lease);
    let [Action::Merge { id, .. }] = did[..] else { panic!("{did:?}") };
    assert!(!bench.manager.is_drained());
    let did = bench.on(Event::Merged(id, Ok(String::new())));
    let dismissed = Action::Tell(NodeId(1), ToNode::Dismissed { epoch: second });
    assert_eq!(did[1..], [dismissed]);
    assert!(bench.manager.is_drained());
}

#[test]
fn who_leaves_goes_when_its_last_lease_is_withdrawn() {
    let mut bench = Bench::new(Config::default());
    bench.on(Event::Submit(JOB, JobSpec { units: 4, ..UNITS }));
    let epoch = bench.joins(0);
    let lease = bench.asks(0, epoch, 1)[0].id;
    bench.says(0, ToManager::Leaving { epoch });
    let did = bench.on(Event::Abort(JOB));
    assert_eq!(did[0], Action::Tell(NodeId(0), ToNode::Withdraw { epoch, lease }));
    assert_eq!(did[1], Action::Tell(NodeId(0), ToNode::Dismissed { epoch }));
}

#[test]
fn a_merge_of_a_job_that_is_over_is_none_of_another() {
    let mut bench = bench();
    let epoch = bench.joins(0);
    let out = bench.asks(0, epoch, 2);
    bench.returns(0, epoch, out[0]);
    let did = bench.returns(0, epoch, out[1]);
    let [Action::Merge { id, .. }] = did[..] else { panic!("{did:?}") };
    bench.on(Event::Abort(JOB));
    bench.on(Event::Submit(JOB, UNITS));
    let did = bench.on(Event::Merged(id, Ok("late".to_owned())));
    assert_eq!(did, [Action::Drop("late".to_owned())]);
}

#[test]
fn a_merge_that_fails_ends_its_job() {
    let mut bench = bench();
    let epoch = bench.joins(0);
    let out = bench.asks(0, epoch, 2);
    bench.returns(0, epoch, out[1]);
    let did = bench.returns(0, epoch, out[0]);
    let [Action::Merge { id, .. }] = did[..] else { panic!("{did:?}") };
    let error = JobError::Merge { what: "odd".to_owned() };
    let did = bench.on(Event::Merged(id, Err("odd".to_owned())));
    assert_eq!(did, [Action::Failed { job: JOB, error }]);
}

#[test]
fn a_node_that_fails_at_all_it_gets_is_left_out_while_others_work() {
    let mut bench = Bench::new(Config::default());
    bench.on(Event::Submit(JOB, JobSpec { units: 1000, lease_units: Some(1), ..UNITS }));
    let (good, bad) = (bench.joins(0), bench.joins(1));
    assert_eq!(bench.asks(0, good, 1).len(), 1);
    let mut asked = 0;
    loop {
        asked += 1;
        let Some(lease) = bench.asks(1, bad, asked).pop() else { break };
        bench.fails(1, bad, lease, None);
    }
    assert_eq!(asked, 5, "four failures in a row");
    bench.on(Event::Lost(NodeId(0)));
    assert_eq!(bench.asks(1, bad, 6).len(), 1, "there is no other");
}

#[test]
fn who_was_left_out_gets_work_when_the_others_hang() {
    let overdue = Duration::from_secs(30);
    let mut bench = Bench::new(Config {
        deadline: Duration::from_secs(3600),
        tries_max: 99,
        overdue,
        ..Config::default()
    });
    bench.on(Event::Submit(JOB, JobSpec { units: 64, lease_units: Some(8), ..UNITS }));
    let (hangs, fails) = (bench.joins(0), bench.joins(1));
    bench.asks(0, hangs, 1);
    for in_all in 1..=4 {
        let lease = bench.asks(1, fails, in_all)[0];
        bench.fails(1, fails, lease, None);
    }
    assert_eq!(bench.asks(1, fails, 5), []);
    bench.now += overdue;
    let did = bench.says(1, ToManager::Alive { epoch: fails });
    assert_eq!(leases(&did).len(), 1);
}

#[test]
fn a_job_whose_number_is_taken_is_none() {
    let mut bench = bench();
    let error = JobError::Number { job: JOB };
    assert_eq!(bench.on(Event::Submit(JOB, UNITS)), [Action::Failed { job: JOB, error }]);
    let epoch = bench.joins(0);
    assert_eq!(ranges(&bench.asks(0, epoch, 2)), [(0, 4), (4, 4)]);
}

#[test]
fn what_counts_is_told_before_and_a_new_manager_goes_on_with_it() {
    let mut old = bench();
    let epoch = old.joins(0);
    let out = old.asks(0, epoch, 1)[0];
    assert_eq!(old.manager.counts(NodeId(0), (epoch, out.id, out.units)), Some(out));
    assert_eq!(old.manager.counts(NodeId(1), (epoch, out.id, out.units)), None);
    assert_eq!(old.manager.counts(NodeId(0), (Epoch(99), out.id, out.units)), None);
    old.returns(0, epoch, out);
    assert_eq!(old.manager.counts(NodeId(0), (epoch, out.id, out.units)), None, "it was returned");

    let mut new = Bench::new(Config { serial: 1000, ..Config::default() });
    new.on(Event::Submit(JOB, UNITS));
    let recorded = |units: Range<u64>| recorded(vec![units]);
    assert_eq!(new.on(recorded(0..4)), []);
    let dropped = [Action::Drop("old".to_owned())];
    for units in [0..4, 2..4, 0..8, 5..7, 4..4, u64::MAX..u64::MAX, 8..12] {
        assert_eq!(new.on(recorded(units.clone())), dropped, "{units:?}");
    }
    let did = new.returns(0, epoch, out);
    assert_eq!(did[0], fenced(0, epoch), "its nodes are those of the one before");
    let epoch = new.joins(0);
    let rest = new.asks(0, epoch, 4);
    assert_eq!(ranges(&rest), [(4, 4)]);
    let did = new.returns(0, epoch, rest[0]);
    let [Action::Merge { into, from, .. }] = &did[..] else { panic!("{did:?}") };
    assert_eq!((into.as_str(), from.as_str()), ("old", "4+4"));
}

fn recorded(units: Vec<Range<u64>>) -> Event<String> {
    Event::Recorded { job: JOB, units, result: "old".to_owned() }
}

#[test]
fn what_was_merged_in_any_order_is_gone_on_with() {
    let mut bench = Bench::new(Config::default());
    bench.on(Event::Submit(JOB, JobSpec { merging: Merging::AnyOrder, ..UNITS }));
    let dropped = [Action::Drop("old".to_owned())];
    assert_eq!(bench.on(recorded(vec![1..2, 6..9])), dropped, "there are eight");
    assert_eq!(bench.on(recorded(vec![1..2, 1..2])), dropped, "twice");
    assert_eq!(bench.on(recorded(vec![])), dropped);
    assert_eq!(bench.on(recorded(vec![1..2, 3..7])), []);
    assert_eq!(bench.on(recorded(vec![7..8, 0..2])), dropped, "one is done");
    let epoch = bench.joins(0);
    let rest: Vec<_> = (1..9).flat_map(|asked| bench.asks(0, epoch, asked)).collect();
    let mut left: Vec<_> = rest.iter().flat_map(|of| of.first..of.first + of.units).collect();
    left.sort_unstable();
    assert_eq!(left, [0, 2, 7]);
    assert_eq!(bench.manager.results().collect::<Vec<_>>(), [(JOB, &"old".to_owned())]);
}

#[test]
fn no_lease_is_given_while_merges_lag_behind() {
    let mut bench = Bench::new(Config { backlog_max: 2, ..Config::default() });
    bench.on(Event::Submit(JOB, JobSpec { units: 100, lease_units: Some(1), ..UNITS }));
    let epoch = bench.joins(0);
    let (mut asked, mut merge) = (0, None);
    let waiting = |bench: &Bench| bench.manager.progress().map(|of| of.results_waiting).sum();
    loop {
        asked += 1;
        let Some(lease) = bench.asks(0, epoch, asked).pop() else { break };
        for action in bench.returns(0, epoch, lease) {
            if let Action::Merge { id, .. } = action {
                merge = Some(id);
            }
        }
    }
    let waiting: usize = waiting(&bench);
    assert_eq!(waiting, 3);
    let did = bench.on(Event::Merged(merge.unwrap(), Ok(String::new())));
    assert!(matches!(did[0], Action::Merge { .. }), "{did:?}");
}
