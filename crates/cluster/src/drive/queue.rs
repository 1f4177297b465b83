//! Jobs that are given to a cluster while its nodes serve.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::jobs::Jobs;
use super::merging::Held;
use super::peer::Peer;
use super::{Bring, Brought, ClusterError, Config, MANAGER, Ran, caught, locals, no_manager};
use crate::task::{Part, Task};
use crate::transport::Endpoint;
use crate::{JobError, JobId, NodeId};
use stream::Stats;

/// What its manager is to do.
pub(super) enum Order {
    Submit(JobId),
    Abort(JobId),
    /// That node is to leave.
    Leave(NodeId),
    /// No jobs will come.
    Close,
}

/// As [`run`](super::run), of jobs that are given while nodes serve: peers know the `tasks`, and `lead`,
/// which runs on the first one, beside its manager, gives [jobs](Queue::submit) of them, with
/// parameters that may depend on what [came](Queue::wait) of others. When it returns, jobs
/// that it did not wait for are ended, and the nodes go. What it returns is `None` elsewhere.
///
/// ```
/// use cellway_cluster::drive::{Config, run_local_led};
/// use cellway_cluster::task::{KernelTask, Task};
/// # use std::error::Error;
/// # use stream::{Block, Effect, Kernel, KernelError, Options, Progress, Unit};
///
/// /// How many bytes are below a threshold.
/// struct Below(u8);
///
/// impl Kernel for Below {
///     type Part = u64;
///     type Header = ();
///     fn name(&self) -> &str { "below" }
///     fn effect(&self) -> Effect { Effect::Reduce }
///     fn part(&self, _accelerators: usize) -> u64 { 0 }
///     fn block(&self, _: &Unit<'_>, block: Block<'_>, part: &mut u64) -> Result<(), KernelError> {
///         *part += block.data.iter().filter(|byte| **byte < self.0).count() as u64;
///         Ok(())
///     }
///     fn merge(&self, part: &mut u64, later: u64) -> Result<(), KernelError> {
///         *part += later;
///         Ok(())
///     }
///     // Nodes take the threshold of the manager.
///     fn parameters(&self) -> Result<Vec<u8>, KernelError> { Ok(vec![self.0]) }
///     fn with_parameters(&self, parameters: &[u8]) -> Result<Option<Self>, KernelError> {
///         let wrong = || KernelError::new("a threshold has one byte", "give one");
///         let [threshold] = parameters.try_into().map_err(|_| wrong())?;
///         Ok(Some(Self(threshold)))
///     }
///     fn save(&self, part: &u64, out: &mut Vec<u8>) -> Result<(), KernelError> {
///         out.extend(part.to_le_bytes());
///         Ok(())
///     }
///     fn load(&self, saved: &[u8], _accelerators: usize) -> Result<u64, KernelError> {
///         stream::Saved::new(saved).u64()
///     }
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let file = dir.path().join("bytes");
/// # std::fs::write(&file, (0..=255).cycle().map(|n: u8| n / 2).take(100_000).collect::<Vec<_>>())?;
/// let (input, progress) = (storage::Input::open(&file)?, Progress::default());
/// let (kernel, options) = (Below(0), Options::default());
/// let task = KernelTask::new(&kernel, &input, None, &options, &progress)?;
/// let tasks: [&dyn Task; 1] = [&task];
/// // The median: half of the bytes are below it.
/// let (median, _) = run_local_led(2, &tasks, &Config::default(), |queue| {
///     let (mut low, mut high) = (0, u8::MAX);
///     while low < high {
///         let middle = low + (high - low) / 2;
///         let job = queue.submit(0, Some(&[middle + 1]))?;
///         let below = task.result(queue.wait(job)?)?;
///         if below < 50_000 { low = middle + 1 } else { high = middle }
///     }
///     Ok::<_, Box<dyn Error + Send + Sync>>(low)
/// })?;
/// assert_eq!(median?, 63);
/// # Ok::<_, Box<dyn Error + Send + Sync>>(())
/// ```
///
/// # Errors
/// As [`run`](super::run).
pub fn run_led<T: Send>(
    endpoint: Box<dyn Endpoint>,
    tasks: &[&dyn Task],
    config: &Config,
    lead: impl FnOnce(&Queue<'_>) -> T + Send,
) -> Led<T> {
    run_led_to_end(endpoint, tasks, config, lead, |_, ran| ran)
}

/// As [`run_led`], which ends when all threads of this peer have: never, if a unit hangs here,
/// of a job that was aborted too. So `hung` is called before, as that of
/// [`run_to_end`](super::run_to_end), when `lead` has returned.
///
/// # Errors
/// As [`run_led`], and those of `hung`.
pub fn run_led_to_end<T: Send>(
    endpoint: Box<dyn Endpoint>,
    tasks: &[&dyn Task],
    config: &Config,
    lead: impl FnOnce(&Queue<'_>) -> T + Send,
    hung: impl FnOnce(&str, Led<T>) -> Led<T>,
) -> Led<T> {
    let config = &config.fit(tasks);
    std::thread::scope(|scope| {
        let queue = (endpoint.own() == MANAGER).then(|| Queue::new(tasks));
        let leads = queue.clone().map(|queue| {
            scope.spawn(move || {
                let closes = Closes(queue);
                lead(&closes.0)
            })
        });
        let peer = Peer::new(endpoint, tasks, config, scope, (None, queue));
        let (ran, hangs) = peer.map_or_else(|error| (Err(error), None), Peer::run);
        let led = leads.map(|leads| leads.join().unwrap_or_else(|panic| resume_unwind(panic)));
        let ran = ran.map(|ran| (ran, led));
        match hangs {
            Some(what) => hung(&what, ran),
            None => ran,
        }
    })
}

/// The same between `nodes` threads of this process, the manager's among them; with what
/// `lead` returns, and the stats of all.
///
/// # Errors
/// As [`run`](super::run).
pub fn run_local_led<T: Send>(
    nodes: u32,
    tasks: &[&dyn Task],
    config: &Config,
    lead: impl FnOnce(&Queue<'_>) -> T + Send,
) -> Result<(T, Vec<Stats>), ClusterError> {
    let first = |endpoint, config: &_| {
        let (ran, led) = run_led(endpoint, tasks, config, lead)?;
        Ok((ran, led.ok_or_else(no_manager)?))
    };
    let (_, stats, led) = locals(nodes, tasks, config, first)?;
    Ok((led, stats))
}

/// What a peer did, and on the first one what who leads returned.
pub type Led<T> = Result<(Ran, Option<T>), ClusterError>;

/// At the end of who leads, also by a panic, no jobs will come.
struct Closes<'env>(Arc<Queue<'env>>);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The jobs of a cluster that runs: [`run_led`] has it on the manager's peer.
/// Any number of threads may use it.
pub struct Queue<'env> {
    jobs: Jobs<'env>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Jobs that were submitted.
    count: u64,
    /// Those that are over, and were not waited for.
    ended: BTreeMap<JobId, Result<Option<Held>, JobError>>,
    /// Until there is somebody to take them.
    orders: Vec<Order>,
    manager: Option<Bring>,
    /// Nothing more will come of any job.
    is_over: bool,
}

impl std::fmt::Debug for Queue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue after {} jobs", self.state().count)
    }
}

