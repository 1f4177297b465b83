//! The versions of the synthetic benchmark that are compared, over memory or a file.

use std::cell::{Cell, RefCell};

use cellway::accel::{Config, Lent, Region};

use super::raw::block_loop;
use crate::args::{Discipline, Order};
use crate::arrival::Arrival;
use crate::blocks::Blocks;
use crate::chain::{Chain, with_cycles};
use crate::coldfile::ColdFile;
use crate::fio::{Fio, Reads};
use crate::hw::Mem;
use crate::listings::{Work, listing1, listing1_in_place, listing3, listing3_in_place};
use crate::measure::{Sample, Version};
use crate::program::{one_accelerator, run_timed};

/// What the blocks lie in.
pub(crate) enum Medium {
    Memory(RefCell<Mem<u8>>),
    /// With a peer to read it.
    File(ColdFile, Option<Fio>),
}

impl Medium {
    fn bytes(&self) -> u64 {
        match self {
            Medium::Memory(memory) => memory.borrow().len() as u64,
            Medium::File(file, _) => file.bytes(),
        }
    }

    fn align_bytes(&self) -> usize {
        match self {
            Medium::Memory(_) => 1,
            Medium::File(file, _) => file.align_bytes(),
        }
    }

    /// Lends the bytes for one run.
    fn with_region<R>(&self, write: bool, run: impl FnOnce(&Region<'_>) -> R) -> R {
        match self {
            Medium::Memory(memory) if write => run(&Region::memory_mut(&mut memory.borrow_mut())),
            Medium::Memory(memory) => run(&Region::memory(&memory.borrow())),
            Medium::File(file, _) => run(&file.region()),
        }
    }
}

/// One cell of the benchmark: everything but the version.
pub(crate) struct Case<'a> {
    pub(crate) medium: &'a Medium,
    pub(crate) order: Order,
    /// Get, compute, put; else get and compute only.
    pub(crate) write: bool,
    pub(crate) block_bytes: usize,
    pub(crate) cycles_per_byte: usize,
    /// Matters in memory only.
    pub(crate) discipline: Discipline,
    /// Blocks of a run by one thread; deeper versions over a file get more.
    pub(crate) count: u64,
    /// Where the endless tour of the blocks stands.
    pub(crate) tour: &'a Cell<u64>,
    pub(crate) chain: &'a Chain,
}

/// Reads that fio keeps in flight.
pub(crate) const FIO_DEPTH: usize = 16;
/// Most blocks in flight that make a run over a file longer.
const LONGER_UP_TO: usize = 16;

