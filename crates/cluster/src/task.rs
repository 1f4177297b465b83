//! A kernel over an input, as manager and nodes share it.

mod has;
mod many;
mod of;
mod parameters;
mod part;
mod remote;
mod session;

use std::ops::Range;
use std::path::{Path, PathBuf, absolute};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use storage::{Input, InputError, Output};
use stream::{
    Control, Drive, Kernel, MergeOrder, Options, Pipeline, Plan, Progress, Spool, Stats,
    StreamError, plan_shares,
};

use crate::{Failure, JobSpec, Lease, LeaseId, Merging};
pub use has::Has;
pub(crate) use has::{said, unlike};
pub use many::ManyTask;
pub(crate) use many::Units;
pub use of::Adopt;
pub(crate) use of::Of;
use of::{Adopted, Base, Own, Place, Places};
pub use part::Part;
use part::{load, merge, merge_saved, own, save};
pub use remote::{RemoteTask, Shipped};
use session::Reads;

/// What a job is, told to nodes so that each can see that it would compute the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The kernel's name; of a chain, all of them.
    pub kernel: String,
    /// [`Kernel::parameters`]: of a kernel whose are records, with their layout
    /// ([`Records::to_bytes`](record::Records::to_bytes)), so that what differs is named.
    pub parameters: Vec<u8>,
    /// The input's name, for people: nodes may see it by another.
    pub input: String,
    /// On which machine it is called that, until that starts anew; none if that is unknown.
    pub host: Option<String>,
    /// Bytes of it that are streamed, and where they begin.
    pub body: (u64, u64),
    /// When it was written last, in seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Bytes of a unit, whatever a node would choose by what it has cached.
    pub unit_bytes: u64,
    /// As [`JobSpec::lease_units`].
    pub lease_units: Option<u64>,
    /// Where a transform's blocks go; none where peers are threads of one process.
    #[serde(with = "as_bytes")]
    pub output: Option<PathBuf>,
    /// For nodes that are sent their units, or why none is: every node has to read then.
    pub shipped: Result<Shipped, String>,
    /// Of a job over many inputs.
    pub list: Option<List>,
}

/// A path goes as its bytes: it need not be text.
mod as_bytes {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    use std::path::PathBuf;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
    use serde_bytes::{ByteBuf, Bytes};

    pub(super) fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        path.as_ref().map(|path| Bytes::new(path.as_os_str().as_bytes())).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        let bytes = Option::<ByteBuf>::deserialize(from)?;
        Ok(bytes.map(|bytes| OsString::from_vec(bytes.into_vec()).into()))
    }
}

/// Inputs of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// How many there are.
    pub inputs: u64,
    /// Units of all of them.
    pub units: u64,
    /// Of their names, lengths, and when they were written last.
    pub digest: u64,
}

/// This machine, until it starts anew.
pub(crate) fn host() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
}

impl Description {
    /// How many there are.
    pub(crate) fn units(&self) -> u64 {
        match &self.list {
            Some(list) => list.units,
            None => self.body.1.div_ceil(self.unit_bytes.max(1)),
        }
    }
}

/// What became of a lease that a node computes.
#[derive(Debug)]
pub enum Ended {
    /// Its result, saved, and how long one thread takes at most for such a one.
    Computed(Vec<u8>, Duration),
    /// None.
    Failed(Failure),
    /// It was stopped.
    Stopped,
}

/// Takes what became of a lease, on any thread.
pub type Tell<'t> = Box<dyn Fn(LeaseId, Ended) + Send + Sync + 't>;

/// A job, without the types of its kernel.
pub trait Task: Send + Sync {
    /// What nodes are told.
    fn description(&self) -> &Description;

    /// What a node tells.
    fn has(&self) -> Has {
        Has::of(self.description(), self.reads())
    }

    /// Whether a job may have such parameters instead of its own: then nodes take those of
    /// the manager.
    fn takes(&self, _parameters: &[u8]) -> bool {
        false
    }

