use super::*;
use crate::JobId;

const BEAT: Duration = Duration::from_secs(2);

struct Bench {
    node: Node,
    now: Duration,
}

type Did = Vec<Action<u8>>;

impl Bench {
    /// A member with so many buffers.
    fn joined(buffers: u32) -> Self {
        let node = Node::new(Hello { buffers, ..Hello::default() });
        let mut bench = Self { node, now: Duration::ZERO };
        let did = bench.on(Event::Start);
        assert!(matches!(did[..], [Action::Say(ToManager::Hello(_))]), "{did:?}");
        let did = bench.welcome(1);
        assert_eq!(did, [ask(1, buffers.into())]);
        bench
    }

    fn on(&mut self, event: Event<u8>) -> Did {
        let mut actions = Vec::new();
        self.node.on(self.now, event, &mut actions);
        actions.retain(|action| !matches!(action, Action::SetTimer(_)));
        actions
    }

    fn told(&mut self, message: ToNode) -> Did {
        self.on(Event::Told(message))
    }

    fn welcome(&mut self, epoch: u64) -> Did {
        self.told(ToNode::Welcome { epoch: Epoch(epoch), heartbeat: BEAT })
    }

    fn gets(&mut self, id: u64) -> Did {
        self.told(ToNode::Lease { epoch: Epoch(1), lease: lease(id) })
    }

    fn withdraw(&mut self, id: u64) -> Did {
        self.told(ToNode::Withdraw { epoch: Epoch(1), lease: LeaseId(id) })
    }
}

fn lease(id: u64) -> Lease {
    Lease { id: LeaseId(id), job: JobId(1), first: id, units: 1 }
}

fn ask(epoch: u64, in_all: u64) -> Action<u8> {
    Action::Say(ToManager::Ask { epoch: Epoch(epoch), in_all })
}

fn result(id: u64, result: u8) -> Action<u8> {
    Action::Say(ToManager::Result { epoch: Epoch(1), lease: LeaseId(id), units: 1, result })
}

#[test]
fn what_it_computes_is_shorter_if_its_accelerators_say_so() {
    let mut bench = Bench::joined(2);
    let lease = Lease { units: 8, ..lease(1) };
    bench.told(ToNode::Lease { epoch: Epoch(1), lease });
    let shorten = |units| ToNode::Shorten { epoch: Epoch(1), lease: lease.id, units };
    let answer = |units, is_shorter| {
        Action::Say(ToManager::Shortened { epoch: Epoch(1), lease: lease.id, units, is_shorter })
    };
    assert_eq!(bench.told(shorten(6)), [answer(6, true)], "it is still received");
    let computes = Action::Compute(Lease { units: 6, ..lease });
    assert_eq!(bench.on(Event::Fetched(lease.id)), [computes]);
    assert_eq!(bench.told(shorten(4)), [Action::Shorten(lease.id, 4)]);
    assert_eq!(bench.on(Event::Shortened(lease.id, 4, true)), [answer(4, true)]);
    assert_eq!(bench.told(shorten(4)), [answer(4, true)], "the answer was lost");
    assert_eq!(bench.told(shorten(2)), [Action::Shorten(lease.id, 2)]);
    assert_eq!(bench.on(Event::Shortened(lease.id, 2, false)), [answer(2, false)]);
    for longer in [0, 8] {
        assert_eq!(bench.told(shorten(longer)), [answer(longer, false)]);
    }
    let (epoch, result) = (Epoch(1), 7);
    let said = ToManager::Result { epoch, lease: lease.id, units: 4, result };
    assert_eq!(bench.on(Event::Computed(lease.id, 7)), [Action::Say(said)]);
    assert_eq!(bench.told(shorten(2)), [], "its result tells");
}

#[test]
fn one_is_received_while_one_is_computed_and_one_returned() {
    let mut bench = Bench::joined(3);
    for id in [1, 2, 3] {
        assert_eq!(bench.gets(id), [Action::Fetch(lease(id))]);
    }
    assert_eq!(bench.on(Event::Fetched(LeaseId(2))), [Action::Compute(lease(2))]);
    assert_eq!(bench.on(Event::Fetched(LeaseId(1))), []);
    let did = bench.on(Event::Computed(LeaseId(2), 7));
    assert_eq!(did, [result(2, 7), Action::Compute(lease(1))]);
    assert_eq!(bench.on(Event::Sent(LeaseId(2))), [ask(1, 4)]);
    // The fourth comes in its place; one that was not asked for does not.
    assert_eq!(bench.gets(4), [Action::Fetch(lease(4))]);
    assert_eq!(bench.gets(5), []);
    assert_eq!(bench.node.buffers_used(), 3);
}

