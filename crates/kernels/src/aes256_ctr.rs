//! `aes256-ctr`: AES-256 in counter mode, byte for byte as
//! `openssl enc -aes-256-ctr -K .. -iv ..`; encryption and decryption are the same.
//!
//! The counter loop is our own around the cipher of crate `aes`, because the
//! ready-made one (crate `ctr`) spends more time on writing counters than on
//! encrypting them where the processor encrypts four blocks per instruction.

use aes::Aes256;
use aes::cipher::consts::U16;
use aes::cipher::typenum::Unsigned;
use aes::cipher::{
    Array, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, BlockSizeUser,
    KeyInit, ParBlocks,
};
use stream::{Block, Effect, Kernel, KernelError, Unit};

use crate::{Iv128, Key256};

/// One AES block, the step of the counter, in bytes.
const STEP_BYTES: usize = 16;
/// Up to this many blocks it is faster to encrypt them one by one than to
/// fill a whole batch of the processor.
const FEW_BLOCKS: usize = 20;

/// XORs the input with the encrypted counters. Any unit can be computed by
/// itself: the counter follows from its offset in the body.
#[derive(Clone)]
pub struct Aes256Ctr {
    cipher: Aes256,
    first: u128,
    /// Tells key and iv from others without showing them.
    check: [u8; 32],
}

impl Aes256Ctr {
    /// The body's byte 0 is covered by counter `iv`; the counter wraps after
    /// 2^128 - 1.
    #[must_use]
    pub fn new(key: &Key256, iv: Iv128) -> Self {
        let mut both = [0; 48];
        both[..32].copy_from_slice(key.bytes());
        both[32..].copy_from_slice(&iv.0.to_be_bytes());
        let check = blake3::derive_key("cellway 2026 aes256-ctr key and iv check", &both);
        Self { cipher: Aes256::new(key.bytes().into()), first: iv.0, check }
    }

    fn apply(&self, position: u64, data: &mut [u8]) {
        let mut counter = self.first.wrapping_add(u128::from(position / STEP_BYTES as u64));
        let skip = (position % STEP_BYTES as u64) as usize;
        let mut data = data;
        if skip > 0 {
            let mut keystream = Array::from(counter.to_be_bytes());
            self.cipher.encrypt_block(&mut keystream);
            let (head, rest) = data.split_at_mut(data.len().min(STEP_BYTES - skip));
            xor(head, &keystream[skip..]);
            counter = counter.wrapping_add(1);
            data = rest;
        }
        if !data.is_empty() {
            self.cipher.encrypt_with_backend(CounterMode { counter, data });
        }
    }
}

impl std::fmt::Debug for Aes256Ctr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Aes256Ctr(..)")
    }
}

impl Kernel for Aes256Ctr {
    type Part = ();
    type Header = ();

    fn name(&self) -> &str {
        "aes256-ctr"
    }

    fn effect(&self) -> Effect {
        Effect::Transform
    }

    /// Two outputs under the same counters give away what differs in their inputs.
    fn check_many(&self) -> Result<(), KernelError> {
        let what = "several inputs under one key and iv would not be secret any more";
        Err(KernelError::new(
            what,
            "give each a run with an --iv of its own, or pack them with `tar`",
        ))
    }

    fn part(&self, _accelerators: usize) {}

    fn block(&self, unit: &Unit<'_>, block: Block<'_>, _: &mut ()) -> Result<(), KernelError> {
        self.apply(unit.body_offset(), block.data);
        Ok(())
    }

    fn merge(&self, _: &mut (), _: ()) -> Result<(), KernelError> {
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(self.check.to_vec())
    }
}

/// The loop over whole batches; the cipher calls it compiled for the widest
/// instructions the processor has.
struct CounterMode<'a> {
    counter: u128,
    data: &'a mut [u8],
}

impl BlockSizeUser for CounterMode<'_> {
    type BlockSize = U16;
}

impl BlockCipherEncClosure for CounterMode<'_> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let Self { mut counter, data } = self;
        let batch_bytes = B::ParBlocksSize::USIZE * STEP_BYTES;
        let few_bytes = FEW_BLOCKS * STEP_BYTES;
        let rest_bytes = data.len() % batch_bytes;
        let batched_bytes =
            if rest_bytes > few_bytes { data.len() } else { data.len() - rest_bytes };
        let (batched, few) = data.split_at_mut(batched_bytes);
        if !batched.is_empty() {
            let mut keystream = ParBlocks::<B>::default();
            for batch in batched.chunks_mut(batch_bytes) {
                write_counters(&mut keystream, counter);
                backend.encrypt_par_blocks((&mut keystream).into());
                xor(batch, Array::slice_as_flattened(&keystream));
                counter = counter.wrapping_add(B::ParBlocksSize::U64.into());
            }
        }
        for step in few.chunks_mut(STEP_BYTES) {
            let mut keystream = Array::from(counter.to_be_bytes());
            backend.encrypt_block((&mut keystream).into());
            xor(step, &keystream);
            counter = counter.wrapping_add(1);
        }
    }
}

const RUN_BLOCKS: usize = 64;
/// What to add to the second half of a counter, read as little-endian number,
/// so that its last byte goes up by the index.
const LAST_BYTE: [u64; RUN_BLOCKS] = {
    let mut add = [0; RUN_BLOCKS];
    let mut i = 0;
    while i < RUN_BLOCKS {
        add[i] = (i as u64) << 56;
        i += 1;
    }
    add
};

/// Writes consecutive counters. Between carries only the last byte changes, so
/// a run is one vector addition per block, without byte swaps.
#[inline(always)]
fn write_counters(mut blocks: &mut [Array<u8, U16>], mut counter: u128) {
    while !blocks.is_empty() {
        let until_carry = 256 - usize::from(counter as u8);
        let run_blocks = until_carry.min(blocks.len()).min(RUN_BLOCKS);
        let (run, rest) = blocks.split_at_mut(run_blocks);
        let high = ((counter >> 64) as u64).to_be();
        let low = (counter as u64).swap_bytes();
        for (block, add) in run.iter_mut().zip(&LAST_BYTE) {
            block[..8].copy_from_slice(&high.to_ne_bytes());
            block[8..].copy_from_slice(&low.wrapping_add(*add).to_le_bytes());
        }
        counter = counter.wrapping_add(run_blocks as u128);
        blocks = rest;
    }
}

#[inline(always)]
fn xor(data: &mut [u8], keystream: &[u8]) {
    for (byte, key) in data.iter_mut().zip(keystream) {
        *byte ^= key;
    }
}
