//! Jobs that are given to a cluster while its nodes serve.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::jobs::Jobs;
use super::merging::Held;
use super::{Bring, Brought, ClusterError, caught};
use crate::task::{Part, Task};
use crate::{JobError, JobId, NodeId};

/// What its manager is to do.
pub(super) enum Order {
    Submit(JobId),
    Abort(JobId),
    /// That node is to leave.
    Leave(NodeId),
    /// No jobs will come.
    Close,
}

/// At the end of who leads, also by a panic, no jobs will come.
pub(super) struct Closes<'env>(pub(super) Arc<Queue<'env>>);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The jobs of a cluster that runs: [`run_led`](super::run_led) has it on the manager's peer.
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
        let ended = loop {
            if let Some(ended) = state.ended.remove(&job) {
                break ended;
            }
            if state.is_over || self.jobs.get(job).is_none() {
                break Err(JobError::Aborted);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        let task = self.jobs.get(job);
        self.jobs.close(job);
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

    /// A node is to leave when it has done what it has; of a tree one that the first peer
    /// manages, with its group. The others go on.
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
        self.state().is_over = true;
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
