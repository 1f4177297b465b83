//! `identity`: touches nothing; what remains is the cost of moving the data.

use stream::{Block, Effect, Kernel, KernelError, Unit};

/// A transform whose output is its input.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity;

impl Kernel for Identity {
    type Part = ();
    type Header = ();

    fn name(&self) -> &str {
        "identity"
    }

    fn effect(&self) -> Effect {
        Effect::Transform
    }

    fn part(&self, _accelerators: usize) {}

    fn block(&self, _: &Unit<'_>, _: Block<'_>, _: &mut ()) -> Result<(), KernelError> {
        Ok(())
    }

    fn merge(&self, _: &mut (), _: ()) -> Result<(), KernelError> {
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(Vec::new())
    }
}
