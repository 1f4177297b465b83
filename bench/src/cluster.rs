//! Many machines (Cell Connector, chapter 5): what a message and a unit cost, what part of
//! their time nodes compute, and applications by the length of what a node gets at a time. All
//! processes that `mpirun` started take part; a process alone has nodes that are threads.
//! The load on the manager, scaling and faults are shown in virtual time. Limits of memory
//! and kills are of processes that this one starts.

mod confined;
mod group;
mod kills;
mod launch;
mod limited;
mod messages;
mod peer;
mod ship;
mod simulation;
mod sweep;
mod unit;
mod work;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use cellway::cluster::transport::{local, mpi};
use cellway::storage::Input;
use clap::{Args, ValueEnum};

use crate::args::{Rounds, parse_bytes, parse_threads};
use crate::cachedfile::CachedFile;
use crate::machine::Machine;
use crate::table::Table;
use peer::Peer;
use sweep::Sweep;

/// What a run may take after a loss, in ideal times of those that are left.
const FAIR: f64 = 1.2;

/// Arguments of `bench cluster`.
#[derive(Args, Clone, Debug)]
pub struct ClusterArgs {
    /// What is measured
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "PART,..",
        default_value = "messages,cost,busy,ship,sweep,load,scaling,faults"
    )]
    pub parts: Vec<PartArg>,
    /// Nodes that are threads of this process, where no mpirun started it
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    pub nodes: u32,
    /// Accelerators of each, in the sweep
    #[arg(long, default_value = "1", value_name = "N", value_parser = parse_threads)]
    pub accelerators: usize,
    /// Units whose cost is measured
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub units: u64,
    /// Input of each application of the sweep; half of it is sent
    #[arg(long, default_value = "512M", value_parser = parse_bytes, value_name = "BYTES")]
    pub bytes: u64,
    /// Lengths of a lease in the sweep
    #[arg(long, value_delimiter = ',', value_parser = parse_bytes, value_name = "BYTES,..",
          default_value = "256K,1M,4M,16M,64M")]
    pub lengths: Vec<u64>,
    /// Memory of each process, and a tenth of the longest input, in the limit
    #[arg(long, default_value = "64M", value_parser = parse_limit, value_name = "BYTES")]
    pub limit: u64,
    /// Runs of which a process is killed
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub kills: u32,
    /// Which processes are killed, and when [default: drawn, and printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Folder for inputs, which all peers see
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// How often, and whether in earnest.
    #[command(flatten)]
    pub rounds: Rounds,
}

/// What `bench cluster` measures.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartArg {
    /// Bare messages of some lengths, there and back
    Messages,
    /// What a unit costs beside a bare message there and back
    Cost,
    /// What part of their time nodes compute, with units of a millisecond
    Busy,
    /// Blocks that the manager sends over a link as fast as the nodes compute: connector
    /// against basic
    Ship,
    /// Applications by the length of what a node gets at a time (Figure 5.1)
    Sweep,
    /// What leases of each length ask of the manager, in virtual time (Figure 5.7)
    Load,
    /// Speed by the number of nodes, up to 10,000, in virtual time (Figure 5.8)
    Scaling,
    /// Nodes that are slow or die, in virtual time
    Faults,
    /// A node that dies at each of 100 moments, in virtual time
    Losses,
    /// Inputs of up to ten times the memory that each process may have: connector against
    /// basic (Figures 5.2 to 5.4), and how much processes take. For root, in control groups;
    /// by mpirun too, if it is Open MPI's
    Limit,
    /// A worker of one process more than there are cores killed at a random moment, by mpirun
    /// of Open MPI 5
    Kills,
}

impl PartArg {
    /// Whether it starts processes, and has no part in this one's peers.
    fn starts_processes(self) -> bool {
        matches!(self, Self::Limit | Self::Kills)
    }
}

/// Less than one process takes before it has begun is of no use.
fn parse_limit(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    let least = 32 << 20;
    (bytes >= least).then_some(bytes).ok_or_else(|| format!("'{text}' is less than 32M"))
}

/// Tables at the manager, none at nodes.
pub(crate) fn run(args: &ClusterArgs, machine: &Machine) -> anyhow::Result<Vec<Table>> {
    let mut args = args.clone();
    if args.rounds.quick {
        (args.units, args.bytes, args.lengths) = (50, 1 << 20, vec![64 << 10, 1 << 20]);
        args.kills = 2;
    }
    let (apart, together) = args.parts.iter().partition(|part| part.starts_processes());
    args.parts = together;
    let apart: Vec<PartArg> = apart;
    let mut tables = if args.parts.is_empty() { Vec::new() } else { by_peers(&args, machine)? };
    if !apart.is_empty() {
        anyhow::ensure!(
            !mpi::was_launched(),
            "--parts limit and kills start processes themselves; start this without mpirun"
        );
        tables.extend(by_processes(&args, &apart, machine)?);
    }
    Ok(tables)
}

