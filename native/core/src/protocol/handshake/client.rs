//! The client's side: its request, and the check of the server's response.

use httparse::{EMPTY_HEADER, Status};

use super::answer::push_header;
use super::error::HandshakeError;
use super::headers::Headers;
use super::key::accept_value;
use super::{Limits, MOST_HEADERS};
use crate::protocol::deflate::DeflateParams;

/// What [`parse_response`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// More bytes are needed.
    Partial,
    /// The WebSocket is open; `consumed` bytes of the input are the head, the rest are frames.
    Open {
        deflate: Option<DeflateParams>,
        consumed: usize,
    },
    /// The server answered with another status than 101.
    Refused { status: u16 },
}

/// Appends a client's request to open a WebSocket. `key` is sixteen bytes in base64.
pub fn request(host: &str, path: &str, key: &[u8; 24], deflate: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("GET {path} HTTP/1.1\r\n").as_bytes());
    push_header("Host", host, out);
    out.extend_from_slice(
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n",
    );
    out.extend_from_slice(b"Sec-WebSocket-Key: ");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n");
    if deflate {
        push_header(
            "Sec-WebSocket-Extensions",
            "permessage-deflate; server_no_context_takeover",
            out,
        );
    }
    out.extend_from_slice(b"\r\n");
}

/// Reads the server's answer to [`request`] (section 4.1, client requirements).
///
/// # Errors
/// [`HandshakeError::HeadTooLarge`], [`HandshakeError::Malformed`], or [`HandshakeError::BadAnswer`] for a 101 whose
/// headers do not match the key or that names an extension on other terms than ours.
pub fn parse_response(
    input: &[u8],
    key: &[u8; 24],
    limits: &Limits,
) -> Result<Answer, HandshakeError> {
    let mut table = [EMPTY_HEADER; MOST_HEADERS];
    let mut raw = httparse::Response::new(&mut table[..limits.headers.min(MOST_HEADERS)]);
    let window = &input[..input.len().min(limits.head_bytes)];
    let consumed = match raw.parse(window) {
        Ok(Status::Complete(consumed)) => consumed,
        Ok(Status::Partial) if input.len() < limits.head_bytes => return Ok(Answer::Partial),
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(HandshakeError::HeadTooLarge);
        }
        Err(_) => return Err(HandshakeError::Malformed),
    };
    let status = raw.code.unwrap_or_default();
    if status != 101 {
        return Ok(Answer::Refused { status });
    }
    let headers = Headers(raw.headers);
    let agrees = headers.has_token("upgrade", "websocket")?
        && headers.has_token("connection", "upgrade")?
        && headers.find_one("sec-websocket-accept")? == Some(&accept_value(key));
    let extensions = headers.join("sec-websocket-extensions")?;
    let deflate = extensions.as_deref().and_then(DeflateParams::find);
    if !agrees || extensions.is_some() != deflate.is_some() {
        return Err(HandshakeError::BadAnswer);
    }
    Ok(Answer::Open { deflate, consumed })
}
