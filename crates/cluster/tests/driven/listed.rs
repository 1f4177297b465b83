//! Each fault that was thought of, alone.

use std::sync::mpsc::{self, Receiver};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use cellway_cluster::drive::{self, ClusterError, Config, MANAGER, Report, run_local};
use cellway_cluster::node::Left;
use cellway_cluster::task::{KernelTask, Task};
use cellway_cluster::transport::local::Local;
use cellway_cluster::transport::{Endpoint, Received, TransportError};
use cellway_cluster::{
    Epoch, Hello, JobError, Lease, LeaseId, Message, NodeId, ToManager, ToNode, manager,
};
use kernels::{Blake3, Crc32c};
use storage::Input;
use stream::Progress;

use crate::faulty::{Ended, Faults, Faulty, Random, Watched, locals, run, watched};
use crate::{Sum, file, options};

const UNIT: usize = 4096;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn config(manager: manager::Config) -> Config {
    Config { manager, manager_computes: false, ..Config::default() }
}

/// What `peers` make of a sum over so many units, each with a task of its own; and what it is.
fn sums<const N: usize>(
    units: usize,
    kernels: [Sum; N],
    peers: impl FnOnce([&dyn Task; N]) -> Vec<Ended>,
) -> (Vec<Ended>, u64) {
    let (_dir, path) = file(units * UNIT, 9);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let tasks = kernels.each_ref().map(|kernel| {
        KernelTask::new(kernel, &input, None, &options(), &progress).unwrap().lease_units(Some(1))
    });
    let wanted = std::fs::read(&path).unwrap().into_iter().map(u64::from).sum();
    (peers(tasks.each_ref().map(|task| task as &dyn Task)), wanted)
}

/// Runs peers on threads, each by its endpoint.
fn threads<const N: usize>(
    tasks: [&dyn Task; N],
    endpoints: [Box<dyn Endpoint>; N],
    configs: [Config; N],
) -> Vec<Ended> {
    thread::scope(|scope| {
        let peers = tasks.into_iter().zip(endpoints).zip(configs);
        let peers: Vec<_> = peers
            .map(|((task, endpoint), config)| scope.spawn(move || run(endpoint, &[task], &config)))
            .collect();
        peers.into_iter().map(|peer| peer.join().unwrap()).collect()
    })
}

fn boxed<const N: usize>() -> [Box<dyn Endpoint>; N] {
    locals().map(|local: Local| Box::new(local) as Box<dyn Endpoint>)
}

fn report(ended: &mut Vec<Ended>) -> Report {
    ended.remove(0).unwrap().unwrap()
}

/// The sum that the manager reports.
#[track_caller]
fn found(report: &mut Report) -> u64 {
    *report.results.remove(0).unwrap().unwrap().downcast::<u64>().unwrap()
}

#[test]
fn a_node_of_another_build_is_refused_by_name() {
    watched("it", || {
        let mut said = None;
        let (mut ended, wanted) = sums(9, [(); 3].map(|()| Sum::whole()), |[one, two, three]| {
            let config = config(manager::Config::default());
            let hello = Hello { build: "of yesterday".to_owned(), ..Hello::default() };
            let refused = &Config { hello, ..config.clone() };
            let [manages, node, other] = boxed();
            thread::scope(|scope| {
                let other = scope.spawn(move || drive::run(other, &[three], refused).unwrap());
                let ended = threads([one, two], [manages, node], [config.clone(), config]);
                said = other.join().unwrap().unfit;
                ended
            })
        });
        let mut report = report(&mut ended);
        assert_eq!((found(&mut report), report.counters.refused), (wanted, 1));
        // The others do without it, so it is no failure that ends them.
        let why = said.unwrap();
        assert!(why.starts_with("node 2: ") && why.contains("this node of yesterday"), "{why}");
    });
}

#[test]
fn there_is_room_for_all_peers() {
    watched("it", || {
        let (mut ended, wanted) = sums(9, [(); 3].map(|()| Sum::whole()), |tasks| {
            let of_one = manager::Config { nodes_max: 1, ..manager::Config::default() };
            threads(tasks, boxed(), [(); 3].map(|()| config(of_one.clone())))
        });
        let mut report = report(&mut ended);
        assert_eq!((found(&mut report), report.counters.refused), (wanted, 0));
    });
}

