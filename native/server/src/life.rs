//! The life of a connection on its loop: accepted, admitted or refused, closed, removed.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker_core::protocol::{Decoder, DeflateOffer, Role, handshake};

use super::application::Application;
use super::connection::{Bucket, Handshake, State};
use super::ids::SlotIndex;
use super::loop_state::{Core, SLOW_CONSUMER};
use super::outbox::CROWDED_BYTES;
use super::refusals::{NoRoom, Refusal, headers_for};
use super::shared::{Counters, Shared};
use super::sys;
use super::tick::Tick;
use super::transport::Transport;

/// How long a closing connection may take to read its remaining output.
const LINGER_MS: u64 = 5_000;
/// How many times its input is still read, at most 64 KiB each time, before it is reset. Closing a socket with unread
/// input resets the connection, which may destroy our close frame. So input that the client sent before it could know
/// is read: 16 MiB are more than two kernels buffer for it. A client that sends more ignores us.
const LINGER_READS: u8 = u8::MAX;

impl<A: Application> Core<A> {
    /// Registers an accepted socket; one over the limit is refused once its head has arrived.
    ///
    /// `address` is that of a proxy when `awaits_proxy` is set.
    pub(super) fn add(
        &mut self,
        socket: OwnedFd,
        address: IpAddr,
        counted: bool,
        turned_away: Option<NoRoom>,
        awaits_proxy: bool,
    ) {
        // Only where the system has no random numbers left.
        let tls = self.shared.begin_tls();
        if tls.is_none() && self.shared.speaks_tls() {
            if counted {
                self.shared.shares.leave(address);
            }
            return;
        }
        let slot = self.connections.take();
        let id = self.connections.id(slot);
        if self.poll.add_connection(&socket, id.0).is_err() {
            if counted {
                self.shared.shares.leave(address);
            }
            self.connections.give_back(slot);
            return;
        }
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        let end_ms = self.now_ms + self.shared.config.handshake_ms;
        let connection = self.connections.at(slot);
        connection.fd = Some(socket);
        connection.tls = tls;
        connection.peer.address = address;
        connection.peer.is_counted = counted;
        connection.state = State::Head;
        connection.deadlines.end = Tick::at_ms(end_ms);
        connection.handshake = Some(Box::new(Handshake {
            turned_away,
            awaits_proxy,
            ..Handshake::default()
        }));
        self.schedule(slot);
    }

    /// Finishes the handshake and opens the WebSocket or the event stream.
    pub(super) fn admit(&mut self, slot: SlotIndex) {
        let (shared, now_ms, id) = (
            Arc::clone(&self.shared),
            self.now_ms,
            self.connections.id(slot),
        );
        let config = &shared.config;
        let connection = self.connections.at(slot);
        let Some(handshake) = &connection.handshake else {
            return;
        };
        let request = &handshake.request;
        let offer = request
            .deflate
            .filter(|_| connection.transport == Transport::WebSocket);
        let deflate = offer.map(DeflateOffer::accept);
        let made_id;
        let request_id = if let Some(request_id) = &request.request_id {
            request_id
        } else {
            made_id = request_id_from(&shared);
            &made_id
        };
        let mut headers = headers_for(handshake.readable_by.as_deref());
        headers.push(("X-Request-Id", request_id));
        let out = &mut connection.out.bytes;
        connection
            .transport
            .put_opening(request, deflate.as_ref(), &headers, out);
        out.extend_from_slice(&handshake.greeting);
        connection.state = State::Open;
        connection.deflate = deflate;
        connection.decoder =
            Decoder::new(Role::Server, config.message_limit_bytes, deflate.is_some());
        connection.bucket = Bucket::full(config.messages_burst, now_ms);
        connection.deadlines.end = Tick::NEVER;
        // Spread out, so that clients that connected together are not pinged together for ever.
        let first_ms = config.ping_ms / 2 + shared.random_below(config.ping_ms / 2 + 1);
        connection.deadlines.ping = Tick::at_ms(now_ms + first_ms);
        shared.note_open(id, true);
        Counters::add(&shared.counters.handshakes, 1);
        self.watch_acknowledgements(slot);
        self.schedule(slot);
        self.touch(slot);
    }