    /// This task with the parameters of a job; none if they are its own.
    ///
    /// # Errors
    /// If it does not take them: what differs.
    fn adopt<'t>(&'t self, parameters: &[u8]) -> Result<Option<Arc<dyn Adopt + 't>>, String> {
        let Description { kernel, parameters: own, .. } = self.description();
        parameters::difference(kernel, parameters, own).map_or(Ok(None), Err)
    }

    /// Before a node computes: whether it would compute the same as its manager, of
    /// which this is the description. Opens what is to be shared.
    ///
    /// # Errors
    /// What differs or is missing, by its name.
    fn join(&self, description: &Description) -> Result<(), String>;

    /// What a node says of a unit that failed, with the name of the input that it is of: a node
    /// that is sent its units knows none.
    fn named(&self, _unit: u64, what: String) -> String {
        what
    }

    /// Whether units can be read here.
    fn reads(&self) -> bool;

    /// Those bytes of the input.
    ///
    /// # Errors
    /// If they cannot be read, or are no longer what they were.
    fn bytes(&self, range: Range<u64>) -> Result<Vec<u8>, String>;

    /// What the manager is told.
    fn spec(&self) -> JobSpec;

    /// The most bytes of a part, saved or loaded.
    fn part_bytes(&self) -> u64;

    /// The part that a node saved.
    ///
    /// # Errors
    /// If that is another kernel's, or damaged.
    fn load(&self, saved: &[u8]) -> Result<Part, String>;

    /// What [`Task::load`] makes the same part of.
    ///
    /// # Errors
    /// If it is another kernel's, or cannot be saved.
    fn save(&self, part: &Part) -> Result<Vec<u8>, String>;

    /// Brings to the disk what this process has put to an output, and sees whether the
    /// input is what it was.
    ///
    /// # Errors
    /// If it is not.
    fn settle(&self) -> Result<(), String>;

    /// A result of these units counts, which no other one of them did.
    fn done(&self, units: Range<u64>);

    /// These units were done by a manager before this one, with that result, saved.
    ///
    /// # Errors
    /// If what was written of them is gone.
    fn recorded(&self, _units: &[Range<u64>], _saved: &[u8]) -> Result<(), String> {
        Ok(())
    }

    /// Merges `later` into `part`.
    ///
    /// # Errors
    /// Those of the kernel.
    fn merge(&self, part: Part, later: Part) -> Result<Part, String>;

    /// The same with one as [`Task::save`] saved it.
    ///
    /// # Errors
    /// Those of the kernel, also where that would not load it.
    fn merge_saved(&self, part: Part, later: &[u8]) -> Result<Part, String> {
        self.merge(part, self.load(later)?)
    }

    /// Who may pause it, of this process: meanwhile its peers' clocks stand still.
    fn control(&self) -> Option<&Control> {
        None
    }

    /// Whether one thread can do it: [`Session::step`].
    fn can_step(&self) -> bool {
        false
    }

    /// Begins to compute leases on this machine, of units in the own input, or in one that
    /// was `sent`.
    fn session<'t>(&'t self, sent: Option<Input>, tell: Tell<'t>) -> Box<dyn Session + 't>;
}

/// Computes leases of one job on this machine, given from any thread.
pub trait Session: Send + Sync {
    /// Computes that one, whose units no other one has.
    fn give(&self, lease: &Lease);

    /// Leaves off.
    fn stop(&self, lease: LeaseId);

    /// Computes only the first `units` of it, unless it is past them or cannot tell; whether it
    /// does.
    fn shorten(&self, _lease: LeaseId, _units: u64) -> bool {
        false
    }

    /// No more will be given.
    fn close(&self);

    /// Does the work, on the calling thread and accelerators beside it, until it is closed.
    ///
    /// # Errors
    /// Where no lease is to blame; those there are come to nothing.
    fn run(&self) -> Result<Stats, StreamError>;

    /// Instead, on the calling thread alone, as `drive` steps it ([`step_shares`](stream::step_shares)): where
    /// the task can step.
    ///
    /// # Errors
    /// As [`Session::run`].
    fn step(&self, _drive: &mut Drive<'_>) -> Result<Stats, StreamError> {
        self.run()
    }
}

/// A kernel over a file that every node can open.
#[derive(Debug)]
pub struct KernelTask<'a, K: Kernel> {
    kernel: &'a K,
    input: &'a Input,
    output: Option<&'a Output>,
    /// At a node, once it has joined.
    joined: OnceLock<Joined>,
    options: Options,
    plan: Plan,
    description: Description,
    spool: Option<&'a Spool>,
    progress: &'a Progress,
}

/// What a node has of its manager.
#[derive(Debug)]
struct Joined {
    /// That of another process.
    output: Option<Output>,
    unit_bytes: u64,
    /// Of an input that it reads, by those units.
    plan: Option<Plan>,
}

impl<'a, K: Kernel> KernelTask<'a, K> {
    /// `options` are those of one node. What a transform makes goes to `output`,
    /// which all nodes share and the caller commits.
    ///
    /// # Errors
    /// An input that the kernel refuses, or what nodes cannot share.
    pub fn new(
        kernel: &'a K,
        input: &'a Input,
        output: Option<&'a Output>,
        options: &Options,
        progress: &'a Progress,
    ) -> Result<Self, StreamError> {
        let plan = plan_shares(kernel, input, output, options)?;
        let refused = |error| StreamError::Kernel { input: input.name().to_owned(), error };
        let description = Description {
            kernel: kernel.name().to_owned(),
            parameters: kernel.parameters().map_err(refused)?,
            input: input.name().to_owned(),
            host: host(),
            body: (plan.body.start, plan.body.end - plan.body.start),
            modified: input.modified(),
            unit_bytes: plan.block_bytes,
            lease_units: None,
            // Others may work in another folder.
            output: output.and_then(Output::shared_path).and_then(|path| absolute(path).ok()),
            shipped: Shipped::of(kernel, input).map_err(refused)?,
            list: None,
        };
        let options = Options { block_bytes: Some(plan.block_bytes), ..options.clone() };
        let (joined, spool) = (OnceLock::new(), None);
        Ok(Self { kernel, input, output, joined, options, plan, description, spool, progress })
    }

