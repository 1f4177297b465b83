//! Blocks that the manager sends over a link that takes as long for one as a node does.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use cellway::Options;
use cellway::cluster::drive::{self, Config, Ship};
use cellway::cluster::task::{KernelTask, Task as _};
use cellway::cluster::transport::mpi;
use cellway::storage::Input;
use cellway::stream::Progress;

use super::peer::Peer;
use super::work::Work;
use crate::args::show_bytes;
use crate::machine::Machine;
use crate::measure::{Sample, Version, paired};
use crate::table::{Cell, Table};

const BLOCK_BYTES: u64 = 256 << 10;

/// How the work is shared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The manager alone, which reads for itself.
    Single,
    /// Each node is sent a part, computes it, and returns what it found before the next.
    Basic,
    /// What nodes ask for is sent while they compute what they have.
    Connector,
    /// As that, over a link without a limit.
    Unlimited,
}

impl Mode {
    /// Of so many units on so many nodes.
    fn config(self, units: u64, nodes: u64) -> (Config, Option<u64>) {
        let config = Config { manager_computes: false, ship: Ship::Bytes, ..Config::default() };
        if self != Self::Basic {
            return (config, None);
        }
        (config.basic(), Some(Config::basic_units(units, nodes)))
    }
}

/// What a run needs.
struct Shipped<'s> {
    peer: &'s Peer,
    input: &'s Input,
    work: Work,
}

/// A node computes so long on a block.
pub(super) fn over_a_link(
    peer: &Peer,
    input: &Input,
    block: Duration,
    rounds: usize,
    machine: &Machine,
) -> anyhow::Result<Table> {
    let own = Work::taking(block);
    let [chain] = peer.agree([own.rounds])?;
    Shipped { peer, input, work: Work { rounds: chain, ..own } }.table(rounds, machine)
}

impl Shipped<'_> {
    fn table(&self, rounds: usize, machine: &Machine) -> anyhow::Result<Table> {
        let bytes = self.input.len_bytes().unwrap_or(0);
        // The nodes' rate is that of a run whose link has no limit, of the second of two.
        self.once(Mode::Unlimited, None)?;
        let alone = self.once(Mode::Unlimited, None)?.seconds;
        let [rate] = self.peer.agree([(bytes as f64 / alone) as u64])?;
        let title = format!(
            "cluster: {} sent over a link as fast as the nodes compute, {} MB/s",
            show_bytes(bytes),
            rate / 1_000_000
        );
        let columns =
            [("mode", ""), ("time", "s"), ("basic / this", "x"), ("from", "x"), ("to", "x")];
        let mut table = Table::new(title, machine, &columns);
        let modes = [
            ("basic", Mode::Basic),
            ("connector", Mode::Connector),
            ("connector, no limit", Mode::Unlimited),
            ("single, which reads for itself", Mode::Single),
        ];
        let mut versions: Vec<_> = modes
            .iter()
            .map(|(name, mode)| Version::new(*name, 1, move || self.once(*mode, Some(rate as f64))))
            .collect();
        let costs = paired(rounds, &mut versions)?;
        drop(versions);
        for (version, (name, _)) in modes.iter().enumerate() {
            let seconds = costs.item_ns(version).median * bytes as f64 / 1e9;
            let ((from, to), times) =
                (costs.speedup_interval(version, 0), costs.speedup(version, 0).median);
            table.row([(*name).into(), seconds.into(), Cell::from(times), from.into(), to.into()]);
        }
        table.note(format!(
            "nodes: {}, with an accelerator each; the manager computes in single alone, and its link is shared",
            self.peer.count() - 1
        ));
        table.note("times: medians; basic / this: of the ratios within a round; from, to: where it lies in 95 of 100 tables");
        Ok(table)
    }

    fn once(&self, mode: Mode, rate: Option<f64>) -> anyhow::Result<Sample> {
        let (peer, progress) = (self.peer, Progress::default());
        let options = Options { accelerators: Some(1), ..Options::default() };
        let options = Options { block_bytes: Some(BLOCK_BYTES), ..mpi::share(options) };
        let task = KernelTask::new(&self.work, self.input, None, &options, &progress)?;
        let units = task.spec().units;
        let (config, lease_units) = mode.config(units, u64::from(peer.count() - 1).max(1));
        let task = task.lease_units(lease_units);
        let (report, wall) = if mode == Mode::Single {
            peer.meet(&[])?;
            let started = Instant::now();
            let ran = peer.manages().then(|| drive::run_local(1, &[&task], &config)).transpose()?;
            (ran.map(|(report, _)| report), started.elapsed())
        } else {
            peer.limit(rate.filter(|_| mode != Mode::Unlimited));
            let ran = peer.run(&task, &config);
            peer.limit(None);
            let (report, wall, _) = ran?;
            (report, wall)
        };
        let mut check = None;
        if let Some(mut report) = report {
            let result = report.results.pop().context("a run has one job")??;
            check = Some(task.result(result).map_err(anyhow::Error::msg)?.units);
        }
        let items = self.input.len_bytes().unwrap_or(0);
        Ok(Sample { seconds: wall.as_secs_f64(), items, check })
    }
}
