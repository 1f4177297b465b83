//! What a unit costs, and what part of their time nodes compute.

use std::time::Duration;

use anyhow::Context as _;
use cellway::Options;
use cellway::cluster::Hello;
use cellway::cluster::drive::Config;
use cellway::cluster::task::KernelTask;
use cellway::cluster::transport::mpi;
use cellway::storage::Input;
use cellway::stream::{self, Progress};

use super::peer::{Peer, Traffic};
use super::work::{Done, Work};
use crate::machine::Machine;
use crate::measure::Spread;
use crate::table::{Cell, Table};

/// The shortest blocks there are.
pub(super) const BLOCK_BYTES: u64 = 4 << 10;

/// Leases of so many units.
const LONG_LEASE: u64 = 64;

/// One run of `work` over `input`.
struct Lap {
    /// At the manager.
    done: Option<Done>,
    wall: Duration,
    traffic: Traffic,
}

fn options(block_bytes: u64) -> Options {
    let options = Options { accelerators: Some(1), ..Options::default() };
    Options { block_bytes: Some(block_bytes), ..mpi::share(options) }
}

fn lap(
    peer: &Peer,
    (work, input): (Work, &Input),
    (block_bytes, lease_units): (u64, Option<u64>),
    config: &Config,
) -> anyhow::Result<Lap> {
    let progress = Progress::default();
    let task = KernelTask::new(&work, input, None, &options(block_bytes), &progress)?;
    let task = task.lease_units(lease_units);
    let (report, wall, traffic) = peer.run(&task, config)?;
    let done = report.map(|mut report| {
        let result = report.results.pop().context("a run has one job")??;
        task.result(result).map_err(anyhow::Error::msg)
    });
    Ok(Lap { done: done.transpose()?, wall, traffic })
}

/// Units of one node, each way; the manager's process does nothing else.
pub(super) fn cost(
    peer: &Peer,
    input: &Input,
    rounds: usize,
    machine: &Machine,
) -> anyhow::Result<Table> {
    let title = "cluster: a block of 4 KiB in the page cache that nothing is done with, by one \
                 node over the transport";
    let columns = [
        ("what", ""),
        ("a unit", "us"),
        ("over bare", "us"),
        ("over by hand", "us"),
        ("least", "us"),
    ];
    let mut table = Table::new(title, machine, &columns);
    let units = input.len_bytes().unwrap_or(0).div_ceil(BLOCK_BYTES).max(1);
    let of = |buffers| {
        let hello = Hello { buffers, ..Hello::default() };
        Config { hello, manager_computes: false, ..Config::default() }
    };
    let (mut bare, mut by_hand, mut single) = (Vec::new(), Vec::new(), Vec::new());
    let (mut one, mut two, mut eight) = (Vec::new(), Vec::new(), Vec::new());
    let mut read = Vec::new();
    let (mut long, mut measured) = (Vec::new(), Vec::new());
    let mut took = Traffic::default();
    let mut node_turnaround = Vec::new();
    let mut manager_turnaround = Vec::new();
    let work = Work::default();
    let reads = Work { reads: true, ..work };
    let each = |time: Duration| time.as_secs_f64() * 1e6 / units as f64;
    for round in 0..=rounds {
        let by_one = lap(peer, (work, input), (BLOCK_BYTES, Some(1)), &of(1))?;
        // The node tells how it went there.
        let own = by_one.traffic.turnaround.as_nanos() as u64;
        let of_node = Duration::from_nanos(peer.told(own)?.first().copied().unwrap_or_default());
        let by_two = lap(peer, (work, input), (BLOCK_BYTES, Some(1)), &of(2))?;
        let by_reads = lap(peer, (reads, input), (BLOCK_BYTES, Some(1)), &of(2))?;
        let by_eight = lap(peer, (work, input), (BLOCK_BYTES, Some(1)), &of(8))?;
        let as_measured = lap(peer, (work, input), (BLOCK_BYTES, None), &of(2))?;
        let by_many = lap(peer, (work, input), (BLOCK_BYTES, Some(LONG_LEASE)), &of(2))?;
        if let Some(done) = by_many.done {
            anyhow::ensure!(done.units == units, "{} units of {units} were done", done.units);
        }
        // All take the sizes that the manager saw.
        let Traffic { sent_bytes, received_bytes, .. } = by_one.traffic;
        let [there, back] =
            peer.agree([sent_bytes, received_bytes].map(|all| all.div_ceil(units)))?;
        let (lens, pings) = ((there as usize, back as usize), units.min(20_000) as u32);
        let ping = peer.ping(lens, pings, |_| Ok(()))?;
        let mut block = [0; BLOCK_BYTES as usize];
        let hand = peer.ping(lens, pings, |unit| {
            let at = u64::from(unit) * BLOCK_BYTES;
            let len = BLOCK_BYTES.min(input.len_bytes().unwrap_or(0).saturating_sub(at));
            let block = block.get_mut(..len as usize).unwrap_or_default();
            Ok(input.read_exact_at(block, at)?)
        })?;
        let alone = if peer.manages() {
            let progress = Progress::default();
            let ran = stream::run(&work, input, None, &options(BLOCK_BYTES), &progress)?;
            ran.stats.elapsed
        } else {
            Duration::ZERO
        };
        if round == 0 {
            continue;
        }
        took = by_one.traffic;
        bare.push(ping.as_secs_f64() * 1e6);
        by_hand.push(hand.as_secs_f64() * 1e6);
        single.push(each(alone));
        one.push(each(by_one.wall));
        two.push(each(by_two.wall));
        read.push(each(by_reads.wall));
        eight.push(each(by_eight.wall));
        measured.push(each(as_measured.wall));
        long.push(each(by_many.wall));
        node_turnaround.push(each(of_node));
        manager_turnaround.push(each(by_one.traffic.turnaround));
    }
    let [least_bare, least_by_hand] =
        [&bare, &by_hand].map(|all| Spread::of(all.iter().copied()).min);
    let [alone, over_bare, over_both] = [[false, false], [true, false], [true, true]];
    let mut row = |what: &str, all: &[f64], over: [bool; 2]| {
        let spread = Spread::of(all.iter().copied());
        let of = |is: bool, least| Cell::from(is.then_some(spread.median - least));
        let [bare, by_hand] = [of(over[0], least_bare), of(over[1], least_by_hand)];
        table.row([what.into(), spread.median.into(), bare, by_hand, spread.min.into()]);
    };
    row("bare: a message there and one back", &bare, alone);
    row("by hand: the same, and the block read", &by_hand, alone);
    row("a lease each, one at a time", &one, over_bare);
    row("  of that, the node: lease to result", &node_turnaround, alone);
    row("  of that, the manager: result to lease", &manager_turnaround, alone);
    row("a lease each, the next sent ahead", &two, over_bare);
    row("  the same, blocks read", &read, over_both);
    row("a lease each, seven sent ahead", &eight, over_bare);
    // Their units have no message each, there or back.
    row("leases of 64 units", &long, alone);
    row("leases as measured", &measured, alone);
    row("one machine, no nodes", &single, alone);
    let per = |count: u64| count as f64 / units as f64;
    table.note(format!(
        "{units} units; the manager sends {:.2} messages for each, {:.0} B, and gets {:.2}, {:.0} B: \
         those are the bare ones' sizes",
        per(took.sent),
        per(took.sent_bytes),
        per(took.received),
        per(took.received_bytes)
    ));
    table.note(
        "over: the median less the least of those; start and end of a run included; blocks are \
         looked at in place, but where they are read",
    );
    Ok(table)
}

