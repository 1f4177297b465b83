//! Every run ends: with the right result, or with the error that its faults imply.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use cellway_cluster::drive::{ClusterError, Config, Ship};
use cellway_cluster::node::Left;
use cellway_cluster::task::{Description, KernelTask, Part, RemoteTask, Session, Task, Tell};
use cellway_cluster::transport::local::endpoints;
use cellway_cluster::{Hello, JobError, JobSpec, Lease, LeaseId, manager};
use kernels::{Aes128Ecb, Blake3, Finish, LinReg, PairType};
use storage::{Input, Output};
use stream::{Drive, KernelError, Progress, Stats, StreamError};

use crate::faulty::{Ended, Faults, Faulty, Random, run, watched};
use crate::{Sum, file, options, text};

/// A task of which some is otherwise.
pub(crate) struct Altered<'a> {
    task: &'a dyn Task,
    description: Description,
    /// So many of its first sessions do not start.
    unstarted: AtomicU64,
}

impl<'a> Altered<'a> {
    pub(crate) fn new(task: &'a dyn Task, unstarted: u64) -> Self {
        let description = task.description().clone();
        Self { task, description, unstarted: unstarted.into() }
    }

    /// Nobody knows on which machine it is.
    pub(crate) fn anywhere(mut self) -> Self {
        self.description.host = None;
        self
    }
}

struct Fails;

impl Task for Altered<'_> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn join(&self, description: &Description) -> Result<(), String> {
        self.task.join(description)
    }

    fn reads(&self) -> bool {
        self.task.reads()
    }

    fn bytes(&self, range: Range<u64>) -> Result<Vec<u8>, String> {
        self.task.bytes(range)
    }

    fn spec(&self) -> JobSpec {
        self.task.spec()
    }

    fn part_bytes(&self) -> u64 {
        self.task.part_bytes()
    }

    fn load(&self, saved: &[u8]) -> Result<Part, String> {
        self.task.load(saved)
    }

    fn save(&self, part: &Part) -> Result<Vec<u8>, String> {
        self.task.save(part)
    }

    fn settle(&self) -> Result<(), String> {
        self.task.settle()
    }

    fn done(&self, units: Range<u64>) {
        self.task.done(units);
    }

    fn recorded(&self, units: &[Range<u64>], saved: &[u8]) -> Result<(), String> {
        self.task.recorded(units, saved)
    }

    fn merge(&self, part: Part, later: Part) -> Result<Part, String> {
        self.task.merge(part, later)
    }

    fn can_step(&self) -> bool {
        self.task.can_step()
    }

    fn session<'t>(&'t self, sent: Option<Input>, tell: Tell<'t>) -> Box<dyn Session + 't> {
        let left = |times: u64| times.checked_sub(1);
        match self.unstarted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left) {
            Ok(_) => Box::new(Fails),
            Err(_) => self.task.session(sent, tell),
        }
    }
}

impl Session for Fails {
    fn give(&self, _: &Lease) {}

    fn stop(&self, _: LeaseId) {}

    fn close(&self) {}

    fn step(&self, _: &mut Drive<'_>) -> Result<Stats, StreamError> {
        self.run()
    }

    fn run(&self) -> Result<Stats, StreamError> {
        let error = KernelError::new("the device is gone", "plug it in");
        Err(StreamError::Kernel { input: "in".to_owned(), error })
    }
}

