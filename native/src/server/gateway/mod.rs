//! The gateway: JSON-RPC over WebSocket, native subscriptions, and upcalls for everything else.
//!
//! [`Hub`] is what the rest of the process calls, from any thread. Each event loop has a [`Gateway`], which
//! handles its connections and shares the hub. What a gateway cannot decide becomes an [`Upcall`]; the
//! answer comes back through the hub as a command to the loop that owns the connection.

mod accounts;
mod admission;
mod calls;
mod dispatch;
mod hub;
mod logs;
mod params;
mod requests;
mod rights;
mod sessions;
mod subscribe;
mod upcalls;

pub use accounts::{Account, Accounts};
pub use calls::Calls;
pub use dispatch::Gateway;
pub use hub::Hub;
pub use logs::OwnedEntry;
#[cfg(any(test, feature = "fuzzing"))]
pub use params::check_params;
pub use sessions::{Attached, Session};
pub use upcalls::{Upcall, Upcalls};
