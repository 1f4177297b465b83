//! Futures from elsewhere between, around and below ours: one waker per thread.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use cellway_accel::{Accelerator, Config, Faults, Region, Step, Tag, run};
use futures::stream::{FuturesUnordered, StreamExt};
use futures::{FutureExt, future, join, select};

use crate::harness::{Backed, Backing, engines, pattern, small, watch};

/// Done when somebody elsewhere says so.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Gate {
    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }

    async fn passed(&self, tell: impl Fn()) {
        future::poll_fn(|cx| {
            *self.waker.lock().unwrap() = Some(cx.waker().clone());
            tell();
            if self.open.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Another OS thread opens the gate when the accelerator waits at it, or is
/// about to: no deadlock is seen meanwhile, and the wake is not lost.
#[test]
fn woken_by_another_os_thread() {
    let _dog = watch();
    for round in 0..200 {
        let gate = &Gate::default();
        let (tell, told): (Sender<()>, Receiver<()>) = channel();
        let tell = &Mutex::new(tell);
        let told = Mutex::new(told);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                told.lock().unwrap().recv().unwrap();
                for _ in 0..round * 50 {
                    std::hint::spin_loop();
                }
                gate.open();
            });
            run(&Config { threads: 2, ..small() }, |cx, at| async move {
                if at.thread == 0 {
                    gate.passed(|| _ = tell.lock().unwrap().send(())).await;
                } else {
                    cx.yield_now().await;
                }
            })
            .unwrap();
        });
    }
}

/// Wakes itself while it is polled: directly, and from an OS thread that has
/// done so before the poll is over.
#[test]
fn a_wake_during_the_poll_is_not_lost() {
    let _dog = watch();
    let polls = run(&Config { threads: 3, ..small() }, |cx, at| async move {
        let mut polls = 0;
        future::poll_fn(|context| {
            polls += 1;
            match (polls, at.thread) {
                (100.., _) => return Poll::Ready(()),
                (_, 0) => context.waker().wake_by_ref(),
                (_, 1) => drop(std::thread::scope(|scope| {
                    // Still in the poll, from another OS thread's copy.
                    let waker = context.waker().clone();
                    scope.spawn(move || waker.wake()).join()
                })),
                _ => {
                    // Twice, and once more than needed.
                    context.waker().wake_by_ref();
                    context.waker().wake_by_ref();
                }
            }
            Poll::Pending
        })
        .await;
        cx.yield_now().await;
        polls
    });
    assert_eq!(polls.unwrap(), [100, 100, 100]);
}

/// A waker outlives its thread: called then, it disturbs nobody, not even
/// the next thread in its slot, and not when all is gone.
#[test]
fn late_wakes_are_harmless() {
    let _dog = watch();
    let kept: &Mutex<Vec<Waker>> = &Mutex::new(Vec::new());
    run(&Config { threads: 1, ..small() }, |cx, _| async move {
        let keep = || {
            future::poll_fn(|cx| {
                kept.lock().unwrap().push(cx.waker().clone());
                Poll::Ready(())
            })
        };
        cx.spawn(keep()).unwrap().await;
        let inner = cx.clone();
        let waits = cx.spawn(async move { inner.read_signals().await }).unwrap();
        for _ in 0..10 {
            kept.lock().unwrap().iter().for_each(Waker::wake_by_ref);
            cx.yield_now().await;
        }
        cx.signal(0, 7);
        assert_eq!(waits.await, 7);
        kept.lock().unwrap().iter().for_each(Waker::wake_by_ref);
    })
    .unwrap();
    assert_eq!(kept.lock().unwrap().len(), 1);
    kept.lock().unwrap().drain(..).for_each(Waker::wake);
}

/// Runs `body` over memory and over a file, on every engine, also with faults.
fn everywhere(body: impl for<'e> Fn(&Config, &'e Region<'e>, &[u8])) {
    let content = pattern(1, 1 << 20);
    for engine in engines() {
        for faults in [None, Some(Faults::survivable(7))] {
            let config = Config { engine, faults, depth: 8, ..small() };
            for backing in [Backing::Memory, Backing::Buffered] {
                let mut backed = Backed::new(backing, &content);
                body(&config, &backed.region(), &content);
            }
        }
    }
}

#[test]
fn joined_transfers() {
    let _dog = watch();
    everywhere(|config, region, content| {
        run(config, |cx, _| async move {
            let get = |at: u64| cx.get(cx.alloc(1000).unwrap(), region.at(at), 1000, Tag::new(0));
            let (a, b, c) = join!(get(5), get(500_000), async {
                cx.yield_now().await;
                let first = get(77_777).await;
                get(88_888).await.and(first)
            });
            assert!(*a.unwrap() == content[5..1005]);
            assert!(*b.unwrap() == content[500_000..501_000]);
            assert!(*c.unwrap() == content[77_777..78_777]);
            let many = future::join_all((0..100u64).map(|n| get(n * 10_000)));
            for (n, buf) in many.await.into_iter().enumerate() {
                assert!(*buf.unwrap() == content[n * 10_000..n * 10_000 + 1000]);
            }
            let boxed: Vec<_> =
                (0..20u64).map(|n| get(n).map(|r| r.map(|b| b[0])).boxed_local()).collect();
            let bytes = future::try_join_all(boxed).await.unwrap();
            assert_eq!(bytes, content[..20]);
        })
        .unwrap();
    });
}

