//! A result that shows whether each unit is in it once, and along which tree it came to be.

use std::cell::Cell;
use std::rc::Rc;

use crate::JobId;
use stream::Fold;

/// Splitmix64.
pub fn hash(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

pub struct Random(pub u64);

impl Random {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        hash(self.0)
    }

    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Counts results that exist.
#[derive(Default, Debug)]
pub struct Live(Rc<Cell<i64>>);

impl Live {
    pub fn count(&self) -> i64 {
        self.0.get() - 1
    }

    pub fn another(&self) -> Self {
        self.clone()
    }

    pub fn first() -> Self {
        Self(Rc::new(Cell::new(1)))
    }
}

impl Clone for Live {
    fn clone(&self) -> Self {
        self.0.set(self.0.get() + 1);
        Self(self.0.clone())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Why a result cannot be read.
pub const FOREIGN: &str = "it is no result of this kernel";

#[derive(Clone, Debug)]
pub struct Found {
    pub units: u64,
    /// Of a hash of each unit.
    pub sum: u64,
    /// In floating point: it depends on which merges were made, and on their order.
    pub float: f64,
    /// It is no result of this kernel: of another type, or cut.
    pub is_foreign: bool,
    _live: Live,
}

impl Found {
    fn of(job: JobId, unit: u64, live: &Live) -> Self {
        let sum = hash(hash(job.0) ^ unit);
        let float = sum as f64 * 2_f64.powi((sum % 40) as i32 - 20);
        Self { units: 1, sum, float, is_foreign: false, _live: live.another() }
    }

    /// What no node should make of anything.
    pub fn foreign(live: &Live) -> Self {
        Self { units: 0, sum: 0, float: 0.0, is_foreign: true, _live: live.another() }
    }

    /// What a node makes of a lease.
    pub fn of_lease(job: JobId, first: u64, units: u64, live: &Live) -> Self {
        let mut fold = Fold::default();
        for unit in first..first + units {
            fold.push(Self::of(job, unit, live), Self::merge).unwrap();
        }
        fold.end(Self::merge).unwrap().unwrap()
    }

    /// As kernels do, it refuses what is none of its own.
    pub fn merge(self, later: Self) -> Result<Self, String> {
        self.read()?;
        later.read()?;
        Ok(Self {
            units: self.units + later.units,
            sum: self.sum.wrapping_add(later.sum),
            float: self.float * 0.75 + later.float,
            is_foreign: false,
            _live: self._live,
        })
    }

    /// Whether it is a result of this kernel.
    pub fn read(&self) -> Result<(), String> {
        if self.is_foreign { Err(FOREIGN.to_owned()) } else { Ok(()) }
    }
}
