//! The interface of an application: what a server does with the messages of its clients.

use broker_core::protocol::handshake::Request;

use super::application::Application;
use super::ids::SlotIndex;
use super::loop_state::Core;
use super::refusals::Refusal;

/// A complete message from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    Text(&'a str),
    Binary(&'a [u8]),
}

/// The decision about a handshake.
#[derive(Debug)]
pub enum Admission {
    Accept,
    /// Another thread decides, and calls [`Core::resume`] or [`Core::refuse`]; the handshake's time continues to run.
    Wait,
    Refuse(Refusal),
}

/// The application of a server; every event loop has an instance of its own.
///
/// All methods run on the loop's thread and must not block. A slot identifies a connection until the method returns; to
/// refer to it later, keep its [`Core::id`].
pub trait Handler: Application {
    /// Decides about a well-formed request for a WebSocket or an event stream.
    fn handshake(&mut self, core: &mut Core<Self>, slot: SlotIndex, request: &Request)
    -> Admission;

    /// An accepted connection is now open.
    fn opened(&mut self, _core: &mut Core<Self>, _slot: SlotIndex) {}

    /// Handles a message. Messages of one connection arrive in the order sent.
    fn message(&mut self, core: &mut Core<Self>, slot: SlotIndex, message: Message<'_>);

    /// The alarm of a connection, set by [`Core::set_alarm`], is due.
    fn alarm(&mut self, _core: &mut Core<Self>, _slot: SlotIndex) {}

    /// Handles a command of another thread.
    fn command(&mut self, _core: &mut Core<Self>, _command: Self::Command) {}

    /// Called about ten times a second.
    fn tick(&mut self, _core: &mut Core<Self>) {}
}
