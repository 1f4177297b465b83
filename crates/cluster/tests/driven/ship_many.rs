//! Units of many inputs that the manager sends to nodes which have none of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cellway_cluster::drive::{Config, Report, Ship, run_local};
use cellway_cluster::task::{ManyTask, Task};
use cellway_cluster::{JobError, Message};
use kernels::{Aes128Ecb, Crc32c, Finish, Histogram, LinReg, PairType, WordCount};
use proptest::prelude::*;
use storage::{Listed, SharedDir};
use stream::{Block, Body, Cut, Effect, Head, Kernel, KernelError, Progress, Unit};
use tempfile::TempDir;

use crate::faults::Altered;
use crate::faulty::{Watched, locals, run};
use crate::ship::{config, remote};
use crate::{file, options, text};

/// Files of these lengths, of bytes that look random.
fn files(lens: &[usize], byte: impl Fn(u8) -> u8) -> (TempDir, Vec<Listed>) {
    let (dir, path) = file(lens.iter().sum(), 5);
    let bytes = std::fs::read(path).unwrap();
    let mut rest = &*bytes;
    let paths = lens.iter().enumerate().map(|(number, len)| {
        let path = dir.path().join(format!("f{number}"));
        let (own, others) = rest.split_at(*len);
        rest = others;
        std::fs::write(&path, own.iter().map(|of| byte(*of)).collect::<Vec<_>>()).unwrap();
        path
    });
    let paths: Vec<_> = paths.collect();
    let listed = storage::list(&paths, false).unwrap();
    (dir, listed)
}

/// What nodes find that have no input, or are threads with all of them that are sent their units
/// too; and how often work was given.
fn sent<K: Finish<Part: 'static>>(
    kernel: &K,
    inputs: &[Listed],
    nodes: u32,
    config: &Config,
) -> (String, u64) {
    let progress = Progress::default();
    let task = ManyTask::new(kernel, inputs, None, &options(), &progress).unwrap();
    let body_bytes = task.description().body.1;
    let (report, sent) = remote(kernel, &task, (nodes, &options()), config);
    let Report { mut results, counters, .. } = report.unwrap().unwrap();
    assert_eq!((counters.lost, counters.refused), (0, 0), "{counters:?}");
    assert!(sent >= body_bytes, "{sent} bytes were sent of {body_bytes}");
    let found = text(kernel, task.result(results.remove(0).unwrap()).unwrap());
    let all = Config { ship: Ship::Bytes, manager_computes: true, ..config.clone() };
    let (mut report, _) = run_local(nodes, &[&task], &all).unwrap();
    let threads = text(kernel, task.result(report.results.remove(0).unwrap()).unwrap());
    assert_eq!(threads, found);
    (found, counters.given)
}

/// What one machine finds.
fn alone<K: Finish>(kernel: &K, inputs: &[Listed]) -> String {
    let progress = Progress::default();
    text(kernel, stream::run_all(kernel, inputs, None, &options(), &progress).unwrap().part)
}

/// What one node finds that reads: sums of floats have the bits of that.
fn one_node<K: Finish<Part: 'static>>(kernel: &K, inputs: &[Listed]) -> String {
    let progress = Progress::default();
    let task = ManyTask::new(kernel, inputs, None, &options(), &progress).unwrap();
    let (mut report, _) = run_local(1, &[&task], &Config::default()).unwrap();
    text(kernel, task.result(report.results.remove(0).unwrap()).unwrap())
}

