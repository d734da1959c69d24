//! The computations of the broker's native half, without I/O: from bytes and calls to bytes and decisions.
//!
//! * [`protocol`]: RFC 6455, HTTP's request heads, Server-Sent Events, JSON and JSON-RPC;
//! * [`log`]: one append-only log of finished frames per topic, read by cursors;
//! * [`answers`]: who has voted in one shard of a poll, and the totals;
//! * [`directory`]: which gateway a client is sent to.
//!
//! Nothing here opens a file or a socket, reads a clock, or starts a thread. The compiler refuses unsafe code, and no
//! dependency offers I/O. So tests need only byte strings and slow, obvious models.

#![forbid(unsafe_code)]

pub mod answers;
pub mod directory;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod log;
pub mod protocol;
