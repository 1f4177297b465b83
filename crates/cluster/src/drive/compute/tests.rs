use super::*;
use crate::Epoch;
use crate::drive::Ship;
use crate::drive::testing::{bringing, nine_units};

const NOW: Duration = Duration::ZERO;
const EPOCH: Epoch = Epoch(1);

/// A node that is a member, with a job for each task.
fn member<'scope, 'env>(
    tasks: &'env [&'env dyn Task],
    bring: Bring,
    scope: &'scope Scope<'scope, 'env>,
) -> Compute<'scope, 'env> {
    let config = Config { ship: Ship::Locators, ..Config::default() };
    let mut compute = Compute::new((NodeId(1), NodeId(0)), tasks, &config, bring, scope);
    let mut out = Vec::new();
    compute.start(NOW, &mut out);
    let heartbeat = Duration::from_secs(1);
    compute.told(NOW, ToNode::Welcome { epoch: EPOCH, heartbeat }, &mut out);
    for (task, number) in tasks.iter().zip(0..) {
        compute.job(JobId(number.into()), number, task.description());
    }
    compute
}

fn gives(compute: &mut Compute<'_, '_>, id: u64, job: u64) -> LeaseId {
    let lease = Lease { id: LeaseId(id), job: JobId(job), first: id, units: 1 };
    compute.told(NOW, ToNode::Lease { epoch: EPOCH, lease }, &mut Vec::new());
    lease.id
}

#[test]
fn a_job_that_held_up_its_peer_is_not_computed_there_again() {
    nine_units(|task| {
        let (tasks, (bring, brought)): ([&dyn Task; 1], _) = ([task], bringing());
        std::thread::scope(|scope| {
            let mut compute = member(&tasks, bring, scope);
            let short = Duration::from_micros(1);
            let places = [short, HELD_MAX, short, short].into_iter().zip(1..);
            let places = places.map(|(took, id)| {
                let lease = gives(&mut compute, id, 0);
                let own = compute.own_thread().filter(|own| compute.is_computed(own.id));
                let own = own.cloned();
                if let Some(own) = &own {
                    // As it would by its steps.
                    own.session.stop(lease);
                }
                let session = loop {
                    match brought.recv().unwrap() {
                        Brought::Ended(session, id, _) if id == lease => break session,
                        _ => {}
                    }
                };
                let computed = Ended::Computed(Vec::new(), took);
                compute.ended(NOW, (session, lease), computed, &mut Vec::new());
                own.is_some()
            });
            assert_eq!(places.collect::<Vec<_>>(), [false, true, false, false]);
        });
    });
}

#[test]
fn leases_that_failed_together_are_tried_one_at_a_time() {
    nine_units(|task| {
        let (tasks, (bring, _brought)): ([&dyn Task; 1], _) = ([task], bringing());
        std::thread::scope(|scope| {
            let mut compute = member(&tasks, bring, scope);
            let mut out = Vec::new();
            gives(&mut compute, 1, 0);
            gives(&mut compute, 2, 0);
            let fails = |compute: &mut Compute<'_, '_>, out: &mut Vec<_>| {
                let session = compute.sessions;
                // As it would by itself.
                compute.beside.iter().for_each(|works| works.session.close());
                compute.over(NOW, session, Err("it panicked".to_owned()), out);
                compute.given.keys().map(|lease| lease.0).collect::<Vec<_>>()
            };
            let first = compute.sessions;
            assert_eq!(fails(&mut compute, &mut out), [1]);
            // What the session that failed still tells of it is of no use.
            let late = Ended::Computed(Vec::new(), Duration::ZERO);
            compute.ended(NOW, (first, LeaseId(1)), late, &mut out);
            assert!(out.is_empty(), "{out:?}");
            assert_eq!(fails(&mut compute, &mut out), [2]);
            let failed = out.iter().filter_map(|(_, message)| match message {
                Message::ToManager(ToManager::Failed { lease, .. }) => Some(lease.0),
                _ => None,
            });
            assert_eq!(failed.collect::<Vec<_>>(), [1]);
        });
    });
}

#[test]
fn accelerators_have_two_leases_of_one_job_but_never_of_two() {
    nine_units(|task| {
        let (tasks, (bring, _brought)): ([&dyn Task; 2], _) = ([task, task], bringing());
        std::thread::scope(|scope| {
            let mut compute = member(&tasks, bring, scope);
            let has = |compute: &Compute<'_, '_>| -> Vec<u64> {
                compute.given.keys().map(|lease| lease.0).collect()
            };
            let ended = |compute: &mut Compute<'_, '_>, id| {
                let ended = Ended::Computed(Vec::new(), Duration::ZERO);
                let of = (compute.given[&LeaseId(id)].to, LeaseId(id));
                compute.ended(NOW, of, ended, &mut Vec::new());
            };
            gives(&mut compute, 1, 0);
            gives(&mut compute, 2, 0);
            assert_eq!(has(&compute), [1, 2]);
            ended(&mut compute, 1);
            gives(&mut compute, 3, 1);
            assert_eq!(has(&compute), [2]);
            // Another job's does not wait for ever.
            ended(&mut compute, 2);
            gives(&mut compute, 4, 0);
            assert_eq!(has(&compute), [3]);
            // What waits is left off at once.
            let withdraw = ToNode::Withdraw { epoch: EPOCH, lease: LeaseId(4) };
            compute.told(NOW, withdraw, &mut Vec::new());
            ended(&mut compute, 3);
            assert!(has(&compute).is_empty());
        });
    });
}
