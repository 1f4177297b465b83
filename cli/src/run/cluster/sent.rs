//! Processes that are sent their blocks by the first one.

use std::fs::File;
use std::path::Path;

use cellway::Kernel;
use cellway::cluster::JobSpec;
use cellway::cluster::drive::Ship;
use cellway::cluster::task::{RemoteTask, Task as _};
use cellway::storage::{Listed, shown};
use cellway::stream::{self, Progress};
use clap::ValueEnum;

use super::{Mode, Nodes, Rank, RunArgs, meet};
use crate::exit;
use crate::run::Run;

/// How nodes come by their blocks.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ShipArg {
    /// By locators where each INPUT can be opened, unless being sent them from another machine
    /// proves faster
    #[default]
    Auto,
    /// Each node reads INPUT
    Locators,
    /// The first node reads INPUT and sends them
    Bytes,
}

impl From<ShipArg> for Ship {
    fn from(arg: ShipArg) -> Self {
        match arg {
            ShipArg::Auto => Self::Auto,
            ShipArg::Locators => Self::Locators,
            ShipArg::Bytes => Self::Bytes,
        }
    }
}

impl Run<'_> {
    /// Computes what it is sent of its only INPUT, if this process is such a node.
    pub(in crate::run) fn serves<K: Kernel<Part: 'static>>(
        &self,
        kernel: &K,
    ) -> anyhow::Result<bool> {
        let [input, ..] = &*self.places.inputs else { return Ok(false) };
        let serves = self.nodes.is_sent(self.args, || is_closed(input));
        if serves {
            self.serve(kernel)?;
        }
        Ok(serves)
    }

    /// All inputs; `None` at a process that has computed what it was sent of them. It is sent
    /// them if an INPUT cannot be opened or listed. What is in a directory is not opened for that:
    /// of many small files that would take as long as the run.
    pub(in crate::run) fn listed<K: Kernel<Part: 'static>>(
        &self,
        kernel: &K,
    ) -> anyhow::Result<Option<Vec<Listed>>> {
        let mut listed = None;
        let serves = self.nodes.is_sent(self.args, || {
            self.places.inputs.iter().any(|input| is_closed(input))
                || listed.insert(self.list()).is_err()
        });
        if serves {
            self.serve(kernel)?;
            return Ok(None);
        }
        listed.unwrap_or_else(|| self.list()).map(Some)
    }

    fn serve<K: Kernel<Part: 'static>>(&self, kernel: &K) -> anyhow::Result<()> {
        let names = match &*self.places.inputs {
            [] => String::new(),
            [one] => shown(one),
            [first, others @ ..] => format!("{} and {} more", shown(first), others.len()),
        };
        self.watched(None, |progress| self.nodes.serve(self.args, (kernel, &names), progress))
    }
}

/// Whether an input cannot be opened. What is no file it is not tried with: opening a pipe could
/// wait for ever.
fn is_closed(input: &Path) -> bool {
    match input.metadata() {
        Ok(found) => found.is_file() && File::open(input).is_err(),
        Err(_) => true,
    }
}

impl Nodes {
    /// Whether this process has nothing but what it is sent, for it is not to read or what there
    /// is `is_closed`.
    fn is_sent(&self, args: &RunArgs, is_closed: impl FnOnce() -> bool) -> bool {
        let cluster = &args.cluster;
        if !matches!(self, Self::Peer(_, Rank { manages: false, .. }))
            || cluster.mode == Some(Mode::Single)
        {
            return false;
        }
        match cluster.ship() {
            Ship::Bytes => true,
            Ship::Locators => false,
            Ship::Auto => is_closed(),
        }
    }

    /// Computes what it is sent, until there is no more.
    fn serve<K: Kernel<Part: 'static>>(
        &self,
        args: &RunArgs,
        (kernel, names): (&K, &str),
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let Self::Peer(peer, _) = self else { return Ok(()) };
        let options = args.cluster.options(self, args.options());
        let task = RemoteTask::new(kernel, names, &options, progress)?;
        if args.verbose {
            exit::tell(&format!("{names}: blocks are sent to this node"));
        }
        let (config, floor_bytes) = (args.cluster.config(), stream::floor_bytes());
        let (_, stats) = meet(peer, &[&task], &config, (None, Into::into), None)?;
        // How long all is it was told with its first lease.
        if let Some(plan) =
            stats.iter().map(|stats| &stats.plan).max_by_key(|plan| plan.memory_bytes)
        {
            let (units, unit_bytes) = (plan.units.unwrap_or(0), plan.block_bytes);
            let lease_units = args.cluster.lease_units(units, unit_bytes, self.count());
            let spec = JobSpec { units, unit_bytes, lease_units, ..task.spec() };
            let results_bytes = config.results_bytes(&task, self.count(), self.own());
            let own_bytes = plan.memory_bytes + config.node_bytes(&task, spec);
            self.may_take(floor_bytes + own_bytes + results_bytes);
        }
        Ok(())
    }
}
