//! A program that deadlocks is reported, with what is waited for.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cellway_accel::{Accelerator, Config, Cx, Place, RunError, Tag, run, run_with_host};

use crate::harness::{Backed, Backing, engines, pattern, small, watch};

/// Runs a program that must deadlock, and tells who waits for what.
fn stuck<F: Future<Output = ()> + 'static>(
    config: &Config,
    program: impl Fn(Cx<'static>, Place) -> F + Sync,
) -> (Vec<(usize, &'static str)>, String) {
    let _dog = watch();
    match run(config, program) {
        Err(RunError::Deadlock(waits)) => {
            let told = RunError::Deadlock(waits.clone()).to_string();
            assert!(told.starts_with("deadlock: every thread waits"), "{told}");
            (waits.threads, told)
        }
        other => panic!("not reported: {other:?}"),
    }
}

#[test]
fn an_empty_mailbox() {
    let (threads, told) = stuck(&small(), |cx, _| async move { _ = cx.read_mailbox().await });
    assert_eq!(threads, [(0, "its mailbox")]);
    assert!(told.contains("on accelerator 0 thread 0 waits for its mailbox"), "{told}");
}

/// It is seen by whoever ends last, too.
#[test]
fn an_empty_mailbox_while_others_work() {
    let (threads, told) = stuck(&Config { accelerators: 2, ..small() }, |cx, at| async move {
        if at.accelerator == 1 {
            for _ in 0..100_000 {
                cx.yield_now().await;
            }
        } else {
            cx.read_mailbox().await;
        }
    });
    assert_eq!(threads, [(0, "its mailbox")]);
    assert!(told.contains("on accelerator 0"), "{told}");
}

#[test]
fn a_full_mailbox_that_nobody_reads() {
    let (threads, _) = stuck(&small(), |cx, _| async move {
        for word in 0..5 {
            cx.write_mailbox(word).await;
        }
    });
    assert_eq!(threads, [(0, "room in its outbound mailbox")]);
}

/// Mail to a host that is not there, or looks no more, is no news.
#[test]
fn an_empty_mailbox_after_mail_to_nobody() {
    let program = |cx: Cx<'static>, _| async move {
        cx.write_mailbox(1).await;
        cx.read_mailbox().await;
    };
    assert_eq!(stuck(&small(), program).0, [(0, "its mailbox")]);
    let _dog = watch();
    let ran = run_with_host(&small(), program, |_| ());
    assert!(matches!(ran, Err(RunError::Deadlock(_))), "{ran:?}");
    let read_first = run_with_host(
        &small(),
        |cx, _| async move {
            cx.write_mailbox(1).await;
            cx.write_mailbox(2).await;
            cx.read_mailbox().await;
        },
        |host| host.read_mailbox(0),
    );
    assert!(matches!(read_first, Err(RunError::Deadlock(_))), "{read_first:?}");
}

#[test]
fn a_signal_that_never_comes() {
    let (threads, _) = stuck(&small(), |cx, _| async move { _ = cx.read_signals().await });
    assert_eq!(threads, [(0, "a signal")]);
}

#[test]
fn a_parcel_that_never_comes() {
    let (threads, _) = stuck(&Config { accelerators: 2, ..small() }, |cx, _| async move {
        drop(cx.recv(cx.alloc(10).unwrap()).await.map_err(drop));
    });
    assert_eq!(threads, [(0, "a parcel")]);
}

#[test]
fn a_parcel_that_nobody_wants() {
    // It comes before the other accelerator has ended, and after.
    for yields in [0, 100_000] {
        let config = Config { accelerators: 2, ..small() };
        let (threads, told) = stuck(&config, |cx, at| async move {
            if at.accelerator == 1 {
                for _ in 0..yields {
                    cx.yield_now().await;
                }
                drop(cx.send(cx.alloc(10).unwrap(), 0).await.map_err(drop));
            }
        });
        assert_eq!(threads, [(0, "a receiver of its parcel")]);
        assert!(told.contains("on accelerator 1"), "{told}");
    }
}

