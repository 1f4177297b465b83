//! Leases of many inputs on one machine: a few small inputs side by side, each by one
//! accelerator, and a large one by all.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stream::{
    Fold, Kernel, KernelError, MergeOrder, Shares, Stats, StreamError, Unfound, run_shares,
};

use super::super::session::ended;
use super::super::{Own, Session, Tell};
use super::places::Opened;
use super::{Joined, ManyPlaces};
use crate::{Lease, LeaseId};

pub(in super::super) struct ManySession<'t, K: Kernel>(Arc<Desk<'t, K>>);

/// What the workers and those who give them leases share.
struct Desk<'t, K: Kernel> {
    kernel: Own<'t, K>,
    places: ManyPlaces<'t>,
    tell: Tell<'t>,
    state: Mutex<State<'t, K::Part>>,
    /// There is something to do, or there will be nothing.
    changed: Condvar,
}

struct State<'t, P> {
    waiting: VecDeque<Piece>,
    /// By number.
    running: BTreeMap<u64, (Piece, Arc<Shares<'t, P>>)>,
    leases: BTreeMap<LeaseId, Arc<Mutex<Kept<P>>>>,
    /// Whether somebody is at an input of several units,
    at_large: bool,
    /// and goes on with it if there is more of it.
    open: Option<Open<'t, P>>,
    closed: bool,
    /// The last number of a piece.
    pieces: u64,
}

struct Open<'t, P> {
    input: usize,
    shares: Arc<Shares<'t, P>>,
}

/// Units of a lease that are of one input.
#[derive(Clone, Debug)]
struct Piece {
    number: u64,
    lease: LeaseId,
    input: usize,
    /// Among those of the input.
    units: Range<u64>,
    /// The first one among those of all inputs.
    first: u64,
}

/// What was found of a lease so far.
struct Kept<P> {
    /// Pieces that are to come.
    missing: usize,
    /// In order: parts with others before them, and those before; `None` of no units.
    early: BTreeMap<u64, (u64, Option<P>)>,
    next: u64,
    fold: Fold<Option<P>>,
    /// Or as they come.
    any: Option<P>,
    unfound: Option<Unfound>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the session; until then the others may finish what they do.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sum(mut all: Stats, more: Stats) -> Stats {
    all.add(&more);
    all
}

/// Cuts units, the first of which has the number `first` among all, where a fixed tree
/// over all does: what is found of each part is a node of it.
fn along_tree(first: u64, units: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let mut from = units.start;
    std::iter::from_fn(move || {
        let rest = units.end.checked_sub(from).filter(|rest| *rest > 0)?;
        let at = first + (from - units.start);
        let level = at.trailing_zeros().min(rest.ilog2());
        let part = from..from + (1 << level);
        from = part.end;
        Some((at, part))
    })
}

impl<'t, K: Kernel> ManySession<'t, K> {
    pub(in super::super) fn new(
        kernel: Own<'t, K>,
        places: ManyPlaces<'t>,
        tell: Tell<'t>,
    ) -> Self {
        let state = State {
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            leases: BTreeMap::new(),
            at_large: false,
            open: None,
            closed: false,
            pieces: 0,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Self(Arc::new(Desk { kernel, places, tell, state, changed }))
    }
}

impl<K: Kernel> Session for ManySession<'_, K> {
    fn give(&self, lease: &Lease) {
        self.0.give(lease);
    }

    fn stop(&self, lease: LeaseId) {
        self.0.stop(lease);
    }

    fn close(&self) {
        lock(&self.0.state).close();
        self.0.changed.notify_all();
    }

