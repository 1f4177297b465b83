//! Many inputs on nodes.

use cellway::cluster::task::{ManyTask, Task as _};
use cellway::storage::{Listed, Options, SharedDir};
use cellway::stream::{Outcome, Outputs};
use cellway::{Effect, Kernel};

use super::{Found, Print};
use crate::run::{Run, progress};

impl Run<'_> {
    /// Streams `inputs` on all nodes; the outputs get their names at the end, when
    /// nobody writes to them any more.
    pub(in crate::run) fn on_nodes<K: Kernel<Part: 'static>>(
        &self,
        kernel: &K,
        inputs: &[Listed],
        outputs: Option<&Outputs<'_>>,
        print: Print<'_, K::Part>,
    ) -> anyhow::Result<Found<K::Part>> {
        let (args, nodes) = (self.args, &self.nodes);
        let rewrites = kernel.effect() == Effect::Rewrite;
        let in_place = outputs.filter(|_| !rewrites);
        let shared = in_place.map(|outputs| SharedDir::create(outputs.dir.path())).transpose()?;
        let len_bytes = inputs.iter().map(Listed::len_bytes).sum();
        self.watched(len_bytes, |progress| {
            let work = || {
                if rewrites {
                    return nodes.rewrite_many(args, (kernel, inputs, outputs), progress);
                }
                let options = args.cluster.options(nodes, args.options());
                let shared = shared.as_ref();
                let task = ManyTask::new(kernel, inputs, shared, &options, progress)?;
                let lease_units = nodes.lease_units(args, task.spec());
                let task = task.lease_units(lease_units);
                let result = |part| task.result(part).map_err(anyhow::Error::msg);
                let print = print.map(|print| move |part| print(result(part)?));
                let print = print.as_ref().map(|print| print as &dyn Fn(_) -> _);
                let writes = kernel.effect().writes();
                let Some((part, stats)) =
                    nodes.carry_out(args, (&task, task.plan()), writes, (None, print))?
                else {
                    return Ok(None);
                };
                let part = result(part)?;
                if let (Some(outputs), Some(shared)) = (outputs, shared) {
                    // Others may still be at a block that somebody else has put already.
                    let all_ended = nodes.end()?;
                    for (input, number) in inputs.iter().zip(0..) {
                        let (dir, len_bytes) = (outputs.dir, task.output_bytes(input)?);
                        let options = Options { force: dir.force(), len_bytes };
                        let mut output = shared.take(number, &dir.place(input), &options)?;
                        if !all_ended {
                            output.unshare()?;
                        }
                        output.commit(outputs.sync)?;
                    }
                }
                Ok(Some(Outcome { part, stats }))
            };
            if nodes.manages() { progress::show(progress, len_bytes, work) } else { work() }
        })
    }
}
