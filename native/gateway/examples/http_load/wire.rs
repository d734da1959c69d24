//! What comes back.

use std::io::{Read, Write};
use std::net::TcpStream;

use broker_core::protocol::{Decoder, Inflater, Item, Opcode, Role, frame};
use rustix::time::Timespec;

use crate::Outcome;

/// A reply of more than this is not one of the bench's.
const REPLY_BYTES: usize = 1 << 20;
const MASK: [u8; 4] = [0x12, 0x34, 0x56, 0x78];

/// One whole reply.
pub struct Reply {
    pub body_bytes: usize,
    /// What it said, if it is a refusal.
    pub failure: Option<String>,
    /// Whether the server takes no more requests on the connection.
    pub is_last: bool,
}

/// The receiving half of a connection.
pub enum Wire {
    /// What has come of a reply.
    Http(Vec<u8>),
    WebSocket(Box<(Decoder, Inflater)>),
}

impl Wire {
    /// Asks for a WebSocket and waits for the answer.
    pub fn upgrade(stream: &mut TcpStream, request: &[u8]) -> Outcome<Self> {
        stream.write_all(request)?;
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        if !head.starts_with(b"HTTP/1.1 101 ") {
            return Err(String::from_utf8_lossy(&head).into_owned().into());
        }
        let decoder = Decoder::new(Role::Client, REPLY_BYTES, false);
        Ok(Self::WebSocket(Box::new((decoder, Inflater::new()))))
    }

    /// Takes what one read gave; the reply when it is complete. Pings are answered.
    pub fn take(&mut self, bytes: &mut [u8], stream: &mut TcpStream) -> Outcome<Option<Reply>> {
        match self {
            Self::Http(buffer) => {
                buffer.extend_from_slice(bytes);
                let Some(head) = parse_reply(buffer)? else {
                    return Ok(None);
                };
                let failure =
                    (head.status >= 400).then(|| String::from_utf8_lossy(buffer).into_owned());
                buffer.clear();
                Ok(Some(Reply {
                    body_bytes: head.body_bytes,
                    failure,
                    is_last: head.is_last,
                }))
            }
            Self::WebSocket(parts) => {
                let (decoder, inflater) = &mut **parts;
                let (mut reply, mut pong, mut is_closed) = (None, Vec::new(), false);
                decoder.feed(bytes, inflater, &mut |item| {
                    match item {
                        Item::Text(text) => {
                            reply = Some(Reply {
                                body_bytes: text.len(),
                                failure: text.contains(r#""error":"#).then(|| text.to_owned()),
                                is_last: false,
                            });
                        }
                        Item::Ping(payload) => {
                            frame::encode_masked(Opcode::Pong, payload, MASK, &mut pong);
                        }
                        Item::Close { .. } => is_closed = true,
                        Item::Binary(_) | Item::Pong(_) => {}
                    }
                    true
                })?;
                stream.write_all(&pong)?;
                if is_closed {
                    return Err("the server has closed a WebSocket".into());
                }
                Ok(reply)
            }
        }
    }
}

/// A wait for `poll`.
pub fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

struct Head {
    status: u16,
    body_bytes: usize,
    is_last: bool,
}

/// What the head says once the whole reply is there. It must have a `Content-Length`, or no body.
fn parse_reply(bytes: &[u8]) -> Outcome<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut reply = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head_bytes) = reply.parse(bytes)? else {
        return Ok(None);
    };
    let value_of = |name: &str| {
        let header = reply
            .headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name));
        header.map_or(&b""[..], |header| header.value)
    };
    let body_bytes: usize = match value_of("content-length") {
        b"" => 0,
        length => std::str::from_utf8(length)?.parse()?,
    };
    if body_bytes > REPLY_BYTES {
        return Err("the reply is too large".into());
    }
    let is_whole = bytes.len() >= head_bytes + body_bytes;
    Ok(is_whole.then(|| Head {
        status: reply.code.unwrap_or(0),
        body_bytes,
        is_last: value_of("connection").eq_ignore_ascii_case(b"close"),
    }))
}