/// What befalls one run.
#[derive(Debug)]
struct Plan {
    peers: u32,
    fanout: Option<u32>,
    units: u64,
    computes: bool,
    /// Of each peer.
    faults: Vec<Faults>,
    unstarted: Vec<u64>,
    fails: u64,
    panics: bool,
    ship: Ship,
    /// Nodes have no input where they need none.
    are_remote: bool,
    random: Random,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed << 32);
        let random = &mut random;
        let fanout = random.pick(&[None, None, Some(2), Some(3)]);
        let peers = 1 + random.below(if fanout.is_some() { 9 } else { 4 }) as u32;
        let computes = peers == 1 || random.one_in(2);
        let rate = |random: &mut Random| random.pick(&[0, 0, 0, 30, 6]);
        let is_lethal = random.one_in(2);
        let faults = |number| Faults {
            dropped: rate(random),
            twice: rate(random),
            flipped: rate(random),
            cut: rate(random),
            late: rate(random),
            stopped: rate(random),
            lost: if is_lethal { rate(random) } else { 0 },
            dies_after: (is_lethal && random.one_in(if number == 0 { 20 } else { 3 }))
                .then(|| random.below(60)),
            many: random.below(20),
        };
        let faults: Vec<_> = (0..peers).map(faults).collect();
        let unstarted = (0..peers).map(|_| random.pick(&[0, 0, 0, 1, 2])).collect();
        Self {
            peers,
            fanout,
            units: random.pick(&[0, 1, 2, 7, 50]),
            computes,
            faults,
            unstarted,
            fails: random.pick(&[0, 0, 1, 2, u64::MAX]),
            panics: random.one_in(3),
            ship: random.pick(&[Ship::Auto, Ship::Locators, Ship::Bytes]),
            are_remote: random.one_in(2),
            random: random.clone(),
        }
    }

    fn is_lethal(&self) -> bool {
        self.faults.iter().any(|faults| faults.lost > 0 || faults.dies_after.is_some())
    }

    fn config(&self) -> Config {
        let ms = Duration::from_millis;
        // Who is alive is to be waited for, though this machine be slow.
        let (short, long) = (ms(500), ms(20_000));
        let join_wait = if self.is_lethal() && !self.computes { short } else { long };
        let patience = if self.is_lethal() { short } else { long };
        let manager = manager::Config {
            deadline: ms(100),
            lease_max: ms(300),
            losses_max: u32::MAX,
            join_wait,
            ..manager::Config::default()
        };
        let (linger, ship) = (ms(200), self.ship);
        let manager_computes = self.computes;
        let (fanout, hello) = (self.fanout, Hello::default());
        let base = Config::default();
        Config { manager, hello, manager_computes, fanout, linger, patience, ship, ..base }
    }

    /// Each peer with a task of its own, as in processes of their own.
    fn run<'a>(&self, tasks: &[&'a (dyn Task + 'a)]) -> Vec<Ended> {
        let config = &self.config();
        let tasks: Vec<_> = tasks
            .iter()
            .zip(&self.unstarted)
            .map(|(task, times)| Altered::new(*task, *times).anywhere())
            .collect();
        thread::scope(|scope| {
            let peers = endpoints(self.peers).into_iter().zip(&self.faults).zip(&tasks).zip(0..);
            let peers: Vec<_> = peers
                .map(|(((endpoint, faults), task), number)| {
                    let random = Random(self.random.0 ^ number);
                    let endpoint = Box::new(Faulty::new(endpoint, *faults, random));
                    scope.spawn(move || run(endpoint, &[task], config))
                })
                .collect();
            peers.into_iter().map(|peer| peer.join().unwrap()).collect()
        })
    }

    /// The result, if there is one; else the error, which is one that may be.
    fn check(&self, ran: Vec<Ended>) -> Result<Option<Part>, &'static str> {
        let mut ran = ran.into_iter();
        let first = ran.next().unwrap();
        for peer in ran {
            match peer {
                Ok(report) => assert!(report.is_none()),
                Err(ClusterError::Left { why: Left::Lost, .. }) => {}
                Err(ClusterError::Transport(error)) => assert_eq!(error.what, "it died"),
                Err(error) => panic!("{error}"),
            }
        }
        let report = match first {
            Ok(report) => report.unwrap(),
            Err(ClusterError::Transport(error)) => {
                assert!(error.what == "it died" && self.faults[0].dies_after.is_some());
                return Err("managers that died");
            }
            Err(error) => panic!("{error}"),
        };
        match report.results.into_iter().next().unwrap() {
            Ok(part) => Ok(part),
            Err(JobError::NoNodes { .. }) => {
                assert!(self.is_lethal() && !self.computes, "nodes were there");
                Err("jobs without nodes")
            }
            Err(JobError::Unit { what, tries, .. }) => {
                assert_eq!(tries, 3);
                let of_kernel = self.fails > 0 && self.units > 0 && what.contains("a bad byte");
                let of_start = what.contains("the device is gone");
                assert!(of_kernel || of_start, "{what}");
                Err(if of_kernel {
                    "jobs with a unit that fails"
                } else {
                    "jobs that did not start"
                })
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A kernel without faults of its own.
    fn reduce<K: Finish<Part: 'static>>(&self, kernels: &[K]) -> Result<(), &'static str> {
        let (_dir, path) = file(self.units as usize * 4096, 5);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let tasks: Vec<_> = kernels
            .iter()
            .map(|kernel| KernelTask::new(kernel, &input, None, &options(), &progress).unwrap())
            .collect();
        let remote: Vec<_> = kernels
            .iter()
            .map(|kernel| RemoteTask::new(kernel, "theirs", &options(), &progress).unwrap())
            .collect();
        let is_remote = |number| number > 0 && self.are_remote && self.ship != Ship::Locators;
        let each: Vec<_> = tasks
            .iter()
            .zip(&remote)
            .enumerate()
            .map(|(number, (task, remote))| match is_remote(number) {
                true => remote as &dyn Task,
                false => task,
            })
            .collect();
        let part = self.check(self.run(&each))?;
        let found = text(&kernels[0], tasks[0].result(part).unwrap());
        let one = stream::run(&kernels[0], &input, None, &options(), &progress).unwrap();
        assert_eq!(found, text(&kernels[0], one.part));
        Ok(())
    }

    fn transform(&self) -> Result<(), &'static str> {
        let (dir, path) = file(self.units as usize * 4096, 5);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let kernel = Aes128Ecb::default();
        let outputs = [1, 2].map(|run| {
            let path = dir.path().join(run.to_string());
            (Output::create(&path, &storage::Options::default()).unwrap(), path)
        });
        let [(one, one_path), (many, many_path)] = outputs;
        stream::run(&kernel, &input, Some(&one), &options(), &progress).unwrap();
        let task = KernelTask::new(&kernel, &input, Some(&many), &options(), &progress).unwrap();
        let each: Vec<_> = (0..self.peers).map(|_| &task as &dyn Task).collect();
        self.check(self.run(&each))?;
        one.commit(false).unwrap();
        many.commit(false).unwrap();
        assert!(std::fs::read(one_path).unwrap() == std::fs::read(many_path).unwrap());
        Ok(())
    }

    /// One unit fails, or panics, so often at each peer.
    fn sum(&self) -> Result<(), &'static str> {
        let (_dir, path) = file(self.units as usize * 4096, 5);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let kernel = |_| Sum { panics: self.panics, ..Sum::fails(self.units / 2, self.fails) };
        let kernels: Vec<_> = (0..self.peers).map(kernel).collect();
        let tasks: Vec<_> = kernels
            .iter()
            .map(|kernel| KernelTask::new(kernel, &input, None, &options(), &progress).unwrap())
            .collect();
        let each: Vec<_> = tasks.iter().map(|task| task as &dyn Task).collect();
        let part = self.check(self.run(&each))?;
        assert!(self.units == 0 || self.fails < u64::MAX, "it ended though a unit fails");
        let bytes = std::fs::read(&path).unwrap();
        // Once each, though some were computed by several, and by some for nothing.
        assert_eq!(progress.done_bytes(), bytes.len() as u64);
        let wanted: u64 = bytes.into_iter().map(u64::from).sum();
        assert_eq!(tasks[0].result(part).unwrap(), wanted);
        Ok(())
    }
}

