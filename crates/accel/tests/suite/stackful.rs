//! Threads with a stack of their own, in one ring with the others.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use cellway_accel::{Accelerator, Config, Cx, StackCx, StackfulError, Tag, run};

use crate::harness::{Backed, Backing, engines, pattern, small, watch};
use crate::threads::panic_message;

const STACK_BYTES: usize = 64 << 10;

#[test]
fn results_and_turns() {
    let _dog = watch();
    let log = run(&small(), |cx, _| async move {
        let log = Rc::new(RefCell::new(Vec::new()));
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let log = log.clone();
                // Stackless and stackful threads take turns alike.
                if number % 2 == 0 {
                    let inner = cx.clone();
                    let body = async move {
                        for round in 0..20 {
                            log.borrow_mut().push((round, number));
                            inner.yield_now().await;
                        }
                        number
                    };
                    return cx.spawn(body).unwrap();
                }
                let body = move |sx: &StackCx<'_, '_>| {
                    for round in 0..20 {
                        log.borrow_mut().push((round, number));
                        sx.yield_now();
                    }
                    number
                };
                cx.spawn_stackful(STACK_BYTES, body).unwrap()
            })
            .collect();
        for (number, thread) in threads.into_iter().enumerate() {
            assert_eq!(thread.await, number);
        }
        log.take()
    });
    let expected: Vec<_> = (0..20).flat_map(|round| (0..8).map(move |n| (round, n))).collect();
    assert_eq!(log.unwrap(), [expected]);
}

/// Deep enough that each call takes some of the stack.
#[inline(never)]
fn free_at_each_depth(sx: &StackCx<'_, '_>, depth: usize, free: &mut Vec<usize>) -> u8 {
    let ballast = std::hint::black_box([depth as u8; 512]);
    free.push(sx.free_stack_bytes());
    sx.yield_now();
    let below = if depth > 0 { free_at_each_depth(sx, depth - 1, free) } else { 0 };
    ballast[depth % 512].wrapping_add(below)
}

#[test]
fn free_stack_space_shrinks_with_depth() {
    let _dog = watch();
    run(&small(), |cx, _| async move {
        for stack_bytes in [0, STACK_BYTES, 1 << 20] {
            let threads: Vec<_> = (0..20)
                .map(|_| {
                    let body = |sx: &StackCx<'_, '_>| {
                        let mut free = Vec::new();
                        free_at_each_depth(sx, 6, &mut free);
                        free
                    };
                    cx.spawn_stackful(stack_bytes, body).unwrap()
                })
                .collect();
            // The smallest stack is 16 KiB, whatever was asked for.
            let asked = stack_bytes.max(16 << 10);
            let mut least = usize::MAX;
            for thread in threads {
                let free = thread.await;
                assert!(free.windows(2).all(|two| two[0] >= two[1] + 512), "{free:?}");
                least = least.min(free[0]);
            }
            // Some stacks are rounded up to a page; the guard page is never free.
            assert!(least <= asked && least + (8 << 10) >= asked, "{least} of {asked}");
        }
    })
    .unwrap();
}

/// All of the free space is there to be used.
#[test]
fn free_stack_space_is_there() {
    #[inline(never)]
    fn descend(sx: &StackCx<'_, '_>, depth: usize) -> usize {
        let page = std::hint::black_box([1u8; 1024]);
        if sx.free_stack_bytes() < 4 << 10 {
            return depth;
        }
        descend(sx, depth + usize::from(page[depth % 1024]))
    }
    let _dog = watch();
    run(&small(), |cx, _| async move {
        let body = |sx: &StackCx<'_, '_>| descend(sx, 0);
        let depth = cx.spawn_stackful(256 << 10, body).unwrap().await;
        assert!((50..256).contains(&depth), "{depth} calls of more than 1 KiB");
    })
    .unwrap();
}

#[test]
fn transfers_on_every_engine() {
    let _dog = watch();
    for engine in engines() {
        for backing in [Backing::Memory, Backing::Buffered] {
            let content = &pattern(1, 256 << 10);
            let mut backed = Backed::new(backing, content);
            let region = &backed.region();
            let config = Config { engine, depth: 4, ..small() };
            run(&config, |cx, _| async move {
                let start = |number: u64| {
                    cx.spawn_stackful(STACK_BYTES, move |sx| {
                        let (cx, tag) = (sx.cx(), Tag::new(0));
                        for block in (number..64).step_by(8) {
                            let (buf, place) = (cx.alloc(4096).unwrap(), region.at(block * 4096));
                            let mut buf = sx.wait(cx.get(buf, place, 4096, tag)).unwrap();
                            assert!(*buf == content[block as usize * 4096..][..4096]);
                            buf.iter_mut().for_each(|byte| *byte ^= 0xFF);
                            sx.wait(cx.put(buf, place, tag)).unwrap();
                        }
                        sx.wait(async { number })
                    })
                };
                let threads: Vec<_> = (0..8).map(|n| start(n).unwrap()).collect();
                for (number, thread) in threads.into_iter().enumerate() {
                    assert_eq!(thread.await, number as u64);
                }
            })
            .unwrap();
            let flipped: Vec<u8> = content.iter().map(|byte| byte ^ 0xFF).collect();
            assert!(backed.content() == flipped);
        }
    }
}

