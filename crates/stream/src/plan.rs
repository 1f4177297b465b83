//! How an input is cut and how much memory that takes: decided without I/O.

use std::ops::Range;

use accel::{EngineChoice, Faults};

use crate::kernel::{Cut, Effect, KernelError};
use crate::paths::Direct;
use crate::pipeline::{Pipeline, TRAILER_BYTES};
use crate::scheme::{Io, Scheme, Units};

/// How a run is laid out where nothing is asked for.
struct Defaults {
    block_bytes: u64,
    threads: usize,
}

/// Where a device is waited for: one thread computes, three transfer, in
/// blocks that a disk likes.
const DEVICE: Defaults = Defaults { block_bytes: 512 * 1024, threads: 4 };

/// Where the page cache is read and nothing written, transfers are copies by
/// this very core: blocks that its own cache holds, and no more than it takes
/// to have the next one at hand.
const CACHE: Defaults = Defaults { block_bytes: 256 * 1024, threads: 2 };

/// Where the page cache is looked at: blocks of whole huge pages, which are
/// mapped at once where the cache has them, and shorter ones of short inputs,
/// so that there are some for each accelerator.
const PAGES: Defaults = Defaults { block_bytes: 4 << 20, threads: 1 };
/// To map less takes as long as to compute it: of shorter blocks several are mapped together.
const PAGES_BLOCK_BYTES_MIN: u64 = 256 * 1024;
const PAGES_BLOCKS_MIN: u64 = 16;

/// Buffers are aligned to this for direct I/O, whatever less a device needs.
pub(crate) const BUF_ALIGN_BYTES: u64 = 4096;

/// The least room for what a rewrite makes of a block, however small.
const OUT_BYTES_MIN: u64 = 64 * 1024;

/// More OS threads than this are a slip of the hand.
const ACCELERATORS_MAX: usize = 4096;

/// A local store counts in 32 bits.
const STORE_BYTES_MAX: u64 = (1 << 32) - BUF_ALIGN_BYTES;

/// What an accelerator needs besides its store: stack, ring, thread pool.
const ACCELERATOR_BYTES: u64 = 384 * 1024;

/// What a thread needs besides its buffer: its state, its transfers in the queue.
const THREAD_BYTES: u64 = 4 * 1024;

/// What a run adds once: what libraries keep, output, statistics.
const RUN_BYTES: u64 = 2 << 20;

/// What the user may choose. `None`: decided by the plan.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Accelerators (cores). Default: those of the affinity mask; for a
    /// spread chain a multiple of its kernels, one for each at least.
    pub accelerators: Option<usize>,
    /// Threads per accelerator. Default 4, or 2 to only read what is cached, 1 to
    /// look at it in place.
    pub threads: Option<usize>,
    /// Bytes of a unit. Default 512 KiB, or 256 KiB to only read what is cached,
    /// up to 4 MiB to look at it in place.
    pub block_bytes: Option<u64>,
    /// Most local store per accelerator in bytes; blocks that are not given are
    /// chosen to fit. What the threads' buffers do not take is not mapped.
    pub local_store_bytes: Option<u64>,
    /// Which engine moves the data.
    pub engine: EngineChoice,
    /// Whether to bypass the page cache.
    pub direct: Direct,
    /// Who does the I/O, and when.
    pub scheme: Scheme,
    /// Buffers of [`Scheme::Staged`]. Default 3.
    pub staging: Option<usize>,
    /// Where the kernels of a chain work.
    pub pipeline: Pipeline,
    /// Accelerators stay where the system puts them: other processes use the same cores.
    pub unpinned: bool,
    /// Faults to inject. For tests.
    pub faults: Option<Faults>,
}

