//! A kernel over many inputs: one job, whose units run from input to input.

mod places;
mod session;
mod units;

use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crc_fast::{CrcAlgorithm, Digest};
use storage::{Input, InputError, Listed, Output, OutputError, SharedDir};
use stream::{
    Control, Kernel, MergeOrder, Options, Plan, PlanError, Progress, RANGES_OPEN, Spool,
    StreamError, plan_all, plan_shares,
};

use super::{
    Base, Description, List, Own, Part, Places, Session, Shipped, Task, Tell, bytes_of,
    check_spool, load, merge, merge_saved, merging, own, save, unplaced,
};
use crate::JobSpec;
pub(super) use places::{Inputs, ManyPlaces};
use places::{name_if_sent, open, output_of};
pub(super) use session::ManySession;
pub(crate) use units::Units;

/// A kernel over files that every node can open. An input is open while units of it are
/// computed, and so is its output: how many there are costs a number each.
#[derive(Debug)]
pub struct ManyTask<'a, K: Kernel> {
    kernel: &'a K,
    inputs: &'a [Listed],
    outputs: Option<&'a SharedDir>,
    /// At a node, once it has joined.
    joined: OnceLock<Joined>,
    options: Options,
    plan: Plan,
    units: Arc<Units>,
    description: Description,
    spool: Option<&'a Spool>,
    progress: &'a Progress,
    /// What was read of for nodes, by its number, the last one at the end.
    read: Mutex<Vec<(usize, Input)>>,
}

/// So many inputs at most stay open, for nodes ask for pieces of several in turn.
const READ_OPEN_MAX: usize = 16;

/// What a node has of its manager.
#[derive(Debug)]
pub(super) struct Joined {
    /// That of another process.
    pub(super) outputs: Option<SharedDir>,
    pub(super) units: Arc<Units>,
    /// As [`Shipped::around`].
    pub(super) around: (u64, u64),
}

impl Joined {
    pub(super) fn settle(&self) -> Result<(), String> {
        let settled = self.outputs.as_ref().map_or(Ok(()), SharedDir::settle);
        settled.map_err(|error| error.to_string())
    }
}

/// Adds to the plan for a list what sharing it takes, the `longest` input of which keeps all
/// from being shared if it cannot be.
pub(super) fn share<K: Kernel>(
    kernel: &K,
    (longest, output): (&Input, Option<&Output>),
    options: &Options,
    plan: &mut Plan,
) -> Result<(), StreamError> {
    let shared = plan_shares(kernel, longest, output, options)?;
    plan.memory_bytes = plan.memory_bytes.max(shared.memory_bytes);
    // Small inputs, each with parts of its own, and of each lease what waits to be merged.
    let lanes = plan.accelerators as u64;
    let of_lease = match kernel.merge_order() {
        MergeOrder::Any => 1,
        MergeOrder::ByUnit => lanes + u64::from(u64::BITS),
    };
    let parts = lanes + RANGES_OPEN as u64 * of_lease;
    plan.memory_bytes += kernel.memory_bytes(1).saturating_mul(parts);
    Ok(())
}

impl<'a, K: Kernel> ManyTask<'a, K> {
    /// `options` are those of one node. What a transform makes of each input goes to the
    /// file of its number in `outputs`, which all nodes share and from which the caller
    /// takes it.
    ///
    /// # Errors
    /// A kernel that takes one input only, or what nodes cannot share.
    pub fn new(
        kernel: &'a K,
        inputs: &'a [Listed],
        outputs: Option<&'a SharedDir>,
        options: &Options,
        progress: &'a Progress,
    ) -> Result<Self, StreamError> {
        let mut plan = plan_all(kernel, inputs, options)?;
        let options = Options { block_bytes: Some(plan.block_bytes), ..options.clone() };
        let lens = lens(inputs)?;
        let units = Arc::new(Units::new(lens.iter().copied(), plan.block_bytes));
        if let Some(longest) = inputs.iter().max_by_key(|input| input.len_bytes()) {
            let of = output_of(&longest.shown());
            let output = outputs.map(|outputs| outputs.open(0, &of)).transpose()?;
            let input = Input::open(longest.path())?;
            share(kernel, (&input, output.as_ref()), &options, &mut plan)?;
        }
        let names = match inputs {
            [] => "no input".to_owned(),
            [one] => one.shown(),
            [first, others @ ..] => format!("{} and {} more", first.shown(), others.len()),
        };
        let refused = |error| StreamError::Kernel { input: names.clone(), error };
        let description = Description {
            kernel: kernel.name().to_owned(),
            parameters: kernel.parameters().map_err(refused)?,
            input: names.clone(),
            host: super::host(),
            body: (0, lens.iter().copied().fold(0, u64::saturating_add)),
            modified: (0, 0),
            unit_bytes: plan.block_bytes,
            lease_units: None,
            output: outputs.map(|outputs| outputs.path().to_owned()),
            shipped: Shipped::of_many(kernel, lens),
            list: Some(List {
                inputs: inputs.len() as u64,
                units: units.count(),
                digest: digest(inputs),
            }),
        };
        let (joined, spool, read) = (OnceLock::new(), None, Mutex::default());
        Ok(Self {
            kernel,
            inputs,
            outputs,
            joined,
            options,
            plan,
            units,
            description,
            spool,
            progress,
            read,
        })
    }

