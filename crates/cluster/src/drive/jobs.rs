//! The jobs that a manager or a node knows: of each which task it is, with what parameters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::JobId;
use crate::task::{Of, Task};

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
        let of = Of::new(*task, parameters)?;
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
