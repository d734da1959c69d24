//! Commands of the hub to the gateway of one event loop.

use std::sync::Arc;

use broker_server::ConnId;

use super::sessions::Session;
use super::votes::Settled;

/// What the event loops share, with what the hub asks of them.
pub type Shared = broker_server::Shared<Command>;

/// One request. Those about a connection are ignored when it is gone.
#[derive(Debug)]
pub enum Command {
    /// Who may follow the log with this number has changed, or its time to decide is over.
    Access(u64, Undecided),
    SignIn(ConnId, Arc<Session>),
    /// Make these connections anonymous: their sessions are revoked.
    Revoke(Vec<ConnId>),
    /// Answer a call: its ticket, whether it failed, the JSON.
    Reply(ConnId, u64, Answer, Vec<u8>),
    /// Run a `subscribe` again, or decide about an event stream again.
    Retry(ConnId, u64),
    /// Records have been counted, or not.
    Settle(Vec<Settled>),
    /// Send a finished message.
    Notify(ConnId, Vec<u8>),
}

/// What becomes of the subscribers of a private log whose rights are not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// The application is asked about them.
    Asked,
    /// They are waited for.
    Kept,
    /// They follow no longer: the time to decide is over.
    Expelled,
}

/// How a call was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Result,
    Error,
}