/// The parts that start processes of their own.
fn by_processes(
    args: &ClusterArgs,
    parts: &[PartArg],
    machine: &Machine,
) -> anyhow::Result<Vec<Table>> {
    let quick = args.rounds.quick;
    let mut tables = Vec::new();
    for part in parts {
        let folder = CachedFile::create(&args.dir, 0)?;
        let folder = folder.folder();
        tables.extend(match part {
            PartArg::Kills => {
                let (runs, bytes) = (args.kills as usize, if quick { 8 << 20 } else { args.bytes });
                kills::Kills { folder, runs, bytes, seed: args.seed }.tables(machine)?
            }
            _ => confined::tables(folder, args.limit, quick, machine)?,
        });
    }
    Ok(tables)
}

/// The parts of which all peers do theirs.
fn by_peers(args: &ClusterArgs, machine: &Machine) -> anyhow::Result<Vec<Table>> {
    if mpi::was_launched() {
        let mpi = mpi::Mpi::start()?;
        let library = mpi.library().to_owned();
        return part_in(Peer::new(Box::new(mpi)), args, &library, machine);
    }
    thread::scope(|scope| {
        let mut peers =
            local::endpoints(args.nodes).into_iter().map(|one| Peer::new(Box::new(one)));
        let manager = peers.next().context("there are no peers")?;
        let part = |peer| part_in(peer, args, "threads of one process", machine);
        let nodes: Vec<_> = peers.map(|node| scope.spawn(move || part(node))).collect();
        let tables = part(manager);
        for node in nodes {
            let ended = node.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // The manager's error is the cause of theirs.
            if tables.is_ok() {
                ended?;
            }
        }
        tables
    })
}

/// What one peer does.
fn part_in(
    peer: Peer,
    args: &ClusterArgs,
    transport: &str,
    machine: &Machine,
) -> anyhow::Result<Vec<Table>> {
    anyhow::ensure!(peer.count() > 1, "there is one process; start at least two by mpirun -n 2");
    let own = peer.manages().then(|| CachedFile::create(&args.dir, args.units * unit::BLOCK_BYTES));
    let own = own.transpose()?;
    let folder = own.as_ref().map_or(Path::new(""), CachedFile::folder);
    let said = peer.meet(folder.as_os_str().as_bytes())?;
    let folder = match own {
        Some(_) => folder.to_owned(),
        None => PathBuf::from(OsStr::from_bytes(said.first().context("no folder")?)),
    };
    let input = Input::open(&folder.join(CachedFile::NAME))?;
    let rounds = args.rounds.count();
    let mut tables = Vec::new();
    for part in &args.parts {
        let mut table = match part {
            // They are not for peers.
            PartArg::Limit | PartArg::Kills => continue,
            PartArg::Load | PartArg::Scaling | PartArg::Faults | PartArg::Losses => {
                // Virtual time needs no peers.
                if peer.manages() {
                    let show = match part {
                        PartArg::Load => simulation::load,
                        PartArg::Scaling => simulation::scaling,
                        PartArg::Losses => simulation::losses,
                        _ => simulation::faults,
                    };
                    tables.push(show(args.rounds.quick, machine)?);
                }
                continue;
            }
            PartArg::Messages => {
                messages::there_and_back(&peer, (rounds, args.rounds.quick), machine)?
            }
            PartArg::Cost => unit::cost(&peer, &input, rounds, machine)?,
            PartArg::Busy => {
                let time = Duration::from_micros(if args.rounds.quick { 10 } else { 1000 });
                let few = folder.join("few");
                if peer.manages() {
                    let file = std::fs::File::create_new(&few)?;
                    file.set_len(args.units.min(2000) * unit::BLOCK_BYTES)?;
                }
                peer.meet(&[])?;
                unit::busy(&peer, &Input::open(&few)?, time, rounds, machine)?
            }
            PartArg::Ship => {
                let time = Duration::from_micros(if args.rounds.quick { 10 } else { 1250 });
                let sent = folder.join("sent");
                if peer.manages() {
                    std::fs::File::create_new(&sent)?.set_len(args.bytes / 2)?;
                }
                peer.meet(&[])?;
                ship::over_a_link(&peer, &Input::open(&sent)?, time, rounds, machine)?
            }
            PartArg::Sweep => {
                let (bytes, lengths) = (args.bytes, args.lengths.as_slice());
                let accelerators = args.accelerators;
                let folder = &folder;
                Sweep { peer: &peer, folder, bytes, lengths, accelerators, rounds }.run(machine)?
            }
        };
        table.note(format!("transport: {transport}"));
        tables.push(table);
    }
    let manages = peer.manages();
    peer.close()?;
    Ok(if manages { tables } else { Vec::new() })
}
