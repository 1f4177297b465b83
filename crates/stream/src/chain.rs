//! Kernels one after the other over the same block, which stays where it is.

use std::cell::Cell;

use crate::journal::Beside;
use crate::kernel::{Block, Body, Cut, Effect, Head, Kernel, KernelError, MergeOrder, Out, Unit};
use crate::saved::save_bytes;

/// A transform of any kind, as the first ones of a [`Chain`].
pub type Transform = Box<dyn Kernel<Part = (), Header = ()>>;

/// Transforms, and a last kernel of any kind, as one kernel: a block goes
/// through all of them inside the local store before it is put back. What the
/// last one sees around its block has gone through the transforms too.
pub struct Chain<L> {
    name: String,
    first: Vec<Transform>,
    last: L,
}

impl<L: Kernel> Chain<L> {
    /// `first`, in order, then `last`.
    ///
    /// # Errors
    /// If a kernel before the last is no transform.
    pub fn new(first: Vec<Transform>, last: L) -> Result<Self, KernelError> {
        let names = first.iter().map(|kernel| kernel.name()).chain([last.name()]);
        let name = names.collect::<Vec<_>>().join(",");
        let Some(wrong) = first.iter().find(|kernel| kernel.effect() != Effect::Transform) else {
            return Ok(Self { name, first, last });
        };
        let why = match wrong.effect() {
            Effect::Rewrite => "leaves blocks of other lengths",
            _ => "leaves no data",
        };
        let what = format!("{name}: {} {why} for a kernel after it", wrong.name());
        Err(KernelError::new(what, "let it come last"))
    }

    /// The last kernel, whose part the chain yields.
    #[must_use]
    pub fn last(&self) -> &L {
        &self.last
    }

    /// Where the transforms' records begin together.
    fn first_align_bytes(&self) -> usize {
        self.first.iter().map(|kernel| kernel.cut(&()).align_bytes.max(1)).fold(1, common_multiple)
    }

    fn check_surroundings(&self) -> Result<(), KernelError> {
        let looks = |kernel: &&Transform| {
            let cut = kernel.cut(&());
            cut.before_bytes.max(cut.after_bytes) > 0
        };
        match self.first.iter().find(looks) {
            Some(wrong) => Err(KernelError::new(
                format!("{} looks around its blocks, which others change", wrong.name()),
                "let it come last",
            )),
            None => Ok(()),
        }
    }
}

/// What a later kernel may know of its input before anything is computed.
struct NotYet {
    len_bytes: Option<u64>,
    asked: Cell<bool>,
}

