//! See `_native::fuzzing::answers`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| _native::fuzzing::answers(input));
