//! Why transfers fail.

use std::fmt;
use std::io;

use crate::queue::Direction;
use crate::region::Ea;
use crate::store::Buf;

/// Why a transfer failed.
#[derive(Debug, thiserror::Error)]
pub enum TransferFault {
    /// The device or kernel failed.
    #[error("{0}")]
    Io(#[source] io::Error),
    /// The source ended early: the file is shorter than its region.
    #[error("it ends {missing_bytes} bytes early; was it truncated meanwhile?")]
    Ended {
        /// Bytes that did not come.
        missing_bytes: usize,
    },
    /// The transfer leaves its region.
    #[error("{len_bytes} bytes leave the region of {region_bytes} bytes")]
    OutsideRegion {
        /// Bytes to transfer.
        len_bytes: usize,
        /// The region's length.
        region_bytes: u64,
    },
    /// The buffer is too small.
    #[error("{len_bytes} bytes do not fit the buffer of {capacity_bytes} bytes")]
    OutsideBuf {
        /// Bytes to transfer, widened for direct I/O.
        len_bytes: usize,
        /// What the buffer holds.
        capacity_bytes: usize,
    },
    /// A put to memory that was lent for reading.
    #[error("the region is lent for reading only")]
    ReadOnly,
    /// A direct put, or a list with a direct file, that is not aligned.
    #[error("direct I/O needs offset, length and buffer aligned to {align_bytes} bytes")]
    Unaligned {
        /// The alignment asked for.
        align_bytes: u64,
    },
}

/// A failed transfer: what, where, why. Gives the buffer back.
pub struct TransferError {
    /// Get or put.
    pub direction: Direction,
    /// The region's name: the file, or "memory".
    pub region: String,
    /// Bytes from the region's start.
    pub offset: u64,
    /// What went wrong.
    pub fault: TransferFault,
    /// The buffer, unless the transfer was detached.
    pub buf: Option<Buf>,
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.direction == Direction::Get { "get from" } else { "put to" };
        write!(f, "{verb} {} at byte {}: {}", self.region, self.offset, self.fault)
    }
}

impl fmt::Debug for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransferError({self})")
    }
}

impl std::error::Error for TransferError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.fault)
    }
}

/// What comes of a transfer.
pub type TransferResult = Result<Buf, Box<TransferError>>;

impl TransferError {
    /// A failure of a transfer at `ea` that gives `buf` back.
    pub(crate) fn new(
        buf: Option<Buf>,
        direction: Direction,
        ea: Ea<'_>,
        fault: TransferFault,
    ) -> Box<Self> {
        let region = ea.region.name().to_owned();
        Box::new(Self { direction, region, offset: ea.offset, fault, buf })
    }
}