/// Empty, shorter than a block and a page, just as long, and of many blocks.
fn lens() -> impl Strategy<Value = Vec<usize>> {
    let len = prop_oneof![
        2 => Just(0_usize),
        4 => 1..300_usize,
        2 => Just(4096_usize),
        2 => 4000..9000_usize,
        1 => 100_000..400_000_usize,
    ];
    prop::collection::vec(len, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn nodes_without_the_inputs_find_what_one_machine_finds(
        lens in lens(), nodes in 1..6_u32, asked in any::<bool>(), is_tree in any::<bool>(),
        sent_bytes in prop::option::of(4096..100_000_u64),
    ) {
        let config = config(if asked { Ship::Bytes } else { Ship::Auto });
        let config = &Config { fanout: is_tree.then_some(2), sent_bytes, ..config };
        let (dir, inputs) = files(&lens, |byte| byte);
        let kernel = Crc32c::new();
        prop_assert_eq!(sent(&kernel, &inputs, nodes, config).0, alone(&kernel, &inputs));
        let pairs: Vec<_> = lens.iter().map(|len| len / 16 * 16).collect();
        let (_pairs, inputs) = files(&pairs, |byte| byte);
        let kernel = LinReg::new(PairType::F64);
        prop_assert_eq!(sent(&kernel, &inputs, nodes, config).0, one_node(&kernel, &inputs));
        // Words lie across blocks, and never across two inputs.
        let (_words, inputs) = files(&lens, |byte| b"abcdefg "[byte as usize % 8]);
        let kernel = WordCount::new(dir.path().to_owned());
        prop_assert_eq!(sent(&kernel, &inputs, nodes, config).0, alone(&kernel, &inputs));
    }

    #[test]
    fn what_is_made_of_sent_units_goes_to_the_outputs(lens in lens(), nodes in 1..5_u32) {
        let lens: Vec<_> = lens.iter().map(|len| len / 16 * 16).collect();
        let ((dir, inputs), kernel) = (files(&lens, |byte| byte), Aes128Ecb::default());
        let progress = Progress::default();
        let shared = SharedDir::create(dir.path()).unwrap();
        let task = ManyTask::new(&kernel, &inputs, Some(&shared), &options(), &progress).unwrap();
        let (report, _) = remote(&kernel, &task, (nodes, &options()), &config(Ship::Bytes));
        prop_assert!(report.unwrap().unwrap().results.remove(0).unwrap().is_none());
        prop_assert_eq!(progress.done_bytes(), lens.iter().sum::<usize>() as u64);
        let how = storage::Options::default();
        for (input, number) in inputs.iter().zip(0..) {
            let (many, one) = (dir.path().join("many"), dir.path().join("one"));
            shared.take(number, &many, &how).unwrap().commit(false).unwrap();
            let (source, output) =
                (storage::Input::open(input.path()).unwrap(), storage::Output::create(&one, &how).unwrap());
            stream::run(&kernel, &source, Some(&output), &options(), &progress).unwrap();
            output.commit(false).unwrap();
            prop_assert!(std::fs::read(&one).unwrap() == std::fs::read(&many).unwrap());
            [one, many].iter().for_each(|path| std::fs::remove_file(path).unwrap());
        }
    }
}

/// Those that can open all, on other machines, see which way is faster.
#[test]
fn nodes_that_have_the_inputs_are_sent_some_of_them() {
    let ((_dir, inputs), kernel) = (files(&[9000, 0, 77, 30_000, 5], |byte| byte), Crc32c::new());
    let (progress, sent) = (Progress::default(), Arc::new(AtomicU64::new(0)));
    let task = ManyTask::new(&kernel, &inputs, None, &options(), &progress).unwrap();
    let task = task.lease_units(Some(1));
    let [manages, node] = locals::<2>();
    let sees = sent.clone();
    let manages = Watched::boxed(
        manages,
        move |_, message| {
            if let Message::Fetched { bytes: Ok(bytes), .. } = message {
                sees.fetch_add(bytes.len() as u64, Ordering::SeqCst);
            }
        },
        || {},
    );
    let (config, elsewhere) = (config(Ship::Auto), Altered::new(&task, 0).anywhere());
    let report = thread::scope(|scope| {
        scope.spawn(|| run(Box::new(node), &[&elsewhere], &config).unwrap());
        run(manages, &[&task], &config).unwrap()
    });
    let found = task.result(report.unwrap().results.remove(0).unwrap()).unwrap();
    assert_eq!(text(&kernel, found), alone(&kernel, &inputs));
    assert!(sent.load(Ordering::SeqCst) > 0);
}

/// Parts of what was sent lie at any place of it.
#[test]
fn sent_inputs_can_be_looked_at_in_place() {
    let ((_dir, inputs), kernel) = (files(&[9001, 77, 20_003], |byte| byte), Crc32c::new());
    let progress = Progress::default();
    for scheme in [stream::Scheme::Mapped, stream::Scheme::Direct] {
        let options = stream::Options { scheme, ..options() };
        let task = ManyTask::new(&kernel, &inputs, None, &options, &progress).unwrap();
        let (report, _) = remote(&kernel, &task, (2, &options), &config(Ship::Bytes));
        let part = report.unwrap().unwrap().results.remove(0).unwrap();
        assert_eq!(text(&kernel, task.result(part).unwrap()), alone(&kernel, &inputs));
    }
}

/// A lease of thousands of inputs costs its node no descriptor for each.
#[test]
fn more_small_inputs_are_sent_at_a_time_than_files_may_be_open() {
    let ((_dir, inputs), kernel) = (files(&[7; 3000], |byte| byte), Crc32c::new());
    let manager = cellway_cluster::manager::Config { shares: false, ..config(Ship::Bytes).manager };
    let config = Config { manager, ..config(Ship::Bytes) };
    let progress = Progress::default();
    let task = ManyTask::new(&kernel, &inputs, None, &options(), &progress).unwrap();
    let task = task.lease_units(Some(2048));
    let (report, sent) = remote(&kernel, &task, (1, &options()), &config);
    let Report { mut results, counters, .. } = report.unwrap().unwrap();
    let found = text(&kernel, task.result(results.remove(0).unwrap()).unwrap());
    assert_eq!((found, sent), (alone(&kernel, &inputs), 3000 * 7));
    assert!(counters.given < 10, "{counters:?}");
}

#[test]
fn bytes_of_several_inputs_lie_one_after_the_other() {
    let lens = [5000, 0, 3, 0, 4096, 9];
    let ((_dir, inputs), kernel, progress) =
        (files(&lens, |byte| byte), Crc32c::new(), Progress::default());
    let task = ManyTask::new(&kernel, &inputs, None, &options(), &progress).unwrap();
    let all: Vec<u8> = inputs.iter().flat_map(|of| std::fs::read(of.path()).unwrap()).collect();
    for range in [0..9108, 0..0, 4990..5002, 5003..5004, 0..5000, 9099..9108, 9108..9108, 1..9107] {
        let found = task.bytes(range.start as u64..range.end as u64).unwrap();
        assert!(found == all[range.clone()], "{range:?}");
    }
    let past = task.bytes(9000..9109).unwrap_err();
    assert!(past.contains("f0 and 5 more: there are 9108 bytes"), "{past}");
    // That which was read last too.
    for (number, range) in [(4, 9000..9001), (0, 4990..5002)] {
        task.bytes(range.clone()).unwrap();
        // Of the same length, and in the same file.
        let mut other = std::fs::read(inputs[number].path()).unwrap();
        other[0] ^= 1;
        std::fs::write(inputs[number].path(), other).unwrap();
        let file = std::fs::File::options().write(true).open(inputs[number].path()).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        let changed = task.bytes(range).unwrap_err();
        assert!(changed.contains(&inputs[number].shown()), "{changed}");
        assert_eq!(task.bytes(5001..5002).unwrap(), all[5001..5002]);
    }
}

/// Why nodes that are sent their units cannot do it.
fn refused<K: Kernel<Part: 'static>>(kernel: &K, inputs: &[Listed], ship: Ship) -> JobError {
    let progress = Progress::default();
    let task = ManyTask::new(kernel, inputs, None, &options(), &progress).unwrap();
    let (report, _) = remote(kernel, &task, (2, &options()), &config(ship));
    report.unwrap().unwrap().results.remove(0).unwrap_err()
}

