use std::collections::BTreeMap;

use cellway_kernels::{Finish, WordCount};
use proptest::prelude::*;
use stream::{Kernel, KernelError};

use crate::driver::{Plan, json, reduce, run, text};

const WORD_BYTES_MAX: usize = 64 << 10;
/// Tables for which everything here is small.
const ROOMY: u64 = 64 << 20;

fn is_space(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// `COUNT<TAB>WORD` lines, by counting in a map and sorting.
fn plain_count(input: &[u8], top: usize) -> Vec<u8> {
    let mut counts = BTreeMap::new();
    for word in input.split(is_space).filter(|word| !word.is_empty()) {
        *counts.entry(word).or_insert(0_u64) += 1;
    }
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let lines = sorted
        .iter()
        .take(top)
        .map(|(word, count)| [format!("{count}\t").as_bytes(), word, b"\n"].concat());
    lines.collect::<Vec<_>>().concat()
}

fn kernel(table_bytes: u64) -> WordCount {
    WordCount::new(std::env::temp_dir()).table_bytes(table_bytes)
}

fn count(input: &[u8], plan: Plan) -> Result<Vec<u8>, KernelError> {
    reduce(&kernel(ROOMY), input, plan).map(|mut report| text(&mut report))
}

fn assert_counts(found: &[u8], expected: &[u8], what: &str) {
    let at = found
        .split(|byte| *byte == b'\n')
        .zip(expected.split(|byte| *byte == b'\n'))
        .position(|(a, b)| a != b);
    assert!(
        found == expected,
        "{what}: {} bytes instead of {}, first at line {at:?}",
        found.len(),
        expected.len()
    );
}

/// Text of a few letters, so that words repeat, with all kinds of space.
fn texts() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => prop::sample::select(b"ab".as_slice()),
        2 => prop::sample::select(b" \t\n\x0b\x0c\r".as_slice()),
        1 => prop::sample::select(b"\0\x08\x0e\x1f\x21\x85\xa0\xff".as_slice()),
    ];
    let long = (prop::sample::select(b"xy\0".as_slice()), 0_usize..200)
        .prop_map(|(byte, len)| vec![byte; len]);
    prop::collection::vec(prop_oneof![9 => byte.prop_map(|byte| vec![byte]), 1 => long], 0..600)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_cut_gives_the_counts_of_the_whole(
        input in texts(), block_bytes in 1_usize..300, parts in 1_usize..5, pipe in any::<bool>()
    ) {
        let found = count(&input, Plan { block_bytes, parts, pipe }).unwrap();
        assert_counts(&found, &plain_count(&input, usize::MAX), "words");
    }

    #[test]
    fn the_top_is_where_the_whole_begins(input in texts(), top in 0_usize..20) {
        let mut report = reduce(&kernel(ROOMY).top(top as u64), &input, Plan::blocks_of(100)).unwrap();
        assert_counts(&text(&mut report), &plain_count(&input, top), "top");
    }

}

proptest! {
    // Each case counts 40 000 words.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn words_that_do_not_fit_the_table_are_spilled(
        seed in any::<u64>(), words in 3000_u64..30_000, parts in 1_usize..4, top in prop::option::of(0_usize..9000)
    ) {
        let input = many_words(seed, 40_000, words);
        let plan = Plan { block_bytes: 10_000, parts, pipe: false };
        let mut small = kernel(0);
        if let Some(top) = top {
            small = small.top(top as u64);
        }
        let mut report = reduce(&small, &input, plan).unwrap();
        prop_assert_eq!(report.words, 40_000);
        assert_counts(&text(&mut report), &plain_count(&input, top.unwrap_or(usize::MAX)), "spilled");
    }
}

/// `count` words out of `different` ones, some of which are long.
fn many_words(seed: u64, count: u64, different: u64) -> Vec<u8> {
    let mut state = seed;
    let words = (0..count).map(|_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Squared, so that some words are frequent.
        let choice = ((state >> 33) % different).pow(2) / different;
        format!("{:o}{}\n", choice.wrapping_mul(2_654_435_761), "z".repeat((choice % 37) as usize))
    });
    words.collect::<String>().into_bytes()
}

#[test]
fn spilling_changes_nothing() {
    let input = many_words(1, 60_000, 20_000);
    let plan = Plan { block_bytes: 4096, parts: 3, pipe: false };
    let spilled = reduce(&kernel(0), &input, plan).map(|mut report| text(&mut report));
    let roomy = count(&input, plan);
    assert_counts(&spilled.unwrap(), &roomy.unwrap(), "spilled");
}

#[test]
fn a_word_may_lie_across_any_number_of_borders() {
    let long = [vec![b'w'; 1000], b" w ".to_vec(), vec![b'v'; 17]].concat();
    for block_bytes in (1..40).chain([999, 1000, 1001, 1002, 1003, 1004, 2000]) {
        let found = count(&long, Plan { block_bytes, parts: 2, pipe: false }).unwrap();
        assert_counts(
            &found,
            &plain_count(&long, usize::MAX),
            &format!("blocks of {block_bytes} bytes"),
        );
    }
}

