use kernels::{Blake3, Crc32c};
use storage::Input;
use stream::{Kernel as _, Options, Progress};

use super::*;
use crate::drive::Brought;
use crate::drive::testing::{bringing, nine_units};
use crate::task::{KernelTask, RemoteTask, said};
use crate::{Failure, Hello, ToNode};

const NODE: NodeId = NodeId(1);
const NOW: Duration = Duration::ZERO;

/// The leases that a node was told of since the last look.
fn leases(out: &mut Vec<(NodeId, Message)>) -> Vec<Lease> {
    let of = |(_, message)| match message {
        Message::ToNode(ToNode::Lease { lease, .. }) => Some(lease),
        _ => None,
    };
    out.drain(..).filter_map(of).collect()
}

/// The first job fails while a merge of the third waits for a record, which is not made then:
/// one of the second is under way.
#[test]
fn what_waits_for_a_record_is_merged_though_another_job_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (kernel, progress) = (Crc32c::new(), Progress::default());
    let options = Options { block_bytes: Some(4096), accelerators: Some(1), ..Options::default() };
    let inputs = [(0, 1), (1, 2), (2, 2)].map(|(number, units)| {
        let path = dir.path().join(number.to_string());
        std::fs::write(&path, vec![7; units * 4096]).unwrap();
        Input::open(&path).unwrap()
    });
    let tasks = inputs.each_ref().map(|input| {
        let task = KernelTask::new(&kernel, input, None, &options, &progress).unwrap();
        task.lease_units(Some(1))
    });
    let tasks: &[&dyn Task] = &[&tasks[0], &tasks[1], &tasks[2]];
    let part: crate::task::Part = Box::new(kernel.part(1));
    let result = ByteBuf::from(tasks[1].save(&part).unwrap());
    let config = Config { manager_computes: false, ..Config::default() };
    let (bring, brought) = bringing();
    std::thread::scope(|scope| {
        let mut manage = Manage::new((tasks, None), &config, Layout::new(2, None), &bring, scope);
        let out = &mut Vec::new();
        manage.start(NOW, Some((Keep::of_nothing(false), Vec::new())), out);
        let hello = Hello { buffers: 8, ..Hello::default() };
        manage.heard(NOW, NODE, ToManager::Hello(hello), out);
        let epoch = out.iter().find_map(|(_, message)| match message {
            Message::ToNode(ToNode::Welcome { epoch, .. }) => Some(*epoch),
            _ => None,
        });
        let epoch = epoch.unwrap();
        let mut in_all = 5;
        manage.heard(NOW, NODE, ToManager::Ask { epoch, in_all }, out);
        let given = leases(out);
        let [first, of_others @ ..] = &given[..] else { panic!("nothing is given") };
        let mut failing = *first;
        assert_eq!(of_others.len(), 4, "{given:?}");
        for (lease, number) in of_others.iter().zip(0..) {
            if number == 2 {
                // That of the first one is; now the first merge is under way.
                manage.recorded(NOW, Ok(NOW), out);
            }
            let (lease, units, result) = (lease.id, lease.units, result.clone());
            manage.heard(NOW, NODE, ToManager::Result { epoch, lease, units, result }, out);
        }
        assert_eq!(manage.held_back.len(), 1);
        loop {
            let failure = Failure { unit: Some(0), offset: None, what: "a bad byte".into() };
            let lease = failing.id;
            manage.heard(NOW, NODE, ToManager::Failed { epoch, lease, failure }, out);
            if manage.results.contains_key(&JobId(0)) {
                break;
            }
            in_all += 1;
            manage.heard(NOW, NODE, ToManager::Ask { epoch, in_all }, out);
            failing = leases(out)[0];
        }
        assert!(manage.held_back.is_empty(), "a merge waits for a record that is not made");
        while manage.results.len() < 3 {
            let Ok(Brought::Merged(merge, result, took)) = brought.recv() else {
                panic!("no merge")
            };
            manage.merged(NOW, merge, (result, took), out);
        }
        let are_there = [0, 1, 2].map(|job| manage.results[&JobId(job)].is_ok());
        assert_eq!(are_there, [false, true, true]);
    });
}

