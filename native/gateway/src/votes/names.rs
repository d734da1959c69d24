//! Buffers for the texts of each vote, reused to avoid allocations.

/// One set for each event loop.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub poll: String,
    /// In the application's spelling, so that a connection is the same visitor on both paths.
    pub connection: String,
    /// In the spelling of the application's limits.
    pub address: String,
}