impl Options {
    /// Whether nothing that was asked for is about transfers.
    pub(crate) fn leaves_transfers_open(&self) -> bool {
        self.scheme == Scheme::Auto
            && self.direct == Direct::Auto
            && self.engine == EngineChoice::default()
            && (self.threads, self.local_store_bytes) == (None, None)
            && self.faults.is_none()
    }
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
    /// More accelerators than any machine has.
    #[error(
        "--accelerators is {accelerators}, at most {ACCELERATORS_MAX} can be had; one for each core is best"
    )]
    Accelerators {
        /// How many were asked for.
        accelerators: usize,
    },
    /// The threads' buffers exceed the local store.
    #[error(
        "{threads} threads x {buffer_bytes} bytes (a block of {block_bytes} and its surroundings) = {} bytes \
         do not fit a local store of {local_store_bytes}; use smaller blocks, fewer threads or a larger store \
         (at most {STORE_BYTES_MAX})",
        (*.threads as u64).saturating_mul(*.buffer_bytes)
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
    /// The kernel's [`Kernel::open`](crate::Kernel::open) is at fault.
    #[error(
        "the kernel wants bytes {} to {} of {}; it must stay inside its input, and take all of a pipe",
        .body.start, .body.end, .len_bytes.map_or("a pipe".to_owned(), |len| format!("an input of {len} bytes"))
    )]
    Body {
        /// What it wants to be streamed.
        body: Range<u64>,
        /// The input's length in bytes, if it is known.
        len_bytes: Option<u64>,
    },
    /// The kernel takes one input at a time.
    #[error("{kernel}: {error}")]
    Many {
        /// The kernel's name.
        kernel: String,
        /// What [`Kernel::check_many`](crate::Kernel::check_many) says.
        error: KernelError,
    },
    /// There is nothing to write.
    #[error("{kernel} yields a result and no output; leave the output out")]
    NoOutput {
        /// The kernel's name.
        kernel: String,
    },
    /// A scheme that does not fit what is streamed.
    #[error("--scheme {scheme}: {why}; {cure}")]
    Scheme {
        /// Which one.
        scheme: Scheme,
        /// What does not fit.
        why: String,
        /// What to do.
        cure: &'static str,
    },
    /// A scheme that holds more than there is memory for.
    #[error(
        "--scheme {scheme} holds {in_bytes} bytes of input and {out_bytes} of output, {} in all, and \
         {free_bytes} bytes of memory are free; {cure}",
        .in_bytes.saturating_add(*.out_bytes)
    )]
    Memory {
        /// Which one.
        scheme: Scheme,
        /// What it holds of the input.
        in_bytes: u64,
        /// What it holds of the output.
        out_bytes: u64,
        /// Memory that can be had.
        free_bytes: u64,
        /// What to do.
        cure: &'static str,
    },
    /// What several nodes cannot share.
    #[error("{why}, so nodes cannot share it; {cure}")]
    Shares {
        /// What does not fit.
        why: String,
        /// What to do.
        cure: &'static str,
    },
    /// A chain that cannot be spread so.
    #[error("--pipeline spread: {why}; {cure}")]
    Pipeline {
        /// What does not fit.
        why: String,
        /// What to do.
        cure: String,
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
    /// The input's length in bytes; `None` for a stream.
    pub(crate) len_bytes: Option<u64>,
    pub(crate) cut: Cut,
    /// Granularity of direct I/O, 1 if none.
    pub(crate) direct_align_bytes: u64,
    /// What becomes of the blocks.
    pub(crate) effect: Effect,
    /// Cores in the affinity mask.
    pub(crate) cores: usize,
    /// Accelerators that a block goes through: 1, or those of a spread chain.
    pub(crate) stages: usize,
    /// That many inputs of up to this length, each streamed by one thread;
    /// `None` for one that all threads share.
    pub(crate) batch: Option<usize>,
    /// Blocks are looked at where they lie.
    pub(crate) mapped: bool,
}

impl Shape {
    fn defaults(&self) -> Defaults {
        match self.mapped {
            true => {
                let share = (self.body.end - self.body.start) / PAGES_BLOCKS_MIN;
                let block_bytes = share.next_power_of_two();
                let block_bytes = block_bytes.clamp(PAGES_BLOCK_BYTES_MIN, PAGES.block_bytes);
                Defaults { block_bytes, ..PAGES }
            }
            false if self.effect.writes() || self.direct_align_bytes > 1 => DEVICE,
            false => CACHE,
        }
    }

    fn accelerators(&self, wanted: Option<usize>) -> Result<usize, PlanError> {
        accelerators(wanted, self.cores, self.stages)
    }

    fn record_bytes(&self) -> u64 {
        (self.cut.align_bytes as u64).max(1)
    }

