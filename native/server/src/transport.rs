//! All differences between clients over WebSocket and over Server-Sent Events.
//!
//! A connection is the same thing whichever protocol it uses: it is accepted, admitted, counted, weighed, served from
//! the logs, subject to the lag limits, drained and closed by the same code. [`Transport`] says which protocol it uses. All
//! differences are here, in `by_transport`, and in [`Framing`](broker_core::log::Framing), which lays out the entries of a log:
//!
//! | | WebSocket | Server-Sent Events |
//! |---|---|---|
//! | response to the request | 101 | 200, whose body ends with the connection |
//! | a notification for one client | JSON-RPC in a text frame | an event |
//! | keep-alive | a ping, and a pong is awaited | a comment, which TCP has to acknowledge |
//! | input | messages | none; it is dropped, and a flood of it ends the connection |
//! | end | a close frame | the event `closed`, with the same code and reason |
//! | without a subscription | stays | ends |
//!
//! The handler decides who may have an event stream, and of what.

use broker_core::protocol::handshake::{self, Request};
use broker_core::protocol::{DeflateParams, events};

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    #[default]
    WebSocket,
    Events,
}

impl Transport {
    /// Appends the response that admits a client.
    pub(super) fn put_opening(
        self,
        request: &Request,
        deflate: Option<&DeflateParams>,
        headers: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) {
        match self {
            Self::WebSocket => handshake::accept(request, deflate, headers, out),
            Self::Events => events::put_head(headers, out),
        }
    }

    /// Whether the client sends and receives messages, besides the entries of logs.
    #[must_use]
    pub fn has_messages(self) -> bool {
        self == Self::WebSocket
    }

    /// Whether a client answers a keep-alive.
    #[must_use]
    pub fn is_answered(self) -> bool {
        self == Self::WebSocket
    }
}
