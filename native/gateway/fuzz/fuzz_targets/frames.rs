//! See `broker_gateway::fuzzing::frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| broker_gateway::fuzzing::frames(input));
