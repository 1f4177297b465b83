//! Past the page cache: odd bodies, halos and ends.

use cellway_stream::{Cut, Direct, MergeOrder, Options, PlanError, StreamError};
use proptest::prelude::*;

use crate::probe::transformed;
use crate::setting::{From, Ran, Setting, To, has_direct};

/// A file large enough for `auto` to look past the page cache.
const LARGE_BYTES: u64 = (1 << 20) + 700;

fn run(setting: &Setting, cut: Cut) -> Ran {
    let mut kernel = setting.probe(MergeOrder::Any);
    kernel.cut = cut;
    setting.run(&kernel).unwrap()
}

fn transforms(setting: &Setting, cut: Cut, input: &str, output: &str) {
    let ran = run(setting, cut);
    let stats = ran.outcome.unwrap().stats;
    assert!(stats.input_path.starts_with(input), "{}", stats.input_path);
    let output_path = stats.output_path.unwrap();
    assert!(output_path.contains(output), "{output_path}");
    assert!(ran.written.unwrap() == transformed(setting.seed, setting.body()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Neither an odd body nor a halo puts the block where the device wants it.
    #[test]
    fn odd_bodies_and_halos_are_transformed_past_the_cache(
        header in 0u64..5000, trailer in 0u64..5000, pages in 1u64..5, blocks in 0u64..12, odd in 0u64..4096,
        before in prop_oneof![Just(0), 1usize..9000], after in prop_oneof![Just(0), 1usize..9000],
        accelerators in 1usize..4, threads in 1usize..5,
    ) {
        if !has_direct() {
            return Ok(());
        }
        let block = pages * 4096;
        let setting = Setting::of_file(blocks * block + odd, block, To::File);
        let mut setting = setting.at(accelerators, threads).direct(Direct::On);
        setting.sizes = (header, blocks * block + odd, trailer);
        let cut = Cut { align_bytes: 1, before_bytes: before, after_bytes: after };
        transforms(&setting, cut, "direct", "direct");
    }

    /// Wherever the odd end begins that goes through the page cache.
    #[test]
    fn an_odd_end_leaves_its_neighbours_alone(sectors in 1u64..40, odd in 1u64..512) {
        if !has_direct() {
            return Ok(());
        }
        let len = sectors * 512 + odd;
        let setting = Setting::of_file(len, 8192, To::File).at(2, 4).direct(Direct::On);
        transforms(&setting, Cut::ANYWHERE, "direct", "direct");
    }
}

#[test]
fn odd_blocks_are_refused_for_direct_output_and_go_through_the_cache_by_themselves() {
    let setting = Setting::of_file(LARGE_BYTES, 1000, To::File).at(2, 2);
    transforms(&setting, Cut::ANYWHERE, "page cache", "page cache");
    if !has_direct() {
        return;
    }
    transforms(
        &setting,
        Cut::ANYWHERE,
        "page cache",
        "blocks of 1000 bytes are no multiple of 4096",
    );
    let ran = run(&setting.direct(Direct::On), Cut::ANYWHERE);
    let error = ran.outcome.unwrap_err();
    assert!(matches!(&error, StreamError::Plan(PlanError::Direct { .. })), "{error}");
    let message = error.to_string();
    assert!(message.starts_with("direct I/O was asked for: /"), "{message}");
    assert!(message.contains("out: blocks of 1000 bytes are no multiple of 4096"), "{message}");
    assert!(message.ends_with("use --direct auto"), "{message}");
    assert_eq!(ran.written, None);
    // Alone, or only read, an odd block is as good as any.
    transforms(
        &Setting::of_file(999, 1000, To::File).direct(Direct::On),
        Cut::ANYWHERE,
        "direct",
        "direct",
    );
    let reading = Setting::of_file(100_001, 1000, To::Nothing).direct(Direct::On);
    assert_eq!(run(&reading, Cut::ANYWHERE).outcome.unwrap().stats.input_path, "direct");
}

/// A default block is whole records and whole pages, so that direct output works.
#[test]
fn a_block_that_is_not_given_suits_direct_output() {
    if !has_direct() {
        return;
    }
    let mut setting = Setting::of_file(LARGE_BYTES, 1, To::File);
    setting.options = Options::default();
    for record in [1, 3, 16, 48, 100] {
        transforms(&setting, Cut::records(record), "page cache", "direct");
    }
    // 5003 x 4096 bytes are too much for a block.
    transforms(&setting, Cut::records(5003), "page cache", "no multiple of 4096");
}

#[test]
fn an_output_of_unknown_length_can_be_direct_too() {
    if !has_direct() {
        return;
    }
    for len in [0, 1, 4096, 4097, 100_000] {
        let mut setting = Setting::of_file(len, 8192, To::File).direct(Direct::On);
        setting.from = From::Pipe;
        transforms(&setting, Cut::ANYWHERE, "a stream", "direct");
        transforms(
            &setting.direct(Direct::Auto),
            Cut::ANYWHERE,
            "a stream",
            "its length is not known",
        );
    }
}

#[test]
fn a_stream_is_refused_where_direct_was_asked_for() {
    for (from, to) in [(From::Pipe, To::Nothing), (From::File, To::Null), (From::Pipe, To::Pipe)] {
        let mut setting = Setting::of_file(10_000, 4096, to).direct(Direct::On);
        setting.from = from;
        if from == From::File && !has_direct() {
            continue;
        }
        let error = run(&setting, Cut::ANYWHERE).outcome.unwrap_err();
        assert!(matches!(&error, StreamError::Plan(PlanError::Direct { .. })), "{error}");
        assert!(error.to_string().contains("use --direct auto"), "{error}");
    }
}
