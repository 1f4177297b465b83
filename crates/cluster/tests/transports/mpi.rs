//! Under the mpirun of Open MPI 5, Open MPI 4.1 and MPICH.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use cellway_cluster::transport::Endpoint;
use cellway_cluster::transport::contract::{self, Loss};
use cellway_cluster::transport::mpi::{self, Mpi, WhenLost};

use crate::{jobs, seed, watch};

/// Tell a process what it does as one of many: which part, by which seed, and what MPI
/// must say of losses.
const PART: &str = "CELLWAY_MPI_PART";
const SEED: &str = "CELLWAY_MPI_SEED";
const WHEN_LOST: &str = "CELLWAY_MPI_WHEN_LOST";

/// Said by each process that did its part.
const DONE: &str = "has done its part";

/// The MPIs below the build folder, each with options of its mpirun.
const OPEN_MPI_5: (&str, &[&str]) = ("openmpi5", &["--oversubscribe", "--bind-to", "none"]);
const OPEN_MPI_4: (&str, &[&str]) = ("openmpi4", &["--oversubscribe", "--bind-to", "none"]);
const MPICH: (&str, &[&str]) = ("mpich", &[]);
const ALL: [(&str, &[&str]); 3] = [OPEN_MPI_5, OPEN_MPI_4, MPICH];

/// Where `cargo xtask test` makes it.
fn bin(mpi: &str) -> Option<PathBuf> {
    let peers = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("peers");
    let bin = peers.join(mpi).join("bin");
    if bin.join("mpirun").exists() {
        return Some(bin);
    }
    let what = format!("{} is not there; run cargo xtask test, which makes it", bin.display());
    println!("SKIP {mpi}: {what}");
    assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "{mpi}: {what}");
    None
}

/// One run, of this program.
struct Run {
    command: Command,
    seed: u64,
}

impl Run {
    /// `processes` under the mpirun of an MPI; none is this program alone.
    fn new(bin: &Path, options: &[&str], processes: usize, part: &str) -> Self {
        let mut command = Command::new("timeout");
        command.args(["-k", "10", "300"]);
        if processes > 0 {
            command.arg(bin.join("mpirun")).args(options).args(["-n", &processes.to_string()]);
        }
        command.arg(env::current_exe().unwrap()).args(["--exact", "mpi::process", "--nocapture"]);
        let path = env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", bin.display()));
        command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
        // Packages of Open MPI that were not made for their place ask for it, where no mpirun does.
        command.env("OPAL_PREFIX", bin.parent().unwrap());
        command.env_remove("CELLWAY_MPICC").env_remove("CELLWAY_MPI_SHIM");
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let seed = seed();
        command.env(PART, part).env(SEED, seed.to_string());
        Self { command, seed }
    }

