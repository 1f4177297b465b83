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
    pub fn push<E>(
        &mut self,
        mut part: P,
        mut merge: impl FnMut(P, P) -> Result<P, E>,
    ) -> Result<(), E> {
        let mut level = 0;
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;
    use crate::tree::{Span, Tree};

    /// With units numbered from `first`.
    fn by_tree(tree: Tree, span: Span, first: u64) -> String {
        match tree.halves(span) {
            None => (span.first - first).to_string(),
            Some((left, None)) => by_tree(tree, left, first),
            Some((left, Some(right))) => {
                format!("({} {})", by_tree(tree, left, first), by_tree(tree, right, first))
            }
        }
    }

    fn folded(units: u64) -> Option<String> {
        let mut fold = Fold::default();
        for unit in 0..units {
            fold.push(unit.to_string(), merge).unwrap();
        }
        fold.end(merge).unwrap()
    }

    fn merge(left: String, right: String) -> Result<String, Infallible> {
        Ok(format!("({left} {right})"))
    }

    proptest! {
        #[test]
        fn the_units_of_a_span_are_merged_along_the_tree(units in 1_u64..300, turns in any::<u16>()) {
            let tree = Tree::new(units).unwrap();
            let mut span = tree.root().unwrap();
            for turn in 0..u16::from(tree.levels()) {
                // By themselves they are a whole tree: what one manager leases another divides.
                let (units, first) = (tree.units(span), span.first);
                prop_assert_eq!(folded(units), Some(by_tree(tree, span, first)));
                let (left, right) = tree.halves(span).unwrap();
                span = right.filter(|_| turns & (1 << turn) != 0).unwrap_or(left);
            }
        }
    }
}
