//! Jobs that are given while nodes serve, with parameters that nodes take from their manager.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cellway_cluster::drive::{self, Config, Queue, Ran, Ship, run_led, run_local_led};
use cellway_cluster::task::{KernelTask, RemoteTask, Task};
use cellway_cluster::transport::Endpoint;
use cellway_cluster::transport::local::endpoints;
use cellway_cluster::{JobError, NodeId};
use record::{Record, Records};
use storage::Input;
use stream::{Block, Effect, Kernel, KernelError, Options, Progress, Unit};

use crate::faulty::{self, Hook, Hooked, locals, watched};
use crate::{Sum, file, options};

/// Bytes near a mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Record)]
#[repr(C)]
struct Mean {
    at: u8,
    count: u64,
    sum: u64,
}

/// One round of k-means over bytes.
#[derive(Clone, Debug)]
struct Means(Vec<Mean>);

impl Means {
    fn at(places: &[u8]) -> Self {
        Self(places.iter().map(|at| Mean { at: *at, ..Mean::default() }).collect())
    }

    fn bytes(&self) -> Vec<u8> {
        self.parameters().unwrap()
    }

    /// Moved to the middle of what is nearest to each.
    fn moved(sums: &[Mean]) -> Self {
        let middle = |sum: &Mean| sum.sum.checked_div(sum.count).map_or(sum.at, |at| at as u8);
        Self::at(&sums.iter().map(middle).collect::<Vec<_>>())
    }
}

impl Kernel for Means {
    type Part = Vec<Mean>;
    type Header = ();

    fn name(&self) -> &str {
        "means"
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        (accelerators * self.0.len() * size_of::<Mean>()) as u64
    }

    fn part(&self, _accelerators: usize) -> Vec<Mean> {
        self.0.clone()
    }

    fn block(
        &self,
        _: &Unit<'_>,
        block: Block<'_>,
        sums: &mut Vec<Mean>,
    ) -> Result<(), KernelError> {
        for byte in block.data.iter() {
            let nearest = sums.iter_mut().min_by_key(|mean| mean.at.abs_diff(*byte)).unwrap();
            nearest.count += 1;
            nearest.sum += u64::from(*byte);
        }
        Ok(())
    }

    fn merge(&self, sums: &mut Vec<Mean>, later: Vec<Mean>) -> Result<(), KernelError> {
        for (sum, more) in sums.iter_mut().zip(later) {
            assert_eq!(sum.at, more.at);
            (sum.count, sum.sum) = (sum.count + more.count, sum.sum + more.sum);
        }
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(Records::of(&self.0).to_bytes())
    }

    fn with_parameters(&self, parameters: &[u8]) -> Result<Option<Self>, KernelError> {
        Ok(Some(Self(Records::from_bytes(parameters)?.get()?)))
    }