    pub(crate) fn halo_bytes(&self) -> u64 {
        (self.cut.before_bytes as u64).saturating_add(self.cut.after_bytes as u64)
    }

    /// What a thread of a rewrite writes to, for blocks of so many bytes: as much,
    /// and what was left over from the block before, to write in whole pages.
    fn out_bytes(&self, block_bytes: u64) -> u64 {
        match self.effect {
            Effect::Reduce | Effect::Transform => 0,
            Effect::Rewrite => block_bytes
                .max(OUT_BYTES_MIN)
                .checked_next_multiple_of(BUF_ALIGN_BYTES)
                .map_or(u64::MAX, |room| room.saturating_add(BUF_ALIGN_BYTES)),
        }
    }

    /// The halo, the sectors direct I/O reads around a block, and what a block
    /// carries to the next stage.
    fn around_bytes(&self) -> u64 {
        let sectors = if self.direct_align_bytes > 1 { 2 * self.direct_align_bytes } else { 0 };
        let trailer = if self.stages > 1 { TRAILER_BYTES as u64 } else { 0 };
        self.halo_bytes().saturating_add(sectors + trailer)
    }
}

/// How a run is laid out: known, and printable, before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Accelerators that work.
    pub accelerators: usize,
    /// Threads on each.
    pub threads: usize,
    /// Accelerators that a block goes through: 1, or those of a spread chain.
    pub stages: usize,
    /// Bytes of a unit.
    pub block_bytes: u64,
    /// Number of units; `None` if the input's end is not known.
    pub units: Option<u64>,
    /// Bytes of each thread's buffer, or of what it maps at a time.
    pub buffer_bytes: u64,
    /// Bytes of the buffer that each thread of a rewrite writes to; else 0.
    pub out_bytes: u64,
    /// Local store per accelerator in bytes: what the threads' buffers take.
    pub local_store_bytes: u64,
    /// Most memory the run will take on top of what the process has now.
    pub memory_bytes: u64,
    /// The streamed part of the input.
    pub body: Range<u64>,
    /// Who does the I/O: never `Auto`.
    pub scheme: Scheme,
    pub(crate) cut: Cut,
    pub(crate) io: Io,
}

impl Plan {
    /// The largest local store that is taken by default, in bytes, without what
    /// a kernel sees around its blocks.
    pub const LOCAL_STORE_BYTES_DEFAULT: u64 = DEVICE.block_bytes * DEVICE.threads as u64;

