//! What the native half of the broker computes, without any I/O: bytes and calls in, bytes and decisions out.
//!
//! * [`protocol`]: RFC 6455, HTTP's request heads, Server-Sent Events, JSON and JSON-RPC;
//! * [`log`]: one append-only log of finished frames for each topic, read by cursors;
//! * [`answers`]: who has voted in one shard of a poll, and the totals.
//!
//! Nothing here opens a file or a socket, reads a clock, starts a thread, or is unsafe: the compiler refuses the last, and
//! none of the crates that it depends on could help with the others. So everything here is tested with byte strings and
//! against slow, obvious models.

#![forbid(unsafe_code)]

pub mod answers;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod log;
pub mod protocol;
