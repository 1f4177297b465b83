//! The paper's real kernel (section 5.4, Figure 10): AES-128 written as
//! Listing 1, as Listing 3, and as Listing 1 with the waiting call exchanged.

use std::cell::{Cell, RefCell};

use cellway::accel::{Config, Region};
use cellway::kernels::Aes128Ecb;
use cellway::{Block, Body, Kernel as _, Out, Unit};
use clap::{Args, ValueEnum as _};

use crate::args::{
    Discipline, Order, PagesArg, Rounds, parse_block_bytes, parse_bytes, parse_threads, show_bytes,
};
use crate::arrival::Arrival;
use crate::blocks::Blocks;
use crate::hw::{Mem, Pages};
use crate::listings::{Work, listing1, listing1_stackful, listing3};
use crate::machine::Machine;
use crate::measure::{Sample, Spread, Version, clock_ns, paired_on_stretches};
use crate::program::{Stopwatch, one_accelerator, run_laps, run_timed};
use crate::table::{self, Table};

/// Length of a run in ns: long against its start.
const RUN_NS: f64 = 20e6;
/// Memory in which outputs are compared before anything is timed.
const CHECKED_BYTES: usize = 256 << 10;
const STACK_BYTES: usize = 64 << 10;

/// Arguments of `bench aes`.
#[derive(Args, Clone, Debug)]
pub struct AesArgs {
    /// Memory that is encrypted
    #[arg(long, default_value = "1G", value_parser = parse_bytes, value_name = "BYTES")]
    pub bytes: u64,
    /// Page size of that memory
    #[arg(long, value_enum, default_value_t = PagesArg::Small)]
    pub pages: PagesArg,
    /// Block lengths, powers of two from 16 on
    #[arg(long, value_delimiter = ',', value_parser = parse_block_bytes, value_name = "BYTES,..",
          default_value = "16,32,64,128,256,512,1K,2K,4K,8K,16K")]
    pub sizes: Vec<usize>,
    /// Order of the blocks; without it both
    #[arg(long, value_enum)]
    pub order: Option<Order>,
    /// Threads on the accelerator (15 in the paper)
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = parse_threads)]
    pub threads: usize,
    /// How a transfer's end is waited for
    #[arg(long, value_enum, default_value_t = Discipline::Plain)]
    pub discipline: Discipline,
    /// How often, and whether in earnest.
    #[command(flatten)]
    pub rounds: Rounds,
}

/// One block length, one order.
struct Case<'a> {
    memory: &'a RefCell<Mem<u8>>,
    cipher: &'a Aes128Ecb,
    order: Order,
    block_bytes: usize,
    discipline: Discipline,
    count: u64,
    tour: &'a Cell<u64>,
}

/// The kernel on one block, whose length is a multiple of 16.
#[inline(always)]
fn encrypt(cipher: &Aes128Ecb, data: &mut [u8]) -> u64 {
    let body = &Body { range: 0..data.len() as u64, header: () };
    let unit = Unit { index: 0, offset: 0, body };
    let block = Block { before: &mut [], data, after: &mut [], out: Out::default() };
    // The one error is a last record of fewer than 16 bytes.
    debug_assert!(block.data.len().is_multiple_of(16));
    u64::from(cipher.block(&unit, block, &mut ()).is_err())
}

