//! Units that hang, and peers that panic.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use cellway_cluster::JobError;
use cellway_cluster::drive::{
    self, ClusterError, Config, Led, Queue, Ran, run_led, run_led_to_end,
};
use cellway_cluster::task::{KernelTask, Task};
use cellway_cluster::transport::{Endpoint, TransportError};
use storage::Input;
use stream::{Block, Effect, Kernel, KernelError, Progress, Unit};

use crate::faulty::{Dies, Hook, Hooked, locals, run, watched};
use crate::{Sum, file, options};

/// Counts units, but is at the first one, or its first merge, until it is let go.
struct Stuck {
    begun: Option<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
    at_merge: bool,
    units: AtomicU64,
}

impl Stuck {
    /// Goes on when what comes with it is dropped.
    fn new(at_merge: bool, begun: Option<Sender<()>>) -> (Self, Sender<()>) {
        let (let_go, go_on) = mpsc::channel();
        let units = AtomicU64::new(0);
        (Self { begun, go_on: Mutex::new(go_on), at_merge, units }, let_go)
    }

    fn wait(&self) {
        let _ = self.begun.as_ref().map(|begun| begun.send(()));
        let _ = self.go_on.lock().unwrap().recv();
    }
}

impl Kernel for Stuck {
    type Part = u64;
    type Header = ();