impl Head for NotYet {
    fn len_bytes(&self) -> Option<u64> {
        self.len_bytes
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> std::io::Result<usize> {
        self.asked.set(true);
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// Opens a kernel that is not the first: it takes all that those before it write.
fn open_later<K: Kernel + ?Sized>(
    kernel: &K,
    len_bytes: Option<u64>,
) -> Result<K::Header, KernelError> {
    let head = NotYet { len_bytes, asked: Cell::new(false) };
    let opened = kernel.open(&head);
    let refused = |why: &str| {
        let what =
            format!("{} {why}, which the kernels before it have not written yet", kernel.name());
        KernelError::new(what, "write their output to a file first")
    };
    match opened {
        _ if head.asked.get() => Err(refused("reads a header")),
        Ok(taken) if taken.range == (0..len_bytes.unwrap_or(u64::MAX)) => Ok(taken.header),
        Ok(_) => Err(refused("wants a part of its input")),
        Err(error) => Err(error),
    }
}

impl<L: Kernel> Kernel for Chain<L> {
    type Part = L::Part;
    type Header = L::Header;

    fn name(&self) -> &str {
        &self.name
    }

    /// The first kernel says which bytes are streamed; the others take them
    /// all, and none but the last may look around its blocks.
    fn open(&self, head: &dyn Head) -> Result<Body<L::Header>, KernelError> {
        let Some((first, more)) = self.first.split_first() else {
            return self.last.open(head);
        };
        let Body { range, .. } = first.open(head)?;
        let len_bytes = head.len_bytes().map(|_| range.end.saturating_sub(range.start));
        for kernel in more {
            open_later(kernel, len_bytes)?;
        }
        let header = open_later(&self.last, len_bytes)?;
        self.check_surroundings()?;
        Ok(Body { range, header })
    }

    fn cut(&self, header: &L::Header) -> Cut {
        let (align, last) = (self.first_align_bytes(), self.last.cut(header));
        // The surroundings go through the transforms, so they too are whole records.
        let whole = |bytes: usize| bytes.checked_next_multiple_of(align).unwrap_or(usize::MAX);
        Cut {
            align_bytes: common_multiple(align, last.align_bytes.max(1)),
            before_bytes: whole(last.before_bytes),
            after_bytes: whole(last.after_bytes),
        }
    }

    fn effect(&self) -> Effect {
        self.last.effect()
    }

    fn check_many(&self) -> Result<(), KernelError> {
        self.first.iter().try_for_each(|kernel| kernel.check_many())?;
        self.last.check_many()
    }

    fn looks_in_place(&self) -> bool {
        self.first.is_empty() && self.last.looks_in_place()
    }

    fn merge_order(&self) -> MergeOrder {
        self.last.merge_order()
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        let first = self.first.iter().map(|kernel| kernel.memory_bytes(accelerators));
        first.chain([self.last.memory_bytes(accelerators)]).fold(0, u64::saturating_add)
    }

    fn part(&self, accelerators: usize) -> L::Part {
        self.last.part(accelerators)
    }

    fn block(
        &self,
        unit: &Unit<'_, L::Header>,
        block: Block<'_>,
        part: &mut L::Part,
    ) -> Result<(), KernelError> {
        let Block { before, data, after, out } = block;
        // Else the block went through the transforms in an earlier call.
        let first = if out.goes_on_from().is_none() { self.first.len() } else { 0 };
        for stage in 0..first {
            let (before, data, after) = (&mut *before, &mut *data, &mut *after);
            self.early_stage(stage, unit, Block { before, data, after, out: Out::default() })?;
        }
        self.last_stage(unit, Block { before, data, after, out }, part)
    }

    fn stages(&self) -> usize {
        self.first.len() + 1
    }

    fn early_stage(
        &self,
        stage: usize,
        unit: &Unit<'_, L::Header>,
        block: Block<'_>,
    ) -> Result<(), KernelError> {
        let Some(kernel) = self.first.get(stage) else { return Ok(()) };
        let Block { before, data, after, .. } = block;
        let body = &Body { range: unit.body.range.clone(), header: () };
        let offset = unit.offset - before.len() as u64;
        let behind = unit.offset + data.len() as u64;
        for (offset, data) in [(offset, before), (unit.offset, data), (behind, after)] {
            if !data.is_empty() {
                let (before, after) = (&mut [][..], &mut [][..]);
                let block = Block { before, data, after, out: Out::default() };
                kernel.block(&Unit { index: unit.index, offset, body }, block, &mut ())?;
            }
        }
        Ok(())
    }

    fn last_stage(
        &self,
        unit: &Unit<'_, L::Header>,
        block: Block<'_>,
        part: &mut L::Part,
    ) -> Result<(), KernelError> {
        let Block { before, data, after, out } = block;
        // Rounded up for the transforms: the last one sees what it asked for.
        let cut = self.last.cut(&unit.body.header);
        let seen = before.len().saturating_sub(cut.before_bytes);
        let until = after.len().min(cut.after_bytes);
        let block = Block { before: &mut before[seen..], data, after: &mut after[..until], out };
        self.last.block(unit, block, part)
    }

    fn merge(&self, part: &mut L::Part, later: L::Part) -> Result<(), KernelError> {
        self.last.merge(part, later)
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        let mut all = Vec::new();
        for kernel in &self.first {
            save_bytes(&kernel.parameters()?, &mut all);
        }
        save_bytes(&self.last.parameters()?, &mut all);
        Ok(all)
    }

    fn save(&self, part: &L::Part, out: &mut Vec<u8>) -> Result<(), KernelError> {
        self.last.save(part, out)
    }

    fn load(&self, saved: &[u8], accelerators: usize) -> Result<L::Part, KernelError> {
        self.last.load(saved, accelerators)
    }

    fn merge_saved(&self, part: &mut L::Part, later: &[u8]) -> Result<(), KernelError> {
        self.last.merge_saved(part, later)
    }

    fn save_beside(
        &self,
        part: &mut L::Part,
        out: &mut Vec<u8>,
        beside: &Beside,
    ) -> Result<(), KernelError> {
        self.last.save_beside(part, out, beside)
    }

    fn load_beside(
        &self,
        saved: &[u8],
        accelerators: usize,
        beside: &Beside,
    ) -> Result<L::Part, KernelError> {
        self.last.load_beside(saved, accelerators, beside)
    }
}

/// The least one; a length that no block can have if there is none.
fn common_multiple(a: usize, b: usize) -> usize {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).saturating_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_least_common_multiple_is_one_and_the_least(a in 1_usize..200, b in 1_usize..200) {
            let least = (1..=a * b).find(|n| n.is_multiple_of(a) && n.is_multiple_of(b));
            prop_assert_eq!(Some(common_multiple(a, b)), least);
        }
    }
}
