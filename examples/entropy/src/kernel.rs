//! A kernel: a function over a block. Cellway owns the loop around it.

use cellway::{Block, Effect, Kernel, KernelError, Unit};

/// How often each byte occurs.
pub(crate) type Counts = [u64; 256];

/// Counts bytes.
pub(crate) struct CountBytes;

impl Kernel for CountBytes {
    type Part = Counts;
    type Header = ();

    fn name(&self) -> &str {
        "count-bytes"
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn part(&self, _accelerators: usize) -> Counts {
        [0; 256]
    }

    fn block(
        &self,
        _: &Unit<'_>,
        block: Block<'_>,
        counts: &mut Counts,
    ) -> Result<(), KernelError> {
        block.data.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        Ok(())
    }

    fn merge(&self, counts: &mut Counts, later: Counts) -> Result<(), KernelError> {
        counts.iter_mut().zip(later).for_each(|(count, more)| *count += more);
        Ok(())
    }
}
