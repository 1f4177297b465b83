//! A kernel over many inputs: one job, whose units run from input to input.

mod session;

use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;

use crc_fast::{CrcAlgorithm, Digest};
use storage::{Input, Listed, OutputError, SharedDir};
use stream::{
    Control, Kernel, MergeOrder, Options, Plan, PlanError, Progress, Spool, StreamError, plan_all,
    plan_shares,
};

use super::{
    Description, List, Part, Session, Task, Tell, bytes_of, check_spool, load, merge, merging, own,
    save,
};
use crate::JobSpec;
use session::ManySession;

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
    units: Units,
    description: Description,
    spool: Option<&'a Spool>,
    progress: &'a Progress,
}

/// What a node has of its manager.
#[derive(Debug)]
struct Joined {
    /// That of another process.
    outputs: Option<SharedDir>,
    units: Units,
}

/// Which units are of which input: as many as its bytes would make, of which a
/// header may leave the last ones empty.
#[derive(Debug)]
struct Units {
    unit_bytes: u64,
    /// By input, the number behind its last unit.
    ends: Vec<u64>,
}

impl Units {
    fn new(inputs: &[Listed], unit_bytes: u64) -> Result<Self, String> {
        let mut all: u64 = 0;
        let ends = inputs.iter().map(|input| {
            let Some(len) = input.len_bytes() else {
                return Err(format!("the length of {} is not known", input.shown()));
            };
            all = all.saturating_add(len.div_ceil(unit_bytes.max(1)));
            Ok(all)
        });
        Ok(Self { unit_bytes, ends: ends.collect::<Result<_, _>>()? })
    }

    fn count(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The units of an input among those of all.
    fn of(&self, input: usize) -> Range<u64> {
        let before = input.checked_sub(1).and_then(|before| self.ends.get(before));
        before.copied().unwrap_or(0)..self.ends.get(input).copied().unwrap_or(0)
    }

    /// The inputs of some units, and which of their own those are.
    fn inputs(&self, units: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        let first = self.ends.partition_point(|end| *end <= units.start);
        let all = (first..self.ends.len()).map(|input| (input, self.of(input)));
        let until = units.end;
        all.take_while(move |(_, own)| own.start < until).filter_map(move |(input, own)| {
            let (from, to) = (units.start.max(own.start), units.end.min(own.end));
            (from < to).then(|| (input, from - own.start..to - own.start))
        })
    }
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
        let units = Units::new(inputs, plan.block_bytes);
        let cure = "name files";
        let units = units.map_err(|why| PlanError::Shares { why, cure })?;
        // What keeps one from being shared keeps all.
        if let Some(largest) = inputs.iter().max_by_key(|input| input.len_bytes()) {
            let of = output_of(largest);
            let output = outputs.map(|outputs| outputs.open(0, &of)).transpose()?;
            let input = Input::open(largest.path())?;
            let shared = plan_shares(kernel, &input, output.as_ref(), &options)?;
            plan.memory_bytes = plan.memory_bytes.max(shared.memory_bytes);
        }
        // Small inputs, each with parts of its own, and what waits to be merged.
        let lanes = plan.accelerators as u64;
        let waiting = lanes + u64::BITS as u64;
        plan.memory_bytes += kernel.memory_bytes(1).saturating_mul(match kernel.merge_order() {
            MergeOrder::Any => lanes + 1,
            MergeOrder::ByUnit => lanes + waiting,
        });
        let names = match inputs {
            [] => "no input".to_owned(),
            [one] => one.shown(),
            [first, others @ ..] => format!("{} and {} more", first.shown(), others.len()),
        };
        let refused = |error| StreamError::Kernel { input: names.clone(), error };
        let lens = inputs.iter().filter_map(Listed::len_bytes);
        let description = Description {
            kernel: kernel.name().to_owned(),
            parameters: kernel.parameters().map_err(refused)?,
            input: names.clone(),
            body: (0, lens.fold(0, u64::saturating_add)),
            modified: (0, 0),
            unit_bytes: plan.block_bytes,
            lease_units: None,
            output: outputs.map(|outputs| outputs.path().to_owned()),
            shipped: None,
            list: Some(List {
                inputs: inputs.len() as u64,
                units: units.count(),
                digest: digest(inputs),
            }),
        };
        let (joined, spool) = (OnceLock::new(), None);
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

    /// Where an input's output goes at this node.
    fn output(&self, number: usize) -> Result<Option<storage::Output>, OutputError> {
        let name = self.inputs.get(number).map(output_of).unwrap_or_default();
        self.outputs().map(|outputs| outputs.open(number as u64, &name)).transpose()
    }

    /// Whether what was written of the first `units` of an input can still be there.
    fn check_there(&self, outputs: &SharedDir, number: usize, units: u64) -> Result<(), String> {
        let Some(input) = self.inputs.get(number) else { return Ok(()) };
        let whole = self.output_bytes(input).map_err(|error| error.to_string())?.unwrap_or(0);
        let written = units.saturating_mul(self.plan.block_bytes).min(whole);
        match outputs.len_bytes(number as u64).unwrap_or(0) < written {
            true => Err(format!("{} is shorter than what was written of it", output_of(input))),
            false => Ok(()),
        }
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

/// What an output is called that has no name yet.
fn output_of(input: &Listed) -> String {
    format!("the output for {}", input.shown())
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
        let units = Units::new(self.inputs, description.unit_bytes)?;
        let outputs = match (&description.output, self.outputs) {
            (Some(path), None) if let Some(spool) = self.spool => {
                spool.join(path);
                None
            }
            (Some(path), None) => Some(SharedDir::join(path)),
            _ => None,
        };
        // Threads that are nodes of one process join in the same way.
        let _ = self.joined.set(Joined { outputs, units });
        Ok(())
    }

    fn reads(&self) -> bool {
        true
    }

    fn bytes(&self, _: Range<u64>) -> Result<Vec<u8>, String> {
        Err(format!("{}: units of many inputs are not sent", self.description.input))
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
            bytes_of(units, self.units.unit_bytes, len_bytes.unwrap_or(0))
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

    fn control(&self) -> Option<&Control> {
        Some(self.progress.control())
    }

    fn session<'t>(&'t self, _: Option<Input>, tell: Tell<'t>) -> Box<dyn Session + 't> {
        Box::new(ManySession::new(self, tell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_run_from_input_to_input() {
        let units = Units { unit_bytes: 10, ends: vec![3, 3, 4, 9] };
        let found = |range| units.inputs(range).collect::<Vec<_>>();
        assert_eq!(units.count(), 9);
        assert_eq!(found(0..9), [(0, 0..3), (2, 0..1), (3, 0..5)]);
        assert_eq!(found(2..4), [(0, 2..3), (2, 0..1)]);
        assert_eq!(found(4..8), [(3, 0..4)]);
        assert_eq!(found(8..9), [(3, 4..5)]);
    }
}
