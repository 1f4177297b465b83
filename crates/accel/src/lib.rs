//! One accelerator: a small fast memory, what moves data into it, and many
//! cooperative threads that hide the time this takes.
//!
//! The Cell/B.E. gave each of its cores 256 KiB of *local store* and a DMA
//! engine, and CellMT showed that many cheap threads, each blocked on its own
//! transfer, beat hand-written double buffering. Here an [`Accelerator`] is a
//! core: its local store is a cache-sized arena, and its DMA engine is
//! prefetch-and-yield for memory and `io_uring` (or a thread pool) for files.
//!
//! The nouns: a program gets a [`Cx`]; it [`get`](Cx::get)s bytes at an
//! effective address ([`Ea`]) of a [`Region`] into a [`Buf`] of its
//! [`LocalStore`], computes, and [`put`](Cx::put)s them back. [`run`] starts M
//! threads of it on each of N accelerators. No thread needs to know the
//! others.
//!
//! ```
//! use cellway_accel::{Config, Region, Tag, run};
//!
//! let mut data: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
//! let region = &Region::memory_mut(&mut data);
//! let (block, tag) = (4096, Tag::new(0));
//! let config = Config { accelerators: 2, threads: 8, ..Config::default() };
//! let ends = run(&config, |cx, at| async move {
//!     let mut buf = cx.alloc(block).expect("8 blocks of 4 KiB fit 256 KiB");
//!     let blocks = region.len_bytes() / block as u64;
//!     for number in (at.index() as u64..blocks).step_by(at.count()) {
//!         let place = region.at(number * block as u64);
//!         buf = cx.get(buf, place, block, tag).await.map_err(|error| error.to_string())?;
//!         buf.iter_mut().for_each(|byte| *byte ^= 0xFF);
//!         buf = cx.put(buf, place, tag).await.map_err(|error| error.to_string())?;
//!     }
//!     // A transfer's error holds its buffer, which stays on its accelerator.
//!     Ok::<_, String>(())
//! })?;
//! assert!(ends.into_iter().all(|end| end.is_ok()));
//! assert_eq!(&data[..3], &[255, 254, 253]);
//! # Ok::<_, cellway_accel::RunError>(())
//! ```
//!
//! The key decision: a transfer *owns* its buffer and gives it back when it is
//! done, on success and on failure. A program that is dropped, or forgets a
//! transfer, cannot make the device write into memory that is used again. The
//! rival, borrowed buffers, needs every future to run to its end.

mod accelerator;
mod arena;
mod cx;
mod engine;
mod fault;
mod machine;
mod mail;
#[cfg(doctest)]
mod must_not_compile;
mod parcel;
mod queue;
mod region;
mod sched;
mod stack;
mod store;
mod topology;
mod transfer;
mod transfers;
mod window;

pub use accelerator::{
    Accelerator, Config, Host, HostError, Place, RunError, Step, Waits, run, run_with_host,
};
pub use arena::BUF_ALIGN_BYTES;
pub use cx::{Cx, Thread};
pub use engine::host::{HostFault, HostIo};
pub use engine::memory::MemoryPath;
pub use engine::{EngineChoice, EngineError, EngineReport, Faults, probe};
pub use fault::{TransferError, TransferFault, TransferResult};
pub use mail::NoFit;
pub use parcel::{GivenBack, HandedOver};
pub use queue::{Direction, Tag};
pub use region::{Ea, Lent, Region};
pub use sched::SpawnError;
pub use stack::{StackCx, StackfulError};
pub use store::{Buf, LocalStore, NoSpace};
pub use topology::Topology;
pub use transfer::{CopyTo, Load, Transfer, YieldNow};
pub use window::{FileWindow, MappedFile};
