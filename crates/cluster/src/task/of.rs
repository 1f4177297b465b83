//! A task as one job has it: with its own parameters, or those of the manager.

use std::ops::{Deref, Range};
use std::sync::Arc;

use storage::{Input, Output};
use stream::{Kernel, Options, Plan, Progress};

use super::many::{ManyPlaces, ManySession};
use super::session::{KernelSession, Reads};
use super::{Description, Part, Session, Task, Tell, load, merge, merge_saved, save};
use crate::JobSpec;

/// A task of a peer for one job.
#[derive(Clone)]
pub(crate) enum Of<'t> {
    /// As it is.
    Own(&'t dyn Task),
    /// With other parameters.
    Adopted(Arc<dyn Adopt + 't>),
}

impl<'t> Of<'t> {
    /// # Errors
    /// If it does not take these parameters: what differs.
    pub(crate) fn new(task: &'t dyn Task, parameters: &[u8]) -> Result<Self, String> {
        Ok(task.adopt(parameters)?.map_or(Self::Own(task), Self::Adopted))
    }

    /// As [`Task::session`]; it may be there for longer than this.
    pub(crate) fn session(&self, sent: Option<Input>, tell: Tell<'t>) -> Box<dyn Session + 't> {
        match self {
            Self::Own(task) => task.session(sent, tell),
            Self::Adopted(task) => task.shared_session(sent, tell),
        }
    }
}

impl<'t> Deref for Of<'t> {
    type Target = dyn Task + 't;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Own(task) => *task,
            Self::Adopted(task) => &**task,
        }
    }
}

/// A task whose parameters are those of a job.
pub trait Adopt: Task {
    /// As [`Task::session`]; it outlives this.
    fn shared_session<'t>(&self, sent: Option<Input>, tell: Tell<'t>) -> Box<dyn Session + 't>
    where
        Self: 't;
}

/// Where a task of a kernel reads and writes.
pub(super) struct Place<'t> {
    pub(super) reads: Option<Reads<'t>>,
    pub(super) output: Option<&'t Output>,
    pub(super) options: Options,
    pub(super) progress: &'t Progress,
    /// What was promised of a session; none where nothing was read before.
    pub(super) plan: Option<&'t Plan>,
}

/// The same of a task over one input, or over many.
pub(super) enum Places<'t> {
    One(Place<'t>),
    Many(ManyPlaces<'t>),
}

impl<'t> Places<'t> {
    pub(super) fn session<K: Kernel<Part: 'static>>(
        self,
        kernel: Own<'t, K>,
        tell: Tell<'t>,
    ) -> Box<dyn Session + 't> {
        match self {
            Self::One(place) => Box::new(KernelSession::new(kernel, place, tell)),
            Self::Many(places) => Box::new(ManySession::new(kernel, places, tell)),
        }
    }
}

/// A task of one kernel.
pub(super) trait Base: Task {
    fn place(&self, sent: Option<Input>) -> Places<'_>;
}

/// One with other parameters, over the same input.
pub(super) struct Adopted<'b, B, K> {
    base: &'b B,
    kernel: Arc<K>,
    description: Description,
}

impl<'b, B: Base, K: Kernel> Adopted<'b, B, K> {
    /// # Errors
    /// If that takes more memory than was promised.
    pub(super) fn new(base: &'b B, kernel: K, parameters: &[u8]) -> Result<Self, String> {
        let (takes_bytes, most_bytes) = (kernel.memory_bytes(1), base.part_bytes());
        if takes_bytes > most_bytes {
            return Err(format!(
                "{} takes {takes_bytes} bytes for a result with these parameters, and \
                 {most_bytes} with those it was started with, by which memory is bounded; start \
                 it with as many",
                kernel.name()
            ));
        }
        let description =
            Description { parameters: parameters.to_vec(), ..base.description().clone() };
        Ok(Self { base, kernel: Arc::new(kernel), description })
    }
}

impl<B: Base, K: Kernel<Part: 'static>> Adopt for Adopted<'_, B, K> {
    fn shared_session<'t>(&self, sent: Option<Input>, tell: Tell<'t>) -> Box<dyn Session + 't>
    where
        Self: 't,
    {
        self.base.place(sent).session(Own::Shared(self.kernel.clone()), tell)
    }
}

impl<B: Base, K: Kernel<Part: 'static>> Task for Adopted<'_, B, K> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn join(&self, description: &Description) -> Result<(), String> {
        self.has().check(description, |_| false)?;
        let parameters = self.base.description().parameters.clone();
        self.base.join(&Description { parameters, ..description.clone() })
    }

    fn named(&self, unit: u64, what: String) -> String {
        self.base.named(unit, what)
    }

    fn reads(&self) -> bool {
        self.base.reads()
    }

    fn bytes(&self, range: Range<u64>) -> Result<Vec<u8>, String> {
        self.base.bytes(range)
    }

    fn spec(&self) -> JobSpec {
        self.base.spec()
    }

    fn part_bytes(&self) -> u64 {
        self.kernel.memory_bytes(1)
    }

    fn load(&self, saved: &[u8]) -> Result<Part, String> {
        load(&*self.kernel, &self.description.input, saved)
    }

    fn save(&self, part: &Part) -> Result<Vec<u8>, String> {
        save(&*self.kernel, &self.description.input, part)
    }

    fn settle(&self) -> Result<(), String> {
        self.base.settle()
    }

    fn done(&self, units: Range<u64>) {
        self.base.done(units);
    }

    fn merge(&self, part: Part, later: Part) -> Result<Part, String> {
        merge(&*self.kernel, &self.description.input, part, later)
    }

    fn merge_saved(&self, part: Part, later: &[u8]) -> Result<Part, String> {
        merge_saved(&*self.kernel, &self.description.input, part, later)
    }

    fn can_step(&self) -> bool {
        self.base.can_step()
    }

    fn session<'t>(&'t self, sent: Option<Input>, tell: Tell<'t>) -> Box<dyn Session + 't> {
        self.shared_session(sent, tell)
    }
}

/// A kernel of a task, or of a job.
pub(super) enum Own<'t, K> {
    Lent(&'t K),
    Shared(Arc<K>),
}

impl<K> Clone for Own<'_, K> {
    fn clone(&self) -> Self {
        match self {
            Self::Lent(kernel) => Self::Lent(kernel),
            Self::Shared(kernel) => Self::Shared(kernel.clone()),
        }
    }
}

impl<K> Deref for Own<'_, K> {
    type Target = K;

    fn deref(&self) -> &K {
        match self {
            Self::Lent(kernel) => kernel,
            Self::Shared(kernel) => kernel,
        }
    }
}
