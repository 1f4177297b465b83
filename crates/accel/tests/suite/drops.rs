//! Transfers dropped at random moments, and accelerators with transfers in
//! flight: nothing leaks, and nothing is touched that must not be.
//!
//! A million drops, or as many as the environment's CELLWAY_DROPS says.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use cellway_accel::{
    Accelerator, Buf, Config, Cx, EngineChoice, Faults, LocalStore, MemoryPath, Region, Tag,
    Transfer,
};

use crate::harness::{
    Backed, Backing, direct_align, drops_asked, engines, pattern, skip, small, watch,
};

/// Written stretches and untouched ones take turns, each this long.
const STRETCH_BYTES: usize = 4096;
const STRETCHES: usize = 64;
const STORE_BYTES: usize = 256 << 10;
/// Drops that one accelerator lives for, at most: where transfers take their
/// time, the end in mid-flight is what counts.
const fn life_drops(backing: Backing) -> usize {
    match backing {
        Backing::Direct => 40,
        Backing::Memory | Backing::Buffered => 400,
    }
}

/// Reproducible numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % bound
    }
}

/// What a region holds: bytes from before, and for written stretches bytes
/// that every put puts there alike.
struct Expected {
    before: Vec<u8>,
    put: Vec<u8>,
}

impl Expected {
    fn new() -> Self {
        let len = STRETCHES * STRETCH_BYTES;
        Self { before: pattern(1, len), put: pattern(2, len) }
    }

    /// A byte that was transferred may be of either kind in a written
    /// stretch, but is nothing else, and elsewhere is as before.
    fn check(&self, bytes: &[u8], from: usize) {
        for (at, byte) in (from..).zip(bytes) {
            let written = at / STRETCH_BYTES % 2 == 1;
            let right = *byte == self.before[at] || written && *byte == self.put[at];
            assert!(right, "byte {at} is {byte}, was {}", self.before[at]);
        }
    }
}

/// What the threads of one accelerator share.
struct Life<'e> {
    /// Drops still to be made in it.
    left: Cell<usize>,
    align: usize,
    expected: &'e Expected,
}

/// Makes random transfers and drops them at random moments, for ever.
async fn drop_at_random<'env>(
    cx: Cx<'env>,
    region: &'env Region<'env>,
    life: Rc<Life<'env>>,
    seed: u64,
) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut held: Vec<Transfer<'_, 'env>> = Vec::new();
    while life.left.get() > 0 {
        let Some((mut transfer, seen_at)) = start(&cx, region, &life, &mut random) else {
            // The store is full: let go of something, or let it come home.
            held.truncate(held.len() / 2);
            cx.yield_now().await;
            continue;
        };
        match random.below(6) {
            0 => drop(transfer),
            1 | 2 => {
                poll_once(&mut transfer).await;
                drop(transfer);
            }
            3 | 4 => held.push(transfer),
            _ => match (transfer.await, seen_at) {
                // Whoever waits to the end sees what must be there.
                (Ok(buf), Some(at)) => life.expected.check(&buf, at),
                (Ok(_), None) => {}
                (Err(error), _) => assert!(error.buf.is_some(), "{error}"),
            },
        }
        if held.len() > 3 {
            drop(held.swap_remove(random.below(4)));
        }
        if random.below(8) == 0 {
            cx.yield_now().await;
        }
        life.left.set(life.left.get().saturating_sub(1));
    }
    // Some go with their thread, some with the accelerator.
    if random.below(2) == 0 {
        held.clear();
    }
    std::future::pending::<()>().await;
    drop(held);
}

async fn poll_once(transfer: &mut Transfer<'_, '_>) {
    poll_fn(|cx| {
        let _ = Pin::new(&mut *transfer).poll(cx);
        Poll::Ready(())
    })
    .await;
}