/// One waits for the end of another, which waits for mail.
#[test]
fn a_join_and_a_mailbox() {
    let (threads, told) = stuck(&small(), |cx, _| async move {
        let inner = cx.clone();
        let reader = cx.spawn(async move { _ = inner.read_mailbox().await }).unwrap();
        reader.await;
    });
    assert_eq!(threads, [(0, "a thread's end"), (1, "its mailbox")]);
    assert!(
        told.contains("thread 0 waits for a thread's end, thread 1 waits for its mailbox"),
        "{told}"
    );
}

#[test]
fn two_threads_that_wait_for_each_others_end() {
    let (threads, _) = stuck(&small(), |cx, _| async move {
        let first = Rc::new(RefCell::new(None));
        let (handle, inner) = (first.clone(), cx.clone());
        let second = cx.spawn(async move {
            inner.yield_now().await;
            let first: Option<cellway_accel::Thread<'_, ()>> = handle.take();
            first.unwrap().await;
        });
        let second = second.unwrap();
        *first.borrow_mut() = Some(cx.spawn(second).unwrap());
    });
    assert_eq!(threads, [(1, "a thread's end"), (2, "a thread's end")]);
}

/// A future that nobody will wake; before it the thread waited for much else.
#[test]
fn a_foreign_future_that_nobody_wakes() {
    let (threads, _) = stuck(&small(), |_, _| std::future::pending());
    assert_eq!(threads, [(0, "a future that is not this accelerator's")]);
    let (threads, _) = stuck(&small(), |cx, _| async move {
        cx.signal(0, 1);
        cx.read_signals().await;
        let inner = cx.clone();
        cx.spawn(async move { inner.yield_now().await }).unwrap().await;
        std::future::pending().await
    });
    assert_eq!(threads, [(0, "a future that is not this accelerator's")]);
}

/// Long lists are cut short in words, not in the value.
#[test]
fn many_threads() {
    let config = Config { threads: 30, ..small() };
    let (threads, told) = stuck(&config, |cx, _| async move { _ = cx.read_mailbox().await });
    assert_eq!(threads.len(), 30);
    assert!(told.ends_with("thread 3 waits for its mailbox and 26 more"), "{told}");
}

/// All wait, each accelerator for another.
#[test]
fn a_cycle_of_accelerators() {
    let (threads, _) =
        stuck(&Config { accelerators: 3, threads: 2, ..small() }, |cx, at| async move {
            // Everybody has work first.
            for _ in 0..at.index() * 10 {
                cx.yield_now().await;
            }
            if at.thread == 0 {
                drop(cx.send(cx.alloc(10).unwrap(), (at.accelerator + 1) % 3).await.map_err(drop));
            } else {
                cx.read_signals().await;
            }
        });
    assert_eq!(threads, [(0, "a receiver of its parcel"), (1, "a signal")]);
}

/// The engine was in use, and is not any more.
#[test]
fn after_transfers() {
    let _dog = watch();
    for engine in engines() {
        let mut backed = Backed::new(Backing::Buffered, &pattern(1, 4096));
        let region = &backed.region();
        let config = Config { engine, accelerators: 2, threads: 2, ..small() };
        let ran = run(&config, |cx, _| async move {
            for _ in 0..10 {
                let buf = cx.alloc(4096).unwrap();
                cx.get(buf, region.at(0), 4096, Tag::new(0)).await.unwrap();
            }
            cx.read_mailbox().await
        });
        let Err(RunError::Deadlock(waits)) = ran else { panic!("not reported: {ran:?}") };
        assert_eq!(waits.threads, [(0, "its mailbox"), (1, "its mailbox")]);
    }
}

