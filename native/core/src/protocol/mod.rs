//! The WebSocket protocol and Server-Sent Events without any I/O: from bytes to items, and from messages to bytes.
//!
//! The server and the load client of the bench share these parts. Nothing here opens a socket, reads a clock, starts a
//! thread or depends on Python, so every rule can be tested with byte strings.
//!
//! * [`handshake`] reads one HTTP/1.1 request head and writes the answer to it (RFC 6455 section 4);
//! * [`frame`] encodes finished frames, decodes frame headers and masks (section 5);
//! * [`decoder`] turns received bytes into messages and control frames (sections 5 to 8);
//! * [`fault`] lists the faults of a peer, each with its close code;
//! * [`deflate`] negotiates and runs permessage-deflate (RFC 7692);
//! * [`events`] writes Server-Sent Events, for clients that WebSocket cannot reach;
//! * [`proxy`] reads the header by which a proxy names its client (PROXY protocol, versions 1 and 2);
//! * `json` finds where values of JSON begin and end;
//! * [`strict`] finds the faults that a JSON text must not have;
//! * [`jsonrpc`] reads the JSON-RPC 2.0 envelope of a text message and writes answers.
//!
//! Memory: a connection that waits for a frame holds a [`decoder::Decoder`] of 16 bytes and nothing else. Buffers
//! appear while a frame or a fragmented message is incomplete and go away with it. Inflate and deflate windows
//! belong to the event loop, not to the connection, because neither side keeps a compression context between messages.

pub mod decoder;
pub mod deflate;
pub mod events;
pub mod fault;
pub mod frame;
pub mod handshake;
pub(crate) mod json;
pub mod jsonrpc;
pub mod proxy;
pub mod strict;

#[cfg(test)]
mod tests;

pub use decoder::{Decoder, Flow, Item, Role};
pub use deflate::{DeflateOffer, DeflateParams, Deflater, Inflater};
pub use fault::{Fault, ProtocolError};
pub use frame::Opcode;
