//! Reads back what was saved, field by field.

use crate::kernel::KernelError;

/// Saved bytes that are read from the front; all numbers are little endian.
/// What is missing or left over is an error, never a panic.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'s>(&'s [u8]);

impl<'s> Saved<'s> {
    /// Reads `bytes` from the first on.
    #[must_use]
    pub fn new(bytes: &'s [u8]) -> Self {
        Self(bytes)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// If fewer are left, as with all that follow.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], KernelError> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or_else(damaged)?;
        self.0 = rest;
        Ok(*first)
    }

    /// The next 4 bytes as a number.
    pub fn u32(&mut self) -> Result<u32, KernelError> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next 8 bytes as a number.
    pub fn u64(&mut self) -> Result<u64, KernelError> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next 8 bytes as a number with a point.
    pub fn f64(&mut self) -> Result<f64, KernelError> {
        self.array().map(f64::from_le_bytes)
    }

    /// Bytes that [`save_bytes`] saved.
    pub fn bytes(&mut self) -> Result<&'s [u8], KernelError> {
        let len = usize::try_from(self.u64()?).map_err(|_| damaged())?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or_else(damaged)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Whether all was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All that is not read yet.
    #[must_use]
    pub fn rest(self) -> &'s [u8] {
        self.0
    }

    /// All was read.
    ///
    /// # Errors
    /// If bytes are left over.
    pub fn end(self) -> Result<(), KernelError> {
        if self.0.is_empty() { Ok(()) } else { Err(damaged()) }
    }
}

/// Appends `bytes` and, before them, how many they are.
pub fn save_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn damaged() -> KernelError {
    KernelError::new(
        "what was saved of the result is not what this version saves",
        "go on with the version that wrote the journal, or remove it and start anew",
    )
}
