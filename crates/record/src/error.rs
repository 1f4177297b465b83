//! What is refused.

/// Which kind of thing was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordErrorKind {
    /// No such layout can be: a name, a limit, an offset.
    Layout,
    /// Bytes that are no descriptor.
    Descriptor,
    /// Bytes of another length than the records have.
    Length,
    /// A layout other than the expected one.
    Differs,
    /// A path that leads to no such field.
    Path,
    /// A value that the field does not hold.
    Value,
    /// JSON that is no such record.
    Json,
}

/// Why a layout, a descriptor, a path or a value is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {cure}")]
pub struct RecordError {
    /// The kind, for programs.
    pub kind: RecordErrorKind,
    /// What is wrong, and where.
    pub what: String,
    /// What the user can do about it.
    pub cure: String,
}

impl RecordError {
    pub(crate) fn new(
        kind: RecordErrorKind,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self { kind, what: what.into(), cure: cure.into() }
    }

    pub(crate) fn layout(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::new(RecordErrorKind::Layout, what, cure)
    }

    pub(crate) fn length(name: &str, got: usize, each: usize) -> Self {
        let what = format!("{got} bytes are no whole records `{name}`, which have {each} each");
        Self::new(RecordErrorKind::Length, what, "check the type, or whether the data is cut short")
    }
}