    fn save(&self, sums: &Vec<Mean>, out: &mut Vec<u8>) -> Result<(), KernelError> {
        out.extend(Records::of(sums).to_bytes());
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<Vec<Mean>, KernelError> {
        Ok(Records::from_bytes(saved)?.get()?)
    }
}

const ROUNDS: usize = 5;
const LEN: usize = 300_000;

fn start() -> Means {
    Means::at(&[1, 2, 200])
}

/// Where the means are after each round, on one machine.
fn alone(input: &Input, rounds: usize) -> Vec<Vec<Mean>> {
    let (mut means, progress) = (start(), Progress::default());
    let rounds = (0..rounds).map(|_| {
        let sums = stream::run(&means, input, None, &options(), &progress).unwrap().part;
        means = Means::moved(&sums);
        sums
    });
    rounds.collect()
}

/// The same, by jobs.
fn rounds(queue: &Queue<'_>, task: &KernelTask<'_, Means>, rounds: usize) -> Vec<Vec<Mean>> {
    let mut means = start();
    let rounds = (0..rounds).map(|_| {
        let job = queue.submit(0, Some(&means.bytes())).unwrap();
        let sums = task.result(queue.wait(job).unwrap()).unwrap();
        means = Means::moved(&sums);
        sums
    });
    rounds.collect()
}

#[test]
fn nodes_take_the_parameters_of_their_manager() {
    watched("it", || {
        let (_dir, path) = file(LEN, 11);
        let (input, progress) = (&Input::open(&path).unwrap(), &Progress::default());
        for fanout in [None, Some(2)] {
            // What the manager itself would do is no news.
            let config = &Config { fanout, manager_computes: false, ..Config::default() };
            let found = thread::scope(|scope| {
                let peers = endpoints(6).into_iter().map(|endpoint| {
                    let number = endpoint.own().0;
                    scope.spawn(move || {
                        let kernel =
                            if number == 0 { start() } else { Means::at(&[9, number as u8, 99]) };
                        let task =
                            KernelTask::new(&kernel, input, None, &options(), progress).unwrap();
                        let remote = RemoteTask::new(&kernel, "it", &options(), progress).unwrap();
                        let own: &dyn Task = if number == 5 { &remote } else { &task };
                        let Ran { report, unfit, refused, farewell, .. } =
                            drive::run(Box::new(endpoint), &[own], config).unwrap();
                        farewell.say().unwrap();
                        assert_eq!((unfit, refused.len()), (None, 0));
                        report.map(|mut report| {
                            task.result(report.results.remove(0).unwrap()).unwrap()
                        })
                    })
                });
                let peers: Vec<_> = peers.collect();
                peers.into_iter().filter_map(|peer| peer.join().unwrap()).collect::<Vec<_>>()
            });
            assert_eq!(found, alone(input, 1), "{fanout:?}");
        }
    });
}

#[test]
fn parameters_of_another_layout_or_size_are_refused_by_name() {
    /// As it was.
    #[derive(Clone, Copy, Record)]
    #[repr(C)]
    struct Old {
        at: u8,
        count: u32,
    }
    let (_dir, path) = file(LEN, 11);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let kernel = start();
    let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
    let old = Records::of(&[Old { at: 1, count: 2 }; 3]).to_bytes();
    let four = Means::at(&[1, 2, 3, 4]).bytes();
    let ran = run_local_led(2, &[&task], &Config::default(), |queue| {
        let refused = |task, parameters: &[u8], named: &str| {
            let why = queue.submit(task, Some(parameters)).unwrap_err().to_string();
            assert!(why.contains(named), "{why}");
        };
        refused(0, &old, "another layout");
        refused(0, &four, "by which memory is bounded");
        refused(1, &four, "fewer jobs");
    });
    ran.unwrap();
}

#[test]
fn jobs_depend_on_the_result_before_without_a_restart() {
    watched("it", || {
        let (_dir, path) = file(LEN, 11);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let (kernel, wanted) = (start(), alone(&input, ROUNDS));
        assert!(wanted[0] != wanted[1], "nothing moves");
        let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
        for (nodes, fanout, ship) in [
            (1, None, Ship::Auto),
            (3, None, Ship::Auto),
            (3, None, Ship::Bytes),
            (7, Some(2), Ship::Bytes),
        ] {
            let config = Config { fanout, ship, ..Config::default() };
            let (found, stats) =
                run_local_led(nodes, &[&task], &config, |queue| rounds(queue, &task, ROUNDS))
                    .unwrap();
            assert_eq!(found, wanted, "{nodes} {fanout:?} {ship:?}");
            assert!(!stats.is_empty());
        }
    });
}

/// More than a node or a group knows at a time.
#[test]
fn very_many_jobs_are_served() {
    watched("it", || {
        let (_dir, path) = file(3000, 11);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let options = Options { block_bytes: Some(512), ..options() };
        let kernel = start();
        let task = KernelTask::new(&kernel, &input, None, &options, &progress).unwrap();
        let task = task.lease_units(Some(1));
        for fanout in [None, Some(2)] {
            let config = Config { fanout, ..Config::default() };
            let lead = |queue: &Queue<'_>| {
                let all = (0..150).map(|number| {
                    let means = Means::at(&[number, number + 50, 255]);
                    (means.clone(), queue.submit(0, Some(&means.bytes())).unwrap())
                });
                // All of them at a time.
                for (means, job) in all.collect::<Vec<_>>() {
                    let found = task.result(queue.wait(job).unwrap()).unwrap();
                    let alone = stream::run(&means, &input, None, &options, &progress).unwrap();
                    assert_eq!(found, alone.part);
                }
                // It was told.
                let none = queue.wait(cellway_cluster::JobId(3)).unwrap_err();
                assert_eq!(none, JobError::Aborted);
            };
            run_local_led(5, &[&task], &config, lead).unwrap();
        }
    });
}

