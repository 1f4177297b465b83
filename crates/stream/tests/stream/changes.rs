//! Inputs that do not stay as they were.

use std::fs::{File, FileTimes};
use std::io::Write as _;
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, SystemTime};

use cellway_stream::{Direct, MergeOrder, Progress, StreamError, run};
use proptest::prelude::*;
use storage::{InputError, InputErrorKind, Output};

use crate::probe::content;
use crate::setting::{SCHEMES, Setting, To, has_direct, names};

const BLOCK_BYTES: u64 = 4096;
const LEN_BYTES: u64 = 64 * BLOCK_BYTES;

/// Runs while `change` happens to the input, in the first block that comes up.
fn run_while(
    setting: &Setting,
    change: impl Fn(&Path) + Send + Sync + 'static,
) -> Result<(), StreamError> {
    let dir = setting.disk.folder().unwrap();
    let (input, _) = setting.input(dir.path());
    let path = dir.path().join("in");
    // Long ago, as two changes within a tick of the clock may look like one.
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::open(&path).unwrap().set_times(FileTimes::new().set_modified(long_ago)).unwrap();
    drop(input);
    let input = storage::Input::open(&path).unwrap();
    let output = Output::create(&dir.path().join("out"), &Default::default()).unwrap();
    let mut kernel = setting.probe(MergeOrder::Any);
    let once = Once::new();
    kernel.at_block = Box::new(move |_| {
        once.call_once(|| change(&path));
        Ok(())
    });
    let progress = Progress::default();
    let outcome = run(&kernel, &input, Some(&output), &setting.options, &progress);
    drop(output);
    assert!(!names(dir.path()).iter().any(|name| name.contains("out")), "{:?}", names(dir.path()));
    outcome.map(drop)
}

fn setting() -> Setting {
    Setting::of_file(LEN_BYTES, BLOCK_BYTES, To::File)
}

/// The error of an input that changed, which its message names.
#[track_caller]
fn changed(outcome: Result<(), StreamError>) -> InputError {
    let error = outcome.unwrap_err();
    let StreamError::Input(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), InputErrorKind::Changed, "{error}");
    let message = error.to_string();
    assert!(message.contains("/in") && !message.contains('\n'), "{message}");
    assert!(message.ends_with("run again when nothing writes to it"), "{message}");
    error
}

fn truncate(path: &Path, len: u64) {
    File::options().write(true).open(path).unwrap().set_len(len).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn truncated_input_ends_the_run_where_it_ends(
        new_len in 2 * BLOCK_BYTES..LEN_BYTES, direct in any::<bool>(),
        // Those that read into memory may have read on already.
        scheme in prop::sample::select(&SCHEMES[..4]),
    ) {
        let direct = if direct && has_direct() { Direct::On } else { Direct::Off };
        let setting = setting().at(1, 1).direct(direct).scheme(scheme).suited();
        let outcome = run_while(&setting, move |path| truncate(path, new_len));
        let error = changed(outcome);
        prop_assert_eq!(error.offset(), Some(new_len), "{}", error);
    }

    /// With units in flight some are past the new end already.
    #[test]
    fn truncated_input_ends_the_run_of_any_machine(
        new_len in 0..LEN_BYTES, accelerators in 1usize..4, threads in 1usize..5,
        scheme in prop::sample::select(&SCHEMES),
    ) {
        let setting = setting().at(accelerators, threads).scheme(scheme);
        let error = changed(run_while(&setting, move |path| truncate(path, new_len)));
        if !SCHEMES[..4].contains(&scheme) {
            // All of it, or some buffers, may have been read before.
            prop_assert!(error.offset().is_none_or(|offset| offset >= new_len), "{}", error);
            return Ok(());
        }
        // A unit for each thread may have been read before the end came nearer.
        let offset = error.offset().expect("the error says where");
        let in_flight = accelerators as u64 * threads as u64 * BLOCK_BYTES;
        prop_assert!(offset >= new_len && offset <= new_len.max(in_flight), "{}", error);
    }
}

#[test]
fn input_that_grows_is_an_error() {
    for scheme in SCHEMES {
        let error = changed(run_while(&setting().scheme(scheme), |path| {
            File::options().append(true).open(path).unwrap().write_all(b"more").unwrap();
        }));
        assert!(error.to_string().contains("went from 262144 to 262148 bytes"), "{error}");
    }
}

#[test]
fn input_that_is_written_to_is_an_error() {
    for scheme in SCHEMES {
        let error = changed(run_while(&setting().scheme(scheme), |path| {
            File::options().write(true).open(path).unwrap().write_all(b"other").unwrap();
        }));
        assert!(error.to_string().contains("was written to while it was read"), "{error}");
    }
}

#[test]
fn input_that_is_replaced_is_an_error() {
    for scheme in SCHEMES {
        let setting = setting().scheme(scheme);
        let same = content(setting.seed, 0..LEN_BYTES);
        let error = changed(run_while(&setting, move |path| {
            std::fs::write(path.with_file_name("new"), &same).unwrap();
            std::fs::rename(path.with_file_name("new"), path).unwrap();
        }));
        assert!(error.to_string().contains("was replaced by another file"), "{error}");
    }
}

/// It can still be read to its end.
#[test]
fn input_that_is_removed_is_none() {
    for scheme in SCHEMES {
        let removed = |path: &Path| std::fs::remove_file(path).unwrap();
        run_while(&setting().scheme(scheme), removed).unwrap();
    }
}
