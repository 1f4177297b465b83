//! What was done is kept in a journal, for a manager that comes after this one was killed.
//!
//! A record is all results that there are at one moment, each with the units it is of: none
//! is merged then. Blocks that nodes put by then are brought to the disk by each node that
//! brought results since the record before, also by one that was fenced meanwhile, for it may
//! live; only then is the record written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::mpsc::{self, Sender};
use std::thread::Scope;
use std::time::{Duration, Instant};

use stream::{JournalError, Piece, Pieces};

use super::{Bring, Brought, caught};
use crate::task::Task;
use crate::{JobId, NodeId};

/// Units in their order; neighbours are one range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Units(Vec<Range<u64>>);

impl Units {
    pub(super) fn ranges(&self) -> &[Range<u64>] {
        &self.0
    }

    /// Adds some that are not in it.
    pub(super) fn add(&mut self, mut units: Range<u64>) {
        let mut at = self.0.partition_point(|range| range.start < units.start);
        if self.0.get(at).is_some_and(|next| next.start == units.end) {
            units.end = self.0.remove(at).end;
        }
        if at > 0 && self.0[at - 1].end == units.start {
            at -= 1;
            units.start = self.0.remove(at).start;
        }
        self.0.insert(at, units);
    }

    pub(super) fn add_all(&mut self, others: Self) {
        others.0.into_iter().for_each(|units| self.add(units));
    }
}

impl FromIterator<Range<u64>> for Units {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut units = Self::default();
        ranges.into_iter().for_each(|range| units.add(range));
        units
    }
}

/// Who is to say that what it put is on the disk. One that is no member any more may only have
/// been stopped: it is awaited until the transport knows that it is gone, or for so long.
#[derive(Debug, Default)]
pub(super) struct Awaited(BTreeMap<NodeId, Option<Duration>>);

impl Awaited {
    /// Awaits that one too; false if it did already.
    fn add(&mut self, node: NodeId) -> bool {
        let is_new = !self.0.contains_key(&node);
        self.0.entry(node).or_default();
        is_new
    }

    fn contains(&self, node: NodeId) -> bool {
        self.0.contains_key(&node)
    }

    /// It said so, or never will.
    pub(super) fn remove(&mut self, node: NodeId) {
        self.0.remove(&node);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.0.keys().copied()
    }

    /// Those of them that are members.
    fn members(&self) -> Vec<NodeId> {
        let are = self.0.iter().filter(|(_, absent)| absent.is_none());
        are.map(|(node, _)| *node).collect()
    }

    /// Gives those up that have been no members for `absent_max`.
    pub(super) fn give_up(
        &mut self,
        now: Duration,
        absent_max: Duration,
        is_member: impl Fn(NodeId) -> bool,
    ) -> Vec<NodeId> {
        for (node, absent) in &mut self.0 {
            *absent = if is_member(*node) { None } else { absent.or(Some(now)) };
        }
        let is_over = |_: &NodeId, absent: &mut Option<Duration>| {
            absent.is_some_and(|since| now.saturating_sub(since) >= absent_max)
        };
        self.0.extract_if(.., is_over).map(|(node, _)| node).collect()
    }
}

impl FromIterator<NodeId> for Awaited {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        Self(nodes.into_iter().map(|node| (node, None)).collect())
    }
}

#[derive(Debug)]
enum Stage {
    /// Until the next record is due.
    Rests,
    /// No merge is begun; one may be under way.
    Quiets,
    /// These nodes are to say that what they put is on the disk.
    Settles(Vec<Piece>, Awaited),
    /// The record is written.
    Records,
    /// There is nothing more to record.
    Ended,
}

/// Who has not settled by then is not waited for: no disk takes so long.
const SETTLE_MAX: Duration = Duration::from_secs(600);

/// How long no record is tried after one that could not be made.
const PASSED_OVER: Duration = Duration::from_secs(30);

pub(super) struct Keep {
    stage: Stage,
    due: Duration,
    /// Whether blocks go to an output: then the last record is made when all is done.
    writes: bool,
    /// All is done, and whether the record under way tells so.
    wants_last: bool,
    is_last: bool,
    /// Whether there is something that no record tells of.
    is_new: bool,
    /// Nodes that brought results since they were last asked to settle.
    returned: BTreeSet<NodeId>,
    /// How often they were asked.
    number: u64,
    /// When they were asked first, for the record under way.
    asked: Option<Duration>,
    /// How long to wait before they are asked again.
    patience: Duration,
    /// How long one is awaited that is no member.
    absent_max: Duration,
    /// Of jobs whose results are empty.
    done: BTreeMap<JobId, Units>,
    records: Sender<Vec<Piece>>,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing.
    None,
    /// Tell what there is ([`Keep::snapshot`]); then merges may be begun again.
    Snapshot,
    /// Ask these nodes to settle, by that number.
    Ask(Vec<NodeId>, u64),
    /// These have not, for so long.
    Late(Vec<NodeId>, Duration),
}

