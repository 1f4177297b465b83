//! The reader of journals.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cellway_stream::fuzzed::journal(data));
