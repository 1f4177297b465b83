//! Which units and which bytes of many inputs are of which one.

use std::ops::Range;

/// Which units are of which input: as many as its bytes would make, of which a header may leave
/// the last ones empty. Their bytes, where they are sent, lie one after the other too: those of
/// all inputs together have offsets of their own.
#[derive(Debug)]
pub(crate) struct Units {
    unit_bytes: u64,
    /// By input, the number behind its last unit,
    ends: Vec<u64>,
    /// and the offset behind its last byte among those of all.
    ends_bytes: Vec<u64>,
}

/// What one input has of a range: from `ends`, by input.
fn own(ends: &[u64], input: usize) -> Range<u64> {
    let before = input.checked_sub(1).and_then(|before| ends.get(before));
    before.copied().unwrap_or(0)..ends.get(input).copied().unwrap_or(0)
}

/// The inputs of `range`, and what it is among what is their own.
fn inputs(ends: &[u64], range: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
    let first = ends.partition_point(|end| *end <= range.start);
    let all = (first..ends.len()).map(|input| (input, own(ends, input)));
    let until = range.end;
    all.take_while(move |(_, own)| own.start < until).filter_map(move |(input, own)| {
        let (from, to) = (range.start.max(own.start), range.end.min(own.end));
        (from < to).then(|| (input, from - own.start..to - own.start))
    })
}

impl Units {
    /// Of inputs with these lengths in bytes.
    pub(crate) fn new(lens: impl IntoIterator<Item = u64>, unit_bytes: u64) -> Self {
        let (mut all, mut all_bytes) = (0_u64, 0_u64);
        let ends = lens.into_iter().map(|len| {
            all = all.saturating_add(len.div_ceil(unit_bytes.max(1)));
            all_bytes = all_bytes.saturating_add(len);
            (all, all_bytes)
        });
        let (ends, ends_bytes) = ends.unzip();
        Self { unit_bytes, ends, ends_bytes }
    }

    pub(crate) fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    pub(crate) fn count(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The units of an input among those of all.
    pub(super) fn of(&self, input: usize) -> Range<u64> {
        own(&self.ends, input)
    }

    /// Its bytes among those of all.
    pub(super) fn bytes_of(&self, input: usize) -> Range<u64> {
        own(&self.ends_bytes, input)
    }

    /// The inputs of some units, and which of their own those are.
    pub(super) fn inputs(&self, units: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        inputs(&self.ends, units)
    }

    /// The inputs of some bytes among those of all, and which of their own those are.
    pub(super) fn inputs_of_bytes(
        &self,
        bytes: Range<u64>,
    ) -> impl Iterator<Item = (usize, Range<u64>)> {
        inputs(&self.ends_bytes, bytes)
    }

    /// The bytes of some units, and so many before and after them that are of the same inputs
    /// as the first and the last one.
    pub(crate) fn bytes(&self, units: Range<u64>, (before, after): (u64, u64)) -> Range<u64> {
        if units.is_empty() || units.end > self.count() {
            return 0..0;
        }
        let first = self.ends.partition_point(|end| *end <= units.start);
        let last = self.ends.partition_point(|end| *end < units.end);
        let at = |input: usize, unit: u64| {
            let (own, bytes) = (self.of(input), self.bytes_of(input));
            let within = unit.saturating_sub(own.start).saturating_mul(self.unit_bytes);
            (bytes.start.saturating_add(within).min(bytes.end), bytes)
        };
        let ((start, of_first), (end, of_last)) = (at(first, units.start), at(last, units.end));
        let start = start.saturating_sub(before).max(of_first.start);
        start..end.saturating_add(after).min(of_last.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_run_from_input_to_input() {
        let units = Units::new([21, 0, 3, 50], 10);
        let found = |range| units.inputs(range).collect::<Vec<_>>();
        assert_eq!(units.count(), 9);
        assert_eq!(found(0..9), [(0, 0..3), (2, 0..1), (3, 0..5)]);
        assert_eq!(found(2..4), [(0, 2..3), (2, 0..1)]);
        assert_eq!(found(4..8), [(3, 0..4)]);
        assert_eq!(found(8..9), [(3, 4..5)]);
    }

    #[test]
    fn bytes_around_units_are_of_the_same_input() {
        let units = Units::new([21, 0, 3, 50], 10);
        let found = |range| units.bytes(range, (7, 100));
        assert_eq!(found(0..1), 0..21);
        assert_eq!(found(1..2), 3..21);
        assert_eq!(found(2..3), 13..21);
        assert_eq!(found(3..4), 21..24);
        assert_eq!(found(2..4), 13..24);
        assert_eq!(found(4..5), 24..74);
        assert_eq!(found(3..5), 21..74);
        assert_eq!(units.bytes(3..5, (7, 2)), 21..36);
        assert_eq!(units.bytes(5..6, (7, 2)), 27..46);
        // None of theirs.
        assert_eq!(units.bytes(9..10, (7, 2)), 0..0);
        assert_eq!(Units::new([], 10).bytes(0..1, (1, 1)), 0..0);
    }

    proptest! {
        #[test]
        fn all_bytes_of_units_are_found_in_their_inputs(
            lens in prop::collection::vec(0..40_u64, 0..9), unit_bytes in 1..30_u64,
            at in any::<prop::sample::Index>(), many in 1..9_u64,
        ) {
            let units = Units::new(lens.iter().copied(), unit_bytes);
            prop_assume!(units.count() > 0);
            let first = at.index(units.count() as usize) as u64;
            let range = first..(first + many).min(units.count());
            let of_units = units.inputs(range.clone()).map(|(input, own)| {
                let [from, to] = [own.start, own.end].map(|at| (at * unit_bytes).min(lens[input]));
                (input, from..to)
            });
            let bytes = units.bytes(range, (0, 0));
            let found = units.inputs_of_bytes(bytes).collect::<Vec<_>>();
            prop_assert_eq!(of_units.collect::<Vec<_>>(), found);
        }
    }
}
