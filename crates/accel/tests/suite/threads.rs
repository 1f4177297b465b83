//! Cooperative threads: turns, spawning, joining, stepping, panics.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cellway_accel::{
    Accelerator, Config, Cx, Lent, MemoryPath, Place, Region, RunError, Step, Tag, run,
};

use crate::harness::{Backed, Backing, engines, pattern, small, watch};

#[test]
fn results_come_in_order() {
    let _dog = watch();
    let config = Config { accelerators: 3, threads: 5, ..small() };
    let words = ["a".to_owned(), "b".to_owned()];
    let words = &words;
    let results = run(&config, |cx, at| async move {
        assert_eq!((cx.accelerator(), cx.thread_id()), (at.accelerator, at.thread));
        // The last threads end first.
        for _ in at.thread..at.threads {
            cx.yield_now().await;
        }
        (at, &words[at.index() % 2])
    });
    let results = results.unwrap();
    assert_eq!(results.len(), 15);
    for (index, (at, word)) in results.into_iter().enumerate() {
        let (accelerator, thread) = (index / 5, index % 5);
        assert_eq!(at, Place { accelerator, thread, accelerators: 3, threads: 5 });
        assert_eq!((at.index(), at.count()), (index, 15));
        assert_eq!(*word, words[index % 2]);
    }
}

#[test]
fn empty_runs_end() {
    let _dog = watch();
    let none = run(&Config { threads: 0, ..small() }, |_, _| async {});
    assert_eq!(none.unwrap().len(), 0);
    let one = run(&Config { accelerators: 0, ..small() }, |_, at| async move { at.accelerators });
    assert_eq!(one.unwrap(), [1], "no accelerator means one");
}

#[test]
fn yields_go_round_in_order() {
    let _dog = watch();
    for threads in [1, 2, 16] {
        let log = &std::sync::Mutex::new(Vec::new());
        run(&Config { threads, ..small() }, |cx, at| async move {
            for round in 0..50 {
                log.lock().unwrap().push((round, at.thread));
                cx.yield_now().await;
            }
        })
        .unwrap();
        let expected: Vec<_> =
            (0..50).flat_map(|round| (0..threads).map(move |thread| (round, thread))).collect();
        assert_eq!(*log.lock().unwrap(), expected);
    }
}

/// A thread that waited stands last in line when it is woken; new ones too.
#[test]
fn woken_and_new_threads_stand_last() {
    let _dog = watch();
    let log = Rc::new(RefCell::new(String::new()));
    let mut accelerator = Accelerator::new(&small()).unwrap();
    let note = |name: char| {
        let log = log.clone();
        move || log.borrow_mut().push(name)
    };
    let (cx, first, last) = (accelerator.cx(), note('a'), note('z'));
    let new = note('n');
    let waiting = accelerator.cx().spawn(async move {
        first();
        let thread = cx.spawn(async move { new() }).unwrap();
        thread.await;
        last();
    });
    waiting.unwrap();
    for name in ['b', 'c'] {
        let (cx, note) = (accelerator.cx(), note(name));
        let yielding = accelerator.cx().spawn(async move {
            for _ in 0..3 {
                note();
                cx.yield_now().await;
            }
        });
        yielding.unwrap();
    }
    accelerator.run_to_end().unwrap();
    assert_eq!(*log.borrow(), "abcnbczbc");
}

#[test]
fn spawning_ends_at_the_limit() {
    let _dog = watch();
    run(&Config { threads_max: 3, ..small() }, |cx, _| async move {
        let first = cx.spawn(async { 1 }).unwrap();
        let second = cx.spawn(async { 2 }).unwrap();
        let Err(error) = cx.spawn(async { 3 }) else { panic!("a fourth thread") };
        assert_eq!(error.threads_max, 3);
        assert!(error.to_string().starts_with("3 threads run already"), "{error}");
        assert_eq!(cx.wait_for(second).await + first.await, 3);
        assert_eq!(cx.spawn(async { 4 }).unwrap().await, 4);
    })
    .unwrap();
    assert_eq!(Config::default().threads_max, 16);
    // Threads of the program always fit.
    run(&Config { threads: 40, threads_max: 3, ..small() }, |_, _| async {}).unwrap();
}