fn once(seed: u64) -> &'static str {
    let plan = Plan::new(seed);
    let many = || 0..plan.peers;
    let ended = match Random(seed).below(4) {
        0 => plan.sum(),
        1 => plan.reduce(&many().map(|_| Blake3::new()).collect::<Vec<_>>()),
        2 => plan.reduce(&many().map(|_| LinReg::new(PairType::I16)).collect::<Vec<_>>()),
        _ => plan.transform(),
    };
    match ended {
        Ok(()) => "jobs with a result",
        Err(how) => how,
    }
}

/// `CELLWAY_SEED` runs one seed, `CELLWAY_SEEDS` so many.
#[test]
fn every_run_ends_as_it_should() {
    let number = |name| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    if let Some(seed) = number("CELLWAY_SEED") {
        println!("{:#?}", Plan::new(seed));
        println!("{}", once(seed));
        return;
    }
    let seeds = number("CELLWAY_SEEDS").unwrap_or(300);
    let (next, told) = (AtomicU64::new(0), Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds {
                        return;
                    }
                    let what = format!("CELLWAY_SEED={seed}");
                    let how = std::panic::catch_unwind(|| watched(&what, move || once(seed)));
                    let how = how.unwrap_or_else(|panic| {
                        eprintln!("{what} runs this one alone");
                        std::panic::resume_unwind(panic)
                    });
                    *told.lock().unwrap().entry(how).or_insert(0) += 1;
                }
            });
        }
    });
    let told = told.into_inner().unwrap();
    println!("{told:#?}");
    // Jobs that do not start depend on who is first, so there may be none.
    assert!(seeds < 300 || told.len() >= 3, "{told:#?}");
}