impl Case<'_> {
    /// Runs `program` on the next stretch of the memory; the items are bytes.
    fn run(
        &self,
        program: impl FnOnce(Work<'_>, u64) -> anyhow::Result<Sample>,
    ) -> anyhow::Result<Sample> {
        let mut memory = self.memory.borrow_mut();
        let blocks =
            Blocks::take(self.tour, memory.len() as u64, self.block_bytes, self.order, self.count);
        let region = Region::memory_mut(&mut memory);
        let arrival = &Arrival::new(self.discipline);
        let work = Work { region: &region, blocks, align_bytes: 1, arrival };
        program(work, blocks.count * self.block_bytes as u64)
    }

    fn config(&self, threads: usize, buffers: usize) -> Config {
        let config = one_accelerator(threads);
        let local_store_bytes = config.local_store_bytes.max(buffers * self.block_bytes.max(128));
        Config { local_store_bytes, ..config }
    }

    fn simple(&self, threads: usize) -> anyhow::Result<Sample> {
        self.run(|work, bytes| {
            let cipher = self.cipher;
            run_timed(&self.config(threads, threads), bytes, |cx, at| {
                listing1::<true>(cx, at, work, |data| encrypt(cipher, data))
            })
        })
    }

    fn double(&self) -> anyhow::Result<Sample> {
        self.run(|work, bytes| {
            let cipher = self.cipher;
            run_timed(&self.config(1, 2), bytes, |cx, _| {
                listing3::<true>(cx, work, |data| encrypt(cipher, data))
            })
        })
    }

    /// One thread starts the others, on stacks of their own.
    fn stackful(&self, threads: usize) -> anyhow::Result<Sample> {
        self.run(|work, bytes| {
            let cipher = self.cipher;
            let config =
                Config { threads: 1, threads_max: threads + 1, ..self.config(threads, threads) };
            run_laps(&config, bytes, |cx, at| async move {
                let mut started = Vec::with_capacity(threads);
                for thread in 0..threads {
                    let at = cellway::accel::Place { thread, threads, ..at };
                    started.push(cx.spawn_stackful(STACK_BYTES, move |stack| {
                        listing1_stackful::<true>(stack, at, work, |data| encrypt(cipher, data))
                    })?);
                }
                // They have their first turn when this one waits.
                let watch = Stopwatch::start();
                let mut errors = 0;
                for thread in started {
                    errors += cx.wait_for(thread).await?;
                }
                Ok(watch.stop(errors))
            })
        })
    }

    fn versions(&self, threads: usize) -> Vec<Version<'_>> {
        vec![
            Version::new("simple", 1, || self.simple(1)),
            Version::new("double", 2, || self.double()),
            Version::new("threads", threads, move || self.simple(threads)),
            Version::new("stackful", threads, move || self.stackful(threads)),
        ]
    }
}

/// Runs every version over a small memory and compares what it leaves with
/// the kernel's own output.
fn check_outputs(
    block_bytes: usize,
    order: Order,
    threads: usize,
    discipline: Discipline,
) -> anyhow::Result<()> {
    let bytes = CHECKED_BYTES.max(2 * block_bytes);
    let plain: Vec<u8> = (0..bytes).map(|index| (index * 31 % 253) as u8).collect();
    let cipher = Aes128Ecb::default();
    let mut wanted = plain.clone();
    anyhow::ensure!(encrypt(&cipher, &mut wanted) == 0, "the kernel refuses {bytes} bytes");
    let memory = RefCell::new(Mem::from_fn(bytes, Pages::Small, |_| 0)?);
    let (tour, count) = (Cell::new(1), (bytes / block_bytes) as u64);
    let case = Case {
        memory: &memory,
        cipher: &cipher,
        order,
        block_bytes,
        discipline,
        count,
        tour: &tour,
    };
    for mut version in case.versions(threads) {
        memory.borrow_mut().copy_from_slice(&plain);
        version.run()?;
        let same = memory.borrow()[..] == wanted[..];
        anyhow::ensure!(same, "{} gives another output at {block_bytes}-byte blocks", version.name);
    }
    Ok(())
}