    /// Leases have so many units, rounded down to a power of two, instead of what is measured.
    #[must_use]
    pub fn lease_units(mut self, units: Option<u64>) -> Self {
        self.description.lease_units = units;
        self
    }

    /// Where the kernel writes, a [`Spooled`](stream::Spooled): nodes join the manager's.
    #[must_use]
    pub fn spool(mut self, spool: &'a Spool) -> Self {
        self.description.output = spool.path().map(Path::to_owned);
        // Who is sent its units has no place to join it from.
        self.description.shipped = Err(unplaced(self.kernel));
        Self { spool: Some(spool), ..self }
    }

    /// How each node works.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl<K: Kernel<Part: 'static>> KernelTask<'_, K> {
    /// The result of the whole job: an empty part where there is none.
    ///
    /// # Errors
    /// If it is another task's.
    pub fn result(&self, result: Option<Part>) -> Result<K::Part, String> {
        match result {
            None => Ok(self.kernel.part(1)),
            Some(part) => own::<K>(part),
        }
    }
}

/// Why what is made by a rewrite is made where the input is read.
fn unplaced<K: Kernel>(kernel: &K) -> String {
    format!("where a block goes of what {} makes shows at the end only", kernel.name())
}

/// How many bytes units are of `len_bytes` that begin with the first.
fn bytes_of(units: Range<u64>, unit_bytes: u64, len_bytes: u64) -> u64 {
    let [start, end] =
        [units.start, units.end].map(|unit| unit.saturating_mul(unit_bytes).min(len_bytes));
    end.saturating_sub(start)
}

fn merging<K: Kernel>(kernel: &K) -> Merging {
    match kernel.merge_order() {
        _ if size_of::<K::Part>() == 0 => Merging::Nothing,
        MergeOrder::Any => Merging::AnyOrder,
        MergeOrder::ByUnit => Merging::AlongTree,
    }
}

fn takes<K: Kernel>(kernel: &K, parameters: &[u8]) -> bool {
    matches!(kernel.with_parameters(parameters), Ok(Some(_)))
}

/// A task of `kernel` with the parameters of a job, if they are not its own.
fn adopt<'t, K: Kernel<Part: 'static> + 't>(
    task: &'t impl Base,
    kernel: &K,
    parameters: &[u8],
) -> Result<Option<Arc<dyn Adopt + 't>>, String> {
    let Description { kernel: name, parameters: own, .. } = task.description();
    let Some(differs) = parameters::difference(name, parameters, own) else { return Ok(None) };
    match kernel.with_parameters(parameters) {
        Ok(Some(kernel)) => Ok(Some(Arc::new(Adopted::new(task, kernel, parameters)?))),
        Ok(None) => Err(differs),
        Err(error) => Err(format!("{name} cannot take the manager's parameters: {error}")),
    }
}

/// Brings what was put to the disk.
fn settle(output: Option<&Output>) -> Result<(), String> {
    let Some(output) = output else { return Ok(()) };
    let (name, settled) = (output.name(), output.file().sync_data());
    settled.map_err(|error| format!("{name} cannot be brought to the disk: {error}"))
}

/// Whether that is still there which the result of a rewrite tells of.
fn check_spool(spool: Option<&Spool>, saved: &[u8]) -> Result<(), String> {
    spool.map_or(Ok(()), |spool| spool.check_there(saved)).map_err(|error| error.what)
}

