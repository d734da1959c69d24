//! Fuzz targets: one function for each parser of outside bytes, and one for the log.
//!
//! A target takes any bytes, and panics when a rule is broken that should hold for all of them. The gateway adds what it
//! reads itself, and drives them.

mod answers;
mod envelope;
mod frames;
mod handshake;
mod log;
mod proxy;

pub use answers::answers;
pub use envelope::envelope;
pub use frames::frames;
pub use handshake::handshake;
pub use log::log;
pub use proxy::proxy;
