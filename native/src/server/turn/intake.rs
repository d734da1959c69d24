//! What comes in: connections, request heads, frames.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::config::client_address;
use super::super::connection::{NEVER, SlotIndex, State};
use super::super::core::Core;
use super::super::handler::{Admission, Handler, Message};
use super::super::refusals::{full, refusal, refuse_unread};
use super::super::shared::Counters;
use super::super::sys::{self, Accepted, Moved};
use super::Loop;
use crate::protocol::frame::{self, Opcode};
use crate::protocol::handshake::{self, Head, Limits, Request};
use crate::protocol::{Decoder, Item, Role};

/// Reads a connection has in one turn before others have theirs.
const READS_A_TURN: usize = 4;
/// Connections over the limit that are kept until their request has come, because an answer that is sent
/// before is lost with the reset that closing an unread socket causes.
const POLITE_REFUSALS: usize = 1_024;

impl<H: Handler> Loop<H> {
    pub(super) fn accept(&mut self, most: usize) {
        let limit = self.core.shared.config.connections;
        for _ in 0..most {
            let Some(listener) = &self.listener else {
                return;
            };
            match sys::accept(listener) {
                Accepted::Connection(socket, peer) => {
                    let connections = self.core.shared.connections.load(Ordering::Relaxed);
                    if connections >= limit.saturating_add(POLITE_REFUSALS) {
                        refuse_unread(&socket, &self.core.shared.counters);
                        continue;
                    }
                    self.core.add(socket, peer, connections >= limit);
                }
                Accepted::None => return,
                Accepted::Exhausted => {
                    // A level-triggered listener would spin until descriptors are free again; the next tick
                    // watches it anew.
                    self.core.poll.remove(listener);
                    self.is_accepting = false;
                    return;
                }
            }
        }
    }

    pub(super) fn read(&mut self, slot: SlotIndex) {
        for _ in 0..READS_A_TURN {
            let connection = self.core.connection(slot);
            let Some(fd) = &connection.fd else { return };
            if !connection.unread || connection.paused || connection.state == State::Waiting {
                return;
            }
            let mut buffer = std::mem::take(&mut self.buffer);
            let moved = sys::read(fd, &mut buffer);
            match moved {
                Moved::Bytes(0) | Moved::Gone => self.core.drop_connection(slot),
                Moved::Blocked => connection.unread = false,
                Moved::Bytes(bytes) => {
                    // A short read has emptied the socket; the next byte makes an event.
                    connection.unread = bytes == buffer.len();
                    self.take_bytes(slot, &mut buffer[..bytes]);
                }
            }
            self.buffer = buffer;
        }
        if self.core.connection(slot).unread {
            self.core.unread.push(slot);
        }
    }

    fn take_bytes(&mut self, slot: SlotIndex, bytes: &mut [u8]) {
        match self.core.connection(slot).state {
            State::Head => self.take_head(slot, bytes),
            State::Open => self.take_frames(slot, bytes),
            State::Waiting | State::Closing | State::Free => {}
        }
    }

    fn take_head(&mut self, slot: SlotIndex, bytes: &[u8]) {
        let connection = self.core.connection(slot);
        let Some(pending) = &mut connection.handshake else {
            return;
        };
        pending.bytes.extend_from_slice(bytes);
        // A head can only end, and a line can only be judged, where a line ends.
        let limits = Limits::default();
        if !bytes.contains(&b'\n') && pending.bytes.len() <= limits.head_bytes {
            return;
        }
        match handshake::parse(&pending.bytes, &limits) {
            Ok(Head::Partial) => {}
            Ok(Head::Complete { request, consumed }) => {
                pending.bytes.drain(..consumed);
                pending.request = request.clone();
                self.begin(slot, &request);
            }
            Err(error) => {
                let mut refusal = refusal(error.status(), "invalid_request", error.reason());
                for (name, value) in error.headers() {
                    refusal
                        .headers
                        .push(((*name).to_owned(), (*value).to_owned()));
                }
                self.core.refuse(slot, &refusal);
            }
        }
    }

