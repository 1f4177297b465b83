//! A cluster in virtual time, with a model of its link: exact, whatever this machine is.

use anyhow::{Context as _, bail};
use cellway::cluster::manager::{Config, Event};
use cellway::cluster::{JobId, JobSpec, Merging, NodeId};
use cluster::simulated::found::Found;
use cluster::simulated::host::Host;
use cluster::simulated::tree::{self, Tree};
use cluster::simulated::world::{MS, Settings, What, World};

use super::FAIR;
use crate::args::show_bytes;
use crate::machine::Machine;
use crate::measure::Spread;
use crate::table::{Cell, Table};

const MIB: u64 = 1 << 20;
const JOB: JobId = JobId(1);

/// More events than any run here has.
const STEPS_MAX: u64 = 1 << 32;

/// A death is reported so late, as Open MPI 5 does.
const REPORTED_NS: u64 = 50 * MS;

/// One job on nodes of one manager.
#[derive(Clone)]
struct Run {
    /// Of each node.
    ns_per_unit: Vec<u64>,
    units: u64,
    unit_bytes: u64,
    lease_units: Option<u64>,
    settings: Settings,
    /// Nodes that die, and when.
    deaths: Vec<(usize, u64)>,
}

impl Run {
    fn new(nodes: usize, ns_per_unit: u64, units: u64) -> Self {
        Self {
            ns_per_unit: vec![ns_per_unit; nodes],
            units,
            unit_bytes: MIB,
            lease_units: None,
            settings: Settings::default(),
            deaths: Vec::new(),
        }
    }

    /// As long as it takes, and what its manager did.
    fn run(&self) -> anyhow::Result<Took> {
        let hosts: Vec<_> = self.ns_per_unit.iter().map(|ns| Host::new(*ns, 2)).collect();
        let nodes = hosts.len();
        let config = Config { nodes_max: nodes, ..Config::default() };
        let mut world = World::new(config, self.settings.clone(), hosts, 1);
        (0..nodes).for_each(|at| world.at(0, What::Start(at)));
        let Self { units, unit_bytes, lease_units, .. } = *self;
        let merging = Merging::AlongTree;
        world.job(MS, JOB.0, JobSpec { units, unit_bytes, merging, lease_units });
        world.at(2 * MS, What::Manager(Event::Drain));
        for (at, ns) in &self.deaths {
            world.at(MS + ns, What::Die(*at));
            let lost = Event::Lost(NodeId(u32::try_from(*at)?));
            world.at(MS + ns + REPORTED_NS, What::Manager(lost));
        }
        world.run(STEPS_MAX);
        let expected = world.expected(JOB);
        let job = world.jobs.get(&JOB).context("there is no job")?;
        let (ended, found) = match &job.ended {
            Some((ended, Ok(found))) => (*ended, found),
            Some((_, Err(error))) => bail!("a run in virtual time failed: {error}"),
            None => bail!("a run in virtual time has no end"),
        };
        let sum = |found: &Option<_>| found.as_ref().map(|found: &Found| (found.units, found.sum));
        anyhow::ensure!(sum(found) == sum(&expected), "a run in virtual time has a wrong result");
        let seconds = (ended - MS) as f64 / 1e9;
        let merges = world.manager.counters().results.saturating_sub(1);
        let counters = world.manager.counters();
        let again = counters.given_again;
        let after_loss = counters.last_loss.filter(|loss| loss.bytes_left > 0).map(|loss| {
            let seconds = ended as f64 / 1e9 - loss.after.as_secs_f64();
            AfterLoss { seconds, bytes_left: loss.bytes_left }
        });
        Ok(Took { seconds, messages: world.messages, merges, again, after_loss })
    }
}

/// What came of a run.
struct Took {
    seconds: f64,
    messages: u64,
    merges: u64,
    again: u64,
    after_loss: Option<AfterLoss>,
}

/// From when the manager was told of the last death, and there was something to do.
struct AfterLoss {
    seconds: f64,
    bytes_left: u64,
}

fn model(settings: &Settings) -> String {
    format!(
        "virtual time: a link of {} MB/s and {} us at the manager, {} us of its time for a message \
         and {} us for a merge; results are checked",
        settings.bytes_per_second / 1_000_000,
        settings.latency_ns / 1000,
        settings.message_ns / 1000,
        settings.merge_ns / 1000
    )
}

