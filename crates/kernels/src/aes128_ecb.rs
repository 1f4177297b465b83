//! `aes128-ecb`: for benchmarks only. Equal records give equal output, so it
//! hides nothing; it is here because CellMT (Figure 10) measures with it.

use aes::Aes128;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use stream::{Block, Body, Cut, Effect, Head, Kernel, KernelError, Unit};

const RECORD_BYTES: usize = 16;

/// Encrypts each 16-byte record by itself with AES-128. Benchmark only: this
/// protects no data, use [`Aes256Ctr`](crate::Aes256Ctr) for that.
#[derive(Clone, Debug)]
pub struct Aes128Ecb {
    cipher: Aes128,
    /// Tells the key from another without showing it.
    check: [u8; 32],
}

impl Aes128Ecb {
    /// Expands the key once; calls on single records stay cheap.
    #[must_use]
    pub fn new(key: [u8; 16]) -> Self {
        let check = blake3::derive_key("cellway 2026 aes128-ecb key check", &key);
        Self { cipher: Aes128::new(&key.into()), check }
    }
}

impl Default for Aes128Ecb {
    /// The published key of FIPS-197, Appendix B: a benchmark needs no secret.
    fn default() -> Self {
        Self::new(0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c_u128.to_be_bytes())
    }
}

impl Kernel for Aes128Ecb {
    type Part = ();
    type Header = ();

    fn name(&self) -> &str {
        "aes128-ecb"
    }

    fn open(&self, head: &dyn Head) -> Result<Body, KernelError> {
        match head.len_bytes().map(|len| (len, len % RECORD_BYTES as u64)) {
            Some((len, rest @ 1..)) => Err(partial_record(len - rest, rest)),
            _ => Ok(Body::whole(head)),
        }
    }

    fn cut(&self, _: &()) -> Cut {
        Cut::records(RECORD_BYTES)
    }

    fn effect(&self) -> Effect {
        Effect::Transform
    }

    fn part(&self, _accelerators: usize) {}

    fn block(&self, unit: &Unit<'_>, block: Block<'_>, _: &mut ()) -> Result<(), KernelError> {
        let (records, rest) = Array::slice_as_chunks_mut(block.data);
        if !rest.is_empty() {
            let offset = unit.offset + (records.len() * RECORD_BYTES) as u64;
            return Err(partial_record(offset, rest.len() as u64));
        }
        self.cipher.encrypt_blocks(records);
        Ok(())
    }

    fn merge(&self, _: &mut (), _: ()) -> Result<(), KernelError> {
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(self.check.to_vec())
    }
}

/// A pipe's length is known only at its end, so both `open` and `block` look.
fn partial_record(offset: u64, found_bytes: u64) -> KernelError {
    KernelError::new(
        format!("the last record has {found_bytes} bytes instead of {RECORD_BYTES}"),
        "pad the input to a multiple of 16 bytes, or use aes256-ctr, which takes any length",
    )
    .at(offset)
}
