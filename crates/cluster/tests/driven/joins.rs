//! Nodes that would do something else are refused when they say hello, whatever there is to do.

use std::thread;

use cellway_cluster::drive::{self, Config, Ran, Report};
use cellway_cluster::task::{KernelTask, Task};
use cellway_cluster::transport::local::endpoints;
use kernels::{Blake3, Count, Counted, Crc32c, Finish, LinReg, PairType, Pattern};
use storage::Input;
use stream::{Kernel, Progress};

use crate::faulty::watched;
use crate::{file, options, text};

/// What a peer did.
struct Did {
    report: Option<Report>,
    unfit: Option<String>,
    refused: Vec<String>,
}

/// Of each of some peers, by what each has to do.
fn run(tasks: &[&dyn Task], fanout: Option<u32>) -> Vec<Did> {
    let config = &Config { fanout, ..Config::default() };
    thread::scope(|scope| {
        let peers = endpoints(tasks.len() as u32).into_iter().zip(tasks);
        let peers = peers.map(|(endpoint, task)| {
            scope.spawn(move || {
                let ran = drive::run(Box::new(endpoint), &[*task], config).unwrap();
                let Ran { report, unfit, refused, farewell, .. } = ran;
                farewell.say().unwrap();
                Did { report, unfit, refused }
            })
        });
        let peers: Vec<_> = peers.collect();
        peers.into_iter().map(|peer| peer.join().unwrap()).collect()
    })
}

/// What `kernel` finds in all of one file, of so many bytes, on nodes of which that with
/// `number` would do `other`; and what it finds alone.
fn with_other<K: Finish<Part: 'static>>(
    kernel: &K,
    len: usize,
    (number, other): (usize, &dyn Task),
    (peers, fanout): (usize, Option<u32>),
) -> Vec<Did> {
    let (_dir, path) = file(len, 5);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let task = KernelTask::new(kernel, &input, None, &options(), &progress).unwrap();
    let tasks: Vec<&dyn Task> =
        (0..peers).map(|peer| if peer == number { other } else { &task as &dyn Task }).collect();
    let mut ran = run(&tasks, fanout);
    let result = ran[0].report.as_mut().unwrap().results.remove(0).unwrap();
    let found = text(kernel, task.result(result).unwrap());
    let alone = stream::run(kernel, &input, None, &options(), &progress).unwrap();
    assert_eq!(found, text(kernel, alone.part));
    ran
}

/// Both sides of a refusal say why.
#[track_caller]
fn refused(ran: &[Did], (by, node): (usize, usize), named: &str) {
    let why = ran[node].unfit.as_deref().expect("the node says why");
    assert!(why.starts_with(&format!("node {node}: ")) && why.contains(named), "{why}");
    let said = ran.iter().map(|ran| ran.refused.as_slice()).collect::<Vec<_>>();
    assert_eq!(said[by], [why], "{said:?}");
    assert_eq!(said.concat().len(), 1, "{said:?}");
}

fn on<K: Kernel<Part: 'static>>(kernel: &K, len: usize, test: impl FnOnce(&dyn Task)) {
    let (_dir, path) = file(len, 5);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    test(&KernelTask::new(kernel, &input, None, &options(), &progress).unwrap());
}

#[test]
fn what_differs_is_named_also_where_there_is_nothing_to_do() {
    watched("it", || {
        for len in [0, 3] {
            let shape = (2, None);
            on(&Blake3::new(), len, |other| {
                let ran = with_other(&Crc32c::new(), len, (1, other), shape);
                refused(&ran, (0, 1), "the manager's kernel is crc32c, this node's blake3");
            });
            on(&Crc32c::new(), len + 1, |other| {
                let ran = with_other(&Crc32c::new(), len, (1, other), shape);
                refused(&ran, (0, 1), "length in bytes of");
            });
            let count = |pattern| Count::new(Pattern::new(pattern).unwrap(), Counted::Lines);
            on(&count("b"), len, |other| {
                let ran = with_other(&count("a"), len, (1, other), shape);
                refused(&ran, (0, 1), "count has other parameters");
            });
            on(&LinReg::new(PairType::F32), 8 * len, |other| {
                let ran = with_other(&LinReg::new(PairType::F64), 16 * len, (1, other), shape);
                refused(&ran, (0, 1), "linreg has other parameters");
            });
        }
    });
}

#[test]
fn a_group_refuses_who_differs_once_it_is_fit_itself() {
    watched("it", || {
        on(&Blake3::new(), 90_000, |other| {
            let named = "the manager's kernel is crc32c, this node's blake3";
            let ran = with_other(&Crc32c::new(), 90_000, (3, other), (7, Some(2)));
            refused(&ran, (1, 3), named);
            // Who is in the group of one that differs joins the first.
            let ran = with_other(&Crc32c::new(), 90_000, (1, other), (7, Some(2)));
            refused(&ran, (0, 1), named);
            assert_eq!([3, 4].map(|node: usize| &ran[node].unfit), [&None, &None]);
            assert_eq!(ran[0].report.as_ref().unwrap().counters.joined, 4);
        });
    });
}
