use kernels::Blake3;
use stream::{Options, Progress};

use super::*;
use crate::Lease;
use crate::drive::MANAGER;
use crate::drive::jobs::KNOWN_MAX;
use crate::drive::testing::{bringing, nine_units};
use crate::task::{RemoteTask, said};

const NOW: Duration = Duration::ZERO;
const OWN: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(3);
const EPOCH: Epoch = Epoch(7);

/// Peer 1 of four manages peer 3, and is welcome above; its own node has joined it.
struct Bench<'b, 'scope, 'env> {
    group: Submanage<'scope, 'env>,
    task: &'env dyn Task,
    out: &'b mut Vec<(NodeId, Message)>,
    /// Of its own node.
    epoch: Epoch,
}

impl Bench<'_, '_, '_> {
    fn hears(&mut self, node: NodeId, message: ToManager<ByteBuf>) {
        self.group.heard(NOW, node, message, self.out);
    }

    fn joins(&mut self, node: NodeId) -> Epoch {
        self.hears(node, ToManager::Hello(Hello::default()));
        let of = self.out.iter().rev().find_map(|(to, message)| match message {
            Message::ToNode(ToNode::Welcome { epoch, .. }) if *to == node => Some(*epoch),
            _ => None,
        });
        of.unwrap()
    }

    fn job(&mut self, job: u64) {
        let description = self.task.description().clone();
        self.group.job(NOW, (JobId(job), 0), description, self.out);
    }

    /// Which jobs a node was told of, and given leases of, since the last look.
    fn told(&mut self, node: NodeId) -> (Vec<u64>, Vec<u64>) {
        let (mut told, mut given) = (Vec::new(), Vec::new());
        for (_, message) in self.out.drain(..).filter(|(to, _)| *to == node) {
            match message {
                Message::Job(job, ..) => told.push(job.0),
                Message::ToNode(ToNode::Lease { lease, .. }) => given.push(lease.job.0),
                _ => {}
            }
        }
        (told, given)
    }
}

fn with_group(test: impl FnOnce(Bench<'_, '_, '_>)) {
    nine_units(|task| {
        let (tasks, config): ([&dyn Task; 1], _) = ([task], Config::default());
        let (bring, _brought) = bringing();
        std::thread::scope(|scope| {
            let layout = Layout::new(4, Some(2));
            let mut group = Submanage::new(OWN, layout, &tasks, &config, bring, scope);
            let out = &mut Vec::new();
            group.start(NOW, out);
            let mut bench = Bench { group, task, out, epoch: EPOCH };
            bench.epoch = bench.joins(OWN);
            bench.hears(OWN, ToManager::Ask { epoch: bench.epoch, in_all: 1 });
            let hello = |(to, message): &(NodeId, Message)| {
                *to == MANAGER && matches!(message, Message::ToManager(ToManager::Hello(_)))
            };
            assert!(bench.out.iter().any(hello), "{:?}", bench.out);
            let welcome = ToNode::Welcome { epoch: EPOCH, heartbeat: Duration::from_secs(10) };
            bench.group.told(NOW, welcome, bench.out);
            test(bench);
        });
    });
}

#[test]
fn a_job_of_which_the_group_has_a_lease_is_not_forgotten() {
    with_group(|mut bench| {
        bench.job(0);
        let lease = Lease { id: LeaseId(5), job: JobId(0), first: 2, units: 4 };
        bench.group.told(NOW, ToNode::Lease { epoch: EPOCH, lease }, bench.out);
        assert_eq!(bench.told(OWN), (vec![0], vec![0]));
        let later = 2 * KNOWN_MAX as u64;
        (1..later).for_each(|job| bench.job(job));
        // Its results are merged here, and others are told what it is.
        assert!(bench.group.jobs.get(JobId(0)).is_some());
        let epoch = bench.joins(OTHER);
        bench.hears(OTHER, ToManager::Ask { epoch, in_all: 1 });
        assert_eq!(bench.told(OTHER), (vec![0], vec![0]));
        // Others were.
        let known = (0..later).filter(|job| bench.group.jobs.get(JobId(*job)).is_some());
        assert_eq!(known.count(), KNOWN_MAX + 1);
    });
}

#[test]
fn a_group_that_refuses_its_last_node_leaves_with_the_reason() {
    with_group(|mut bench| {
        let (own, why) = (bench.epoch, "its disk is full".to_owned());
        bench.hears(OWN, ToManager::Unfit { epoch: own, why });
        assert_eq!(bench.group.left, None);
        bench.out.clear();
        let (blake, progress) = (Blake3::new(), Progress::default());
        let other = RemoteTask::new(&blake, "in", &Options::default(), &progress).unwrap();
        let hello = Hello { tasks: said(&[&other]), ..Hello::default() };
        bench.hears(OTHER, ToManager::Hello(hello));
        let named = "node 3: the manager's kernel is crc32c, this node's blake3";
        let left = bench.group.left.as_ref();
        let why = left.map(ToString::to_string).unwrap_or_default();
        assert!(why.starts_with(named), "{left:?}");
        let told = Message::ToManager(ToManager::Unfit { epoch: EPOCH, why });
        assert!(bench.out.contains(&(MANAGER, told)), "{:?}", bench.out);
    });
}
