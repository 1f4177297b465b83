//! One suite for all engines: whatever moves the bytes, the same programs
//! have the same effects.

mod failures;
mod order;
mod ownership;
mod round_trips;

use cellway_accel::{Config, Cx, EngineChoice, Faults, MemoryPath, Place, RunError, run};

use crate::harness::{Backed, Backing, direct_align, engines, skip, small, watch};

/// What a check runs on: an engine's configuration, and where the bytes are.
pub(crate) struct Bed<'a> {
    config: &'a Config,
    backing: Backing,
}

impl Bed<'_> {
    fn back(&self, content: &[u8]) -> Backed {
        Backed::new(self.backing, content)
    }

    fn is_file(&self) -> bool {
        self.backing != Backing::Memory
    }

    /// Runs one thread of `program` on one accelerator.
    fn run<'env, T, F>(&self, program: impl Fn(Cx<'env>) -> F + Sync) -> T
    where
        T: Send + 'env,
        F: Future<Output = T> + 'env,
    {
        self.run_with(self.config, |cx, _| program(cx)).unwrap().pop().unwrap()
    }

    fn run_with<'env, T, F>(
        &self,
        config: &Config,
        program: impl Fn(Cx<'env>, Place) -> F + Sync,
    ) -> Result<Vec<T>, RunError>
    where
        T: Send + 'env,
        F: Future<Output = T> + 'env,
    {
        run(config, program)
    }
}

type Check = fn(&Bed<'_>);

/// The table: everything an engine must do.
const CHECKS: &[(&str, Check)] = &[
    ("any size and offset", round_trips::any_size_and_offset),
    ("short and lent stretches", round_trips::short_and_lent),
    ("random programs equal a plain model", round_trips::random_programs),
    ("files that do not start at a sector", round_trips::odd_starts),
    ("lists over several regions", round_trips::lists_over_regions),
    ("chains over several regions", round_trips::chains_over_regions),
    ("threads side by side", round_trips::threads_side_by_side),
    ("ordered programs run as if awaited", order::ordered_programs),
    ("a barrier holds back later ones", order::barrier_holds_back_later_ones),
    ("a barrier chain holds back later ones", order::barrier_chain_holds_back_later_ones),
    ("more transfers than depth", order::more_transfers_than_depth),
    ("wait for a tag group", order::wait_for_a_tag_group),
    ("regions and buffers have bounds", failures::bounds),
    ("absurd lengths are errors", failures::absurd_lengths),
    ("a region lent for reading", failures::lent_for_reading),
    ("direct puts are aligned", failures::direct_puts_are_aligned),
    ("a truncated file ends early", failures::truncated_file),
    ("errors name the place that failed", failures::errors_name_the_place),
    ("a failed first step ends a chain", failures::failed_chain),
    ("dropped transfers go on", ownership::dropped_transfers_go_on),
    ("forgotten transfers are harmless", ownership::forgotten_transfers),
    ("each thread has its own bytes", ownership::each_its_own_bytes),
    ("a full store is an error", ownership::full_store),
];

/// Runs all checks on one configuration.
pub(crate) fn suite(config: &Config, backings: &[Backing]) {
    for &backing in backings {
        if backing == Backing::Direct && direct_align().is_none() {
            skip("direct I/O", "the file system of the build folder has none");
            continue;
        }
        for (name, check) in CHECKS {
            // Shown by the test harness when the check panics.
            println!("{name}: {backing:?} by {}, {:?}", config.engine, config.faults);
            check(&Bed { config, backing });
        }
    }
}

const FILES: &[Backing] = &[Backing::Buffered, Backing::Direct];

/// The suite on an engine by name, if it works here, well and with faults.
fn suite_by_name(engine: EngineChoice, faults: Option<Faults>) {
    let _dog = watch();
    if engines().contains(&engine) {
        suite(&Config { engine, faults, ..small() }, FILES);
    }
}

#[test]
fn uring_conforms() {
    suite_by_name(EngineChoice::Uring, None);
}

#[test]
fn pread_conforms() {
    suite_by_name(EngineChoice::Pread, None);
}

#[test]
fn uring_with_faults_conforms() {
    for seed in 1..=3 {
        suite_by_name(EngineChoice::Uring, Some(Faults::survivable(seed)));
    }
}

#[test]
fn pread_with_faults_conforms() {
    for seed in 1..=3 {
        suite_by_name(EngineChoice::Pread, Some(Faults::survivable(seed)));
    }
}

#[test]
fn memory_conforms() {
    let _dog = watch();
    for memory in [MemoryPath::Auto, MemoryPath::Interleave, MemoryPath::Straight] {
        for faults in [None, Some(Faults::survivable(1))] {
            suite(&Config { memory, faults, ..small() }, &[Backing::Memory]);
        }
    }
}

/// A device that fails at random: each failure gives the buffer back, and
/// tried again until it works, the data is right.
#[test]
fn broken_devices_conform() {
    let _dog = watch();
    for engine in engines() {
        for backing in FILES {
            for seed in 1..=3 {
                let faults = Some(Faults { broken: 200, ..Faults::survivable(seed) });
                let config = Config { engine, faults, ..small() };
                failures::broken_device(&Bed { config: &config, backing: *backing });
            }
        }
    }
}
