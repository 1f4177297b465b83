//! The bound on memory, in a process of its own.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use accel::EngineChoice;
use cellway_stream::{
    Block, Chain, Direct, Effect, Kernel, KernelError, Options, Pipeline, Progress, Scheme,
    StreamError, Transform, Unit, peak_rss_bytes, rss_bytes, run,
};
use storage::{Input, Output};

use crate::setting::{Disk, fd_path, has_uring};

/// Tells the same test in a child process which folder to work in, and how.
const CHILD: &str = "CELLWAY_STREAM_CHILD";

const LEN_BYTES: u64 = 64 << 20;

/// Keeps nothing: what a run takes is the stream's own.
struct Bare(Effect);

impl Kernel for Bare {
    type Part = ();
    type Header = ();

    fn name(&self) -> &str {
        "bare"
    }

    fn effect(&self) -> Effect {
        self.0
    }

    fn looks_in_place(&self) -> bool {
        !self.0.writes()
    }

    fn part(&self, _accelerators: usize) {}

    fn block(&self, _: &Unit<'_>, block: Block<'_>, (): &mut ()) -> Result<(), KernelError> {
        if self.0.writes() {
            block.data.reverse();
        } else {
            std::hint::black_box(block.data.iter().fold(0, |sum, byte| sum ^ byte));
        }
        Ok(())
    }

    fn merge(&self, (): &mut (), (): ()) -> Result<(), KernelError> {
        Ok(())
    }
}

fn options(how: &str) -> Options {
    let engine = if how.contains("pread") { EngineChoice::Pread } else { EngineChoice::Uring };
    let direct = if how.contains("direct") { Direct::Auto } else { Direct::Off };
    let scheme = match how {
        _ if how.contains("whole") => Scheme::Whole,
        _ if how.contains("assisted") => Scheme::ReadAhead,
        _ if how.contains("staged") => Scheme::Staged,
        _ if how.contains("prefetch") => Scheme::Prefetch,
        _ if how.contains("mapped") => Scheme::Mapped,
        _ => Scheme::Auto,
    };
    let pipeline = if how.contains("spread") { Pipeline::Spread } else { Pipeline::Fused };
    // Buffers are as many as threads.
    let accelerators = (scheme == Scheme::Staged).then_some(2);
    let options = Options { accelerators, engine, direct, scheme, pipeline, ..Options::default() };
    match how.contains("thousands") {
        true => Options { threads: Some(1000), block_bytes: Some(2000), ..options },
        false if how.contains("short") => Options { block_bytes: Some(4096), ..options },
        false => options,
    }
}

/// What the child does: a run, whose peak is this process's.
fn stream(dir: &Path, how: &str) -> Result<(), StreamError> {
    let path = dir.join("in");
    let mut feeder = how
        .contains("piped")
        .then(|| Command::new("cat").arg(&path).stdout(Stdio::piped()).spawn().unwrap());
    let pipe = feeder.as_mut().and_then(|feeder| feeder.stdout.take());
    let input = Input::open(&pipe.as_ref().map_or(path, fd_path))?;
    drop(pipe);
    let transform = how.contains("transform");
    let options = options(how);
    let len_bytes = input.len_bytes();
    let output = transform.then(|| {
        let output = storage::Options { force: true, len_bytes };
        Output::create(&dir.join("out"), &output).unwrap()
    });
    let last = Bare(if transform { Effect::Transform } else { Effect::Reduce });
    let early = if how.contains("spread") { 2 } else { 0 };
    let first = (0..early).map(|_| Box::new(Bare(Effect::Transform)) as Transform);
    let kernel = Chain::new(first.collect(), last).unwrap();
    // The peak is to be the run's, not one from before.
    let before = peak_rss_bytes().unwrap().saturating_sub(rss_bytes().unwrap());
    assert!(before < 1 << 20, "{before} bytes were given back before the run");
    let stats = run(&kernel, &input, output.as_ref(), &options, &Progress::default())?.stats;
    drop(input);
    feeder.into_iter().for_each(|mut feeder| assert!(feeder.wait().unwrap().success()));
    assert_eq!(stats.bytes_in, LEN_BYTES);
    let (peak, bound) = (stats.peak_rss_bytes.unwrap(), stats.memory_bound_bytes);
    println!("{how}: peak {} KiB, bound {} KiB", peak >> 10, bound >> 10);
    assert!(peak <= bound, "{how}: the peak of {peak} bytes exceeds the bound of {bound}");
    let holds_all = bound >= LEN_BYTES;
    assert_eq!(holds_all, how.contains("whole"), "{how}: a bound of {bound} bytes");
    Ok(())
}

#[test]
fn no_run_takes_more_memory_than_its_bound() {
    if let Some(told) = std::env::var_os(CHILD) {
        let told = told.into_string().unwrap();
        let (how, dir) = told.split_once('=').unwrap();
        return stream(&PathBuf::from(dir), how).unwrap();
    }
    let dir = Disk::Real.folder().unwrap();
    let mut input = File::create(dir.path().join("in")).unwrap();
    (0..LEN_BYTES >> 20).for_each(|n| input.write_all(&vec![n as u8; 1 << 20]).unwrap());
    let mut ways =
        vec!["reduce pread", "transform pread", "transform direct pread", "thousands pread"];
    ways.extend(["reduce whole pread", "transform whole pread", "reduce mapped pread"]);
    ways.push("reduce mapped short pread");
    ways.extend(["transform assisted pread", "reduce staged pread", "transform staged pread"]);
    ways.extend(["transform piped staged pread", "transform piped prefetch pread"]);
    ways.extend(["reduce spread pread", "transform spread direct pread"]);
    if has_uring() {
        ways.extend([
            "thousands spread",
            "transform spread",
            "reduce",
            "transform",
            "transform direct",
            "thousands",
        ]);
    }
    for how in ways {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "--test-threads=1"])
            .arg("memory::no_run_takes_more_memory_than_its_bound")
            .env(CHILD, format!("{how}={}", dir.path().display()))
            .output()
            .unwrap();
        let (out, err) =
            (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
        assert!(child.status.success(), "{out}{err}");
        assert!(out.contains("1 passed"), "{out}{err}");
        print!("{out}");
    }
}
