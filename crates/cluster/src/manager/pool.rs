//! The units of a job that nobody has.

use std::collections::BTreeMap;

use crate::NodeId;
use crate::tree::{Span, Tree, parent};

/// What befell a span before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tries {
    /// Nodes on which it failed, or what it was split off.
    pub(crate) failed_on: Vec<NodeId>,
    /// How often its only unit failed.
    pub(crate) failed: usize,
    /// Holders of it, or of what it was split off, that were lost.
    pub(crate) lost: u32,
}

impl Tries {
    /// It failed on a node.
    pub(crate) fn avoid(&mut self, node: NodeId) {
        if !self.failed_on.contains(&node) {
            self.failed_on.push(node);
        }
    }
}

/// Spans that do not overlap, by their first unit.
#[derive(Debug)]
pub(crate) struct Pool {
    tree: Tree,
    /// Never begun.
    fresh: BTreeMap<u64, u8>,
    /// Given in vain. They come first.
    again: BTreeMap<u64, (u8, Tries)>,
    units: u64,
}

impl Pool {
    /// All units.
    pub(crate) fn new(tree: Tree) -> Self {
        let root = tree.root();
        let units = root.map_or(0, |root| tree.units(root));
        let fresh = root.into_iter().map(|root| (root.first, root.level)).collect();
        Self { tree, fresh, again: BTreeMap::new(), units }
    }

    /// Units in it.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// Whether some were given in vain.
    pub(crate) fn was_given(&self) -> bool {
        !self.again.is_empty()
    }

    pub(crate) fn spans(&self) -> usize {
        self.fresh.len() + self.again.len()
    }

    /// Takes a span of `level`, or what comes next to that: one that was given
    /// before and `may` be given again, else one that is large enough, else the largest.
    pub(crate) fn take(
        &mut self,
        level: u8,
        may: impl Fn(&Tries) -> bool,
    ) -> Option<(Span, Option<Tries>)> {
        if let Some((first, level_of, tries)) = self.given_before(may) {
            self.again.remove(&first);
            let span = self.cut(Span { first, level: level_of }, level, |pool, rest| {
                pool.again.insert(rest.first, (rest.level, tries.clone()));
            });
            return Some((span, Some(tries)));
        }
        // Of siblings cut off earlier there is one per level, beside what is done already and what
        // was left to others, so few are looked at.
        let fits = self.fresh.iter().find(|(_, of)| **of >= level);
        let largest = || self.fresh.iter().max_by(|a, b| a.1.cmp(b.1).then(b.0.cmp(a.0)));
        let (&first, &level_of) = fits.or_else(largest)?;
        self.fresh.remove(&first);
        let span = self.cut(Span { first, level: level_of }, level, |pool, rest| {
            pool.fresh.insert(rest.first, rest.level);
        });
        Some((span, None))
    }

    fn given_before(&self, may: impl Fn(&Tries) -> bool) -> Option<(u64, u8, Tries)> {
        let (first, (level, tries)) = self.again.iter().find(|(_, (_, tries))| may(tries))?;
        Some((*first, *level, tries.clone()))
    }

    /// The left end of `span`, no higher than `level`; the rest is kept.
    fn cut(&mut self, mut span: Span, level: u8, keep: impl Fn(&mut Self, Span)) -> Span {
        while span.level > level
            && let Some((left, right)) = self.tree.halves(span)
        {
            if let Some(right) = right {
                keep(self, right);
            }
            span = left;
        }
        self.units -= self.tree.units(span);
        span
    }

    /// Takes these spans, if all of them were never given.
    pub(crate) fn take_done(&mut self, spans: &[Span]) -> bool {
        let before = (self.fresh.clone(), self.units);
        let taken = spans.iter().all(|span| self.take_one_done(*span));
        if !taken {
            (self.fresh, self.units) = before;
        }
        taken
    }

    fn take_one_done(&mut self, span: Span) -> bool {
        let mut over = span;
        while self.fresh.get(&over.first) != Some(&over.level) {
            if over.level >= self.tree.levels() {
                return false;
            }
            over = parent(over);
        }
        self.fresh.remove(&over.first);
        while over.level > span.level
            && let Some((left, right)) = self.tree.halves(over)
        {
            let is_left = right.is_none_or(|right| span.first < right.first);
            let (with, without) = if is_left { (Some(left), right) } else { (right, Some(left)) };
            self.fresh.extend(without.map(|without| (without.first, without.level)));
            over = with.unwrap_or(left);
        }
        self.units -= self.tree.units(span);
        true
    }

    /// Puts back what was taken, which nobody began.
    pub(crate) fn recall(&mut self, span: Span, tries: Tries) {
        self.units += self.tree.units(span);
        if tries == Tries::default() {
            self.fresh.insert(span.first, span.level);
        } else {
            self.again.insert(span.first, (span.level, tries));
        }
    }