/// The host waits for an accelerator that waits for the host.
#[test]
fn host_and_accelerator() {
    let _dog = watch();
    let answer = Mutex::new(None);
    let ran = run_with_host(
        &small(),
        |cx, _| async move { cx.read_mailbox().await },
        |host| *answer.lock().unwrap() = Some(host.read_mailbox(0)),
    );
    assert!(matches!(ran, Err(RunError::Deadlock(_))), "{ran:?}");
    let error = answer.into_inner().unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains("waits for the host itself"), "{error}");
}

/// The host writes more than anybody reads.
#[test]
fn host_at_a_full_mailbox() {
    let _dog = watch();
    let written = Mutex::new(0);
    let ran = run_with_host(
        &small(),
        |cx, _| async move { cx.read_signals().await },
        |host| {
            while host.write_mailbox(0, 1).is_ok() {
                *written.lock().unwrap() += 1;
            }
        },
    );
    assert!(matches!(ran, Err(RunError::Deadlock(_))), "{ran:?}");
    assert_eq!(*written.lock().unwrap(), 4);
}

/// An accelerator of its own sees its own deadlock.
#[test]
fn outside_a_run() {
    let _dog = watch();
    let mut accelerator = Accelerator::new(&small()).unwrap();
    let cx = accelerator.cx();
    drop(accelerator.cx().spawn(async move { cx.read_mailbox().await }).unwrap());
    let ended = accelerator.run_to_end();
    assert!(matches!(ended, Err(RunError::Deadlock(_))), "{ended:?}");
}

/// What was a deadlock is none any more when its caller has helped, and then
/// somebody outside may wake a thread.
#[test]
fn a_deadlock_is_over_when_the_caller_helps() {
    let _dog = watch();
    let mut accelerator = Accelerator::new(&small()).unwrap();
    let cx = accelerator.cx();
    let (open, gate) = futures::channel::oneshot::channel();
    let (asked, ask) = std::sync::mpsc::channel();
    let body = async move {
        cx.read_signals().await;
        asked.send(()).unwrap();
        gate.await.unwrap();
    };
    drop(accelerator.cx().spawn(body).unwrap());
    let ended = accelerator.run_to_end();
    assert!(matches!(ended, Err(RunError::Deadlock(_))), "{ended:?}");
    accelerator.cx().signal(0, 1);
    let (over, sleeper) = (&AtomicBool::new(false), rustix::thread::gettid());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            ask.recv().unwrap();
            // Opened only when the accelerator sleeps, or has given up.
            let state = format!("/proc/self/task/{}/stat", sleeper.as_raw_nonzero());
            while !std::fs::read_to_string(&state).unwrap().contains(") S ") && !over.load(SeqCst) {
                std::hint::spin_loop();
            }
            _ = open.send(());
        });
        let ended = accelerator.run_to_end();
        over.store(true, SeqCst);
        ended.unwrap();
    });
}

/// Whoever moves data for another, or works for it, keeps it from being
/// called stuck.
#[test]
fn no_false_alarm() {
    let _dog = watch();
    for engine in engines() {
        let mut backed = Backed::new(Backing::Buffered, &pattern(2, 1 << 20));
        let region = &backed.region();
        let config = Config { engine, accelerators: 3, ..small() };
        run(&config, |cx, at| async move {
            for round in 0..100u64 {
                match at.accelerator {
                    0 => {
                        let buf = cx.alloc(64 << 10).unwrap();
                        let got = cx.get(buf, region.at(round * 4096), 64 << 10, Tag::new(0)).await;
                        cx.send(got.unwrap(), 1).await.unwrap();
                    }
                    1 => {
                        let (buf, _) = cx.recv(cx.alloc(64 << 10).unwrap()).await.unwrap();
                        cx.signal(2, 1);
                        cx.send(buf, 2).await.unwrap();
                    }
                    _ => {
                        cx.read_signals().await;
                        drop(cx.recv(cx.alloc(64 << 10).unwrap()).await.unwrap());
                    }
                }
            }
        })
        .unwrap();
    }
}
