//! The queue against a plain model, by random sequences of events.

use proptest::prelude::*;

use super::*;

/// An address whose pieces are at most `piece_max` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At {
    place: usize,
    piece_max: usize,
}

impl Address for At {
    fn advance(self, bytes: usize) -> Self {
        Self { place: self.place + bytes, ..self }
    }

    fn piece_bytes_max(self) -> usize {
        self.piece_max
    }
}

/// One step of a transfer: its elements' lengths, and how many bytes at the
/// end of each may be missing.
type Lens = Vec<(usize, usize)>;

#[derive(Clone, Debug)]
enum Event {
    Begin {
        tag: usize,
        order: Order,
        lens: Lens,
    },
    Chain {
        pick: usize,
        lens: Lens,
    },
    /// So many of the depth are taken by transfers outside the queue.
    Elsewhere {
        transfers: usize,
    },
    /// Hand out up to so many pieces.
    HandOut {
        pieces: usize,
    },
    Complete {
        pick: usize,
        outcome: Outcome,
    },
    /// Tell of what ended.
    Tell,
    Retire {
        pick: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Full,
    /// So many thousandths of the piece.
    Part(usize),
    Nothing,
    Again(i32),
    Broken,
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![4 => Just(Order::Plain), 2 => Just(Order::Fenced), 1 => Just(Order::Barrier)]
}

fn lens() -> impl Strategy<Value = Lens> {
    let len = prop_oneof![1 => Just(0usize), 6 => 1usize..150];
    let element = (len, prop_oneof![3 => Just(0usize), 1 => 0usize..40]);
    prop::collection::vec(element, 1..4).prop_map(|mut lens| {
        lens.iter_mut().for_each(|(len, slack)| *slack = (*slack).min(*len));
        lens
    })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        6 => Just(Outcome::Full),
        4 => (1usize..1000).prop_map(Outcome::Part),
        1 => Just(Outcome::Nothing),
        2 => prop_oneof![Just(Outcome::Again(libc::EINTR)), Just(Outcome::Again(libc::EAGAIN))],
        1 => Just(Outcome::Broken),
    ]
}

/// Few tags, so that transfers meet in them.
fn tag() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0usize..3, 1 => 0usize..64]
}

fn event() -> impl Strategy<Value = Event> {
    let pick = any::<usize>();
    prop_oneof![
        6 => (tag(), order(), lens()).prop_map(|(tag, order, lens)| Event::Begin { tag, order, lens }),
        2 => (pick, lens()).prop_map(|(pick, lens)| Event::Chain { pick, lens }),
        1 => (0usize..20).prop_map(|transfers| Event::Elsewhere { transfers }),
        5 => (1usize..20).prop_map(|pieces| Event::HandOut { pieces }),
        8 => (pick, outcome()).prop_map(|(pick, outcome)| Event::Complete { pick, outcome }),
        1 => Just(Event::Tell),
        3 => pick.prop_map(|pick| Event::Retire { pick }),
    ]
}

/// Bytes of an element that were not asked for, at its start.
fn lead_of(need: usize, slack: usize) -> usize {
    if slack > 0 { need / 3 } else { 0 }
}

/// What the model knows of an element: where it lies, and how often each byte moved.
struct Stretch {
    place: usize,
    lead: usize,
    buf_offset: usize,
    need: usize,
    moved: Vec<u8>,
    /// Bytes of pieces given to the engine.
    handed: usize,
    /// Bytes of pieces that landed for good.
    landed: usize,
}

impl Stretch {
    fn holds(&self, buf_offset: usize) -> bool {
        (self.buf_offset..self.buf_offset + self.moved.len()).contains(&buf_offset)
    }

    fn is_whole(&self) -> bool {
        self.moved[..self.need].iter().all(|times| *times == 1)
    }
}

/// A transfer in the model. Transfers stand in the order they were begun.
struct Op {
    id: OpId,
    tag: Tag,
    order: Order,
    steps: Vec<Vec<Stretch>>,
    /// Pieces an engine has, or that wait to be tried again.
    flying: usize,
    /// The failure that counts.
    failed: Option<Failing>,
    done: bool,
    retired: bool,
}

impl Op {
    /// The step that runs: the first that has not landed.
    fn current(&self) -> usize {
        let landed = |step: &Vec<Stretch>| step.iter().all(|s| s.landed == s.moved.len());
        self.steps.iter().position(|step| !landed(step)).unwrap_or(self.steps.len())
    }
}

/// How a step failed: how far into the buffer, which element, and how many
/// bytes are missing if its source ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Failing {
    buf_offset: usize,
    place: usize,
    missing: Option<usize>,
}

