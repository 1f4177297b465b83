//! The kernel of these tests: it notes and checks all that it is shown.

use std::ops::Range;

use cellway_stream::{
    Block, Body, Cut, Effect, Head, Kernel, KernelError, MergeOrder, Saved, Unit,
};

/// The byte that stands `offset` bytes into the input `seed`.
pub(crate) fn byte_at(seed: u64, offset: u64) -> u8 {
    // SplitMix64's finish: no two stretches of an input look alike.
    let mut z = (offset ^ (seed << 32)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z >> 56) as u8
}

/// A stretch of the input `seed`.
pub(crate) fn content(seed: u64, range: Range<u64>) -> Vec<u8> {
    range.map(|offset| byte_at(seed, offset)).collect()
}

/// What a transform makes of that stretch: a byte in the wrong place shows.
pub(crate) fn transformed(seed: u64, range: Range<u64>) -> Vec<u8> {
    range.map(|offset| byte_at(seed, offset) ^ mask_at(offset)).collect()
}

fn mask_at(offset: u64) -> u8 {
    byte_at(0xACCE55, offset)
}

/// One unit as the kernel saw it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seen {
    pub(crate) index: u64,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) hash: u64,
}

/// What a run over `body` must have seen: each unit once, in order.
pub(crate) fn expected(seed: u64, body: Range<u64>, block_bytes: u64) -> Vec<Seen> {
    let starts = body.clone().step_by(block_bytes as usize);
    let unit = |(index, offset): (usize, u64)| {
        let data = content(seed, offset..body.end.min(offset + block_bytes));
        Seen { index: index as u64, offset, len: data.len(), hash: hash(&data) }
    };
    starts.enumerate().map(unit).collect()
}

/// FNV-1a: depends on the order of the bytes.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3)
    })
}

/// Something to do at a unit; an error is the kernel's.
pub(crate) type Deed = Box<dyn Fn(u64) -> Result<(), KernelError> + Send + Sync>;

pub(crate) struct Probe {
    pub(crate) effect: Effect,
    pub(crate) order: MergeOrder,
    pub(crate) cut: Cut,
    pub(crate) seed: u64,
    /// Whether it is the first to see the input, of which it looks at the start.
    pub(crate) is_first: bool,
    /// What is streamed of a file, and what there is of a pipe.
    pub(crate) body: Range<u64>,
    /// Done at the start of each unit, which is given its offset.
    pub(crate) at_block: Deed,
    /// Done at each merge, which is given the offset of the later part.
    pub(crate) at_merge: Deed,
}

impl Probe {
    /// Cuts anywhere.
    pub(crate) fn new(effect: Effect, order: MergeOrder, seed: u64, body: Range<u64>) -> Self {
        let (at_block, at_merge): (Deed, Deed) = (Box::new(|_| Ok(())), Box::new(|_| Ok(())));
        Self { effect, order, cut: Cut::ANYWHERE, seed, is_first: true, body, at_block, at_merge }
    }

    fn check(&self, what: &str, bytes: &[u8], range: Range<u64>) -> Result<(), KernelError> {
        if bytes == content(self.seed, range.clone()) {
            return Ok(());
        }
        let len = bytes.len();
        Err(KernelError::new(format!("{what}: {len} wrong bytes for {range:?}"), "a failed test"))
    }
}

impl Kernel for Probe {
    type Part = Vec<Seen>;
    type Header = ();

    fn name(&self) -> &str {
        "probe"
    }

    fn open(&self, head: &dyn Head) -> Result<Body, KernelError> {
        let Some(len) = head.len_bytes().filter(|_| self.is_first) else {
            return Ok(Body::whole(head));
        };
        let mut header = vec![0; self.body.start as usize + 1];
        let read =
            head.read_at(0, &mut header).map_err(|e| KernelError::new(e.to_string(), "?"))?;
        self.check("header", &header[..read], 0..len.min(header.len() as u64))?;
        Ok(Body { range: self.body.clone(), header: () })
    }

    fn cut(&self, _: &()) -> Cut {
        self.cut
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn looks_in_place(&self) -> bool {
        self.effect == Effect::Reduce
    }

    fn merge_order(&self) -> MergeOrder {
        self.order
    }

    fn part(&self, _accelerators: usize) -> Vec<Seen> {
        Vec::new()
    }

    fn block(
        &self,
        unit: &Unit<'_>,
        block: Block<'_>,
        part: &mut Vec<Seen>,
    ) -> Result<(), KernelError> {
        (self.at_block)(unit.offset)?;
        let end = unit.offset + block.data.len() as u64;
        let before = self.body.start.max(unit.offset.saturating_sub(self.cut.before_bytes as u64));
        let after = self.body.end.min(end + self.cut.after_bytes as u64);
        self.check("before", block.before, before..unit.offset)?;
        self.check("after", block.after, end..after)?;
        let (index, offset) = (unit.index, unit.offset);
        part.push(Seen { index, offset, len: block.data.len(), hash: hash(block.data) });
        if self.effect == Effect::Transform {
            let places = unit.offset..;
            block.data.iter_mut().zip(places).for_each(|(byte, offset)| *byte ^= mask_at(offset));
        }
        Ok(())
    }

    fn merge(&self, part: &mut Vec<Seen>, later: Vec<Seen>) -> Result<(), KernelError> {
        if let Some(first) = later.first() {
            (self.at_merge)(first.offset)?;
        }
        part.extend(later);
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok([self.seed, self.cut.align_bytes as u64].map(u64::to_le_bytes).concat())
    }

    fn save(&self, part: &Vec<Seen>, out: &mut Vec<u8>) -> Result<(), KernelError> {
        for Seen { index, offset, len, hash } in part {
            for number in [*index, *offset, *len as u64, *hash] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<Vec<Seen>, KernelError> {
        let (mut saved, mut part) = (Saved::new(saved), Vec::new());
        while !saved.is_empty() {
            let (index, offset) = (saved.u64()?, saved.u64()?);
            let (len, hash) = (saved.u64()? as usize, saved.u64()?);
            part.push(Seen { index, offset, len, hash });
        }
        Ok(part)
    }
}