impl Keep {
    /// Goes on with what was recorded, which it gives back.
    pub(super) fn new<'scope, 'env>(
        tasks: &'env [&'env dyn Task],
        mut pieces: Pieces<'env>,
        (patience, absent_max): (Duration, Duration),
        bring: Bring,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Result<(Self, Vec<Piece>), JournalError> {
        let done = pieces.done()?;
        for Piece { job, units, part } in &done {
            let of = tasks.get(usize::try_from(*job).unwrap_or(usize::MAX));
            let known = of.map_or(0, |task| task.spec().units);
            if units.iter().any(|units| units.is_empty() || units.end > known) {
                return Err(pieces.unfit("it tells of units that this run has not"));
            }
            if let Some(task) = of {
                task.recorded(units, part).map_err(|why| pieces.unfit(&why))?;
            }
        }
        let due = pieces.due().saturating_duration_since(Instant::now());
        let (records, to_record) = mpsc::channel::<Vec<Piece>>();
        scope.spawn(move || {
            for done in to_record {
                let recorded = caught("a journal", || {
                    tasks.iter().try_for_each(|task| task.settle())?;
                    pieces.record(&done).map_err(|error| error.to_string())?;
                    Ok(pieces.due())
                });
                bring.bring(Brought::Recorded(recorded));
            }
        });
        let keep = Self {
            stage: Stage::Rests,
            due,
            writes: tasks.iter().any(|task| task.description().output.is_some()),
            wants_last: false,
            is_last: false,
            is_new: false,
            returned: BTreeSet::new(),
            number: 0,
            asked: None,
            patience,
            absent_max,
            done: BTreeMap::new(),
            records,
        };
        Ok((keep, done))
    }

    /// Whether merges are to wait.
    pub(super) fn holds_back(&self) -> bool {
        matches!(self.stage, Stage::Quiets)
    }

    /// Whether no record is to come that nodes are needed for.
    pub(super) fn lets_nodes_go(&self) -> bool {
        !self.writes || matches!(self.stage, Stage::Ended)
    }

    /// A node brought the result of these.
    pub(super) fn returned(&mut self, node: NodeId) {
        self.is_new = true;
        self.returned.insert(node);
    }

    /// A node comes, or is to come from a manager that is lost. What it put before may not be
    /// on the disk: another told of it, or it was given up.
    pub(super) fn joined(&mut self, node: NodeId) {
        match &mut self.stage {
            Stage::Settles(_, awaited) if self.writes => {
                if awaited.add(node) {
                    self.due = Duration::ZERO;
                }
            }
            _ => {
                self.returned.insert(node);
            }
        }
    }

    /// A node is gone for good.
    pub(super) fn gone(&mut self, node: NodeId) {
        self.returned.remove(&node);
        self.settled(node);
    }

    /// Units of a job whose results are empty are done.
    pub(super) fn done(&mut self, job: JobId, units: Units) {
        self.done.entry(job).or_default().add_all(units);
    }

    /// All jobs are over.
    pub(super) fn all_done(&mut self) {
        match self.writes {
            true => self.wants_last = true,
            // Of a reduction only its result is left to do, which no journal holds.
            false => self.stage = Stage::Ended,
        }
    }

    /// A job has failed: what was recorded before is what another goes on with.
    pub(super) fn give_up(&mut self) {
        self.stage = Stage::Ended;
    }

    /// When there is something to be done though nothing happens.
    pub(super) fn due(&self) -> Option<Duration> {
        match self.stage {
            Stage::Rests if self.is_new => Some(self.due),
            Stage::Settles(..) => Some(self.due),
            _ => None,
        }
    }

    /// Whether that node is to say so of what it was asked for by that number.
    pub(super) fn awaits(&self, node: NodeId, number: u64) -> bool {
        let is_awaited = matches!(&self.stage, Stage::Settles(_, of) if of.contains(node));
        is_awaited && number == self.number
    }