struct Model {
    queue: Queue<At, usize>,
    depth: usize,
    elsewhere: usize,
    piece_max: usize,
    ops: Vec<Op>,
    /// Pieces at the engine, and the transfer each is of.
    engine: Vec<(Piece<At>, usize)>,
    /// Pieces that came back unfinished: transfer, buffer offset, bytes left.
    again: Vec<(usize, usize, usize)>,
    told: usize,
    place: usize,
}

impl Model {
    fn new(depth: usize, piece_max: usize) -> Self {
        let queue = Queue::new(depth);
        Self {
            queue,
            depth,
            elsewhere: 0,
            piece_max,
            ops: vec![],
            engine: vec![],
            again: vec![],
            told: 0,
            place: 0,
        }
    }

    /// Whether the order rules keep transfer `number` from moving.
    fn must_wait(&self, number: usize) -> bool {
        let op = &self.ops[number];
        let earlier = self.ops[..number].iter().filter(|e| e.tag == op.tag && !e.done);
        earlier.into_iter().any(|e| op.order != Order::Plain || e.order == Order::Barrier)
    }

    /// A step of the queue's, and the model's picture of it. Elements lie
    /// back to back in the buffer and far apart outside.
    fn step(&mut self, direction: Direction, lens: &Lens) -> (Step<At>, Vec<Stretch>) {
        let mut buf_offset = 0;
        let mut elements = VecDeque::new();
        let mut stretches = Vec::new();
        for &(len, slack) in lens {
            let (place, need) = (self.place, len - slack);
            self.place += len + 1000;
            elements.push_back(Element {
                ea: At { place, piece_max: self.piece_max },
                buf_offset,
                len,
                need,
                lead: lead_of(need, slack),
            });
            stretches.push(Stretch {
                place,
                lead: lead_of(need, slack),
                buf_offset,
                need,
                moved: vec![0; len],
                handed: 0,
                landed: 0,
            });
            buf_offset += len;
        }
        let first = elements.pop_front().expect("at least one element");
        (Step { direction, first, more: elements.into() }, stretches)
    }

    fn add(&mut self, id: OpId, tag: Tag, order: Order, steps: Vec<Vec<Stretch>>) {
        assert!(self.ops.iter().all(|op| op.retired || op.id != id), "{id:?} given out twice");
        self.ops.push(Op {
            id,
            tag,
            order,
            steps,
            flying: 0,
            failed: None,
            done: false,
            retired: false,
        });
    }

    fn begin(&mut self, tag: usize, order: Order, lens: &Lens) {
        let (step, stretches) = self.step(Direction::Get, lens);
        let number = self.ops.len();
        let id = self.queue.begin(Tag::new(tag), order, step, number);
        self.add(id, Tag::new(tag), order, vec![stretches]);
    }

    fn chain(&mut self, pick: usize, lens: &Lens) {
        self.look_for_ends();
        let live: Vec<usize> = (0..self.ops.len()).filter(|n| !self.ops[*n].done).collect();
        if let Some(&number) = live.get(pick % live.len().max(1)) {
            let (step, stretches) = self.step(Direction::Put, lens);
            self.queue.chain(self.ops[number].id, step);
            self.ops[number].steps.push(stretches);
        }
    }

    fn hand_out(&mut self, pieces: usize) {
        for _ in 0..pieces {
            let Some(piece) = self.queue.next_piece(self.elsewhere) else {
                self.look_for_ends();
                return self.check_nothing_was_forgotten();
            };
            self.look_for_ends();
            self.take_piece(piece);
        }
    }

    fn take_piece(&mut self, piece: Piece<At>) {
        let number = self
            .ops
            .iter()
            .rposition(|op| op.id == piece.op && !op.retired)
            .expect("a live transfer");
        assert!(!self.must_wait(number), "transfer {number} moved before its turn");
        let current = self.ops[number].current();
        let op = &mut self.ops[number];
        let here = |s: &&mut Stretch| s.holds(piece.buf_offset);
        let stretch =
            op.steps[current].iter_mut().find(here).expect("a piece of the step that runs");
        let inside = piece.buf_offset - stretch.buf_offset;
        assert!(
            (1..=self.piece_max).contains(&piece.len) && inside + piece.len <= stretch.moved.len()
        );
        assert_eq!(piece.ea.place, stretch.place + inside);
        assert_eq!(piece.direction, if current == 0 { Direction::Get } else { Direction::Put });
        let tried = self.again.iter().position(|a| *a == (number, piece.buf_offset, piece.len));
        match tried {
            Some(index) => drop(self.again.remove(index)),
            None => {
                assert!(op.failed.is_none(), "a new piece of a failed transfer");
                stretch.handed += piece.len;
                op.flying += 1;
            }
        }
        assert!(
            self.engine.iter().all(|(other, _)| other.id != piece.id),
            "{:?} flies twice",
            piece.id
        );
        self.engine.push((piece, number));
        let in_flight = self.engine.len() + self.again.len() + self.elsewhere;
        assert!(tried.is_some() || in_flight <= self.depth, "{in_flight} in flight");
    }