/// Of five peers the second manages the last two. All say hello, and bring a result each.
fn after_results(test: impl FnOnce(&mut Manage<'_>, &mut Vec<(NodeId, Message)>)) {
    nine_units(|task| {
        let part: crate::task::Part = Box::new(Crc32c::new().part(1));
        let result = ByteBuf::from(task.save(&part).unwrap());
        let tasks: &[&dyn Task] = &[task];
        let config = Config { manager_computes: false, ..Config::default() };
        let (bring, brought) = bringing();
        std::thread::scope(|scope| {
            let layout = Layout::new(5, Some(2));
            let mut manage = Manage::new((tasks, None), &config, layout, &bring, scope);
            let out = &mut Vec::new();
            let keep = Keep::of_nothing(true);
            manage.start(NOW, Some((keep, Vec::new())), out);
            for node in [1, 2].map(NodeId) {
                let epoch = joins(&mut manage, node, out);
                manage.heard(NOW, node, ToManager::Ask { epoch, in_all: 1 }, out);
                let Lease { id: lease, units, .. } = leases(out)[0];
                let result = result.clone();
                manage.heard(NOW, node, ToManager::Result { epoch, lease, units, result }, out);
            }
            while manage.merges.running() > 0 {
                let Ok(Brought::Merged(merge, result, took)) = brought.recv() else {
                    panic!("no merge")
                };
                manage.merged(NOW, merge, (result, took), out);
            }
            test(&mut manage, out);
        });
    });
}

fn joins(manage: &mut Manage<'_>, node: NodeId, out: &mut Vec<(NodeId, Message)>) -> Epoch {
    manage.heard(NOW, node, ToManager::Hello(Hello::default()), out);
    let epoch = out.iter().rev().find_map(|(to, message)| match message {
        Message::ToNode(ToNode::Welcome { epoch, .. }) if *to == node => Some(*epoch),
        _ => None,
    });
    epoch.unwrap()
}

/// Which of all peers are to say that what they put is on the disk.
fn awaited(manage: &Manage<'_>) -> Vec<u32> {
    let keep = manage.keep.as_ref().unwrap();
    (1..5).filter(|node| keep.awaits(NodeId(*node), keep.number())).collect()
}

#[test]
fn what_a_node_put_that_is_fenced_or_loses_its_manager_is_settled_before_the_record() {
    after_results(|manage, out| {
        assert_eq!(awaited(manage), [1, 2]);
        let number = manage.keep.as_ref().unwrap().number();
        // As one that was stopped for too long.
        manage.fence(NOW, NodeId(2), out);
        assert_eq!(awaited(manage), [1, 2]);
        // Its nodes come instead.
        manage.lost(NOW, NodeId(1), [3, 4].map(NodeId).into_iter(), out);
        assert_eq!(awaited(manage), [2, 3, 4]);
        manage.lost(NOW, NodeId(4), std::iter::empty(), out);
        joins(manage, NodeId(2), out);
        assert_eq!(awaited(manage), [2, 3]);
        out.clear();
        manage.tick(NOW, out);
        let asked: Vec<_> = out.iter().filter(|(_, it)| *it == Message::Settle(number)).collect();
        assert_eq!(asked.len(), 2);
        for node in [2, 3].map(NodeId) {
            manage.settled(NOW, node, (number, None), out);
        }
        assert!(awaited(manage).is_empty());
    });
}

#[test]
fn who_comes_back_settles_before_the_next_record() {
    after_results(|manage, out| {
        let late = Duration::from_secs(3600);
        manage.fence(NOW, NodeId(2), out);
        manage.tick(late, out);
        assert_eq!(awaited(manage), [1]);
        joins(manage, NodeId(2), out);
        assert_eq!(awaited(manage), [1, 2]);
    });
}

/// Of three peers the second manages the last.
#[test]
fn a_refused_manager_whose_nodes_are_lost_is_the_last_one() {
    for is_lost in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("in");
        std::fs::write(&path, [7; 9]).unwrap();
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let (kernel, blake) = (Crc32c::new(), Blake3::new());
        let task = KernelTask::new(&kernel, &input, None, &Options::default(), &progress).unwrap();
        let other = RemoteTask::new(&blake, "in", &Options::default(), &progress).unwrap();
        let hello = Hello { tasks: said(&[&other]), ..Hello::default() };
        let tasks: &[&dyn Task] = &[&task];
        let config = Config { manager_computes: false, ..Config::default() };
        let (bring, _brought) = bringing();
        std::thread::scope(|scope| {
            let layout = Layout::new(3, Some(1));
            let mut manage = Manage::new((tasks, None), &config, layout, &bring, scope);
            let out = &mut Vec::new();
            manage.start(NOW, None, out);
            if is_lost {
                manage.lost(NOW, NodeId(2), std::iter::empty(), out);
            }
            manage.heard(NOW, NODE, ToManager::Hello(hello), out);
            assert_eq!(manage.group.is_empty(), is_lost);
            assert_eq!(manage.results.contains_key(&JobId(0)), is_lost);
        });
    }
}