#[test]
fn thousands_of_threads() {
    const MANY: usize = 5000;
    let _dog = watch();
    let config = Config { threads_max: MANY + 1, ..small() };
    let sums = run(&config, |cx, _| async move {
        let count = Rc::new(Cell::new(0));
        let threads: Vec<_> = (0..MANY)
            .map(|number| {
                let (inner, count) = (cx.clone(), count.clone());
                let body = async move {
                    for _ in 0..3 {
                        inner.yield_now().await;
                    }
                    count.set(count.get() + 1);
                    (number, inner.thread_id())
                };
                cx.spawn(body).unwrap()
            })
            .collect();
        let mut ids = vec![cx.thread_id()];
        for (number, thread) in threads.into_iter().enumerate() {
            let (result, id) = thread.await;
            assert_eq!(result, number);
            ids.push(id);
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), MANY + 1, "threads that run together have different ids");
        count.get()
    });
    assert_eq!(sums.unwrap(), [MANY]);
    let config = Config { threads: MANY, ..small() };
    let region = pattern(1, 1 << 20);
    let region = &Region::memory(&region);
    let got = run(&config, |cx, at| async move {
        let buf = cx.alloc(100).unwrap();
        let buf = cx.get(buf, region.at(at.thread as u64 * 100), 100, Tag::new(at.thread)).await;
        usize::from(buf.unwrap()[0])
    });
    assert_eq!(got.unwrap().len(), MANY);
}

/// A handle may be waited for late, early, or not at all.
#[test]
fn joining() {
    let _dog = watch();
    run(&small(), |cx, _| async move {
        let done = Rc::new(Cell::new(false));
        let (inner, flag) = (cx.clone(), done.clone());
        drop(cx.spawn(async move {
            inner.yield_now().await;
            flag.set(true);
        }));
        let ended = cx.spawn(async { "late" }).unwrap();
        for _ in 0..5 {
            cx.yield_now().await;
        }
        assert!(done.get(), "a thread goes on when its handle is dropped");
        assert_eq!(ended.await, "late");
        let inner = cx.clone();
        let nested = cx.spawn(async move {
            let innermost = inner.spawn(async { vec![1, 2, 3] }).unwrap();
            innermost.await.into_iter().sum::<i32>()
        });
        assert_eq!(nested.unwrap().await, 6);
        let first = cx.spawn(async {}).unwrap();
        assert!(cx.local_store().used_bytes() == 0);
        first.await;
    })
    .unwrap();
}

#[test]
fn stepped_from_outside() {
    let _dog = watch();
    for engine in engines() {
        let content = pattern(2, 4096);
        let mut backed = Backed::new(Backing::Buffered, &content);
        let region = &backed.region();
        let config = Config { engine, ..small() };
        let mut accelerators: Vec<_> = (0..3).map(|_| Accelerator::new(&config).unwrap()).collect();
        assert_eq!(accelerators[0].step().unwrap(), Step::Ended);
        let sum = Rc::new(Cell::new(0));
        for accelerator in &accelerators {
            let (cx, sum) = (accelerator.cx(), sum.clone());
            let body = async move {
                for turn in 0..10 {
                    cx.yield_now().await;
                    let buf = cx.alloc(512).unwrap();
                    let got = cx.get(buf, region.at(turn * 100), 512, Tag::new(0)).await.unwrap();
                    sum.set(sum.get() + usize::from(got[0]));
                }
            };
            accelerator.cx().spawn(body).unwrap();
        }
        let mut steps = 0;
        while !accelerators.is_empty() {
            accelerators.retain_mut(|accelerator| accelerator.step().unwrap() != Step::Ended);
            steps += 1;
        }
        let once: usize = (0..10).map(|turn| usize::from(content[turn * 100])).sum();
        assert_eq!(sum.get(), 3 * once);
        assert!(steps >= 20, "one turn a step: {steps}");
    }
}

/// A step is a turn: it returns, whatever the threads wait for.
#[test]
fn idle_is_told() {
    let _dog = watch();
    let mut accelerator = Accelerator::new(&small()).unwrap();
    let cx = accelerator.cx();
    let word = accelerator.cx().spawn(async move { cx.read_mailbox().await }).unwrap();
    assert_eq!(accelerator.step().unwrap(), Step::Ran);
    assert_eq!(accelerator.step().unwrap(), Step::Idle);
    assert_eq!(accelerator.step().unwrap(), Step::Idle);
    let cx = accelerator.cx();
    accelerator.cx().spawn(async move { cx.signal(0, 4) }).unwrap();
    assert_eq!(accelerator.step().unwrap(), Step::Ran);
    assert!(matches!(accelerator.run_to_end(), Err(RunError::Deadlock(_))));
    drop(word);
}