    /// As for one input.
    #[must_use]
    pub fn lease_units(mut self, units: Option<u64>) -> Self {
        self.description.lease_units = units;
        self
    }

    /// As for one input.
    #[must_use]
    pub fn spool(mut self, spool: &'a Spool) -> Self {
        self.description.output = spool.path().map(Path::to_owned);
        self.description.shipped = Err(unplaced(self.kernel));
        Self { spool: Some(spool), ..self }
    }

    /// How each node works.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Bytes of the output for an input; `None` of one whose length shows at its end.
    ///
    /// # Errors
    /// If the input cannot be read any more, or the kernel refuses it.
    pub fn output_bytes(&self, input: &Listed) -> Result<Option<u64>, StreamError> {
        let input = Input::open(input.path())?;
        Ok(stream::plan(self.kernel, &input, &self.options)?.output_bytes())
    }

    /// Whether an input has anything to be computed.
    ///
    /// # Errors
    /// As [`ManyTask::output_bytes`].
    pub fn has_units(&self, input: &Listed) -> Result<bool, StreamError> {
        let input = Input::open(input.path())?;
        Ok(stream::plan(self.kernel, &input, &self.options)?.units != Some(0))
    }

    /// Whether what was written of the first `units` of an input can still be there.
    fn check_there(&self, outputs: &SharedDir, number: usize, units: u64) -> Result<(), String> {
        let Some(input) = self.inputs.get(number) else { return Ok(()) };
        let whole = self.output_bytes(input).map_err(|error| error.to_string())?.unwrap_or(0);
        let written = units.saturating_mul(self.plan.block_bytes).min(whole);
        match outputs.len_bytes(number as u64).unwrap_or(0) < written {
            true => {
                let output = output_of(&input.shown());
                Err(format!("{output} is shorter than what was written of it"))
            }
            false => Ok(()),
        }
    }

    /// Fills `buf` from an input, which is what was listed still when it has been read.
    fn read(&self, number: usize, offset: u64, buf: &mut [u8]) -> Result<(), InputError> {
        let Some(listed) = self.inputs.get(number) else { return Ok(()) };
        let known = {
            let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
            let place = read.iter().position(|(known, _)| *known == number);
            // One that cannot be read is opened anew the next time.
            place.map(|place| read.remove(place).1)
        };
        let input = known.map_or_else(|| open(listed), Ok)?;
        input.read_exact_at(buf, offset)?;
        if let Some(what) = input.changed()? {
            return Err(InputError::changed(input.name(), what));
        }
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.push((number, input));
        if read.len() > READ_OPEN_MAX {
            drop(read.remove(0));
        }
        Ok(())
    }

    /// Where all of them go.
    fn outputs(&self) -> Option<&SharedDir> {
        let joined = self.joined.get().and_then(|joined| joined.outputs.as_ref());
        self.outputs.or(joined)
    }
}

impl<K: Kernel<Part: 'static>> ManyTask<'_, K> {
    /// As for one input.
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

/// All lengths in bytes.
fn lens(inputs: &[Listed]) -> Result<Vec<u64>, PlanError> {
    let lens = inputs.iter().map(|input| {
        let why = || format!("the length of {} is not known", input.shown());
        input.len_bytes().ok_or_else(|| PlanError::Shares { why: why(), cure: "name files" })
    });
    lens.collect()
}

/// By which lists are told from each other: names, lengths and times.
fn digest(inputs: &[Listed]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    for input in inputs {
        let name = input.name().as_os_str().as_bytes();
        digest.update(&(name.len() as u64).to_le_bytes());
        digest.update(name);
        digest.update(&input.len_bytes().unwrap_or(u64::MAX).to_le_bytes());
        let (seconds, nanoseconds) = input.modified();
        digest.update(&seconds.to_le_bytes());
        digest.update(&nanoseconds.to_le_bytes());
    }
    digest.finalize()
}

impl<K: Kernel<Part: 'static>> Task for ManyTask<'_, K> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn join(&self, description: &Description) -> Result<(), String> {
        self.has().check(description, |_| false)?;
        if self.joined.get().is_some() {
            return Ok(());
        }
        let units = match description.unit_bytes == self.units.unit_bytes() {
            true => self.units.clone(),
            false => {
                let lens = self.inputs.iter().filter_map(Listed::len_bytes);
                Arc::new(Units::new(lens, description.unit_bytes))
            }
        };
        let around = description.shipped.as_ref().map_or((0, 0), |shipped| shipped.around);
        let outputs = match (&description.output, self.outputs) {
            (Some(path), None) if let Some(spool) = self.spool => {
                spool.join(path);
                None
            }
            (Some(path), None) => Some(SharedDir::join(path)),
            _ => None,
        };
        // Threads that are nodes of one process join in the same way.
        let _ = self.joined.set(Joined { outputs, units, around });
        Ok(())
    }

