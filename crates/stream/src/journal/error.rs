//! What can be wrong with a journal.

use std::io::{Error, ErrorKind};

/// What sort of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalErrorKind {
    /// There is one already.
    Exists,
    /// It is none, or nothing of it can be read back.
    Unreadable,
    /// Another kernel, parameter, block length or output than the journal's.
    OtherRun,
    /// The input is not what it was.
    Changed,
    /// This run cannot be resumed: it has a pipe, or its kernel saves nothing.
    Unfit,
    /// Another process writes to it.
    Busy,
    /// Reading, writing or syncing failed.
    Io,
}

/// Why a journal cannot be begun, kept or resumed from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {what}; {cure}")]
pub struct JournalError {
    kind: JournalErrorKind,
    name: String,
    what: String,
    cure: String,
}

impl JournalError {
    pub(crate) fn new(
        kind: JournalErrorKind,
        name: &str,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self { kind, name: name.to_owned(), what: what.into(), cure: cure.into() }
    }

    /// `doing` ("cannot be ...") failed with `error`.
    pub(crate) fn io(name: &str, doing: &str, error: &Error) -> Self {
        let cure = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "free some space, or put it on another disk"
            }
            ErrorKind::FileTooLarge => "raise the limit on file sizes (ulimit -f)",
            ErrorKind::NotFound => "check the name",
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "put it where you may write"
            }
            _ => "check its disk, or put it on another one",
        };
        Self::new(JournalErrorKind::Io, name, format!("{doing}: {error}"), cure)
    }

    /// What sort of failure it is.
    #[must_use]
    pub fn kind(&self) -> JournalErrorKind {
        self.kind
    }
}
