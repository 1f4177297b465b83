//! Errors that say what, where, why, and what to do, each in one line.

use std::io::{Error, ErrorKind};
use std::path::Path;

/// The side of an input that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputErrorKind {
    /// No such file.
    Missing,
    /// A directory or a socket.
    NotAFile,
    /// No permission to read it.
    Denied,
    /// It is not the file any more that was opened.
    Changed,
    /// Opening or reading failed.
    Read,
}

/// Why an input cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}{}: {what}; {cure}", at(.offset))]
pub struct InputError {
    kind: InputErrorKind,
    name: String,
    offset: Option<u64>,
    what: String,
    cure: String,
}

impl InputError {
    pub(crate) fn new(
        kind: InputErrorKind,
        name: &str,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self { kind, name: name.to_owned(), offset: None, what: what.into(), cure: cure.into() }
    }

    /// A read failed `offset` bytes from the input's start. Give
    /// [`ErrorKind::UnexpectedEof`] where the input ends before its length.
    #[must_use]
    pub fn read(name: &str, offset: u64, error: &Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::UnexpectedEof => InputErrorKind::Changed,
            ErrorKind::PermissionDenied => InputErrorKind::Denied,
            _ => InputErrorKind::Read,
        };
        let (what, cure) = match error.kind() {
            ErrorKind::UnexpectedEof => (
                "ends here: it was cut short while it was read".to_owned(),
                "run again when nothing writes to it",
            ),
            _ => (format!("cannot be read: {error}"), "check its disk, or read another copy"),
        };
        Self { offset: Some(offset), ..Self::new(kind, name, what, cure) }
    }

    /// The input changed while it was read, as [`crate::Input::changed`] says.
    #[must_use]
    pub fn changed(name: &str, what: impl Into<String>) -> Self {
        Self::new(InputErrorKind::Changed, name, what, "run again when nothing writes to it")
    }

    /// What sort of failure it is.
    #[must_use]
    pub fn kind(&self) -> InputErrorKind {
        self.kind
    }

    /// Where it failed, in bytes from the input's start, if there is one place.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }
}

/// The side of an output that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputErrorKind {
    /// There is one already, and `force` was not given.
    Exists,
    /// Nothing can be written under this name: a directory, a missing parent,
    /// no permission.
    Unwritable,
    /// The disk is full, or a quota or size limit is reached.
    NoSpace,
    /// Whoever read the pipe has gone.
    BrokenPipe,
    /// Writing, syncing or naming it failed.
    Write,
    /// What an earlier run wrote of it is gone, or is not what it was.
    Lost,
}

/// Why an output cannot be written. Nothing of a file output remains, unless
/// it says that only the name's survival of a power loss is in doubt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}{}: {what}; {cure}", at(.offset))]
pub struct OutputError {
    kind: OutputErrorKind,
    name: String,
    offset: Option<u64>,
    what: String,
    cure: String,
}

impl OutputError {
    pub(crate) fn new(
        kind: OutputErrorKind,
        name: &str,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self { kind, name: name.to_owned(), offset: None, what: what.into(), cure: cure.into() }
    }

    /// A write failed `offset` bytes from the output's start.
    #[must_use]
    pub fn write(name: &str, offset: u64, error: &Error) -> Self {
        Self { offset: Some(offset), ..Self::os(name, "cannot be written", error) }
    }

    /// `doing` ("cannot be ...") failed with `error`.
    #[must_use]
    pub fn os(name: &str, doing: &str, error: &Error) -> Self {
        use OutputErrorKind::{BrokenPipe, NoSpace, Unwritable, Write};
        let (kind, cure) = match error.kind() {
            ErrorKind::StorageFull => (NoSpace, "free some space, or write to another disk"),
            ErrorKind::QuotaExceeded => (NoSpace, "free some of your quota, or write elsewhere"),
            ErrorKind::FileTooLarge => (NoSpace, "raise `ulimit -f`, or write to another disk"),
            ErrorKind::BrokenPipe => (BrokenPipe, "keep its reader running to the end"),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                (Unwritable, "write to a folder you may write to")
            }
            _ => (Write, "check its disk, or write to another one"),
        };
        Self::new(kind, name, format!("{doing}: {error}"), cure)
    }

    /// What sort of failure it is.
    #[must_use]
    pub fn kind(&self) -> OutputErrorKind {
        self.kind
    }

    /// Where it failed, in bytes from the output's start, if there is one place.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }

    /// What failed, where and why; and what to do.
    #[must_use]
    pub fn into_parts(self) -> (String, String) {
        let Self { name, offset, what, cure, .. } = self;
        (format!("{name}{}: {what}", at(&offset)), cure)
    }

    /// Whether a pipe's reader has gone, which is no error to complain about.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        self.kind == OutputErrorKind::BrokenPipe
    }
}

fn at(offset: &Option<u64>) -> String {
    offset.map(|bytes| format!(" at byte {bytes}")).unwrap_or_default()
}

/// A path as messages show it: on one line whatever it holds.
#[must_use]
pub fn shown(path: &Path) -> String {
    let plain = path.display().to_string();
    if plain.is_empty() || plain.chars().any(char::is_control) {
        format!("{path:?}")
    } else {
        plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_where_why_and_the_cure() {
        let full = Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        let error = OutputError::write("out.bin", 4096, &full);
        assert_eq!(error.kind(), OutputErrorKind::NoSpace);
        assert_eq!(error.offset(), Some(4096));
        assert_eq!(
            error.to_string(),
            "out.bin at byte 4096: cannot be written: No space left on device (os error 28); \
             free some space, or write to another disk"
        );
        let eof = Error::from(ErrorKind::UnexpectedEof);
        let error = InputError::read("in.bin", 7, &eof);
        assert_eq!(error.kind(), InputErrorKind::Changed);
        assert_eq!(
            error.to_string(),
            "in.bin at byte 7: ends here: it was cut short while it was read; \
             run again when nothing writes to it"
        );
    }

    #[test]
    fn each_errno_has_its_kind() {
        use rustix::io::Errno;
        for (errno, kind) in [
            (Errno::DQUOT, OutputErrorKind::NoSpace),
            (Errno::FBIG, OutputErrorKind::NoSpace),
            (Errno::PIPE, OutputErrorKind::BrokenPipe),
            (Errno::ROFS, OutputErrorKind::Unwritable),
            (Errno::IO, OutputErrorKind::Write),
        ] {
            let error = OutputError::write("x", 0, &errno.into());
            assert_eq!(error.kind(), kind, "{errno:?}");
            assert_eq!(error.is_broken_pipe(), errno == Errno::PIPE);
        }
        assert_eq!(InputError::read("x", 0, &Errno::IO.into()).kind(), InputErrorKind::Read);
    }

    #[test]
    fn a_name_stays_on_one_line() {
        assert_eq!(shown(Path::new("a b")), "a b");
        assert_eq!(shown(Path::new("a\nb")), "\"a\\nb\"");
        assert_eq!(shown(Path::new("")), "\"\"");
    }
}