/// What leases of each length ask of the manager (Figure 5.7).
pub(super) fn load(is_quick: bool, machine: &Machine) -> anyhow::Result<Table> {
    const BLOCK_BYTES: u64 = 16 << 10;
    const NODE_BYTES_PER_SECOND: u64 = 100_000_000;
    let (nodes, bytes) = (8, if is_quick { 16 * MIB } else { 4096 * MIB });
    let title = format!(
        "cluster: load on the manager by the length of a lease (Figure 5.7), {} over {nodes} nodes \
         of {} MB/s that read for themselves",
        show_bytes(bytes),
        NODE_BYTES_PER_SECOND / 1_000_000
    );
    let columns = [
        ("lease", ""),
        ("messages", "1/s"),
        ("messages", "%"),
        ("merges", "%"),
        ("over ideal", "x"),
    ];
    let mut table = Table::new(title, machine, &columns);
    let units = bytes / BLOCK_BYTES;
    let mut run = Run::new(nodes, BLOCK_BYTES * 1_000_000_000 / NODE_BYTES_PER_SECOND, units);
    run.unit_bytes = BLOCK_BYTES;
    let ideal = bytes as f64 / (NODE_BYTES_PER_SECOND * nodes as u64) as f64;
    for lease in [
        Some(16 << 10),
        Some(64 << 10),
        Some(256 << 10),
        Some(MIB),
        Some(4 * MIB),
        Some(16 * MIB),
        None,
    ] {
        run.lease_units = lease.map(|bytes| bytes / BLOCK_BYTES);
        let took = run.run()?;
        let share = |count: u64, ns: u64| (count * ns) as f64 / 1e7 / took.seconds;
        table.row([
            lease.map_or_else(|| "automatic".to_owned(), show_bytes).into(),
            (took.messages as f64 / took.seconds).into(),
            share(took.messages, run.settings.message_ns).into(),
            share(took.merges, run.settings.merge_ns).into(),
            Cell::from(took.seconds / ideal),
        ]);
    }
    table.note(model(&run.settings));
    table.note("%: of the manager's time; over ideal: of the time that the nodes need to compute");
    Ok(table)
}

/// Speed by the number of nodes (Figure 5.8), of one manager and of a tree of managers.
pub(super) fn scaling(is_quick: bool, machine: &Machine) -> anyhow::Result<Table> {
    let units_of_each: u64 = if is_quick { 20 } else { 200 };
    let title = format!(
        "cluster: speed by the number of nodes (Figure 5.8), {units_of_each} units of 1 MiB for each"
    );
    let columns = [
        ("nodes", ""),
        ("managers", ""),
        ("bound by", ""),
        ("a unit", "ms"),
        ("time", "s"),
        ("times one node", "x"),
        ("used", "%"),
    ];
    let mut table = Table::new(title, machine, &columns);
    let settings = Settings::default();
    let mut row = |nodes: usize, managers: usize, by: &str, ns: u64, seconds: f64, used: f64| {
        let alone = (nodes as u64 * units_of_each * ns) as f64 / 1e9;
        table.row([
            nodes.into(),
            managers.into(),
            by.into(),
            (ns as f64 / 1e6).into(),
            seconds.into(),
            (alone / seconds).into(),
            Cell::from(used * 100.0),
        ]);
    };
    for nodes in [1, 2, 4, 8, 64, 512] {
        if is_quick && nodes > 8 {
            break;
        }
        let run = Run::new(nodes, 10 * MS, nodes as u64 * units_of_each);
        let seconds = run.run()?.seconds;
        let ideal = (units_of_each * 10 * MS) as f64 / 1e9;
        row(nodes, 1, "computing", 10 * MS, seconds, ideal / seconds);
    }
    for nodes in [1, 2, 4, 8, 64] {
        if is_quick && nodes > 8 {
            break;
        }
        let mut run = Run::new(nodes, 20 * MS, nodes as u64 * units_of_each);
        run.settings.ships = true;
        let seconds = run.run()?.seconds;
        let carried = (run.units * MIB) as f64 / settings.bytes_per_second as f64;
        row(nodes, 1, "link", 20 * MS, seconds, carried / seconds);
    }
    for (fanout, depth) in [(8, 2), (8, 3), (16, 3), (22, 3)] {
        if is_quick && depth > 2 {
            break;
        }
        let (nodes, managers, seconds) = in_tree(fanout, depth, units_of_each)?;
        let ideal = (units_of_each * 10 * MS) as f64 / 1e9;
        row(nodes, managers, "computing", 10 * MS, seconds, ideal / seconds);
    }
    table.note(model(&settings));
    table.note(
        "used: of the nodes' time, or of the link; nodes bound by the link are sent their units, the \
         others read for themselves; managers of managers have a link each",
    );
    Ok(table)
}

fn in_tree(fanout: usize, depth: u32, units_of_each: u64) -> anyhow::Result<(usize, usize, f64)> {
    let settings = tree::Settings { fanout, depth, ..tree::Settings::default() };
    let nodes = fanout.pow(depth);
    let (units, merging) = (nodes as u64 * units_of_each, Merging::AlongTree);
    let spec = JobSpec { units, unit_bytes: MIB, merging, lease_units: None };
    // A lease of a group holds what all its nodes compute.
    let config = Config { lease_bytes_max: u64::MAX, ..Config::default() };
    let mut tree = Tree::new(settings, config, spec, 1);
    tree.run(STEPS_MAX);
    let managers = tree.inner().len() + 1;
    match &tree.ended {
        Some((ended, Ok(Some(found)))) if found.units == units => {
            Ok((nodes, managers, *ended as f64 / 1e9))
        }
        other => bail!("a tree in virtual time ended with {other:?}"),
    }
}