/// Measures all block lengths.
pub(crate) fn run(args: &AesArgs, machine: &Machine) -> anyhow::Result<Vec<Table>> {
    let mut args = args.clone();
    if args.rounds.quick {
        (args.bytes, args.sizes) = (1 << 20, vec![16, 256, 4096]);
    }
    let longest = args.sizes.iter().max().copied().unwrap_or(0);
    anyhow::ensure!(args.bytes >= 2 * longest as u64, "--bytes holds no two of the longest blocks");
    anyhow::ensure!(
        args.sizes.iter().all(|bytes| *bytes >= 16),
        "AES blocks have 16 bytes: --sizes from 16 on"
    );
    let orders = args.order.map_or(Order::value_variants().to_vec(), |order| vec![order]);
    let mut tables = Vec::new();
    for &pages in args.pages.list() {
        let memory = RefCell::new(Mem::from_fn(usize::try_from(args.bytes)?, pages, |_| 0x5a)?);
        for &order in &orders {
            tables.push(figure(&args, machine, &memory, pages, order)?);
        }
    }
    Ok(tables)
}

fn figure(
    args: &AesArgs,
    machine: &Machine,
    memory: &RefCell<Mem<u8>>,
    pages: Pages,
    order: Order,
) -> anyhow::Result<Table> {
    let title = format!(
        "aes128 in memory (Figure 10): {} pages, {}, {}, {} threads",
        pages.name(),
        order.title(),
        args.discipline.title(),
        args.threads
    );
    let columns = [
        ("block", "B"),
        ("kernel", "cycles/B"),
        ("simple", "MB/s"),
        ("double", "MB/s"),
        ("threads", "MB/s"),
        ("stackful", "MB/s"),
        ("threads", "x simple"),
        ("threads", "x double"),
    ];
    let mut table = Table::new(title, machine, &columns);
    for &block_bytes in &args.sizes {
        check_outputs(block_bytes, order, args.threads, args.discipline)?;
        table.row(row(args, machine, memory, order, block_bytes)?);
    }
    table.note("every version's output was compared with the kernel's own, at every block length");
    table.note("simple: Listing 1 by one thread; double: Listing 3; threads: Listing 1 by many; stackful: the same as a plain function on stacks of their own");
    Ok(table)
}

/// One block length: the kernel's own cost, four rates, two speedups.
fn row(
    args: &AesArgs,
    machine: &Machine,
    memory: &RefCell<Mem<u8>>,
    order: Order,
    block_bytes: usize,
) -> anyhow::Result<Vec<table::Cell>> {
    let (cipher, tour) = (Aes128Ecb::default(), Cell::new(0));
    let kernel_cycles = kernel_cycles(&cipher, block_bytes);
    let block_ns = 100.0 + block_bytes as f64 * (kernel_cycles / machine.core_ghz + 0.2);
    let count = if args.rounds.quick { 64 } else { (RUN_NS / block_ns) as u64 };
    let discipline = args.discipline;
    let case = Case { memory, cipher: &cipher, order, block_bytes, discipline, count, tour: &tour };
    let costs = paired_on_stretches(args.rounds.count(), &mut case.versions(args.threads))?;
    let rates = (0..4).map(|version| (1e3 / costs.item_ns(version).median).into());
    let head = [show_bytes(block_bytes as u64).into(), kernel_cycles.into()];
    let faster = [costs.speedup(2, 0).median.into(), costs.speedup(2, 1).median.into()];
    Ok(head.into_iter().chain(rates).chain(faster).collect())
}

/// The kernel alone on a cached block, in cycles per byte.
fn kernel_cycles(cipher: &Aes128Ecb, block_bytes: usize) -> f64 {
    let mut block = vec![7; block_bytes];
    let blocks = (1 << 20) / block_bytes as u64 + 1;
    let run = |_| {
        let cycle_ns = clock_ns();
        let encrypt = |_| encrypt(cipher, std::hint::black_box(&mut block));
        let bytes = blocks * block_bytes as u64;
        Sample::of(bytes, || (0..blocks).map(encrypt).sum()).item_ns() / cycle_ns
    };
    Spread::of((0..5).map(run)).median
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_versions_encrypt_alike() {
        for (order, threads, discipline) in
            [(Order::Sequential, 3, Discipline::Plain), (Order::Random, 16, Discipline::Dependency)]
        {
            for block_bytes in [16, 64, 4096, 16384] {
                check_outputs(block_bytes, order, threads, discipline).unwrap();
            }
        }
    }
}
