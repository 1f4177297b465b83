//! Buffers sent from one local store to another.

use std::pin::pin;

use cellway_accel::{Config, run};
use futures::future::{Either, ready, select};

use crate::harness::{pattern, small, watch};

#[test]
fn every_size_arrives() {
    let _dog = watch();
    let sizes = [0, 1, 127, 128, 129, 4096, 100_000, 1 << 20];
    let config = Config { accelerators: 2, ..small() };
    run(&config, |cx, at| async move {
        for (number, size) in sizes.into_iter().enumerate() {
            let bytes = pattern(number as u64, size + 20);
            if at.accelerator == 0 {
                let mut buf = cx.alloc(size + 20).unwrap();
                buf.copy_from_slice(&bytes);
                // What is sent is the view.
                buf.set_view(20..20 + size);
                let buf = cx.send(buf, 1).await.unwrap();
                assert!(*buf == bytes[20..], "the sender's buffer is as it was");
            } else {
                let buf = cx.alloc(1 << 20).unwrap();
                let (buf, from) = cx.recv(buf).await.unwrap();
                assert_eq!(from, 0);
                assert!(*buf == bytes[20..], "{size} bytes");
            }
        }
        assert_eq!(cx.local_store().used_bytes(), 0);
    })
    .unwrap();
}

/// Parcels of one sender come in order, those of several in some order, each once.
#[test]
fn several_senders() {
    const EACH: usize = 100;
    let _dog = watch();
    let config = Config { accelerators: 4, threads: 2, ..small() };
    let received = run(&config, |cx, at| async move {
        let mut received = Vec::new();
        for number in 0..EACH {
            if at.accelerator > 0 {
                let mut buf = cx.alloc(3).unwrap();
                buf.copy_from_slice(&[at.accelerator as u8, at.thread as u8, number as u8]);
                cx.send(buf, 0).await.unwrap();
                continue;
            }
            for _ in 0..3 {
                let (buf, from) = cx.recv(cx.alloc(64).unwrap()).await.unwrap();
                assert_eq!(from, usize::from(buf[0]));
                received.push((buf[0], buf[1], buf[2]));
            }
        }
        received
    });
    let mut received = received.unwrap().concat();
    assert_eq!(received.len(), 6 * EACH);
    received.sort_unstable();
    received.dedup();
    assert_eq!(received.len(), 6 * EACH, "each parcel came once");
}

/// In the order they were offered, whether awaited one by one or together.
#[test]
fn one_senders_parcels_keep_their_order() {
    let _dog = watch();
    let config = Config { accelerators: 2, ..small() };
    run(&config, |cx, at| async move {
        let send = |number: u32| {
            let mut buf = cx.alloc(4).unwrap();
            buf.copy_from_slice(&number.to_le_bytes());
            cx.send(buf, 0)
        };
        for number in (0..500).step_by(5) {
            if at.accelerator == 1 {
                send(number).await.unwrap();
                let others = (number + 1..number + 5).map(send);
                futures::future::try_join_all(others).await.unwrap();
                continue;
            }
            for number in number..number + 5 {
                let (buf, _) = cx.recv(cx.alloc(4).unwrap()).await.unwrap();
                assert_eq!(*buf, number.to_le_bytes());
            }
        }
    })
    .unwrap();
}

/// A channel's parcels come in order though those of other channels, sent
/// before, are not taken.
#[test]
fn channels_do_not_wait_for_one_another() {
    const CHANNELS: u32 = 5;
    let _dog = watch();
    let config = Config { accelerators: 2, ..small() };
    run(&config, |cx, at| async move {
        if at.accelerator == 1 {
            let send = |channel: u32, number: u8| {
                let mut buf = cx.alloc(2).unwrap();
                buf.copy_from_slice(&[channel as u8, number]);
                cx.send_on(channel, buf, 0)
            };
            let sent = (0..CHANNELS).flat_map(|channel| [0, 1].map(|number| send(channel, number)));
            futures::future::try_join_all(sent).await.unwrap();
            return;
        }
        for channel in (0..CHANNELS).rev() {
            for number in [0, 1] {
                let (buf, _) = cx.recv_on(channel, cx.alloc(2).unwrap()).await.unwrap();
                assert_eq!(*buf, [channel as u8, number]);
            }
        }
    })
    .unwrap();
}

/// Taking an offer back leaves those of other senders alone.
#[test]
fn an_offer_beside_one_taken_back() {
    let _dog = watch();
    let config = Config { accelerators: 3, ..small() };
    run(&config, |cx, at| async move {
        let mut buf = cx.alloc(1).unwrap();
        buf[0] = at.accelerator as u8;
        match at.accelerator {
            0 => {
                cx.read_signals().await;
                let (buf, from) = cx.recv(buf).await.unwrap();
                assert_eq!((from, buf[0]), (1, 1));
            }
            1 => {
                let offered = futures::join!(cx.send(buf, 0), async { cx.signal(2, 1) });
                offered.0.unwrap();
            }
            _ => {
                cx.read_signals().await;
                let mut offer = Box::pin(cx.send(buf, 0));
                assert!(matches!(select(&mut offer, ready(())).await, Either::Right(_)));
                drop(offer);
                cx.signal(0, 1);
            }
        }
    })
    .unwrap();
}

