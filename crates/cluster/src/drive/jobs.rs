//! The jobs that a manager or a node knows: of each which task it is, with what parameters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::caught;
use crate::JobId;
use crate::submanager::BUFFERS;
use crate::task::{Has, Of, Task, unlike};

/// A node knows so many jobs, and others that it has leases of: each may hold memory, such as
/// what was broadcast. A group has leases of fewer at a time, and so has a node by default.
pub(super) const KNOWN_MAX: usize = BUFFERS as usize + 1;

/// The jobs that a node was told of, or given a lease of, last. Its manager counts in the same way,
/// so that it knows what is to be told again; of both nobody says what is forgotten.
#[derive(Debug, Default)]
pub(super) struct Known(Vec<JobId>);

impl Known {
    /// A lease of that job is given: whether it is known.
    pub(super) fn gives(&mut self, job: JobId) -> bool {
        let at = self.0.iter().position(|known| *known == job);
        let known = at.map(|at| self.0.remove(at));
        self.0.extend(known);
        known.is_some()
    }

    /// That job is told of. Those that are to be forgotten for it: older ones, but those of
    /// which leases are there.
    pub(super) fn tells(&mut self, job: JobId, has_lease: impl Fn(JobId) -> bool) -> Vec<JobId> {
        if !self.gives(job) {
            self.0.push(job);
        }
        let older = self.0.len().saturating_sub(KNOWN_MAX);
        self.0.extract_if(..older, |job| !has_lease(*job)).collect()
    }
}

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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever leases a node has, it knows what its manager does not tell it again.
        #[test]
        fn a_node_knows_what_its_manager_takes_it_to_know(
            given in prop::collection::vec((0..9_u64, 0..3_usize), 0..80),
        ) {
            let (mut manager, mut node) = (Known::default(), Known::default());
            let (mut leases, mut told) = (VecDeque::new(), 0);
            for (job, ended) in given {
                let job = JobId(job);
                if !manager.gives(job) {
                    manager.tells(job, |_| false);
                    node.tells(job, |job| leases.contains(&job));
                    told += 1;
                }
                prop_assert!(node.gives(job), "{job:?}: {node:?}");
                prop_assert!(leases.iter().all(|job| node.0.contains(job)));
                leases.push_back(job);
                // Some other one, when there are many.
                if leases.len() > ended + 1 {
                    leases.remove(ended);
                }
                prop_assert!(manager.0.len() <= KNOWN_MAX && node.0.len() <= KNOWN_MAX + 4);
            }
            prop_assert!(told > 0 || leases.is_empty());
        }
    }
}