    fn begin(&mut self, slot: SlotIndex, request: &Request) {
        let shared = Arc::clone(&self.core.shared);
        let config = &shared.config;
        let connection = self.core.connection(slot);
        if connection.over_limit {
            self.core.refuse(slot, &full());
            return;
        }
        connection.address = client_address(
            connection.address,
            request.forwarded_for.as_deref(),
            &config.trusted_proxies,
        );
        if config.connections_per_address > 0 {
            if !shared.enter(connection.address) {
                let mut refusal =
                    refusal(429, "slow_down", "too many connections from this address");
                refusal
                    .headers
                    .push(("Retry-After".to_owned(), "10".to_owned()));
                self.core.refuse(slot, &refusal);
                return;
            }
            connection.counted = true;
        }
        match self.handler.handshake(&mut self.core, slot, request) {
            Admission::Accept => self.admit(slot),
            Admission::Wait => self.core.connection(slot).state = State::Waiting,
            Admission::Refuse(refusal) => self.core.refuse(slot, &refusal),
        }
    }

    /// Opens the WebSocket and takes what the client has sent since its request.
    fn admit(&mut self, slot: SlotIndex) {
        self.core.admit(slot);
        let pending = self.core.connection(slot).handshake.take();
        if self.drain.is_some() {
            self.send_away(slot);
        }
        if let Some(mut pending) = pending {
            self.take_frames(slot, &mut pending.bytes);
        }
        if self.core.connection(slot).unread {
            self.core.unread.push(slot);
        }
    }

    /// Asks the handler once more about a handshake that waited.
    pub(super) fn resume(&mut self, slot: SlotIndex) {
        let Some(pending) = &self.core.connection(slot).handshake else {
            return;
        };
        let request = pending.request.clone();
        match self.handler.handshake(&mut self.core, slot, &request) {
            Admission::Accept => self.admit(slot),
            Admission::Wait => {}
            Admission::Refuse(refusal) => self.core.refuse(slot, &refusal),
        }
    }

    fn take_frames(&mut self, slot: SlotIndex, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        let blank = Decoder::new(Role::Server, 0, false);
        let mut decoder = std::mem::replace(&mut self.core.connection(slot).decoder, blank);
        let (core, handler) = (&mut self.core, &mut self.handler);
        let fed = decoder.feed(bytes, &mut self.inflater, &mut |item| {
            take_item(core, handler, slot, item);
            core.is_open(slot)
        });
        match fed {
            Ok(()) => self.core.connection(slot).decoder = decoder,
            Err(error) => self.core.close(slot, error.close_code, error.reason),
        }
    }
}

fn take_item<H: Handler>(core: &mut Core, handler: &mut H, slot: SlotIndex, item: Item<'_>) {
    let counters = &core.shared.counters;
    match item {
        Item::Text(text) => {
            Counters::add(&counters.messages_in, 1);
            handler.message(core, slot, Message::Text(text));
        }
        Item::Binary(bytes) => {
            Counters::add(&counters.messages_in, 1);
            handler.message(core, slot, Message::Binary(bytes));
        }
        Item::Ping(payload) => core.send_control(slot, Opcode::Pong, payload),
        Item::Pong(_) => core.connection(slot).pong_ms = NEVER,
        Item::Close { code, .. } => core.answer_close(slot, code),
    }
}

impl Core {
    /// The peer has said good-bye: answer in kind (RFC 6455, section 5.5.1) and end.
    fn answer_close(&mut self, slot: SlotIndex, code: Option<u16>) {
        if let Some(code) = code {
            self.close(slot, code, "");
            return;
        }
        if self.is_open(slot) {
            frame::encode(Opcode::Close, b"", false, &mut self.connection(slot).out);
            self.begin_closing(slot);
        }
    }
}
