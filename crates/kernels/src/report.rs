//! What a reduction has found, ready to be written.

use std::io::{self, Write};

use stream::{Kernel, KernelError};

/// A finished result. Writing streams, for a word count may be larger than
/// memory, and may happen once: a second call may find nothing left.
pub trait Report {
    /// Writes the result for people and for `cut`: lines, columns parted by tabs.
    fn write_text(&mut self, out: &mut dyn Write) -> io::Result<()>;

    /// Writes the result as one JSON object and a line end. A figure that does
    /// not exist is `null`.
    fn write_json(&mut self, out: &mut dyn Write) -> io::Result<()>;
}

/// A reduction whose merged part can be turned into a report.
pub trait Finish: Kernel {
    /// What the reduction yields.
    type Report: Report;

    /// Turns the part that holds the whole input into a report.
    ///
    /// # Errors
    /// Where the input turns out to be unusable only at its end, or where the
    /// kernel's own temporary files fail.
    fn finish(&self, part: Self::Part) -> Result<Self::Report, KernelError>;
}
