//! Standard output for results.

use std::io::{self, BufWriter, StdoutLock, Write};

/// Buffered standard output whose errors say what they are. Flush it before
/// dropping it: an error shows only there.
pub(crate) struct Stdout(BufWriter<Named>);

struct Named(StdoutLock<'static>);

impl Stdout {
    pub(crate) fn lock() -> Self {
        Self(BufWriter::with_capacity(64 << 10, Named(io::stdout().lock())))
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Write for Named {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// The same kind of error, with a name and a cure.
fn named(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::Interrupted {
        return error;
    }
    let cure = "check the disk or program it leads to";
    io::Error::new(error.kind(), format!("standard output: cannot be written: {error}; {cure}"))
}