/// A transfer of any kind, and the place its buffer will show if it is a get;
/// `None` if the store is full.
fn start<'c, 'env>(
    cx: &'c Cx<'env>,
    region: &'env Region<'env>,
    life: &Life<'_>,
    random: &mut Random,
) -> Option<(Transfer<'c, 'env>, Option<usize>)> {
    let buf = cx.alloc_aligned(4 * STRETCH_BYTES, life.align).ok()?;
    let tag = Tag::new(random.below(4));
    let len = 1 + random.below(2 * STRETCH_BYTES);
    let seen_at = random.below((STRETCHES - 2) * STRETCH_BYTES);
    let place = region.at(seen_at as u64);
    let get = match random.below(8) {
        0 | 1 => cx.get(buf, place, len, tag),
        2 => cx.get_fenced(buf, place, len, tag),
        3 => cx.get_barrier(buf, place, len, tag),
        4 => {
            let list = [1, 9, 4].map(|n| (region.at((n * STRETCH_BYTES) as u64), STRETCH_BYTES));
            return Some((cx.get_list(buf, &list, tag), None));
        }
        5 => {
            let (buf, at) = filled(buf, life, random);
            cx.put_fenced(buf, region.at(at), tag).then_get(place, len)
        }
        kind => {
            let (buf, at) = filled(buf, life, random);
            let put = match kind {
                6 => cx.put(buf, region.at(at), tag),
                _ => cx.put_list(buf, &[(region.at(at), STRETCH_BYTES)], tag),
            };
            return Some((put, None));
        }
    };
    Some((get, Some(seen_at)))
}

/// Fills a buffer with what belongs into some written stretch.
fn filled(mut buf: Buf, life: &Life<'_>, random: &mut Random) -> (Buf, u64) {
    let at = (2 * random.below(STRETCHES / 2) + 1) * STRETCH_BYTES;
    buf.set_view(0..STRETCH_BYTES);
    buf.copy_from_slice(&life.expected.put[at..at + STRETCH_BYTES]);
    (buf, at as u64)
}

/// One accelerator's life: threads that drop, steps, an end in mid-flight.
fn live_and_die<'e>(
    config: &Config,
    region: &'e Region<'e>,
    life: Life<'e>,
    seed: u64,
) -> LocalStore {
    let mut accelerator = Accelerator::new(config).unwrap();
    let store = accelerator.cx().local_store().clone();
    let life = Rc::new(life);
    for thread in 0..4 {
        let body = drop_at_random(accelerator.cx(), region, life.clone(), seed * 4 + thread);
        drop(accelerator.cx().spawn(body).unwrap());
    }
    while life.left.get() > 0 {
        accelerator.step().unwrap();
    }
    for _ in 0..seed % 16 {
        accelerator.step().unwrap();
    }
    store
}

/// A store that is free again as a whole, marked: nobody may touch it any more.
fn marked(store: &LocalStore) -> Buf {
    assert_eq!(store.used_bytes(), 0, "buffers are missing");
    let mut whole = store.alloc(STORE_BYTES).expect("in one piece");
    whole.fill(MARK);
    whole
}

const MARK: u8 = 0xA5;

/// So many drops on one engine, in one region, over many lives.
fn drops(config: &Config, backing: Backing, drops: usize) {
    let _dog = watch();
    let expected = &Expected::new();
    let mut backed = Backed::new(backing, &expected.before);
    let align = backed.align;
    let config =
        Config { local_store_bytes: STORE_BYTES, depth: 8, near_bytes: 0, ..config.clone() };
    let region = &backed.region();
    let mut grave: Option<Buf> = None;
    let mut left = drops;
    while left > 0 {
        let count = left.min(life_drops(backing));
        left -= count;
        let life = Life { left: Cell::new(count), align, expected };
        let store = live_and_die(&config, region, life, left as u64);
        if let Some(whole) = grave.replace(marked(&store)) {
            assert!(whole.iter().all(|byte| *byte == MARK), "touched after the end");
        }
    }
    let after = backed.content();
    expected.check(&after, 0);
    assert_eq!(after.len(), expected.before.len());
    assert!(drops < 1000 || after != expected.before, "something was put");
}

/// This many hundredths of all drops.
fn share(hundredths: usize) -> usize {
    drops_asked().unwrap_or(1_000_000) * hundredths / 100
}

fn engine_works(engine: EngineChoice) -> bool {
    engines().contains(&engine)
}

#[test]
fn memory() {
    for memory in [MemoryPath::Auto, MemoryPath::Interleave, MemoryPath::Straight] {
        drops(&Config { memory, ..small() }, Backing::Memory, share(16));
    }
}

#[test]
fn uring() {
    if engine_works(EngineChoice::Uring) {
        on_files(EngineChoice::Uring);
    }
}

#[test]
fn pread() {
    on_files(EngineChoice::Pread);
}

fn on_files(engine: EngineChoice) {
    let config = Config { engine, ..small() };
    drops(&config, Backing::Buffered, share(17));
    let faults = Some(Faults { broken: 50, ..Faults::survivable(1) });
    drops(&Config { faults, ..config.clone() }, Backing::Buffered, share(8));
    // Few: each goes to the disk.
    match direct_align() {
        Some(_) => drops(&config, Backing::Direct, share(1)),
        None => skip("direct I/O", "the file system of the build folder has none"),
    }
}
