use cellway_kernels::{Pattern, Replace};
use proptest::prelude::*;
use regex::bytes::RegexBuilder;

use crate::driver::{Plan, run_in_room, transform};

/// Line by line, each for itself.
fn plain(pattern: &str, with: &str, input: &[u8]) -> Vec<u8> {
    let regex = RegexBuilder::new(pattern).multi_line(true).build().unwrap();
    let mut output = Vec::new();
    for line in input.split_inclusive(|byte| *byte == b'\n') {
        let (line, end) = match line.strip_suffix(b"\n") {
            Some(line) => (line, &b"\n"[..]),
            None => (line, &b""[..]),
        };
        output.extend_from_slice(&regex.replace_all(line, with.as_bytes()));
        output.extend_from_slice(end);
    }
    output
}

fn replace(pattern: &str, with: &str, input: &[u8], plan: Plan) -> Vec<u8> {
    let kernel = Replace::new(Pattern::new(pattern).unwrap(), with);
    transform(&kernel, input, plan).unwrap()
}

/// Literals, classes that hold line ends, anchors, groups, and what is empty.
const PATTERNS: [&str; 14] = [
    "a",
    "a|ab",
    r"a\s+b",
    r"[^a]+",
    "^a",
    "b$",
    "^$",
    "",
    "x*",
    "a*?",
    r"\bab\b",
    r"(a)(?P<second>b?)",
    r"(a|\n)+?b",
    "(?-u:[^a])b",
];

const TEXTS: [&str; 6] = ["", "-", "a", "longer", "<$0>", "$second$1$$"];

#[test]
fn replaces_as_sed_does() {
    let input = b"one two\ntwo two\n\nthree";
    for (pattern, with, output) in [
        ("two", "2", &b"one 2\n2 2\n\nthree"[..]),
        ("t(.)", "$1-", b"one w-o\nw-o w-o\n\nh-ree"),
        ("^", "> ", b"> one two\n> two two\n> \n> three"),
        ("$", "!", b"one two!\ntwo two!\n!\nthree!"),
    ] {
        for block_bytes in 1..=input.len() {
            let found = replace(pattern, with, input, Plan::blocks_of(block_bytes));
            assert_eq!(found, output, "{pattern:?} in blocks of {block_bytes}");
        }
    }
}

#[test]
fn what_is_too_long_is_refused() {
    let kernel = Replace::new(Pattern::new("b").unwrap(), "x".repeat(65));
    let error = transform(&kernel, b"abc", Plan::blocks_of(3)).unwrap_err();
    assert!(error.to_string().contains("65 bytes") && error.to_string().contains("--block"));
    let kernel = Replace::new(Pattern::new("b").unwrap(), "").record_bytes_max(10);
    let error = transform(&kernel, &[b'b'; 100], Plan::blocks_of(50)).unwrap_err();
    assert!(error.to_string().contains("--max-record"), "{error}");
}

proptest! {
    #[test]
    fn any_cut_and_room_give_the_output_of_the_whole(
        input in prop::collection::vec(prop::sample::select(b"aab \nx\xff".as_slice()), 0..300),
        pattern in prop::sample::select(PATTERNS.as_slice()),
        with in prop::sample::select(TEXTS.as_slice()),
        block_bytes in 1_usize..100,
        parts in 1_usize..5,
        room_bytes in 0_usize..100,
        pipe in any::<bool>(),
    ) {
        // A group may match a line: what stands for it must fit.
        let room_bytes = room_bytes + if with.contains('$') { 2 * input.len() + 3 } else { 6 };
        let kernel = Replace::new(Pattern::new(pattern).unwrap(), with);
        let plan = Plan { block_bytes, parts, pipe };
        let (found, _) = run_in_room(&kernel, &input, plan, room_bytes).unwrap();
        prop_assert_eq!(found, plain(pattern, with, &input), "{:?} -> {:?}", pattern, with);
    }
}
