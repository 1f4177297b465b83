//! What only pipes do: end early, come back, and keep their order.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Once;

use cellway_stream::{MergeOrder, Progress, StreamError, run};
use rustix::fs::{CWD, FileType, Mode};
use storage::{Input, Output, OutputErrorKind};

use crate::probe::{content, expected};
use crate::setting::{From, SCHEMES, Setting, To, fd_path};

/// Each scheme from a file, and from a pipe where it can.
fn ways() -> impl Iterator<Item = Setting> {
    SCHEMES.into_iter().flat_map(|scheme| {
        let froms = [From::File, From::Pipe].into_iter();
        froms.filter_map(move |from| {
            let mut setting = Setting::of_file(1 << 20, 10_000, To::Pipe).scheme(scheme);
            setting.from = from;
            (!setting.is_unsuited()).then_some(setting)
        })
    })
}

/// A reader that takes some bytes and goes. Without it the pipe would fill up.
#[test]
fn a_reader_that_leaves_is_told_apart_from_a_failure() {
    let machines = [(1, 1), (1, 4), (3, 4)];
    for ((accelerators, threads), way) in
        machines.into_iter().flat_map(|at| ways().map(move |way| (at, way)))
    {
        let setting = way.at(accelerators, threads);
        let dir = setting.disk.folder().unwrap();
        let (input, feeder) = setting.input(dir.path());
        let (mut reader, writer) = std::io::pipe().unwrap();
        let output = Output::create(&fd_path(&writer), &Default::default()).unwrap();
        drop(writer);
        let leaver = std::thread::spawn(move || reader.read_exact(&mut [0; 30_000]).unwrap());
        let (kernel, progress) = (setting.probe(MergeOrder::Any), Progress::default());
        let error = run(&kernel, &input, Some(&output), &setting.options, &progress);
        let StreamError::Output(error) = error.unwrap_err() else { panic!("it is the output's") };
        assert!(error.is_broken_pipe(), "{error}");
        assert!(error.offset().is_some_and(|offset| offset >= 30_000), "{error}");
        leaver.join().unwrap();
        drop(input);
        feeder.into_iter().for_each(|feeder| feeder.join().unwrap());
    }
}

/// A device that is always full.
#[test]
fn a_full_device_is_told_at_its_first_block() {
    for setting in ways().map(|way| way.at(2, 3)) {
        let dir = setting.disk.folder().unwrap();
        let (input, feeder) = setting.input(dir.path());
        let output = Output::create(Path::new("/dev/full"), &Default::default()).unwrap();
        let (kernel, progress) = (setting.probe(MergeOrder::Any), Progress::default());
        let error = run(&kernel, &input, Some(&output), &setting.options, &progress);
        let StreamError::Output(error) = error.unwrap_err() else { panic!("it is the output's") };
        assert_eq!((error.kind(), error.offset()), (OutputErrorKind::NoSpace, Some(0)));
        assert!(error.to_string().starts_with("/dev/full at byte 0: cannot be written: No space"));
        drop(input);
        feeder.into_iter().for_each(|feeder| feeder.join().unwrap());
    }
}

/// A FIFO that ended may be written to once more: that is another stream,
/// whose bytes do not continue the first one's records.
#[test]
fn what_comes_after_the_end_is_not_read() {
    let setting = Setting::of_file(1500, 1000, To::Nothing).at(1, 3);
    let dir = setting.disk.folder().unwrap();
    let path = dir.path().join("fifo");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let (first, bytes) = (path.clone(), content(setting.seed, 0..1500));
    let first = std::thread::spawn(move || {
        File::options().write(true).open(first).unwrap().write_all(&bytes).unwrap();
    });
    let input = Input::open(&path).unwrap();
    first.join().unwrap();
    let mut kernel = setting.probe(MergeOrder::ByUnit);
    let once = Once::new();
    kernel.at_block = Box::new(move |offset| {
        if offset == 1000 {
            once.call_once(|| {
                File::options().write(true).open(&path).unwrap().write_all(&[7; 300]).unwrap();
            });
        }
        Ok(())
    });
    let outcome = run(&kernel, &input, None, &setting.options, &Progress::default()).unwrap();
    assert_eq!(outcome.part, expected(setting.seed, 0..1500, 1000));
}

/// Nobody knows how long a pipe is; blocks and threads are bounded all the same.
#[test]
fn a_pipe_of_any_length_has_the_same_memory_bound() {
    for way in ways().filter(|way| way.from == From::Pipe) {
        let bounds = [0, 1, 5_000_000].map(|len| {
            let mut setting = Setting::of_file(len, 100_000, To::Null).at(2, 3);
            (setting.from, setting.options.scheme) = (From::Pipe, way.options.scheme);
            let ran = setting.run(&setting.probe(MergeOrder::Any)).unwrap();
            let plan = ran.outcome.unwrap().stats.plan;
            assert_eq!((plan.units, plan.output_bytes()), (None, None));
            plan.memory_bytes
        });
        assert_eq!(bounds[0], bounds[1]);
        assert_eq!(bounds[1], bounds[2]);
    }
}
