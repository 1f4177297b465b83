//! Rewrites on nodes.

use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use cellway::Kernel;
use cellway::cluster::task::{KernelTask, ManyTask, Task as _};
use cellway::storage::{Input, Listed, Output, SharedDir};
use cellway::stream::{self, Outcome, Outputs, PlanError, Progress, Spool, Spooled, StreamError};

use super::{Found, Nodes};
use crate::run::RunArgs;

/// A spool, in a folder that the manager makes.
fn spool(dir: Option<&SharedDir>) -> Spool {
    let spool = Spool::new();
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
        let mut options = args.cluster.options(self, args.options());
        let plan = stream::plan(kernel, input, &options)?;
        options.block_bytes = Some(plan.block_bytes);
        let dir =
            output.map(|output| SharedDir::create(folder(output)?).map_err(StreamError::from));
        let dir = dir.transpose()?;
        let spool = spool(dir.as_ref());
        let kernel = &Spooled::new(kernel, &spool, &plan, plan.units.unwrap_or(0));
        let task = KernelTask::new(kernel, input, None, &options, progress)?.spool(&spool);
        let lease_units = self.lease_units(args, task.spec());
        let task = task.lease_units(lease_units);
        let Some((part, mut stats)) =
            self.carry_out(args, (&task, task.plan()), true, (None, None))?
        else {
            return Ok(None);
        };
        let spans = task.result(part).map_err(anyhow::Error::msg)?;
        let (dir, output) = dir.as_ref().zip(output).context("a manager has an output")?;
        let copied = Instant::now();
        stats.bytes_out = spans.copy(dir, output)?;
        stats.elapsed += copied.elapsed();
        Ok(Some(Outcome { part: kernel.dropped(), stats }))
    }

    /// As one on nodes for transforms, for a rewrite of many inputs.
    pub(super) fn rewrite_many<K: Kernel>(
        &self,
        args: &RunArgs,
        (kernel, inputs, outputs): (&K, &[Listed], Option<&Outputs<'_>>),
        progress: &Progress,
    ) -> anyhow::Result<Found<K::Part>> {
        let mut options = args.cluster.options(self, args.options());
        let plan = stream::plan_all(kernel, inputs, &options)?;
        options.block_bytes = Some(plan.block_bytes);
        let dir = outputs.map(|outputs| SharedDir::create(outputs.dir.path())).transpose()?;
        let spool = spool(dir.as_ref());
        let lens = inputs.iter().filter_map(Listed::len_bytes);
        let units = lens.map(|len| len.div_ceil(plan.block_bytes)).sum();
        let kernel = &Spooled::new(kernel, &spool, &plan, units);
        let task = ManyTask::new(kernel, inputs, None, &options, progress)?.spool(&spool);
        let lease_units = self.lease_units(args, task.spec());
        let task = task.lease_units(lease_units);
        let Some((part, mut stats)) =
            self.carry_out(args, (&task, task.plan()), true, (None, None))?
        else {
            return Ok(None);
        };
        let spans = task.result(part).map_err(anyhow::Error::msg)?;
        let (dir, outputs) = dir.as_ref().zip(outputs).context("a manager has outputs")?;
        let (mut made, copied) = (spans.inputs(), Instant::now());
        stats.bytes_out = 0;
        for input in inputs {
            let output = outputs.dir.create(input, None)?;
            if task.has_units(input)? {
                let spans = made.next().context("an input has no output; this is a bug")?;
                stats.bytes_out += spans.copy(dir, &output)?;
            }
            output.commit(outputs.sync)?;
        }
        stats.elapsed += copied.elapsed();
        Ok(Some(Outcome { part: kernel.dropped(), stats }))
    }
}
