//! Runs over many inputs that are interrupted and gone on with.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellway_stream::{
    Cut, Effect, Journal, JournalError, JournalErrorKind, KernelError, MergeOrder, Options,
    Outputs, Progress, StreamError, run_all_journaled,
};
use proptest::prelude::*;
use storage::{OutDir, list};

use crate::many::{Collect, Seen, Tree, kernels, lens, machines};
use crate::setting::names;

/// One attempt over the files of a tree: it goes on with `journal`, or begins it.
fn attempt(tree: &Tree, kernel: &Collect, options: &Options) -> Result<Vec<Seen>, StreamError> {
    let (path, out) = (tree.dir.path().join("journal"), tree.dir.path().join("out/in"));
    fs::create_dir_all(tree.dir.path().join("in")).unwrap();
    let inputs = list(&[tree.dir.path().join("in")], true)?;
    let run = (kernel, &inputs[..], options);
    let writes = kernel.effect.writes();
    let mut journal = match path.exists() {
        true => Journal::open(&path)?,
        false => {
            let dir = writes.then(|| OutDir::prepare(&out, &inputs, false)).transpose()?;
            Journal::create_all(&path, false, run, dir.as_ref())?
        }
    };
    let out_dir = writes.then_some(out.as_path());
    journal.check_all(run, out_dir)?;
    let go_on = |path| OutDir::go_on(path, &inputs, journal.inputs_done(), false);
    let dir = out_dir.map(go_on).transpose()?;
    let outputs = dir.as_ref().map(|dir| Outputs { dir, sync: false });
    journal = journal.every(Duration::ZERO);
    let progress = Progress::default();
    let outputs = outputs.as_ref();
    let ran = run_all_journaled(kernel, &inputs, outputs, options, &progress, Some(&mut journal))?;
    journal.remove()?;
    Ok(ran.part)
}