/// How a job ends of whose two nodes one would do `other`, and the second too unless it `fits`.
fn unfit(other: &(dyn Task + '_), manages: &dyn Task, fits: bool) -> Report {
    let config =
        config(manager::Config { join_wait: Duration::from_secs(2), ..Default::default() });
    let task = if fits { manages } else { other };
    let mut ended =
        threads([manages, other, task], boxed(), [config.clone(), config.clone(), config]);
    report(&mut ended)
}

#[test]
fn a_node_with_another_kernel_does_nothing_and_says_what_differs() {
    watched("it", || {
        let (_dir, path) = file(20 * UNIT, 9);
        let (_other_dir, other_path) = file(21 * UNIT, 9);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let other_input = Input::open(&other_path).unwrap();
        let (crc, blake) = (Crc32c::new(), Blake3::new());
        let task = KernelTask::new(&crc, &input, None, &options(), &progress).unwrap();
        let kernel = KernelTask::new(&blake, &input, None, &options(), &progress).unwrap();
        let data = KernelTask::new(&crc, &other_input, None, &options(), &progress).unwrap();
        for (other, named) in [
            (&kernel as &dyn Task, "the manager's kernel is crc32c, this node's blake3"),
            (&data, "length in bytes of"),
        ] {
            assert!(unfit(other, &task, true).results.remove(0).unwrap().is_some());
            let error = unfit(other, &task, false).results.remove(0).unwrap_err();
            let JobError::NoNodes { said: Some(why), .. } = &error else { panic!("{error}") };
            assert!(why.starts_with("node ") && why.contains(named), "{why}");
        }
    });
}

/// Leases are not lost, nor given to others, because of a pause.
#[test]
fn a_pause_is_held_against_nobody() {
    watched("it", || {
        let (_dir, path) = file(9 * UNIT, 9);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let kernel = Sum::whole();
        let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
        let times =
            manager::Config { lease_max: ms(2000), overdue: ms(1000), ..Default::default() };
        let control = progress.control();
        control.pause();
        let (mut report, _) = thread::scope(|scope| {
            scope.spawn(|| {
                while control.paused() < ms(4000) {
                    thread::park_timeout(ms(10));
                }
                control.resume();
            });
            let config = Config { manager: times, ..Config::default() };
            run_local(3, &[&task as &dyn Task], &config).unwrap()
        });
        found(&mut report);
        let manager::Counters { lost, given_again, .. } = report.counters;
        assert_eq!((lost, given_again), (0, 0), "{:?}", report.counters);
    });
}

/// A node by hand: answers each lease as `answers` says.
fn by_hand(mut endpoint: Local, mut answers: impl FnMut(Epoch, Lease) -> Vec<Message>) {
    endpoint.send(MANAGER, hello().to_bytes()).unwrap();
    let mut in_all = 0;
    loop {
        let Received::Message(_, bytes) = endpoint.receive(None).unwrap() else { return };
        for message in Message::from_bytes(&bytes).unwrap() {
            let Message::ToNode(message) = message else { continue };
            let epoch = match message {
                ToNode::Welcome { epoch, .. } => {
                    in_all = 0;
                    epoch
                }
                ToNode::Lease { epoch, lease } => {
                    for answer in answers(epoch, lease) {
                        endpoint.send(MANAGER, answer.to_bytes()).unwrap();
                    }
                    epoch
                }
                ToNode::Dismissed { .. } => return,
                _ => continue,
            };
            in_all += 1;
            endpoint.send(MANAGER, ask(epoch, in_all).to_bytes()).unwrap();
        }
    }
}

fn hello() -> Message {
    Message::ToManager(ToManager::Hello(Hello { buffers: 1, ..Hello::default() }))
}

fn ask(epoch: Epoch, in_all: u64) -> Message {
    Message::ToManager(ToManager::Ask { epoch, in_all })
}

fn result(epoch: Epoch, Lease { id: lease, units, .. }: Lease, result: &[u8]) -> Message {
    let result = result.to_vec().into();
    Message::ToManager(ToManager::Result { epoch, lease, units, result })
}

/// A manager alone with a node by hand that adds units up and tells that as `answers` says.
fn with_hand(
    units: usize,
    mut answers: impl FnMut(Epoch, Lease, &[u8]) -> Vec<Message> + Send,
) -> (Report, u64) {
    let (mut ended, wanted) = sums(units, [Sum::whole()], |[task]| {
        let (_dir, path) = file(units * UNIT, 9);
        let bytes = std::fs::read(path).unwrap();
        let [manager, node] = locals();
        thread::scope(|scope| {
            scope.spawn(move || {
                by_hand(node, |epoch, lease| {
                    let from = lease.first as usize * UNIT;
                    let data = &bytes[from..from + lease.units as usize * UNIT];
                    let sum: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
                    answers(epoch, lease, &sum.to_le_bytes())
                });
            });
            vec![run(Box::new(manager), &[task], &config(manager::Config::default()))]
        })
    });
    (report(&mut ended), wanted)
}

#[test]
fn what_comes_twice_or_was_never_given_counts_once_or_not() {
    watched("it", || {
        let (mut report, wanted) = with_hand(8, |epoch, lease, sum| {
            let never = result(epoch, Lease { id: LeaseId(u64::MAX), ..lease }, sum);
            vec![
                never,
                result(Epoch(0), lease, sum),
                result(epoch, lease, sum),
                result(epoch, lease, sum),
            ]
        });
        assert_eq!(found(&mut report), wanted);
        assert_eq!(report.counters.results, 8);
        // The last one's second may come when all is over.
        assert!(report.counters.results_dropped >= 8 * 3 - 1, "{:?}", report.counters);
        assert!(report.counters.stale >= 8, "{:?}", report.counters);
    });
}

#[test]
fn what_an_earlier_membership_found_comes_too_late() {
    watched("it", || {
        let mut is_first = true;
        let (mut report, wanted) = with_hand(8, |epoch, lease, sum| {
            let late = result(epoch, lease, sum);
            if std::mem::take(&mut is_first) { vec![hello(), late] } else { vec![late] }
        });
        assert_eq!(found(&mut report), wanted);
        let counters = report.counters;
        assert_eq!((counters.results, counters.lost, counters.given_again), (8, 1, 1));
        assert!(counters.results_dropped >= 1);
    });
}

#[test]
fn a_result_of_another_size_ends_its_job_by_name() {
    watched("it", || {
        for units in [1, 8] {
            let (mut report, _) =
                with_hand(units, |epoch, lease, _| vec![result(epoch, lease, &[1, 2, 3])]);
            let error = report.results.remove(0).unwrap_err();
            let (JobError::Result { what } | JobError::Merge { what }) = error else {
                panic!("{error}")
            };
            assert!(what.contains("no sum"), "{what}");
        }
    });
}

#[test]
fn a_unit_that_fails_is_tried_three_times_by_all_nodes_together() {
    watched("it", || {
        for panics in [false, true] {
            let kernels = [(); 4].map(|()| Sum { panics, ..Sum::fails(5, 100) });
            let mut tried = 0;
            let (mut ended, _) = sums(20, kernels, |tasks| {
                let config = config(manager::Config::default());
                threads(tasks, boxed(), [(); 4].map(|()| config.clone()))
            });
            let report = report(&mut ended);
            tried += report.counters.failures;
            let error = report.results.into_iter().next().unwrap().unwrap_err();
            let JobError::Unit { unit: 5, tries: 3, what, offset } = &error else {
                panic!("{error}")
            };
            // Of a panic it is known which unit it was.
            assert_eq!(*offset, Some(5 * 4096 + if panics { 0 } else { 5 }));
            assert!(what.contains("a bad byte"), "{what}");
            assert_eq!(tried, 3);
            // The nodes that saw it go on.
            assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        }
    });
}

/// Waits for so many words.
fn wait(told: &Receiver<()>, many: usize) {
    told.iter().take(many).for_each(drop);
}

#[test]
fn a_node_that_was_stopped_is_fenced_and_joins_anew() {
    watched("it", || {
        let (mut ended, wanted) = sums(9, [Sum::whole(), Sum::whole()], |tasks| {
            let [manager, node] = locals();
            let (fence, fenced) = mpsc::channel();
            let manager = Watched::boxed(
                manager,
                move |_, message| {
                    if matches!(message, Message::ToNode(ToNode::Fenced { .. })) {
                        let _ = fence.send(());
                    }
                },
                || {},
            );
            let ((ask, asks), mut asked) = (mpsc::channel(), 0);
            let node = Watched::boxed(
                node,
                move |_, message| {
                    if matches!(message, Message::ToManager(ToManager::Ask { .. })) {
                        let _ = ask.send(());
                    }
                },
                move || {
                    asked += usize::from(asks.try_recv().is_ok());
                    // Once, when it has asked for work.
                    if asked == 1 {
                        asked += 1;
                        wait(&fenced, 1);
                    }
                },
            );
            let config =
                config(manager::Config { deadline: ms(100), ..manager::Config::default() });
            threads(tasks, [manager, node], [config.clone(), config])
        });
        let mut report = report(&mut ended);
        assert_eq!(found(&mut report), wanted);
        assert!(report.counters.lost >= 1 && report.counters.joined >= 2, "{:?}", report.counters);
        assert!(ended[0].is_ok(), "{ended:?}");
    });
}

#[test]
fn a_manager_that_was_stopped_has_its_nodes_when_it_goes_on() {
    watched("it", || {
        let (mut ended, wanted) = sums(9, [(); 3].map(|()| Sum::whole()), |tasks| {
            let [manager, one, two] = locals();
            let (hello, hellos) = mpsc::channel();
            let node = |node: Local| {
                let (hello, (beat, beats)) = (hello.clone(), mpsc::channel());
                let sends = move |_, message| match message {
                    Message::ToManager(ToManager::Hello(_)) => {
                        let _ = hello.send(());
                    }
                    Message::ToManager(ToManager::Alive { .. }) => {
                        let _ = beat.send(());
                    }
                    _ => {}
                };
                (Watched::boxed(node, sends, || {}), beats)
            };
            let ((one, of_one), (two, of_two)) = (node(one), node(two));
            let (welcome, welcomes) = mpsc::channel();
            let sends = move |_, message| {
                if matches!(message, Message::ToNode(ToNode::Welcome { .. })) {
                    let _ = welcome.send(());
                }
            };
            let mut joined = None;
            let receives = move || {
                if joined.is_none() {
                    wait(&hellos, 2);
                }
                let before = joined.unwrap_or(0);
                let after = before + welcomes.try_iter().count();
                joined = Some(after);
                // Once both are members, it stands still for longer than the deadline.
                if before < 2 && after >= 2 {
                    wait(&of_one, 6);
                    wait(&of_two, 6);
                }
            };
            let manager = Watched::boxed(manager, sends, receives);
            let config =
                config(manager::Config { deadline: ms(1000), ..manager::Config::default() });
            threads(tasks, [manager, one, two], [(); 3].map(|()| config.clone()))
        });
        let mut report = report(&mut ended);
        assert_eq!((found(&mut report), report.counters.lost), (wanted, 0));
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    });
}

/// A manager's endpoint to one node, of which something comes whenever nothing came
/// until something was due: it is there, but the manager is awake later.
struct Late {
    to: Local,
    said: Vec<Message>,
    epoch: Option<Epoch>,
    beats: u32,
    lease: Option<Lease>,
}

impl Endpoint for Late {
    fn own(&self) -> NodeId {
        MANAGER
    }

    fn peers(&self) -> u32 {
        2
    }

    fn send(&mut self, _: NodeId, message: Vec<u8>) -> Result<(), TransportError> {
        for message in Message::from_bytes(&message).unwrap() {
            match message {
                Message::ToNode(ToNode::Welcome { epoch, .. }) => {
                    self.epoch = Some(epoch);
                    self.said.push(ask(epoch, 1));
                }
                Message::ToNode(ToNode::Lease { lease, .. }) => self.lease = Some(lease),
                _ => {}
            }
        }
        Ok(())
    }

    fn receive(&mut self, until: Option<Instant>) -> Result<Received, TransportError> {
        if let Some(message) = self.said.pop() {
            return Ok(Received::Message(NodeId(1), message.to_bytes()));
        }
        let late = until.filter(|until| *until > Instant::now());
        if let (Some(until), Some(epoch)) = (late, self.epoch) {
            // Nobody says anything, though this peer may be woken.
            while Instant::now() < until {
                self.to.receive(Some(until))?;
            }
            self.beats += 1;
            self.said.push(match self.lease {
                Some(lease) if self.beats > 3 => result(epoch, lease, &[0; 8]),
                _ => Message::ToManager(ToManager::Alive { epoch }),
            });
        }
        Ok(Received::Nothing)
    }

    fn waker(&self) -> Waker {
        self.to.waker()
    }

    fn close(self: Box<Self>, _: Instant) -> Result<(), TransportError> {
        Ok(())
    }
}

#[test]
fn what_came_before_that_which_is_due_is_told_first() {
    watched("it", || {
        let (mut ended, _) = sums(1, [Sum::whole()], |[task]| {
            let [to] = locals();
            let said = vec![hello()];
            let late = Late { to, said, epoch: None, beats: 0, lease: None };
            let config =
                config(manager::Config { deadline: ms(200), ..manager::Config::default() });
            vec![run(Box::new(late), &[task], &config)]
        });
        let mut report = report(&mut ended);
        assert_eq!((found(&mut report), report.counters.lost), (0, 0));
    });
}

#[test]
fn nodes_say_hello_until_their_manager_starts() {
    watched("it", || {
        let (mut ended, wanted) = sums(9, [Sum::whole(), Sum::whole()], |tasks| {
            let [manager, node] = locals();
            let (said, hellos) = mpsc::channel();
            let node = Watched::boxed(
                node,
                move |_, _| {
                    let _ = said.send(());
                },
                || {},
            );
            let manager = Watched::boxed(manager, |_, _| {}, || {});
            let config = Config { patience: ms(4000), ..config(manager::Config::default()) };
            thread::scope(|scope| {
                let (task, of_node) = (tasks[1], &config);
                let node = scope.spawn(move || run(node, &[task], of_node));
                wait(&hellos, 3);
                vec![run(manager, &[tasks[0]], &config), node.join().unwrap()]
            })
        });
        let mut report = report(&mut ended);
        assert_eq!(found(&mut report), wanted);
        assert_eq!((report.counters.joined, report.counters.lost), (1, 0));
    });
}

#[test]
fn a_node_whose_manager_never_says_anything_leaves() {
    watched("it", || {
        let (mut ended, _) = sums(1, [Sum::whole()], |[task]| {
            let [mut manager, node] = locals();
            let config = Config { patience: ms(80), ..Config::default() };
            let ended = run(Box::new(node), &[task], &config);
            // It does not wait to be missed.
            while manager.receive(None).unwrap() != Received::Left(NodeId(1)) {}
            vec![ended]
        });
        let left = ended.remove(0).unwrap_err();
        assert!(matches!(left, ClusterError::Left { why: Left::Lost, .. }), "{left}");
    });
}

/// As one that was stopped while the others did all.
#[test]
fn a_node_whose_manager_has_ended_leaves_as_if_it_were_told() {
    watched("it", || {
        let (mut ended, _) = sums(1, [Sum::whole()], |[task]| {
            let [manager, node] = locals();
            Box::new(manager).close(Instant::now()).unwrap();
            let [lost, other] = locals();
            drop::<Local>(lost);
            [node, other].map(|node| run(Box::new(node), &[task], &Config::default())).into()
        });
        let lost = ended.remove(1).unwrap_err();
        assert!(matches!(lost, ClusterError::Left { why: Left::Lost, .. }), "{lost}");
        assert!(ended.remove(0).unwrap().is_none());
    });
}

#[test]
fn a_job_whose_nodes_are_all_lost_ends_by_name() {
    watched("it", || {
        let (mut ended, _) = sums(50, [(); 3].map(|()| Sum::whole()), |tasks| {
            let endpoints = locals().map(|local: Local| -> Box<dyn Endpoint> {
                // Those that compute die as soon as they have asked for work.
                let dies_after = (local.own() != MANAGER).then_some(5);
                let faults = Faults { dies_after, ..Faults::default() };
                Box::new(Faulty::new(local, faults, Random(0)))
            });
            // Nobody waits for others where none can come.
            let config = config(manager::Config { join_wait: ms(u64::MAX), ..Default::default() });
            threads(tasks, endpoints, [(); 3].map(|()| config.clone()))
        });
        let mut report = report(&mut ended);
        let error = report.results.remove(0).unwrap_err();
        assert!(matches!(error, JobError::NoNodes { .. }), "{error}");
        assert!(ended.iter().all(|ended| matches!(ended, Err(ClusterError::Transport(_)))));
    });
}

#[test]
fn no_units_are_done_at_once_and_one_unit_by_one_of_many_nodes() {
    watched("it", || {
        for (units, some) in [(0, false), (1, true)] {
            let (_dir, path) = file(units * UNIT, 9);
            let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
            let kernel = Sum::whole();
            let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
            let (mut report, _) = run_local(6, &[&task], &Config::default()).unwrap();
            assert_eq!(report.results.remove(0).unwrap().is_some(), some);
            assert_eq!(report.counters.results, units as u64);
        }
    });
}

#[test]
fn a_merge_that_panics_ends_its_job_by_name() {
    watched("it", || {
        let kernel = Sum { merge_panics: true, ..Sum::whole() };
        let (mut ended, _) = sums(8, [kernel], |[task]| {
            let [manager] = locals();
            vec![run(Box::new(manager), &[task], &Config::default())]
        });
        let error = report(&mut ended).results.remove(0).unwrap_err();
        assert!(matches!(error, JobError::Merge { .. }), "{error}");
        assert!(error.to_string().contains("a merge panicked: too large"), "{error}");
    });
}
