//! Managers of managers.

use std::thread;
use std::time::{Duration, Instant};

use cellway_cluster::drive::{self, ClusterError, Config, Report, run_local};
use cellway_cluster::task::{KernelTask, Task};
use cellway_cluster::transport::local::{Local, endpoints};
use cellway_cluster::transport::{Endpoint as _, Received};
use cellway_cluster::{Epoch, Hello, Message, NodeId, ToManager, ToNode};
use kernels::{Aes128Ecb, Blake3, Crc32c, Finish, LinReg, PairType};
use proptest::prelude::*;
use storage::{Input, Output};
use stream::Progress;

use crate::faulty::{self, Faults, Faulty, Random, locals, watched};
use crate::{file, options, text};

fn config(fanout: Option<u32>) -> Config {
    Config { fanout, ..Config::default() }
}

/// What a task comes to where managers have so many peers below them.
fn run(peers: u32, fanout: Option<u32>, task: &dyn Task) -> Report {
    let (report, _) = run_local(peers, &[task], &config(fanout)).unwrap();
    // Who is further down joined another one.
    let below = peers - 1;
    let joined = u64::from(1 + fanout.unwrap_or(below).min(below));
    let found = (report.counters.joined, report.counters.lost, report.counters.refused);
    assert_eq!(found, (joined, 0, 0), "{:?}", report.counters);
    report
}

/// What each of some trees finds, the first of which is flat.
fn finds<K: Finish<Part: 'static>>(kernel: &K, len: usize) -> Vec<String> {
    let (_dir, path) = file(len, len as u64);
    let bytes = std::fs::read(&path).unwrap();
    let floats = bytes.into_iter().flat_map(|byte| (f64::from(byte) / 7.0).to_le_bytes());
    std::fs::write(&path, floats.collect::<Vec<_>>()).unwrap();
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let shapes = [(3, None), (2, Some(2)), (4, Some(2)), (7, Some(2)), (13, Some(3)), (9, Some(2))];
    let found = shapes.map(|(peers, fanout)| {
        let task = KernelTask::new(kernel, &input, None, &options(), &progress).unwrap();
        let result = run(peers, fanout, &task).results.remove(0).unwrap();
        text(kernel, task.result(result).unwrap())
    });
    found.to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn trees_find_what_one_manager_finds(len in 0..250_000_usize) {
        for found in [
            finds(&Blake3::new(), len),
            finds(&Crc32c::new(), len),
            // Sums of floats, which depend on their order.
            finds(&LinReg::new(PairType::F64), len / 2 * 2),
        ] {
            prop_assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
        }
    }

    #[test]
    fn transforms_put_all_blocks_where_they_belong(len in 0..60_000_usize, fanout in 2..5_u32) {
        let (dir, path) = file(len * 16, 7);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let made = [None, Some(fanout)].map(|fanout| {
            let path = dir.path().join(format!("{fanout:?}"));
            let output = Output::create(&path, &storage::Options::default()).unwrap();
            let kernel = Aes128Ecb::default();
            let task =
                KernelTask::new(&kernel, &input, Some(&output), &options(), &progress).unwrap();
            assert!(run(8, fanout, &task).results.remove(0).unwrap().is_none());
            output.commit(false).unwrap();
            std::fs::read(path).unwrap()
        });
        prop_assert!(made[0] == made[1]);
    }
}

