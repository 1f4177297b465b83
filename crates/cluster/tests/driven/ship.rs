//! Units that the manager sends, beside those that nodes read for themselves.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use cellway_cluster::drive::{Config, MANAGER, Report, Ship, run_local};
use cellway_cluster::task::{KernelTask, RemoteTask, Task};
use cellway_cluster::transport::local::endpoints;
use cellway_cluster::transport::{Endpoint, Received};
use cellway_cluster::{
    Epoch, Hello, JobError, JobId, LeaseId, Message, ToManager, ToNode, manager,
};
use kernels::{Aes128Ecb, Blake3, Crc32c, Finish, Histogram, LinReg, PairType, WordCount};
use proptest::prelude::*;
use storage::{Input, Output};
use stream::{Block, Body, Effect, Head, Kernel, KernelError, Options, Progress, Unit};

use crate::faulty::{Ended, Watched, locals, run, watched};
use crate::{file, options, text};

pub(crate) fn config(ship: Ship) -> Config {
    let manager = manager::Config { join_wait: Duration::from_secs(2), ..Default::default() };
    Config { manager, manager_computes: false, ship, ..Config::default() }
}

/// What a manager that does not compute and `nodes` nodes make of it, each of which has
/// no input; and how many bytes of it were sent.
pub(crate) fn remote<K: Kernel<Part: 'static>>(
    kernel: &K,
    manages: &dyn Task,
    (nodes, options): (u32, &Options),
    config: &Config,
) -> (Ended, u64) {
    let (sent, progress) = (Arc::new(AtomicU64::new(0)), Progress::default());
    let mut endpoints = endpoints(nodes + 1).into_iter();
    let sees = sent.clone();
    let sends = move |_, message| {
        if let Message::Fetched { bytes: Ok(bytes), .. } = message {
            sees.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        }
    };
    let first = Watched::boxed(endpoints.next().unwrap(), sends, || {});
    let ended = thread::scope(|scope| {
        for endpoint in endpoints {
            let progress = &progress;
            scope.spawn(move || {
                let task = RemoteTask::new(kernel, "theirs", options, progress).unwrap();
                run(Box::new(endpoint), &[&task], config).unwrap();
            });
        }
        run(first, &[manages], config)
    });
    (ended, sent.load(Ordering::SeqCst))
}

/// The result on one machine, and on nodes that have no input.
fn both<K: Finish<Part: 'static>>(
    kernel: &K,
    path: &Path,
    nodes: u32,
    config: &Config,
) -> (String, String) {
    let (input, progress) = (Input::open(path).unwrap(), Progress::default());
    let one = stream::run(kernel, &input, None, &options(), &progress).unwrap();
    let task = KernelTask::new(kernel, &input, None, &options(), &progress).unwrap();
    let body_bytes = task.description().body.1;
    let (report, sent) = remote(kernel, &task, (nodes, &options()), config);
    let Report { mut results, counters, .. } = report.unwrap().unwrap();
    assert_eq!((counters.lost, counters.refused), (0, 0), "{counters:?}");
    assert!(sent >= body_bytes, "{sent} bytes were sent of {body_bytes}");
    let part = task.result(results.remove(0).unwrap()).unwrap();
    (text(kernel, one.part), text(kernel, part))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn nodes_without_the_input_find_what_one_machine_finds(
        len in 0..2_000_000_usize, nodes in 1..7_u32, asked in any::<bool>(), is_tree in any::<bool>(),
    ) {
        let config = config(if asked { Ship::Bytes } else { Ship::Auto });
        let config = &Config { fanout: is_tree.then_some(2), ..config };
        let (_dir, path) = file(len, len as u64);
        let (one, many) = both(&Blake3::new(), &path, nodes, config);
        prop_assert_eq!(one, many);
        let (_dir, path) = file(len / 4 * 4, len as u64);
        let (one, many) = both(&LinReg::new(PairType::I16), &path, nodes, config);
        prop_assert_eq!(one, many);
        // Words that lie across two units.
        let (dir, path) = file(len / 8, len as u64);
        let letters: Vec<u8> =
            std::fs::read(&path).unwrap().iter().map(|byte| b"abcdefg "[*byte as usize % 8]).collect();
        std::fs::write(&path, letters).unwrap();
        let (one, many) = both(&WordCount::new(dir.path().to_owned()), &path, nodes, config);
        prop_assert_eq!(one, many);
    }

    #[test]
    fn threads_are_sent_their_units_if_that_is_asked_for(len in 0..1_000_000_usize, nodes in 1..4_u32) {
        let (_dir, path) = file(len, len as u64);
        let (input, progress, kernel) = (Input::open(&path).unwrap(), Progress::default(), Crc32c::new());
        let one = stream::run(&kernel, &input, None, &options(), &progress).unwrap();
        let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
        let config = Config { ship: Ship::Bytes, ..Config::default() };
        let (mut report, _) = run_local(nodes, &[&task], &config).unwrap();
        let part = task.result(report.results.remove(0).unwrap()).unwrap();
        prop_assert_eq!(text(&kernel, one.part), text(&kernel, part));
    }
}

