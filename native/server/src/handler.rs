//! What a server does with what its clients say.

use super::connection::SlotIndex;
use super::core::Core;
use super::mailbox::{Command, Refusal};
use crate::protocol::handshake::Request;

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
    /// Somebody else decides, with [`Core::admit`] or [`Core::refuse`]; the handshake's time goes on.
    Wait,
    Refuse(Refusal),
}

/// The application of a server; every event loop has one of its own.
///
/// All methods run on the loop's thread and must not block. A slot names a connection until the method
/// returns; to name it later keep its [`Core::id`].
pub trait Handler: 'static {
    /// Decides about a well-formed request for a WebSocket.
    fn handshake(&mut self, core: &mut Core, slot: SlotIndex, request: &Request) -> Admission;

    /// Takes a message. Messages of one connection come in the order sent.
    fn message(&mut self, core: &mut Core, slot: SlotIndex, message: Message<'_>);

    /// A connection's alarm, set by [`Core::set_alarm`], has come.
    fn alarm(&mut self, _core: &mut Core, _slot: SlotIndex) {}

    /// Another thread wants something that the loop itself does not know.
    fn command(&mut self, _core: &mut Core, _command: Command) {}

    /// About ten times a second.
    fn tick(&mut self, _core: &mut Core) {}
}