    fn with(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// What it said, and how many did their part. There is one run at a time, for each
    /// keeps all cores busy.
    fn run(mut self) -> (Output, String, usize) {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let _dog = watch();
        let output = self.command.output().unwrap();
        let said = [&*output.stdout, &output.stderr].map(String::from_utf8_lossy).concat();
        let done = said.matches(DONE).count();
        assert_ne!(output.status.code(), Some(124), "it hangs, seed {}: {said}", self.seed);
        (output, said, done)
    }
}

/// One of the processes that the other tests start.
#[test]
fn process() {
    let Ok(part) = env::var(PART) else { return };
    let seed = env::var(SEED).unwrap().parse().unwrap();
    let mpi = match Mpi::start() {
        Ok(mpi) => mpi,
        Err(error) => {
            println!("refused: {error}");
            mpi::leave(3);
        }
    };
    if let Ok(expected) = env::var(WHEN_LOST) {
        assert_eq!(format!("{:?}", mpi.when_lost()), expected, "{}", mpi.library());
    }
    let own = mpi.own().0;
    let outcome = match &*part {
        "contract" => contract::run(Box::new(mpi), seed),
        "loss at the end" => {
            let outcome = contract::run(Box::new(mpi), seed);
            if own == 1 {
                kill_self();
            }
            outcome
        }
        "loss told" => contract::run_with_loss(Box::new(mpi), seed, Loss::Told, die),
        "loss in silence" => contract::run_with_loss(Box::new(mpi), seed, Loss::Silent, die),
        "jobs" => jobs::run(Box::new(mpi)),
        part => panic!("no part {part}"),
    };
    let must_leave = mpi::must_leave();
    println!("{own} {DONE}: {outcome:?}, must leave: {must_leave}");
    mpi::leave(i32::from(outcome.is_err()));
}

/// As a crash would.
fn die(_: Box<dyn Endpoint>) {
    kill_self();
}

fn kill_self() {
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
    std::thread::park();
}

fn keeps_the_contract((mpi, options): (&str, &[&str])) {
    let Some(bin) = bin(mpi) else { return };
    for processes in [0, 1, 2, 3, 9] {
        let run = Run::new(&bin, options, processes, "contract");
        let seed = run.seed;
        let (output, said, done) = run.with(WHEN_LOST, "EndsAll").run();
        let what = format!("{processes} processes, seed {seed}: {said}");
        assert!(output.status.success(), "{what}");
        assert_eq!(done, processes.max(1), "{what}");
        assert_eq!(said.matches("Ok(()), must leave: false").count(), done, "{what}");
    }
}

#[test]
fn open_mpi_5_keeps_the_contract() {
    keeps_the_contract(OPEN_MPI_5);
}

#[test]
fn open_mpi_4_keeps_the_contract() {
    keeps_the_contract(OPEN_MPI_4);
}

#[test]
fn mpich_keeps_the_contract() {
    keeps_the_contract(MPICH);
}

#[test]
fn jobs_are_given_while_processes_serve() {
    for (mpi, options) in ALL {
        let Some(bin) = bin(mpi) else { continue };
        for processes in [1, 3] {
            let (output, said, done) = Run::new(&bin, options, processes, "jobs").run();
            assert!(output.status.success() && done == processes, "{mpi}: {said}");
        }
    }
}

fn goes_on_after_a_loss(
    (mpi, options): (&str, &[&str]),
    option: &[&str],
    part: &str,
    when: WhenLost,
) {
    let Some(bin) = bin(mpi) else { return };
    for processes in [2, 3, 9] {
        let run = Run::new(&bin, &[options, option].concat(), processes, part);
        let seed = run.seed;
        let (output, said, done) = run.with(WHEN_LOST, format!("{when:?}")).run();
        let what = format!("{processes} processes, seed {seed}: {said}");
        assert!(output.status.success(), "{what}");
        assert_eq!(done, processes - 1, "{what}");
        assert_eq!(said.matches("Ok(()), must leave: true").count(), done, "{what}");
    }
}

#[test]
fn open_mpi_5_reports_a_loss() {
    goes_on_after_a_loss(OPEN_MPI_5, &["--with-ft", "ulfm"], "loss told", WhenLost::Reported);
}

#[test]
fn open_mpi_4_goes_on_after_a_loss() {
    let option = &["--enable-recovery"];
    goes_on_after_a_loss(OPEN_MPI_4, option, "loss in silence", WhenLost::ByDeadline);
}

#[test]
fn nobody_waits_for_one_that_dies_when_all_is_done() {
    for ((mpi, options), option) in
        [(OPEN_MPI_5, &["--with-ft", "ulfm"][..]), (OPEN_MPI_4, &["--enable-recovery"][..])]
    {
        let Some(bin) = bin(mpi) else { continue };
        let (output, said, done) =
            Run::new(&bin, &[options, option].concat(), 3, "loss at the end").run();
        assert!(output.status.success() && done == 2, "{mpi}: {said}");
        assert_eq!(said.matches("Ok(()), must leave: false").count(), 2, "{mpi}: {said}");
    }
}

#[test]
fn all_end_with_one_where_nothing_was_asked_for() {
    // MPICH's option lets mpiexec go on, but it signals the other processes to their end.
    let cleanup: &[&str] = &["-disable-auto-cleanup"];
    for ((mpi, options), option) in
        ALL.map(|mpi| (mpi, &[][..])).into_iter().chain([(MPICH, cleanup)])
    {
        let Some(bin) = bin(mpi) else { continue };
        let run = Run::new(&bin, &[options, option].concat(), 3, "loss told");
        let (output, said, done) = run.with(WHEN_LOST, "EndsAll").run();
        assert!(!output.status.success() && done == 0, "{mpi} {option:?}: {said}");
    }
}

#[test]
fn the_mpicc_of_another_mpi_is_refused() {
    for (mpi, other) in [(OPEN_MPI_5, MPICH), (MPICH, OPEN_MPI_5), (OPEN_MPI_4, MPICH)] {
        let (Some(bin), Some(mpicc)) = (bin(mpi.0), bin(other.0).map(|bin| bin.join("mpicc")))
        else {
            continue;
        };
        let (output, said, done) =
            Run::new(&bin, mpi.1, 2, "contract").with("CELLWAY_MPICC", &mpicc).run();
        assert!(!output.status.success() && done == 0, "{} with {}: {said}", mpi.0, other.0);
        assert!(said.contains("started 2 processes"), "{} with {}: {said}", mpi.0, other.0);
        assert!(said.contains(&*mpicc.to_string_lossy()), "{said}");
    }
}