    fn run(&self) -> Result<Stats, StreamError> {
        let (desk, plan) = (&self.0, self.0.places.plan);
        let since = Instant::now();
        let work = |_| Worker(desk).work();
        let all = std::thread::scope(|scope| {
            let others: Vec<_> =
                (1..plan.accelerators).map(|at| scope.spawn(move || work(at))).collect();
            let own = work(0);
            let others = others
                .into_iter()
                .map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            others.chain([own]).flatten().reduce(sum)
        });
        // They worked one after the other on the same accelerators.
        let all = all.unwrap_or_else(|| Stats::planned(plan.clone()));
        Ok(Stats { plan: plan.clone(), elapsed: since.elapsed(), ..all })
    }
}

impl<P> State<'_, P> {
    /// No more will be given.
    fn close(&mut self) {
        self.closed = true;
        self.let_go();
    }

    /// The large input that is open is to end.
    fn let_go(&mut self) {
        if let Some(open) = self.open.take() {
            open.shares.close();
        }
    }

    /// Takes out what waits of a lease; how many pieces.
    fn forget(&mut self, lease: LeaseId) -> usize {
        let before = self.waiting.len();
        self.waiting.retain(|piece| piece.lease != lease);
        before - self.waiting.len()
    }
}

impl<'t, K: Kernel> Desk<'t, K> {
    /// What this node has of its manager; it computes nothing before it has joined.
    fn joined(&self) -> Option<&'t Joined> {
        self.places.joined
    }

    fn is_large(&self, input: usize) -> bool {
        self.joined().is_some_and(|joined| {
            let units = joined.units.of(input);
            units.end - units.start > 1
        })
    }

    fn give(&self, lease: &Lease) {
        let in_order = self.kernel.merge_order() == MergeOrder::ByUnit;
        let units = lease.first..lease.first + lease.units;
        let mut pieces = Vec::new();
        if let Some(joined) = self.joined() {
            for (input, own) in joined.units.inputs(units.clone()) {
                let first = joined.units.of(input).start + own.start;
                let piece =
                    |(first, units)| Piece { number: 0, lease: lease.id, input, units, first };
                match in_order {
                    true => pieces.extend(along_tree(first, own).map(piece)),
                    false => pieces.push(piece((first, own))),
                }
            }
        }
        let kept = Kept {
            missing: pieces.len(),
            early: BTreeMap::new(),
            next: lease.first,
            fold: Fold::default(),
            any: None,
            unfound: None,
        };
        let state = &mut *lock(&self.state);
        state.leases.insert(lease.id, Arc::new(Mutex::new(kept)));
        for mut piece in pieces {
            state.pieces += 1;
            piece.number = state.pieces;
            match &state.open {
                Some(open) if open.input == piece.input && state.waiting.is_empty() => {
                    let (number, units) = (piece.number, piece.units.clone());
                    state.running.insert(number, (piece, open.shares.clone()));
                    open.shares.give(number, units);
                }
                _ => {
                    state.let_go();
                    state.waiting.push_back(piece);
                }
            }
        }
        self.changed.notify_all();
    }

    fn stop(&self, lease: LeaseId) {
        let mut state = lock(&self.state);
        let Some(kept) = state.leases.get(&lease).cloned() else { return };
        let forgotten = state.forget(lease);
        let running = state.running.values().filter(|(piece, _)| piece.lease == lease);
        let running: Vec<_> =
            running.map(|(piece, shares)| (piece.number, shares.clone())).collect();
        drop(state);
        self.without(lease, &kept, forgotten, Unfound::Stopped);
        // They tell of it.
        running.into_iter().for_each(|(number, shares)| shares.stop(number));
    }

    /// Some pieces of a lease come to nothing, and so does it.
    fn without(&self, lease: LeaseId, kept: &Mutex<Kept<K::Part>>, pieces: usize, why: Unfound) {
        let mut kept = lock(kept);
        kept.unfound.get_or_insert(why);
        kept.missing -= pieces;
        if kept.missing == 0 {
            self.end(lease, kept);
        }
    }

    /// Nothing is missing any more. A lease is told of once.
    fn end(&self, lease: LeaseId, mut kept: MutexGuard<'_, Kept<K::Part>>) {
        let found = match kept.unfound.take() {
            Some(why) => Err(why),
            None => self.whole(&mut kept).map_err(|error| self.refused(kept.next, error)),
        };
        drop(kept);
        if lock(&self.state).leases.remove(&lease).is_some() {
            let input = self.places.names;
            // Nobody asks how long it took: the task does not step.
            let found = found.map(|part| stream::Part { part, took: Duration::ZERO });
            (self.tell)(lease, ended(&*self.kernel, input, found));
        }
    }

    fn whole(&self, kept: &mut Kept<K::Part>) -> Result<K::Part, KernelError> {
        let folded = std::mem::take(&mut kept.fold).end(|left, right| self.merge(left, right))?;
        let part = folded.flatten().or(kept.any.take());
        Ok(part.unwrap_or_else(|| self.kernel.part(1)))
    }

    fn merge(
        &self,
        left: Option<K::Part>,
        right: Option<K::Part>,
    ) -> Result<Option<K::Part>, KernelError> {
        let (Some(mut left), Some(right)) = (left, right) else { return Ok(None) };
        self.kernel.merge(&mut left, right)?;
        Ok(Some(left))
    }

    fn refused(&self, unit: u64, error: KernelError) -> Unfound {
        let input = self.places.names.to_owned();
        Unfound::Failed { unit, error: StreamError::Kernel { input, error } }
    }

    /// What came of a piece: `None` of one without units.
    fn found(&self, piece: &Piece, found: Result<Option<K::Part>, Unfound>) {
        let mut state = lock(&self.state);
        let Some(kept) = state.leases.get(&piece.lease).cloned() else { return };
        // The others are in vain.
        let forgotten = if found.is_err() { state.forget(piece.lease) } else { 0 };
        drop(state);
        let why = match found {
            Ok(part) => {
                let mut of_lease = lock(&kept);
                match self.keep(&mut of_lease, piece, part) {
                    Ok(()) => {
                        of_lease.missing -= 1;
                        if of_lease.missing == 0 {
                            self.end(piece.lease, of_lease);
                        }
                        return;
                    }
                    Err(error) => self.refused(piece.first, error),
                }
            }
            Err(Unfound::Failed { unit, error }) => {
                let unit = piece.first + unit.saturating_sub(piece.units.start);
                Unfound::Failed { unit, error }
            }
            Err(Unfound::Stopped) => Unfound::Stopped,
        };
        self.without(piece.lease, &kept, 1 + forgotten, why);
    }

    fn keep(
        &self,
        kept: &mut Kept<K::Part>,
        piece: &Piece,
        part: Option<K::Part>,
    ) -> Result<(), KernelError> {
        if self.kernel.merge_order() == MergeOrder::Any {
            kept.any = match kept.any.take() {
                Some(any) if part.is_some() => self.merge(Some(any), part)?,
                any => any.or(part),
            };
            return Ok(());
        }
        kept.early.insert(piece.first, (piece.units.end - piece.units.start, part));
        while let Some((units, part)) = kept.early.remove(&kept.next) {
            kept.fold.push_all(units.ilog2(), part, |left, right| self.merge(left, right))?;
            kept.next += units;
        }
        Ok(())
    }
}

