//! The messages of 9P2000.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cellway_ninep::fuzzed::messages(data));
