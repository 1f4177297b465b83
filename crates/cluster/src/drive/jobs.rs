//! The jobs that a manager or a node knows: of each which task it is, with what parameters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::caught;
use crate::JobId;
use crate::task::{Has, Of, Task, unlike};

/// A node forgets the oldest of more, and is told of them again if need be: it has
/// fewer leases than these.
pub(super) const KNOWN_MAX: usize = 64;

/// They are shared with the threads that work for their peer.
#[derive(Clone)]
pub(super) struct Jobs<'env> {
    tasks: &'env [&'env dyn Task],
    open: Arc<Mutex<BTreeMap<JobId, (u32, Of<'env>)>>>,
}

impl<'env> Jobs<'env> {
    pub(super) fn new(tasks: &'env [&'env dyn Task]) -> Self {
        Self { tasks, open: Arc::default() }
    }

    pub(super) fn tasks(&self) -> &'env [&'env dyn Task] {
        self.tasks
    }

    /// Why a node that says it has these would compute something else.
    pub(super) fn unlike(&self, said: &[Has]) -> Option<String> {
        // Kernels look at its parameters.
        caught("a kernel", || Ok(unlike(said, self.tasks))).unwrap_or_else(Some)
    }

    /// A job is that task, with these parameters.
    ///
    /// # Errors
    /// If there is no such task, or it takes no such parameters.
    pub(super) fn open(
        &self,
        job: JobId,
        number: u32,
        parameters: &[u8],
    ) -> Result<Of<'env>, String> {
        let task = usize::try_from(number).ok().and_then(|number| self.tasks.get(number));
        let task = task.ok_or("this node has fewer jobs than the manager; start all alike")?;
        let of = caught("a kernel", || Of::new(*task, parameters))?;
        self.all().insert(job, (number, of.clone()));
        Ok(of)
    }

    pub(super) fn get(&self, job: JobId) -> Option<Of<'env>> {
        self.all().get(&job).map(|(_, of)| of.clone())
    }

    /// Which of the tasks it is.
    pub(super) fn number(&self, job: JobId) -> Option<u32> {
        self.all().get(&job).map(|(number, _)| *number)
    }

    /// Nobody wants it any more.
    pub(super) fn close(&self, job: JobId) {
        self.all().remove(&job);
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<JobId, (u32, Of<'env>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
