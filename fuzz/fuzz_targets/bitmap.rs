//! The reader of bitmaps.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cellway_kernels::fuzzed::bitmap(data));