#[test]
fn a_header_is_sent_with_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.bmp");
    std::fs::write(&path, crate::bitmap()).unwrap();
    let (one, many) = both(&Histogram, &path, 2, &config(Ship::Bytes));
    assert_eq!(one, many);
}

#[test]
fn what_is_made_of_sent_units_goes_to_the_output_or_nowhere() {
    let (dir, path) = file(300_000 / 16 * 16, 7);
    let (input, progress, kernel) =
        (Input::open(&path).unwrap(), Progress::default(), Aes128Ecb::default());
    let [one, many] = [1, 2].map(|run| dir.path().join(run.to_string()));
    let how = storage::Options::default();
    let output = Output::create(&one, &how).unwrap();
    stream::run(&kernel, &input, Some(&output), &options(), &progress).unwrap();
    output.commit(false).unwrap();
    let output = Output::create_shared(&many, &how).unwrap();
    let task = KernelTask::new(&kernel, &input, Some(&output), &options(), &progress).unwrap();
    let (report, _) = remote(&kernel, &task, (2, &options()), &config(Ship::Bytes));
    assert!(report.unwrap().unwrap().results.remove(0).unwrap().is_none());
    drop(task);
    output.commit(false).unwrap();
    assert!(std::fs::read(one).unwrap() == std::fs::read(many).unwrap());
    // One that has no name.
    let output = Output::create(&dir.path().join("3"), &how).unwrap();
    let task = KernelTask::new(&kernel, &input, Some(&output), &options(), &progress).unwrap();
    let (report, _) = remote(&kernel, &task, (2, &options()), &config(Ship::Bytes));
    let error = report.unwrap().unwrap().results.remove(0).unwrap_err().to_string();
    assert!(error.contains("OUTPUT that this node cannot reach"), "{error}");
}

#[test]
fn who_must_read_and_cannot_is_told_so() {
    let (_dir, path) = file(50_000, 7);
    let (input, progress, kernel) =
        (Input::open(&path).unwrap(), Progress::default(), Crc32c::new());
    let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
    for (nodes, fanout) in [(1, None), (7, Some(2))] {
        let config = |ship| Config { fanout, ..config(ship) };
        let why = |(report, sent): (Ended, u64)| {
            assert_eq!(sent, 0);
            report.unwrap().unwrap().results.remove(0).unwrap_err().to_string()
        };
        let of = (nodes, &options());
        let error = why(remote(&kernel, &task, of, &config(Ship::Locators)));
        assert!(error.contains("cannot be sent") && error.contains("--ship locators"), "{error}");
        // Another kernel is none of its business either.
        let error = why(remote(&Blake3::new(), &task, of, &config(Ship::Auto)));
        assert!(error.contains("the manager's kernel is crc32c, this node's blake3"), "{error}");
    }
}

#[test]
fn an_input_that_the_manager_cannot_read_any_more_ends_the_job() {
    let (_dir, path) = file(50_000, 7);
    let (input, progress, kernel) =
        (Input::open(&path).unwrap(), Progress::default(), Crc32c::new());
    let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
    std::fs::write(&path, vec![0; 60_000]).unwrap();
    let (report, _) = remote(&kernel, &task, (2, &options()), &config(Ship::Bytes));
    let error = report.unwrap().unwrap().results.remove(0).unwrap_err();
    let JobError::Unit { unit, offset: Some(offset), .. } = &error else { panic!("{error}") };
    assert_eq!(*offset, unit * 4096);
    assert!(error.to_string().contains("went from 50000 to 60000 bytes"), "{error}");
}

