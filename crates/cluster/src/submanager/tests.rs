use super::*;
use crate::{Epoch, Merging};

const ABOVE: JobId = JobId(1);

const NODE: NodeId = NodeId(7);

/// A group of one node, at a time, that says what lower units came to as text.
struct Bench {
    group: Submanager<String>,
    now: Duration,
}

type Did = Vec<Action<String>>;

impl Bench {
    /// A member above with leases of the units from 8 on and from 16 on.
    fn new(merging: Merging) -> (Self, Epoch) {
        let config =
            Config { serial: 1 << 32, join_wait: Duration::from_secs(2), ..Config::default() };
        let hello = Hello { buffers: BUFFERS, ..Hello::default() };
        let group = Submanager::new(hello, config, String::new);
        let mut bench = Self { group, now: Duration::ZERO };
        let spec = JobSpec { units: 64, unit_bytes: 1, merging, lease_units: Some(4) };
        bench.group.describe(ABOVE, spec);
        assert_eq!(bench.on(Event::Above(node::Event::Start)), []);
        let epoch = bench.node_joins();
        bench.told(ToNode::Welcome { epoch: Epoch(3), heartbeat: Duration::from_secs(3600) });
        (bench, epoch)
    }

    fn on(&mut self, event: Event<String>) -> Did {
        let mut actions = Vec::new();
        self.group.on(self.now, event, &mut actions);
        actions.retain(|action| !matches!(action, Action::SetTimer(_)));
        actions
    }

    fn told(&mut self, message: ToNode) -> Did {
        self.on(Event::Above(node::Event::Told(message)))
    }

    fn said(&mut self, message: ToManager<String>) -> Did {
        self.on(Event::Below(manager::Event::From(NODE, message)))
    }

    /// With it, the group joins.
    #[track_caller]
    fn node_joins(&mut self) -> Epoch {
        let did = self.said(ToManager::Hello(Hello { buffers: 4, ..Hello::default() }));
        let [Action::Tell(NODE, ToNode::Welcome { epoch, .. })] = did[..] else {
            panic!("{did:?}")
        };
        let did = self.said(ToManager::Ask { epoch, in_all: 4 });
        assert!(matches!(did[..], [Action::Say(ToManager::Hello(_))]), "{did:?}");
        epoch
    }

    fn leased(&mut self, id: u64, first: u64) -> Vec<Lease> {
        let lease = Lease { id: LeaseId(id), job: ABOVE, first, units: 8 };
        let did = self.told(ToNode::Lease { epoch: Epoch(3), lease });
        let of = |action: Action<String>| match action {
            Action::Tell(NODE, ToNode::Lease { lease, .. }) => Some(lease),
            _ => None,
        };
        did.into_iter().filter_map(of).collect()
    }

    fn returns(&mut self, epoch: Epoch, lease: Lease) -> Did {
        self.said(ToManager::Result {
            epoch,
            lease: lease.id,
            units: lease.units,
            result: lease.first.to_string(),
        })
    }
}

fn ranges(leases: &[Lease]) -> Vec<(JobId, u64, u64)> {
    leases.iter().map(|lease| (lease.job, lease.first, lease.units)).collect()
}

#[test]
fn a_lease_is_a_job_and_its_result_the_jobs() {
    let (mut bench, epoch) = Bench::new(Merging::AlongTree);
    let leases = bench.leased(5, 8);
    assert_eq!(ranges(&leases), [(ABOVE, 8, 4), (ABOVE, 12, 4)]);
    let more = bench.leased(6, 16);
    assert_eq!(ranges(&more), [(ABOVE, 16, 4), (ABOVE, 20, 4)], "all that is leased is given out");
    bench.returns(epoch, leases[1]);
    let did = bench.returns(epoch, leases[0]);
    let [Action::Merge { id, job: ABOVE, into, from }] = &did[..] else { panic!("{did:?}") };
    assert_eq!((into.as_str(), from.as_str()), ("8", "12"));
    let did = bench.on(Event::Below(manager::Event::Merged(*id, Ok("8 12".to_owned()))));
    let (epoch, lease, result) = (Epoch(3), LeaseId(5), "8 12".to_owned());
    assert_eq!(did, [Action::Say(ToManager::Result { epoch, lease, units: 8, result })]);
}

#[test]
fn a_job_without_results_has_an_empty_one() {
    let (mut bench, epoch) = Bench::new(Merging::Nothing);
    let leases = bench.leased(5, 8);
    bench.returns(epoch, leases[0]);
    let did = bench.returns(epoch, leases[1]);
    let (epoch, lease, result) = (Epoch(3), LeaseId(5), String::new());
    let said = Action::Say(ToManager::Result { epoch, lease, units: 8, result });
    assert_eq!(did.last(), Some(&said));
}

