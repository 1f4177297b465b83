//! A manager that dies at any call of its transport, and others that go on from its journal.

use std::path::Path;
use std::thread;
use std::time::Duration;

use cellway_cluster::drive::{Config, run_journaled};
use cellway_cluster::task::{KernelTask, Task};
use cellway_cluster::transport::Endpoint;
use kernels::{Aes128Ecb, Blake3, Crc32c, Finish, LinReg, PairType, Report as _, WordCount};
use storage::Input;
use stream::{Begun, Journal, Keep, Kernel, Pieces, Progress};

use crate::faulty::{Faults, Faulty, Random, locals, run, watched};
use crate::{file, options};

const PEERS: usize = 5;

/// A kernel, and what is told of its part.
type Kind<'k, K> = (&'k K, fn(&K, <K as Kernel>::Part) -> Vec<u8>);

fn told<K: Finish>(kernel: &K, part: K::Part) -> Vec<u8> {
    let mut told = Vec::new();
    kernel.finish(part).unwrap().write_text(&mut told).unwrap();
    told
}

/// Starts managers until one ends, most of which die first if `die`: what is found, and
/// how many units were recorded before they started.
fn until_one_ends<K: Kernel<Part: 'static>>(
    (kernel, tell): Kind<'_, K>,
    (dir, input): (&Path, &Path),
    (random, die): (&mut Random, bool),
) -> (Vec<u8>, u64) {
    let (journal, out) = (dir.join("journal"), dir.join("out"));
    let output = kernel.effect().writes().then_some(&*out);
    let input = Input::open(input).unwrap();
    let (mut calls, mut recorded) = (200, 0);
    loop {
        let (keep, progress) = (Keep::Either(&journal), Progress::default());
        let mut begun = Begun::on_nodes((kernel, &input), output, keep, false, &options()).unwrap();
        let output = begun.output.as_ref();
        let task = KernelTask::new(kernel, &input, output, &begun.options, &progress).unwrap();
        let task = task.lease_units(random.one_in(2).then(|| 1 << random.below(3)));
        let of_units = (task.spec().units, task.spec().unit_bytes);
        let kept = begun.journal.take().map(|journal| journal.every(Duration::ZERO));
        let mut kept = kept.unwrap();
        let output_bytes = task.plan().output_bytes().unwrap_or(0);
        let pieces = Pieces::new(&mut kept, output, of_units, output_bytes).unwrap();
        let done = pieces.done().unwrap();
        let units = done.iter().flat_map(|piece| &piece.units);
        recorded += units.map(|units| units.end - units.start).sum::<u64>();
        // Each gets a little further.
        calls += 100;
        let dies_after = die.then(|| random.below(calls));
        let faults = Faults { dies_after, ..Faults::default() };
        let [manages, others @ ..] = locals::<PEERS>();
        let manages: Box<dyn Endpoint> = Box::new(Faulty::new(manages, faults, random.clone()));
        let fanout = random.one_in(2).then_some(2);
        let (config, task) = (Config { fanout, ..Config::default() }, &task);
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
        let Some(mut report) = report else { continue };
        assert_eq!(Some(progress.done_bytes()), task.plan().body_bytes(), "with what was recorded");
        let part = task.result(report.results.remove(0).unwrap()).unwrap();
        let mut found = tell(kernel, part);
        if let Some(output) = begun.output {
            output.commit(false).unwrap();
            found.extend(std::fs::read(&out).unwrap());
        }
        Journal::remove(kept).unwrap();
        return (found, recorded);
    }
}

/// What one run finds that nobody disturbs, and what is found if managers die.
fn both<K: Kernel<Part: 'static>>(kind: Kind<'_, K>, seed: u64) -> u64 {
    let mut random = Random(seed);
    let (dir, input) = file((random.below(120) * 4096 + random.below(3) * 16) as usize, seed);
    let (alone, here) = (dir.path().join("alone"), dir.path().join("here"));
    for dir in [&alone, &here] {
        std::fs::create_dir(dir).unwrap();
    }
    let (whole, none) = until_one_ends(kind, (&alone, &input), (&mut random, false));
    let (found, recorded) = until_one_ends(kind, (&here, &input), (&mut random, true));
    assert!(found == whole && none == 0, "CELLWAY_SEED={seed}: {}", kind.0.name());
    let left: Vec<_> =
        std::fs::read_dir(&here).unwrap().map(|of| of.unwrap().file_name()).collect();
    let wanted = if kind.0.effect().writes() { vec!["out"] } else { vec![] };
    assert_eq!(left, wanted, "CELLWAY_SEED={seed}");
    recorded
}

#[test]
fn managers_that_die_go_on_and_find_the_same() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number("CELLWAY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CELLWAY_SEEDS").unwrap_or(20),
    };
    let mut recorded = 0;
    for seed in seeds.clone() {
        recorded += watched(&format!("CELLWAY_SEED={seed}"), move || match seed % 5 {
            0 => both((&Aes128Ecb::default(), |_, _| Vec::new()), seed),
            1 => both((&Blake3::new(), told), seed),
            2 => both((&Crc32c::new(), told), seed),
            3 => both((&LinReg::new(PairType::F64), told), seed),
            _ => both((&WordCount::new(std::env::temp_dir()), told), seed),
        });
    }
    assert!(recorded > 0 || seeds.end - seeds.start == 1, "no manager went on from another's");
}
