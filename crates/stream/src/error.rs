//! Why a run ended without its result.

use accel::{RunError, TransferError, TransferFault};
use storage::{InputError, OutputError};

use crate::journal::JournalError;
use crate::kernel::KernelError;
use crate::plan::PlanError;

/// Why a run ended without its result. Nothing of a file output remains,
/// unless it is one that a journal tells of.
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
    /// The journal cannot be kept, or is of another run.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The accelerators could not run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Somebody who watches the run ended it ([`Control::cancel`](crate::Control::cancel)).
    #[error("the run was cancelled by whoever watches it; start it again, or resume its journal")]
    Cancelled,
    /// An OS thread of the host could not be started.
    #[error("cannot start the thread {name}: {source}; take --scheme direct")]
    HostThread {
        /// Which one.
        name: String,
        /// What the kernel answered.
        source: std::io::Error,
    },
}

/// A failure and the unit it happened in, to report the first of several.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) unit: u64,
    pub(crate) error: StreamError,
}

impl Failure {
    /// For `map_err`: whatever goes wrong with unit `unit`.
    pub(crate) fn of<E: Into<StreamError>>(unit: u64) -> impl FnOnce(E) -> Self {
        move |error| Self { unit, error: error.into() }
    }
}

/// What the system said of a transfer, for an error of the input or output.
pub(crate) fn as_io(error: &TransferError) -> std::io::Error {
    match &error.fault {
        TransferFault::Io(cause) => match cause.raw_os_error() {
            Some(code) => std::io::Error::from_raw_os_error(code),
            None => std::io::Error::new(cause.kind(), cause.to_string()),
        },
        TransferFault::Ended { .. } => std::io::ErrorKind::UnexpectedEof.into(),
        other => std::io::Error::other(other.to_string()),
    }
}
