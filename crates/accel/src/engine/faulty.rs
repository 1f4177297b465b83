//! A wrapper that makes any engine misbehave, reproducibly by seed. For tests.

use std::io;
use std::sync::Arc;

use super::{Done, Engine, IoOp, Kick, Wait};

/// What goes wrong, in thousandths of all operations. For tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Same seed, same faults (given the same completions).
    pub seed: u64,
    /// Only part of the bytes is moved.
    pub short: u16,
    /// EINTR, nothing moved.
    pub interrupted: u16,
    /// EIO, nothing moved.
    pub broken: u16,
    /// Completions are kept back and come in another order.
    pub delayed: u16,
}

impl Faults {
    /// Everything a correct program survives: no EIO.
    #[must_use]
    pub fn survivable(seed: u64) -> Self {
        Self { seed, short: 300, interrupted: 200, broken: 0, delayed: 500 }
    }
}

/// Draws what goes wrong next.
#[derive(Debug)]
pub(super) struct Dice {
    faults: Faults,
    random: u64,
}

impl Dice {
    pub(super) fn new(faults: Faults) -> Self {
        // Any odd multiplier spreads small seeds; zero would stay zero.
        let random = faults.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self { faults, random }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) as usize % bound.max(1)
    }

    fn hits(&mut self, per_mille: u16) -> bool {
        self.below(1000) < usize::from(per_mille)
    }

    /// How much of an operation of `len` bytes happens, in multiples of `grain`.
    pub(super) fn draw(&mut self, len: usize, grain: usize) -> io::Result<usize> {
        if self.hits(self.faults.interrupted) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if self.hits(self.faults.broken) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let grains = len / grain;
        let short = grains > 1 && self.hits(self.faults.short);
        Ok(if short { grain * (1 + self.below(grains - 1)) } else { len })
    }
}

pub(super) struct Faulty {
    inner: Box<dyn Engine>,
    dice: Dice,
    held_back: Vec<(u32, io::Result<usize>)>,
    inner_flying: usize,
}

impl Faulty {
    pub(super) fn new(inner: Box<dyn Engine>, faults: Faults) -> Self {
        Self { inner, dice: Dice::new(faults), held_back: Vec::new(), inner_flying: 0 }
    }
}

// SAFETY: memory is touched by the wrapped engine alone, for operations that
// are the caller's or shorter; each is reported once, never before the
// wrapped engine reported it.
unsafe impl Engine for Faulty {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn describe(&self) -> String {
        format!("{}, with faults {:?}", self.inner.describe(), self.dice.faults)
    }

    fn fixed_buffers(&self) -> Option<Result<(), String>> {
        self.inner.fixed_buffers()
    }

    unsafe fn submit(&mut self, mut op: IoOp) {
        match self.dice.draw(op.len, op.align_bytes as usize) {
            Err(error) => self.held_back.push((op.id, Err(error))),
            Ok(len) => {
                op.len = len;
                self.inner_flying += 1;
                // SAFETY: the caller's promise covers this part of its memory.
                unsafe { self.inner.submit(op) };
            }
        }
    }

    fn reap(&mut self, wait: Wait, done: Done<'_>) -> io::Result<()> {
        let mut landed = Vec::new();
        // Blocks only when nothing is here to report.
        let wait = if self.held_back.is_empty() { wait } else { Wait::Poll };
        self.inner.reap(wait, &mut |id, result| landed.push((id, result)))?;
        self.inner_flying -= landed.len();
        self.held_back.append(&mut landed);
        let mut reported = 0;
        while !self.held_back.is_empty() {
            let must = reported == 0 && self.inner_flying == 0;
            if !must && self.dice.hits(self.dice.faults.delayed) {
                break;
            }
            let index = self.dice.below(self.held_back.len());
            let (id, result) = self.held_back.swap_remove(index);
            reported += 1;
            done(id, result);
        }
        Ok(())
    }

    fn kicker(&self) -> Arc<dyn Kick> {
        self.inner.kicker()
    }

    fn stop(&mut self) {
        self.inner.stop();
    }
}