/// What the threads of a run over memory did, in order.
fn schedule(seed: u64) -> Vec<(usize, u8)> {
    let content = pattern(seed, 1 << 20);
    let region = &Region::memory(&content);
    let log = &std::sync::Mutex::new(Vec::new());
    let config =
        Config { threads: 12, threads_max: 24, depth: 8, memory: MemoryPath::Auto, ..small() };
    run(&config, |cx, at| async move {
        let mut place = seed as usize + at.thread * 7919;
        let mut buf = cx.alloc(256).unwrap();
        for _ in 0..100 {
            place = place.wrapping_mul(0x5851_F42D).wrapping_add(at.thread) % ((1 << 20) - 256);
            let len = 1 + place % 256;
            buf = match place % 5 {
                0 => {
                    cx.get_fenced(buf, region.at(place as u64), len, Tag::new(place)).await.unwrap()
                }
                1 => cx.get_barrier(buf, region.at(place as u64), len, Tag::new(1)).await.unwrap(),
                _ => cx.get(buf, region.at(place as u64), len, Tag::new(1)).await.unwrap(),
            };
            log.lock().unwrap().push((at.thread, buf[0]));
            if place.is_multiple_of(7) {
                let inner = cx.clone();
                let spawned = cx.spawn(async move { inner.yield_now().await });
                spawned.unwrap().await;
            }
            if place.is_multiple_of(3) {
                cx.yield_now().await;
            }
        }
    })
    .unwrap();
    std::mem::take(&mut *log.lock().unwrap())
}

#[test]
fn the_same_program_has_the_same_schedule() {
    let _dog = watch();
    for seed in 1..5 {
        let first = schedule(seed);
        assert!(first.windows(2).any(|pair| pair[0].0 != pair[1].0), "threads take turns");
        assert_eq!(first, schedule(seed), "seed {seed}");
    }
}

#[test]
fn loads_are_references() {
    let _dog = watch();
    let items: Vec<u64> = (0..10_000).map(|n| n * n).collect();
    for near_bytes in [0, 1 << 30] {
        let lent = Lent::new(&items);
        assert_eq!(lent.items().len(), 10_000);
        let config = Config { threads: 4, near_bytes, ..small() };
        let longest = run(&config, |cx, at| async move {
            let mut longest = &0;
            for index in (at.thread..10_000).step_by(at.threads) {
                let item = cx.load(&lent, index).await;
                assert!(std::ptr::eq(item, &lent.items()[index]));
                longest = item;
            }
            longest
        });
        assert_eq!(longest.unwrap().into_iter().max(), Some(&(9999 * 9999)));
    }
    let lent = Lent::new(&items);
    let outside =
        catch_unwind(|| run(&small(), |cx, _| async move { *cx.load(&lent, 10_000).await }));
    assert!(outside.is_err());
}

/// Blocks in sequence are copied at once: only a thread's first get, which follows
/// no other, lets the others run.
#[test]
fn sequential_gets_do_not_give_way() {
    const BLOCKS: usize = 6;
    let _dog = watch();
    for (threads, block_bytes) in [(4, 64), (3, 200), (4, 512), (16, 1024), (4, 2048)] {
        let data = pattern(8, threads * BLOCKS * block_bytes);
        let region = &Region::memory(&data);
        let log = &std::sync::Mutex::new(Vec::new());
        run(&Config { threads, ..small() }, |cx, at| async move {
            let mut buf = cx.alloc(block_bytes).unwrap();
            for block in at.thread * BLOCKS..(at.thread + 1) * BLOCKS {
                let place = region.at((block * block_bytes) as u64);
                buf = cx.get(buf, place, block_bytes, Tag::new(0)).await.unwrap();
                log.lock().unwrap().push(at.thread);
            }
        })
        .unwrap();
        let log = std::mem::take(&mut *log.lock().unwrap());
        let each_all: Vec<_> = (0..threads).flat_map(|thread| [thread; BLOCKS]).collect();
        assert_eq!(log, each_all, "{threads} threads, {block_bytes} bytes");
    }
}

