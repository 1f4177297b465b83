//! Mailboxes and signals between host and accelerators.

use cellway_accel::{Config, Host, run, run_with_host};

use crate::harness::{small, watch};

/// Words go to and fro, in order.
#[test]
fn ping_pong() {
    let _dog = watch();
    let config = Config { accelerators: 3, ..small() };
    let program = |cx: cellway_accel::Cx<'static>, _| async move {
        let mut words = 0;
        loop {
            match cx.read_mailbox().await {
                0 => return words,
                word => cx.write_mailbox(word * 3).await,
            }
            words += 1;
        }
    };
    let host = |host: &Host<'_>| {
        for word in 1..500 {
            for accelerator in 0..3 {
                host.write_mailbox(accelerator, word + accelerator as u32).unwrap();
            }
            for accelerator in 0..3 {
                let answer = host.read_mailbox(accelerator).unwrap();
                assert_eq!(answer, 3 * (word + accelerator as u32));
            }
        }
        for accelerator in 0..3 {
            host.write_mailbox(accelerator, 0).unwrap();
        }
        "host"
    };
    assert_eq!(run_with_host(&config, program, host).unwrap(), (vec![499; 3], "host"));
}

/// Both boxes are bounded; a writer that finds one full waits, and nothing
/// is lost or passed.
#[test]
fn full_mailboxes_wait() {
    let _dog = watch();
    for mailbox_entries in [0, 1, 4, 7] {
        let config = Config { mailbox_entries, threads: 2, ..small() };
        let room = mailbox_entries.max(1);
        let program = |cx: cellway_accel::Cx<'static>, at: cellway_accel::Place| async move {
            let mut written = 0;
            if at.thread == 0 {
                for word in 0..300 {
                    cx.write_mailbox(word).await;
                    written += 1;
                }
                return written;
            }
            for word in 0..300 {
                assert_eq!(cx.read_mailbox().await, word);
            }
            0
        };
        let host = |host: &Host<'_>| {
            for word in 0..300 {
                // More than fits before anything is read.
                host.write_mailbox(0, word).unwrap();
            }
            (0..300).for_each(|word| assert_eq!(host.read_mailbox(0), Ok(word)));
        };
        run_with_host(&config, program, host).unwrap();
        full_at(&config, room);
    }
}

/// Without a reader exactly `room` words are taken.
fn full_at(config: &Config, room: usize) {
    let config = Config { threads: 2, ..config.clone() };
    let taken = run(&config, |cx, at| async move {
        if at.thread == 1 {
            for _ in 0..room + 5 {
                cx.yield_now().await;
            }
            return 0;
        }
        let mut taken = 0;
        loop {
            let write = std::pin::pin!(cx.write_mailbox(1));
            let turns = std::pin::pin!(async {
                cx.yield_now().await;
                cx.yield_now().await;
            });
            match futures::future::select(write, turns).await {
                futures::future::Either::Left(_) => taken += 1,
                futures::future::Either::Right(_) => return taken,
            }
        }
    });
    assert_eq!(taken.unwrap()[0], room);
}

/// Several threads read one mailbox: each word goes to one of them.
#[test]
fn readers_share_a_mailbox() {
    let _dog = watch();
    let config = Config { threads: 5, ..small() };
    let program = |cx: cellway_accel::Cx<'static>, _| async move {
        let mut words = Vec::new();
        for _ in 0..20 {
            words.push(cx.read_mailbox().await);
        }
        words
    };
    let host = |host: &Host<'_>| (0..100).for_each(|word| host.write_mailbox(0, word).unwrap());
    let (words, ()) = run_with_host(&config, program, host).unwrap();
    let mut words = words.concat();
    words.sort_unstable();
    assert_eq!(words, (0..100).collect::<Vec<_>>());
}

/// Signals are OR-ed together until they are read.
#[test]
fn signals_are_ored() {
    let _dog = watch();
    let config = Config { accelerators: 2, ..small() };
    let program = |cx: cellway_accel::Cx<'static>, at: cellway_accel::Place| async move {
        if at.accelerator == 1 {
            cx.signal(0, 0x100);
            // There is no such accelerator: nothing happens.
            cx.signal(99, 1);
            return 0;
        }
        cx.write_mailbox(1).await;
        let mut seen = 0;
        while seen != 0x10F {
            let bits = cx.read_signals().await;
            assert!(
                bits != 0 && bits & seen == 0,
                "each bit is read once: {bits:x} after {seen:x}"
            );
            seen |= bits;
        }
        seen
    };
    let host = |host: &Host<'_>| {
        host.read_mailbox(0).unwrap();
        for bit in 0..4 {
            host.signal(0, 1 << bit);
        }
        host.signal(99, 1);
    };
    assert_eq!(run_with_host(&config, program, host).unwrap().0, [0x10F, 0]);
    let both = run(&small(), |cx, _| async move {
        cx.signal(0, 1);
        cx.signal(0, 6);
        cx.read_signals().await
    });
    assert_eq!(both.unwrap(), [7], "OR-ed, not queued");
}

/// The host learns that nobody will answer.
#[test]
fn the_host_is_told_of_the_end() {
    let _dog = watch();
    let host = |host: &Host<'_>| {
        let error = host.read_mailbox(0).unwrap_err();
        assert_eq!(error.accelerator, 0);
        assert!(error.to_string().contains("accelerator 0 will not answer"), "{error}");
        assert!(host.read_mailbox(7).is_err(), "there is no such accelerator");
        assert!(host.write_mailbox(7, 1).is_err());
        let words = (0..10).take_while(|word| host.write_mailbox(0, *word).is_ok()).count();
        assert_eq!(words, 4, "a full mailbox that nobody reads");
    };
    run_with_host(&small(), |_, _| async {}, host).unwrap();
    // What was written before the end can still be read.
    let host = |host: &Host<'_>| [host.read_mailbox(0), host.read_mailbox(0)].map(|word| word.ok());
    let program = |cx: cellway_accel::Cx<'static>, _| async move { cx.write_mailbox(5).await };
    assert_eq!(run_with_host(&small(), program, host).unwrap().1, [Some(5), None]);
}

/// A host that panics calls the run off.
#[test]
fn a_panic_of_the_host_ends_the_run() {
    let _dog = watch();
    let ran = std::panic::catch_unwind(|| {
        let program = |cx: cellway_accel::Cx<'static>, _| async move { cx.read_mailbox().await };
        run_with_host(&small(), program, |_| panic!("the host gives up"))
    });
    let message = crate::threads::panic_message(ran.map(|_| ()).unwrap_err());
    assert_eq!(message, "the host gives up");
}
