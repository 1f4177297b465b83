//! Units that hang, and peers that panic.

use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver};
use std::task::Waker;
use std::thread;
use std::time::Instant;

use cellway_cluster::drive::{self, Config};
use cellway_cluster::task::{KernelTask, Task};
use cellway_cluster::transport::local::Local;
use cellway_cluster::transport::{Endpoint, Received, TransportError};
use cellway_cluster::{JobError, NodeId};
use storage::Input;
use stream::{Block, Effect, Kernel, KernelError, Progress, Unit};

use crate::faulty::{locals, run, watched};
use crate::{Sum, file, options};

/// Counts units, but is at the first one until it is let go.
struct Stuck(Mutex<Receiver<()>>);

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
        let _ = self.0.lock().unwrap().recv();
        Ok(())
    }

    fn merge(&self, _: &mut u64, _: u64) -> Result<(), KernelError> {
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

#[test]
fn what_others_have_done_is_there_while_a_unit_hangs_at_the_manager() {
    watched("it", || {
        let (_dir, path) = file(9 * 4096, 9);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let (let_go, waits) = mpsc::channel();
        let (stuck, sum) = (Stuck(Mutex::new(waits)), Sum::whole());
        let manages = KernelTask::new(&stuck, &input, None, &options(), &progress).unwrap();
        let node = KernelTask::new(&sum, &input, None, &options(), &progress).unwrap();
        let [first, second] = locals::<2>().map(Box::new);
        let mut hangs = None;
        thread::scope(|scope| {
            scope.spawn(|| run(second, &[&node], &Config::default()));
            // Without this it would never end.
            let hung = |ran: drive::Ran| {
                hangs.clone_from(&ran.hangs);
                assert!(ran.report.as_ref().unwrap().results[0].is_ok());
                drop(let_go);
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

/// Panics after so many looks for a message.
struct Panics(Local, u32);

impl Endpoint for Panics {
    fn own(&self) -> NodeId {
        self.0.own()
    }

    fn peers(&self) -> u32 {
        self.0.peers()
    }

    fn send(&mut self, to: NodeId, message: Vec<u8>) -> Result<(), TransportError> {
        self.0.send(to, message)
    }

    fn receive(&mut self, until: Option<Instant>) -> Result<Received, TransportError> {
        self.1 = self.1.wrapping_sub(1);
        assert!(self.1 != 0, "a bug of a peer");
        self.0.receive(until)
    }

    fn waker(&self) -> Waker {
        self.0.waker()
    }

    fn close(self: Box<Self>, until: Instant) -> Result<(), TransportError> {
        Box::new(self.0).close(until)
    }
}

/// Where a node computes on its own thread, it looks for messages in between.
#[test]
fn a_peer_that_panics_while_it_computes_is_lost_and_no_kernel_is_blamed() {
    watched("it", || {
        let (_dir, path) = file(2000 * 4096, 3);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        // Short: nobody waits for anything.
        let kernel = Stuck(Mutex::new(mpsc::channel().1));
        let task = KernelTask::new(&kernel, &input, None, &options(), &progress).unwrap();
        let task = &task.lease_units(Some(1));
        let config = &Config { manager_computes: false, ..Config::default() };
        let [manages, node] = locals();
        let node = Box::new(Panics(node, 1000));
        thread::scope(|scope| {
            let node = scope.spawn(move || drive::run(node, &[task], config).map(drop));
            let mut report = run(Box::new(manages), &[task], config).unwrap().unwrap();
            assert!(node.join().is_err(), "it went on");
            let error = report.results.remove(0).unwrap_err();
            assert!(matches!(error, JobError::NoNodes { .. }), "{error}");
        });
    });
}