    fn complete(&mut self, pick: usize, outcome: Outcome) {
        if self.engine.is_empty() {
            return;
        }
        let (piece, number) = self.engine.swap_remove(pick % self.engine.len());
        let op = &mut self.ops[number];
        let current = op.current();
        let mut stretches = op.steps[current].iter_mut();
        let stretch = stretches.find(|s| s.holds(piece.buf_offset)).expect("the step that runs");
        let inside = piece.buf_offset - stretch.buf_offset;
        let moved = match outcome {
            Outcome::Full => piece.len,
            Outcome::Part(thousandths) => (piece.len * thousandths / 1000).max(1),
            Outcome::Nothing | Outcome::Again(_) | Outcome::Broken => 0,
        };
        let bytes = &mut stretch.moved[inside..inside + moved];
        assert!(bytes.iter().all(|times| *times == 0), "a byte moves twice");
        bytes.fill(1);
        // What is needed of this very piece.
        let needed = stretch.need.saturating_sub(inside).min(piece.len);
        let result = match outcome {
            Outcome::Again(code) => Err(io::Error::from_raw_os_error(code)),
            Outcome::Broken => Err(io::Error::from_raw_os_error(libc::EIO)),
            _ => Ok(moved),
        };
        let again =
            matches!(outcome, Outcome::Again(_)) || (result.is_ok() && moved > 0 && moved < needed);
        let failed =
            matches!(outcome, Outcome::Broken) || (result.is_ok() && moved == 0 && needed > 0);
        if again {
            stretch.landed += moved;
            self.again.push((number, piece.buf_offset + moved, piece.len - moved));
        } else {
            stretch.landed += if failed { 0 } else { piece.len };
            op.flying -= 1;
        }
        if failed {
            let asked = stretch.lead.max(inside);
            let missing = result.is_ok().then(|| stretch.need - asked);
            let (buf_offset, place) = (piece.buf_offset, stretch.place + stretch.lead);
            let failing = Failing { buf_offset, place, missing };
            op.failed = Some(op.failed.map_or(failing, |known| known.min(failing)));
        }
        self.queue.complete(piece.id, result);
        self.look_for_ends();
    }

    /// What the queue calls done must be done, and nothing of it under way.
    fn look_for_ends(&mut self) {
        for (number, op) in self.ops.iter_mut().enumerate() {
            if op.done || !self.queue.is_done(op.id) {
                continue;
            }
            op.done = true;
            assert_eq!(op.flying, 0, "transfer {number} is done while a piece flies");
            let whole = op.steps.iter().flatten().all(Stretch::is_whole);
            assert!(
                whole || op.failed.is_some(),
                "transfer {number} is done, and bytes are missing"
            );
        }
    }

    /// When the queue hands out nothing, then only for want of room or turn.
    fn check_nothing_was_forgotten(&self) {
        assert!(self.again.is_empty(), "pieces to be tried again go first, room or not");
        if self.engine.len() + self.elsewhere >= self.depth {
            return;
        }
        for (number, op) in self.ops.iter().enumerate().filter(|(_, op)| !op.done) {
            let step = op.steps.get(op.current());
            let all_out = step.is_some_and(|step| step.iter().all(|s| s.handed == s.moved.len()));
            let moves = op.flying > 0 && (op.failed.is_some() || all_out);
            assert!(moves || self.must_wait(number), "transfer {number} is kept from moving");
        }
        for tag in (0..Tag::COUNT).map(Tag::new) {
            let open = self.ops.iter().filter(|op| op.tag == tag && !op.done);
            assert_eq!(self.queue.open(tag), open.clone().count() as u32);
            let barriers = open.clone().filter(|op| op.order == Order::Barrier).count();
            assert_eq!(self.queue.may_start(tag, Order::Plain), barriers == 0);
            assert_eq!(self.queue.may_start(tag, Order::Fenced), open.count() == 0);
        }
    }

    fn tell(&mut self) {
        while self.queue.pop_finished().is_some() {
            self.told += 1;
        }
    }

