//! A manager that dies at any call of its transport, and others that go on from its journal.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use cellway_cluster::drive::{Config, Ship, run_journaled};
use cellway_cluster::task::{KernelTask, ManyTask, Part, Task};
use cellway_cluster::transport::Endpoint;
use kernels::{Aes128Ecb, Blake3, Crc32c, Finish, LinReg, PairType, Report as _, WordCount};
use storage::{Input, Listed, Output};
use stream::{Begun, Journal, Keep, Kernel, Pieces, Progress, Spool, Spooled};

use crate::faulty::{Faults, Faulty, Random, locals, run, watched};
use crate::rewrites::Nearby;
use crate::{file, options};

const PEERS: usize = 5;

/// A kernel, and what is told of its part.
type Kind<'k, K> = (&'k K, fn(&K, <K as Kernel>::Part) -> Vec<u8>);

fn told<K: Finish>(kernel: &K, part: K::Part) -> Vec<u8> {
    let mut told = Vec::new();
    kernel.finish(part).unwrap().write_text(&mut told).unwrap();
    told
}

fn nothing<K: Kernel>(_: &K, _: K::Part) -> Vec<u8> {
    Vec::new()
}

/// What a manager does when all units are done.
#[derive(Clone, Copy, PartialEq)]
enum Late {
    /// It has copied some of what has no name yet.
    Copied,
    /// All has its name.
    Removes,
}

/// Managers, one after the other, most of which die if they `die`.
struct Managers {
    random: Random,
    die: bool,
    calls: u64,
    /// What is done after all units, when none has died yet.
    left: Vec<Late>,
    /// Units that were done before they started.
    recorded: u64,
}

impl Managers {
    fn new(random: &Random, die: bool) -> Self {
        Self {
            random: random.clone(),
            die,
            calls: 0,
            left: vec![Late::Copied, Late::Removes],
            recorded: 0,
        }
    }

    fn lease_units(&mut self) -> Option<u64> {
        self.random.one_in(2).then(|| 1 << self.random.below(3))
    }

    /// Whether one dies now that all units are done: the first does.
    fn dies(&mut self, late: Late) -> bool {
        let is_first = self.left.contains(&late);
        self.left.retain(|left| *left != late);
        self.die && (is_first || self.random.one_in(6))
    }

    /// What one finds, unless it dies.
    fn run(&mut self, task: &dyn Task, pieces: Pieces<'_>) -> Option<Option<Part>> {
        let done = pieces.done().unwrap();
        let units = done.iter().flat_map(|piece| &piece.units);
        self.recorded += units.map(|units| units.end - units.start).sum::<u64>();
        // Each gets a little further.
        self.calls += 20;
        let dies_after = self.die.then(|| self.random.below(self.calls));
        let faults = Faults { dies_after, ..Faults::default() };
        let [manages, others @ ..] = locals::<PEERS>();
        let manages: Box<dyn Endpoint> =
            Box::new(Faulty::new(manages, faults, self.random.clone()));
        let fanout = self.random.one_in(2).then_some(2);
        // Whether other nodes are sent their units.
        let sends = task.description().shipped.is_ok() && self.random.one_in(2);
        let ship = if sends { Ship::Bytes } else { Ship::Auto };
        let config = Config { fanout, ship, ..Config::default() };
        let report = thread::scope(|scope| {
            for other in others {
                let (other, config) = (Box::new(other), &config);
                // It is lost with its manager.
                scope.spawn(move || drop(run(other, &[task], config)));
            }
            let ran = run_journaled(manages, &[task], &config, Some(pieces)).ok()?;
            ran.farewell.say().ok()?;
            ran.report
        });
        Some(report?.results.remove(0).unwrap())
    }
}

/// Starts managers until one ends: what is found.
fn until_one_ends<K: Kernel<Part: 'static>>(
    (kernel, tell): Kind<'_, K>,
    (dir, input): (&Path, &Path),
    managers: &mut Managers,
) -> Vec<u8> {
    let (journal, out) = (dir.join("journal"), dir.join("out"));
    let output = kernel.effect().writes().then_some(&*out);
    let input = Input::open(input).unwrap();
    loop {
        let (keep, progress) = (Keep::Either(&journal), Progress::default());
        let mut begun = Begun::on_nodes((kernel, &input), output, keep, false, &options()).unwrap();
        let output = begun.output.as_ref();
        let task = KernelTask::new(kernel, &input, output, &begun.options, &progress).unwrap();
        let task = task.lease_units(managers.lease_units());
        let of_units = (task.spec().units, task.spec().unit_bytes);
        let mut kept = begun.journal.take().unwrap().every(Duration::ZERO);
        let output_bytes = task.plan().output_bytes().unwrap_or(0);
        let pieces = Pieces::new(&mut kept, output, of_units, output_bytes).unwrap();
        let Some(part) = managers.run(&task, pieces) else { continue };
        assert_eq!(Some(progress.done_bytes()), task.plan().body_bytes(), "with what was recorded");
        let mut found = tell(kernel, task.result(part).unwrap());
        if let Some(output) = begun.output {
            output.commit(false).unwrap();
            found.extend(std::fs::read(&out).unwrap());
        }
        Journal::remove(kept).unwrap();
        return found;
    }
}

