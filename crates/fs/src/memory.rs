//! Files whose bytes lie in memory: reads of them are copies, and nothing else.

use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::fence;

use accel::Region;

use crate::error::FsError;

/// The bytes of an open file, where they lie in memory. Who copies them from
/// there asks afterwards whether the copy [counts](FileMemory::counts): what was
/// cut off a file may be zeros already.
///
/// Whether the file was opened for it, whoever holds this has seen to.
pub trait FileMemory: Send + Sync {
    /// How often the file was cut, or removed.
    fn generation(&self) -> u64;

    /// What lies at `offset`, as far as it lies there in one piece.
    fn stretch(&self, offset: u64) -> Stretch<'_>;

    /// Whether `bytes`, copied from `offset` since `generation` was told, are
    /// what the file held.
    fn counts(&self, generation: u64, offset: u64, bytes: &[u8]) -> bool {
        let _ = (offset, bytes);
        fence(Acquire);
        self.generation() == generation
    }

    /// Writes as [`OpenFile::write`](crate::OpenFile::write) does, if that never waits.
    fn write(&self, offset: u64, data: &[u8]) -> Option<Result<usize, FsError>> {
        let _ = (offset, data);
        None
    }
}

/// What lies at a place of a file.
#[derive(Clone, Copy, Debug)]
pub enum Stretch<'m> {
    /// Bytes, at least one, in one piece.
    Bytes {
        /// The memory they are in.
        region: &'m Region<'m>,
        /// Where in it they begin.
        at: u64,
        /// How many they are.
        len_bytes: u64,
        /// Of the memory, taken before.
        generation: u64,
    },
    /// A hole of so many bytes, at least one: zeros that nobody wrote.
    Zeros(u64),
    /// The file's end.
    End,
    /// Nothing that is in memory: reads are the server's.
    Elsewhere,
}
