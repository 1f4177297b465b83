//! One byte after the other: pipes, terminals, character devices.

use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};

use crate::error::{InputError, OutputError};

/// Reads an input from its current position to its end.
#[derive(Debug)]
pub struct SequentialReader {
    name: String,
    file: Arc<File>,
    offset: u64,
}

impl SequentialReader {
    pub(crate) fn new(name: &str, file: Arc<File>) -> Self {
        Self { name: name.to_owned(), file, offset: 0 }
    }

    /// Fills `buf`, however small the pieces a pipe delivers; returns the
    /// bytes read, fewer than asked for only at the end. After an error the
    /// bytes before [`InputError::offset`] were read.
    pub fn fill(&mut self, buf: &mut [u8]) -> Result<usize, InputError> {
        let mut filled = 0;
        while filled < buf.len() {
            match (&*self.file).read(&mut buf[filled..]) {
                Ok(0) => break,
                Ok(bytes) => {
                    filled += bytes;
                    self.offset += bytes as u64;
                }
                Err(error) => retry(&self.file, PollFlags::IN, error)
                    .map_err(|error| InputError::read(&self.name, self.offset, &error))?,
            }
        }
        Ok(filled)
    }

    /// Bytes read so far.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// Writes an output from its start.
#[derive(Debug)]
pub struct SequentialWriter {
    name: String,
    file: Arc<File>,
    offset: u64,
}

impl SequentialWriter {
    pub(crate) fn new(name: &str, file: Arc<File>) -> Self {
        Self { name: name.to_owned(), file, offset: 0 }
    }

    /// Writes all of `buf`. [`OutputError::is_broken_pipe`] tells a reader
    /// that left early from a failure.
    pub fn write_all(&mut self, mut buf: &[u8]) -> Result<(), OutputError> {
        while !buf.is_empty() {
            match (&*self.file).write(buf) {
                Ok(0) => {
                    let error = Error::from(ErrorKind::WriteZero);
                    return Err(OutputError::write(&self.name, self.offset, &error));
                }
                Ok(bytes) => {
                    buf = &buf[bytes..];
                    self.offset += bytes as u64;
                }
                Err(error) => retry(&self.file, PollFlags::OUT, error)
                    .map_err(|error| OutputError::write(&self.name, self.offset, &error))?,
            }
        }
        Ok(())
    }

    /// Bytes written so far.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// Returns when the transfer that gave `error` may be tried again.
fn retry(file: &File, ready: PollFlags, error: Error) -> Result<(), Error> {
    match error.kind() {
        ErrorKind::Interrupted => Ok(()),
        // Pipes are shared, and another program may have made one non-blocking.
        ErrorKind::WouldBlock => {
            let mut files = [PollFd::new(file, ready)];
            rustix::io::retry_on_intr(|| poll(&mut files, None))?;
            Ok(())
        }
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests;