#[test]
fn an_input_that_changes_while_it_is_sent_ends_the_job_by_its_name() {
    let ((_dir, inputs), kernel, progress) =
        (files(&[9000, 300, 20_000], |byte| byte), Crc32c::new(), Progress::default());
    for how in ["longer", "replaced"] {
        let task = ManyTask::new(&kernel, &inputs, None, &options(), &progress).unwrap();
        match how {
            "longer" => std::fs::write(inputs[1].path(), [0; 301]).unwrap(),
            _ => std::fs::remove_file(inputs[1].path()).unwrap(),
        }
        let (report, _) = remote(&kernel, &task, (2, &options()), &config(Ship::Bytes));
        let error = report.unwrap().unwrap().results.remove(0).unwrap_err();
        let JobError::Unit { unit: 3, what, .. } = &error else { panic!("{error}") };
        assert!(what.contains(&inputs[1].shown()), "{what}");
    }
}

#[test]
fn an_input_that_a_kernel_refuses_is_named_though_nodes_know_no_names() {
    let (_dir, inputs) = files(&[4096, 15, 8192], |byte| byte);
    let error = refused(&LinReg::new(PairType::I16), &inputs, Ship::Auto);
    let JobError::Unit { unit: 1, what, .. } = &error else { panic!("{error}") };
    let start = format!("{}: ", inputs[1].shown());
    assert!(what.starts_with(&start) && what.contains("at byte 12"), "{what}");
    let (dir, inputs) = files(&[900, 100_000], |_| b'x');
    let error = refused(&WordCount::new(dir.path().to_owned()), &inputs, Ship::Bytes);
    let shown = inputs[1].shown();
    assert!(error.to_string().contains(&format!("{shown}: a word is longer")), "{error}");
}