/// What is removed before a journal is.
fn remove_folder(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_str().unwrap().starts_with(".outputs.cellway-") {
            std::fs::remove_dir_all(entry.path()).unwrap();
        }
    }
}

/// As [`until_one_ends`], of a rewrite, whose managers die while they copy too.
fn until_one_is_rewritten<K: Kernel>(
    kernel: &K,
    (dir, input): (&Path, &Path),
    managers: &mut Managers,
) -> Vec<u8> {
    let (journal, out) = (dir.join("journal"), dir.join("out"));
    let (input, progress) = (Input::open(input).unwrap(), Progress::default());
    loop {
        let keep = Keep::Either(&journal);
        let begun = Begun::on_nodes((kernel, &input), Some(&out), keep, false, &options()).unwrap();
        let plan = stream::plan(kernel, &input, &begun.options).unwrap();
        let (units, output) = (plan.units.unwrap(), begun.output.as_ref());
        let mut kept = begun.journal.unwrap().every(Duration::ZERO);
        let of_units = (units, plan.block_bytes);
        let mut pieces = Pieces::new(&mut kept, output, of_units, 0).unwrap();
        let shared = (!pieces.is_named()).then(|| pieces.shared_dir(dir).unwrap());
        let spool = Spool::new("out");
        shared.iter().for_each(|shared| spool.join(shared.path()));
        let spooled = Spooled::new(kernel, &spool, &plan, units);
        let task = KernelTask::new(&spooled, &input, None, &begun.options, &progress).unwrap();
        let task = task.spool(&spool).lease_units(managers.lease_units());
        let Some(part) = managers.run(&task, pieces) else { continue };
        let spans = task.result(part).unwrap();
        if let (Some(shared), Some(output)) = (shared, begun.output) {
            spans.copy(&shared, &output).unwrap();
            if managers.dies(Late::Copied) {
                continue;
            }
            output.commit(false).unwrap();
        }
        if managers.dies(Late::Removes) {
            remove_folder(dir);
            continue;
        }
        Journal::remove(kept).unwrap();
        return std::fs::read(&out).unwrap();
    }
}

/// As [`until_one_ends`], over many inputs, whose managers die while they give outputs
/// their names too.
fn until_one_ends_all<K: Kernel<Part: 'static>>(
    (kernel, tell): Kind<'_, K>,
    (dir, inputs): (&Path, &[Listed]),
    managers: &mut Managers,
) -> Vec<u8> {
    let (journal, out, progress) = (dir.join("journal"), dir.join("out"), Progress::default());
    let run = (kernel, inputs, &options());
    'managers: loop {
        let to = kernel.effect().writes().then_some(&*out);
        let begun = Begun::many_on_nodes(run, to, Keep::Either(&journal), false).unwrap();
        let (dir, mut kept) = (begun.0, begun.1.unwrap().every(Duration::ZERO));
        let options = kept.options(&options());
        let mut pieces = Pieces::of_many(&mut kept).unwrap();
        let dir = dir.filter(|_| !pieces.is_named());
        let shared = dir.as_ref().map(|dir| pieces.shared_dir(dir.path()).unwrap());
        let task = ManyTask::new(kernel, inputs, shared.as_ref(), &options, &progress).unwrap();
        let task = task.lease_units(managers.lease_units());
        let Some(part) = managers.run(&task, pieces) else { continue };
        let mut found = tell(kernel, task.result(part).unwrap());
        if let (Some(shared), Some(dir)) = (&shared, dir) {
            for (input, number) in inputs.iter().zip(0..) {
                let len_bytes = task.output_bytes(input).unwrap();
                let output = dir.take((shared, number), input, len_bytes).unwrap();
                dir.commit(input, output, false).unwrap();
                if managers.dies(Late::Copied) {
                    continue 'managers;
                }
            }
            kept.all_named(inputs.len()).unwrap();
        }
        if let Some(to) = to.filter(|_| managers.dies(Late::Removes)) {
            remove_folder(to);
            continue;
        }
        Journal::remove(kept).unwrap();
        let made = to.into_iter().flat_map(|out| inputs.iter().map(|input| out.join(input.name())));
        made.for_each(|made| found.extend(std::fs::read(made).unwrap()));
        let names = to.map_or(0, |out| std::fs::read_dir(out).unwrap().count());
        assert!(names == 0 || names == inputs.len(), "{names} outputs");
        return found;
    }
}

