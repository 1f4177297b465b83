//! The transfer queue: tags, ordering, splitting, retries and depth, decided
//! without I/O. Engines see independent pieces.
//!
//! Order holds *within a tag group*, as on the Cell's MFC: a plain transfer
//! is ordered by barriers only, a fenced one starts after all earlier
//! transfers of its tag, and a barrier does that and also holds back all
//! later ones of its tag until it is done.

use std::collections::VecDeque;
use std::io;

/// A tag group, 0 to 31 as on the MFC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u8);

impl Tag {
    /// Number of tag groups.
    pub const COUNT: usize = 32;

    /// Tag group `number`, modulo 32.
    #[must_use]
    pub const fn new(number: usize) -> Self {
        Self((number % Self::COUNT) as u8)
    }

    #[inline]
    fn index(self) -> usize {
        usize::from(self.0) % Self::COUNT
    }
}

/// Direction of a transfer, seen from the local store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the local store.
    Get,
    /// Out of the local store.
    Put,
}

/// Order of a transfer within its tag group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Plain,
    Fenced,
    Barrier,
}

/// One contiguous stretch of a transfer: `len` bytes at `ea`, `buf_offset`
/// bytes into the buffer's slot. At least `need` bytes must arrive: direct
/// I/O asks for whole sectors, and the file may end inside the last one. The
/// first `lead` bytes were not asked for either.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element<A> {
    pub(crate) ea: A,
    pub(crate) buf_offset: usize,
    pub(crate) len: usize,
    pub(crate) need: usize,
    pub(crate) lead: usize,
}

/// A transfer as the queue sees it; a chain is a second step in the same buffer.
#[derive(Debug)]
pub(crate) struct Step<A> {
    pub(crate) direction: Direction,
    pub(crate) first: Element<A>,
    /// Further elements of a list.
    pub(crate) more: Vec<Element<A>>,
}

/// Addresses the queue can split.
pub(crate) trait Address: Copy {
    fn advance(self, bytes: usize) -> Self;
    /// The largest piece an engine takes at this address.
    fn piece_bytes_max(self) -> usize;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OpId(pub(crate) u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceId(pub(crate) u32);

/// What an engine is to do next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<A> {
    pub(crate) id: PieceId,
    pub(crate) op: OpId,
    pub(crate) direction: Direction,
    pub(crate) ea: A,
    pub(crate) buf_offset: usize,
    pub(crate) len: usize,
}

/// Why a transfer failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The source ended `missing` bytes early.
    Ended { missing: usize },
    /// The device said no.
    Io(io::Error),
}

/// A failed step: what it did, and the place of the element that failed.
#[derive(Debug)]
pub(crate) struct Failed<A> {
    pub(crate) direction: Direction,
    pub(crate) ea: A,
    pub(crate) why: Failure,
    /// Of pieces that fail, the first in the buffer counts.
    buf_offset: usize,
}

/// How often a piece that makes no progress (EINTR, EAGAIN) is tried again.
const RETRIES_MAX: u32 = 64;

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum State {
    Free,
    /// Waits for earlier transfers of its tag.
    Held,
    /// May start; waits for its turn in the bounded depth.
    Startable,
    Flying,
    Done,
}

#[derive(Debug)]
struct Slot<A, X> {
    state: State,
    order: Order,
    tag: Tag,
    seq: u64,
    /// Earlier transfers of the tag to wait for while held.
    waits_for: u32,
    step: Option<Step<A>>,
    then: VecDeque<Step<A>>,
    /// Progress in `step`: element number, bytes of it handed out.
    element: usize,
    handed_bytes: usize,
    flying: u32,
    failure: Option<Box<Failed<A>>>,
    payload: X,
}

#[derive(Debug, Default)]
struct TagState {
    /// Transfers not done yet.
    open: u32,
    /// Barriers among them.
    barriers: u32,
    held: VecDeque<OpId>,
}

#[derive(Debug)]
struct Flight<A> {
    op: OpId,
    element: Element<A>,
    /// The element it was cut from.
    whole: Element<A>,
    retries: u32,
}