#[test]
fn the_longest_word_has_64_kib() {
    for before in [0, 1, 63, 100] {
        for behind in [0, 1, 100] {
            let around = |len| [vec![b' '; before], vec![b'w'; len], vec![b'\n'; behind]].concat();
            for block_bytes in [1, 64, 1000, 65_536, 65_537, 200_000] {
                let plan = Plan { block_bytes, parts: 2, pipe: false };
                // One byte at a time it takes too long to do it for all.
                if block_bytes == 1 && (before, behind) != (1, 1) {
                    continue;
                }
                let input = around(WORD_BYTES_MAX);
                assert_counts(
                    &count(&input, plan).unwrap(),
                    &plain_count(&input, 9),
                    "a word of 64 KiB",
                );
                let error = count(&around(WORD_BYTES_MAX + 1), plan).unwrap_err();
                assert_eq!(error.offset, Some(before as u64), "{error}");
                assert!(error.to_string().contains("longer than 64 KiB"), "{error}");
            }
        }
    }
}

#[test]
fn the_longest_word_fits_the_smallest_table() {
    let words: Vec<u8> = (b'a'..=b'z')
        .flat_map(|letter| [vec![letter; WORD_BYTES_MAX], vec![b' ']].concat())
        .collect();
    let plan = Plan { block_bytes: 100_000, parts: 2, pipe: false };
    let mut report = reduce(&kernel(0), &words, plan).unwrap();
    assert_counts(&text(&mut report), &plain_count(&words, usize::MAX), "long words");
}

#[test]
fn a_directory_that_cannot_be_written_is_named_with_a_cure() {
    let input = many_words(2, 20_000, 20_000);
    let missing = std::env::temp_dir().join("no such directory");
    let kernel = WordCount::new(&missing).table_bytes(0);
    let error = run(&kernel, &input, Plan::blocks_of(4096)).unwrap_err().to_string();
    assert!(
        error.contains(missing.to_str().unwrap()) && error.contains("--table-bytes"),
        "{error}"
    );
    // What fits the table needs no directory.
    let kernel = WordCount::new(&missing);
    assert!(reduce(&kernel, &input, Plan::blocks_of(input.len())).is_ok());
}

#[test]
fn the_reports_say_the_same() {
    let input = b"b a \xff\xfe b \"q\\\" b a \xe2\x82\xac";
    let (_, part) = run(&kernel(ROOMY), input, Plan::blocks_of(4)).unwrap();
    let mut report = kernel(ROOMY).finish(part).unwrap();
    let expected = serde_json::json!({"words": 8, "distinct": 5, "counts": [
        {"count": 3, "word": "b"},
        {"count": 2, "word": "a"},
        {"count": 1, "word": "\"q\\\""},
        {"count": 1, "word": "€"},
        {"count": 1, "word_hex": "fffe"},
    ]});
    assert_eq!(json(&mut report), expected);
    let found = count(input, Plan::blocks_of(4)).unwrap();
    assert_eq!(found, b"3\tb\n2\ta\n1\t\"q\\\"\n1\t\xe2\x82\xac\n1\t\xff\xfe\n");
    assert_eq!(
        json(&mut reduce(&kernel(0), b" ", Plan::blocks_of(4)).unwrap())["counts"],
        serde_json::json!([])
    );
}

#[test]
fn the_table_is_shared_and_counted() {
    let roomy = kernel(ROOMY);
    let (one, four) = (roomy.memory_bytes(1), roomy.memory_bytes(4));
    assert!(one > ROOMY && four > one && four < ROOMY + 4 * (3 << 20), "{one}, {four}");
    assert!(kernel(0).memory_bytes(4) > 4 * (256 << 10));
    let by_default = WordCount::new(std::env::temp_dir());
    assert_eq!(4 * by_default.memory_bytes(1), by_default.memory_bytes(4));
}

#[test]
fn a_part_goes_from_node_to_node_with_what_it_spilled() {
    let input = many_words(2, 20_000, 40_000);
    let expected = plain_count(&input, usize::MAX);
    let twice = plain_count(&[&*input, b" ", &*input].concat(), usize::MAX);
    for table_bytes in [0, ROOMY] {
        let kernel = kernel(table_bytes);
        let (_, part) = run(&kernel, &input, Plan::blocks_of(4096)).unwrap();
        let mut saved = Vec::new();
        kernel.save(&part, &mut saved).unwrap();
        for to in [0, ROOMY] {
            let mut part = self::kernel(to).load(&saved, 1).unwrap();
            self::kernel(to).merge_saved(&mut part, &saved).unwrap();
            assert_counts(&text(&mut self::kernel(to).finish(part).unwrap()), &twice, "merged");
            let part = self::kernel(to).load(&saved, 1).unwrap();
            assert_counts(&text(&mut self::kernel(to).finish(part).unwrap()), &expected, "loaded");
        }
        // The next part begins with room for as many words, if it may have that.
        for next in [kernel.clone(), kernel.clone().table_bytes(0)] {
            let (_, part) = run(&next, &input, Plan::blocks_of(4096)).unwrap();
            assert_counts(&text(&mut next.finish(part).unwrap()), &expected, "the next one");
        }
        for cut in [0, 7, 8, 9, 23, 24, saved.len() - 1] {
            let loaded = kernel.load(&saved[..cut], 1);
            assert_eq!(loaded.is_ok(), cut == 8, "{cut}: it ends between words");
        }
    }
    let mut saved = 1_u64.to_le_bytes().to_vec();
    saved.extend_from_slice(&1_u64.to_le_bytes());
    saved.extend_from_slice(&0_u64.to_le_bytes());
    assert!(kernel(0).load(&saved, 1).is_err(), "a word without bytes");
}
