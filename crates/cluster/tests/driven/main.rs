//! Whole jobs on several peers, against the same on one machine.

mod faults;
mod faulty;
mod hangs;
mod joins;
mod journal;
mod led;
mod listed;
mod rewrites;
mod ship;
mod ship_many;
mod tree;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use cellway_cluster::JobError;
use cellway_cluster::drive::{Config, Report, run_local};
use cellway_cluster::task::{KernelTask, Task};
use kernels::{Aes128Ecb, Blake3, Crc32c, Finish, Histogram, LinReg, PairType, Report as _};
use proptest::prelude::*;
use storage::{Input, Output};
use stream::{Block, Effect, Kernel, KernelError, Options, Progress, Unit};
use tempfile::TempDir;

/// A file of `len` bytes that look random.
fn file(len: usize, seed: u64) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in");
    let mut state = seed | 1;
    let bytes: Vec<u8> = (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect();
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn options() -> Options {
    Options { block_bytes: Some(4096), accelerators: Some(1), ..Options::default() }
}

fn text<K: Finish>(kernel: &K, part: K::Part) -> String {
    let mut text = Vec::new();
    kernel.finish(part).unwrap().write_text(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// The result on one machine, and on `nodes` nodes.
fn both<K: Finish<Part: 'static>>(kernel: &K, len: usize, nodes: u32) -> (String, String) {
    let (_dir, path) = file(len, len as u64);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let one = stream::run(kernel, &input, None, &options(), &progress).unwrap();
    let task = KernelTask::new(kernel, &input, None, &options(), &progress).unwrap();
    let (Report { mut results, counters, .. }, _) =
        run_local(nodes, &[&task], &Config::default()).unwrap();
    assert_eq!(counters.lost, 0, "{counters:?}");
    let part = task.result(results.remove(0).unwrap()).unwrap();
    (text(kernel, one.part), text(kernel, part))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn reductions_find_what_one_machine_finds(len in 0..2_000_000_usize, nodes in 1..5_u32) {
        let (one, many) = both(&Blake3::new(), len, nodes);
        prop_assert_eq!(one, many);
        let (one, many) = both(&Crc32c::new(), len, nodes);
        prop_assert_eq!(one, many);
        let (one, many) = both(&LinReg::new(PairType::I16), len / 4 * 4, nodes);
        prop_assert_eq!(one, many);
    }

    #[test]
    fn transforms_put_all_blocks_where_they_belong(len in 0..60_000_usize, nodes in 1..5_u32) {
        let (dir, path) = file(len * 16, 7);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let made = [1, 2].map(|run| {
            let path = dir.path().join(run.to_string());
            let output = Output::create(&path, &storage::Options::default()).unwrap();
            let kernel = Aes128Ecb::default();
            if run == 1 {
                stream::run(&kernel, &input, Some(&output), &options(), &progress).unwrap();
            } else {
                let task =
                    KernelTask::new(&kernel, &input, Some(&output), &options(), &progress).unwrap();
                let (report, _) = run_local(nodes, &[&task], &Config::default()).unwrap();
                report.results.into_iter().for_each(|result| assert!(result.unwrap().is_none()));
            }
            output.commit(false).unwrap();
            std::fs::read(path).unwrap()
        });
        prop_assert!(made[0] == made[1]);
    }
}

#[test]
fn jobs_are_done_one_after_the_other_by_the_same_nodes() {
    let (_dir, path) = file(1_000_000, 3);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let (crc, blake) = (Crc32c::new(), Blake3::new());
    let first = KernelTask::new(&crc, &input, None, &options(), &progress).unwrap();
    let second = KernelTask::new(&blake, &input, None, &options(), &progress).unwrap();
    let tasks: [&dyn Task; 3] = [&first, &second, &first];
    let (report, _) = run_local(3, &tasks, &Config::default()).unwrap();
    let [one, two, three] = report.results.try_into().unwrap();
    let of_crc = |result: Result<_, JobError>| text(&crc, first.result(result.unwrap()).unwrap());
    assert_eq!(of_crc(one), of_crc(three));
    let hash = text(&blake, second.result(two.unwrap()).unwrap());
    let alone = stream::run(&blake, &input, None, &options(), &progress).unwrap();
    assert_eq!(hash, text(&blake, alone.part));
}

#[test]
fn there_may_be_very_many_tasks() {
    let (_dir, path) = file(5000, 3);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let crc = Crc32c::new();
    let task = KernelTask::new(&crc, &input, None, &options(), &progress).unwrap();
    let mut config = Config::default();
    config.manager.jobs_max = 5;
    let (report, _) = run_local(2, &[&task as &dyn Task; 9], &config).unwrap();
    assert_eq!(report.results.len(), 9);
    report.results.into_iter().for_each(|result| assert!(result.unwrap().is_some()));
}

#[test]
fn a_thread_that_cannot_go_on_as_a_node_is_no_secret() {
    let (_dir, path) = file(5000, 3);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let crc = Crc32c::new();
    let task = KernelTask::new(&crc, &input, None, &options(), &progress).unwrap();
    // A manager that has not answered when they look again is lost; the first node is its own.
    let config = Config { patience: Duration::ZERO, ..Config::default() };
    let runs = (0..1000).map(|_| run_local(4, &[&task], &config));
    let error = runs.filter_map(Result::err).next().expect("no node was too quick").to_string();
    assert!(error.contains("the manager cannot be reached any more"), "{error}");
}

/// Adds bytes up; one unit fails, or does it at first. Notes which threads saw some.
struct Sum {
    fails_at: u64,
    times: AtomicU64,
    /// Instead.
    panics: bool,
    merge_panics: bool,
    seers: Mutex<HashSet<ThreadId>>,
}

impl Sum {
    fn fails(fails_at: u64, times: u64) -> Self {
        let (times, seers) = (AtomicU64::new(times), Mutex::default());
        Self { fails_at, times, panics: false, merge_panics: false, seers }
    }

    fn whole() -> Self {
        Self::fails(0, 0)
    }
}

impl Kernel for Sum {
    type Part = u64;
    type Header = ();

    fn name(&self) -> &str {
        "sum"
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn part(&self, _accelerators: usize) -> u64 {
        0
    }

    fn block(&self, unit: &Unit<'_>, block: Block<'_>, part: &mut u64) -> Result<(), KernelError> {
        let left = |times: u64| times.checked_sub(1);
        let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
        if unit.index == self.fails_at && self.times.fetch_update(set, get, left).is_ok() {
            assert!(!self.panics, "a bad byte");
            return Err(KernelError::new("a bad byte", "mend it").at(unit.offset + 5));
        }
        self.seers.lock().unwrap().insert(thread::current().id());
        *part += block.data.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        Ok(())
    }

    fn merge(&self, part: &mut u64, later: u64) -> Result<(), KernelError> {
        assert!(!self.merge_panics, "too large");
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
        let bytes = saved.try_into().map_err(|_| KernelError::new("no sum", "?"))?;
        Ok(u64::from_le_bytes(bytes))
    }
}

fn sum(kernel: &Sum, nodes: u32) -> Result<u64, JobError> {
    let (_dir, path) = file(500_000, 3);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let task = KernelTask::new(kernel, &input, None, &options(), &progress).unwrap();
    let (mut report, _) = run_local(nodes, &[&task], &Config::default()).unwrap();
    let part = report.results.remove(0)?;
    let wanted: u64 = std::fs::read(&path).unwrap().into_iter().map(u64::from).sum();
    let found = task.result(part).unwrap();
    assert_eq!(found, wanted);
    Ok(found)
}

#[test]
fn a_unit_that_fails_twice_is_computed_and_one_that_always_does_ends_the_job() {
    for nodes in 1..4 {
        sum(&Sum::fails(70, 2), nodes).unwrap();
        let error = sum(&Sum::fails(70, u64::MAX), nodes).unwrap_err();
        let JobError::Unit { unit, offset, what, tries } = error else { panic!("{error}") };
        assert_eq!((unit, offset, tries), (70, Some(70 * 4096 + 5), 3));
        assert!(what.contains("a bad byte"), "{what}");
    }
}

#[test]
fn a_node_computes_short_leases_itself_but_not_where_the_manager_is() {
    // Of some microseconds each, whatever else the machine does: one that is short is enough.
    const UNITS: usize = 2000;
    let options = Options { block_bytes: Some(64), ..options() };
    let (_dir, path) = file(UNITS * 64, 3);
    let options = &options;
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let (kernel, input, progress) = (&Sum::whole(), &input, &progress);
    let ended = thread::scope(|scope| {
        let peers = faulty::locals::<2>().map(|endpoint| {
            scope.spawn(move || {
                let task = KernelTask::new(kernel, input, None, options, progress).unwrap();
                let task = task.lease_units(Some(1));
                let ended = faulty::run(Box::new(endpoint), &[&task], &Config::default()).unwrap();
                let result = ended.map(|mut report| report.results.remove(0).unwrap());
                (thread::current().id(), result.map(|part| task.result(part).unwrap()))
            })
        });
        peers.map(|peer| peer.join().unwrap())
    });
    let seers = kernel.seers.lock().unwrap();
    let [(manager, found), (node, _)] = ended;
    let wanted = std::fs::read(&path).unwrap().into_iter().map(u64::from).sum();
    assert_eq!(found, Some(wanted));
    assert!(!seers.contains(&manager) && seers.contains(&node), "{seers:?}, {ended:?}");
}

/// 2 x 2 pixels.
fn bitmap() -> Vec<u8> {
    let mut bytes = b"BM".to_vec();
    let pixels: [u8; 16] = [1, 2, 3, 4, 5, 6, 0, 0, 7, 8, 9, 1, 2, 3, 0, 0];
    bytes.extend((54 + pixels.len() as u32).to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(54_u32.to_le_bytes());
    bytes.extend(40_u32.to_le_bytes());
    bytes.extend(2_i32.to_le_bytes());
    bytes.extend(2_i32.to_le_bytes());
    bytes.extend(1_u16.to_le_bytes());
    bytes.extend(24_u16.to_le_bytes());
    bytes.extend([0; 24]);
    bytes.extend(pixels);
    bytes
}

#[test]
fn a_histogram_has_its_header() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.bmp");
    std::fs::write(&path, bitmap()).unwrap();
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let one = stream::run(&Histogram, &input, None, &options(), &progress).unwrap();
    let task = KernelTask::new(&Histogram, &input, None, &options(), &progress).unwrap();
    let (mut report, _) = run_local(3, &[&task], &Config::default()).unwrap();
    let part = task.result(report.results.remove(0).unwrap()).unwrap();
    assert_eq!(text(&Histogram, one.part), text(&Histogram, part));
}