impl<A: Address> Flight<A> {
    /// The source ended at `element`.
    fn ended(&self) -> Failure {
        let (whole, here) = (&self.whole, self.element.buf_offset);
        let end = whole.buf_offset + whole.need;
        Failure::Ended { missing: end - here.max(whole.buf_offset + whole.lead) }
    }

    fn failed(&self, direction: Direction, why: Failure) -> Box<Failed<A>> {
        let ea = self.whole.ea.advance(self.whole.lead);
        Box::new(Failed { direction, ea, why, buf_offset: self.element.buf_offset })
    }
}

/// See the module's documentation. `A`: addresses; `X`: what the owner keeps
/// with each transfer (its buffer).
#[derive(Debug)]
pub(crate) struct Queue<A, X> {
    slots: Vec<Slot<A, X>>,
    free: Vec<u32>,
    tags: [TagState; Tag::COUNT],
    startable: VecDeque<OpId>,
    flights: Vec<Option<Flight<A>>>,
    flights_free: Vec<u32>,
    retry: VecDeque<PieceId>,
    /// Ended transfers the owner has not been told of.
    finished: VecDeque<OpId>,
    /// Transfers not done yet, over all tags.
    open: usize,
    in_flight: usize,
    depth: usize,
    next_seq: u64,
}

impl<A: Address, X: Default> Queue<A, X> {
    /// A queue that keeps at most `depth` pieces in flight.
    pub(crate) fn new(depth: usize) -> Self {
        let depth = depth.max(1);
        Self {
            slots: Vec::with_capacity(depth * 2),
            free: Vec::with_capacity(depth * 2),
            tags: std::array::from_fn(|_| TagState::default()),
            startable: VecDeque::new(),
            flights: Vec::with_capacity(depth),
            flights_free: Vec::with_capacity(depth),
            retry: VecDeque::new(),
            finished: VecDeque::new(),
            open: 0,
            in_flight: 0,
            depth,
            next_seq: 0,
        }
    }

    /// Transfers of `tag` that are not done.
    pub(crate) fn open(&self, tag: Tag) -> u32 {
        self.tags[tag.index()].open
    }

