//! The gateway: what the broker does with the messages of its clients.
//!
//! The server ([`broker_server`]) keeps the connections and sends what logs gain; it asks a
//! [`Handler`](broker_server::Handler) what to do with all the rest. This crate is that handler. It answers by itself what
//! comes often and can be answered from memory; everything else is a question to the application, which is Python.
//!
//! Guide. Two sides meet here. [`Hub`] is what the rest of the process calls, from any thread: it opens logs and appends to
//! them, grants tokens, answers questions. [`Gateway`] is what one event loop has: it runs on the loop's thread, and its
//! state needs no lock. From the hub to a loop goes a [`Command`]; from a loop to the application goes an [`Upcall`], and
//! the answer comes back through the hub, as a command to the loop that owns the connection.
//!
//! ```text
//!             a loop's thread                          any thread
//!   server ──► Gateway ── looks up ──► Hub ◄── open, append, grant, settle ── application
//!     ▲           │                     │                                       ▲  │
//!     │           └───── Upcall ────────┼───────────────────────────────────────┘  │
//!     └────────────── Command ──────────┴◄────────────── reply, retry ─────────────┘
//! ```
//!
//! A message passes these files. Each imports only what stands below it, or beside it; of `votes` only `taking` stands where
//! the folder does, and its other files at the bottom. A test of the repository reads the imports and fails when they go in
//! a circle.
//!
//! | file | what it knows |
//! |---|---|
//! | `handler` | what the server may ask, and who in this crate is asked then |
//! | `requests` | messages into calls, batches included; which calls are run here |
//! | `admission`, `streams` | who is let in: path, account, origin, token; and where an event stream begins |
//! | `subscribe` | `subscribe` and `unsubscribe`: target, right, cursor, what was missed |
//! | `votes` | `respond` and `impression`; a folder with a guide of its own |
//! | `rights` | who a connection is, and what ends when that changes |
//! | `replies` | calls that wait: asked, kept, answered |
//! | `gateway` | [`Gateway`] itself, and the server's types with this handler |
//! | `logs`, `hub` | the shared side: logs, tokens, accounts, upkeep |
//! | `client`, `calls`, `sessions`, `grants`, `accounts` | what is kept of connections, of their calls, of tokens |
//! | `commands`, `upcalls`, `outcome`, `params` | what the sides say to each other, and to clients |
//!
//! Three rules hold everywhere. What is answered natively is answered exactly as the application would: what is odd in any
//! way goes there, so that its errors are the only ones. Whoever may follow a log is asked under the lock under which the
//! answer can change (`rights`, `sessions`). And whatever clients make us keep is
//! counted and bounded where it is kept.

mod accounts;
mod admission;
mod calls;
mod client;
mod commands;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gateway;
mod grants;
mod handler;
mod hub;
mod logs;
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
pub use client::Client;
pub use commands::{Answer, Command, Shared, Undecided};
pub use gateway::{Core, Gateway, Server};
pub use hub::Hub;
pub use logs::OwnedEntry;
pub use sessions::{Attached, Session};
pub use upcalls::{Upcall, Upcalls};
pub use votes::{
    Fate, GroupKey, Mismatch, OpenPoll, PollName, Rates, Records, Settled, Settlement, Votes,
};
