//! Transfers the host makes for its accelerators, one call after the other:
//! what the Cell did for I/O that a core asked for (I/O prefetching, section 3).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use super::Faults;
use super::faulty::Dice;
use crate::queue::Direction;

/// The largest call.
const CALL_BYTES_MAX: usize = 1 << 20;

/// A writer that has its disk write meanwhile tells it so every so often.
const BEHIND_BYTES: usize = 4 << 20;

/// Interrupted calls in a row before that counts as a failure.
const RETRIES_MAX: u32 = 64;

/// A host thread's way to files. Short calls are continued, interrupted ones
/// repeated.
#[derive(Debug)]
pub struct HostIo {
    dice: Option<Dice>,
    /// Bytes written since the disk was told, if it is.
    behind_bytes: Option<usize>,
}

/// A host-issued transfer failed.
#[derive(Debug, thiserror::Error)]
#[error("at byte {offset}: {error}")]
pub struct HostFault {
    /// Where in the file: all bytes before it were transferred.
    pub offset: u64,
    /// Why; `UnexpectedEof` where the file ends.
    #[source]
    pub error: io::Error,
}

impl HostIo {
    /// With faults to inject, for tests.
    #[must_use]
    pub fn new(faults: Option<Faults>) -> Self {
        Self { dice: faults.map(Dice::new), behind_bytes: None }
    }

    /// Has the disk write what is in the page cache while more comes, so that a
    /// sync at the end has little left to do.
    #[must_use]
    pub fn write_behind(self) -> Self {
        Self { behind_bytes: Some(0), ..self }
    }

    /// Moves `len` bytes between `file` at `offset` and `memory`.
    ///
    /// # Safety
    /// `len` bytes at `memory` are mapped, and readable for a put or writable
    /// for a get; meanwhile nobody else accesses them but by racing copies.
    pub(crate) unsafe fn transfer(
        &mut self,
        direction: Direction,
        file: &File,
        offset: u64,
        memory: *mut u8,
        len: usize,
    ) -> Result<(), HostFault> {
        let (mut done, mut retries) = (0, 0);
        while done < len {
            let offset = offset.saturating_add(done as u64);
            let wanted = CALL_BYTES_MAX.min(len - done);
            let wanted = self.dice.as_mut().map_or(Ok(wanted), |dice| dice.draw(wanted, 1));
            // SAFETY: a part of the caller's memory.
            let moved = wanted.and_then(|wanted| unsafe {
                call(direction, file, offset, memory.wrapping_add(done), wanted)
            });
            match moved {
                Ok(0) => {
                    let get = direction == Direction::Get;
                    let kind =
                        if get { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::WriteZero };
                    return Err(HostFault { offset, error: kind.into() });
                }
                Ok(bytes) => (done, retries) = (done + bytes, 0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    retries += 1;
                    if retries > RETRIES_MAX {
                        return Err(HostFault { offset, error });
                    }
                }
                Err(error) => return Err(HostFault { offset, error }),
            }
        }
        if direction == Direction::Put {
            self.tell_disk(file, len);
        }
        Ok(())
    }

    fn tell_disk(&mut self, file: &File, written_bytes: usize) {
        let Some(behind_bytes) = &mut self.behind_bytes else { return };
        *behind_bytes += written_bytes;
        if *behind_bytes >= BEHIND_BYTES {
            *behind_bytes = 0;
            // SAFETY: no memory is passed; the descriptor is open as long as
            // `file`. Where this is not to be had, a sync does it all.
            unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
        }
    }
}

/// One call.
///
/// # Safety
/// As `HostIo::transfer`.
unsafe fn call(
    direction: Direction,
    file: &File,
    offset: u64,
    memory: *mut u8,
    len: usize,
) -> io::Result<usize> {
    let (fd, memory) = (file.as_raw_fd(), memory.cast::<libc::c_void>());
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the caller's memory; the descriptor is open as long as `file`.
    let moved = unsafe {
        match direction {
            Direction::Get => libc::pread(fd, memory, len, offset),
            Direction::Put => libc::pwrite(fd, memory, len, offset),
        }
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}
