//! The server: event loops that keep `WebSockets` and event streams, and send them what logs gain.
//!
//! It knows connections, handshakes, messages, logs and who follows them. What is done with a message, who is let in and
//! who may follow what is up to an application, the [`Handler`]. Nothing of the product is here.
//!
//! Theory of operation. N loops, each with its own thread, listener (`SO_REUSEPORT`), epoll and connections; a connection
//! lives and dies on one loop, so its state needs no lock. Loops share the [logs](broker_core::log), which are read under
//! short locks and never while bytes are sent, and have a [`Mailbox`] each, through which other threads ask for things.
//!
//! ```text
//!   other threads ── Command ──► Mailbox ─┐             ┌─► Handler (the application)
//!   sockets ──────── epoll ───────────────┴► event loop ┤     │ works with
//!   logs ◄──── read by cursor ─────────────── Core ◄────┴─────┘
//! ```
//!
//! A connection goes through these states, and each has one way in and out (`life`):
//!
//! ```text
//!   Free ─accept─► Head ─asks others─► Waiting ─admitted─► Open ─close─► Closing ─gone, or its time is over─► Free
//!                    ├────────────── admitted ─────────────►┘               ▲
//!                    └────────────── refused (as from Waiting) ─────────────┘
//! ```
//!
//! Guide. What belongs together:
//!
//! | file | what it knows |
//! |---|---|
//! | `handler` | the application's side: what it is asked, what it keeps of a connection |
//! | `run` | starting, draining and stopping a server; what becomes of a loop that panics |
//! | `event_loop` | one turn: wait, read, take commands, send, broadcast; how long each may take |
//! | `life`, `refusals` | a connection taken in, admitted or refused, closed, forgotten |
//! | `loop_state`, `connection` | the state of a loop, and of one connection |
//! | `outbox` | what one connection is sent for itself: replies, notices, control frames |
//! | `wire` | WebSocket or Server-Sent Events: all that differs between the two |
//! | `following`, `topics` | who follows which log on a loop, and from where |
//! | `output`, `broadcast`, `catch_up` | from logs to sockets: those who keep up together, the others one by one |
//! | `send`, `sys` | ways to send to many sockets, and the few system calls |
//! | `lag`, `wheel` | who does not keep up; timers |
//! | `mailbox`, `shared`, `lock`, `figures`, `config` | what crosses threads; counters and limits |
//!
//! What holds: a loop never waits for anything but its epoll. Whatever a client can make it do is done in shares, so that
//! one client keeps no other waiting; whatever a client can make it keep is counted ([`Core::weigh`]) and bounded.

mod broadcast;
mod catch_up;
mod config;
mod connection;
mod event_loop;
mod figures;
mod following;
mod handler;
mod lag;
mod life;
mod lock;
mod loop_state;
mod mailbox;
mod outbox;
mod output;
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
pub use figures::{Closes, ENDS, Probe};
pub use handler::{Admission, ClientState, Handler, Message};
pub use lock::Lock;
pub use loop_state::{Core, SLOW_CONSUMER};
pub use mailbox::{Command, Mailbox};
pub use refusals::{NoRoom, Refusal};
pub use run::{Server, StartError};
pub use send::Way;
pub use shared::{Counters, Shared, household};
pub use sys::Wake;
pub use topics::{Access, SharedLog};
pub use wire::Wire;