    /// `kernel_bytes` says what the kernel's parts take on that many accelerators.
    pub(crate) fn new(
        options: &Options,
        shape: Shape,
        kernel_bytes: impl FnOnce(usize) -> u64,
    ) -> Result<Self, PlanError> {
        let body_bytes = body_bytes(&shape.body, shape.len_bytes)?;
        let threads =
            at_least_one(options.threads, "--threads")?.unwrap_or(shape.defaults().threads);
        at_least_one(options.staging, "--staging")?;
        let threads = if shape.batch.is_some() { 1 } else { threads };
        let store = at_least_one(options.local_store_bytes, "--local-store")?;
        let block_bytes = match at_least_one(options.block_bytes, "--block")? {
            Some(bytes) => bytes.checked_next_multiple_of(shape.record_bytes()).unwrap_or(u64::MAX),
            None => default_block(store, threads, &shape),
        };
        let units = body_bytes.map(|bytes| bytes.div_ceil(block_bytes));
        let at_most = usize::try_from(units.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let at_most = shape.batch.unwrap_or(at_most).max(1);
        let stages = shape.stages;
        let lanes = (shape.accelerators(options.accelerators)? / stages).min(at_most);
        let accelerators = lanes * stages;
        let threads = threads.min(at_most.div_ceil(lanes));
        let local_store_bytes = store.unwrap_or(STORE_BYTES_MAX).min(STORE_BYTES_MAX);
        // A small input needs no more buffer than itself.
        let most_bytes = match shape.batch {
            Some(_) => block_bytes.min(body_bytes.unwrap_or(u64::MAX).max(shape.record_bytes())),
            None => block_bytes.min(body_bytes.unwrap_or(u64::MAX)),
        };
        let together_bytes = if shape.mapped { PAGES_BLOCK_BYTES_MIN } else { 0 };
        let together_bytes = together_bytes
            .min(body_bytes.unwrap_or(u64::MAX))
            .next_multiple_of(BUF_ALIGN_BYTES)
            .min(local_store_bytes / threads as u64);
        let buffer_bytes = buffer_bytes(most_bytes, &shape).max(together_bytes);
        let out_bytes = shape.out_bytes(most_bytes);
        let each_bytes = buffer_bytes.saturating_add(out_bytes);
        let needed = (threads as u64).saturating_mul(each_bytes);
        if needed > local_store_bytes {
            let buffer_bytes = each_bytes;
            return Err(PlanError::Store { threads, buffer_bytes, block_bytes, local_store_bytes });
        }
        let threads_in_all = (accelerators as u64).saturating_mul(threads as u64);
        let most_out_bytes = match shape.effect {
            Effect::Reduce => 0,
            Effect::Transform => most_bytes,
            Effect::Rewrite => out_bytes - BUF_ALIGN_BYTES,
        };
        let of_units = Units {
            count: units,
            bytes: most_bytes,
            out_bytes: most_out_bytes,
            threads: threads_in_all,
        };
        let io = Io::decide(options.scheme, options.staging, &shape, of_units)?;
        let each = needed + threads as u64 * THREAD_BYTES + ACCELERATOR_BYTES;
        let once = kernel_bytes(lanes).saturating_add(shape.halo_bytes());
        let once = once.saturating_add(io.memory_bytes());
        let memory_bytes = once.saturating_add(accelerators as u64 * each + RUN_BYTES);
        Ok(Self {
            accelerators,
            threads,
            stages,
            block_bytes,
            units,
            buffer_bytes,
            out_bytes,
            local_store_bytes: if shape.mapped { 0 } else { needed },
            memory_bytes,
            body: shape.body,
            scheme: options.scheme.resolved(),
            cut: shape.cut,
            io,
        })
    }

    /// What an accelerator with one thread takes, in bytes.
    pub(crate) fn thread_bytes(&self) -> u64 {
        self.buffer_bytes + self.out_bytes + THREAD_BYTES + ACCELERATOR_BYTES
    }

    /// The layout of a batch for one of its inputs, whose blocks are made to fit
    /// the buffer.
    pub(crate) fn of_input(
        &self,
        body: Range<u64>,
        len_bytes: Option<u64>,
        cut: Cut,
    ) -> Result<Self, PlanError> {
        let body_bytes = body_bytes(&body, len_bytes)?;
        let record_bytes = (cut.align_bytes as u64).max(1);
        let around_bytes = (cut.before_bytes as u64).saturating_add(cut.after_bytes as u64);
        let wished_bytes = self.block_bytes.checked_next_multiple_of(record_bytes);
        let room_bytes = self.buffer_bytes.saturating_sub(around_bytes);
        let block_bytes = match (wished_bytes, body_bytes) {
            // Its only block, with nothing around it.
            (Some(wished), Some(body)) if body <= wished.min(self.buffer_bytes) => wished,
            (Some(wished), _) if wished <= room_bytes => wished,
            _ => room_bytes / record_bytes * record_bytes,
        };
        if block_bytes == 0 {
            return Err(PlanError::Store {
                threads: 1,
                buffer_bytes: record_bytes.saturating_add(around_bytes),
                block_bytes: record_bytes,
                local_store_bytes: self.buffer_bytes,
            });
        }
        let units = body_bytes.map(|bytes| bytes.div_ceil(block_bytes));
        Ok(Self { block_bytes, units, body, cut, ..self.clone() })
    }

    /// Where the kernels of a chain work.
    #[must_use]
    pub fn pipeline(&self) -> Pipeline {
        if self.stages > 1 { Pipeline::Spread } else { Pipeline::Fused }
    }

    /// Accelerators that read, or that compute the last kernel and have its part.
    pub(crate) fn lanes(&self) -> usize {
        self.accelerators / self.stages
    }

    /// Bytes that will be written; `None` for a rewrite, and if the input's end
    /// is not known.
    #[must_use]
    pub fn output_bytes(&self) -> Option<u64> {
        if self.out_bytes > 0 { None } else { self.body_bytes() }
    }

    /// Bytes that are streamed; `None` if the input's end is not known.
    #[must_use]
    pub fn body_bytes(&self) -> Option<u64> {
        self.units.map(|_| self.body.end - self.body.start)
    }

    /// The unit with a number, while the end is known.
    pub(crate) fn piece(&self, index: u64) -> Option<Piece> {
        let offset = self.body.start + index.checked_mul(self.block_bytes)?;
        if index >= self.units? {
            return None;
        }
        let data = self.block_bytes.min(self.body.end - offset);
        let before = (self.cut.before_bytes as u64).min(offset - self.body.start) as usize;
        let after = (self.cut.after_bytes as u64).min(self.body.end - offset - data) as usize;
        Some(Piece { index, offset, before, data: data as usize, after })
    }
}

/// A unit, and how its bytes lie in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) index: u64,
    /// Where the block starts, in bytes from the start of the input file.
    pub(crate) offset: u64,
    /// Bytes of halo before the block, of the block, and of halo after it.
    pub(crate) before: usize,
    pub(crate) data: usize,
    pub(crate) after: usize,
}