/// Adds bytes up. How many there are shows at what they share.
struct Shares(u8, Arc<()>);

impl Kernel for Shares {
    type Part = u64;
    type Header = ();

    fn name(&self) -> &str {
        "shares"
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn part(&self, _accelerators: usize) -> u64 {
        0
    }

    fn block(&self, _: &Unit<'_>, block: Block<'_>, sum: &mut u64) -> Result<(), KernelError> {
        *sum += block.data.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        Ok(())
    }

    fn merge(&self, sum: &mut u64, later: u64) -> Result<(), KernelError> {
        *sum += later;
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(vec![self.0])
    }

    fn with_parameters(&self, parameters: &[u8]) -> Result<Option<Self>, KernelError> {
        Ok(Some(Self(parameters[0], self.1.clone())))
    }

    fn save(&self, sum: &u64, out: &mut Vec<u8>) -> Result<(), KernelError> {
        out.extend(sum.to_le_bytes());
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<u64, KernelError> {
        stream::Saved::new(saved).u64()
    }
}

/// Else what was broadcast would stay for each.
#[test]
fn nodes_keep_few_jobs_that_are_over() {
    watched("it", || {
        let (_dir, path) = file(30_000, 11);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let wanted: u64 = std::fs::read(&path).unwrap().into_iter().map(u64::from).sum();
        let shared = Arc::new(());
        let kernel = Shares(0, shared.clone());
        let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
        let (most, _) = run_local_led(2, &[&task], &Config::default(), |queue| {
            let there = (1..60).map(|number| {
                let job = queue.submit(0, Some(&[number])).unwrap();
                assert_eq!(task.result(queue.wait(job).unwrap()).unwrap(), wanted);
                Arc::strong_count(&shared)
            });
            there.max()
        })
        .unwrap();
        // Of each node four, those of its leases, and what sessions have that end.
        assert!(most < Some(24), "{most:?}");
    });
}

/// Waits in its first unit until it is told to go on.
struct Waits {
    tell: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Kernel for Waits {
    type Part = ();
    type Header = ();

    fn name(&self) -> &str {
        "waits"
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn part(&self, _accelerators: usize) {}

    fn block(&self, unit: &Unit<'_>, _: Block<'_>, (): &mut ()) -> Result<(), KernelError> {
        if unit.index == 0 {
            let _ = self.tell.send(());
            let _ = self.go_on.lock().unwrap().recv();
        }
        Ok(())
    }

    fn merge(&self, (): &mut (), (): ()) -> Result<(), KernelError> {
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(Vec::new())
    }
}

#[test]
fn a_job_is_aborted_and_the_next_is_done() {
    watched("it", || {
        let (_dir, path) = file(LEN, 11);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let ((tell, told), (goes_on, go_on)) = (mpsc::channel(), mpsc::channel());
        let (waits, means) = (Waits { tell, go_on: Mutex::new(go_on) }, start());
        let waits = KernelTask::new(&waits, &input, None, &options(), &progress).unwrap();
        let task = KernelTask::new(&means, &input, None, &options(), &progress).unwrap();
        let tasks: [&dyn Task; 2] = [&task, &waits];
        let lead = move |queue: &Queue<'_>| {
            let hangs = queue.submit(1, None).unwrap();
            told.recv().unwrap();
            queue.abort(hangs);
            assert_eq!(queue.wait(hangs).unwrap_err(), JobError::Aborted);
            // Whoever was at it is free again.
            drop(goes_on);
            let job = queue.submit(0, None).unwrap();
            queue.wait(job).unwrap()
        };
        let (part, _) = run_local_led(2, &tasks, &Config::default(), lead).unwrap();
        assert_eq!(task.result(part).unwrap(), alone(&input, 1)[0]);
    });
}

#[test]
fn a_node_leaves_when_it_is_told_to_and_the_others_go_on() {
    watched("it", || {
        let (_dir, path) = file(LEN, 11);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let kernel = start();
        let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
        let (tasks, config) =
            (&[&task as &dyn Task], &Config { manager_computes: false, ..Config::default() });
        let [manager, first, second] = locals().map(Box::new);
        let (leave, left) = mpsc::channel();
        let (begin, begins) = mpsc::channel::<()>();
        let lead = move |queue: &Queue<'_>| {
            let job = || queue.wait(queue.submit(0, None).unwrap()).unwrap();
            let one = job();
            queue.leave(NodeId(1));
            left.recv().unwrap();
            begin.send(()).unwrap();
            [one, job()]
        };
        let found = thread::scope(|scope| {
            scope.spawn(move || {
                faulty::run(first, tasks, config).unwrap();
                leave.send(()).unwrap();
            });
            scope.spawn(move || {
                begins.recv().unwrap();
                faulty::run(second, tasks, config).unwrap();
            });
            let (ran, found) = run_led(manager, tasks, config, lead).unwrap();
            ran.farewell.say().unwrap();
            let counters = ran.report.unwrap().counters;
            assert_eq!((counters.joined, counters.lost), (2, 0), "{counters:?}");
            found.unwrap()
        });
        let wanted = alone(&input, 1);
        for part in found {
            assert_eq!(task.result(part).unwrap(), wanted[0]);
        }
    });
}

/// Where nobody can come, nobody is waited for.
#[test]
fn a_job_ends_at_once_when_the_last_node_has_left_or_was_refused() {
    watched("it", || {
        let (_dir, path) = file(LEN, 11);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let (kernel, sum) = (start(), Sum::whole());
        let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
        let other = KernelTask::new(&sum, &input, None, &options(), &progress).unwrap();
        let mut config = Config { manager_computes: false, ..Config::default() };
        config.manager.join_wait = Duration::from_secs(24 * 3600);
        let config = &config;
        for is_refused in [false, true] {
            let [manager, node] = locals().map(Box::new);
            let (leave, left) = mpsc::channel();
            let lead = move |queue: &Queue<'_>| {
                let early = queue.submit(0, None).unwrap();
                if !is_refused {
                    queue.wait(early).unwrap();
                    queue.leave(NodeId(1));
                }
                left.recv().unwrap();
                queue.wait(queue.submit(0, None).unwrap()).unwrap_err()
            };
            let (task, other): (&dyn Task, &dyn Task) = (&task, &other);
            thread::scope(|scope| {
                scope.spawn(move || {
                    let task = if is_refused { other } else { task };
                    faulty::run(node, &[task], config).unwrap();
                    leave.send(()).unwrap();
                });
                let (ran, error) = run_led(manager, &[task], config, lead).unwrap();
                ran.farewell.say().unwrap();
                let error = error.unwrap();
                assert!(matches!(error, JobError::NoNodes { .. }), "{error}");
            });
        }
    });
}

/// A loss ends all; tells for how long each is ready to wait at its end.
struct EndsAll(Sender<(NodeId, Duration)>);

impl Hook for EndsAll {
    fn ends_all(&self) -> bool {
        true
    }

