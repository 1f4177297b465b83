//! How an input is cut and how much memory that takes: decided without I/O.

use std::ops::Range;

use accel::{EngineChoice, Faults};

use crate::kernel::{Cut, Unit};
use crate::paths::Direct;

/// Default bytes of a unit: large enough for a disk, small enough for a core's cache.
const BLOCK_BYTES: u64 = 512 * 1024;

/// Default threads per accelerator: one computes, three transfer.
const THREADS: usize = 4;

/// Buffers are aligned to this for direct I/O, whatever less a device needs.
const BUF_ALIGN_BYTES: u64 = 4096;

/// What an accelerator needs besides its store: stack, ring, thread pool.
const ACCELERATOR_BYTES: u64 = 512 * 1024;

/// What a run adds once: code pages not touched before, output, statistics.
const RUN_BYTES: u64 = 3 << 20;

/// What the user may choose. `None`: decided by the plan.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Accelerators (cores). Default: those of the affinity mask.
    pub accelerators: Option<usize>,
    /// Threads per accelerator. Default 4.
    pub threads: Option<usize>,
    /// Bytes of a unit. Default 512 KiB.
    pub block_bytes: Option<u64>,
    /// Local store per accelerator in bytes. Default: what the threads' buffers take.
    pub local_store_bytes: Option<u64>,
    /// Which engine moves the data.
    pub engine: EngineChoice,
    /// Whether to bypass the page cache.
    pub direct: Direct,
    /// Faults to inject. For tests.
    pub faults: Option<Faults>,
}

/// Why a plan cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A number that must not be zero.
    #[error("{what} must be at least 1")]
    Zero {
        /// Which option.
        what: &'static str,
    },
    /// The threads' buffers exceed the local store.
    #[error(
        "{threads} threads x {buffer_bytes} bytes (a block of {block_bytes} and its surroundings) = {} bytes \
         do not fit a local store of {local_store_bytes}; use smaller blocks, fewer threads or a larger store",
        *.threads as u64 * .buffer_bytes
    )]
    Store {
        /// Threads per accelerator.
        threads: usize,
        /// Bytes of each thread's buffer.
        buffer_bytes: u64,
        /// Bytes of a unit.
        block_bytes: u64,
        /// The store's size.
        local_store_bytes: u64,
    },
    /// Direct I/O was asked for and is refused.
    #[error("direct I/O was asked for: {why}; use --direct auto")]
    Direct {
        /// What the file system says.
        why: String,
    },
}

/// What is known about an input before it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The streamed part of the file.
    pub(crate) body: Range<u64>,
    /// Whether the body's end is known.
    pub(crate) sized: bool,
    pub(crate) cut: Cut,
    /// Granularity of direct I/O, 1 if none.
    pub(crate) direct_align_bytes: u64,
    /// Memory the kernel declares for its parts.
    pub(crate) kernel_bytes: u64,
    /// Cores in the affinity mask.
    pub(crate) cores: usize,
}

/// How a run is laid out: known, and printable, before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Accelerators that work.
    pub accelerators: usize,
    /// Threads on each.
    pub threads: usize,
    /// Bytes of a unit.
    pub block_bytes: u64,
    /// Number of units; `None` if the input's end is not known.
    pub units: Option<u64>,
    /// Bytes of each thread's buffer.
    pub buffer_bytes: u64,
    /// Local store per accelerator in bytes.
    pub local_store_bytes: u64,
    /// Most memory the run will take on top of what the process has now.
    pub memory_bytes: u64,
    /// The streamed part of the input.
    pub body: Range<u64>,
    pub(crate) cut: Cut,
}

impl Plan {
    pub(crate) fn new(options: &Options, shape: Shape) -> Result<Self, PlanError> {
        let body_bytes = shape.body.end - shape.body.start;
        let align = (shape.cut.align_bytes as u64).max(1);
        let threads = at_least_one(options.threads, "--threads")?.unwrap_or(THREADS);
        let wanted = at_least_one(options.block_bytes, "--block")?;
        let block_bytes = match (wanted, options.local_store_bytes) {
            (Some(bytes), _) => bytes.next_multiple_of(align),
            (None, store) => default_block(store, threads, &shape).next_multiple_of(align),
        };
        let units = shape.sized.then(|| body_bytes.div_ceil(block_bytes));
        let at_most = usize::try_from(units.unwrap_or(u64::MAX)).unwrap_or(usize::MAX).max(1);
        let accelerators = at_least_one(options.accelerators, "--accelerators")?.unwrap_or(shape.cores).min(at_most);
        let threads = threads.min(at_most.div_ceil(accelerators));
        // A small input needs no more buffer than itself.
        let longest = if shape.sized { block_bytes.min(body_bytes) } else { block_bytes };
        let buffer_bytes = buffer_bytes(longest, &shape);
        let needed = threads as u64 * buffer_bytes;
        let local_store_bytes = at_least_one(options.local_store_bytes, "--local-store")?.unwrap_or(needed);
        if needed > local_store_bytes {
            return Err(PlanError::Store { threads, buffer_bytes, block_bytes, local_store_bytes });
        }
        let per_accelerator = local_store_bytes.min(needed) + ACCELERATOR_BYTES;
        let memory_bytes = accelerators as u64 * per_accelerator + shape.kernel_bytes + RUN_BYTES;
        let Shape { body, cut, .. } = shape;
        Ok(Self { accelerators, threads, block_bytes, units, buffer_bytes, local_store_bytes, memory_bytes, body, cut })
    }

