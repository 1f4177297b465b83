//! The server's side of a 9P2000 connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cellway_ninep::fuzzed::session(data));
