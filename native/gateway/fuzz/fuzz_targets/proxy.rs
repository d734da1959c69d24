//! See `broker_gateway::fuzzing::proxy`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| broker_gateway::fuzzing::proxy(input));
