//! The server: event loops that serve `WebSockets` and event streams, and send them new entries of logs.
//!
//! It handles connections, handshakes, messages, logs and subscriptions to logs. An application, the [`Handler`],
//! decides what a message does, who may connect, and who may follow a log. Nothing here is specific to the product.
//!
//! Theory of operation. N loops, each with its own thread, listener (`SO_REUSEPORT`), epoll and connections; a
//! connection stays on one loop, so its state needs no lock. Loops share the [logs](broker_core::log), which are read
//! under short locks and never while bytes are sent. Each loop has a [`Mailbox`], through which other threads send it
//! commands.
//!
//! ```text
//!   other threads ── Command ──► Mailbox ─┐             ┌─► Handler (the application)
//!   sockets ──────── epoll ───────────────┴► event loop ┤     │ works with
//!   logs ◄──── read by cursor ─────────────── Core ◄────┴─────┘
//! ```
//!
//! A connection has these states; the transitions are in `life`:
//!
//! ```text
//!   Free ─accept─► Head ─asks others─► Waiting ─admitted─► Open ─close─► Closing ─gone, or its time is over─► Free
//!                    ├────────────── admitted ─────────────►┘               ▲
//!                    └────────────── refused (as from Waiting) ─────────────┘
//! ```
//!
//! Guide to the files:
//!
//! | file | contents |
//! |---|---|
//! | `application`, `handler` | the interface to the application: its data for each connection, and its callbacks |
//! | `run` | starting, draining and stopping a server; handling of a loop that panics |
//! | `event_loop` | one turn: wait, read, take commands, send, broadcast; how long each may take |
//! | `life`, `refusals` | the life of a connection: accepted, admitted or refused, closed, removed |
//! | `shares` | how many connections one address, and one network, may have |
//! | `loop_state`, `connection`, `ids` | the state of a loop, and of one connection; what it is called |
//! | `outbox` | output for a single connection: replies, notices, control frames |
//! | `tls` | encryption of connections, where the server has a certificate |
//! | `transport`, `by_transport` | all differences between WebSocket and Server-Sent Events |
//! | `following`, `topics` | which connections of a loop follow which log, and from which position |
//! | `output`, `broadcast`, `catch_up` | from logs to sockets: connections that keep up together, the others one by one |
//! | `send`, `sys` | ways to send to many sockets, and the few system calls |
//! | `alive`, `holding` | signs of life; notifications that wait a moment for more |
//! | `lag`, `wheel`, `tick` | slow consumers; timers, and their times |
//! | `responder` | a thread beside the loops that answers HTTP requests at a socket file |
//! | `mailbox`, `shared`, `lock`, `figures`, `config` | shared state; counters and limits |
//!
//! Invariants: a loop waits only for its epoll. Work that a client can cause is divided into shares, so that no client
//! delays the others. Memory that a client can occupy is counted ([`Core::weigh`]) and bounded.

mod alive;
mod application;
mod broadcast;
mod by_transport;
mod catch_up;
mod config;
mod connection;
mod event_loop;
mod figures;
mod following;
mod handler;
mod holding;
mod ids;
mod lag;
mod life;
mod lock;
mod loop_state;
mod mailbox;
mod outbox;
mod output;
mod refusals;
mod responder;
mod run;
mod send;
mod shared;
mod shares;
mod sys;
mod tick;
mod tls;
mod topics;
mod transport;
mod wheel;

pub use application::{Application, ClientState};
pub use config::{Config, ConfigError, Network, SendChoice, client_address};
pub use connection::Rate;
pub use figures::{Closes, DELAY_BOUNDS_US, Delays, ENDS, Probe};
pub use handler::{Admission, Handler, Message};
pub use ids::{ConnId, SlotIndex};
pub use lock::Lock;
pub use loop_state::{Core, SLOW_CONSUMER};
pub use mailbox::{Command, Mailbox};
pub use refusals::{NoRoom, Refusal};
pub use responder::{Respond, Responder};
pub use run::{Server, StartError};
pub use send::Way;
pub use shared::{Counters, Shared};
pub use shares::household;
pub use sys::Wake;
pub use tls::{Certificate, CertificateError};
pub use topics::{Access, SharedLog};
pub use transport::Transport;