/// The message of a panic.
pub(crate) fn panic_message(panicked: Box<dyn std::any::Any + Send>) -> String {
    let text = panicked.downcast_ref::<String>().cloned();
    text.or_else(|| panicked.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap()
}

/// A thread that panics ends the run; accelerators that wait for it, or that
/// would yield forever, or that move data, are called off.
#[test]
fn a_panic_ends_the_run() {
    let _dog = watch();
    let mut backed = Backed::new(Backing::Buffered, &pattern(3, 1 << 20));
    let region = &backed.region();
    for engine in engines() {
        let config = Config { accelerators: 4, threads: 3, engine, ..small() };
        let reached = &AtomicUsize::new(0);
        let ran = catch_unwind(AssertUnwindSafe(|| {
            run(&config, |cx, at| async move {
                match at.accelerator {
                    0 => {
                        let inner = cx.clone();
                        let body = async move {
                            while reached.load(Ordering::SeqCst) < 9 {
                                inner.yield_now().await;
                            }
                            assert_ne!(at.thread, 2, "thread two fails");
                        };
                        cx.spawn(body).unwrap().await;
                    }
                    kind => {
                        reached.fetch_add(1, Ordering::SeqCst);
                        loop {
                            match kind {
                                1 => _ = cx.read_mailbox().await,
                                2 => cx.yield_now().await,
                                _ => {
                                    let buf = cx.alloc(4096).unwrap();
                                    drop(cx.get(buf, region.at(0), 4096, Tag::new(0)).await);
                                }
                            }
                        }
                    }
                }
            })
        }));
        let Err(panicked) = ran else { panic!("the panic is passed on") };
        let message = panic_message(panicked);
        assert!(message.contains("thread two fails"), "{message}");
    }
}

/// One accelerator that cannot start calls the others off.
#[test]
fn failures_of_a_start_are_told() {
    let _dog = watch();
    let config = Config { accelerators: 2, local_store_bytes: usize::MAX / 2, ..small() };
    let ran = run(&config, |cx, _| async move { _ = cx.read_mailbox().await });
    let error = ran.unwrap_err();
    assert!(matches!(error, RunError::LocalStore { .. }), "{error}");
    assert!(error.to_string().contains("use a smaller one or fewer accelerators"), "{error}");
    for depth in [0, usize::MAX] {
        let config = Config { depth, ..small() };
        run(&config, |cx, _| async move { cx.wait_tag(Tag::new(0)).await }).unwrap();
    }
}

/// A thread that starts another as it is dropped would keep the accelerator
/// alive for good.
#[test]
fn nothing_starts_while_an_accelerator_ends() {
    struct SpawnsAtTheEnd(Cx<'static>, Rc<()>);
    impl Drop for SpawnsAtTheEnd {
        fn drop(&mut self) {
            let (cx, alive) = (self.0.clone(), self.1.clone());
            let body = async move {
                let _ = (&cx, &alive);
                std::future::pending::<()>().await;
            };
            assert!(self.0.spawn(body).is_err());
        }
    }
    let alive = Rc::new(());
    let mut accelerator = Accelerator::new(&small()).unwrap();
    let (cx, theirs) = (accelerator.cx(), alive.clone());
    let last = async move {
        let _spawns = SpawnsAtTheEnd(cx, theirs);
        std::future::pending::<()>().await;
    };
    for _ in 0..2 {
        drop(accelerator.cx().spawn(std::future::pending::<()>()).unwrap());
    }
    drop(accelerator.cx().spawn(last).unwrap());
    for _ in 0..4 {
        accelerator.step().unwrap();
    }
    drop(accelerator);
    assert_eq!(Rc::strong_count(&alive), 1);
}

#[test]
fn memory_that_goes_before_the_run_is_copied() {
    let _dog = watch();
    let turns = &AtomicUsize::new(0);
    for path in [MemoryPath::Auto, MemoryPath::Interleave, MemoryPath::Straight] {
        let config = Config { threads: 3, memory: path, ..small() };
        run(&config, |cx, at| async move {
            let region = Region::staging(100_000).unwrap();
            let bytes = pattern(at.thread as u64, 100_000);
            region.fill(0, &bytes).unwrap();
            let mut buf = cx.alloc(9000).unwrap();
            for (from, len) in [(0, 64), (64, 900), (99_000, 1000), (7, 8192), (100_000, 0), (3, 1)]
            {
                cx.copy(&region, from as u64, &mut buf[..len], len > 900).await.unwrap();
                assert!(buf[..len] == bytes[from..from + len], "{len} bytes at {from}");
                turns.fetch_add(1, Ordering::Relaxed);
            }
            for (from, len) in [(99_999, 2), (u64::MAX, 1), (100_001, 0)] {
                assert!(cx.copy(&region, from, &mut buf[..len], false).await.is_err());
            }
        })
        .unwrap();
    }
    assert_eq!(turns.load(Ordering::Relaxed), 3 * 3 * 6);
}

#[test]
fn short_copies_give_way_and_long_ones_do_not() {
    let _dog = watch();
    let memory = &Region::staging(1 << 20).unwrap();
    for (len, gives_way) in [(64, true), (2048, true), (4096, false)] {
        let order = &std::sync::Mutex::new(Vec::new());
        run(&Config { threads: 2, ..small() }, |cx, at| async move {
            let mut buf = cx.alloc(len).unwrap();
            for round in 0..4_u64 {
                let place = (3 * round + at.thread as u64) * 40_000;
                cx.copy(memory, place, &mut buf, false).await.unwrap();
                order.lock().unwrap().push(at.thread);
            }
        })
        .unwrap();
        let wanted = if gives_way { [0, 1, 0, 1, 0, 1, 0, 1] } else { [0, 0, 0, 0, 1, 1, 1, 1] };
        assert_eq!(*order.lock().unwrap(), wanted, "{len} bytes");
    }
}