/// Looks at the first byte of inputs of odd lengths, or of all; and sees more around some.
struct Looks {
    at_all: bool,
    around_short: usize,
}

impl Kernel for Looks {
    type Part = ();
    type Header = u64;

    fn name(&self) -> &str {
        "looks"
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn open(&self, head: &dyn Head) -> Result<Body<u64>, KernelError> {
        let len = head.len_bytes().unwrap_or(0);
        if self.at_all || len % 2 == 1 {
            // What cannot be read is not asked for twice.
            let _ = head.read_at(0, &mut [0]);
        }
        Ok(Body { range: 0..len, header: len })
    }

    fn cut(&self, len: &u64) -> Cut {
        let before_bytes = if *len < 5000 { self.around_short } else { 0 };
        Cut { align_bytes: 1, before_bytes, after_bytes: 0 }
    }

    fn part(&self, _accelerators: usize) {}

    fn block(&self, _: &Unit<'_, u64>, _: Block<'_>, (): &mut ()) -> Result<(), KernelError> {
        Ok(())
    }

    fn merge(&self, (): &mut (), (): ()) -> Result<(), KernelError> {
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(Vec::new())
    }
}

/// Nothing is computed over what was not sent.
#[test]
fn a_kernel_that_looks_at_inputs_beforehand_is_not_sent_them() {
    let (_dir, inputs) = files(&[4000, 77, 9000], |byte| byte);
    let looks = |at_all, around_short| Looks { at_all, around_short };
    for ship in [Ship::Bytes, Ship::Auto] {
        let error = refused(&looks(true, 0), &inputs, ship).to_string();
        let why = "f0 and 2 more cannot be sent: looks has to read a header of each";
        assert!(error.contains(why) && error.contains("take --ship locators"), "{error}");
        // The longest does not tell.
        let error = refused(&looks(false, 0), &inputs, ship).to_string();
        let name = inputs[1].shown();
        assert!(error.contains(&format!("{name}: looks has to read a header")), "{error}");
        let even = [&inputs[0], &inputs[2]].map(Listed::clone);
        let error = refused(&looks(false, 3), &even, ship).to_string();
        let why = format!("{}: more is to be seen around blocks", even[0].shown());
        assert!(error.contains(&why), "{error}");
    }
}

#[test]
fn bitmaps_are_read_by_nodes_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| dir.path().join(name));
    paths.iter().for_each(|path| std::fs::write(path, crate::bitmap()).unwrap());
    let inputs = storage::list(&paths, false).unwrap();
    let error = refused(&Histogram, &inputs, Ship::Auto).to_string();
    assert!(error.contains("histogram has to read a header of each"), "{error}");
    let progress = Progress::default();
    let task = ManyTask::new(&Histogram, &inputs, None, &options(), &progress).unwrap();
    let local = |ship| run_local(3, &[&task], &Config { ship, ..Config::default() });
    let error = local(Ship::Bytes).unwrap_err().to_string();
    assert!(error.contains("node 1: ") && error.contains("take --ship locators"), "{error}");
    let (mut report, _) = local(Ship::Auto).unwrap();
    let found = text(&Histogram, task.result(report.results.remove(0).unwrap()).unwrap());
    assert_eq!(found, alone(&Histogram, &inputs));
}

#[test]
fn outputs_that_a_node_cannot_reach_are_named() {
    let ((dir, inputs), kernel) = (files(&[320, 16], |byte| byte), Aes128Ecb::default());
    let (progress, gone) = (Progress::default(), dir.path().join("gone"));
    let shared = SharedDir::create(dir.path()).unwrap();
    let task = ManyTask::new(&kernel, &inputs, Some(&shared), &options(), &progress).unwrap();
    // As if nodes had another file system.
    std::fs::rename(shared.path(), &gone).unwrap();
    let (report, _) = remote(&kernel, &task, (2, &options()), &config(Ship::Bytes));
    let error = report.unwrap().unwrap().results.remove(0).unwrap_err().to_string();
    assert!(error.contains("is no folder here; units are sent to nodes"), "{error}");
    std::fs::rename(&gone, shared.path()).unwrap();
}