    /// Ends a handshake with an HTTP response; without one where its TLS session cannot carry it yet.
    pub fn refuse(&mut self, slot: SlotIndex, refusal: &Refusal) {
        let shared = Arc::clone(&self.shared);
        let connection = self.connections.at(slot);
        if connection
            .tls
            .as_ref()
            .is_some_and(|tls| !tls.is_writable())
        {
            Counters::add(&shared.counters.refused, 1);
            return self.drop_connection(slot);
        }
        let handshake = *connection.handshake.take().unwrap_or_default();
        let is_head = handshake.request.method == "HEAD";
        let given = handshake.request.request_id;
        let request_id = given.unwrap_or_else(|| request_id_from(&shared));
        let mut headers: Vec<(&str, &str)> = refusal
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        headers.extend(headers_for(handshake.readable_by.as_deref()));
        headers.push(("X-Request-Id", &request_id));
        if !refusal.body.is_empty()
            && !headers
                .iter()
                .any(|(name, _)| name.eq_ignore_ascii_case("content-type"))
        {
            headers.push(("Content-Type", "application/json"));
        }
        let out = &mut connection.out.bytes;
        handshake::refuse(refusal.status, &headers, &refusal.body, out);
        if is_head {
            // RFC 9110, section 9.3.2: no content follows, whatever the head says of it.
            out.truncate(out.len() - refusal.body.len());
        }
        if refusal.status >= 400 {
            Counters::add(&shared.counters.refused, 1);
        }
        self.begin_closing(slot);
    }

    /// Sends a close frame or its equivalent, and ends the connection once that is sent or the linger time is over.
    pub fn close(&mut self, slot: SlotIndex, code: u16, reason: &str) {
        let connection = self.connections.at(slot);
        if connection.state != State::Open {
            return;
        }
        self.put_farewell(slot, code, reason);
        self.shared.counters.closes.count(code, reason);
        if (code, reason) == SLOW_CONSUMER {
            Counters::add(&self.shared.counters.slow_consumers, 1);
        }
        self.begin_closing(slot);
    }

    pub(super) fn begin_closing(&mut self, slot: SlotIndex) {
        self.unsubscribe_all(slot);
        let now_ms = self.now_ms;
        self.note_closed(slot);
        let connection = self.connections.at(slot);
        connection.state = State::Closing;
        connection.reading.drops_left = LINGER_READS;
        connection.reading.is_paused = false;
        connection.input = Vec::new();
        connection.deadlines.message = Tick::NEVER;
        connection.deadlines.ping = Tick::NEVER;
        connection.deadlines.alive = Tick::NEVER;
        connection.deadlines.pong = Tick::NEVER;
        connection.deadlines.alarm = Tick::NEVER;
        let is_heavy = connection.unsent_bytes() > CROWDED_BYTES;
        self.weigh(slot);
        // Output that the client does not read must not be kept because of the close frame after it.
        let linger_ms = if is_heavy && self.is_crowded() {
            0
        } else {
            LINGER_MS
        };
        self.connections.at(slot).deadlines.end = Tick::at_ms(now_ms + linger_ms);
        self.schedule(slot);
        self.touch(slot);
    }

    /// Removes a connection from those known to be open, and drops the handler's data about it.
    fn note_closed(&mut self, slot: SlotIndex) {
        self.shared.note_open(self.connections.id(slot), false);
        self.connections.at(slot).client = A::Client::default();
    }

    /// Removes a connection at once.
    pub(super) fn drop_connection(&mut self, slot: SlotIndex) {
        if self.connections.at(slot).state == State::Free {
            return;
        }
        if self.connections.at(slot).state == State::Open {
            self.shared.counters.closes.count_lost();
        }
        self.unsubscribe_all(slot);
        self.note_closed(slot);
        let connection = self.connections.at(slot);
        if connection.peer.is_counted {
            self.shared.shares.leave(connection.peer.address);
        }
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.waiting_bytes -= self.connections.at(slot).weight as usize;
        self.connections.give_back(slot);
    }

    /// Shuts down the socket's writing side once all output is sent.
    pub(super) fn finish_closing(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        let is_over = connection.state == State::Closing && connection.out.bytes.is_empty();
        if is_over && !connection.writing.is_ended {
            if let Some(tls) = &mut connection.tls {
                tls.put_end();
                if !self.flush_sealed(slot) {
                    return;
                }
            }
            let connection = self.connections.at(slot);
            connection.writing.is_ended = true;
            if let Some(fd) = &connection.fd {
                sys::end_writing(fd);
            }
        }
    }
}

fn request_id_from<C>(shared: &Shared<C>) -> String {
    format!("{:016x}{:016x}", shared.random(), shared.random())
}