    /// That node says that what it put before it was asked is on the disk.
    pub(super) fn settled(&mut self, node: NodeId) {
        if let Stage::Settles(_, awaited) = &mut self.stage {
            awaited.remove(node);
        }
    }

    /// A record is on the disk, and the next is due then.
    pub(super) fn recorded(&mut self, due: Duration) {
        if let Stage::Records = self.stage {
            self.stage = if self.is_last { Stage::Ended } else { Stage::Rests };
            self.due = due;
        }
    }

    /// What is next, with so many merges under way and these nodes members.
    pub(super) fn next(
        &mut self,
        now: Duration,
        merging: usize,
        is_member: impl Fn(NodeId) -> bool,
    ) -> Step {
        match &mut self.stage {
            Stage::Rests if self.wants_last || self.is_new && self.due <= now => {
                self.stage = Stage::Quiets;
                if merging == 0 { Step::Snapshot } else { Step::None }
            }
            Stage::Quiets if merging == 0 => Step::Snapshot,
            Stage::Settles(pieces, awaited) => {
                awaited.give_up(now, self.absent_max, is_member);
                if awaited.is_empty() {
                    // Its thread ends after this.
                    let _ = self.records.send(std::mem::take(pieces));
                    self.stage = Stage::Records;
                } else if let since = *self.asked.get_or_insert(now)
                    && let waited = now.saturating_sub(since)
                    && waited >= SETTLE_MAX
                    && let late = awaited.members()
                    && !late.is_empty()
                {
                    return Step::Late(late, waited);
                } else if self.due <= now {
                    self.due = now.saturating_add(self.patience);
                    return Step::Ask(awaited.nodes().collect(), self.number);
                }
                Step::None
            }
            _ => Step::None,
        }
    }

    /// What there is cannot be recorded, as where a part is larger than one that goes from node
    /// to node may be: perhaps later, in other pieces. False where the run cannot end without a record.
    pub(super) fn pass_over(&mut self, now: Duration) -> bool {
        self.stage = Stage::Rests;
        self.due = now.saturating_add(PASSED_OVER);
        !self.writes
    }

    /// All results that there are but the empty ones; what nodes put is to be brought to the disk.
    pub(super) fn snapshot(&mut self, mut pieces: Vec<Piece>) {
        pieces.extend(self.done.iter().map(|(job, units)| Piece {
            job: job.0,
            units: units.ranges().to_vec(),
            part: Vec::new(),
        }));
        let awaited = std::mem::take(&mut self.returned);
        let awaited = awaited.into_iter().filter(|_| self.writes).collect();
        self.number += 1;
        self.asked = None;
        (self.is_last, self.is_new) = (self.wants_last, false);
        (self.stage, self.due) = (Stage::Settles(pieces, awaited), Duration::ZERO);
    }
}

/// Brings what this process put to the disk, aside, for that may take long: once at a time,
/// and again for who asked meanwhile.
pub(super) struct Settler<'scope, 'env> {
    tasks: &'env [&'env dyn Task],
    bring: Bring,
    scope: &'scope Scope<'scope, 'env>,
    /// By which number it was asked for, and the last such.
    under_way: Option<(u64, u64)>,
}

impl<'scope, 'env> Settler<'scope, 'env> {
    pub(super) fn new(
        tasks: &'env [&'env dyn Task],
        bring: Bring,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Self {
        Self { tasks, bring, scope, under_way: None }
    }

    /// Then [`Brought::Settled`] comes, by the number of who asked.
    pub(super) fn settle(&mut self, number: u64) {
        match &mut self.under_way {
            Some((_, asked)) => *asked = number.max(*asked),
            None => self.begin(number),
        }
    }

    /// It has come.
    pub(super) fn settled(&mut self) {
        if let Some((begun, asked)) = self.under_way.take()
            && asked > begun
        {
            self.begin(asked);
        }
    }