    fn closes(&self, own: NodeId, until: Instant) -> bool {
        self.0.send((own, until.saturating_duration_since(Instant::now()))).unwrap();
        true
    }
}

#[test]
fn who_leaves_waits_for_the_first_one_where_it_would_end_it() {
    watched("it", || {
        let (_dir, path) = file(LEN, 11);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let kernel = start();
        let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
        let (tasks, config) = (&[&task as &dyn Task], &Config::default());
        let (tell, told) = mpsc::channel();
        let [manager, node] = locals().map(|end| Box::new(Hooked(end, EndsAll(tell.clone()))));
        let lead = move |queue: &Queue<'_>| {
            queue.leave(NodeId(1));
            // That is there to wait for.
            (told.recv().unwrap(), told)
        };
        let ((node, waits), told) = thread::scope(|scope| {
            scope.spawn(move || faulty::run(node, tasks, config).unwrap());
            let (ran, led) = run_led(manager, tasks, config, lead).unwrap();
            ran.farewell.say().unwrap();
            led.unwrap()
        });
        assert!(node == NodeId(1) && waits > Duration::from_secs(24 * 3600), "{waits:?}");
        let (manager, waits) = told.recv().unwrap();
        assert!(manager == NodeId(0) && waits <= config.linger, "{waits:?}");
    });
}
