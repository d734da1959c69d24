//! See `_native::fuzzing::envelope`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| _native::fuzzing::envelope(input));
