//! Commands of the hub to the gateway of one event loop.

use std::sync::Arc;

use broker_server::ConnId;

use super::sessions::Session;
use super::votes::Settled;

/// The state that event loops share, including the hub's commands to them.
pub type Shared = broker_server::Shared<Command>;

/// One request. Those about a connection are ignored when it is gone.
#[derive(Debug)]
pub enum Command {
    /// The readers allowed for the log with this number have changed, or the time to decide about them is over.
    Access(u64, Undecided),
    SignIn(ConnId, Arc<Session>),
    /// The sessions of these connections have ended: give them those that have replaced them, or make them anonymous.
    EndSessions(Vec<ConnId>),
    /// Reply to a call: its ticket, whether it failed, the JSON.
    Reply(ConnId, u64, Answer, Vec<u8>),
    /// Run a `subscribe` again, or decide about an event stream again.
    Retry(ConnId, u64),
    /// Records have been counted, or could not be.
    Settle(Vec<Settled>),
    /// Send a finished message.
    Notify(ConnId, Vec<u8>),
}

/// What happens to the subscribers of a private log whose rights are undecided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// Ask the application about them.
    Asked,
    /// Wait for the decision.
    Kept,
    /// End their subscriptions: the time to decide is over.
    Expelled,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Result,
    Error,
}
