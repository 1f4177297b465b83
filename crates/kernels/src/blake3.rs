//! `blake3`: the standard BLAKE3 hash of the whole input, as `b3sum` prints it.
//!
//! BLAKE3 hashes chunks of 1024 bytes and combines them by a binary tree whose
//! shape depends on the length alone (BLAKE3 paper, section 2.1). A unit is cut
//! into the largest subtrees that lie whole inside it, each hashed by itself;
//! the units' subtrees are then put together in order.

use std::io::{self, Write};

use blake3::hazmat::{
    ChainingValue, HasherExt as _, Mode, max_subtree_len, merge_subtrees_non_root,
    merge_subtrees_root,
};
use blake3::{CHUNK_LEN, Hasher};
use stream::{Block, Cut, Effect, Kernel, KernelError, MergeOrder, Saved, Unit, save_bytes};

use crate::{Finish, Report};

/// The BLAKE3 hash as a reduction over any cut between chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blake3;

impl Blake3 {
    /// The kernel; it has no parameters.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

/// The subtrees of some consecutive bytes.
#[derive(Clone, Debug, Default)]
pub struct Blake3Part {
    /// From left to right, siblings combined but for the last two.
    subtrees: Vec<Subtree>,
    /// The hash of an input of one chunk, which no subtree tells.
    of_one_chunk: Option<blake3::Hash>,
}

#[derive(Clone, Copy, Debug)]
struct Subtree {
    value: ChainingValue,
    /// Chunks of the input before it, a multiple of `chunks`.
    before: u64,
    /// A power of two; the last of them may be cut short by the input's end.
    chunks: u64,
}

impl Blake3Part {
    fn push(&mut self, subtree: Subtree) {
        // Two siblings are combined when more follows: until then their parent
        // might be the root, which is hashed differently.
        while let [.., left, right] = &self.subtrees[..]
            && left.chunks == right.chunks
            && left.before.is_multiple_of(2 * left.chunks)
        {
            let value = merge_subtrees_non_root(&left.value, &right.value, Mode::Hash);
            let parent = Subtree { value, before: left.before, chunks: 2 * left.chunks };
            self.subtrees.truncate(self.subtrees.len() - 2);
            self.subtrees.push(parent);
        }
        self.subtrees.push(subtree);
    }

    fn root(&self) -> blake3::Hash {
        let Some((last, left)) = self.subtrees.split_last() else { return blake3::hash(&[]) };
        let Some((first, between)) = left.split_first() else {
            return self.of_one_chunk.unwrap_or_else(|| blake3::hash(&[]));
        };
        let join = |right: ChainingValue, left: &Subtree| {
            merge_subtrees_non_root(&left.value, &right, Mode::Hash)
        };
        let right = between.iter().rev().fold(last.value, join);
        merge_subtrees_root(&first.value, &right, Mode::Hash)
    }
}

/// Bytes of the largest subtree that begins at `offset` and is no longer than
/// `len`, nor than half of an input that ends there: a whole input's only
/// subtree would be its root.
fn subtree_bytes(offset: u64, len: usize) -> usize {
    let chunks = (len / CHUNK_LEN).max(1);
    let mut bytes = CHUNK_LEN << chunks.ilog2();
    if offset == 0 && bytes > CHUNK_LEN {
        bytes /= 2;
    }
    max_subtree_len(offset).map_or(bytes, |most| bytes.min(most as usize)).min(len)
}

impl Kernel for Blake3 {
    type Part = Blake3Part;
    type Header = ();

    fn name(&self) -> &str {
        "blake3"
    }

    fn cut(&self, _: &()) -> Cut {
        Cut::records(CHUNK_LEN)
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn looks_in_place(&self) -> bool {
        true
    }

    fn check_many(&self) -> Result<(), KernelError> {
        let what = "the hashes of several inputs cannot be put together to one";
        Err(KernelError::new(what, "hash them one by one, or pipe `cat` of them into it"))
    }

    fn merge_order(&self) -> MergeOrder {
        MergeOrder::ByUnit
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        // At most two subtrees of each size.
        let part = size_of::<Blake3Part>() + 2 * u64::BITS as usize * size_of::<Subtree>();
        (part * (accelerators + stream::EARLY_PARTS_MAX)) as u64
    }

    fn part(&self, _accelerators: usize) -> Blake3Part {
        Blake3Part::default()
    }

    fn block(
        &self,
        unit: &Unit<'_>,
        block: Block<'_>,
        part: &mut Blake3Part,
    ) -> Result<(), KernelError> {
        let (mut at, mut rest) = (unit.body_offset(), &*block.data);
        if at == 0 && rest.len() <= CHUNK_LEN {
            part.of_one_chunk = Some(blake3::hash(rest));
        }
        while !rest.is_empty() {
            let (first, more) = rest.split_at(subtree_bytes(at, rest.len()));
            let value = Hasher::new().set_input_offset(at).update(first).finalize_non_root();
            let chunks = first.len().div_ceil(CHUNK_LEN) as u64;
            part.push(Subtree { value, before: at / CHUNK_LEN as u64, chunks });
            at += first.len() as u64;
            rest = more;
        }
        Ok(())
    }

    fn merge(&self, part: &mut Blake3Part, later: Blake3Part) -> Result<(), KernelError> {
        part.of_one_chunk = part.of_one_chunk.or(later.of_one_chunk);
        later.subtrees.into_iter().for_each(|subtree| part.push(subtree));
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(Vec::new())
    }

    fn save(&self, part: &Blake3Part, out: &mut Vec<u8>) -> Result<(), KernelError> {
        save_bytes(part.of_one_chunk.as_ref().map_or(&[], |hash| hash.as_slice()), out);
        for Subtree { value, before, chunks } in &part.subtrees {
            out.extend_from_slice(value);
            out.extend_from_slice(&before.to_le_bytes());
            out.extend_from_slice(&chunks.to_le_bytes());
        }
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<Blake3Part, KernelError> {
        let mut saved = Saved::new(saved);
        let hash = <[u8; 32]>::try_from(saved.bytes()?).ok().map(blake3::Hash::from_bytes);
        let mut part = Blake3Part { subtrees: Vec::new(), of_one_chunk: hash };
        while !saved.is_empty() {
            let (value, before, chunks) = (saved.array()?, saved.u64()?, saved.u64()?);
            part.subtrees.push(Subtree { value, before, chunks });
        }
        Ok(part)
    }
}

impl Finish for Blake3 {
    type Report = Blake3Report;

    fn finish(&self, part: Blake3Part) -> Result<Blake3Report, KernelError> {
        Ok(Blake3Report { hash: *part.root().as_bytes() })
    }
}

/// The hash; as text 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blake3Report {
    /// The hash of the whole input.
    pub hash: [u8; 32],
}

impl Report for Blake3Report {
    fn write_text(&mut self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", blake3::Hash::from_bytes(self.hash))
    }

    fn write_json(&mut self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, r#"{{"blake3":"{}"}}"#, blake3::Hash::from_bytes(self.hash))
    }
}
