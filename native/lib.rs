//! The native half of the gateway: WebSocket protocol, program logs and event loops.
//!
//! Only `py` knows the Python interpreter; everything else can be used and tested without it.

#[path = "core/src/answers/mod.rs"]
mod answers;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "gateway/src/fuzzing/mod.rs"]
pub mod fuzzing;
#[path = "core/src/log/mod.rs"]
pub mod log;
#[path = "core/src/protocol/mod.rs"]
pub mod protocol;
#[path = "py/src/mod.rs"]
pub mod py;
#[path = "server/src/mod.rs"]
pub mod server;