impl<K: Kernel<Part: 'static>> Task for KernelTask<'_, K> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn join(&self, description: &Description) -> Result<(), String> {
        self.has().check(description, |_| false)?;
        if self.joined.get().is_some() {
            return Ok(());
        }
        let output = match (&description.output, self.output) {
            (Some(path), None) if let Some(spool) = self.spool => {
                spool.join(path);
                None
            }
            (Some(path), None) => Some(Output::join(path).map_err(|error| error.to_string())?),
            _ => None,
        };
        let unit_bytes = description.unit_bytes;
        let options = Options { block_bytes: Some(unit_bytes), ..self.options.clone() };
        let shared = self.output.or(output.as_ref());
        let plan = plan_shares(self.kernel, self.input, shared, &options);
        let plan = Some(plan.map_err(|error| error.to_string())?);
        // Threads that are nodes of one process join in the same way.
        let _ = self.joined.set(Joined { output, unit_bytes, plan });
        Ok(())
    }

    fn reads(&self) -> bool {
        true
    }

    fn bytes(&self, range: Range<u64>) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; range.end.saturating_sub(range.start) as usize];
        let said = |error: InputError| error.to_string();
        self.input.read_exact_at(&mut bytes, range.start).map_err(said)?;
        match self.input.changed().map_err(said)? {
            Some(what) => Err(said(InputError::changed(self.input.name(), what))),
            None => Ok(bytes),
        }
    }

    fn spec(&self) -> JobSpec {
        JobSpec {
            units: self.plan.units.unwrap_or(0),
            unit_bytes: self.plan.block_bytes,
            merging: merging(self.kernel),
            lease_units: self.description.lease_units,
        }
    }

    fn part_bytes(&self) -> u64 {
        self.kernel.memory_bytes(1)
    }

    fn load(&self, saved: &[u8]) -> Result<Part, String> {
        load(self.kernel, self.input.name(), saved)
    }

    fn save(&self, part: &Part) -> Result<Vec<u8>, String> {
        save(self.kernel, self.input.name(), part)
    }

    fn settle(&self) -> Result<(), String> {
        let changed = self.input.changed().map_err(|error| error.to_string())?;
        if let Some(what) = changed {
            return Err(InputError::changed(self.input.name(), what).to_string());
        }
        let joined = self.joined.get().and_then(|joined| joined.output.as_ref());
        settle(self.output.or(joined))?;
        self.spool.map_or(Ok(()), Spool::settle).map_err(|error| error.to_string())
    }

    fn done(&self, units: Range<u64>) {
        self.progress.add_done(bytes_of(units, self.plan.block_bytes, self.description.body.1));
    }

    fn recorded(&self, _: &[Range<u64>], saved: &[u8]) -> Result<(), String> {
        check_spool(self.spool, saved)
    }

    fn merge(&self, part: Part, later: Part) -> Result<Part, String> {
        merge(self.kernel, self.input.name(), part, later)
    }

    fn merge_saved(&self, part: Part, later: &[u8]) -> Result<Part, String> {
        merge_saved(self.kernel, self.input.name(), part, later)
    }

    fn control(&self) -> Option<&Control> {
        Some(self.progress.control())
    }

    fn can_step(&self) -> bool {
        self.plan.pipeline() == Pipeline::Fused
    }

    fn takes(&self, parameters: &[u8]) -> bool {
        takes(self.kernel, parameters)
    }

    fn adopt<'t>(&'t self, parameters: &[u8]) -> Result<Option<Arc<dyn Adopt + 't>>, String> {
        adopt(self, self.kernel, parameters)
    }

    fn session<'t>(&'t self, sent: Option<Input>, tell: Tell<'t>) -> Box<dyn Session + 't> {
        self.place(sent).session(Own::Lent(self.kernel), tell)
    }
}

impl<K: Kernel<Part: 'static>> Base for KernelTask<'_, K> {
    fn place(&self, sent: Option<Input>) -> Places<'_> {
        let Self { input, output, joined, options, progress, .. } = self;
        let reads = sent.map_or(Reads::Own(input), |sent| Reads::Sent(Box::new(sent)));
        let (mut options, mut output) = (options.clone(), *output);
        if let Some(joined) = joined.get() {
            options.block_bytes = Some(joined.unit_bytes);
            output = output.or(joined.output.as_ref());
        }
        let plan = joined.get().and_then(|joined| joined.plan.as_ref()).unwrap_or(&self.plan);
        Places::One(Place { reads: Some(reads), output, options, progress, plan: Some(plan) })
    }
}

#[cfg(test)]
impl Description {
    /// Some of all kinds.
    pub(crate) fn any() -> impl proptest::strategy::Strategy<Value = Self> {
        use proptest::prelude::*;
        use std::os::unix::ffi::OsStringExt as _;
        (
            ".{0,9}",
            prop::collection::vec(any::<u8>(), 0..9),
            any::<(u64, u64)>(),
            any::<(i64, i64)>(),
            any::<Option<(u64, Vec<u8>)>>(),
            any::<Option<Vec<u8>>>(),
        )
            .prop_map(|(kernel, parameters, body, modified, shipped, output)| Self {
                kernel,
                parameters,
                input: "data".into(),
                host: host(),
                body,
                modified,
                unit_bytes: 1 << 20,
                lease_units: None,
                output: output.map(|path| std::ffi::OsString::from_vec(path).into()),
                shipped: shipped.ok_or("it".to_owned()).map(|(len_bytes, head)| Shipped {
                    len_bytes,
                    lens: head.iter().map(|len| u64::from(*len) << 30).collect(),
                    head: vec![(7, head.into())],
                    around: (1, 2),
                }),
                list: None,
            })
    }
}