/// A set of futures polls each by a waker of its own.
#[test]
fn unordered_sets_of_transfers() {
    let _dog = watch();
    everywhere(|config, region, content| {
        let config = Config { threads: 3, ..config.clone() };
        run(&config, |cx, at| async move {
            let cx = &cx;
            let one = |n: usize| async move {
                let place = (n * 9973 + at.thread * 31) % ((1 << 20) - 600);
                for _ in 0..n % 3 {
                    cx.yield_now().await;
                }
                let buf =
                    cx.get(cx.alloc(600).unwrap(), region.at(place as u64), 600, Tag::new(n)).await;
                let right = *buf.unwrap() == content[place..place + 600];
                cx.wait_tag(Tag::new(n)).await;
                (n, right)
            };
            let mut set: FuturesUnordered<_> = (0..60).map(one).collect();
            let mut seen = [false; 90];
            let mut added = 60;
            while let Some((n, right)) = set.next().await {
                assert!(right && !std::mem::replace(&mut seen[n], true));
                if added < 90 {
                    set.push(one(added));
                    added += 1;
                }
            }
            assert!(seen.iter().all(|seen| *seen));
        })
        .unwrap();
    });
}

/// The loser of a race is dropped: its buffer returns when it is done.
#[test]
fn races() {
    let _dog = watch();
    everywhere(|config, region, _| {
        run(config, |cx, _| async move {
            for n in 0..50u64 {
                let buf = cx.alloc(4096).unwrap();
                let mut get = cx.get(buf, region.at(n * 7), 4096, Tag::new(3)).fuse();
                let mut turns = pin!(
                    async {
                        for _ in 0..n % 4 {
                            cx.yield_now().await;
                        }
                    }
                    .fuse()
                );
                select! { got = get => drop(got.unwrap()), () = turns => {} }
            }
            cx.wait_tag(Tag::new(3)).await;
            assert_eq!(cx.local_store().used_bytes(), 0);
            let mut mail = pin!(cx.read_mailbox().fuse());
            select! { _ = mail => panic!("no mail"), () = cx.yield_now().fuse() => {} }
        })
        .unwrap();
    });
}

/// Notes that it was called.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Drives a future by hand, outside any turn, beside an accelerator.
fn drive<T>(accelerator: &mut Accelerator<'_>, future: impl Future<Output = T>) -> T {
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(flag.clone());
    let mut future = pin!(future);
    flag.0.store(true, Ordering::SeqCst);
    loop {
        if flag.0.swap(false, Ordering::SeqCst)
            && let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return result;
        }
        accelerator.step().unwrap();
    }
}

/// Our futures may be polled outside any turn, by whoever steps the accelerator.
#[test]
fn driven_by_another_executor() {
    let _dog = watch();
    everywhere(|config, region, content| {
        let mut accelerator = Accelerator::new(config).unwrap();
        let cx = accelerator.cx();
        let everything = async {
            let buf = cx.get(cx.alloc(900).unwrap(), region.at(3), 900, Tag::new(0)).await.unwrap();
            assert!(*buf == content[3..903]);
            cx.put(buf, region.at(3), Tag::new(1)).await.unwrap();
            cx.wait_tag(Tag::new(1)).await;
            cx.yield_now().await;
            let inner = cx.clone();
            let spawned = cx.spawn(async move {
                inner.yield_now().await;
                inner.signal(0, 9);
                5
            });
            assert_eq!((cx.read_signals().await, spawned.unwrap().await), (9, 5));
            cx.write_mailbox(1).await;
        };
        drive(&mut accelerator, everything);
        assert_eq!(accelerator.step().unwrap(), Step::Ended);
    });
}

/// A waker that passes on, as executors within executors do.
struct Passing(Waker, AtomicBool);

impl Wake for Passing {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::SeqCst);
        self.0.wake_by_ref();
    }
}

/// Polls its future only when it was woken through its own waker.
struct Strict<F> {
    future: Pin<Box<F>>,
    passing: Option<Arc<Passing>>,
}

impl<F: Future> Future for Strict<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let woken = AtomicBool::new(true);
        let passing =
            self.passing.get_or_insert_with(|| Arc::new(Passing(cx.waker().clone(), woken)));
        let passing = passing.clone();
        if !passing.1.swap(false, Ordering::SeqCst) {
            return Poll::Pending;
        }
        let waker = Waker::from(passing);
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// An executor between that polls nothing it was not asked to: every way to
/// wait must call the waker it was given.
#[test]
fn strict_executors_between() {
    let _dog = watch();
    everywhere(|config, region, content| {
        run(config, |cx, _| async move {
            let everything = Box::pin(async {
                for _ in 0..10 {
                    cx.yield_now().await;
                }
                for n in 0..600u64 {
                    let buf = cx.alloc(64).unwrap();
                    let buf = cx.get(buf, region.at(n * 1000), 64, Tag::new(0)).await.unwrap();
                    assert!(*buf == content[n as usize * 1000..][..64]);
                }
                let inner = cx.clone();
                let spawned = cx.spawn(async move {
                    inner.yield_now().await;
                    inner.signal(0, 2);
                });
                assert_eq!(cx.read_signals().await, 2);
                spawned.unwrap().await;
                let get = cx.get(cx.alloc(5000).unwrap(), region.at(0), 5000, Tag::new(8));
                cx.wait_tag(Tag::new(8)).await;
                drop(get);
            });
            Strict { future: everything, passing: None }.await;
        })
        .unwrap();
    });
}