impl<'env> Queue<'env> {
    pub(super) fn new(tasks: &'env [&'env dyn Task]) -> Arc<Self> {
        let (jobs, state, changed) = (Jobs::new(tasks), Mutex::default(), Condvar::new());
        Arc::new(Self { jobs, state, changed })
    }

    /// A job: the task of that number, from 0, with its own `parameters` or these, in the form
    /// of [`Kernel::parameters`](stream::Kernel::parameters). Jobs are served in the order in
    /// which they were submitted; one may begin while the last leases of another are out.
    ///
    /// # Errors
    /// If there is no such task, or it takes no such parameters.
    pub fn submit(&self, task: u32, parameters: Option<&[u8]>) -> Result<JobId, ClusterError> {
        let mut state = self.state();
        let job = JobId(state.count);
        let own = usize::try_from(task).ok().and_then(|task| self.jobs.tasks().get(task));
        let own = own.map_or(&[][..], |own| &own.description().parameters);
        let opened = self.jobs.open(job, task, parameters.unwrap_or(own));
        opened.map_err(ClusterError::Submit)?;
        state.count += 1;
        Self::order(&mut state, Order::Submit(job));
        Ok(job)
    }

    /// Waits until a job is over: its result, none of one without units or results. It is
    /// told once, to one thread.
    ///
    /// # Errors
    /// Why there is none, or will not be: [`JobError::Aborted`] where the manager ended before.
    pub fn wait(&self, job: JobId) -> Result<Option<Part>, JobError> {
        let mut state = self.state();
        let (ended, task) = loop {
            let task = self.jobs.get(job);
            if let Some(ended) = state.ended.remove(&job) {
                // Before another thread that waits for it looks whether there is such a job.
                self.jobs.close(job);
                break (ended, task);
            }
            if state.is_over || task.is_none() {
                break (Err(JobError::Aborted), None);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        let load = |held: Held| {
            let task = task.ok_or("there is no such job")?;
            caught("a kernel", || held.load(&*task))
        };
        ended?.map(load).transpose().map_err(|what| JobError::Result { what })
    }

    /// A job is not wanted any more; [`Queue::wait`] tells whether it was over before.
    pub fn abort(&self, job: JobId) {
        Self::order(&mut self.state(), Order::Abort(job));
    }

    /// A node is to leave when it has done what it has, or when it joins, if it has not yet; of
    /// a tree one that the first peer manages, with its group. The others go on.
    pub fn leave(&self, node: NodeId) {
        Self::order(&mut self.state(), Order::Leave(node));
    }

    /// No jobs will come.
    pub(super) fn close(&self) {
        Self::order(&mut self.state(), Order::Close);
    }

    pub(super) fn jobs(&self) -> Jobs<'env> {
        self.jobs.clone()
    }

    /// From now on orders are brought to that manager.
    pub(super) fn attach(&self, manager: Bring) {
        let mut state = self.state();
        let orders = std::mem::take(&mut state.orders);
        orders.into_iter().for_each(|order| manager.bring(Brought::Order(order)));
        state.manager = Some(manager);
    }

    pub(super) fn ended(&self, job: JobId, result: Result<Option<Held>, JobError>) {
        self.state().ended.insert(job, result);
        self.changed.notify_all();
    }

    /// The manager has ended.
    pub(super) fn over(&self) {
        let mut state = self.state();
        (state.is_over, state.manager) = (true, None);
        drop(state);
        self.changed.notify_all();
    }

    fn order(state: &mut State, order: Order) {
        match &state.manager {
            Some(manager) => manager.bring(Brought::Order(order)),
            None => state.orders.push(order),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Barrier, mpsc};
    use std::thread;
    use std::time::Duration;

    use kernels::Crc32c;
    use stream::{Options, Progress};

    use super::*;
    use crate::task::RemoteTask;

    /// That one looks for it while the other takes it is a matter of luck.
    #[test]
    fn one_of_two_threads_that_wait_for_a_job_gets_its_result() {
        const JOBS: u64 = 20_000;
        fn waits(queue: &Queue<'_>, begin: &Barrier, ends: bool) -> u64 {
            let waits = |job| {
                if ends {
                    queue.ended(JobId(job), Ok(None));
                }
                begin.wait();
                u64::from(queue.wait(JobId(job)).is_ok())
            };
            (0..JOBS).map(waits).sum()
        }
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let (kernel, progress) = (Crc32c::new(), Progress::default());
            let task = RemoteTask::new(&kernel, "it", &Options::default(), &progress).unwrap();
            let tasks: [&dyn Task; 1] = [&task];
            let queue = Queue::new(&tasks);
            for job in 0..JOBS {
                assert_eq!(queue.submit(0, None).unwrap(), JobId(job));
            }
            let (begin, ends) = (Barrier::new(2), AtomicBool::new(false));
            let both = thread::scope(|scope| {
                // Whoever closes a job is held up.
                scope.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        queue.jobs.get(JobId(JOBS - 1));
                    }
                });
                let other = scope.spawn(|| waits(&queue, &begin, false));
                let both = waits(&queue, &begin, true) + other.join().unwrap();
                ends.store(true, Ordering::Relaxed);
                both
            });
            tell.send(both)
        });
        let both = told.recv_timeout(Duration::from_secs(120));
        assert_eq!(both, Ok(JOBS), "a thread waits for what another has");
    }
}
