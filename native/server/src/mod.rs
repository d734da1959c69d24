//! The server: event loops, connections, subscriptions; by WebSocket and as Server-Sent Events.
//!
//! N loops, each with its own thread, listener (`SO_REUSEPORT`), epoll and connections; a connection lives and
//! dies on one loop, so its state needs no lock. Loops share the [logs](crate::log), which are read under short
//! locks and never while bytes are sent, and a [`Mailbox`] each, through which other threads ask for things.
//!
//! What is done with messages is up to a [`Handler`]; [`gateway`] is the product's own.

mod answers;
mod broadcast;
mod catch_up;
mod config;
mod connection;
mod core;
mod event_loop;
mod figures;
mod following;
#[path = "../../gateway/src/mod.rs"]
pub mod gateway;
mod handler;
mod lag;
mod life;
mod lock;
mod mailbox;
mod output;
mod rates;
mod refusals;
mod run;
mod send;
mod shared;
mod sys;
mod topics;
mod wheel;
mod wire;

pub use config::{Config, ConfigError, Network, SendChoice, client_address};
pub use connection::{ConnId, Rate, SlotIndex};
pub use core::{Core, SLOW_CONSUMER};
pub use figures::{Closes, ENDS, Probe};
pub use handler::{Admission, Handler, Message};
pub use mailbox::{Answer, Command, Mailbox, Refusal, Undecided};
pub use rates::Rates;
pub use run::{Server, StartError};
pub use send::Way;
pub use shared::{Counters, Shared};
pub use topics::{Access, SharedLog};
