use std::io;

use super::runs::Runs;
use super::scan::{is_space, words};
use super::table::{Full, Order, TABLE_BYTES_MIN, Table, Word};
use super::*;

use proptest::prelude::*;

fn word(text: &[u8]) -> Word<'_> {
    Word::in_text(text, 0, text.len())
}

fn table(bytes: u64) -> Table {
    table_for(0, bytes)
}

fn table_for(words: usize, bytes: u64) -> Table {
    let mut table = Table::new(bytes);
    table.reserve(words).unwrap();
    table
}

fn drained(table: &mut Table, order: Order, limit: u64) -> Vec<(Vec<u8>, u64)> {
    let mut all = Vec::new();
    table
        .drain(order, limit, |word, count| {
            all.push((word.to_vec(), count));
            Ok(())
        })
        .unwrap();
    all
}

proptest! {
    #[test]
    fn scanning_finds_what_splitting_finds(
        data in prop::collection::vec(prop_oneof![Just(b'a'), Just(b' '), any::<u8>()], 0..300), inside in any::<bool>()
    ) {
        let mut found = Vec::new();
        let open = words(&data, inside, |start, end| {
            found.push(start..end);
            Ok::<(), ()>(())
        });
        let mut expected = Vec::new();
        let mut at = if inside { data.iter().position(|byte| is_space(*byte)).unwrap_or(data.len()) } else { 0 };
        while at < data.len() {
            let end = data[at..].iter().position(|byte| is_space(*byte)).map_or(data.len(), |len| at + len);
            if end > at {
                expected.push(at..end);
            }
            at = end + 1;
        }
        let last = expected.pop_if(|word| word.end == data.len());
        prop_assert_eq!(open, Ok(last.map(|word| word.start)));
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_word_is_the_same_wherever_it_lies(
        text in prop::collection::vec(prop_oneof![Just(0), any::<u8>()], 1..60), padding in 0_usize..20
    ) {
        let mut table = table(0);
        table.add(&word(&text), 1).unwrap();
        let padded = [vec![b'x'; 3], text.clone(), vec![b'y'; padding]].concat();
        table.add(&Word::in_text(&padded, 3, 3 + text.len()), 1).unwrap();
        prop_assert_eq!(drained(&mut table, Order::Word, u64::MAX), vec![(text, 2)]);
    }
}

proptest! {
    // Each case fills two tables.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_table_sorts_as_slices_do(
        texts in prop::collection::hash_map(
            prop::collection::vec(prop_oneof![Just(0), Just(b'a'), any::<u8>()], 1..40), 1..4_u64, 0..200)
    ) {
        for order in [Order::Word, Order::Count] {
            let mut table = table(0);
            for (text, count) in &texts {
                table.add(&word(text), *count).unwrap();
            }
            let mut expected: Vec<_> = texts.clone().into_iter().collect();
            expected.sort_by(|a, b| order.compare((&a.0, a.1), (&b.0, b.1)));
            prop_assert_eq!(table.len(), texts.len());
            prop_assert_eq!(drained(&mut table, order, u64::MAX), expected);
            prop_assert_eq!(table.len(), 0);
        }
    }
}

#[test]
fn a_table_stays_within_its_bytes() {
    for bytes in [0, TABLE_BYTES_MIN, 300_000, 1 << 20, (3 << 20) + 1] {
        for (len, words) in [(3, 0), (17, 5000), (100, 0), (3, usize::MAX), (17, 1)] {
            let mut table = table_for(words, bytes);
            let mut added = 0_u64;
            while table.add(&word(format!("{added:0len$}").as_bytes()), 1).is_ok() {
                added += 1;
            }
            let most = bytes.max(TABLE_BYTES_MIN);
            assert!(table.bytes() <= most, "{} of {most} bytes", table.bytes());
            assert!(table.bytes() > most / 2, "{} of {most} bytes", table.bytes());
            assert_eq!(table.len() as u64, added);
            // A word that is there needs no room.
            assert_eq!(table.add(&word(format!("{:0len$}", 0).as_bytes()), 1), Ok(()));
            assert_eq!(table.add(&word(&[b'x'; 200]), 1), Err(Full));
            assert_eq!(drained(&mut table, Order::Count, 2).len(), 2);
            assert_eq!(
                table.add(&word(&[b'w'; WORD_BYTES_MAX]), 1),
                Ok(()),
                "an empty table takes any word"
            );
        }
    }
}

#[test]
fn a_table_does_not_grow_for_words_that_it_has_room_for() {
    let grows = |room: usize, words: usize| {
        let mut table = table_for(room, 1 << 20);
        let before = table.bytes();
        for number in 0..words {
            assert_eq!(table.add(&word(format!("{number}").as_bytes()), 1), Ok(()));
        }
        table.bytes() > before
    };
    for words in [1, 512, 513, 5000] {
        assert!(!grows(words, words), "{words}");
    }
    assert!(grows(512, 513));
    assert!(grows(0, 5000));
}

/// `count` runs of which each has every `count`-th of some numbers and all of a few words.
fn runs_of(order: Order, limit: u64, count: u64) -> Runs {
    let mut runs = Runs::new(&std::env::temp_dir(), order, limit);
    for run in 0..count {
        let mut numbers: Vec<_> =
            (run..5 * count).step_by(count as usize).map(|n| (format!("{n:05}"), n + 1)).collect();
        if order == Order::Word {
            numbers.push(("everywhere".to_owned(), 2));
        }
        numbers.sort_by(|a, b| order.compare((a.0.as_bytes(), a.1), (b.0.as_bytes(), b.1)));
        runs.write(|writer| {
            numbers.iter().try_for_each(|(word, count)| writer.push(word.as_bytes(), *count))
        })
        .unwrap();
    }
    runs
}

fn read(runs: Runs) -> Vec<(String, u64)> {
    let mut merged = runs.into_merged().unwrap();
    let (mut all, mut word) = (Vec::new(), Vec::new());
    while let Some(count) = merged.next(&mut word).unwrap() {
        all.push((String::from_utf8(word.clone()).unwrap(), count));
    }
    all
}

#[test]
fn any_number_of_runs_merges_to_one() {
    for count in [1, 2, 16, 17, 255, 256, 257, 600] {
        let mut expected: Vec<_> = (0..5 * count).map(|n| (format!("{n:05}"), n + 1)).collect();
        expected.push(("everywhere".to_owned(), 2 * count));
        assert_eq!(read(runs_of(Order::Word, u64::MAX, count)), expected, "{count} runs");
    }
}

#[test]
fn runs_of_several_accelerators_merge() {
    let mut runs = runs_of(Order::Word, u64::MAX, 200);
    runs.append(runs_of(Order::Word, u64::MAX, 200));
    let mut expected: Vec<_> = (0..1000).map(|n| (format!("{n:05}"), 2 * (n + 1))).collect();
    expected.push(("everywhere".to_owned(), 800));
    assert_eq!(read(runs), expected);
}

#[test]
fn a_limit_keeps_the_first() {
    let expected: Vec<_> = (0..3000).rev().map(|n| (format!("{n:05}"), n + 1)).collect();
    let found = read(runs_of(Order::Count, 7, 600));
    assert_eq!(found[..7], expected[..7]);
}

#[test]
fn a_failed_write_fails_the_run() {
    let mut runs = Runs::new(&std::env::temp_dir(), Order::Word, u64::MAX);
    let error = runs.write(|_| Err(io::Error::other("no space"))).unwrap_err();
    assert_eq!(error.to_string(), "no space");
    assert!(runs.is_empty());
}
