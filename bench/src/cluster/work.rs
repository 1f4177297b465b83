//! A kernel that computes for so long, and no more.

use std::time::{Duration, Instant};

use cellway::stream::{Block, Effect, Kernel, KernelError, Saved, Unit};

use crate::hw::one_cycle_chain;

/// Computes so many rounds of a chain for each block, which it does not look at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub(super) rounds: u64,
    /// It wants blocks of its own, so they are read; else they are looked at in place.
    pub(super) reads: bool,
}

/// What was computed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) units: u64,
    /// By the clock, other processes included.
    pub(super) computing: Duration,
}

impl Work {
    /// That which takes `time` on this core, at its fastest.
    pub(super) fn taking(time: Duration) -> Self {
        let probe = Self { rounds: 1 << 14, reads: false };
        let fastest = (0..20).map(|_| probe.bare(1)).min().unwrap_or_default();
        let rounds = time.as_secs_f64() / fastest.as_secs_f64() * probe.rounds as f64;
        Self { rounds: (rounds as u64).max(1), ..probe }
    }

    /// How long so many units take with nothing else.
    pub(super) fn bare(self, units: u64) -> Duration {
        let started = Instant::now();
        for _ in 0..units {
            std::hint::black_box(one_cycle_chain(self.rounds));
        }
        started.elapsed()
    }
}

impl Kernel for Work {
    type Part = Done;
    type Header = ();

    fn name(&self) -> &str {
        "work"
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn looks_in_place(&self) -> bool {
        !self.reads
    }

    fn part(&self, _accelerators: usize) -> Done {
        Done::default()
    }

    fn block(&self, _: &Unit<'_>, _: Block<'_>, part: &mut Done) -> Result<(), KernelError> {
        part.units += 1;
        if self.rounds > 0 {
            let started = Instant::now();
            std::hint::black_box(one_cycle_chain(self.rounds));
            part.computing += started.elapsed();
        }
        Ok(())
    }

    fn merge(&self, part: &mut Done, later: Done) -> Result<(), KernelError> {
        part.units += later.units;
        part.computing += later.computing;
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(self.rounds.to_le_bytes().to_vec())
    }

    fn save(&self, part: &Done, out: &mut Vec<u8>) -> Result<(), KernelError> {
        out.extend(part.units.to_le_bytes());
        out.extend((part.computing.as_nanos() as u64).to_le_bytes());
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<Done, KernelError> {
        let mut saved = Saved::new(saved);
        let (units, nanos) = (saved.array()?, saved.array()?);
        let computing = Duration::from_nanos(u64::from_le_bytes(nanos));
        Ok(Done { units: u64::from_le_bytes(units), computing })
    }
}