impl Piece {
    /// Where its bytes start in the input file.
    pub(crate) fn start(&self) -> u64 {
        self.offset - self.before as u64
    }

    /// Its bytes, surroundings included.
    pub(crate) fn len(&self) -> usize {
        self.before + self.data + self.after
    }
}

/// The length in bytes of a body of an input; `None` for a stream, which is its
/// own body.
fn body_bytes(body: &Range<u64>, len_bytes: Option<u64>) -> Result<Option<u64>, PlanError> {
    match len_bytes {
        Some(len) if body.start <= body.end && body.end <= len => Ok(Some(body.end - body.start)),
        None if *body == (0..u64::MAX) => Ok(None),
        _ => Err(PlanError::Body { body: body.clone(), len_bytes }),
    }
}

/// How many accelerators there are where enough is to be done: whole lanes.
pub(crate) fn accelerators(
    wanted: Option<usize>,
    cores: usize,
    stages: usize,
) -> Result<usize, PlanError> {
    let by_default = (cores / stages).max(1) * stages;
    match at_least_one(wanted, "--accelerators")?.unwrap_or(by_default) {
        accelerators if accelerators > ACCELERATORS_MAX => {
            Err(PlanError::Accelerators { accelerators })
        }
        accelerators if !accelerators.is_multiple_of(stages) => Err(PlanError::Pipeline {
            why: format!(
                "--accelerators {accelerators} cannot be shared out evenly to the {stages} kernels"
            ),
            cure: format!("give a multiple of {stages}, or none"),
        }),
        accelerators => Ok(accelerators),
    }
}

fn at_least_one<N: Copy + PartialEq + From<u8>>(
    value: Option<N>,
    what: &'static str,
) -> Result<Option<N>, PlanError> {
    if value == Some(N::from(0)) { Err(PlanError::Zero { what }) } else { Ok(value) }
}

/// The default block, or what fits a store that was asked for: whole records,
/// and whole pages too if there is room, which direct output needs.
fn default_block(store: Option<u64>, threads: usize, shape: &Shape) -> u64 {
    let each =
        store.map_or(u64::MAX, |store| store / threads as u64 / BUF_ALIGN_BYTES * BUF_ALIGN_BYTES);
    let room = each.saturating_sub(shape.around_bytes());
    let room = if shape.effect == Effect::Rewrite {
        room.saturating_sub(BUF_ALIGN_BYTES) / 2
    } else {
        room
    };
    let room = room.min(shape.defaults().block_bytes);
    let record = shape.record_bytes();
    let pages = BUF_ALIGN_BYTES >> record.trailing_zeros().min(BUF_ALIGN_BYTES.trailing_zeros());
    let both = record.checked_mul(pages).filter(|both| *both <= room);
    let grain = both.unwrap_or(record);
    (room / grain * grain).max(record)
}

/// A buffer for a block and what is read around it.
fn buffer_bytes(block_bytes: u64, shape: &Shape) -> u64 {
    let bytes = block_bytes.saturating_add(shape.around_bytes()).max(1);
    bytes.checked_next_multiple_of(BUF_ALIGN_BYTES).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
