//! Descriptors of records, records as JSON, and paths in them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cellway_record::fuzzed::layout(data));