/// Attempts that each compute a few units more than the one before; what it
/// came to, and the units computed.
fn insist(
    tree: &Tree,
    kernel: &mut Collect,
    patience: u64,
    options: impl Fn(u64) -> Options,
) -> (Vec<Seen>, u64) {
    let left = Arc::new(AtomicU64::new(0));
    let calls = Arc::new(AtomicU64::new(0));
    let (spent, counted) = (Arc::clone(&left), Arc::clone(&calls));
    kernel.at_block = Box::new(move |_| {
        let spend = |left: u64| left.checked_sub(1);
        if spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err() {
            return Err(KernelError::new("out of patience", "go on"));
        }
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    for number in 0..2000 {
        left.store(patience + number, Ordering::Relaxed);
        match attempt(tree, kernel, &options(number)) {
            Ok(part) => return (part, calls.load(Ordering::Relaxed)),
            Err(StreamError::Kernel { error, .. }) if error.what == "out of patience" => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no attempt gets further");
}

/// Nothing but what belongs there.
fn is_tidy(tree: &Tree, kernel: &Collect) {
    let expected = if kernel.effect.writes() { vec!["in", "out"] } else { vec!["in"] };
    let found = names(tree.dir.path());
    assert!(found.iter().all(|name| expected.contains(&name.as_str())), "{found:?}");
    if kernel.effect.writes() && !tree.bodies.is_empty() {
        assert!((0..tree.bodies.len()).all(|number| tree.has_output(kernel, number)));
        assert_eq!(tree.outputs(), tree.bodies.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn an_interrupted_run_over_many_ends_as_one_that_was_not(
        lens in lens(40), kernel in kernels(), options in machines(), patience in 1_u64..30,
        others in prop::collection::vec(1_usize..4, 4),
    ) {
        let mut kernel = kernel;
        let tree = Tree::new(&lens);
        let (seen, _) = insist(&tree, &mut kernel, patience, |attempt| {
            let accelerators = Some(others[attempt as usize % others.len()]);
            Options { accelerators, ..options.clone() }
        });
        tree.check(&kernel, seen);
        is_tidy(&tree, &kernel);
    }
}

/// One unit at a time: of what was recorded nothing is computed again, be it a
/// part of a large file or some of many small ones.
#[test]
fn recorded_files_are_not_computed_again() {
    let options = Options {
        accelerators: Some(1),
        threads: Some(1),
        block_bytes: Some(1 << 20),
        ..Options::default()
    };
    for effect in [Effect::Reduce, Effect::Transform, Effect::Rewrite] {
        let mut lens = vec![Some(1000); 50];
        lens.insert(20, Some(5 << 20));
        let tree = Tree::new(&lens);
        let mut kernel = Collect::new(effect, MergeOrder::Any, Cut::ANYWHERE);
        // A claim has 8 files, which are done together or anew.
        let (seen, calls) = insist(&tree, &mut kernel, 8, |_| options.clone());
        tree.check(&kernel, seen);
        is_tidy(&tree, &kernel);
        let units = 50 + 5;
        assert!(calls < 2 * units, "{calls} units computed, {effect:?}");
        let (_, at_once) = insist(&tree_again(&tree), &mut kernel, 1000, |_| options.clone());
        assert_eq!(at_once, units);
    }
}

/// The same files with nothing written yet.
fn tree_again(tree: &Tree) -> Tree {
    let len = |body: &Option<Vec<u8>>| body.as_ref().map(|body| body.len() as u64);
    Tree::new(&tree.bodies.iter().map(len).collect::<Vec<_>>())
}

fn refusal<T>(result: Result<T, StreamError>) -> JournalError {
    match result.map(drop).unwrap_err() {
        StreamError::Journal(error) => error,
        other => panic!("{other}"),
    }
}

/// A tree of which some was computed, and its kernel, which goes on.
fn begun(effect: Effect) -> (Tree, Collect) {
    let tree = Tree::new(&[Some(1000); 40]);
    let mut kernel = Collect::new(effect, MergeOrder::ByUnit, Cut::ANYWHERE);
    kernel.at_block = Box::new(|number| match number {
        20 => Err(KernelError::new("refused", "go on")),
        _ => Ok(()),
    });
    let options = Options { accelerators: Some(1), ..Options::default() };
    attempt(&tree, &kernel, &options).unwrap_err();
    kernel.at_block = Box::new(|_| Ok(()));
    (tree, kernel)
}

#[test]
fn other_inputs_are_refused() {
    let (tree, mut kernel) = begun(Effect::Transform);
    let options = Options::default();
    let journal = fs::read(tree.dir.path().join("journal")).unwrap();
    let refused = |options: &Options, kind, what: &str| {
        let error = refusal(attempt(&tree, &kernel, options));
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(fs::read(tree.dir.path().join("journal")).unwrap(), journal);
    };
    use JournalErrorKind::{Changed, OtherRun};
    let direct = Options { direct: cellway_stream::Direct::On, ..options.clone() };
    refused(&direct, OtherRun, "another --engine, --direct");
    let blocks = Options { block_bytes: Some(999), ..options.clone() };
    refused(&blocks, OtherRun, "leave --block out");

    let one = tree.input(7);
    let (content, found) = (fs::read(&one).unwrap(), fs::metadata(&one).unwrap());
    fs::write(&one, [&content[..], b"more"].concat()).unwrap();
    refused(&options, Changed, "has another length, was changed since");
    fs::write(&one, &content).unwrap();
    refused(&options, Changed, "one of the 40 inputs was changed since");
    let times = fs::FileTimes::new().set_modified(found.modified().unwrap());
    fs::File::open(&one).unwrap().set_times(times).unwrap();
    fs::rename(&one, one.with_extension("x")).unwrap();
    refused(&options, OtherRun, "other names");
    fs::rename(one.with_extension("x"), &one).unwrap();
    fs::write(one.with_extension("y"), "").unwrap();
    refused(&options, OtherRun, "40 inputs, 40160 bytes in all, and now there are 41");
    fs::remove_file(one.with_extension("y")).unwrap();
    kernel.cut.align_bytes = 2;
    let error = refusal(attempt(&tree, &kernel, &options));
    assert!(error.to_string().contains("other parameters"), "{error}");
    kernel.cut.align_bytes = 1;
    tree.check(&kernel, attempt(&tree, &kernel, &options).unwrap());
    is_tidy(&tree, &kernel);
}

/// Outputs that are there stay; what else has an output's name is not replaced.
#[test]
fn outputs_that_are_there_stay_if_they_are_whole() {
    let (tree, kernel) = begun(Effect::Transform);
    let written = (0..40).filter(|number| tree.output(*number).exists()).count();
    assert!((16..40).contains(&written), "{written}");
    // Complete before the last record, and after it.
    let inode = |number: usize| {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(tree.output(number)).unwrap().ino()
    };
    let before = [inode(0), inode(19)];
    fs::write(tree.output(30), "another's").unwrap();
    match attempt(&tree, &kernel, &Options::default()) {
        Err(StreamError::Output(error)) => {
            assert_eq!(error.kind(), storage::OutputErrorKind::Exists);
            assert!(error.to_string().contains("holds something else"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read(tree.output(30)).unwrap(), b"another's");
    fs::remove_file(tree.output(30)).unwrap();
    let away = tree.output(0).with_extension("away");
    fs::rename(tree.output(0), &away).unwrap();
    let error = attempt(&tree, &kernel, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("was written and is gone"), "{error}");
    fs::rename(&away, tree.output(0)).unwrap();
    tree.check(&kernel, attempt(&tree, &kernel, &Options::default()).unwrap());
    assert_eq!([inode(0), inode(19)], before);
    is_tidy(&tree, &kernel);
}

#[test]
fn outputs_in_the_place_of_inputs_are_refused() {
    let tree = Tree::new(&[Some(10), Some(20)]);
    let kernel = Collect::new(Effect::Transform, MergeOrder::Any, Cut::ANYWHERE);
    let inputs = list(&[tree.dir.path().join("in")], true).unwrap();
    let dir = OutDir::prepare(&tree.dir.path().join("in"), &inputs, true).unwrap();
    let run = (&kernel, &inputs[..], &Options::default());
    let journal = tree.dir.path().join("journal");
    let error = Journal::create_all(&journal, false, run, Some(&dir)).unwrap_err();
    assert!(error.to_string().contains("is an input"), "{error}");
    assert!(!journal.exists());
}
