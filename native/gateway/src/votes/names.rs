//! Texts that are made anew for each vote, kept for their memory.

/// One set for each event loop.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub poll: String,
    /// As the application names it too, so that a connection is the same visitor to both.
    pub connection: String,
    /// As the application's limits name it.
    pub address: String,
}
