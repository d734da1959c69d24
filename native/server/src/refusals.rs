//! Refusals of handshakes as HTTP responses, and which origins may read them.

use std::os::fd::OwnedFd;

use broker_core::protocol::handshake;

use super::shared::Counters;
use super::sys;

/// An HTTP answer that ends a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// Which limit a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The server's.
    Server,
    /// Its address's.
    Address,
}

impl Refusal {
    /// A JSON error as the HTTP door words it. `name` and `description` have nothing to escape.
    #[must_use]
    pub fn json(status: u16, name: &str, description: &str) -> Self {
        let body = format!(
            r#"{{"error":"{name}","error_description":"{description}","status":{status}}}"#
        );
        Self {
            status,
            headers: Vec::new(),
            body: body.into_bytes(),
        }
    }

    /// The same with one more header.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// What one is told for whom there is no room.
    #[must_use]
    pub fn no_room(reason: NoRoom) -> Self {
        match reason {
            NoRoom::Server => Self::json(503, "unavailable", "this gateway is full")
                .with_header("Retry-After", "5"),
            NoRoom::Address => {
                Self::json(429, "slow_down", "too many connections from this address")
                    .with_header("Retry-After", "10")
            }
        }
    }
}

/// The headers that let pages read an answer; `readable_by` is their origin, or `*` for any.
#[must_use]
pub(super) fn headers_for(readable_by: Option<&str>) -> Vec<(&str, &str)> {
    let Some(origin) = readable_by else {
        return Vec::new();
    };
    let mut headers = vec![
        ("Access-Control-Allow-Origin", origin),
        (
            "Access-Control-Expose-Headers",
            "Retry-After, WWW-Authenticate, X-Request-Id",
        ),
    ];
    if origin != "*" {
        headers.push(("Vary", "Origin"));
    }
    headers
}

/// Turns a connection away that there is no room for at all; its request is never read.
pub(super) fn refuse_unread(socket: &OwnedFd, reason: NoRoom, counters: &Counters) {
    let mut out = Vec::new();
    let refusal = Refusal::no_room(reason);
    let headers: Vec<_> = refusal
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    handshake::refuse(refusal.status, &headers, &refusal.body, &mut out);
    // What does not fit at once is lost: there is no room to keep it.
    let _ = sys::write(socket, &out);
    Counters::add(&counters.refused, 1);
}