#[test]
fn withdrawn_and_fenced_leases_are_jobs_aborted() {
    let (mut bench, epoch) = Bench::new(Merging::AlongTree);
    let leases = bench.leased(5, 8);
    bench.leased(6, 16);
    let did = bench.told(ToNode::Withdraw { epoch: Epoch(3), lease: LeaseId(5) });
    let withdrawn = |lease: Lease| Action::Tell(NODE, ToNode::Withdraw { epoch, lease: lease.id });
    assert_eq!(did[..2], [withdrawn(leases[0]), withdrawn(leases[1])]);
    let ask = Action::Say(ToManager::Ask { epoch: Epoch(3), in_all: 4 });
    assert!(did.contains(&ask), "{did:?}");
    let did = bench.told(ToNode::Fenced { epoch: Epoch(3) });
    let many = did.iter().filter(|did| matches!(did, Action::Tell(_, ToNode::Withdraw { .. })));
    assert_eq!(many.count(), 2);
    assert!(did.iter().any(|did| matches!(did, Action::Say(ToManager::Hello(_)))));
}

#[test]
fn a_unit_that_fails_is_named_as_above() {
    let (mut bench, epoch) = Bench::new(Merging::AlongTree);
    let mut open = bench.leased(5, 8);
    let failure = Failure { unit: Some(13), offset: Some(130), what: "bad".to_owned() };
    for _ in 0..50 {
        let Some(lease) = open.pop() else { break };
        let did = if (lease.first..lease.first + lease.units).contains(&13) {
            let failure = failure.clone();
            bench.said(ToManager::Failed { epoch, lease: lease.id, failure })
        } else {
            bench.returns(epoch, lease)
        };
        let asked = bench.said(ToManager::Ask { epoch, in_all: u64::MAX });
        for action in did.into_iter().chain(asked) {
            match action {
                Action::Tell(_, ToNode::Lease { lease, .. }) => open.push(lease),
                Action::Say(ToManager::Failed { lease: LeaseId(5), failure: told, .. }) => {
                    assert_eq!(told, failure);
                    return;
                }
                _ => {}
            }
        }
    }
    panic!("it was not told");
}

#[test]
fn a_group_without_nodes_gives_its_leases_back_and_waits_for_some() {
    let (mut bench, _) = Bench::new(Merging::AlongTree);
    bench.leased(5, 8);
    bench.leased(6, 16);
    bench.on(Event::Below(manager::Event::Lost(NODE)));
    bench.now += Duration::from_secs(2);
    // What it had is free for others by its new membership, which it leaves.
    let did = bench.on(Event::Tick);
    let hellos = did.iter().filter(|did| matches!(did, Action::Say(ToManager::Hello(_))));
    assert_eq!(hellos.count(), 1, "{did:?}");
    let did = bench.told(ToNode::Welcome { epoch: Epoch(9), heartbeat: Duration::from_secs(9) });
    assert_eq!(did, [Action::Say(ToManager::Leaving { epoch: Epoch(9) })]);
    assert_eq!(bench.told(ToNode::Dismissed { epoch: Epoch(9) }), []);
    assert!(!bench.group.is_drained());
    bench.node_joins();
}

#[test]
fn a_group_outlives_its_manager_and_ends_with_the_work() {
    let (mut bench, epoch) = Bench::new(Merging::AlongTree);
    let leases = bench.leased(5, 8);
    let did = bench.on(Event::Above(node::Event::Lost));
    assert!(did.contains(&Action::Left(Left::Lost)));
    let lease = leases[0].id;
    assert!(did.contains(&Action::Tell(NODE, ToNode::Withdraw { epoch, lease })));
    let did = bench.on(Event::Above(node::Event::Start));
    assert!(matches!(did[..], [Action::Say(ToManager::Hello(_))]), "{did:?}");
    // Of the manager before, leases had greater numbers.
    bench.told(ToNode::Welcome { epoch: Epoch(3), heartbeat: Duration::from_secs(3600) });
    assert_eq!(bench.leased(1, 0).len(), 2);
    let did = bench.told(ToNode::Dismissed { epoch: Epoch(3) });
    assert!(did.contains(&Action::Tell(NODE, ToNode::Dismissed { epoch })), "{did:?}");
    assert!(bench.group.is_drained());
}
