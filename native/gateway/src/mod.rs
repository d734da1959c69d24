//! The gateway: JSON-RPC over WebSocket, event streams, native subscriptions, and upcalls for everything else.
//!
//! [`Hub`] is what the rest of the process calls, from any thread. Each event loop has a [`Gateway`], which
//! handles its connections and shares the hub. What a gateway cannot decide becomes an [`Upcall`]; the
//! answer comes back through the hub as a command to the loop that owns the connection.

mod accounts;
mod admission;
#[path = "votes/params.rs"]
mod ballot;
#[path = "votes/polls.rs"]
mod ballots;
mod calls;
mod dispatch;
mod grants;
mod hub;
mod logs;
#[path = "votes/lane.rs"]
mod outbox;
mod params;
mod requests;
mod rights;
mod sessions;
mod streams;
mod subscribe;
mod upcalls;
mod votes;

pub use accounts::{Account, Accounts};
pub use ballots::{Ballots, OpenPoll, PollName};
pub use calls::Calls;
pub use dispatch::Gateway;
pub use hub::Hub;
pub use logs::OwnedEntry;
pub use outbox::{Fate, GroupKey, Mismatch, Records, Settled};
#[cfg(any(test, feature = "fuzzing"))]
pub use params::check_params;
pub use sessions::{Attached, Session};
pub use upcalls::{Upcall, Upcalls};
