//! What an application adds to the state of a server: its data about each connection, and its commands.

use std::fmt::Debug;

/// The application's data about one connection. It is created as the default with the connection's first byte and
/// dropped as soon as the connection begins to close, so `Drop` can end what belongs to the connection.
pub trait ClientState: Default + 'static {
    /// Bytes of the application's memory that the client controls.
    fn held_bytes(&self) -> usize {
        0
    }

    /// Whether the client waits for a reply. A draining server gives it some time.
    fn awaits_reply(&self) -> bool {
        false
    }
}

/// For an application without such data.
impl ClientState for () {}

/// An application as the state of a loop knows it; what it does is in its [`Handler`](super::Handler).
pub trait Application: Sized + 'static {
    /// Its data about each connection; see [`Core::client`](super::Core::client).
    type Client: ClientState;
    /// The commands that other threads send it, by [`Shared::tell`](super::Shared::tell).
    type Command: Debug + Send + 'static;
}
