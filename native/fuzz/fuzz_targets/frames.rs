//! See `_native::fuzzing::frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| _native::fuzzing::frames(input));
