//! Many inputs on nodes.

use cellway::cluster::task::{ManyTask, Task as _};
use cellway::storage::{Listed, SharedDir};
use cellway::stream::{Journal, Outcome, Outputs, Pieces};
use cellway::{Effect, Kernel};

use super::{Found, Mode, Print, Ship, kept, shared_dir};
use crate::exit::Usage;
use crate::run::{Run, journal, progress};

impl Run<'_> {
    /// Streams `inputs` on all nodes; the outputs get their names at the end, when
    /// nobody writes to them any more.
    pub(in crate::run) fn on_nodes<K: Kernel<Part: 'static>>(
        &self,
        kernel: &K,
        inputs: &[Listed],
        outputs: Option<&Outputs<'_>>,
        journal: &mut Option<Journal>,
        print: Print<'_, K::Part>,
    ) -> anyhow::Result<Found<K::Part>> {
        let (args, nodes) = (self.args, &self.nodes);
        let options = args.options();
        let options = journal.as_ref().map_or(options.clone(), |journal| journal.options(&options));
        let options = args.cluster.options(nodes, options);
        let len_bytes = inputs.iter().map(Listed::len_bytes).sum();
        self.watched(len_bytes, |progress| {
            let work = || {
                if kernel.effect() == Effect::Rewrite {
                    let of = (kernel, inputs, outputs);
                    return nodes.rewrite_many(args, of, options, journal, progress);
                }
                let mut pieces = kept(journal, Pieces::of_many)?;
                let shared = outputs
                    .map(|outputs| shared_dir(&mut pieces, outputs.dir.path()))
                    .transpose()?
                    .flatten();
                let task = ManyTask::new(kernel, inputs, shared.as_ref(), &options, progress)?;
                let sends = args.cluster.ship() == Ship::Bytes && nodes.count() > 1;
                let sends = sends && args.cluster.mode != Some(Mode::Single);
                if let Some(Err(why)) = sends.then(|| &task.description().shipped) {
                    let what = format!("{} cannot be sent: {why}", task.description().input);
                    return Err(Usage(format!("{what}; take --ship locators")).into());
                }
                let lease_units = nodes.lease_units(args, task.spec());
                let task = task.lease_units(lease_units);
                let result = |part| task.result(part).map_err(anyhow::Error::msg);
                let print = print.map(|print| move |part| print(result(part)?));
                let print = print.as_ref().map(|print| print as &dyn Fn(_) -> _);
                let writes = kernel.effect().writes();
                let Some((part, stats)) =
                    nodes.carry_out(args, (&task, task.plan()), writes, (pieces, print))?
                else {
                    return Ok(None);
                };
                let part = result(part)?;
                if let (Some(outputs), Some(shared)) = (outputs, &shared) {
                    self.name(&task, (inputs, outputs), shared, journal)?;
                }
                Ok(Some(Outcome { part, stats }))
            };
            if nodes.manages() { progress::show(progress, len_bytes, work) } else { work() }
        })
    }

    /// Gives the outputs their names.
    fn name<K: Kernel>(
        &self,
        task: &ManyTask<'_, K>,
        (inputs, outputs): (&[Listed], &Outputs<'_>),
        shared: &SharedDir,
        journal: &mut Option<Journal>,
    ) -> anyhow::Result<()> {
        // Others may still be at a block that somebody else has put already.
        let all_ended = self.nodes.end()?;
        for (input, number) in inputs.iter().zip(0..) {
            journal::resumable(journal, |_| {
                let len_bytes = task.output_bytes(input)?;
                let mut output = outputs.dir.take((shared, number), input, len_bytes)?;
                if !all_ended {
                    output.unshare()?;
                }
                Ok(outputs.dir.commit(input, output, outputs.sync)?)
            })?;
        }
        all_named(journal, outputs, inputs)
    }
}

/// Records that all outputs have their names, so that what they are made of can go.
pub(super) fn all_named(
    journal: &mut Option<Journal>,
    outputs: &Outputs<'_>,
    inputs: &[Listed],
) -> anyhow::Result<()> {
    journal::resumable(journal, |journal| {
        let Some(journal) = journal else { return Ok(()) };
        outputs.dir.settle()?;
        Ok(journal.all_named(inputs.len())?)
    })
}
