//! Runs that are interrupted and gone on with end as if nothing had happened.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use accel::Faults;
use cellway_stream::{
    Cut, Direct, Effect, Journal, JournalError, JournalErrorKind, Kernel, KernelError, MergeOrder,
    Options, Outcome, Progress, StreamError, plan, run_journaled,
};
use proptest::prelude::*;
use storage::{Input, Partial};

use crate::probe::{Probe, byte_at, content, expected, transformed};
use crate::rewrites::Repeat;
use crate::setting::{Disk, names};

/// One attempt in a folder with the file `in`: it goes on with `journal`, or
/// begins it if there is none that has its header.
fn attempt<K: Kernel>(
    dir: &Path,
    kernel: &K,
    options: &Options,
    every: Duration,
) -> Result<Outcome<K::Part>, StreamError> {
    let (path, out) = (dir.join("journal"), dir.join("out"));
    let input = Input::open(&dir.join("in"))?;
    let writes = kernel.effect().writes();
    let opened = match Journal::open(&path) {
        Err(error) if error.kind() == JournalErrorKind::Unreadable => None,
        Err(error) if error.kind() == JournalErrorKind::Io && !path.exists() => None,
        opened => Some(opened?),
    };
    let (mut journal, output) = match opened {
        None => {
            let plan = plan(kernel, &input, options)?;
            let partial = writes.then(|| Partial::choose(&out, false)).transpose()?;
            let run = (kernel, &input, &plan);
            let journal = Journal::create(&path, path.exists(), run, partial.as_ref())?;
            let how = storage::Options { force: false, len_bytes: plan.output_bytes() };
            (journal, partial.map(|partial| partial.create(&how)).transpose()?)
        }
        Some(journal) => {
            let plan = plan(kernel, &input, &journal.options(options))?;
            journal.check((kernel, &input, &plan), writes.then_some(out.as_path()))?;
            let how = storage::Options { force: false, len_bytes: plan.output_bytes() };
            let output = match (journal.partial(), journal.written()) {
                (None, _) => None,
                (Some(partial), None) => Some(partial.create(&how)?),
                (Some(partial), Some((identity, len_bytes))) => {
                    partial.reopen(&how, identity, len_bytes)?
                }
            };
            assert_eq!(output.is_some(), writes);
            (journal, output)
        }
    };
    journal = journal.every(every);
    let (options, progress) = (journal.options(options), Progress::default());
    let outcome =
        run_journaled(kernel, &input, output.as_ref(), &options, &progress, Some(&mut journal))?;
    assert_eq!(progress.done_bytes(), content_bytes(&outcome));
    assert!(!out.exists(), "the output has its name before it is committed");
    if let Some(output) = output {
        output.commit(false)?;
    }
    journal.remove()?;
    Ok(outcome)
}

fn content_bytes<P>(outcome: &Outcome<P>) -> u64 {
    outcome.stats.plan.body_bytes().unwrap()
}

/// How a run goes wrong, again and again.
#[derive(Clone, Debug)]
struct Trouble {
    /// Units an attempt may compute; each may more than the one before.
    patience: u64,
    /// Whether the journal's end is torn off after each attempt, or a byte of it changed.
    tear: Option<u64>,
    faults: Option<u64>,
}

impl Trouble {
    /// Damages the journal in a way that depends on the attempt.
    fn damage(&self, attempt: u64, journal: &Path) {
        let (Some(seed), Ok(mut bytes)) = (self.tear, std::fs::read(journal)) else { return };
        let drawn =
            u64::from_le_bytes(std::array::from_fn(|i| byte_at(seed, attempt * 8 + i as u64)));
        let at = (drawn >> 1) as usize % (bytes.len() + 1);
        match drawn & 1 == 0 || at < 30 {
            true => bytes.truncate(at),
            false => bytes[at - 1] ^= 0x40,
        }
        std::fs::write(journal, bytes).unwrap();
        if Journal::open(journal).is_err() {
            // No crash does that to a header: it was synced before the output was made. One
            // does what the error says.
            std::fs::remove_file(journal).unwrap();
            let dir = journal.parent().unwrap();
            let hidden = names(dir).into_iter().filter(|name| name.starts_with('.'));
            hidden.for_each(|name| std::fs::remove_file(dir.join(name)).unwrap());
        }
    }