/// What one run finds that nobody disturbs, and what is found if managers die.
fn both(
    (random, dir, seed): (&Random, &Path, u64),
    is_left: bool,
    find: impl Fn(&Path, &mut Managers) -> Vec<u8>,
) -> (Vec<u8>, u64) {
    let (alone, here) = (dir.join("alone"), dir.join("here"));
    for dir in [&alone, &here] {
        std::fs::create_dir(dir).unwrap();
    }
    let [mut live, mut die] = [false, true].map(|die| Managers::new(random, die));
    let (whole, found) = (find(&alone, &mut live), find(&here, &mut die));
    assert!(found == whole && live.recorded == 0, "CELLWAY_SEED={seed}");
    let left: Vec<_> =
        std::fs::read_dir(&here).unwrap().map(|of| of.unwrap().file_name()).collect();
    assert_eq!(left, if is_left { vec!["out"] } else { vec![] }, "CELLWAY_SEED={seed}");
    (found, die.recorded)
}

fn one<K: Kernel<Part: 'static>>(kind: Kind<'_, K>, seed: u64) -> u64 {
    let mut random = Random(seed);
    let (dir, input) = file((random.below(120) * 4096 + random.below(3) * 16) as usize, seed);
    let find =
        |here: &Path, managers: &mut Managers| until_one_ends(kind, (here, &input), managers);
    both((&random, dir.path(), seed), kind.0.effect().writes(), find).1
}

/// What one machine makes of some inputs, one after the other.
fn plain<K: Kernel>(kernel: &K, dir: &Path, inputs: &[PathBuf]) -> Vec<u8> {
    let made = inputs.iter().flat_map(|input| {
        let (input, out) = (Input::open(input).unwrap(), dir.join("plain"));
        let how = storage::Options { force: true, len_bytes: None };
        let output = Output::create(&out, &how).unwrap();
        stream::run(kernel, &input, Some(&output), &options(), &Progress::default()).unwrap();
        output.commit(false).unwrap();
        std::fs::read(out).unwrap()
    });
    made.collect()
}

fn rewritten(seed: u64) -> u64 {
    let mut random = Random(seed);
    let (dir, input) = file(random.below(120 * 1024) as usize * 4, seed);
    let kernel = Nearby::new();
    let find = |here: &Path, managers: &mut Managers| {
        until_one_is_rewritten(&kernel, (here, &input), managers)
    };
    let (found, recorded) = both((&random, dir.path(), seed), true, find);
    assert!(found == plain(&kernel, dir.path(), &[input]), "CELLWAY_SEED={seed}");
    recorded
}

fn many<K: Kernel<Part: 'static>>(kind: Kind<'_, K>, seed: u64) -> u64 {
    let mut random = Random(seed);
    let (dir, paths) = files(&mut random, seed);
    let inputs = storage::list(&paths, false).unwrap();
    let find =
        |here: &Path, managers: &mut Managers| until_one_ends_all(kind, (here, &inputs), managers);
    let writes = kind.0.effect().writes();
    let (found, recorded) = both((&random, dir.path(), seed), writes, find);
    let is_plain = !writes || found == plain(kind.0, dir.path(), &paths);
    assert!(is_plain, "CELLWAY_SEED={seed}");
    recorded
}

/// Empty ones, small ones, and some of several blocks.
fn files(random: &mut Random, seed: u64) -> (tempfile::TempDir, Vec<PathBuf>) {
    let (dir, all) = file(1 << 20, seed);
    let (bytes, mut from) = (std::fs::read(all).unwrap(), 0);
    let paths = (0..1 + random.below(12)).map(|number| {
        let len = [0, 16, 4096, 16 * random.below(200), 16 * random.below(4000)];
        let to = from + random.pick(&len) as usize;
        let path = dir.path().join(format!("in{number}"));
        std::fs::write(&path, &bytes[from..to]).unwrap();
        from = to;
        path
    });
    let paths = paths.collect();
    (dir, paths)
}

#[test]
fn managers_that_die_go_on_and_find_the_same() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number("CELLWAY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CELLWAY_SEEDS").unwrap_or(27),
    };
    let mut recorded = [0; 9];
    for seed in seeds.clone() {
        let words = || WordCount::new(std::env::temp_dir());
        recorded[seed as usize % 9] +=
            watched(&format!("CELLWAY_SEED={seed}"), move || match seed % 9 {
                0 => one((&Aes128Ecb::default(), nothing), seed),
                1 => one((&Blake3::new(), told), seed),
                2 => one((&Crc32c::new(), told), seed),
                3 => one((&LinReg::new(PairType::F64), told), seed),
                4 => one((&words(), told), seed),
                5 => rewritten(seed),
                6 => many((&Aes128Ecb::default(), nothing), seed),
                7 => many((&LinReg::new(PairType::F64), told), seed),
                _ => many((&words(), told), seed),
            });
    }
    let went_on = [&recorded[..5], &recorded[5..6], &recorded[6..]];
    let went_on = went_on.iter().all(|kind| kind.iter().sum::<u64>() > 0);
    assert!(went_on || seeds.end - seeds.start < 27, "no manager went on: {recorded:?}");
}