/// A node that asks for what there is not, or for too much, is told so. Which bytes of the input it
/// wants is its own affair.
#[test]
fn only_bytes_of_a_job_are_sent() {
    watched("it", || {
        let (_dir, path) = file(50_000, 7);
        let (input, progress, kernel) =
            (Input::open(&path).unwrap(), Progress::default(), Crc32c::new());
        let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
        let task = task.lease_units(Some(1));
        let [first, mut node] = locals::<2>();
        thread::scope(|scope| {
            let config = config(Ship::Bytes);
            let task: &dyn Task = &task;
            let manager = scope.spawn(move || run(Box::new(first), &[task], &config));
            let mut say = |message: Message| node.send(MANAGER, message.to_bytes()).unwrap();
            say(Message::ToManager(ToManager::Hello(Hello::default())));
            say(Message::Fetch { job: JobId(77), lease: LeaseId(77), offset: 0, len: 10 });
            let mut answers = Vec::new();
            let mut epoch = Epoch(0);
            while let Received::Message(_, bytes) = node.receive(None).unwrap() {
                let mut say = |message: Message| node.send(MANAGER, message.to_bytes()).unwrap();
                for message in Message::from_bytes(&bytes).unwrap() {
                    match message {
                        Message::ToNode(ToNode::Welcome { epoch: own, .. }) => {
                            epoch = own;
                            say(Message::ToManager(ToManager::Ask { epoch, in_all: 1 }));
                        }
                        Message::ToNode(ToNode::Lease { lease, .. }) => {
                            let (job, lease) = (lease.job, lease.id);
                            say(Message::Fetch { job, lease, offset: 0, len: 1 << 40 });
                            say(Message::Fetch { job, lease, offset: 49_999, len: 2 });
                            say(Message::Fetch { job, lease, offset: u64::MAX, len: 2 });
                            say(Message::Fetch { job, lease, offset: 9, len: 3 });
                        }
                        Message::Fetched { lease, offset, bytes } => {
                            answers.push((lease, offset, bytes))
                        }
                        _ => {}
                    }
                }
                if answers.len() == 5 {
                    break;
                }
            }
            say_all(&mut node, epoch);
            assert!(manager.join().unwrap().unwrap().unwrap().results[0].is_err());
            answers.sort_by_key(|(lease, offset, _)| (lease.0 != 77, *offset));
            let [none, long, some, over, beyond] = answers.try_into().unwrap();
            assert!(none.2.unwrap_err().contains("nobody waits"));
            assert!(long.2.unwrap_err().contains("are more than"));
            assert_eq!(some.2.unwrap(), std::fs::read(&path).unwrap()[9..12]);
            assert!(over.2.is_err() && beyond.2.is_err());
        });
    });
}

/// Leaves, for it can do nothing.
fn say_all(node: &mut impl Endpoint, epoch: Epoch) {
    let unfit = ToManager::Unfit { epoch, why: "it was a test".to_owned() };
    node.send(MANAGER, Message::ToManager(unfit).to_bytes()).unwrap();
}

#[test]
fn a_lease_that_is_sent_fits_its_buffer() {
    let (_dir, path) = file(1000 * 4096, 5);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let kernel = Crc32c::new();
    let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
    // Four units for two buffers; and less than one.
    for (sent_bytes, leases) in [(4 * 4096, 500), (1, 1000)] {
        for ship in [Ship::Auto, Ship::Bytes] {
            let config = Config { sent_bytes: Some(sent_bytes), ..config(ship) };
            let (ended, _) = remote(&kernel, &task, (2, &options()), &config);
            let Report { mut results, counters, .. } = ended.unwrap().unwrap();
            assert!(results.remove(0).unwrap().is_some());
            assert!(counters.given >= leases, "{counters:?}");
        }
    }
}

/// A kernel that reads so much beforehand that it is not sent with a job.
struct LongHead;

impl Kernel for LongHead {
    type Part = u64;
    type Header = ();

    fn name(&self) -> &str {
        "long-head"
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn open(&self, head: &dyn Head) -> Result<Body, KernelError> {
        let read = head.read_at(0, &mut vec![0; 65 << 10]);
        read.map_err(|error| KernelError::new(error.to_string(), "look at the disk"))?;
        Ok(Body::whole(head))
    }

    fn part(&self, _accelerators: usize) -> u64 {
        0
    }

    fn block(&self, _: &Unit<'_>, block: Block<'_>, part: &mut u64) -> Result<(), KernelError> {
        *part += block.data.len() as u64;
        Ok(())
    }

    fn merge(&self, part: &mut u64, later: u64) -> Result<(), KernelError> {
        *part += later;
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(Vec::new())
    }

    fn save(&self, part: &u64, out: &mut Vec<u8>) -> Result<(), KernelError> {
        out.extend_from_slice(&part.to_le_bytes());
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<u64, KernelError> {
        let bytes = saved.try_into().map_err(|_| KernelError::new("no length", "?"))?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// Threads that were asked for, and could do nothing, are no reason to do without them in silence.
#[test]
fn threads_that_cannot_be_sent_their_units_are_refused() {
    let (_dir, path) = file(200_000, 7);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let task = KernelTask::new(&LongHead, &input, None, &options(), &progress).unwrap();
    let run = |nodes, ship| run_local(nodes, &[&task], &Config { ship, ..Config::default() });
    let error = run(4, Ship::Bytes).unwrap_err().to_string();
    assert!(error.contains("node 1: ") && error.contains("long-head has to read it"), "{error}");
    for (nodes, ship) in [(1, Ship::Bytes), (4, Ship::Auto)] {
        let (mut report, _) = run(nodes, ship).unwrap();
        assert_eq!(task.result(report.results.remove(0).unwrap()).unwrap(), 200_000);
    }
}
