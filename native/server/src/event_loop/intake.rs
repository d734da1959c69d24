//! Input: new connections, request heads, frames.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker_core::protocol::frame::{self, Opcode};
use broker_core::protocol::handshake::{self, Head, Limits, Request};
use broker_core::protocol::proxy::{self, ProxyHeader};
use broker_core::protocol::{Decoder, Flow, Item, Role};
use rustls::HandshakeKind;

use super::super::config::{client_address, is_among};
use super::super::connection::{Rate, State};
use super::super::handler::{Admission, Handler, Message};
use super::super::ids::SlotIndex;
use super::super::loop_state::Core;
use super::super::refusals::{NoRoom, Refusal};
use super::super::shared::{Counters, Shared};
use super::super::sys::{self, Accepted, Moved};
use super::super::tick::Tick;
use super::super::tls::Broken;
use super::super::transport::Transport;
use super::{EventLoop, is_late};

/// Connections accepted in one turn before the sockets are polled again.
const ACCEPTS_A_TURN: usize = 64;
/// A message costs one token of the rate, and another for each so many bytes: the time to read JSON grows with its
/// length.
const BYTES_A_TOKEN: usize = 64 << 10;
/// Connections over the limit that are kept until their request has arrived. A response sent earlier is lost with the
/// reset that closing a socket with unread input causes.
const POLITE_REFUSALS: usize = 1_024;
/// The same, per address.
const POLITE_REFUSALS_AN_ADDRESS: usize = 16;

