//! The command line.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cellway_cli::fuzzed::command_line(data));