    fn options(&self, attempt: u64, options: &Options) -> Options {
        let broken = |seed| Faults {
            seed: seed ^ attempt,
            short: 100,
            interrupted: 100,
            broken: 20,
            delayed: 300,
        };
        // At last the device is repaired.
        let faults = self.faults.filter(|_| attempt < 20).map(broken);
        Options { faults, ..options.clone() }
    }
}

fn troubles() -> impl Strategy<Value = Trouble> {
    (1_u64..30, prop::option::of(any::<u32>()), prop::option::of(any::<u32>())).prop_map(
        |(patience, tear, faults)| Trouble {
            patience,
            tear: tear.map(u64::from),
            faults: faults.map(u64::from),
        },
    )
}

fn layouts() -> impl Strategy<Value = Options> {
    let direct = prop::sample::select(&[Direct::Auto, Direct::Off]);
    (1_usize..4, 1_usize..5, prop_oneof![500_u64..9_000, Just(4096)], direct).prop_map(
        |(accelerators, threads, block_bytes, direct)| Options {
            accelerators: Some(accelerators),
            threads: Some(threads),
            block_bytes: Some(block_bytes),
            direct,
            ..Options::default()
        },
    )
}

/// Attempts until one succeeds; what it came to, and how many it took.
fn insist<K: Kernel>(
    dir: &Path,
    trouble: &Trouble,
    options: &Options,
    kernel: impl Fn(Arc<AtomicU64>) -> K,
) -> (Outcome<K::Part>, u64) {
    for number in 0..2000 {
        let patience = Arc::new(AtomicU64::new(trouble.patience + number));
        let options = trouble.options(number, options);
        match attempt(dir, &kernel(patience), &options, Duration::ZERO) {
            Ok(outcome) => return (outcome, number + 1),
            Err(StreamError::Kernel { error, .. }) if error.what == "out of patience" => {}
            Err(StreamError::Input(_) | StreamError::Output(_)) if options.faults.is_some() => {}
            Err(error) => panic!("{error}"),
        }
        assert!(!dir.join("out").exists(), "an unfinished output has its name");
        assert!(names(dir).len() <= 3, "{:?}", names(dir));
        trouble.damage(number, &dir.join("journal"));
    }
    panic!("no attempt gets further");
}

