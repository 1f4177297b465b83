//! The fixed binary tree over the units of a job. Unit `u` is the leaf `u`; a
//! node of level `l` has the 2^l units from a multiple of 2^l on, fewer at the
//! right end. Where a right child would be empty there is none, and its parent
//! has the left child's result.

use std::ops::Range;

/// The most units of a job.
pub const UNITS_MAX: u64 = 1 << 62;

/// A node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) level: u8,
}

/// A tree over units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    units: u64,
    levels: u8,
}

impl Tree {
    /// `None` over more than [`UNITS_MAX`].
    pub(crate) fn new(units: u64) -> Option<Self> {
        let levels = units.checked_next_power_of_two()?.trailing_zeros() as u8;
        (units <= UNITS_MAX).then_some(Self { units, levels })
    }

    /// Levels of parents: 0 over one unit.
    pub(crate) fn levels(self) -> u8 {
        self.levels
    }

    /// All units, if there are any.
    pub(crate) fn root(self) -> Option<Span> {
        (self.units > 0).then_some(Span { first: 0, level: self.levels })
    }

    /// The fewest spans of these units, in their order; `None` if they are not all in the tree.
    pub(crate) fn cover(self, units: &Range<u64>) -> Option<Vec<Span>> {
        let (mut first, mut spans) = (units.start, Vec::new());
        if units.is_empty() || units.end > self.units {
            return None;
        }
        while first < units.end {
            let mut span = Span { first, level: 0 };
            while span.level < self.levels
                && parent(span).first == first
                && self.units(parent(span)) <= units.end - first
            {
                span = parent(span);
            }
            spans.push(span);
            first += self.units(span);
        }
        Some(spans)
    }

    /// How many units `span` has.
    pub(crate) fn units(self, span: Span) -> u64 {
        (1 << span.level).min(self.units.saturating_sub(span.first))
    }

    /// The two halves of a span of more than one unit; the right one may be empty.
    pub(crate) fn halves(self, span: Span) -> Option<(Span, Option<Span>)> {
        let level = span.level.checked_sub(1)?;
        let right = Span { first: span.first + (1 << level), level };
        Some((Span { level, ..span }, (right.first < self.units).then_some(right)))
    }

    /// The highest span with the same units.
    pub(crate) fn top(self, mut span: Span) -> Span {
        while span.level < self.levels && self.sibling(span).is_none() {
            span = parent(span);
        }
        span
    }

    /// The other child of its parent, if that has units.
    pub(crate) fn sibling(self, span: Span) -> Option<Span> {
        let first = span.first ^ (1 << span.level);
        (span.level < self.levels && first < self.units).then_some(Span { first, ..span })
    }
}

/// The span that has `span` and its sibling.
pub(crate) fn parent(span: Span) -> Span {
    Span { first: span.first & !(1 << span.level), level: span.level + 1 }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;
    use stream::Fold;

    use super::*;

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

    #[test]
    fn ends() {
        assert_eq!(Tree::new(0).unwrap().root(), None);
        assert_eq!(Tree::new(1).unwrap().root(), Some(Span { first: 0, level: 0 }));
        let most = Tree::new(UNITS_MAX).unwrap();
        assert_eq!(most.units(most.root().unwrap()), UNITS_MAX);
        assert!(Tree::new(UNITS_MAX + 1).is_none());
        assert!(Tree::new(u64::MAX).is_none());
    }

    proptest! {
        #[test]
        fn halves_have_the_same_units_and_siblings_meet(units in 1_u64..2000) {
            let tree = Tree::new(units).unwrap();
            let (mut open, mut leaves) = (vec![tree.root().unwrap()], Vec::new());
            while let Some(span) = open.pop() {
                prop_assert_eq!(tree.cover(&(span.first..span.first + tree.units(span))), Some(vec![tree.top(span)]));
                let Some((left, right)) = tree.halves(span) else {
                    leaves.push(span.first);
                    continue;
                };
                let of_right = right.map_or(0, |right| tree.units(right));
                prop_assert_eq!(tree.units(left) + of_right, tree.units(span));
                prop_assert_eq!(parent(left), span);
                prop_assert_eq!(tree.sibling(left), right);
                prop_assert_eq!(right.is_none(), tree.top(left) == tree.top(span));
                if let Some(right) = right {
                    prop_assert_eq!((tree.sibling(right), parent(right)), (Some(left), span));
                    open.push(right);
                }
                open.push(left);
            }
            prop_assert_eq!(leaves, (0..units).collect::<Vec<_>>());
        }

        #[test]
        fn spans_cover_any_units_and_no_two_are_one(
            units in 1_u64..300, first in 0_u64..310, len in 0_u64..310,
        ) {
            let tree = Tree::new(units).unwrap();
            let spans = tree.cover(&(first..first + len));
            prop_assert_eq!(spans.is_some(), len > 0 && first + len <= units);
            let mut next = first;
            for span in spans.iter().flatten() {
                prop_assert_eq!((span.first, tree.top(*span)), (next, *span));
                next += tree.units(*span);
            }
            prop_assert_eq!(next, if spans.is_some() { first + len } else { first });
            for pair in spans.iter().flat_map(|spans| spans.windows(2)) {
                prop_assert!(tree.sibling(pair[0]) != Some(pair[1]), "{:?}", pair);
            }
        }

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