    fn retire(&mut self, pick: usize) {
        self.look_for_ends();
        let done: Vec<usize> =
            (0..self.ops.len()).filter(|n| self.ops[*n].done && !self.ops[*n].retired).collect();
        let Some(&number) = done.get(pick % done.len().max(1)) else { return };
        let op = &mut self.ops[number];
        op.retired = true;
        let (payload, failure) = self.queue.retire(op.id).expect("done");
        assert_eq!(payload, number);
        let failure = failure.map(|failed| Failing {
            buf_offset: failed.buf_offset,
            place: failed.ea.place,
            missing: match failed.why {
                Failure::Ended { missing } => Some(missing),
                Failure::Io(_) => None,
            },
        });
        assert_eq!(failure, op.failed);
        assert!(self.queue.retire(op.id).is_none(), "retired twice");
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Begin { tag, order, lens } => self.begin(tag, order, &lens),
            Event::Chain { pick, lens } => self.chain(pick, &lens),
            Event::Elsewhere { transfers } => self.elsewhere = transfers % (self.depth + 1),
            Event::HandOut { pieces } => self.hand_out(pieces),
            Event::Complete { pick, outcome } => self.complete(pick, outcome),
            Event::Tell => self.tell(),
            Event::Retire { pick } => self.retire(pick),
        }
    }

    /// Lets everything end well, and looks for what is left behind.
    fn finish(mut self) {
        self.elsewhere = 0;
        while self.ops.iter().any(|op| !op.done) {
            self.hand_out(usize::MAX);
            let before = self.engine.len();
            self.complete(0, Outcome::Full);
            self.look_for_ends();
            assert!(
                before > 0 || self.ops.iter().all(|op| op.done),
                "nothing flies, and not all is done"
            );
        }
        self.tell();
        assert_eq!(self.told, self.ops.len(), "each end is told of once");
        while self.ops.iter().any(|op| !op.retired) {
            self.retire(0);
        }
        let queue = &self.queue;
        assert_eq!((queue.in_flight, queue.has_startable()), (0, false));
        assert_eq!(queue.free.len(), queue.slots.len(), "a slot leaks");
        assert_eq!(queue.flights_free.len(), queue.flights.len(), "a flight leaks");
        assert!(queue.flights.len() <= self.depth);
        assert!(queue.tags.iter().all(|tag| (tag.open, tag.barriers, tag.held.len()) == (0, 0, 0)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn random_events_keep_order_depth_and_every_byte(
        depth in prop_oneof![Just(1usize), 1usize..5, Just(16)],
        piece_max in prop_oneof![Just(usize::MAX), 1usize..100],
        events in prop::collection::vec(event(), 1..150),
    ) {
        let mut model = Model::new(depth, piece_max);
        for event in events {
            model.on(event);
            model.look_for_ends();
        }
        model.finish();
    }
}

fn one_element(len: usize) -> Step<At> {
    let first = Element {
        ea: At { place: 0, piece_max: usize::MAX },
        buf_offset: 0,
        len,
        need: len,
        lead: 0,
    };
    Step { direction: Direction::Get, first, more: Vec::new() }
}

fn eintr() -> io::Result<usize> {
    Err(io::ErrorKind::Interrupted.into())
}

#[test]
fn a_piece_that_never_gets_on_is_given_up() {
    let mut queue: Queue<At, ()> = Queue::new(1);
    let op = queue.begin(Tag::new(0), Order::Plain, one_element(10), ());
    for _ in 0..RETRIES_MAX {
        let piece = queue.next_piece(0).expect("tried again");
        queue.complete(piece.id, eintr());
        assert!(!queue.is_done(op));
    }
    let piece = queue.next_piece(0).expect("tried a last time");
    queue.complete(piece.id, eintr());
    assert!(queue.next_piece(0).is_none());
    let (_, failure) = queue.retire(op).expect("done");
    assert!(
        matches!(failure.expect("failed").why, Failure::Io(error) if error.kind() == io::ErrorKind::Interrupted)
    );
}

#[test]
fn a_piece_that_gets_on_slowly_is_not_given_up() {
    let mut queue: Queue<At, ()> = Queue::new(1);
    let op = queue.begin(Tag::new(0), Order::Plain, one_element(4), ());
    for _ in 0..4 {
        for _ in 0..RETRIES_MAX {
            let piece = queue.next_piece(0).expect("tried again");
            queue.complete(piece.id, eintr());
        }
        let piece = queue.next_piece(0).expect("tried again");
        queue.complete(piece.id, Ok(1));
    }
    assert!(queue.next_piece(0).is_none());
    assert!(queue.next_piece(0).is_none());
    assert!(matches!(queue.retire(op), Some(((), None))));
}

#[test]
fn tags_count_modulo_32() {
    assert_eq!(Tag::new(33), Tag::new(1));
    assert_ne!(Tag::new(31), Tag::new(0));
}
