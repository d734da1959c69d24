//! The computations of the broker's native half, without I/O: bytes and calls in, bytes and decisions out.
//!
//! * [`protocol`]: RFC 6455, HTTP's request heads, Server-Sent Events, JSON and JSON-RPC;
//! * [`log`]: one append-only log of finished frames per topic, read by cursors;
//! * [`answers`]: who has voted in one shard of a poll, and the totals.
//!
//! Nothing here opens a file or a socket, reads a clock, starts a thread, or is unsafe. The compiler refuses unsafe
//! code, and none of the dependencies could help with the rest. So everything here is tested with byte strings and
//! against slow, obvious models.

#![forbid(unsafe_code)]

pub mod answers;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod log;
pub mod protocol;