/// All nodes compute, the manager's too, beside the same units in a bare loop on all peers
/// at once: in each round, for cores are not equally fast from one second to the next.
pub(super) fn busy(
    peer: &Peer,
    input: &Input,
    unit: Duration,
    rounds: usize,
    machine: &Machine,
) -> anyhow::Result<Table> {
    let title = "cluster: the part of their time that nodes compute, the manager's too";
    let columns = [
        ("leases", ""),
        ("a bare unit", "us"),
        ("busy", "%"),
        ("least", "%"),
        ("by the clock", "%"),
    ];
    let mut table = Table::new(title, machine, &columns);
    // All at the same time, as in the run; the manager's is what all do.
    peer.meet(&[])?;
    let own = Work::taking(unit);
    let [chain] = peer.agree([own.rounds])?;
    let work = Work { rounds: chain, ..own };
    let units = input.len_bytes().unwrap_or(0).div_ceil(BLOCK_BYTES);
    let each = units.div_ceil(peer.count().into()).max(1);
    for (name, lease_units) in [("one unit each", Some(1)), ("as measured", None)] {
        let (mut bare_us, mut shares, mut by_clock) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=rounds {
            peer.meet(&[])?;
            let own = work.bare(each);
            let others = peer.told(own.as_nanos() as u64)?.into_iter().map(Duration::from_nanos);
            let bare = (own + others.sum()).as_secs_f64() / (each * u64::from(peer.count())) as f64;
            let setting = (BLOCK_BYTES, lease_units);
            let lap = lap(peer, (work, input), setting, &Config::default())?;
            let Some(done) = lap.done.filter(|_| round > 0) else { continue };
            let all = lap.wall.as_secs_f64() * f64::from(peer.count());
            bare_us.push(bare * 1e6);
            shares.push(done.units as f64 * bare / all * 100.0);
            by_clock.push(done.computing.as_secs_f64() / all * 100.0);
        }
        let (busy, by_clock) = (Spread::of(shares), Spread::of(by_clock));
        table.row([
            name.into(),
            Spread::of(bare_us).median.into(),
            busy.median.into(),
            busy.min.into(),
            by_clock.median.into(),
        ]);
    }
    table.note(
        "busy: units by the time of one in a bare loop on all peers at once, right before; \
         by the clock: from the start to the end of each unit, others on its core included",
    );
    Ok(table)
}