    fn reads(&self) -> bool {
        true
    }

    fn bytes(&self, range: Range<u64>) -> Result<Vec<u8>, String> {
        let all = self.description.body.1;
        if range.end > all {
            let names = &self.description.input;
            return Err(format!(
                "{names}: there are {all} bytes, and {} were asked for",
                range.end
            ));
        }
        let mut bytes = vec![0; range.end.saturating_sub(range.start) as usize];
        let mut rest = &mut *bytes;
        for (number, own) in self.units.inputs_of_bytes(range) {
            let (of_it, others) = rest.split_at_mut((own.end - own.start) as usize);
            self.read(number, own.start, of_it).map_err(|error| error.to_string())?;
            rest = others;
        }
        Ok(bytes)
    }

    fn named(&self, unit: u64, what: String) -> String {
        let of_unit = self.units.inputs(unit..unit.saturating_add(1)).next();
        let listed = of_unit.and_then(|(number, _)| Some((number, self.inputs.get(number)?)));
        match listed {
            Some((number, listed)) => what.replacen(&name_if_sent(number), &listed.shown(), 1),
            None => what,
        }
    }

    fn spec(&self) -> JobSpec {
        JobSpec {
            units: self.description.units(),
            unit_bytes: self.plan.block_bytes,
            merging: merging(self.kernel),
            lease_units: self.description.lease_units,
        }
    }

    fn part_bytes(&self) -> u64 {
        self.kernel.memory_bytes(1)
    }

    fn load(&self, saved: &[u8]) -> Result<Part, String> {
        load(self.kernel, &self.description.input, saved)
    }

    fn save(&self, part: &Part) -> Result<Vec<u8>, String> {
        save(self.kernel, &self.description.input, part)
    }

    /// What was changed since it was listed a journal knows.
    fn settle(&self) -> Result<(), String> {
        let said = |error: OutputError| error.to_string();
        self.outputs().map_or(Ok(()), SharedDir::settle).map_err(said)?;
        self.spool.map_or(Ok(()), Spool::settle).map_err(said)
    }

    fn done(&self, units: Range<u64>) {
        let of_input = |(input, units)| {
            let len_bytes = self.inputs.get(input).and_then(Listed::len_bytes);
            bytes_of(units, self.units.unit_bytes(), len_bytes.unwrap_or(0))
        };
        self.progress.add_done(self.units.inputs(units).map(of_input).sum());
    }

    fn recorded(&self, units: &[Range<u64>], saved: &[u8]) -> Result<(), String> {
        check_spool(self.spool, saved)?;
        let Some(outputs) = self.outputs.filter(|outputs| outputs.is_kept()) else { return Ok(()) };
        for (number, own) in units.iter().flat_map(|units| self.units.inputs(units.clone())) {
            self.check_there(outputs, number, own.end)?;
        }
        Ok(())
    }

    fn merge(&self, part: Part, later: Part) -> Result<Part, String> {
        merge(self.kernel, &self.description.input, part, later)
    }

    fn merge_saved(&self, part: Part, later: &[u8]) -> Result<Part, String> {
        merge_saved(self.kernel, &self.description.input, part, later)
    }

    fn control(&self) -> Option<&Control> {
        Some(self.progress.control())
    }

    fn session<'t>(&'t self, sent: Option<Input>, tell: Tell<'t>) -> Box<dyn Session + 't> {
        self.place(sent).session(Own::Lent(self.kernel), tell)
    }
}

impl<K: Kernel<Part: 'static>> Base for ManyTask<'_, K> {
    fn place(&self, sent: Option<Input>) -> Places<'_> {
        Places::Many(ManyPlaces {
            inputs: match sent {
                None => Inputs::Listed(self.inputs),
                Some(_) => Inputs::sent(sent, Some(self.inputs)),
            },
            joined: self.joined.get(),
            outputs: self.outputs(),
            names: &self.description.input,
            options: self.options.clone(),
            plan: &self.plan,
            progress: self.progress,
        })
    }
}
