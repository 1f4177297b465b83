//! Why a run ended without its result.

use accel::RunError;
use storage::{InputError, OutputError};

use crate::kernel::KernelError;
use crate::plan::PlanError;

/// Why a run ended without its result. Nothing of a file output remains.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The input cannot be read, or changed meanwhile.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The kernel refuses the input.
    #[error("{input}: {error}")]
    Kernel {
        /// The input's name.
        input: String,
        /// What the kernel says.
        error: KernelError,
    },
    /// The options contradict each other or do not fit.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The accelerators could not run.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl StreamError {
    /// Where in the input it happened, to report the first of several.
    pub(crate) fn offset(&self) -> u64 {
        let offset = match self {
            Self::Input(error) => error.offset(),
            Self::Output(error) => error.offset(),
            Self::Kernel { error, .. } => error.offset,
            Self::Plan(_) | Self::Run(_) => None,
        };
        offset.unwrap_or(0)
    }
}