/// What is copied at the end is looked for before anything is computed.
#[test]
fn what_a_rewrite_recorded_and_is_gone_is_refused() {
    let (dir, input) = file(90 * 4096, 3);
    let (journal, out) = (dir.path().join("journal"), dir.path().join("out"));
    let (input, progress) = (Input::open(&input).unwrap(), Progress::default());
    let kernel = Nearby::new();
    let go_on = |keep| {
        let begun = Begun::on_nodes((&kernel, &input), Some(&out), keep, true, &options()).unwrap();
        let plan = stream::plan(&kernel, &input, &begun.options).unwrap();
        let (units, output) = (plan.units.unwrap(), begun.output.as_ref());
        let mut kept = begun.journal.unwrap();
        let mut pieces = Pieces::new(&mut kept, output, (units, plan.block_bytes), 0).unwrap();
        let shared = pieces.shared_dir(dir.path()).unwrap();
        let spool = Spool::new("out");
        spool.join(shared.path());
        let spooled = Spooled::new(&kernel, &spool, &plan, units);
        let task = KernelTask::new(&spooled, &input, None, &begun.options, &progress).unwrap();
        let (task, [own]) = (task.spool(&spool), locals::<1>());
        let ran = run_journaled(Box::new(own), &[&task], &Config::default(), Some(pieces));
        (ran.map(|_| ()).map_err(|error| error.to_string()), shared.path().to_owned())
    };
    let (ran, folder) = go_on(Keep::Anew(&journal));
    assert_eq!(ran, Ok(()));
    assert_eq!(go_on(Keep::Resume(&journal)).0, Ok(()));
    let files = std::fs::read_dir(&folder).unwrap().map(|of| of.unwrap().path());
    let mut files = files.filter(|path| std::fs::metadata(path).unwrap().len() > 0);
    let (made, None) = (files.next().unwrap(), files.next()) else { panic!("two were written") };
    let len = std::fs::metadata(&made).unwrap().len();
    std::fs::File::options().write(true).open(&made).unwrap().set_len(len - 1).unwrap();
    let refused = |state: &str| {
        let why = go_on(Keep::Resume(&journal)).0.unwrap_err();
        assert!(why.contains(made.to_str().unwrap()) && why.contains(state), "{why}");
        assert!(why.contains("start anew with --journal and --force"), "{why}");
    };
    refused(&format!("has {} of the {len} bytes", len - 1));
    std::fs::remove_file(&made).unwrap();
    refused("is gone");
}

/// What was written, and is not there any more, no manager goes on from.
#[test]
fn what_was_recorded_and_is_gone_is_refused() {
    let (dir, input) = file(40 * 4096, 3);
    let (journal, out) = (dir.path().join("journal"), dir.path().join("out"));
    let (inputs, progress) = (storage::list(&[input], false).unwrap(), Progress::default());
    let kernel = Aes128Ecb::default();
    let run = (&kernel, &inputs[..], &options());
    let begin = |keep| Begun::many_on_nodes(run, Some(&out), keep, false).unwrap().1.unwrap();
    let task = |shared| ManyTask::new(&kernel, &inputs, Some(shared), &options(), &progress);
    let mut managers = Managers::new(&Random(1), false);
    let mut kept = begin(Keep::Anew(&journal));
    let mut pieces = Pieces::of_many(&mut kept).unwrap();
    let shared = pieces.shared_dir(&out).unwrap();
    managers.run(&task(&shared).unwrap(), pieces).unwrap();
    drop(kept);
    let go_on = || {
        let mut kept = begin(Keep::Resume(&journal));
        let pieces = Pieces::of_many(&mut kept).unwrap();
        let (task, [own]) = (task(&shared).unwrap(), locals::<1>());
        let ran = run_journaled(Box::new(own), &[&task], &Config::default(), Some(pieces));
        ran.map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(go_on(), Ok(()));
    let made = std::fs::File::options().write(true).open(shared.path().join("0")).unwrap();
    made.set_len(40 * 4096 - 1).unwrap();
    let why = go_on().unwrap_err();
    assert!(why.contains("in is shorter") && why.contains("start anew"), "{why}");
    std::fs::remove_dir_all(shared.path()).unwrap();
    let mut kept = begin(Keep::Resume(&journal));
    let mut pieces = Pieces::of_many(&mut kept).unwrap();
    let why = pieces.shared_dir(&out).unwrap_err().to_string();
    assert!(why.contains("is gone, with what was written"), "{why}");
}
