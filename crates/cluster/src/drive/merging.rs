//! Results that a manager holds, and how it merges them: on a thread of its own what
//! takes long.

use std::sync::mpsc::{self, Sender};
use std::thread::Scope;
use std::time::{Duration, Instant};

use serde_bytes::ByteBuf;
use stream::Piece;

use super::jobs::Jobs;
use super::keep::Units;
use super::{Bring, Brought, OWN_MAX, caught};
use crate::manager::MergeId;
use crate::task::{Part, Task};
use crate::{Epoch, JobId, LeaseId};

const NO_JOB: &str = "there is no such job";

/// The result of a lease.
#[derive(Debug)]
pub(super) struct Held {
    what: What,
    /// Of these, where that is kept.
    units: Units,
}

#[derive(Debug)]
enum What {
    /// As it came.
    Saved(ByteBuf),
    /// As it was merged, and of which job.
    Part(JobId, Part),
}

impl Held {
    pub(super) fn new(saved: ByteBuf, units: Units) -> Self {
        Self { what: What::Saved(saved), units }
    }

    /// Of a job without results.
    pub(super) fn nothing() -> Self {
        Self::new(ByteBuf::new(), Units::default())
    }

    pub(super) fn load(self, task: &dyn Task) -> Result<Part, String> {
        match self.what {
            What::Saved(saved) => task.load(&saved),
            What::Part(_, part) => Ok(part),
        }
    }

    fn merge(mut self, mut from: Self, job: JobId, task: &dyn Task) -> Result<Self, String> {
        let mut units = std::mem::take(&mut self.units);
        units.add_all(std::mem::take(&mut from.units));
        let into = self.load(task)?;
        let part = match from.what {
            What::Saved(later) => task.merge_saved(into, &later)?,
            What::Part(_, later) => task.merge(into, later)?,
        };
        Ok(Self { what: What::Part(job, part), units })
    }

    fn save(self, jobs: &Jobs<'_>) -> Result<ByteBuf, String> {
        match self.what {
            What::Saved(saved) => Ok(saved),
            What::Part(job, part) => {
                let task = jobs.get(job).ok_or(NO_JOB)?;
                Ok(ByteBuf::from(task.save(&part)?))
            }
        }
    }

    pub(super) fn piece(&self, job: JobId, task: &dyn Task) -> Result<Piece, String> {
        let part = match &self.what {
            What::Saved(saved) => saved.to_vec(),
            What::Part(_, part) => task.save(part)?,
        };
        Ok(Piece { job: job.0, units: self.units.ranges().to_vec(), part })
    }
}

/// Two results to be merged.
pub(super) struct Pair {
    pub(super) id: MergeId,
    pub(super) job: JobId,
    pub(super) into: Held,
    pub(super) from: Held,
}

/// What takes long.
enum Work {
    Merge(Pair),
    /// The result of a lease of the manager above.
    Save((Epoch, LeaseId, u64), Held),
}

impl Work {
    fn done(self, jobs: &Jobs<'_>) -> Brought {
        match self {
            Self::Merge(Pair { id, job, into, from }) => {
                let began = Instant::now();
                let merged = caught("a merge", || {
                    let task = jobs.get(job).ok_or(NO_JOB)?;
                    into.merge(from, job, &*task)
                });
                Brought::Merged(id, merged, began.elapsed())
            }
            Self::Save(of, held) => {
                let saved = caught("a kernel", || held.save(jobs));
                Brought::Saved(of, saved)
            }
        }
    }
}

pub(super) struct Merges<'env> {
    jobs: Jobs<'env>,
    aside: Sender<Work>,
    /// Merges under way.
    running: usize,
    /// How long the last one took.
    took: Duration,
    bring: Bring,
}

impl<'env> Merges<'env> {
    pub(super) fn new<'scope>(
        jobs: Jobs<'env>,
        bring: Bring,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Self {
        let (aside, works) = mpsc::channel::<Work>();
        let (brings, of) = (bring.clone(), jobs.clone());
        scope.spawn(move || works.into_iter().for_each(|work| brings.bring(work.done(&of))));
        Self { jobs, aside, running: 0, took: Duration::MAX, bring }
    }

    pub(super) fn running(&self) -> usize {
        self.running
    }

    pub(super) fn merge(&mut self, pair: Pair) {
        self.running += 1;
        self.work(Work::Merge(pair));
    }

    /// One is done, which took so long.
    pub(super) fn merged(&mut self, took: Duration) {
        self.running -= 1;
        self.took = took;
    }

    /// Makes bytes of a lease's result.
    pub(super) fn save(&self, of: (Epoch, LeaseId, u64), held: Held) {
        match held.what {
            What::Saved(saved) => self.bring.leave(Brought::Saved(of, Ok(saved))),
            What::Part(..) => self.work(Work::Save(of, held)),
        }
    }

    fn work(&self, work: Work) {
        if self.took <= OWN_MAX {
            return self.bring.leave(work.done(&self.jobs));
        }
        // Its thread ends after this.
        let _ = self.aside.send(work);
    }
}