/// What comes of a job of `units` if a peer that manages others dies at some call; and how
/// many peers joined the first one, and how often.
fn with_one_that_dies(seed: u64) -> (u64, u64) {
    let mut random = Random(seed);
    let (peers, fanout) = random.pick(&[(7, 2), (9, 2), (13, 3)]);
    let dying = 1 + random.below(2);
    let (_dir, path) = file(1_000_000, seed);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let kernel = Blake3::new();
    let one = stream::run(&kernel, &input, None, &options(), &progress).unwrap();
    let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
    let (task, config) = (&task.lease_units(Some(1)), &config(Some(fanout)));
    let report = thread::scope(|scope| {
        let mut endpoints = endpoints(peers).into_iter();
        let first = endpoints.next().unwrap();
        for (endpoint, number) in endpoints.zip(1..) {
            let dies_after = (number == dying).then(|| random.below(250));
            let faults = Faults { dies_after, ..Faults::default() };
            let endpoint = Box::new(Faulty::new(endpoint, faults, random.clone()));
            scope.spawn(move || {
                let ended = faulty::run(endpoint, &[task], config);
                let above = (number - 1) / u64::from(fanout);
                let may_end_so = match &ended {
                    Ok(_) => true,
                    Err(ClusterError::Transport(_)) => number == dying,
                    // All was done, and the first has ended too.
                    Err(_) => [above, above.saturating_sub(1) / u64::from(fanout)].contains(&dying),
                };
                assert!(may_end_so, "{number}: {ended:?}");
            });
        }
        faulty::run(Box::new(first), &[task], config).unwrap().unwrap()
    });
    let Report { mut results, counters, .. } = report;
    let part = task.result(results.remove(0).unwrap()).unwrap();
    assert_eq!(text(&kernel, part), text(&kernel, one.part));
    (counters.lost, counters.joined - u64::from(1 + fanout))
}

#[test]
fn a_manager_that_dies_leaves_its_group_to_the_first() {
    let (mut lost, mut orphans) = (0, 0);
    for seed in 0..30 {
        let what = format!("seed {seed}");
        let (of_lost, of_orphans) = watched(&what, move || with_one_that_dies(seed));
        (lost, orphans) = (lost + of_lost, orphans + of_orphans);
    }
    println!("{lost} were lost, and {orphans} nodes joined the first");
    assert!(lost >= 5 && orphans >= 10, "{lost} were lost, and {orphans} nodes joined the first");
}

/// Of five peers the first does not compute, the second manages the last two, and it and
/// the third would do something else: only those can do it.
#[test]
fn a_manager_that_is_unfit_leaves_its_group_to_the_first() {
    let (mut report, unfit) = watched("it", || {
        let (_dir, path) = file(200_000, 7);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let kernel = Crc32c::new();
        let fit = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
        let other = Blake3::new();
        let other = KernelTask::new(&other, &input, None, &options(), &progress).unwrap();
        let tasks: [&dyn Task; 5] = [&fit, &other, &other, &fit, &fit];
        let config = &Config { manager_computes: false, ..config(Some(2)) };
        thread::scope(|scope| {
            let peers = locals::<5>().into_iter().zip(tasks).map(|(endpoint, task)| {
                scope.spawn(move || drive::run(Box::new(endpoint), &[task], config).unwrap())
            });
            let peers: Vec<_> = peers.collect();
            let mut ran: Vec<_> = peers.into_iter().map(|peer| peer.join().unwrap()).collect();
            let unfit: Vec<_> = ran.iter_mut().map(|ran| ran.unfit.take()).collect();
            (ran.remove(0).report.unwrap(), unfit)
        })
    });
    assert!(report.results.remove(0).unwrap().is_some());
    // Two were refused, and two came for that.
    let found = (report.counters.joined, report.counters.refused, report.counters.lost);
    assert_eq!(found, (2, 2, 0), "{:?}", report.counters);
    let why = |node: usize| unfit[node].as_deref().unwrap_or("nothing");
    for node in [1, 2] {
        let start = format!("node {node}: the manager's kernel is crc32c, this node's blake3");
        assert!(why(node).starts_with(&start), "{}", why(node));
    }
    assert_eq!([0, 3, 4].map(why), ["nothing"; 3]);
}

/// A peer that says what a test wants.
struct Scripted(Local);

impl Scripted {
    fn say(&mut self, to: u32, message: &Message) {
        self.0.send(NodeId(to), message.to_bytes()).unwrap();
    }