    fn name(&self) -> &str {
        "sum"
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn part(&self, _accelerators: usize) -> u64 {
        0
    }

    fn block(&self, _: &Unit<'_>, _: Block<'_>, _: &mut u64) -> Result<(), KernelError> {
        self.units.fetch_add(1, Ordering::Relaxed);
        if !self.at_merge {
            self.wait();
        }
        Ok(())
    }

    fn merge(&self, _: &mut u64, _: u64) -> Result<(), KernelError> {
        if self.at_merge {
            self.wait();
        }
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(Vec::new())
    }

    fn save(&self, part: &u64, out: &mut Vec<u8>) -> Result<(), KernelError> {
        Sum::whole().save(part, out)
    }

    fn load(&self, saved: &[u8], accelerators: usize) -> Result<u64, KernelError> {
        Sum::whole().load(saved, accelerators)
    }
}

type Ended = Result<Ran, ClusterError>;

#[test]
fn what_others_have_done_is_there_while_a_unit_hangs_at_the_manager() {
    watched("it", || {
        let (_dir, path) = file(9 * 4096, 9);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let ((stuck, let_go), sum) = (Stuck::new(false, None), Sum::whole());
        let manages = KernelTask::new(&stuck, &input, None, &options(), &progress).unwrap();
        let node = KernelTask::new(&sum, &input, None, &options(), &progress).unwrap();
        let [first, second] = locals::<2>().map(Box::new);
        let mut hangs = None;
        thread::scope(|scope| {
            scope.spawn(|| run(second, &[&node], &Config::default()));
            // Without this it would never end.
            let hung = |what: &str, ran: Ended| {
                hangs = Some(what.to_owned());
                drop(let_go);
                let ran = ran?;
                assert!(ran.report.as_ref().unwrap().results[0].is_ok());
                Ok(ran)
            };
            let tasks: [&dyn Task; 1] = [&manages];
            let ran = drive::run_to_end(first, &tasks, &Config::default(), None, hung).unwrap();
            ran.farewell.say().unwrap();
        });
        let hangs = hangs.unwrap();
        assert!(hangs.starts_with("node 0: sum: unit "), "{hangs}");
    });
}

/// What a peer says hangs that fails because the first one dies, and how many units were
/// computed: the first, which is alone and computes `here` or merges, or else the second.
fn hangs_though_failed(at_merge: bool, here: bool, failed: &str) -> (String, u64) {
    let (_dir, path) = file(200 * 4096, 9);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let (begun, dies) = mpsc::channel();
    let (stuck, let_go) = Stuck::new(at_merge, Some(begun));
    let task = KernelTask::new(&stuck, &input, None, &options(), &progress).unwrap();
    let task = &task.lease_units(Some(if at_merge { 1 } else { 100 }));
    let config = &Config { manager_computes: here, ..Config::default() };
    let [first, second] = locals::<2>();
    let first = Box::new(Hooked(first, Dies(dies)));
    let mut hangs = None;
    thread::scope(|scope| {
        let ends = |endpoint: Box<dyn Endpoint>| {
            let ran = drive::run(endpoint, &[task], config);
            assert!(ran.is_err(), "{ran:?}");
        };
        // Without this it would never end.
        let hung = |what: &str, ran: Ended| {
            hangs = Some(what.to_owned());
            drop(let_go);
            ran
        };
        let (fails, other): (Box<dyn Endpoint>, Box<dyn Endpoint>) =
            if here || at_merge { (first, Box::new(second)) } else { (Box::new(second), first) };
        if !here {
            scope.spawn(move || ends(other));
        }
        let tasks: [&dyn Task; 1] = [task];
        let error = drive::run_to_end(fails, &tasks, config, None, hung).unwrap_err().to_string();
        assert!(error.contains(failed), "{error}");
    });
    (hangs.unwrap(), stuck.units.into_inner())
}

#[test]
fn a_node_says_that_its_manager_is_lost_while_a_unit_hangs() {
    watched("it", || {
        let (hangs, _) = hangs_though_failed(false, false, "node 1: the manager cannot be reached");
        assert!(hangs.starts_with("node 1: sum: unit "), "{hangs}");
    });
}

#[test]
fn a_manager_says_why_it_failed_while_a_unit_hangs_and_does_no_others() {
    watched("it", || {
        let (hangs, units) = hangs_though_failed(false, true, "it died");
        assert!(hangs.starts_with("node 0: sum: unit 0 to "), "{hangs}");
        assert!(units < 64, "{units} units that nobody waited for");
    });
}

#[test]
fn a_manager_says_why_it_failed_while_a_merge_hangs() {
    watched("it", || {
        let (hangs, _) = hangs_though_failed(true, false, "it died");
        assert!(hangs.contains("what it merges"), "{hangs}");
    });
}

/// Panics after so many looks for a message.
struct Panics(u32);

impl Hook for Panics {
    fn receives(&mut self) -> Result<(), TransportError> {
        self.0 = self.0.wrapping_sub(1);
        assert!(self.0 != 0, "a bug of a peer");
        Ok(())
    }
}

/// Where a node computes on its own thread, it looks for messages in between.
#[test]
fn a_peer_that_panics_while_it_computes_is_lost_and_no_kernel_is_blamed() {
    watched("it", || {
        let (_dir, path) = file(2000 * 4096, 3);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        // Short: nobody waits for anything.
        let kernel = Stuck::new(false, None).0;
        let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
        let task = &task.lease_units(Some(1));
        let config = &Config { manager_computes: false, ..Config::default() };
        let [manages, node] = locals();
        let node = Box::new(Hooked(node, Panics(1000)));
        thread::scope(|scope| {
            let node = scope.spawn(move || drive::run(node, &[task], config).map(drop));
            let mut report = run(Box::new(manages), &[task], config).unwrap().unwrap();
            assert!(node.join().is_err(), "it went on");
            let error = report.results.remove(0).unwrap_err();
            assert!(matches!(error, JobError::NoNodes { .. }), "{error}");
        });
    });
}

#[test]
fn who_leads_is_told_that_his_manager_panicked() {
    watched("it", || {
        let (_dir, path) = file(4096, 3);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let sum = Sum::whole();
        let task = KernelTask::new(&sum, &input, None, &options(), &progress).unwrap();
        let config = &Config { manager_computes: false, ..Config::default() };
        // Nobody does the job.
        let [first, _second] = locals();
        let (tell, told) = mpsc::channel();
        let lead = move |queue: &Queue<'_>| {
            let job = queue.submit(0, None).unwrap();
            tell.send(queue.wait(job).unwrap_err()).unwrap();
        };
        let ran = || run_led(Box::new(Hooked(first, Panics(2))), &[&task], config, lead);
        let panicked = panic::catch_unwind(AssertUnwindSafe(ran));
        assert!(panicked.is_err(), "it went on");
        assert_eq!(told.recv(), Ok(JobError::Aborted));
    });
}

#[test]
fn what_was_led_is_there_while_a_unit_of_an_aborted_job_hangs() {
    watched("it", || {
        let (_dir, path) = file(4096, 3);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let (begun, begins) = mpsc::channel();
        let (stuck, let_go) = Stuck::new(false, Some(begun));
        let task = KernelTask::new(&stuck, &input, None, &options(), &progress).unwrap();
        let lead = move |queue: &Queue<'_>| {
            let job = queue.submit(0, None).unwrap();
            begins.recv().unwrap();
            queue.abort(job);
            queue.wait(job).unwrap_err()
        };
        let mut hangs = None;
        let hung = |what: &str, ran: Led<_>| {
            hangs = Some(what.to_owned());
            drop(let_go);
            ran
        };
        let [first] = locals().map(Box::new);
        let (_, led) = run_led_to_end(first, &[&task], &Config::default(), lead, hung).unwrap();
        assert_eq!(led, Some(JobError::Aborted));
        assert_eq!(hangs.as_deref(), Some("node 0: sum: unit 0 to 0 has not ended"));
    });
}