impl<H: Handler> EventLoop<H> {
    /// Accepts waiting connections, at most as many as one turn allows.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_A_TURN {
            if self.is_late() || !self.accept_next() {
                return;
            }
        }
    }

    /// Accepts one waiting connection; false when there is none, or no more can be accepted now.
    pub(super) fn accept_next(&mut self) -> bool {
        let Some(listener) = &self.listener else {
            return false;
        };
        match sys::accept(listener) {
            Accepted::Connection(socket, peer) => {
                self.take_in(socket, peer);
                true
            }
            Accepted::None => false,
            Accepted::Exhausted => {
                // A level-triggered listener would spin until descriptors are free again; the next tick watches it
                // again.
                self.core.poll.remove(listener);
                self.is_accepting = false;
                false
            }
        }
    }

    fn take_in(&mut self, socket: OwnedFd, peer: IpAddr) {
        // An IPv4 client of an IPv6 socket counts under its IPv4 address.
        let peer = peer.to_canonical();
        let shared = Arc::clone(&self.core.shared);
        let config = &shared.config;
        let connections = shared.connections.load(Ordering::Relaxed);
        if connections >= config.connections.saturating_add(POLITE_REFUSALS) {
            return refuse_unread(&socket, NoRoom::Server, &shared);
        }
        let mut turned_away = (connections >= config.connections).then_some(NoRoom::Server);
        // The client behind a proxy is not known yet.
        let awaits_proxy = is_among(peer, &config.proxy_protocol);
        let is_proxy = awaits_proxy || is_among(peer, &config.trusted_proxies);
        let counted = shared.shares.is_limited(peer) && !is_proxy;
        if counted {
            match shared
                .shares
                .enter(peer, connections, POLITE_REFUSALS_AN_ADDRESS)
            {
                None => return refuse_unread(&socket, NoRoom::Address, &shared),
                Some(0) => {}
                Some(_) => turned_away = Some(NoRoom::Address),
            }
        }
        self.core
            .add(socket, peer, counted, turned_away, awaits_proxy);
    }

    /// Processes the connections with input, until the time is over; the others come first next time.
    pub(super) fn read_waiting(&mut self) {
        while !self.is_late() {
            let Some(slot) = self.core.unread.pop_front() else {
                return;
            };
            self.core.connection(slot).queued.to_read = false;
            self.read(slot);
        }
    }

    /// Reads once, or continues with input that was read before.
    fn read(&mut self, slot: SlotIndex) {
        let connection = self.core.connection(slot);
        let Some(fd) = &connection.fd else { return };
        if !connection.reading.has_more
            || !connection.is_heard()
            || connection.state == State::Waiting
        {
            return;
        }
        if connection.input.is_empty() {
            if connection.tls.as_ref().is_some_and(|tls| tls.is_ended()) {
                return self.core.drop_connection(slot);
            }
            let mut buffer = std::mem::take(&mut self.buffer);
            match sys::read(fd, &mut buffer) {
                Moved::Bytes(0) | Moved::Gone => self.core.drop_connection(slot),
                Moved::Blocked => connection.reading.has_more = false,
                Moved::Bytes(bytes) => {
                    // A short read has emptied the socket, except for the end of the stream; the next byte makes an
                    // event.
                    connection.reading.has_more =
                        bytes == buffer.len() || connection.reading.is_ended;
                    // Any byte proves that the client is alive: its pong may be queued behind a long message.
                    connection.deadlines.pong = Tick::NEVER;
                    self.take_input(slot, &mut buffer[..bytes]);
                }
            }
            self.buffer = buffer;
        } else {
            let mut input = std::mem::take(&mut connection.input);
            self.take_frames(slot, &mut input);
        }
        if self.core.connection(slot).reading.has_more {
            self.core.read_later(slot);
        }
    }

    /// Processes bytes of the socket, which are plain text, or records, or the header of a proxy before them.
    fn take_input(&mut self, slot: SlotIndex, bytes: &mut [u8]) {
        let connection = self.core.connection(slot);
        let is_plain = connection.tls.is_none() || connection.awaits_proxy();
        if is_plain || connection.state == State::Closing {
            self.take_bytes(slot, bytes);
        } else {
            self.take_records(slot, bytes);
        }
    }

    /// Decrypts input, and processes what it says.
    fn take_records(&mut self, slot: SlotIndex, bytes: &mut [u8]) {
        let Some(tls) = &mut self.core.connection(slot).tls else {
            return;
        };
        let mut plain = std::mem::take(&mut self.plain);
        let fed = tls.feed(bytes, &mut plain);
        let is_ended = tls.is_ended();
        let has_output = tls.unsent_bytes() > 0;
        let counters = &self.core.shared.counters;
        match fed {
            Err(Broken) => {
                Counters::add(&counters.tls_failed, 1);
                // The alert, as far as the socket takes it.
                self.core.flush_sealed(slot);
                self.core.drop_connection(slot);
            }
            Ok(finished) => {
                match finished {
                    Some(HandshakeKind::Resumed) => Counters::add(&counters.tls_resumed, 1),
                    Some(_) => Counters::add(&counters.tls_full, 1),
                    None => {}
                }
                if has_output {
                    self.core.touch(slot);
                }
                self.core.weigh(slot);
                if !plain.is_empty() {
                    self.take_bytes(slot, &mut plain);
                } else if self.core.connection(slot).state == State::Head {
                    self.keep_head(slot);
                }
                self.limit_record(slot);
                // The next reading ends it, behind what it has sent.
                self.core.connection(slot).reading.has_more |= is_ended;
            }
        }
        plain.clear();
        self.plain = plain;
    }

    /// Ensures that no client makes us keep a part of a record for too long, or while memory is short.
    fn limit_record(&mut self, slot: SlotIndex) {
        let complete_by = self.complete_by();
        let connection = self.core.connection(slot);
        if connection.state != State::Open {
            return;
        }
        if connection.is_within_record() {
            connection.deadlines.message = connection.deadlines.message.min(complete_by);
        } else if connection.decoder.held_bytes() == 0 {
            connection.deadlines.message = Tick::NEVER;
        }
        self.core.schedule(slot);
        self.core.end_crowding(slot);
    }

    /// When a message, or a record, that begins now has to be complete.
    fn complete_by(&self) -> Tick {
        Tick::at_ms(self.core.now_ms + self.core.shared.config.message_ms)
    }

    fn take_bytes(&mut self, slot: SlotIndex, bytes: &mut [u8]) {
        match self.core.connection(slot).state {
            State::Head => self.take_head(slot, bytes),
            State::Open => match self.core.connection(slot).transport {
                Transport::WebSocket => self.take_frames(slot, bytes),
                Transport::Events => self.core.ignore_input(slot, bytes.len()),
            },
            State::Closing => self.drop_bytes(slot),
            State::Waiting | State::Free => {}
        }
    }

    /// Drops input that follows our close frame, and the connection if it does not end.
    fn drop_bytes(&mut self, slot: SlotIndex) {
        let connection = self.core.connection(slot);
        connection.reading.drops_left = connection.reading.drops_left.saturating_sub(1);
        if connection.reading.drops_left == 0 {
            self.core.drop_connection(slot);
        }
    }

    fn take_head(&mut self, slot: SlotIndex, bytes: &[u8]) {
        let connection = self.core.connection(slot);
        let Some(pending) = &mut connection.handshake else {
            return;
        };
        pending.bytes.extend_from_slice(bytes);
        if pending.awaits_proxy {
            self.take_proxy_header(slot);
        } else {
            self.read_head(slot, bytes.contains(&b'\n'));
        }
    }

    /// Reads the header of a proxy, and the part of the head that came with it.
    fn take_proxy_header(&mut self, slot: SlotIndex) {
        let Some(pending) = &mut self.core.connection(slot).handshake else {
            return;
        };
        match proxy::parse(&pending.bytes) {
            Ok(ProxyHeader::Partial) => self.keep_head(slot),
            Ok(ProxyHeader::Complete { source, consumed }) => {
                pending.bytes = pending.bytes.split_off(consumed);
                pending.awaits_proxy = false;
                let mut rest = std::mem::take(&mut pending.bytes);
                if source.is_none_or(|source| self.set_source(slot, source)) {
                    self.take_behind_proxy(slot, &mut rest);
                }
            }
            Err(_) => self.drop_unnamed(slot),
        }
    }

    /// Processes what came with the header of a proxy.
    fn take_behind_proxy(&mut self, slot: SlotIndex, rest: &mut [u8]) {
        let connection = self.core.connection(slot);
        if connection.tls.is_some() {
            self.take_records(slot, rest);
        } else if let Some(pending) = &mut connection.handshake {
            pending.bytes.extend_from_slice(rest);
            self.read_head(slot, rest.contains(&b'\n'));
        }
    }

    /// Takes the address that a proxy names for that of the peer, from which all rules about addresses begin; false
    /// when the connection was refused.
    fn set_source(&mut self, slot: SlotIndex, source: IpAddr) -> bool {
        let shared = Arc::clone(&self.core.shared);
        let peer = &mut self.core.connection(slot).peer;
        peer.address = source.to_canonical();
        // A proxy may stand behind another one.
        let is_proxy = is_among(peer.address, &shared.config.trusted_proxies);
        if is_proxy || !shared.shares.is_limited(peer.address) {
            return true;
        }
        peer.is_counted = shared.takes(peer.address);
        if !peer.is_counted {
            self.core.refuse(slot, &Refusal::no_room(NoRoom::Address));
            return false;
        }
        true
    }

    /// Drops a connection whose proxy does not name its client. It gets no answer: what it speaks is unknown.
    pub(super) fn drop_unnamed(&mut self, slot: SlotIndex) {
        Counters::add(&self.core.shared.counters.refused, 1);
        self.core.drop_connection(slot);
    }

    /// Reads the head as far as it has come; `has_line` when a line has ended since the last time.
    fn read_head(&mut self, slot: SlotIndex, has_line: bool) {
        let Some(pending) = &mut self.core.connection(slot).handshake else {
            return;
        };
        // A head can end, and a line can be checked, only at the end of a line.
        let limits = Limits::default();
        if !has_line && pending.bytes.len() <= limits.head_bytes {
            return self.keep_head(slot);
        }
        match handshake::parse(&pending.bytes, &limits) {
            Ok(Head::Partial) => self.keep_head(slot),
            Ok(Head::Complete { request, consumed }) => {
                // Once taken, the buffer frees its memory; nearly always nothing follows.
                pending.bytes = pending.bytes.split_off(consumed);
                pending.request = request.clone();
                self.begin(slot, &request);
            }
            Err(error) => {
                let mut refusal = Refusal::json(error.status(), error.name(), error.reason());
                for (name, value) in error.headers() {
                    refusal
                        .headers
                        .push(((*name).to_owned(), (*value).to_owned()));
                }
                self.core.refuse(slot, &refusal);
            }
        }
    }

    /// Keeps an incomplete head, unless too much memory is occupied already.
    fn keep_head(&mut self, slot: SlotIndex) {
        self.core.weigh(slot);
        if self.core.is_crowded() {
            self.core.refuse(slot, &Refusal::no_room(NoRoom::Server));
        }
    }

    fn begin(&mut self, slot: SlotIndex, request: &Request) {
        let shared = Arc::clone(&self.core.shared);
        let config = &shared.config;
        let connection = self.core.connection(slot);
        let handshake = connection.handshake.as_ref();
        if let Some(reason) = handshake.and_then(|handshake| handshake.turned_away) {
            self.core.refuse(slot, &Refusal::no_room(reason));
            return;
        }
        let peer = connection.peer.address;
        connection.peer.address = client_address(
            connection.peer.address,
            request.forwarded_for.as_deref(),
            &config.trusted_proxies,
        );
        // A proxy that names no client is not a client either, and not subject to a client's limit.
        if connection.peer.address != peer && shared.shares.is_limited(connection.peer.address) {
            if !shared.takes(connection.peer.address) {
                self.core.refuse(slot, &Refusal::no_room(NoRoom::Address));
                return;
            }
            connection.peer.is_counted = true;
        }
        match self.handler.handshake(&mut self.core, slot, request) {
            Admission::Accept => self.admit(slot),
            Admission::Wait => {
                self.core.connection(slot).state = State::Waiting;
                self.core.weigh(slot);
            }
            Admission::Refuse(refusal) => self.core.refuse(slot, &refusal),
        }
    }

    /// Admits a client and processes what it has sent after its request.
    fn admit(&mut self, slot: SlotIndex) {
        self.core.admit(slot);
        self.handler.opened(&mut self.core, slot);
        let pending = self.core.connection(slot).handshake.take();
        if self.drain.is_some() {
            self.send_away(slot);
        }
        if let Some(mut pending) = pending {
            self.take_bytes(slot, &mut pending.bytes);
        }
        self.limit_record(slot);
        if self.core.connection(slot).reading.has_more {
            self.core.read_later(slot);
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
        let (core, handler, intake) = (&mut self.core, &mut self.handler, self.intake);
        let mut has_ended_one = false;
        let fed = decoder.feed_some(bytes, &mut self.inflater, &mut |item| {
            has_ended_one |= matches!(item, Item::Text(_) | Item::Binary(_));
            take_item(core, handler, slot, item);
            if !core.is_open(slot) {
                Flow::End
            } else if !core.connection(slot).is_heard() || is_late(core, intake) {
                Flow::Pause
            } else {
                Flow::On
            }
        });
        match fed {
            Ok(used) => {
                self.core.connection(slot).decoder = decoder;
                self.keep_input(slot, &bytes[used..], has_ended_one);
            }
            Err(error) => self.core.close(slot, error.close_code, error.reason),
        }
    }

    /// Keeps unprocessed input, and ensures that no client makes us keep too much for too long.
    fn keep_input(&mut self, slot: SlotIndex, rest: &[u8], has_ended_one: bool) {
        let complete_by = self.complete_by();
        let connection = self.core.connection(slot);
        if connection.state != State::Open {
            return;
        }
        if !rest.is_empty() {
            connection.input = rest.to_vec();
            connection.reading.has_more = true;
        }
        let has_part = connection.decoder.held_bytes() > 0 || connection.is_within_record();
        if has_ended_one || !has_part {
            connection.deadlines.message = Tick::NEVER;
        }
        if has_part {
            connection.deadlines.message = connection.deadlines.message.min(complete_by);
        }
        self.core.schedule(slot);
        self.core.end_crowding(slot);
    }
}

