//! Why a call on a file failed.

use std::io;

/// What went wrong, as far as a caller can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Kind {
    /// There is no such file.
    #[error("file does not exist")]
    NotFound,
    /// The file's mode, or the server, does not allow it.
    #[error("permission denied")]
    Permission,
    /// A file of that name is there already.
    #[error("file already exists")]
    Exists,
    /// A path goes on below a file.
    #[error("not a directory")]
    NotDirectory,
    /// A directory cannot be read or written as a file.
    #[error("is a directory")]
    IsDirectory,
    /// A directory that holds files stays.
    #[error("directory is not empty")]
    NotEmpty,
    /// Names have no `/` and no NUL, and are neither empty, `.` nor `..`.
    #[error("bad file name")]
    BadName,
    /// A file opened otherwise, or that cannot be opened so.
    #[error("file is not open for that")]
    BadMode,
    /// In use by somebody else.
    #[error("file is in use")]
    Busy,
    /// No room is left.
    #[error("no space left")]
    NoSpace,
    /// An offset or a length no file has.
    #[error("beyond what a file can hold")]
    TooLarge,
    /// The call was called off.
    #[error("interrupted")]
    Interrupted,
    /// Nobody is at the other end.
    #[error("nobody reads or writes at the other end")]
    Closed,
    /// The server does not do that.
    #[error("not supported by this file server")]
    Unsupported,
    /// Anything else; see the error's text.
    #[error("i/o error")]
    Io,
}

/// Why a call on a file failed: what, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {what}")]
pub struct FsError {
    kind: Kind,
    name: String,
    what: String,
}

impl FsError {
    /// A failure that its kind says all of, at the file or path `name`.
    #[must_use]
    pub fn new(kind: Kind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into(), what: kind.to_string() }
    }

    /// A failure with more to say than its kind: what, and behind "; " what to do about it,
    /// if that is known.
    #[must_use]
    pub fn because(kind: Kind, name: impl Into<String>, what: impl Into<String>) -> Self {
        Self { kind, name: name.into(), what: what.into() }
    }

    /// What the system answered about the file `name`.
    #[must_use]
    pub fn io(name: impl Into<String>, error: &io::Error) -> Self {
        use io::ErrorKind as E;
        let kind = match error.kind() {
            E::NotFound => Kind::NotFound,
            E::PermissionDenied | E::ReadOnlyFilesystem => Kind::Permission,
            E::AlreadyExists => Kind::Exists,
            E::NotADirectory => Kind::NotDirectory,
            E::IsADirectory => Kind::IsDirectory,
            E::DirectoryNotEmpty => Kind::NotEmpty,
            E::InvalidFilename => Kind::BadName,
            E::ResourceBusy => Kind::Busy,
            E::StorageFull | E::QuotaExceeded => Kind::NoSpace,
            E::FileTooLarge => Kind::TooLarge,
            E::Interrupted => Kind::Interrupted,
            E::BrokenPipe => Kind::Closed,
            E::Unsupported => Kind::Unsupported,
            _ => return Self::because(Kind::Io, name, error.to_string()),
        };
        Self::new(kind, name)
    }

    /// The same, of the file or path `name`.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it says what to do about it.
    #[must_use]
    pub fn has_cure(&self) -> bool {
        self.what.contains("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cure_is_said_by_the_text_and_not_by_a_name() {
        assert!(!FsError::new(Kind::NotFound, "a; b").has_cure());
        assert!(!FsError::io("a; b", &io::Error::other("odd")).has_cure());
        assert!(FsError::because(Kind::Busy, "a", "is held; try again").named("b").has_cure());
    }
}
