//! See `_native::fuzzing::log`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| _native::fuzzing::log(input));