    /// The unit with a number, while the end is known.
    pub(crate) fn unit(&self, index: u64) -> Option<(Unit, usize)> {
        let offset = self.body.start + index.checked_mul(self.block_bytes)?;
        if index >= self.units? {
            return None;
        }
        let len = self.block_bytes.min(self.body.end - offset) as usize;
        Some((Unit { index, offset, body: (self.body.start, self.body.end) }, len))
    }
}

fn at_least_one<N: Copy + PartialEq + From<u8>>(value: Option<N>, what: &'static str) -> Result<Option<N>, PlanError> {
    if value == Some(N::from(0)) { Err(PlanError::Zero { what }) } else { Ok(value) }
}

/// The default block, or what fits a store that was asked for.
fn default_block(store: Option<u64>, threads: usize, shape: &Shape) -> u64 {
    let Some(store) = store else { return BLOCK_BYTES };
    let fixed = buffer_bytes(0, shape);
    let each = (store / threads as u64).saturating_sub(fixed).min(BLOCK_BYTES);
    let grain = BUF_ALIGN_BYTES.min(each.max(1));
    (each / grain * grain).max(1)
}

/// A buffer for a block, its halo, and the sectors direct I/O reads around them.
fn buffer_bytes(block_bytes: u64, shape: &Shape) -> u64 {
    let halo = (shape.cut.before_bytes + shape.cut.after_bytes) as u64;
    let sectors = if shape.direct_align_bytes > 1 { 2 * shape.direct_align_bytes } else { 0 };
    (block_bytes + halo + sectors).max(1).next_multiple_of(BUF_ALIGN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape(len: u64, cut: Cut) -> Shape {
        Shape { body: 0..len, sized: true, cut, direct_align_bytes: 1, kernel_bytes: 0, cores: 2 }
    }

    #[test]
    fn the_sum_that_does_not_fit_is_shown() {
        let options = Options {
            block_bytes: Some(65536),
            threads: Some(8),
            local_store_bytes: Some(262_144),
            ..Options::default()
        };
        let error = Plan::new(&options, shape(1 << 30, Cut::ANYWHERE)).unwrap_err();
        assert!(error.to_string().starts_with("8 threads x 65536 bytes"), "{error}");
        assert!(error.to_string().contains("= 524288 bytes do not fit a local store of 262144"), "{error}");
    }

    #[test]
    fn zeros_are_refused() {
        for (options, what) in [
            (Options { threads: Some(0), ..Options::default() }, "--threads"),
            (Options { accelerators: Some(0), ..Options::default() }, "--accelerators"),
            (Options { block_bytes: Some(0), ..Options::default() }, "--block"),
            (Options { local_store_bytes: Some(0), ..Options::default() }, "--local-store"),
        ] {
            let error = Plan::new(&options, shape(100, Cut::ANYWHERE)).unwrap_err();
            assert_eq!(error, PlanError::Zero { what });
        }
    }

    proptest! {
        #[test]
        fn units_cover_the_body_once_in_order(
            start in 0u64..100_000, len in 0u64..3_000_000, align in 1usize..5000,
            block in prop::option::of(1u64..400_000), store in prop::option::of(4_096u64..8_000_000),
            threads in 1usize..9, accelerators in 1usize..5,
        ) {
            let mut shape = shape(0, Cut::records(align));
            shape.body = start..start + len;
            let options = Options {
                block_bytes: block, local_store_bytes: store, threads: Some(threads),
                accelerators: Some(accelerators), ..Options::default()
            };
            let Ok(plan) = Plan::new(&options, shape) else { return Ok(()) };
            prop_assert!(plan.threads as u64 * plan.buffer_bytes <= plan.local_store_bytes);
            let mut at = start;
            let mut index = 0;
            while let Some((unit, len)) = plan.unit(index) {
                prop_assert_eq!(unit.offset, at);
                prop_assert!(len > 0 && len as u64 <= plan.buffer_bytes);
                prop_assert_eq!((unit.body_offset()) % align as u64, 0);
                at += len as u64;
                index += 1;
            }
            prop_assert_eq!(at, start + len);
        }
    }
}