    /// The first of a peer that is such a one.
    fn hears<T>(&mut self, of: u32, is: impl Fn(&Message) -> Option<T>) -> T {
        loop {
            let Received::Message(from, bytes) = self.0.receive(None).unwrap() else { continue };
            let messages = Message::from_bytes(&bytes).unwrap();
            if let Some(found) = messages.iter().filter(|_| from == NodeId(of)).find_map(&is) {
                return found;
            }
        }
    }
}

/// For how many nodes a hello is.
fn is_hello(message: &Message) -> Option<u32> {
    match message {
        Message::ToManager(ToManager::Hello(hello)) => Some(hello.nodes),
        _ => None,
    }
}

fn is_settled(message: &Message) -> Option<(u64, Option<String>)> {
    match message {
        Message::Settled(number, why) => Some((*number, why.clone())),
        _ => None,
    }
}

fn is_welcome(message: &Message) -> Option<()> {
    matches!(message, Message::ToNode(ToNode::Welcome { .. })).then_some(())
}

fn is_fenced(message: &Message) -> Option<()> {
    matches!(message, Message::ToNode(ToNode::Fenced { .. })).then_some(())
}

const EPOCH: Epoch = Epoch(7);
const WELCOME: Message = Message::ToNode(ToNode::Welcome { epoch: EPOCH, heartbeat: HEARTBEAT });
const DISMISSED: Message = Message::ToNode(ToNode::Dismissed { epoch: EPOCH });
const HEARTBEAT: Duration = Duration::from_secs(10);

fn hello() -> Message {
    Message::ToManager(ToManager::Hello(Hello::default()))
}

/// On a thread of its own.
fn alone(test: impl FnOnce(&dyn Task) + Send + 'static) {
    watched("it", || {
        let (_dir, path) = file(50_000, 7);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        test(&KernelTask::new(&Crc32c::new(), &input, None, &options(), &progress).unwrap());
    });
}

/// Peer 1 of four manages peer 3.
#[test]
fn a_group_has_settled_when_all_of_it_have() {
    let test = |first: &mut Scripted, mut node: Scripted| {
        let settle = |it: &Message| (*it == Message::Settle(5)).then_some(());
        for _ in 0..2 {
            first.say(1, &Message::Settle(5));
            node.hears(1, settle);
        }
        node.say(1, &Message::Settled(4, None));
        // Nothing of the group came up before.
        node.say(1, &Message::Settled(5, Some("the disk is full".to_owned())));
        let failed_by = |number| (number, Some("node 3: the disk is full".to_owned()));
        assert_eq!(first.hears(1, is_settled), failed_by(5));
        node.say(1, &Message::Settled(5, None));
        assert_eq!(first.hears(1, is_settled), (5, None));
        // Who is fenced may live, with what it put.
        let settle = |it: &Message| (*it == Message::Settle(6)).then_some(());
        first.say(1, &Message::Settle(6));
        node.hears(1, settle);
        node.0.send(NodeId(1), vec![1, 2, 3]).unwrap();
        node.hears(1, is_fenced);
        first.say(1, &Message::Settle(6));
        node.hears(1, settle);
        node.say(1, &Message::Settled(6, Some("the disk is full".to_owned())));
        assert_eq!(first.hears(1, is_settled), failed_by(6));
        // Who is lost is not waited for.
        drop(node);
        assert_eq!(first.hears(1, is_settled), (6, None));
    };
    alone(move |task| {
        let [first, peer, _other, node] = locals::<4>();
        let (mut first, mut node) = (Scripted(first), Scripted(node));
        thread::scope(|scope| {
            let run = move || faulty::run(Box::new(peer), &[task], &config(Some(2)));
            let group = scope.spawn(run);
            node.say(1, &hello());
            node.hears(1, is_welcome);
            assert_eq!(first.hears(1, is_hello), 2);
            first.say(1, &WELCOME);
            test(&mut first, node);
            first.say(1, &DISMISSED);
            assert!(group.join().unwrap().unwrap().is_none());
        });
    });
}

