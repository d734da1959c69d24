//! The gateway: the broker's handling of client messages.
//!
//! The server ([`broker_server`]) handles connections and sends new entries of logs; for everything else it calls a
//! [`Handler`](broker_server::Handler). This crate is that handler. It replies by itself to frequent calls that can be
//! answered from memory; everything else becomes an upcall to the application, which is Python.
//!
//! Guide. The crate has two sides. The rest of the process calls the [`Hub`], from any thread: it opens logs and
//! appends to them, grants tokens, and replies to upcalls. Each event loop has a [`Gateway`]: it runs on the loop's
//! thread, and its state needs no lock. The hub sends a [`Command`] to a loop; a loop sends an [`Upcall`] to the
//! application, and the reply comes back through the hub, as a command to the loop that owns the connection.
//!
//! ```text
//!             a loop's thread                          any thread
//!   server ──► Gateway ── looks up ──► Hub ◄── open, append, grant, settle ── application
//!     ▲           │                     │                                       ▲  │
//!     │           └───── Upcall ────────┼───────────────────────────────────────┘  │
//!     └────────────── Command ──────────┴◄────────────── reply, retry ─────────────┘
//! ```
//!
//! A message passes through these files. Each imports only files below or beside it; of the folder `votes`, only
//! `taking` is at this height, and its other files are at the bottom. A test reads the imports and fails if they form
//! a circle.
//!
//! | file | contents |
//! |---|---|
//! | `handler` | the callbacks of the server, and where this crate handles them |
//! | `requests` | turns messages into calls, including batches; which calls run natively |
//! | `admission`, `streams` | admission by path, account, origin and token; the start of an event stream |
//! | `subscribe` | `subscribe` and `unsubscribe`: target, right, cursor, missed messages |
//! | `votes` | `respond` and `impression`; a folder with a guide of its own |
//! | `rights` | the principal of a connection, and what ends when it changes |
//! | `replies` | pending calls: upcalls, storage, replies |
//! | `gateway` | [`Gateway`] itself, and the server's types with this handler |
//! | `connects` | `GET /connect` from the ingress, on a thread of its own |
//! | `logs`, `hub` | the shared side: logs, tokens, accounts, upkeep |
//! | `client`, `calls`, `notes`, `sessions`, `grants`, `accounts` | data of connections, of their calls, and of tokens |
//! | `commands`, `upcalls`, `outcome`, `params` | messages between the two sides, and to clients |
//!
//! Three rules hold everywhere. A native reply is exactly what the application would reply: unusual calls are passed to
//! the application, so that all errors come from there. The right to follow a log is checked under the lock that guards
//! changes of that right (`rights`, `sessions`). Memory that clients can occupy is counted and bounded where it is
//! allocated.

mod accounts;
mod admission;
mod calls;
mod client;
mod commands;
mod connects;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gateway;
mod grants;
mod handler;
mod hub;
mod logs;
mod notes;
mod outcome;
mod params;
mod replies;
mod requests;
mod rights;
mod sessions;
mod streams;
mod subscribe;
mod upcalls;
mod votes;

pub use accounts::{Account, Accounts, OpenConnections};
pub use broker_server::DELAY_BOUNDS_US;
pub use client::Client;
pub use commands::{Answer, Command, Shared, Undecided};
pub use connects::{Gateways, Ingress, Replies, Reply};
pub use gateway::{Core, Gateway, Server};
pub use hub::Hub;
pub use logs::OwnedEntry;
pub use notes::{Noted, Notes};
pub use sessions::{Attached, Session};
pub use upcalls::{Upcall, Upcalls};
pub use votes::{
    GroupKey, GroupReply, Mismatch, OpenPoll, PollName, Rates, Records, Settled, Settlement, Votes,
};