fn spend(patience: &AtomicU64) -> Result<(), KernelError> {
    match patience.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
        Ok(_) => Ok(()),
        Err(_) => Err(KernelError::new("out of patience", "go on")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn an_interrupted_run_ends_as_one_that_was_not(
        len in 0_u64..60_000, seed in any::<u32>(), trouble in troubles(), options in layouts(),
        by_unit in any::<bool>(), writes in any::<bool>(),
    ) {
        let dir = Disk::Real.folder().unwrap();
        let seed = u64::from(seed);
        std::fs::write(dir.path().join("in"), content(seed, 0..len)).unwrap();
        let order = if by_unit { MergeOrder::ByUnit } else { MergeOrder::Any };
        let effect = if writes { Effect::Transform } else { Effect::Reduce };
        let (outcome, _) = insist(dir.path(), &trouble, &options, |patience| {
            let mut probe = Probe::new(effect, order, seed, 0..len);
            probe.at_block = Box::new(move |_| spend(&patience));
            probe
        });
        let (mut seen, block_bytes) = (outcome.part, options.block_bytes.unwrap());
        if !by_unit {
            seen.sort();
        }
        prop_assert_eq!(seen, expected(seed, 0..len, block_bytes));
        if writes {
            prop_assert!(std::fs::read(dir.path().join("out")).unwrap() == transformed(seed, 0..len));
        }
        prop_assert_eq!(names(dir.path()), if writes { vec!["in", "out"] } else { vec!["in"] });
    }

    #[test]
    fn an_interrupted_rewrite_ends_as_one_that_was_not(
        len in 0_u64..60_000, seed in any::<u32>(), trouble in troubles(), options in layouts(),
        repeats_max in prop::sample::select(&[0_u16, 1, 9, 255]),
    ) {
        let dir = Disk::Real.folder().unwrap();
        let input = content(seed.into(), 0..len);
        std::fs::write(dir.path().join("in"), &input).unwrap();
        let (outcome, _) = insist(dir.path(), &trouble, &options, |patience| {
            let repeat = Repeat { repeats_max, refused: None };
            Impatient { repeat, patience }
        });
        let plain = Repeat { repeats_max, refused: None }.plain(&input);
        prop_assert!(std::fs::read(dir.path().join("out")).unwrap() == plain);
        let sum = input.iter().fold(0_u64, |sum, byte| sum + u64::from(*byte));
        prop_assert_eq!(outcome.part.0, sum);
        prop_assert_eq!(names(dir.path()), ["in", "out"]);
    }
}

/// A rewrite that gives up now and then.
struct Impatient {
    repeat: Repeat,
    patience: Arc<AtomicU64>,
}

impl Kernel for Impatient {
    type Part = <Repeat as Kernel>::Part;
    type Header = ();

    fn name(&self) -> &str {
        self.repeat.name()
    }

    fn cut(&self, header: &()) -> cellway_stream::Cut {
        self.repeat.cut(header)
    }

    fn effect(&self) -> Effect {
        self.repeat.effect()
    }

    fn part(&self, accelerators: usize) -> Self::Part {
        self.repeat.part(accelerators)
    }

    fn block(
        &self,
        unit: &cellway_stream::Unit<'_>,
        block: cellway_stream::Block<'_>,
        part: &mut Self::Part,
    ) -> Result<(), KernelError> {
        if block.out.goes_on_from().is_none() {
            spend(&self.patience)?;
        }
        self.repeat.block(unit, block, part)
    }

    fn merge(&self, part: &mut Self::Part, later: Self::Part) -> Result<(), KernelError> {
        self.repeat.merge(part, later)
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        self.repeat.parameters()
    }

    fn save(&self, part: &Self::Part, out: &mut Vec<u8>) -> Result<(), KernelError> {
        self.repeat.save(part, out)
    }

    fn load(&self, saved: &[u8], accelerators: usize) -> Result<Self::Part, KernelError> {
        self.repeat.load(saved, accelerators)
    }
}

/// One unit at a time: what was recorded is not computed again.
#[test]
fn recorded_units_are_not_computed_again() {
    let dir = Disk::Real.folder().unwrap();
    std::fs::write(dir.path().join("in"), content(1, 0..10_000)).unwrap();
    let options = Options {
        accelerators: Some(1),
        threads: Some(1),
        block_bytes: Some(1000),
        ..Options::default()
    };
    let calls = Arc::new(AtomicU64::new(0));
    let trouble = Trouble { patience: 1, tear: None, faults: None };
    let (_, attempts) = insist(dir.path(), &trouble, &options, |patience| {
        let calls = Arc::clone(&calls);
        let mut probe = Probe::new(Effect::Transform, MergeOrder::Any, 1, 0..10_000);
        probe.at_block = Box::new(move |_| {
            spend(&patience)?;
            calls.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        probe
    });
    // 1 + 2 + 3 + 4 units.
    assert_eq!((attempts, calls.load(Ordering::Relaxed)), (4, 10));
}

/// A device that breaks in the middle is no reason to begin anew.
#[test]
fn a_long_interval_records_nothing_but_the_end() {
    let dir = Disk::Real.folder().unwrap();
    std::fs::write(dir.path().join("in"), content(1, 0..10_000)).unwrap();
    let options = Options { block_bytes: Some(1000), ..Options::default() };
    let mut probe = Probe::new(Effect::Reduce, MergeOrder::ByUnit, 1, 0..10_000);
    probe.at_block = Box::new(|offset| match offset {
        9000 => Err(KernelError::new("refused", "go on")),
        _ => Ok(()),
    });
    let begun = std::fs::metadata(dir.path().join("in")).unwrap().len();
    attempt(dir.path(), &probe, &options, Duration::from_secs(1 << 20)).unwrap_err();
    let journal = std::fs::read(dir.path().join("journal")).unwrap();
    assert!(begun > journal.len() as u64, "a record of {} bytes was not due", journal.len());
    let mut again = Probe::new(Effect::Reduce, MergeOrder::ByUnit, 1, 0..10_000);
    let first = Arc::new(AtomicU64::new(u64::MAX));
    let least = Arc::clone(&first);
    again.at_block = Box::new(move |offset| {
        least.fetch_min(offset, Ordering::Relaxed);
        Ok(())
    });
    attempt(dir.path(), &again, &options, Duration::from_secs(1 << 20)).unwrap();
    assert_eq!(first.load(Ordering::Relaxed), 0);
}

fn refusal<T>(result: Result<T, StreamError>) -> JournalError {
    match result.map(drop).unwrap_err() {
        StreamError::Journal(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn another_run_is_refused() {
    let dir = Disk::Real.folder().unwrap();
    let input = dir.path().join("in");
    std::fs::write(&input, content(1, 0..10_000)).unwrap();
    let options = Options { block_bytes: Some(1000), ..Options::default() };
    let probe = |effect, align_bytes, fails: bool| {
        let mut probe = Probe::new(effect, MergeOrder::Any, 1, 0..10_000);
        probe.cut = Cut::records(align_bytes);
        if fails {
            probe.at_block = Box::new(|_| Err(KernelError::new("refused", "go on")));
        }
        probe
    };
    let now = Duration::ZERO;
    attempt(dir.path(), &probe(Effect::Transform, 1, true), &options, now).unwrap_err();
    let journal = std::fs::read(dir.path().join("journal")).unwrap();

    let error = refusal(attempt(dir.path(), &probe(Effect::Transform, 2, false), &options, now));
    assert_eq!(error.kind(), JournalErrorKind::OtherRun, "{error}");
    assert!(error.to_string().contains("other parameters"), "{error}");
    let error = refusal(attempt(dir.path(), &probe(Effect::Reduce, 1, false), &options, now));
    assert!(error.to_string().contains("give the same OUTPUT"), "{error}");
    let blocks = Options { block_bytes: Some(999), ..options.clone() };
    let error = refusal(attempt(dir.path(), &probe(Effect::Transform, 1, false), &blocks, now));
    assert!(error.to_string().contains("blocks of 1000 bytes"), "{error}");
    let repeat = Repeat { repeats_max: 1, refused: None };
    let error = refusal(attempt(dir.path(), &repeat, &options, now));
    assert!(error.to_string().contains("is the journal of probe, not of repeat"), "{error}");
    assert_eq!(std::fs::read(dir.path().join("journal")).unwrap(), journal);

    let file = std::fs::File::options().write(true).open(&input).unwrap();
    let changed = file.metadata().unwrap().modified().unwrap() + Duration::from_secs(1);
    file.set_modified(changed).unwrap();
    let error = refusal(attempt(dir.path(), &probe(Effect::Transform, 1, false), &options, now));
    assert_eq!(error.kind(), JournalErrorKind::Changed, "{error}");
    std::fs::rename(&input, dir.path().join("old")).unwrap();
    std::fs::write(&input, content(1, 0..10_000)).unwrap();
    let error = refusal(attempt(dir.path(), &probe(Effect::Transform, 1, false), &options, now));
    assert!(error.to_string().contains("another file"), "{error}");
}

#[test]
fn one_journal_is_one_process_s() {
    let dir = Disk::Real.folder().unwrap();
    std::fs::write(dir.path().join("in"), content(1, 0..10_000)).unwrap();
    let probe = Probe::new(Effect::Reduce, MergeOrder::Any, 1, 0..10_000);
    let input = Input::open(&dir.path().join("in")).unwrap();
    let plan = plan(&probe, &input, &Options::default()).unwrap();
    let path = dir.path().join("journal");
    let first = Journal::create(&path, false, (&probe, &input, &plan), None).unwrap();
    for force in [false, true] {
        let error = Journal::create(&path, force, (&probe, &input, &plan), None).unwrap_err();
        let kind = if force { JournalErrorKind::Busy } else { JournalErrorKind::Exists };
        assert_eq!(error.kind(), kind, "{error}");
    }
    assert_eq!(Journal::open(&path).unwrap_err().kind(), JournalErrorKind::Busy);
    drop(first);
    Journal::open(&path).unwrap();
    // What is no journal is not replaced.
    std::fs::write(&path, "somebody's text").unwrap();
    let error = Journal::create(&path, true, (&probe, &input, &plan), None).unwrap_err();
    assert_eq!(error.kind(), JournalErrorKind::Unreadable, "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody's text");
}

/// A run goes on from what is whole of its journal, wherever that is torn.
#[test]
fn a_journal_torn_at_any_byte_is_gone_on_with() {
    let dir = Disk::Real.folder().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("in"), content(1, 0..3900)).unwrap();
    let options = Options { block_bytes: Some(1000), ..Options::default() };
    let mut probe = Probe::new(Effect::Transform, MergeOrder::ByUnit, 1, 0..3900);
    probe.at_block = Box::new(|offset| match offset {
        3000 => Err(KernelError::new("refused", "go on")),
        _ => Ok(()),
    });
    let one = Options { accelerators: Some(1), threads: Some(1), ..options.clone() };
    attempt(dir.path(), &probe, &one, Duration::ZERO).unwrap_err();
    probe.at_block = Box::new(|_| Ok(()));
    let journal = std::fs::read(path("journal")).unwrap();
    let found = names(dir.path());
    let hidden = path(found.iter().find(|name| name.starts_with('.')).unwrap());
    let written = std::fs::read(&hidden).unwrap();
    // A second name: the file is the same one each time.
    std::fs::hard_link(&hidden, path("kept")).unwrap();
    for len in 0..=journal.len() {
        let _ = std::fs::remove_file(&hidden);
        std::fs::hard_link(path("kept"), &hidden).unwrap();
        std::fs::write(&hidden, &written).unwrap();
        std::fs::write(path("journal"), &journal[..len]).unwrap();
        let outcome = attempt(dir.path(), &probe, &options, Duration::from_secs(1 << 20)).unwrap();
        assert_eq!(outcome.part, expected(1, 0..3900, 1000), "{len}");
        assert!(std::fs::read(path("out")).unwrap() == transformed(1, 0..3900), "{len}");
        std::fs::remove_file(path("out")).unwrap();
        let _ = std::fs::remove_file(&hidden);
        assert_eq!(names(dir.path()), ["in", "kept"], "{len}");
    }
}

/// What decides on a default may change between a journal's start and its run.
#[test]
fn a_run_keeps_the_blocks_of_its_journal() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("in"), content(1, 0..1_000_000)).unwrap();
    let input = Input::open(&dir.path().join("in")).unwrap();
    let kernel = Probe::new(Effect::Reduce, MergeOrder::ByUnit, 1, 0..1_000_000);
    let small = Options { local_store_bytes: Some(64 << 10), ..Options::default() };
    let laid = plan(&kernel, &input, &small).unwrap();
    let path = dir.path().join("journal");
    let mut journal = Journal::create(&path, false, (&kernel, &input, &laid), None).unwrap();
    let (options, progress) = (Options::default(), Progress::default());
    let ran = run_journaled(&kernel, &input, None, &options, &progress, Some(&mut journal));
    assert_eq!(ran.unwrap().stats.plan.block_bytes, laid.block_bytes);
    assert_ne!(plan(&kernel, &input, &options).unwrap().block_bytes, laid.block_bytes);
}