#[test]
fn a_lease_that_comes_twice_is_one() {
    let mut bench = Bench::joined(2);
    bench.gets(1);
    assert_eq!(bench.gets(1), []);
    assert_eq!(bench.node.buffers_used(), 1);
}

#[test]
fn what_is_withdrawn_keeps_its_buffer_until_it_stopped() {
    let mut bench = Bench::joined(1);
    bench.gets(1);
    bench.on(Event::Fetched(LeaseId(1)));
    assert_eq!(bench.withdraw(1), [Action::Stop(LeaseId(1))]);
    assert_eq!(bench.withdraw(1), []);
    assert_eq!(bench.node.buffers_used(), 1);
    assert_eq!(bench.on(Event::Stopped(LeaseId(1))), [ask(1, 2)]);
    // Or until it is done, for nobody.
    bench.gets(2);
    bench.on(Event::Fetched(LeaseId(2)));
    bench.withdraw(2);
    assert_eq!(bench.on(Event::Computed(LeaseId(2), 9)), [Action::Drop(9), ask(1, 3)]);
    assert_eq!(bench.on(Event::Stopped(LeaseId(2))), []);
}

#[test]
fn what_is_on_its_way_back_is_not_stopped() {
    let mut bench = Bench::joined(1);
    bench.gets(1);
    bench.on(Event::Fetched(LeaseId(1)));
    bench.on(Event::Computed(LeaseId(1), 7));
    assert_eq!(bench.withdraw(1), []);
    assert_eq!(bench.on(Event::Sent(LeaseId(1))), [ask(1, 2)]);
}

#[test]
fn who_is_fenced_drops_all_and_joins_anew() {
    let mut bench = Bench::joined(2);
    bench.gets(1);
    bench.gets(2);
    bench.on(Event::Fetched(LeaseId(1)));
    let did = bench.told(ToNode::Fenced { epoch: Epoch(1) });
    assert_eq!(did[..2], [Action::Stop(LeaseId(1)), Action::Stop(LeaseId(2))]);
    assert!(matches!(did[2..], [Action::Say(ToManager::Hello(_))]), "{did:?}");
    assert_eq!(bench.told(ToNode::Fenced { epoch: Epoch(1) }), [], "once");
    // It asks when the accelerators have let go of what was, not before.
    assert_eq!(bench.on(Event::Stopped(LeaseId(2))), []);
    assert_eq!(bench.welcome(5), []);
    assert_eq!(bench.on(Event::Computed(LeaseId(1), 7)), [Action::Drop(7), ask(5, 2)]);
    // What the old membership brings is nothing.
    assert_eq!(bench.gets(3), []);
}

#[test]
fn a_new_welcome_ends_what_was() {
    let mut bench = Bench::joined(2);
    bench.gets(1);
    assert_eq!(bench.welcome(4), [Action::Stop(LeaseId(1)), ask(4, 1)]);
    assert_eq!(bench.welcome(3), []);
}

#[test]
fn who_computes_long_is_heard_of() {
    let mut bench = Bench::joined(1);
    bench.gets(1);
    bench.now = BEAT - Duration::from_nanos(1);
    assert_eq!(bench.on(Event::Tick), []);
    bench.now = BEAT;
    assert_eq!(bench.on(Event::Tick), [Action::Say(ToManager::Alive { epoch: Epoch(1) })]);
    assert_eq!(bench.on(Event::Tick), []);
}

/// How often it says that, at each tick, until it leaves.
fn unheard(bench: &mut Bench, says: impl Fn() -> Did) -> usize {
    for times in 0.. {
        bench.now += BEAT;
        let did = bench.on(Event::Tick);
        if did == [Action::Left(Left::Lost)] {
            return times;
        }
        assert_eq!(did, says());
    }
    unreachable!()
}

