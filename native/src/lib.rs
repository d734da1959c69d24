//! The native half of the gateway: WebSocket protocol, program logs and event loops.
//!
//! Only `py` knows the Python interpreter; everything else can be used and tested without it.

mod answers;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod log;
pub mod protocol;
pub mod py;
pub mod server;
