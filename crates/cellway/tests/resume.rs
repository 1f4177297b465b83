//! Calls that fail and are made again with the same journal.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellway::kernels::{Finish as _, Identity, WordCount};
use cellway::stream::Beside;
use cellway::{Block, Config, Cut, Effect, Kernel, KernelError, Options, StreamError, Unit};
use proptest::prelude::*;

/// A kernel that gives up after so many units.
struct Impatient<K> {
    kernel: K,
    patience: AtomicU64,
}

impl<K: Kernel> Kernel for Impatient<K> {
    type Part = K::Part;
    type Header = K::Header;

    fn name(&self) -> &str {
        self.kernel.name()
    }

    fn cut(&self, header: &K::Header) -> Cut {
        self.kernel.cut(header)
    }

    fn effect(&self) -> Effect {
        self.kernel.effect()
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        self.kernel.memory_bytes(accelerators)
    }

    fn part(&self, accelerators: usize) -> K::Part {
        self.kernel.part(accelerators)
    }

    fn block(
        &self,
        unit: &Unit<'_, K::Header>,
        block: Block<'_>,
        part: &mut K::Part,
    ) -> Result<(), KernelError> {
        let spend = |left: u64| left.checked_sub(1);
        match self.patience.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend) {
            Ok(_) => self.kernel.block(unit, block, part),
            Err(_) => Err(KernelError::new("out of patience", "go on")),
        }
    }

    fn merge(&self, part: &mut K::Part, later: K::Part) -> Result<(), KernelError> {
        self.kernel.merge(part, later)
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        self.kernel.parameters()
    }

    fn save_beside(
        &self,
        part: &mut K::Part,
        out: &mut Vec<u8>,
        beside: &Beside,
    ) -> Result<(), KernelError> {
        self.kernel.save_beside(part, out, beside)
    }

    fn load_beside(
        &self,
        saved: &[u8],
        accelerators: usize,
        beside: &Beside,
    ) -> Result<K::Part, KernelError> {
        self.kernel.load_beside(saved, accelerators, beside)
    }
}

/// Calls `run` with a kernel of more patience each time, until it does not give
/// up; how many calls that took.
fn insist<K: Kernel + Clone, T>(
    kernel: &K,
    run: impl Fn(&Impatient<K>, u64) -> Result<T, StreamError>,
) -> (T, u64) {
    for number in 1..1000 {
        let patience = AtomicU64::new(number);
        match run(&Impatient { kernel: kernel.clone(), patience }, number) {
            Ok(done) => return (done, number),
            Err(StreamError::Kernel { error, .. }) if error.what == "out of patience" => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no call gets further");
}

fn config(dir: &Path, accelerators: usize, block_bytes: u64) -> Config {
    let options = Options {
        accelerators: Some(accelerators),
        block_bytes: Some(block_bytes),
        ..Options::default()
    };
    let (journal, journal_every) = (Some(dir.join("journal")), Some(Duration::ZERO));
    Config { options, journal, journal_every, ..Config::default() }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// Words of which some are frequent.
fn words(seed: u64, count: u64, different: u64) -> Vec<u8> {
    let mut state = seed;
    let word = |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let choice = ((state >> 33) % different).pow(2) / different;
        format!("{choice:x}{}\n", "z".repeat((choice % 23) as usize))
    };
    (0..count).map(word).collect::<String>().into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// The smallest table: words are spilled between records, and without them.
    #[test]
    fn an_interrupted_word_count_ends_as_one_that_was_not(
        seed in any::<u64>(), different in prop::sample::select(&[50_u64, 5_000, 60_000]),
        block_bytes in 20_000_u64..100_000, accelerators in prop::collection::vec(1_usize..4, 3),
        top in prop::option::of(0_u64..3000),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (input, text) = (dir.path().join("in"), words(seed, 60_000, different));
        std::fs::write(&input, &text).unwrap();
        let kernel = WordCount::new(std::env::temp_dir()).table_bytes(0);
        let kernel = match top {
            Some(top) => kernel.top(top),
            None => kernel,
        };
        let (outcome, calls) = insist(&kernel, |kernel, number| {
            let accelerators = accelerators[number as usize % 3];
            config(dir.path(), accelerators, block_bytes).reduce(kernel, &input)
        });
        prop_assert!(calls > 1, "nothing was interrupted");
        let mut found = Vec::new();
        let mut report = kernel.finish(outcome.part).unwrap();
        report.for_each(|word, count| {
            found.push((word.to_vec(), count));
            Ok(())
        }).unwrap();
        let mut expected = BTreeMap::new();
        for word in text.split(|byte| *byte == b'\n').filter(|word| !word.is_empty()) {
            *expected.entry(word.to_vec()).or_insert(0_u64) += 1;
        }
        prop_assert_eq!((report.words, report.distinct), (60_000, expected.len() as u64));
        let mut expected: Vec<_> = expected.into_iter().collect();
        expected.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        expected.truncate(top.map_or(usize::MAX, |top| top as usize));
        prop_assert!(found == expected, "{} words instead of {}", found.len(), expected.len());
        prop_assert_eq!(names(dir.path()), ["in"]);
    }
}

#[test]
fn a_transform_goes_on_and_leaves_no_journal() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in"), dir.path().join("out"));
    let text = words(1, 10_000, 1000);
    std::fs::write(&input, &text).unwrap();
    let config = config(dir.path(), 1, 4096);
    let (_, calls) = insist(&Identity, |kernel, number| {
        let ran = config.transform(kernel, &input, &output);
        if number == 1 {
            // Torn before anything was done: begun anew.
            assert!(ran.is_err());
            let found = names(dir.path());
            let hidden = found.iter().find(|name| name.starts_with('.')).unwrap();
            std::fs::remove_file(dir.path().join(hidden)).unwrap();
            std::fs::write(dir.path().join("journal"), b"cellway").unwrap();
        }
        ran
    });
    assert!(calls > 2);
    assert!(std::fs::read(&output).unwrap() == text);
    assert_eq!(names(dir.path()), ["in", "out"]);
    // What is no journal is left alone.
    std::fs::write(dir.path().join("journal"), "somebody's").unwrap();
    let error = config.reduce(&WordCount::new("/tmp"), &input).unwrap_err();
    assert!(error.to_string().contains("is no journal"), "{error}");
}
