//! Rewrites on nodes.

use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use cellway::cluster::task::{KernelTask, ManyTask, Part, Task};
use cellway::storage::{Input, Listed, Output, SharedDir, shown};
use cellway::stream::{
    self, Outcome, Outputs, Plan, PlanError, Progress, Spool, Spooled, Stats, StreamError,
};
use cellway::{Kernel, Options};

use super::{Found, Nodes};
use crate::run::RunArgs;

/// A spool for what is called `name`, in a folder that the manager makes.
fn spool(name: &str, dir: Option<&SharedDir>) -> Spool {
    let spool = Spool::new(name);
    if let Some(dir) = dir {
        spool.join(dir.path());
    }
    spool
}

fn folder(output: &Output) -> Result<&Path, StreamError> {
    let why = || format!("{} is written straight, by one process only", output.name());
    Ok(output.folder().ok_or_else(|| PlanError::Shares { why: why(), cure: "name a file" })?)
}

impl Nodes {
    /// As [`Nodes::stream`], for a rewrite.
    pub(super) fn rewrite<K: Kernel>(
        &self,
        args: &RunArgs,
        (kernel, input, output): (&K, &Input, Option<&Output>),
        progress: &Progress,
    ) -> anyhow::Result<Found<K::Part>> {
        let (options, plan) =
            self.rewriting(args, |options| stream::plan(kernel, input, options))?;
        let dir =
            output.map(|output| SharedDir::create(folder(output)?).map_err(StreamError::from));
        let dir = dir.transpose()?;
        let name = args.files.last().map(|output| shown(output)).unwrap_or_default();
        let spool = spool(&name, dir.as_ref());
        let kernel = &Spooled::new(kernel, &spool, &plan, plan.units.unwrap_or(0));
        let task = KernelTask::new(kernel, input, None, &options, progress)?.spool(&spool);
        let lease_units = self.lease_units(args, task.spec());
        let task = task.lease_units(lease_units);
        let stats = self.carry_out_and_copy(args, (&task, task.plan()), |part| {
            let spans = task.result(part).map_err(anyhow::Error::msg)?;
            let (dir, output) = dir.as_ref().zip(output).context("a manager has an output")?;
            Ok(spans.copy(dir, output)?)
        })?;
        Ok(stats.map(|stats| Outcome { part: kernel.dropped(), stats }))
    }

    /// As one on nodes for transforms, for a rewrite of many inputs.
    pub(super) fn rewrite_many<K: Kernel>(
        &self,
        args: &RunArgs,
        (kernel, inputs, outputs): (&K, &[Listed], Option<&Outputs<'_>>),
        progress: &Progress,
    ) -> anyhow::Result<Found<K::Part>> {
        let (options, plan) =
            self.rewriting(args, |options| stream::plan_all(kernel, inputs, options))?;
        let dir = outputs.map(|outputs| SharedDir::create(outputs.dir.path())).transpose()?;
        let out_dir = args.out_dir.as_deref().map(shown).unwrap_or_default();
        let spool = spool(&format!("an output in {out_dir}"), dir.as_ref());
        let lens = inputs.iter().filter_map(Listed::len_bytes);
        let units = lens.map(|len| len.div_ceil(plan.block_bytes)).sum();
        let kernel = &Spooled::new(kernel, &spool, &plan, units);
        let task = ManyTask::new(kernel, inputs, None, &options, progress)?.spool(&spool);
        let lease_units = self.lease_units(args, task.spec());
        let task = task.lease_units(lease_units);
        let stats = self.carry_out_and_copy(args, (&task, task.plan()), |part| {
            let spans = task.result(part).map_err(anyhow::Error::msg)?;
            let (dir, outputs) = dir.as_ref().zip(outputs).context("a manager has outputs")?;
            let (mut made, mut copied_bytes) = (spans.inputs(), 0);
            for input in inputs {
                let output = outputs.dir.create(input, None)?;
                if task.has_units(input)? {
                    let spans = made.next().context("an input has no output; this is a bug")?;
                    copied_bytes += spans.copy(dir, &output)?;
                }
                output.commit(outputs.sync)?;
            }
            Ok(copied_bytes)
        })?;
        Ok(stats.map(|stats| Outcome { part: kernel.dropped(), stats }))
    }

    /// How each node rewrites, with the blocks that all have.
    fn rewriting(
        &self,
        args: &RunArgs,
        plan: impl FnOnce(&Options) -> Result<Plan, StreamError>,
    ) -> anyhow::Result<(Options, Plan)> {
        let mut options = args.cluster.options(self, args.options());
        let plan = plan(&options)?;
        options.block_bytes = Some(plan.block_bytes);
        Ok((options, plan))
    }

    /// Has all rewrite; at the manager, `copy` puts together what they made, and says how
    /// many bytes.
    fn carry_out_and_copy(
        &self,
        args: &RunArgs,
        job: (&dyn Task, &Plan),
        copy: impl FnOnce(Option<Part>) -> anyhow::Result<u64>,
    ) -> anyhow::Result<Option<Stats>> {
        let Some((part, mut stats)) = self.carry_out(args, job, true, (None, None))? else {
            return Ok(None);
        };
        let began = Instant::now();
        stats.bytes_out = copy(part)?;
        stats.elapsed += began.elapsed();
        Ok(Some(stats))
    }
}