/// A stackful thread waits for a stackless one, which waits for a stackful one.
#[test]
fn stackful_and_stackless_wait_for_each_other() {
    let _dog = watch();
    let sums = run(&small(), |cx, _| async move {
        let body = |sx: &StackCx<'_, '_>| {
            let inner = sx.cx().clone();
            let middle = async move {
                let innermost = |sx: &StackCx<'_, '_>| {
                    sx.yield_now();
                    1
                };
                inner.spawn_stackful(STACK_BYTES, innermost).unwrap().await + 10
            };
            let middle = sx.cx().spawn(middle).unwrap();
            // A wait within a wait, on the same stack.
            sx.wait(async { sx.wait(sx.cx().wait_for(middle)) }) + 100
        };
        cx.spawn_stackful(STACK_BYTES, body).unwrap().await
    });
    assert_eq!(sums.unwrap(), [111]);
}

/// Counts what is dropped.
struct Dropped(Rc<Cell<usize>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// An unfinished thread is unwound when its accelerator goes; one that never
/// had a turn drops what it captured.
#[test]
fn unfinished_stacks_are_unwound() {
    let _dog = watch();
    let dropped = Rc::new(Cell::new(0));
    let mut backed = Backed::new(Backing::Buffered, &pattern(2, 4096));
    let region = &backed.region();
    let mut accelerator = Accelerator::new(&small()).unwrap();
    let store = accelerator.cx().local_store().clone();
    let start = |cx: &Cx<'_>, dropped: &Rc<Cell<usize>>| {
        let (one, two) = (Dropped(dropped.clone()), dropped.clone());
        let body = move |sx: &StackCx<'_, '_>| {
            let _captured = one;
            let _local = Dropped(two);
            let _buf = sx.cx().alloc(1000).unwrap();
            sx.wait(sx.cx().read_mailbox())
        };
        drop(cx.spawn_stackful(STACK_BYTES, body).unwrap());
    };
    start(&accelerator.cx(), &dropped);
    let flying = accelerator.cx().spawn_stackful(STACK_BYTES, move |sx| {
        let buf = sx.cx().alloc(4096).unwrap();
        drop(sx.wait(sx.cx().get(buf, region.at(0), 4096, Tag::new(0))));
        sx.wait(sx.cx().read_signals())
    });
    drop(flying.unwrap());
    accelerator.step().unwrap();
    accelerator.step().unwrap();
    assert_eq!((dropped.get(), store.used_bytes()), (0, 1024 + 4096));
    start(&accelerator.cx(), &dropped);
    drop(accelerator);
    // The second had no turn, so no local.
    assert_eq!((dropped.get(), store.used_bytes()), (3, 0));
}

#[test]
fn a_panic_on_a_stack_ends_the_run() {
    let _dog = watch();
    let config = Config { accelerators: 2, ..small() };
    let ran = catch_unwind(AssertUnwindSafe(|| {
        run(&config, |cx, at| async move {
            if at.accelerator == 1 {
                _ = cx.read_mailbox().await;
                return;
            }
            let body = |sx: &StackCx<'_, '_>| {
                sx.yield_now();
                panic!("the stack is {}", "tired");
            };
            let thread = cx.spawn_stackful(STACK_BYTES, body).unwrap();
            let bystander = |sx: &StackCx<'_, '_>| sx.wait(sx.cx().read_mailbox());
            drop(cx.spawn_stackful(STACK_BYTES, bystander));
            thread.await
        })
    }));
    assert_eq!(panic_message(ran.expect_err("passed on")), "the stack is tired");
}

#[test]
fn limits_are_errors() {
    let _dog = watch();
    run(&Config { threads_max: 2, ..small() }, |cx, _| async move {
        let kept = Rc::new(Cell::new(0));
        for stack_bytes in [usize::MAX, usize::MAX - (1 << 12), 1 << 60] {
            let error = cx.spawn_stackful(stack_bytes, |_| ()).err().expect("no such stack");
            assert!(matches!(error, StackfulError::Stack { .. }), "{error}");
            assert!(error.to_string().contains("use smaller stacks or fewer threads"), "{error}");
        }
        let first = cx.spawn_stackful(STACK_BYTES, |sx| sx.yield_now()).unwrap();
        let captured = Dropped(kept.clone());
        let second = cx.spawn_stackful(STACK_BYTES, move |_| drop(captured));
        assert!(matches!(second, Err(StackfulError::Spawn(error)) if error.threads_max == 2));
        assert_eq!(kept.get(), 1, "what a refused thread captured is dropped");
        first.await;
        cx.spawn_stackful(STACK_BYTES, |_| ()).unwrap().await;
    })
    .unwrap();
}

/// Stacks are given back: many more threads one after the other than could
/// be mapped together.
#[test]
fn stacks_are_given_back() {
    let _dog = watch();
    run(&small(), |cx, _| async move {
        for number in 0..2000 {
            let thread = cx.spawn_stackful(64 << 20, move |sx| {
                sx.yield_now();
                number
            });
            assert_eq!(thread.unwrap().await, number);
        }
    })
    .unwrap();
}