    /// Whether no transfer is open in any tag group.
    #[inline(always)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.open == 0
    }

    /// Whether nothing open holds back a new transfer of `tag`.
    pub(crate) fn may_start(&self, tag: Tag, order: Order) -> bool {
        let state = &self.tags[tag.index()];
        let blockers = if order == Order::Plain { state.barriers } else { state.open };
        blockers == 0 && self.startable.is_empty()
    }

    /// Pieces in flight.
    #[inline(always)]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    #[cold]
    fn reserve_slot(&mut self) {
        let index = self.slots.len() as u32;
        self.slots.push(Slot {
            state: State::Free,
            order: Order::Plain,
            tag: Tag::new(0),
            seq: 0,
            waits_for: 0,
            step: None,
            then: VecDeque::new(),
            element: 0,
            handed_bytes: 0,
            flying: 0,
            failure: None,
            payload: X::default(),
        });
        self.free.push(index);
    }

    /// Takes a transfer in. Ask `next_piece` for what can start.
    pub(crate) fn begin(&mut self, tag: Tag, order: Order, step: Step<A>, payload: X) -> OpId {
        if self.free.is_empty() {
            self.reserve_slot();
        }
        let index = self.free.pop().expect("a slot was just reserved");
        let op = OpId(index);
        let state = &mut self.tags[tag.index()];
        let waits_for = match order {
            Order::Plain => state.barriers,
            Order::Fenced | Order::Barrier => state.open,
        };
        state.open += 1;
        state.barriers += u32::from(order == Order::Barrier);
        self.open += 1;
        let slot = &mut self.slots[index as usize];
        slot.order = order;
        slot.tag = tag;
        slot.seq = self.next_seq;
        self.next_seq += 1;
        slot.waits_for = waits_for;
        slot.step = Some(step);
        slot.then.clear();
        slot.element = 0;
        slot.handed_bytes = 0;
        slot.flying = 0;
        slot.failure = None;
        slot.payload = payload;
        if waits_for > 0 {
            slot.state = State::Held;
            state.held.push_back(op);
        } else {
            slot.state = State::Startable;
            self.startable.push_back(op);
        }
        op
    }

    /// Adds a further step to a transfer that is not done: it runs in the same
    /// buffer right after those before it, unless one of them fails.
    pub(crate) fn chain(&mut self, op: OpId, step: Step<A>) {
        let slot = &mut self.slots[op.0 as usize];
        debug_assert!(
            matches!(slot.state, State::Held | State::Startable | State::Flying),
            "chain to a live transfer"
        );
        slot.then.push_back(step);
    }

    /// The next piece to hand to an engine, if one may start now that
    /// `elsewhere` transfers are in flight besides the queue's own.
    pub(crate) fn next_piece(&mut self, elsewhere: usize) -> Option<Piece<A>> {
        if let Some(id) = self.retry.pop_front() {
            let flight = self.flights[id.0 as usize].as_ref()?;
            return Some(self.piece(id, flight.op, flight.element));
        }
        while self.in_flight + elsewhere < self.depth {
            let op = *self.startable.front()?;
            match self.cut(op) {
                Some((element, whole)) => return Some(self.launch(op, element, whole)),
                None => {
                    self.startable.pop_front();
                    self.finish_if_landed(op);
                }
            }
        }
        None
    }

    /// Cuts the next stretch off a transfer's current step; also tells the
    /// element it is of.
    fn cut(&mut self, op: OpId) -> Option<(Element<A>, Element<A>)> {
        let slot = &mut self.slots[op.0 as usize];
        if slot.failure.is_some() {
            return None;
        }
        let step = slot.step.as_ref()?;
        loop {
            let element = match slot.element {
                0 => step.first,
                n => *step.more.get(n - 1)?,
            };
            let left = element.len - slot.handed_bytes;
            if left == 0 {
                slot.element += 1;
                slot.handed_bytes = 0;
                continue;
            }
            let ea = element.ea.advance(slot.handed_bytes);
            let len = left.min(ea.piece_bytes_max());
            let part = Element {
                ea,
                buf_offset: element.buf_offset + slot.handed_bytes,
                len,
                need: element.need.saturating_sub(slot.handed_bytes).min(len),
                lead: 0,
            };
            slot.handed_bytes += len;
            return Some((part, element));
        }
    }

    fn launch(&mut self, op: OpId, element: Element<A>, whole: Element<A>) -> Piece<A> {
        let flight = Flight { op, element, whole, retries: 0 };
        let id = match self.flights_free.pop() {
            Some(index) => {
                self.flights[index as usize] = Some(flight);
                PieceId(index)
            }
            None => {
                self.flights.push(Some(flight));
                PieceId(self.flights.len() as u32 - 1)
            }
        };
        self.in_flight += 1;
        let slot = &mut self.slots[op.0 as usize];
        slot.flying += 1;
        slot.state = State::Flying;
        self.piece(id, op, element)
    }

    fn piece(&self, id: PieceId, op: OpId, element: Element<A>) -> Piece<A> {
        Piece {
            id,
            op,
            direction: self.direction(op),
            ea: element.ea,
            buf_offset: element.buf_offset,
            len: element.len,
        }
    }

    /// Takes in what became of a piece; see `pop_finished` for what that ended.
    pub(crate) fn complete(&mut self, id: PieceId, result: io::Result<usize>) {
        let Some(flight) = self.flights.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            debug_assert!(false, "completion of a piece that does not fly: {id:?}");
            return;
        };
        let op = flight.op;
        let failure = match result {
            Ok(moved) if moved >= flight.element.need => None,
            Ok(0) => Some(flight.ended()),
            Ok(moved) => {
                let element = &mut flight.element;
                element.ea = element.ea.advance(moved);
                element.buf_offset += moved;
                element.len -= moved;
                element.need -= moved;
                flight.retries = 0;
                self.retry.push_back(id);
                return;
            }
            Err(error) if transient(&error) && flight.retries < RETRIES_MAX => {
                flight.retries += 1;
                self.retry.push_back(id);
                return;
            }
            Err(error) => Some(Failure::Io(error)),
        };
        if let Some(failure) = failure {
            self.note_failure(id, failure);
        }
        self.flights[id.0 as usize] = None;
        self.flights_free.push(id.0);
        self.in_flight -= 1;
        self.slots[op.0 as usize].flying -= 1;
        self.finish_if_landed(op);
    }

    #[cold]
    fn note_failure(&mut self, id: PieceId, why: Failure) {
        let Some(flight) = &self.flights[id.0 as usize] else { return };
        let failed = flight.failed(self.direction(flight.op), why);
        let known = &mut self.slots[flight.op.0 as usize].failure;
        if known.as_ref().is_none_or(|known| failed.buf_offset < known.buf_offset) {
            *known = Some(failed);
        }
    }

    /// The next transfer that ended, to tell whoever waits for it.
    pub(crate) fn pop_finished(&mut self) -> Option<OpId> {
        self.finished.pop_front()
    }

    /// Ends a transfer, or its first step, once nothing of it flies or waits.
    fn finish_if_landed(&mut self, op: OpId) {
        let slot = &mut self.slots[op.0 as usize];
        // A transfer stays at the front until all of it is handed out.
        if slot.flying > 0 || self.startable.front() == Some(&op) {
            return;
        }
        if slot.failure.is_none()
            && let Some(next) = slot.then.pop_front()
        {
            slot.step = Some(next);
            slot.element = 0;
            slot.handed_bytes = 0;
            slot.state = State::Startable;
            self.startable.push_back(op);
            return;
        }
        slot.then.clear();
        slot.state = State::Done;
        let (tag, seq, barrier) = (slot.tag, slot.seq, slot.order == Order::Barrier);
        let state = &mut self.tags[tag.index()];
        state.open -= 1;
        state.barriers -= u32::from(barrier);
        self.open -= 1;
        self.finished.push_back(op);
        self.release_held(tag, seq, barrier);
    }

    /// One transfer of `tag` ended: later ones that are held wait for one less.
    fn release_held(&mut self, tag: Tag, seq: u64, barrier: bool) {
        let mut held = std::mem::take(&mut self.tags[tag.index()].held);
        held.retain(|op| {
            let slot = &mut self.slots[op.0 as usize];
            let counted = slot.seq > seq && (barrier || slot.order != Order::Plain);
            slot.waits_for -= u32::from(counted);
            if slot.waits_for == 0 {
                slot.state = State::Startable;
                self.startable.push_back(*op);
            }
            slot.waits_for > 0
        });
        self.tags[tag.index()].held = held;
    }

    #[inline]
    pub(crate) fn is_done(&self, op: OpId) -> bool {
        self.slots[op.0 as usize].state == State::Done
    }

    #[inline]
    pub(crate) fn payload(&mut self, op: OpId) -> &mut X {
        &mut self.slots[op.0 as usize].payload
    }

    /// The direction of a transfer's current step.
    pub(crate) fn direction(&self, op: OpId) -> Direction {
        self.slots[op.0 as usize].step.as_ref().map_or(Direction::Get, |step| step.direction)
    }

    /// Takes a done transfer out of the queue; its slot is free again.
    pub(crate) fn retire(&mut self, op: OpId) -> Option<(X, Option<Box<Failed<A>>>)> {
        let slot = &mut self.slots[op.0 as usize];
        if slot.state != State::Done {
            return None;
        }
        slot.state = State::Free;
        self.free.push(op.0);
        Some((std::mem::take(&mut slot.payload), slot.failure.take()))
    }

    /// Whether something waits that `next_piece` might give out.
    #[inline]
    pub(crate) fn has_startable(&self) -> bool {
        !self.startable.is_empty()
    }
}

fn transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests;