/// Peer 3 of eight is below peer 1, and manages peer 7.
#[test]
fn a_group_that_loses_its_manager_goes_on_with_the_first() {
    let test = |dies: bool| {
        alone(move |task| {
            let [first, above, _, peer, _, _, _, node] = locals::<8>();
            let [mut first, mut above, mut node] = [first, above, node].map(Scripted);
            thread::scope(|scope| {
                let run = move || faulty::run(Box::new(peer), &[task], &config(Some(2)));
                let group = scope.spawn(run);
                node.say(3, &hello());
                node.hears(3, is_welcome);
                assert_eq!(above.hears(3, is_hello), 2);
                above.say(3, &WELCOME);
                drop(above);
                assert_eq!(first.hears(3, is_hello), 2);
                first.say(3, &WELCOME);
                if dies {
                    drop(first);
                } else {
                    first.say(3, &DISMISSED);
                }
                // The group was let go by that alone.
                let is_told = |it: &Message| match it {
                    Message::ToNode(ToNode::Dismissed { .. }) => Some(true),
                    Message::ToNode(ToNode::Fenced { .. }) => Some(false),
                    _ => None,
                };
                assert!(node.hears(3, is_told));
                let ended = group.join().unwrap();
                assert_eq!(ended.is_err(), dies, "{ended:?}");
            });
        });
    };
    test(false);
    test(true);
}

/// As where only deadlines tell of a loss. Peer 1 of eight manages peer 3, which manages peer 7.
#[test]
fn who_finds_its_manager_lost_when_the_first_has_ended_ends_well() {
    alone(|task| {
        let [first, above, _, peer, _, _, _, last] = locals::<8>();
        let mut above = Scripted(above);
        let config = &Config { patience: Duration::from_millis(200), ..config(Some(2)) };
        thread::scope(|scope| {
            let peers = [peer, last]
                .map(|peer| scope.spawn(move || faulty::run(Box::new(peer), &[task], config)));
            assert_eq!(above.hears(3, is_hello), 2);
            Box::new(first).close(Instant::now()).unwrap();
            // This one says nothing more.
            let heartbeat = Duration::from_millis(20);
            above.say(3, &Message::ToNode(ToNode::Welcome { epoch: EPOCH, heartbeat }));
            for peer in peers {
                assert!(peer.join().unwrap().unwrap().is_none());
            }
        });
    });
    // One that manages none.
    alone(|task| {
        let [first, above, _, node] = locals::<4>();
        let mut above = Scripted(above);
        let config = &Config { patience: Duration::from_millis(200), ..config(Some(2)) };
        thread::scope(|scope| {
            let node = scope.spawn(move || faulty::run(Box::new(node), &[task], config));
            assert_eq!(above.hears(3, is_hello), 1);
            Box::new(first).close(Instant::now()).unwrap();
            assert!(node.join().unwrap().unwrap().is_none());
        });
    });
}

#[test]
fn what_the_first_cannot_read_of_another_manager_s_node_that_is_told() {
    alone(move |task| {
        let [first, other, third] = locals::<3>();
        let mut other = Scripted(other);
        thread::scope(|scope| {
            let run = move || faulty::run(Box::new(first), &[task], &config(None));
            let first = scope.spawn(run);
            other.0.send(NodeId(0), vec![1, 2, 3]).unwrap();
            other.hears(0, |it| (*it == Message::Unread).then_some(()));
            drop((other, third));
            first.join().unwrap().unwrap();
        });
    });
    // It begins anew.
    alone(move |task| {
        let [first, node] = locals::<2>();
        let mut first = Scripted(first);
        thread::scope(|scope| {
            let run = move || faulty::run(Box::new(node), &[task], &config(None));
            let node = scope.spawn(run);
            for message in [Message::Unread, DISMISSED] {
                assert_eq!(first.hears(1, is_hello), 1);
                first.say(1, &WELCOME);
                first.say(1, &message);
            }
            assert!(node.join().unwrap().unwrap().is_none());
        });
    });
}
