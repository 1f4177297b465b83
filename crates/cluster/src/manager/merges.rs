//! The results of a job that wait to be put together.

use std::collections::{BTreeMap, VecDeque};

use crate::tree::{Span, Tree, parent};

/// How the results of a job become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merging {
    /// Not at all: they are empty, as a transform's.
    Nothing,
    /// As they come: the kernel says that its merge is associative, commutative and exact.
    AnyOrder,
    /// As siblings of the fixed tree, one merge at a time: the result has the
    /// same bits whatever the nodes, their number and their speed were.
    AlongTree,
}

/// Two neighbours, or any two, to be made one.
#[derive(Debug)]
pub(crate) struct Pair<R> {
    /// What they are the halves of, along the tree.
    pub(crate) span: Option<Span>,
    pub(crate) into: R,
    pub(crate) from: R,
}

#[derive(Debug)]
pub(crate) struct Merges<R> {
    merging: Merging,
    tree: Tree,
    /// [`Merging::AnyOrder`]: what was merged most stands first, since what is small is merged into it.
    loose: VecDeque<R>,
    /// [`Merging::AlongTree`]: by first unit; their siblings are not whole, or wait as well.
    held: BTreeMap<u64, (u8, R)>,
    /// Parents of two that are held.
    ready: VecDeque<Span>,
    running: usize,
}

impl<R> Merges<R> {
    pub(crate) fn new(merging: Merging, tree: Tree) -> Self {
        let (loose, held) = (VecDeque::new(), BTreeMap::new());
        Self { merging, tree, loose, held, ready: VecDeque::new(), running: 0 }
    }

    /// Results that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.loose.len() + self.held.len()
    }

    /// The same.
    pub(crate) fn results(&self) -> impl Iterator<Item = &R> {
        self.loose.iter().chain(self.held.values().map(|(_, result)| result))
    }

    /// Merges under way.
    pub(crate) fn running(&self) -> usize {
        self.running
    }

    /// Takes the result of a lease; gives it back if it is of no use.
    pub(crate) fn add(&mut self, span: Span, result: R) -> Option<R> {
        match self.merging {
            Merging::Nothing => return Some(result),
            Merging::AnyOrder => self.loose.push_back(result),
            Merging::AlongTree => self.hold(span, result),
        }
        None
    }

    fn hold(&mut self, span: Span, result: R) {
        let span = self.tree.top(span);
        self.held.insert(span.first, (span.level, result));
        let Some(sibling) = self.tree.sibling(span) else { return };
        if self.held.get(&sibling.first).is_some_and(|(level, _)| *level == sibling.level) {
            self.ready.push_back(parent(span));
        }
    }

    /// Starts a merge, while fewer than `most` are under way.
    pub(crate) fn start(&mut self, most: usize) -> Option<Pair<R>> {
        let most = if self.merging == Merging::AlongTree { 1 } else { most.max(1) };
        if self.running >= most {
            return None;
        }
        let pair = self.pair()?;
        self.running += 1;
        Some(pair)
    }

    fn pair(&mut self) -> Option<Pair<R>> {
        if let Some(span) = self.ready.pop_front() {
            let (left, right) = self.tree.halves(span)?;
            let (_, into) = self.held.remove(&left.first)?;
            let (_, from) = self.held.remove(&right?.first)?;
            return Some(Pair { span: Some(span), into, from });
        }
        if self.loose.len() < 2 {
            return None;
        }
        let (into, from) = (self.loose.pop_front()?, self.loose.pop_front()?);
        Some(Pair { span: None, into, from })
    }

    /// Takes what a pair came to.
    pub(crate) fn merged(&mut self, span: Option<Span>, result: R) {
        self.running -= 1;
        match span {
            Some(span) => self.hold(span, result),
            None => self.loose.push_front(result),
        }
    }

    /// All that is held: one result of a job whose units and merges are done.
    pub(crate) fn into_results(self) -> impl Iterator<Item = R> {
        let held = self.held.into_values().map(|(_, result)| result);
        self.loose.into_iter().chain(held)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;
    use crate::manager::pool::Pool;
    use stream::Fold;

    fn merge(left: String, right: String) -> Result<String, Infallible> {
        Ok(format!("({left} {right})"))
    }

    fn folded(first: u64, units: u64) -> String {
        let mut fold = Fold::default();
        for unit in first..first + units {
            fold.push(unit.to_string(), merge).unwrap();
        }
        fold.end(merge).unwrap().unwrap()
    }

    proptest! {
        #[test]
        fn whatever_the_leases_and_their_order_the_tree_is_the_same(
            units in 1_u64..300,
            levels in prop::collection::vec(0_u8..6, 1..20),
            order in any::<u64>(),
        ) {
            let tree = Tree::new(units).unwrap();
            let mut pool = Pool::new(tree);
            let mut leases = Vec::new();
            for level in levels.iter().cycle() {
                let Some((span, _)) = pool.take(*level, |_| true) else { break };
                leases.push(span);
            }
            let shuffled = |span: &Span| (span.first ^ order).wrapping_mul(order | 1);
            leases.sort_by_key(shuffled);
            let mut merges = Merges::new(Merging::AlongTree, tree);
            for (done, span) in leases.iter().enumerate() {
                merges.add(*span, folded(span.first, tree.units(*span)));
                while let Some(pair) = merges.start(9) {
                    prop_assert!(merges.start(9).is_none(), "one at a time");
                    merges.merged(pair.span, merge(pair.into, pair.from).unwrap());
                }
                let holes = leases.len() - done - 1;
                prop_assert!(merges.waiting() <= (holes * usize::from(tree.levels())).max(1));
            }
            let results: Vec<_> = merges.into_results().collect();
            prop_assert_eq!(results, [folded(0, units)]);
        }
    }
}
