//! Buffers for the texts of each vote, reused to avoid allocations.

/// One set for each event loop.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub poll: String,
    /// As the application names it too, so that a connection is the same visitor to both.
    pub connection: String,
    /// As the application's limits name it.
    pub address: String,
}
