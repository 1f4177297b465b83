use proptest::prelude::*;

use super::*;

fn small() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0_u64..8, 3 => 0_u64..60, 1 => any::<u64>()]
}

fn message() -> impl Strategy<Value = ToManager<u8>> {
    let epoch = || small().prop_map(Epoch);
    let lease = || small().prop_map(LeaseId);
    let failure = (prop::option::of(small()), prop::option::of(small()))
        .prop_map(|(unit, offset)| Failure { unit, offset, what: String::new() });
    let hello = (0_u32..4, small()).prop_map(|(buffers, buffer_bytes)| {
        ToManager::Hello(Hello { buffers, buffer_bytes, ..Hello::default() })
    });
    prop_oneof![
        2 => hello,
        4 => (epoch(), small()).prop_map(|(epoch, in_all)| ToManager::Ask { epoch, in_all }),
        6 => (epoch(), lease(), small())
            .prop_map(|(epoch, lease, units)| ToManager::Result { epoch, lease, units, result: 0 }),
        2 => (epoch(), lease(), small(), any::<bool>()).prop_map(
            |(epoch, lease, units, is_shorter)| {
                ToManager::Shortened { epoch, lease, units, is_shorter }
            }
        ),
        2 => (epoch(), lease(), failure)
            .prop_map(|(epoch, lease, failure)| ToManager::Failed { epoch, lease, failure }),
        1 => epoch().prop_map(|epoch| ToManager::Alive { epoch }),
        1 => epoch().prop_map(|epoch| ToManager::Leaving { epoch }),
    ]
}

fn spec() -> impl Strategy<Value = JobSpec> {
    let merging =
        prop_oneof![Just(Merging::AlongTree), Just(Merging::AnyOrder), Just(Merging::Nothing)];
    (small(), small(), merging, prop::option::of(small())).prop_map(
        |(units, unit_bytes, merging, lease_units)| JobSpec {
            units,
            unit_bytes,
            merging,
            lease_units,
        },
    )
}

fn event() -> impl Strategy<Value = Event<u8>> {
    let node = || (0_u32..3).prop_map(NodeId);
    let job = || (0_u64..3).prop_map(JobId);
    prop_oneof![
        40 => (node(), message()).prop_map(|(node, message)| Event::From(node, message)),
        1 => node().prop_map(Event::Lost),
        4 => (small(), any::<bool>()).prop_map(|(id, fine)| {
            Event::Merged(MergeId(id), if fine { Ok(0) } else { Err(String::new()) })
        }),
        1 => Just(Event::Tick),
        3 => (job(), spec()).prop_map(|(job, spec)| Event::Submit(job, spec)),
        1 => (job(), small(), small(), small()).prop_map(|(job, first, units, more)| {
            let (end, next) = (first.saturating_add(units), more.saturating_add(1));
            let units = vec![first..end, more..next];
            Event::Recorded { job, units, result: 0 }
        }),
        1 => job().prop_map(Event::Abort),
    ]
}

proptest! {
    /// Whatever comes in, each result goes one way: merged, dropped, or the job's.
    #[test]
    fn no_result_is_lost_or_made(
        events in prop::collection::vec((event(), 0_u64..5000), 0..150),
        backlog_max in 0_usize..4,
    ) {
        let config = Config { backlog_max, losses_max: 3, ..Config::default() };
        let mut manager = Manager::new(config);
        let (mut came, mut went, mut now) = (0, 0, Duration::ZERO);
        for (event, passes) in events {
            now += Duration::from_millis(passes);
            came += usize::from(matches!(
                event,
                Event::From(_, ToManager::Result { .. })
                    | Event::Merged(_, Ok(_))
                    | Event::Recorded { .. }
            ));
            let mut actions = Vec::new();
            manager.on(now, event, &mut actions);
            for action in actions {
                went += match action {
                    Action::Merge { .. } => 2,
                    Action::Drop(_) | Action::Finished { result: Some(_), .. } => 1,
                    _ => 0,
                };
            }
            let waiting: usize = manager.progress().map(|of| of.results_waiting).sum();
            prop_assert_eq!(came, went + waiting);
            for member in manager.members.values() {
                prop_assert!(member.leases.len() <= 3);
            }
        }
    }
}