#[test]
fn who_hears_nothing_says_again_what_may_be_lost_and_leaves() {
    let mut bench = Bench::joined(1);
    bench.node.patience = 5 * BEAT;
    let says = || vec![ask(1, 1), Action::Say(ToManager::Alive { epoch: Epoch(1) })];
    bench.now = BEAT;
    assert_eq!(bench.on(Event::Tick), says());
    assert_eq!(bench.told(ToNode::Alive { epoch: Epoch(1) }), []);
    assert_eq!(unheard(&mut bench, says), 5);
    assert_eq!(bench.on(Event::Tick), []);
    // Nobody has ever answered.
    let hello = Hello { buffers: 1, ..Hello::default() };
    bench.node = Node::new(hello.clone()).patience(5 * BEAT);
    bench.now = Duration::ZERO;
    bench.on(Event::Start);
    let says = || vec![Action::Say(ToManager::Hello(hello.clone()))];
    assert_eq!(unheard(&mut bench, says), 10);
}

#[test]
fn time_that_the_node_itself_was_stopped_is_no_silence() {
    let mut bench = Bench::joined(1);
    bench.now = 100 * PATIENCE;
    let did = bench.on(Event::Tick);
    assert_eq!(did.last(), Some(&Action::Say(ToManager::Alive { epoch: Epoch(1) })));
}

#[test]
fn a_failure_is_told_and_frees_its_buffer() {
    let mut bench = Bench::joined(1);
    bench.gets(1);
    let failure = Failure { unit: Some(1), offset: None, what: "bad".to_owned() };
    let did = bench.on(Event::Failed(LeaseId(1), failure.clone()));
    let failed = ToManager::Failed { epoch: Epoch(1), lease: LeaseId(1), failure };
    assert_eq!(did, [Action::Say(failed), ask(1, 2)]);
}

#[test]
fn who_is_to_leave_asks_no_more_and_goes_when_dismissed() {
    let mut bench = Bench::joined(2);
    bench.gets(1);
    let leaving = Action::Say(ToManager::Leaving { epoch: Epoch(1) });
    assert_eq!(bench.on(Event::Leave), [leaving]);
    bench.on(Event::Fetched(LeaseId(1)));
    assert_eq!(bench.on(Event::Computed(LeaseId(1), 7)), [result(1, 7)]);
    assert_eq!(bench.on(Event::Sent(LeaseId(1))), []);
    let did = bench.told(ToNode::Dismissed { epoch: Epoch(1) });
    assert_eq!(did, [Action::Left(Left::Dismissed)]);
    // A late welcome makes it no member.
    let did = bench.welcome(9);
    assert_eq!(did, [Action::Say(ToManager::Leaving { epoch: Epoch(9) })]);
    assert_eq!(bench.on(Event::Start).len(), 1);
}

#[test]
fn who_is_refused_or_cut_off_says_why_it_left() {
    let mut bench = Bench::joined(1);
    bench.gets(1);
    let did = bench.on(Event::Lost);
    assert_eq!(did, [Action::Stop(LeaseId(1)), Action::Left(Left::Lost)]);
    bench.on(Event::Start);
    assert_eq!(bench.on(Event::Ended), [Action::Left(Left::Dismissed)]);
    bench.on(Event::Start);
    let refusal = Refusal::Full { nodes_max: 3 };
    let did = bench.told(ToNode::Refused(refusal.clone()));
    assert_eq!(did, [Action::Left(Left::Refused(refusal))]);
}

mod hostile {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn message() -> impl Strategy<Value = ToNode> {
        let epoch = || (0_u64..4).prop_map(Epoch);
        let id = || (0_u64..30).prop_map(LeaseId);
        prop_oneof![
            2 => epoch().prop_map(|epoch| ToNode::Welcome { epoch, heartbeat: BEAT }),
            1 => Just(ToNode::Refused(Refusal::Full { nodes_max: 1 })),
            8 => (epoch(), 0_u64..30, 0_u64..9, 1_u64..4).prop_map(|(epoch, id, first, units)| {
                ToNode::Lease { epoch, lease: Lease { first, units, ..lease(id) } }
            }),
            3 => (epoch(), id()).prop_map(|(epoch, lease)| ToNode::Withdraw { epoch, lease }),
            3 => (epoch(), id(), 0_u64..4)
                .prop_map(|(epoch, lease, units)| ToNode::Shorten { epoch, lease, units }),
            1 => epoch().prop_map(|epoch| ToNode::Fenced { epoch }),
            1 => epoch().prop_map(|epoch| ToNode::Dismissed { epoch }),
            1 => epoch().prop_map(|epoch| ToNode::Alive { epoch }),
        ]
    }

