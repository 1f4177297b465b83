//! (being written)
mod kernel;
pub use kernel::{Block, Cut, Effect, Head, Kernel, KernelError, MergeOrder, Unit};
