//! Puts the parts of units together along the tree.

/// The parts of a lease's units, merged in the order of the fixed tree: a node
/// makes its result with it, so that the manager, which goes on along the same
/// tree, comes to the same bits whatever the leases were. At most one part per
/// level is held.
#[derive(Clone, Debug)]
pub struct Fold<P> {
    /// Of levels that fall from bottom to top.
    parts: Vec<(u32, P)>,
}

impl<P> Default for Fold<P> {
    fn default() -> Self {
        Self { parts: Vec::new() }
    }
}

impl<P> Fold<P> {
    /// Takes the part of the next unit; `merge` makes one of two neighbours.
    ///
    /// # Errors
    /// Those of `merge`; the fold is of no more use then.
    pub fn push<E>(&mut self, part: P, merge: impl FnMut(P, P) -> Result<P, E>) -> Result<(), E> {
        self.push_all(0, part, merge)
    }

    /// Takes the part of the next `2^level` units, at whose multiple the next unit
    /// is, as a fold over them made it.
    ///
    /// # Errors
    /// As [`Fold::push`].
    pub fn push_all<E>(
        &mut self,
        mut level: u32,
        mut part: P,
        mut merge: impl FnMut(P, P) -> Result<P, E>,
    ) -> Result<(), E> {
        while let Some((_, left)) = self.parts.pop_if(|(left, _)| *left == level) {
            part = merge(left, part)?;
            level += 1;
        }
        self.parts.push((level, part));
        Ok(())
    }

    /// The part of all units; `None` of none.
    ///
    /// # Errors
    /// Those of `merge`.
    pub fn end<E>(mut self, mut merge: impl FnMut(P, P) -> Result<P, E>) -> Result<Option<P>, E> {
        let Some((_, mut part)) = self.parts.pop() else { return Ok(None) };
        while let Some((_, left)) = self.parts.pop() {
            part = merge(left, part)?;
        }
        Ok(Some(part))
    }
}
