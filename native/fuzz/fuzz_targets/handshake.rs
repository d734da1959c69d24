//! See `_native::fuzzing::handshake`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| _native::fuzzing::handshake(input));
