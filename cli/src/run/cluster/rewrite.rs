//! Rewrites on nodes.

use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use cellway::cluster::task::{KernelTask, ManyTask, Task};
use cellway::storage::{Input, Listed, Output, SharedDir, shown};
use cellway::stream::{
    self, Begun, Journal, Outcome, Outputs, Pieces, Plan, PlanError, Progress, Spool, Spooled,
    StreamError,
};
use cellway::{Kernel, Options};

use super::many::all_named;
use super::{Found, Nodes, kept, shared_dir};
use crate::run::{RunArgs, journal};

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
        (kernel, input): (&K, &Input),
        begun: &mut Begun,
        progress: &Progress,
    ) -> anyhow::Result<Found<K::Part>> {
        let Begun { options, output, journal } = begun;
        let output = output.as_ref();
        let options = args.cluster.options(self, options.clone());
        let (options, plan) = rewriting(options, |options| stream::plan(kernel, input, options))?;
        let units = plan.units.unwrap_or(0);
        let mut pieces =
            kept(journal, |journal| Pieces::new(journal, output, (units, plan.block_bytes), 0))?;
        let dir = output.map(|output| shared_dir(&mut pieces, folder(output)?)).transpose()?;
        let dir = dir.flatten();
        let name = args.files.last().map(|output| shown(output)).unwrap_or_default();
        let spool = spool(&name, dir.as_ref());
        let kernel = &Spooled::new(kernel, &spool, &plan, units);
        let task = KernelTask::new(kernel, input, None, &options, progress)?.spool(&spool);
        let lease_units = self.lease_units(args, task.spec());
        let task = task.lease_units(lease_units);
        let Some((part, mut stats)) =
            self.carry_out(args, (&task, task.plan()), true, (pieces, None))?
        else {
            return Ok(None);
        };
        let spans = task.result(part).map_err(anyhow::Error::msg)?;
        let copied = Instant::now();
        stats.bytes_out = match (&dir, output) {
            (Some(dir), Some(output)) => {
                journal::resumable(journal, |_| Ok(spans.copy(dir, output)?))?
            }
            // It has its name, from an earlier run.
            _ => spans.len_bytes(),
        };
        stats.elapsed += copied.elapsed();
        Ok(Some(Outcome { part: kernel.dropped(), stats }))
    }

    /// As one on nodes for transforms, for a rewrite of many inputs.
    pub(super) fn rewrite_many<K: Kernel>(
        &self,
        args: &RunArgs,
        (kernel, inputs, outputs): (&K, &[Listed], Option<&Outputs<'_>>),
        options: Options,
        journal: &mut Option<Journal>,
        progress: &Progress,
    ) -> anyhow::Result<Found<K::Part>> {
        let (options, plan) =
            rewriting(options, |options| stream::plan_all(kernel, inputs, options))?;
        let mut pieces = kept(journal, Pieces::of_many)?;
        let dir = outputs.map(|outputs| shared_dir(&mut pieces, outputs.dir.path())).transpose()?;
        let dir = dir.flatten();
        let out_dir = args.out_dir.as_deref().map(shown).unwrap_or_default();
        let spool = spool(&format!("an output in {out_dir}"), dir.as_ref());
        let lens = inputs.iter().filter_map(Listed::len_bytes);
        let units = lens.map(|len| len.div_ceil(plan.block_bytes)).sum();
        let kernel = &Spooled::new(kernel, &spool, &plan, units);
        let task = ManyTask::new(kernel, inputs, None, &options, progress)?.spool(&spool);
        let lease_units = self.lease_units(args, task.spec());
        let task = task.lease_units(lease_units);
        let job = (&task as &dyn Task, task.plan());
        let Some((part, mut stats)) = self.carry_out(args, job, true, (pieces, None))? else {
            return Ok(None);
        };
        let spans = task.result(part).map_err(anyhow::Error::msg)?;
        stats.bytes_out = spans.len_bytes();
        let Some((dir, outputs)) = dir.as_ref().zip(outputs) else {
            return Ok(Some(Outcome { part: kernel.dropped(), stats }));
        };
        let (mut made, copied) = (spans.inputs(), Instant::now());
        for input in inputs {
            let own = if task.has_units(input)? {
                Some(made.next().context("an input has no output; this is a bug")?)
            } else {
                None
            };
            journal::resumable(journal, |_| {
                let output = outputs.dir.create(input, None)?;
                own.map_or(Ok(0), |own| own.copy(dir, &output))?;
                Ok(outputs.dir.commit(input, output, outputs.sync)?)
            })?;
        }
        all_named(journal, outputs, inputs)?;
        stats.elapsed += copied.elapsed();
        Ok(Some(Outcome { part: kernel.dropped(), stats }))
    }
}

/// How each node rewrites, with the blocks that all have.
fn rewriting(
    mut options: Options,
    plan: impl FnOnce(&Options) -> Result<Plan, StreamError>,
) -> anyhow::Result<(Options, Plan)> {
    let plan = plan(&options)?;
    options.block_bytes = Some(plan.block_bytes);
    Ok((options, plan))
}