    fn begin(&mut self, number: u64) {
        self.under_way = Some((number, number));
        let (tasks, bring) = (self.tasks, self.bring.clone());
        self.scope.spawn(move || {
            let settle = || tasks.iter().try_for_each(|task| task.settle());
            bring.bring(Brought::Settled(number, caught("an output", settle)));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_settles_at_a_time_and_the_last_asked_for_is_next() {
        let (to, brought) = mpsc::channel();
        std::thread::scope(|scope| {
            let bring = Bring { to, waker: Waker::noop().clone() };
            let mut settler = Settler::new(&[], bring, scope);
            for number in [1, 1, 2, 1, 3] {
                settler.settle(number);
            }
            for wanted in [1, 3] {
                let number = match brought.recv() {
                    Ok(Brought::Settled(number, Ok(()))) => number,
                    _ => panic!("nothing is settled"),
                };
                assert_eq!(number, wanted);
                settler.settled();
            }
        });
        assert!(brought.recv().is_err(), "it was settled once more");
    }

    const ABSENT_MAX: Duration = Duration::from_secs(60);

    impl Keep {
        pub(in crate::drive) fn number(&self) -> u64 {
            self.number
        }

        /// Without a journal.
        pub(in crate::drive) fn of_nothing(writes: bool) -> Self {
            Self {
                stage: Stage::Rests,
                due: Duration::ZERO,
                writes,
                wants_last: false,
                is_last: false,
                is_new: false,
                returned: BTreeSet::new(),
                number: 0,
                asked: None,
                patience: Duration::ZERO,
                absent_max: ABSENT_MAX,
                done: BTreeMap::new(),
                records: mpsc::channel().0,
            }
        }
    }

    #[test]
    fn who_does_not_settle_is_not_waited_for_without_end() {
        let mut keep = Keep::of_nothing(true);
        let (node, other, since) = (NodeId(1), NodeId(2), Duration::from_secs(7));
        for number in 1..3 {
            keep.returned(node);
            keep.returned(other);
            keep.snapshot(Vec::new());
            let asked = Step::Ask(vec![node, other], number);
            assert_eq!(keep.next(since, 0, |_| true), asked);
            keep.settled(other);
            let late = since + SETTLE_MAX;
            let again = Step::Ask(vec![node], number);
            assert_eq!(keep.next(late - Duration::from_nanos(1), 0, |_| true), again);
            assert_eq!(keep.next(late, 0, |_| true), Step::Late(vec![node], SETTLE_MAX));
            // It may be gone instead.
            keep.gone(node);
            assert_eq!(keep.next(late, 0, |_| true), Step::None);
            assert!(matches!(keep.stage, Stage::Records));
        }
    }

    #[test]
    fn who_is_no_member_settles_unless_it_is_gone_or_stays_away() {
        let [stopped, gone, dead] = [1, 2, 3].map(NodeId);
        let mut keep = Keep::of_nothing(true);
        [stopped, gone, dead].into_iter().for_each(|node| keep.returned(node));
        keep.snapshot(Vec::new());
        let since = Duration::from_secs(7);
        assert_eq!(keep.next(since, 0, |_| false), Step::Ask(vec![stopped, gone, dead], 1));
        keep.gone(gone);
        let late = since + ABSENT_MAX - Duration::from_nanos(1);
        assert_eq!(keep.next(late, 0, |_| false), Step::Ask(vec![stopped, dead], 1));
        assert_eq!(
            keep.next(since + ABSENT_MAX, 0, |of| of == stopped),
            Step::Ask(vec![stopped], 1)
        );
        // As one of a group whose manager died.
        keep.joined(dead);
        assert!(keep.awaits(dead, 1));
        keep.settled(dead);
        keep.settled(stopped);
        assert_eq!(keep.next(late, 0, |_| true), Step::None);
        assert!(matches!(keep.stage, Stage::Records));
        // What comes now is for the next one.
        keep.joined(stopped);
        assert_eq!(keep.returned, BTreeSet::from([stopped]));
    }

    #[test]
    fn only_who_was_asked_last_has_settled() {
        let mut keep = Keep::of_nothing(true);
        let (node, other) = (NodeId(1), NodeId(2));
        keep.returned(node);
        assert!(!keep.awaits(node, 0));
        keep.snapshot(Vec::new());
        let awaited = [(node, 0), (node, 1), (node, 2), (other, 1)];
        assert_eq!(
            awaited.map(|(node, number)| keep.awaits(node, number)),
            [false, true, false, false]
        );
        keep.settled(node);
        assert!(!keep.awaits(node, 1));
    }

    proptest! {
        #[test]
        fn units_are_ranges_in_their_order(order in Just((0..40_u64).collect::<Vec<_>>()).prop_shuffle(), some in 0..40_usize) {
            let added = &order[..some];
            let units: Units = added.iter().map(|unit| *unit..unit + 1).collect();
            let found: Vec<_> = units.ranges().iter().cloned().flatten().collect();
            let mut wanted = added.to_vec();
            wanted.sort_unstable();
            prop_assert_eq!(found, wanted);
            for pair in units.ranges().windows(2) {
                prop_assert!(pair[0].end < pair[1].start, "{:?}", units);
            }
        }
    }
}
