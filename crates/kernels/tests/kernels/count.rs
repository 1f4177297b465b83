use cellway_kernels::{Count, Counted, Pattern, PatternError};
use proptest::prelude::*;
use regex::bytes::RegexBuilder;

use crate::driver::{Plan, json, reduce, text};

/// Line by line, each for itself.
fn plain(pattern: &str, input: &[u8], counted: Counted) -> u64 {
    let regex = RegexBuilder::new(pattern).multi_line(true).build().unwrap();
    let mut lines: Vec<_> = input.split(|byte| *byte == b'\n').collect();
    // Behind the last line's end there is no line.
    if lines.last().is_some_and(|last| last.is_empty()) {
        lines.pop();
    }
    let found = lines.into_iter().map(|line| match counted {
        Counted::Matches => regex.find_iter(line).count(),
        Counted::Lines => usize::from(regex.is_match(line)),
    });
    found.sum::<usize>() as u64
}

fn count(pattern: &str, input: &[u8], counted: Counted, plan: Plan) -> u64 {
    let kernel = Count::new(Pattern::new(pattern).unwrap(), counted);
    reduce(&kernel, input, plan).unwrap().count
}

/// Literals, classes that hold line ends, anchors, borders, and what is empty.
const PATTERNS: [&str; 16] = [
    "a",
    "ab",
    "a|ab",
    r"a\s+b",
    r"[^a]+",
    "^a",
    "b$",
    "^$",
    "",
    "x*",
    r"\bab\b",
    "(?s)a.b",
    r"\n",
    r"\Ba",
    "(?-u:[^a])b",
    r"(a|\n)+?b",
];

#[test]
fn counts_are_those_of_grep() {
    let input = b"one two\ntwo two\n\nthree";
    for (pattern, matches, lines) in
        [("two", 3, 2), ("t", 4, 3), ("^t", 2, 2), ("e$", 1, 1), ("", 23, 4), ("o\nt", 0, 0)]
    {
        for block_bytes in 1..=input.len() {
            let plan = Plan::blocks_of(block_bytes);
            let found = [Counted::Matches, Counted::Lines].map(|c| count(pattern, input, c, plan));
            assert_eq!(found, [matches, lines], "{pattern:?} in blocks of {block_bytes}");
        }
    }
}

#[test]
fn what_cannot_be_used_is_refused() {
    assert!(matches!(Pattern::new("("), Err(PatternError::Regex(why)) if why.contains("unclosed")));
    for anchored in [r"\Aa", r"a\z", "(?-m)^a", "(?R)a$"] {
        assert_eq!(Pattern::new(anchored).unwrap_err(), PatternError::Anchor, "{anchored}");
    }
}

#[test]
fn a_line_too_long_across_blocks_is_an_error() {
    let kernel = Count::new(Pattern::new("a").unwrap(), Counted::Lines).record_bytes_max(10);
    let input = |len: usize| [b"b\n".to_vec(), vec![b'a'; len], b"\na".to_vec()].concat();
    let counted = |len, block_bytes| reduce(&kernel, &input(len), Plan::blocks_of(block_bytes));
    assert_eq!(counted(10, 6).unwrap().count, 2);
    assert_eq!(counted(11, 100).unwrap().count, 2);
    // Where the block ends as the line does, nothing lies across.
    assert_eq!(counted(11, 13).unwrap().count, 2);
    let error = counted(11, 6).unwrap_err();
    assert_eq!(error.offset, Some(2));
    assert!(error.to_string().contains("--max-record"), "{error}");
    assert_eq!(reduce(&kernel, &[b'a'; 100], Plan::blocks_of(100)).unwrap().count, 1);
}

/// Patterns that could match across lines cost no more than others: with
/// quadratic work this would take hours.
#[test]
fn many_lines_are_searched_once() {
    let input = b"abcdefg\n".repeat(1 << 19);
    for (pattern, matches) in [("[^x]+", 1 << 19), (r"\([^)]*\)", 0), (r"g\s", 0), ("(?s)a.*h", 0)]
    {
        let plan = Plan::blocks_of(input.len());
        assert_eq!(count(pattern, &input, Counted::Matches, plan), matches, "{pattern}");
    }
}

#[test]
fn the_report_names_what_was_counted() {
    let kernel = Count::new(Pattern::new("l").unwrap(), Counted::Matches);
    let mut report = reduce(&kernel, b"hello", Plan::blocks_of(9)).unwrap();
    assert_eq!(text(&mut report), b"2\n");
    assert_eq!(json(&mut report), serde_json::json!({"matches": 2}));
    report.counted = Counted::Lines;
    assert_eq!(json(&mut report), serde_json::json!({"lines": 2}));
}

proptest! {
    #[test]
    fn any_cut_gives_the_count_of_the_whole(
        input in prop::collection::vec(prop::sample::select(b"aab \nx\xff".as_slice()), 0..300),
        pattern in prop::sample::select(PATTERNS.as_slice()),
        lines in any::<bool>(),
        block_bytes in 1_usize..100,
        parts in 1_usize..5,
        pipe in any::<bool>(),
    ) {
        let counted = if lines { Counted::Lines } else { Counted::Matches };
        let found = count(pattern, &input, counted, Plan { block_bytes, parts, pipe });
        prop_assert_eq!(found, plain(pattern, &input, counted), "{:?}", pattern);
    }
}