fn take_item<H: Handler>(core: &mut Core<H>, handler: &mut H, slot: SlotIndex, item: Item<'_>) {
    let bytes = match item {
        Item::Text(text) => text.len(),
        Item::Binary(bytes) => bytes.len(),
        Item::Ping(_) | Item::Pong(_) => BYTES_A_TOKEN,
        Item::Close { code, .. } => return core.answer_close(slot, code),
    };
    // The handler takes the message's first token, because it replies when there is none.
    let tokens = u16::try_from(bytes / BYTES_A_TOKEN).unwrap_or(u16::MAX);
    let rate = match tokens {
        0 => Rate::Allowed,
        tokens => core.take_rate(slot, f32::from(tokens)),
    };
    if rate == Rate::Flood {
        return core.close(slot, 1008, "message flood");
    }
    match item {
        Item::Text(text) => {
            Counters::add(&core.shared.counters.messages_in, 1);
            handler.message(core, slot, Message::Text(text));
        }
        Item::Binary(bytes) => {
            Counters::add(&core.shared.counters.messages_in, 1);
            handler.message(core, slot, Message::Binary(bytes));
        }
        // Only the newest ping needs an answer (section 5.5.3); a client over its rate gets none.
        Item::Ping(payload) if rate == Rate::Allowed => {
            core.send_control(slot, Opcode::Pong, payload);
        }
        Item::Pong(_) | Item::Ping(_) | Item::Close { .. } => {}
    }
}

impl<H: Handler> Core<H> {
    /// The peer has sent a close frame: answer with one (RFC 6455, section 5.5.1) and end.
    fn answer_close(&mut self, slot: SlotIndex, code: Option<u16>) {
        if !self.is_open(slot) {
            return;
        }
        let out = &mut self.connection(slot).out.bytes;
        match code {
            Some(code) => frame::encode_close(code, "", out),
            None => frame::encode(Opcode::Close, b"", false, out),
        }
        self.shared.counters.closes.count_by_client();
        self.begin_closing(slot);
    }
}

/// Refuses a connection for which there is no room at all; its request is never read. One that would have to begin with
/// TLS is closed without an answer.
fn refuse_unread<C>(socket: &OwnedFd, reason: NoRoom, shared: &Shared<C>) {
    Counters::add(&shared.counters.refused, 1);
    if shared.speaks_tls() {
        return;
    }
    let mut out = Vec::new();
    let refusal = Refusal::no_room(reason);
    let headers: Vec<_> = refusal
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    handshake::refuse(refusal.status, &headers, &refusal.body, &mut out);
    // Bytes that do not fit at once are lost: there is no room to keep them.
    let _ = sys::write(socket, &out);
}