    /// Puts the halves of what was taken back.
    pub(crate) fn put_back(&mut self, span: Span, tries: Tries) {
        self.units += self.tree.units(span);
        match self.tree.halves(span) {
            None => {
                self.again.insert(span.first, (span.level, tries));
            }
            Some((left, right)) => {
                for half in right.into_iter().chain([left]) {
                    self.again.insert(half.first, (half.level, tries.clone()));
                }
            }
        }
    }

    /// Puts back what was taken: `unit` of it by itself, since it failed on `node`.
    pub(crate) fn put_back_failed(
        &mut self,
        mut span: Span,
        unit: u64,
        tries: Tries,
        node: NodeId,
    ) {
        self.units += self.tree.units(span);
        while let Some((left, right)) = self.tree.halves(span) {
            let Some(right) = right else {
                span = left;
                continue;
            };
            let (with, without) = if unit < right.first { (left, right) } else { (right, left) };
            self.again.insert(without.first, (without.level, tries.clone()));
            span = with;
        }
        let mut tries = tries;
        tries.failed += 1;
        tries.avoid(node);
        self.again.insert(span.first, (span.level, tries));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Take(u8),
        Done(u64),
        PutBack(usize),
        Recall(usize),
        Failed(usize, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_u8..8).prop_map(Step::Take),
            1 => any::<u64>().prop_map(Step::Done),
            1 => any::<usize>().prop_map(Step::PutBack),
            1 => any::<usize>().prop_map(Step::Recall),
            1 => any::<(usize, u64)>().prop_map(|(which, unit)| Step::Failed(which, unit)),
        ]
    }

    proptest! {
        #[test]
        fn each_unit_is_in_it_or_out_of_it(
            units in 0_u64..500,
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let tree = Tree::new(units).unwrap();
            let (mut pool, mut out) = (Pool::new(tree), Vec::new());
            let (mut recorded, mut recalled) = (0, 0);
            for step in steps {
                match step {
                    Step::Take(level) => {
                        let taken = pool.take(level, |_| true);
                        prop_assert!(taken.as_ref().is_none_or(|(span, _)| span.level <= level));
                        out.extend(taken);
                    }
                    // Where nothing was put back: recorded units are taken before nodes come.
                    Step::Done(at) if units > 0 && recalled == 0 => {
                        let first = at % units;
                        let range = first..(first + 1 + at / 7 % 9).min(units);
                        let is_free = |unit: u64| {
                            let has = |(first, level): (&u64, &u8)| {
                                let of = Span { first: *first, level: *level };
                                (*first..*first + tree.units(of)).contains(&unit)
                            };
                            pool.fresh.iter().any(has)
                        };
                        let all = range.clone().all(is_free);
                        let spans = tree.cover(&range).unwrap();
                        let done = pool.take_done(&spans);
                        prop_assert_eq!(done, all);
                        if done {
                            recorded += spans.len();
                            out.extend(spans.into_iter().map(|span| (span, None)));
                        }
                    }
                    Step::PutBack(which) if !out.is_empty() => {
                        let (span, tries) = out.swap_remove(which % out.len());
                        pool.put_back(span, tries.unwrap_or_default());
                    }
                    Step::Recall(which) if !out.is_empty() => {
                        let (span, tries) = out.swap_remove(which % out.len());
                        pool.recall(span, tries.unwrap_or_default());
                        recalled += 1;
                    }
                    Step::Failed(which, unit) if !out.is_empty() => {
                        let (span, tries) = out.swap_remove(which % out.len());
                        let unit = span.first + unit % tree.units(span);
                        pool.put_back_failed(span, unit, tries.unwrap_or_default(), NodeId(1));
                        prop_assert!(pool.again[&unit].1.failed_on.contains(&NodeId(1)));
                    }
                    _ => {}
                }
                let given = pool.again.iter().map(|(first, (level, _))| (*first, *level));
                let fresh = pool.fresh.iter().map(|(first, level)| (*first, *level));
                let free = fresh.chain(given).map(|(first, level)| Span { first, level });
                let mut seen: Vec<_> = free.map(|span| (span.first, tree.units(span))).collect();
                prop_assert_eq!(seen.iter().map(|(_, units)| units).sum::<u64>(), pool.units());
                seen.extend(out.iter().map(|(span, _)| (span.first, tree.units(*span))));
                seen.sort_unstable();
                let mut next = 0;
                for (first, units) in seen {
                    prop_assert_eq!(first, next);
                    prop_assert!(units > 0);
                    next += units;
                }
                prop_assert_eq!(next, units);
                let levels = usize::from(tree.levels());
                prop_assert!(pool.fresh.len() <= (2 + recorded + recalled) * levels + 1);
            }
        }
    }
}