    fn event() -> impl Strategy<Value = Event<u8>> {
        let id = || (0_u64..30).prop_map(LeaseId);
        let failure = Failure { unit: None, offset: None, what: String::new() };
        prop_oneof![
            2 => Just(()).prop_map(|()| Event::Start),
            20 => message().prop_map(Event::Told),
            6 => id().prop_map(Event::Fetched),
            6 => id().prop_map(|id| Event::Computed(id, 0)),
            1 => id().prop_map(move |id| Event::Failed(id, failure.clone())),
            4 => id().prop_map(Event::Sent),
            4 => id().prop_map(Event::Stopped),
            1 => Just(()).prop_map(|()| Event::Leave),
            1 => Just(()).prop_map(|()| Event::Lost),
            1 => Just(()).prop_map(|()| Event::Ended),
            1 => Just(()).prop_map(|()| Event::Garbled),
            1 => Just(()).prop_map(|()| Event::Tick),
        ]
    }

    proptest! {
        /// No two that accelerators have have a unit in common, whatever it is told.
        #[test]
        fn so_many_leases_are_computed_at_a_time_and_no_unit_twice(
            events in prop::collection::vec(event(), 0..150),
            at_once in 1_usize..4,
        ) {
            let mut node = Node::new(Hello { buffers: 3, ..Hello::default() }).at_once(at_once);
            let (mut computing, mut given) = (Vec::<Lease>::new(), 0);
            let mut events = VecDeque::from(events);
            while let Some(mut event) = events.pop_front() {
                if let Event::Told(ToNode::Lease { lease, .. }) = &mut event
                    && lease.id.0 % 4 > 0
                {
                    // One that is new.
                    given += 1;
                    lease.id = LeaseId(given);
                }
                let ended = match event {
                    Event::Computed(id, _) | Event::Failed(id, _) | Event::Stopped(id) => Some(id),
                    Event::Sent(id) if computing.iter().any(|lease| lease.id == id) => continue,
                    _ => None,
                };
                // Accelerators tell of what they have, or let go of what they never got.
                computing.retain(|lease| Some(lease.id) != ended);
                let mut actions = Vec::new();
                node.on(Duration::ZERO, event, &mut actions);
                for action in actions {
                    match action {
                        Action::Fetch(lease) if lease.units > 1 => {
                            events.push_front(Event::Fetched(lease.id));
                        }
                        Action::Shorten(id, units) => {
                            let lease = computing.iter_mut().find(|lease| lease.id == id).unwrap();
                            prop_assert!(units < lease.units);
                            lease.units = units;
                            events.push_front(Event::Shortened(id, units, true));
                        }
                        Action::Compute(lease) => {
                            prop_assert!(!computing.iter().any(|other| other.meets(&lease)));
                            computing.push(lease);
                            prop_assert!(computing.len() <= at_once);
                        }
                        _ => {}
                    }
                }
            }
        }

        /// Whatever it is told, it has no more leases than buffers, asks for no
        /// more than that, and each result it is given is said or dropped.
        #[test]
        fn buffers_bound_it(events in prop::collection::vec(event(), 0..150), buffers in 1_u32..4) {
            let mut node = Node::new(Hello { buffers, ..Hello::default() });
            for event in events {
                let is_result = matches!(event, Event::Computed(..));
                let mut actions = Vec::new();
                node.on(Duration::ZERO, event, &mut actions);
                let results = actions.iter().filter(|action| {
                    matches!(action, Action::Drop(_) | Action::Say(ToManager::Result { .. }))
                });
                prop_assert_eq!(results.count(), usize::from(is_result));
                prop_assert!(node.buffers_used() <= buffers as usize);
                let expected = node.asked.saturating_sub(node.received);
                prop_assert!(expected <= u64::from(buffers));
            }
        }
    }
}