/// Nodes that are slow, and nodes that die.
pub(super) fn faults(is_quick: bool, machine: &Machine) -> anyhow::Result<Table> {
    const NODES: usize = 8;
    let units: u64 = if is_quick { 400 } else { 8192 };
    let ns = 10 * MS;
    let title = format!(
        "cluster: {NODES} nodes of which some are slow or die, {units} units of {} ms",
        ns / MS
    );
    let columns =
        [("what", ""), ("time", "s"), ("ideal", "s"), ("over ideal", "x"), ("given again", "")];
    let mut table = Table::new(title, machine, &columns);
    let all = (units * ns) as f64 / 1e9;
    let mut row = |what: String, run: &Run, ideal: f64| -> anyhow::Result<()> {
        let took = run.run()?;
        let over = took.seconds / ideal;
        let cells = [what.into(), took.seconds.into(), ideal.into(), over.into()];
        table.row(cells.into_iter().chain([Cell::Count(took.again)]));
        Ok(())
    };
    row("none".to_owned(), &Run::new(NODES, ns, units), all / NODES as f64)?;
    for slower in [2, 4, 16] {
        let mut run = Run::new(NODES, ns, units);
        if let Some(one) = run.ns_per_unit.get_mut(3) {
            *one *= slower;
        }
        let nodes = NODES as f64 - 1.0 + 1.0 / slower as f64;
        row(format!("one is {slower} times slower"), &run, all / nodes)?;
    }
    for dead in [1, 2, 4, 7] {
        let mut run = Run::new(NODES, ns, units);
        let at = all / NODES as f64 / 2.0;
        run.deaths = (1..=dead).map(|node| (node, (at * 1e9) as u64)).collect();
        let ideal = at + (all - at * NODES as f64) / (NODES - dead) as f64;
        row(format!("{dead} die half way"), &run, ideal)?;
    }
    table.note(model(&Settings::default()));
    table.note(format!(
        "ideal: what the nodes there are need to compute; a death is reported after {} ms, and what \
         the dead had, computed in part, is computed again",
        REPORTED_NS / MS
    ));
    Ok(table)
}

/// A node that dies at each of many moments, of a job whose leases cost what those of wordcount do.
pub(super) fn losses(is_quick: bool, machine: &Machine) -> anyhow::Result<Table> {
    const NODE_BYTES_PER_SECOND: u64 = 300_000_000;
    const UNIT_BYTES: u64 = 256 << 10;
    const LEASE_NS: u64 = 2 * MS;
    let moments: u64 = if is_quick { 4 } else { 100 };
    let title = format!("cluster: one of some nodes dies at each of {moments} moments");
    let columns = [
        ("nodes", ""),
        ("input", ""),
        ("runs", ""),
        ("time / ideal", "x"),
        ("worst", "x"),
        ("its ideal", "ms"),
        ("over 1.2", "runs"),
    ];
    let mut table = Table::new(title, machine, &columns);
    let ns = UNIT_BYTES * 1_000_000_000 / NODE_BYTES_PER_SECOND;
    let settings = Settings { lease_ns: LEASE_NS, merge_ns: 6 * MS / 5, ..Settings::default() };
    for (nodes, gib) in [(3, 1), (3, 2), (3, 16), (8, 2), (8, 16)] {
        let units = gib * (1 << 30) / UNIT_BYTES / if is_quick { 64 } else { 1 };
        let mut run = Run::new(nodes, ns, units);
        (run.unit_bytes, run.settings) = (UNIT_BYTES, settings.clone());
        let whole = (run.run()?.seconds * 1e9) as u64;
        let mut found = Vec::new();
        for moment in 0..moments {
            run.deaths = vec![(1, whole * (2 * moment + 1) / (2 * moments))];
            let Some(AfterLoss { seconds, bytes_left }) = run.run()?.after_loss else { continue };
            let rate = (NODE_BYTES_PER_SECOND * (nodes as u64 - 1)) as f64;
            let ideal = bytes_left as f64 / rate;
            found.push((seconds / ideal, ideal));
        }
        let over = Spread::of(found.iter().map(|(over, _)| *over));
        let worst = found.iter().max_by(|one, other| one.0.total_cmp(&other.0));
        table.row([
            nodes.into(),
            show_bytes(units * UNIT_BYTES).into(),
            found.len().into(),
            over.median.into(),
            over.max.into(),
            worst.map_or(Cell::Missing, |(_, ideal)| (ideal * 1e3).into()),
            found.iter().filter(|(over, _)| *over > FAIR).count().into(),
        ]);
    }
    table.note(model(&settings));
    table.note(format!(
        "units of {}, nodes of {} MB/s, {} ms of a node for each lease; ideal: what had no result when \
         the manager was told, {} ms after, by the nodes that are left, at their rate without leases; \
         its ideal: of the worst run; what is withdrawn ends with the unit under way",
        show_bytes(UNIT_BYTES),
        NODE_BYTES_PER_SECOND / 1_000_000,
        LEASE_NS / MS,
        REPORTED_NS / MS
    ));
    Ok(table)
}