impl Case<'_> {
    /// The next stretch of the tour.
    fn next_blocks(&self, depth: usize) -> Blocks {
        let longer = match self.medium {
            Medium::Memory(_) => 1,
            Medium::File(..) => depth.clamp(1, LONGER_UP_TO),
        };
        let region_bytes = self.medium.bytes();
        Blocks::take(
            self.tour,
            region_bytes,
            self.block_bytes,
            self.order,
            self.count * longer as u64,
        )
    }

    /// Room for a buffer per thread; the Cell's 256 KiB where that is enough.
    fn config(&self, threads: usize, buffers: usize) -> Config {
        let config = one_accelerator(threads);
        let buffer_bytes = self.block_bytes.next_multiple_of(self.medium.align_bytes().max(128));
        let local_store_bytes = config.local_store_bytes.max(buffers * buffer_bytes);
        Config { local_store_bytes, ..config }
    }

    fn run_simple<const CYCLES: usize, const WRITE: bool>(
        &self,
        threads: usize,
    ) -> anyhow::Result<Sample> {
        let blocks = self.next_blocks(threads);
        let arrival = &Arrival::new(self.discipline);
        let bytes = blocks.count * self.block_bytes as u64;
        self.medium.with_region(WRITE, |region| {
            let align_bytes = self.medium.align_bytes();
            let work = Work { region, blocks, align_bytes, arrival };
            let chain = self.chain;
            run_timed(&self.config(threads, threads), bytes, |cx, at| {
                listing1::<WRITE>(cx, at, work, compute::<CYCLES, WRITE>(chain))
            })
        })
    }

    fn run_double<const CYCLES: usize, const WRITE: bool>(&self) -> anyhow::Result<Sample> {
        let blocks = self.next_blocks(2);
        let arrival = &Arrival::new(self.discipline);
        let bytes = blocks.count * self.block_bytes as u64;
        self.medium.with_region(WRITE, |region| {
            let align_bytes = self.medium.align_bytes();
            let work = Work { region, blocks, align_bytes, arrival };
            let chain = self.chain;
            run_timed(&self.config(1, 2), bytes, |cx, _| {
                listing3::<WRITE>(cx, work, compute::<CYCLES, WRITE>(chain))
            })
        })
    }

    /// Reads in place, by one thread with two blocks under way (`threads` 0) or by many.
    fn run_in_place<const CYCLES: usize>(
        &self,
        memory: &RefCell<Mem<u8>>,
        threads: usize,
    ) -> anyhow::Result<Sample> {
        let blocks = self.next_blocks(threads.max(2));
        let bytes = blocks.count * self.block_bytes as u64;
        let (memory, chain) = (&memory.borrow(), self.chain);
        let arrival = &Arrival::new(self.discipline);
        let memory = Lent::new(&memory[..]);
        let compute = |block: &[u8]| chain.read::<CYCLES>(block);
        if threads == 0 {
            return run_timed(&self.config(1, 1), bytes, |cx, _| {
                listing3_in_place(cx, memory, blocks, arrival, compute)
            });
        }
        run_timed(&self.config(threads, 1), bytes, |cx, at| {
            listing1_in_place(cx, at, memory, blocks, arrival, compute)
        })
    }

    fn run_loop<const CYCLES: usize, const WRITE: bool>(
        &self,
        memory: &RefCell<Mem<u8>>,
        ahead: u64,
    ) -> Sample {
        let blocks = self.next_blocks(1);
        let arrival = Arrival::new(self.discipline);
        let memory = &mut memory.borrow_mut();
        let bytes = blocks.count * self.block_bytes as u64;
        Sample::of(bytes, || {
            block_loop::<CYCLES, WRITE>(memory, &blocks, self.chain, ahead, &arrival)
        })
    }

    /// The peer reads as many blocks as so many threads would.
    fn run_fio(&self, file: &ColdFile, fio: &Fio) -> anyhow::Result<Sample> {
        let blocks = self.next_blocks(FIO_DEPTH);
        let room = file.bytes() - blocks.count * self.block_bytes as u64;
        let reads = Reads {
            block_bytes: self.block_bytes,
            count: blocks.count,
            depth: FIO_DEPTH,
            random: self.order == Order::Random,
            offset: blocks.offset(0).min(room),
        };
        fio.read(&file.path(), reads)
    }

    /// The versions: `loop` (memory only), `simple`, `double`, `ahead` k (memory
    /// only), `threads` n, `double again` (memory only: it shows the noise), `fio` (file, reads that compute nothing). `None` for cycles per byte that are not compiled.
    pub(crate) fn versions<'c>(
        &'c self,
        ahead: &[usize],
        threads: &[usize],
    ) -> Option<Vec<Version<'c>>> {
        with_cycles!(self.cycles_per_byte, versions_either(self, ahead, threads))
    }
}

/// The synthetic kernel on one block.
#[inline(always)]
fn compute<const CYCLES: usize, const WRITE: bool>(chain: &Chain) -> impl Fn(&mut [u8]) -> u64 {
    move |block| if WRITE { chain.rewrite::<CYCLES>(block) } else { chain.read::<CYCLES>(block) }
}

fn versions_either<'c, const CYCLES: usize>(
    case: &'c Case<'_>,
    ahead: &[usize],
    threads: &[usize],
) -> Vec<Version<'c>> {
    if case.write {
        versions_of::<CYCLES, true>(case, ahead, threads)
    } else {
        versions_of::<CYCLES, false>(case, ahead, threads)
    }
}

