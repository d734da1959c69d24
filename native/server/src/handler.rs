//! The interface of an application: what a server does with its clients' messages.

use std::fmt::Debug;

use broker_core::protocol::handshake::Request;

use super::connection::SlotIndex;
use super::loop_state::Core;
use super::refusals::Refusal;

/// A complete message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    Text(&'a str),
    Binary(&'a [u8]),
}

/// What becomes of a handshake.
#[derive(Debug)]
pub enum Admission {
    Accept,
    /// Somebody else decides, and has [`Core::resume`] or [`Core::refuse`] called; the handshake's time goes on.
    Wait,
    Refuse(Refusal),
}

/// What an application keeps of one connection. It begins as the default with the connection's first byte and is
/// dropped as soon as the connection begins to close: what ends with a connection may end in `Drop`.
pub trait ClientState: Default + 'static {
    /// Bytes of memory that the client makes the application hold, of which the client chooses how many.
    fn held_bytes(&self) -> usize {
        0
    }

    /// Whether the client waits for a reply. A server that drains gives it some time.
    fn awaits_reply(&self) -> bool {
        false
    }
}

/// For an application that keeps nothing.
impl ClientState for () {}

/// The application of a server; every event loop has one of its own.
///
/// All methods run on the loop's thread and must not block. A slot names a connection until the method
/// returns; to name it later keep its [`Core::id`].
pub trait Handler: Sized + 'static {
    /// What it keeps of each connection; see [`Core::client`].
    type Client: ClientState;
    /// What other threads ask of it, through [`Shared::tell`](super::Shared::tell).
    type Command: Debug + Send + 'static;

    /// Decides about a well-formed request for a WebSocket or an event stream.
    fn handshake(&mut self, core: &mut Core<Self>, slot: SlotIndex, request: &Request)
    -> Admission;

    /// A connection that was accepted is open now.
    fn opened(&mut self, _core: &mut Core<Self>, _slot: SlotIndex) {}

    /// Takes a message. Messages of one connection come in the order sent.
    fn message(&mut self, core: &mut Core<Self>, slot: SlotIndex, message: Message<'_>);

    /// A connection's alarm, set by [`Core::set_alarm`], has come.
    fn alarm(&mut self, _core: &mut Core<Self>, _slot: SlotIndex) {}

    /// Another thread wants something.
    fn command(&mut self, _core: &mut Core<Self>, _command: Self::Command) {}

    /// About ten times a second.
    fn tick(&mut self, _core: &mut Core<Self>) {}
}