/// A parcel that does not fit stays until a larger buffer comes.
#[test]
fn a_parcel_that_does_not_fit() {
    let _dog = watch();
    let config = Config { accelerators: 2, ..small() };
    run(&config, |cx, at| async move {
        if at.accelerator == 0 {
            return drop(cx.send(cx.alloc(1000).unwrap(), 1).await.unwrap());
        }
        let (buf, no_fit) = cx.recv(cx.alloc(128).unwrap()).await.unwrap_err();
        assert_eq!((no_fit.parcel_bytes, no_fit.capacity_bytes), (1000, 128));
        assert!(no_fit.to_string().contains("1000 bytes does not fit a buffer of 128"), "{no_fit}");
        drop(buf);
        let (buf, _) = cx.recv(cx.alloc(1000).unwrap()).await.unwrap();
        assert_eq!(buf.len(), 1000);
    })
    .unwrap();
}

/// An offer that is dropped is taken back: its bytes are never read.
#[test]
fn offers_are_taken_back() {
    let _dog = watch();
    let config = Config { accelerators: 2, ..small() };
    run(&config, |cx, at| async move {
        if at.accelerator == 1 {
            cx.read_signals().await;
            let (buf, _) = cx.recv(cx.alloc(64).unwrap()).await.unwrap();
            assert_eq!(*buf, [7; 5], "only the last offer stands");
            return;
        }
        for mark in 0..7 {
            let mut buf = cx.alloc(5).unwrap();
            buf.fill(mark);
            match select(pin!(cx.send(buf, 1)), ready(())).await {
                Either::Left(_) => panic!("nobody receives yet"),
                Either::Right(_) => assert!(cx.local_store().used_bytes() > 0, "still pinned"),
            }
            assert_eq!(cx.local_store().used_bytes(), 0, "dropped, the buffer is free");
        }
        cx.signal(1, 1);
        let mut buf = cx.alloc(5).unwrap();
        buf.fill(7);
        cx.send(buf, 1).await.unwrap();
    })
    .unwrap();
}

/// Offers withdrawn at any moment: what arrives is whole.
#[test]
fn offers_withdrawn_while_they_are_taken() {
    let _dog = watch();
    let config = Config { accelerators: 2, ..small() };
    run(&config, |cx, at| async move {
        if at.accelerator == 1 {
            loop {
                let (buf, _) = cx.recv(cx.alloc(4096).unwrap()).await.unwrap();
                assert!(buf.iter().all(|byte| *byte == buf[0]), "a torn parcel");
                if buf[0] == 255 {
                    return;
                }
            }
        }
        for round in 0..2000u32 {
            let mut buf = cx.alloc(4096).unwrap();
            buf.fill((round % 250) as u8);
            let send = pin!(cx.send(buf, 1));
            let turns = pin!(async {
                for _ in 0..round % 40 {
                    cx.yield_now().await;
                }
            });
            drop(select(send, turns).await);
        }
        let mut last = cx.alloc(4096).unwrap();
        last.fill(255);
        cx.send(last, 1).await.unwrap();
    })
    .unwrap();
}

#[test]
fn nobody_to_send_to() {
    let _dog = watch();
    run(&Config { accelerators: 2, ..small() }, |cx, _| async move {
        let mut buf = cx.alloc(9).unwrap();
        buf.fill(3);
        let buf = cx.send(buf, 2).await.unwrap_err();
        assert_eq!(*buf, [3; 9]);
        assert!(cx.send(buf, usize::MAX).await.is_err());
    })
    .unwrap();
}

/// Threads of one accelerator send to each other, too.
#[test]
fn sending_to_oneself() {
    let _dog = watch();
    run(&Config { threads: 2, ..small() }, |cx, at| async move {
        for round in 0..100 {
            if at.thread == 0 {
                let mut buf = cx.alloc(300).unwrap();
                buf.copy_from_slice(&pattern(round, 300));
                cx.send(buf, 0).await.unwrap();
            } else {
                let (buf, from) = cx.recv(cx.alloc(300).unwrap()).await.unwrap();
                assert_eq!(from, 0);
                assert!(*buf == pattern(round, 300));
            }
        }
    })
    .unwrap();
}

/// A parcel goes round a ring of accelerators, each in the middle of a send
/// and a receive.
#[test]
fn round_a_ring() {
    let _dog = watch();
    let config = Config { accelerators: 4, ..small() };
    let laps = run(&config, |cx, at| async move {
        let next = (at.accelerator + 1) % at.accelerators;
        let mut buf = cx.alloc(2000).unwrap();
        buf[0] = at.accelerator as u8;
        for _ in 0..100 {
            let spare = cx.alloc(2000).unwrap();
            let (sent, received) = futures::join!(cx.send(buf, next), cx.recv(spare));
            drop(sent.unwrap());
            buf = received.unwrap().0;
        }
        usize::from(buf[0])
    });
    assert_eq!(laps.unwrap(), [0, 1, 2, 3], "100 is 25 laps");
}
