//! Handshakes that end with an HTTP answer, in words; and who may read answers.

use std::os::fd::OwnedFd;

use super::connection::NoRoom;
use super::mailbox::Refusal;
use super::shared::Counters;
use super::sys;
use crate::protocol::handshake;

/// A JSON error as the HTTP door words it.
#[must_use]
pub(super) fn refusal(status: u16, name: &str, description: &str) -> Refusal {
    let body =
        format!(r#"{{"error":"{name}","error_description":"{description}","status":{status}}}"#);
    Refusal {
        status,
        headers: Vec::new(),
        body: body.into_bytes(),
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

fn crowded() -> Refusal {
    let mut refusal = refusal(429, "slow_down", "too many connections from this address");
    refusal
        .headers
        .push(("Retry-After".to_owned(), "10".to_owned()));
    refusal
}

fn full() -> Refusal {
    let mut refusal = refusal(503, "unavailable", "this gateway is full");
    refusal
        .headers
        .push(("Retry-After".to_owned(), "5".to_owned()));
    refusal
}

/// What one is told for whom there is no room.
pub(super) fn build_refusal(reason: NoRoom) -> Refusal {
    match reason {
        NoRoom::Gateway => full(),
        NoRoom::Address => crowded(),
    }
}

/// Turns a connection away that there is no room for at all; its request is never read.
pub(super) fn refuse_unread(socket: &OwnedFd, reason: NoRoom, counters: &Counters) {
    let mut out = Vec::new();
    let refusal = build_refusal(reason);
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