/// Takes pieces, one after the other.
struct Worker<'w, 't, K: Kernel>(&'w Arc<Desk<'t, K>>);

impl<K: Kernel> Drop for Worker<'_, '_, K> {
    /// Where one panics, the others end too.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = lock(&self.0.state);
            state.waiting.clear();
            state.close();
            self.0.changed.notify_all();
        }
    }
}

impl<'t, K: Kernel> Worker<'_, 't, K> {
    fn work(&self) -> Option<Stats> {
        let mut all: Option<Stats> = None;
        while let Some(piece) = self.take() {
            let is_large = self.0.is_large(piece.input);
            let streamed = self.stream(piece, is_large);
            if is_large {
                lock(&self.0.state).at_large = false;
                self.0.changed.notify_all();
            }
            all = all.into_iter().chain(streamed).reduce(sum);
        }
        all
    }

    /// The next one for this worker; waits for it.
    fn take(&self) -> Option<Piece> {
        let mut state = lock(&self.0.state);
        loop {
            let at_large = state.at_large;
            let place =
                state.waiting.iter().position(|piece| !at_large || !self.0.is_large(piece.input));
            if let Some(piece) = place.and_then(|place| state.waiting.remove(place)) {
                state.at_large |= self.0.is_large(piece.input);
                return Some(piece);
            }
            if state.closed && state.waiting.is_empty() {
                return None;
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Streams a piece, and those of the same input that follow.
    fn stream(&self, piece: Piece, is_large: bool) -> Option<Stats> {
        let desk = self.0;
        let opened = desk.places.open(&*desk.kernel, piece.input, is_large);
        let Opened { input, output, options, units } = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let unit = piece.units.start;
                desk.found(&piece, Err(Unfound::Failed { unit, error }));
                return None;
            }
        };
        let own = Arc::clone(desk);
        let shares =
            Arc::new(Shares::new(move |number, found: Result<stream::Part<K::Part>, Unfound>| {
                let piece = lock(&own.state).running.remove(&number);
                if let Some((piece, _)) = piece {
                    own.found(&piece, found.map(|found| Some(found.part)));
                }
            }));
        let index = piece.input;
        let mut empty = Vec::new();
        {
            let mut state = lock(&desk.state);
            let mut give = |state: &mut State<'t, K::Part>, piece: Piece| {
                let range = piece.units.start..piece.units.end.min(units);
                if range.is_empty() {
                    return empty.push(piece);
                }
                let number = piece.number;
                state.running.insert(number, (piece, shares.clone()));
                shares.give(number, range);
            };
            give(&mut state, piece);
            while let Some(next) = state.waiting.pop_front_if(|next| next.input == index) {
                give(&mut state, next);
            }
            // A header may have left the last unit empty: then it is given as it comes.
            let is_whole = desk.joined().is_some_and(|joined| {
                let all = joined.units.of(index);
                all.end - all.start == units
            });
            if is_large && is_whole && state.waiting.is_empty() && !state.closed {
                state.open = Some(Open { input: index, shares: shares.clone() });
            } else {
                shares.close();
            }
        }
        empty.iter().for_each(|piece| desk.found(piece, Ok(None)));
        let (kernel, progress) = (&*desk.kernel, desk.places.progress);
        let ran = run_shares(kernel, &input, output.as_ref(), &options, progress, &shares);
        self.leave(&shares, ran)
    }

    /// The run over an input is over; of what was not found of it, that is told.
    fn leave(
        &self,
        shares: &Arc<Shares<'t, K::Part>>,
        ran: Result<Stats, StreamError>,
    ) -> Option<Stats> {
        let mut state = lock(&self.0.state);
        state.open.take_if(|open| Arc::ptr_eq(&open.shares, shares));
        let of_it = |(_, by): &(Piece, Arc<Shares<'t, K::Part>>)| Arc::ptr_eq(by, shares);
        let left: Vec<_> =
            state.running.iter().filter(|(_, run)| of_it(run)).map(|(number, _)| *number).collect();
        let left: Vec<_> =
            left.into_iter().filter_map(|number| state.running.remove(&number)).collect();
        drop(state);
        let (stats, error) = match ran {
            Ok(stats) => (Some(stats), "it ended before its units were done".to_owned()),
            Err(error) => (None, error.to_string()),
        };
        for (piece, _) in left {
            let what = KernelError::new(error.clone(), "let another node do it");
            let input = self.0.places.name(piece.input);
            let error = StreamError::Kernel { input, error: what };
            let unit = piece.units.start;
            self.0.found(&piece, Err(Unfound::Failed { unit, error }));
        }
        stats
    }
}