fn versions_of<'c, const CYCLES: usize, const WRITE: bool>(
    case: &'c Case<'_>,
    ahead: &[usize],
    threads: &[usize],
) -> Vec<Version<'c>> {
    let mut versions = Vec::new();
    if let Medium::Memory(memory) = case.medium {
        for &ahead in std::iter::once(&0).chain(ahead) {
            let name = if ahead == 0 { "loop" } else { "ahead" };
            versions.push(Version::new(name, ahead.max(1), move || {
                Ok(case.run_loop::<CYCLES, WRITE>(memory, ahead as u64))
            }));
        }
    }
    if let (Medium::Memory(memory), false) = (case.medium, WRITE) {
        let run = move |threads| case.run_in_place::<CYCLES>(memory, threads);
        versions.push(Version::new("double here", 2, move || run(0)));
        versions.extend(
            threads
                .iter()
                .map(|&threads| Version::new("threads here", threads, move || run(threads))),
        );
    }
    versions.push(Version::new("simple", 1, || case.run_simple::<CYCLES, WRITE>(1)));
    versions.push(Version::new("double", 2, || case.run_double::<CYCLES, WRITE>()));
    versions.extend(threads.iter().map(|&threads| {
        Version::new("threads", threads, move || case.run_simple::<CYCLES, WRITE>(threads))
    }));
    if let Medium::Memory(_) = case.medium {
        // What the cells would show if nothing but the machine's mood differed.
        versions.push(Version::new("double again", 2, || case.run_double::<CYCLES, WRITE>()));
    }
    if let (Medium::File(file, Some(fio)), 0, false) = (case.medium, CYCLES, WRITE) {
        versions.push(Version::new("fio", FIO_DEPTH, move || case.run_fio(file, fio)));
    }
    versions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::expected_word;
    use crate::hw::Pages;

    /// Words become what the reference says, whoever moves them.
    fn check(case: &Case<'_>, read_all: impl Fn() -> Vec<u64>) {
        let versions = case.versions(&[1, 5], &[1, 3, 16]).unwrap();
        for mut version in versions {
            let before = read_all();
            let sample = version.run().unwrap();
            let wanted: Vec<u64> =
                before.iter().map(|&word| expected_word(case.cycles_per_byte, word)).collect();
            let label = format!("{} {}", version.name, version.depth);
            assert_eq!(sample.items, case.medium.bytes(), "{label}");
            if case.cycles_per_byte > 0 {
                assert_eq!(
                    sample.check,
                    Some(wanted.iter().fold(0, |a: u64, b| a.wrapping_add(*b))),
                    "{label}"
                );
            }
            assert_eq!(read_all(), if case.write { wanted } else { before }, "{label}");
        }
    }

    #[test]
    fn all_versions_compute_the_same_in_memory() {
        let bytes = 64 << 10;
        let memory = Mem::from_fn(bytes, Pages::Small, |index| (index * 7 % 251) as u8).unwrap();
        let medium = Medium::Memory(RefCell::new(memory));
        let Medium::Memory(memory) = &medium else { unreachable!() };
        let read_all = || {
            let memory = memory.borrow();
            memory.as_chunks::<8>().0.iter().map(|&word| u64::from_le_bytes(word)).collect()
        };
        let (chain, tour) = (Chain::default(), Cell::new(3));
        for (order, write, discipline) in [
            (Order::Random, false, Discipline::Fence),
            (Order::Random, true, Discipline::Plain),
            (Order::Sequential, true, Discipline::Dependency),
        ] {
            for (block_bytes, cycles_per_byte) in
                [(16, 1), (64, 0), (256, 4), (4096, 1), (16384, 2)]
            {
                let count = (bytes / block_bytes) as u64;
                let case = Case {
                    medium: &medium,
                    order,
                    write,
                    block_bytes,
                    cycles_per_byte,
                    discipline,
                    count,
                    tour: &tour,
                    chain: &chain,
                };
                check(&case, read_all);
            }
        }
    }

    #[test]
    fn all_versions_compute_the_same_in_a_file() {
        let folder = std::env::temp_dir();
        let file = match ColdFile::create(&folder, 256 << 10) {
            Ok(file) => file,
            Err(error) => return crate::skip("direct I/O", &error.to_string()),
        };
        let medium = Medium::File(file, None);
        let Medium::File(file, _) = &medium else { unreachable!() };
        let read_all = || {
            let bytes = std::fs::read(file.path()).unwrap();
            bytes.as_chunks::<8>().0.iter().map(|&word| u64::from_le_bytes(word)).collect()
        };
        let (chain, tour) = (Chain::default(), Cell::new(3));
        for (order, write) in
            [(Order::Random, false), (Order::Random, true), (Order::Sequential, true)]
        {
            let case = Case {
                medium: &medium,
                order,
                write,
                block_bytes: 4096,
                cycles_per_byte: 1,
                discipline: Discipline::Plain,
                count: 64,
                tour: &tour,
                chain: &chain,
            };
            check(&case, read_all);
        }
    }

    #[test]
    fn stretches_of_the_tour_follow_one_another() {
        let memory = Mem::from_fn(4096, Pages::Small, |_| 1).unwrap();
        let (medium, chain, tour) =
            (Medium::Memory(RefCell::new(memory)), Chain::default(), Cell::new(0));
        let case = Case {
            medium: &medium,
            order: Order::Sequential,
            write: false,
            block_bytes: 64,
            cycles_per_byte: 1,
            discipline: Discipline::Plain,
            count: 11,
            tour: &tour,
            chain: &chain,
        };
        let firsts: Vec<u64> = (0..4).map(|_| case.next_blocks(1).offset(0)).collect();
        assert_eq!(firsts, [0, 640, 1280, 1920]);
    }
}
