//! What a loop does differently for clients over WebSocket and over Server-Sent Events.

use broker_core::protocol::frame::{self, Opcode};
use broker_core::protocol::{events, jsonrpc};

use super::application::Application;
use super::connection::{Rate, State};
use super::ids::SlotIndex;
use super::loop_state::Core;
use super::sys;
use super::transport::Transport;

/// How long a client of an event stream waits before it reconnects, drawn at random for each client so that not all
/// return at once: after the connection was lost, …
const BROKEN_OFF_MS: (u64, u64) = (1_000, 5_000);
/// … after we have ended it, …
const SENT_BACK_MS: (u64, u64) = (500, 3_000);
/// … and after its stream has ended for good.
const OVER_MS: (u64, u64) = (30_000, 60_000);

/// The close code of a stream that has ended.
const OVER: u16 = 1000;

impl<A: Application> Core<A> {
    /// Sets the protocol of a client that is about to be admitted.
    pub fn set_transport(&mut self, slot: SlotIndex, transport: Transport) {
        self.connection(slot).transport = transport;
    }

    /// Says that a client that is about to be let in wants several notifications as one message.
    pub fn set_joined(&mut self, slot: SlotIndex, is_joined: bool) {
        self.connection(slot).is_joined = is_joined;
    }

    /// Lets pages of an origin, or of any for `*`, read the response to their request.
    pub fn set_readable_by(&mut self, slot: SlotIndex, origin: Option<String>) {
        if let Some(handshake) = &mut self.connection(slot).handshake {
            handshake.readable_by = origin;
        }
    }

    /// Sets what is sent first on an event stream that is about to begin: when to reconnect if it is lost, and its
    /// first event.
    pub fn set_greeting(
        &mut self,
        slot: SlotIndex,
        position: events::Position<'_>,
        name: &str,
        data: &[u8],
    ) {
        let greeting = self.build_greeting(position, name, data);
        if let Some(handshake) = &mut self.connection(slot).handshake {
            handshake.greeting = greeting;
        }
    }

    fn build_greeting(&self, position: events::Position<'_>, name: &str, data: &[u8]) -> Vec<u8> {
        let mut greeting = Vec::new();
        events::put_retry(self.draw_ms(BROKEN_OFF_MS), &mut greeting);
        events::put_event(Some(position), name.as_bytes(), data, &mut greeting);
        greeting
    }

    /// Sends a notification; `params` is JSON.
    pub fn notify(&mut self, slot: SlotIndex, method: &str, params: &[u8]) {
        match self.connection(slot).transport {
            Transport::WebSocket => {
                let mut message = Vec::new();
                jsonrpc::write_notification(method, params, &mut message);
                self.send_text(slot, &message);
            }
            Transport::Events => {
                let name = method.as_bytes();
                self.send_whole(slot, |out| events::put_event(None, name, params, out));
            }
        }
    }

    /// Sends a keep-alive.
    pub(super) fn send_heartbeat(&mut self, slot: SlotIndex) {
        match self.connection(slot).transport {
            Transport::WebSocket => self.send_control(slot, Opcode::Ping, b""),
            Transport::Events => {
                self.send_whole(slot, |out| out.extend_from_slice(events::COMMENT));
            }
        }
    }

    /// Lets the kernel detect that a client is gone, where the client does not answer keep-alives: data unacknowledged
    /// for this long breaks the connection. It is longer than the lag limits, which apply to clients that are there and
    /// do not read.
    pub(super) fn watch_acknowledgements(&mut self, slot: SlotIndex) {
        let config = &self.shared.config;
        let most_ms = config.pong_ms.saturating_add(config.lag_ms);
        let connection = self.connections.at(slot);
        if let (false, Some(fd)) = (connection.transport.is_answered(), &connection.fd) {
            sys::limit_unacknowledged(fd, most_ms);
        }
    }

    /// Appends the close frame or event to the pending output.
    pub(super) fn put_farewell(&mut self, slot: SlotIndex, code: u16, reason: &str) {
        let after_ms = self.draw_ms(if code == OVER { OVER_MS } else { SENT_BACK_MS });
        let connection = self.connections.at(slot);
        let out = &mut connection.out.bytes;
        match connection.transport {
            Transport::WebSocket => frame::encode_close(code, reason, out),
            Transport::Events => {
                let data = format!(r#"{{"code":{code},"reason":"{reason}","afterMs":{after_ms}}}"#);
                events::put_retry(after_ms, out);
                events::put_event(None, b"closed", data.as_bytes(), out);
            }
        }
    }

    /// Drops input from the client of an event stream. Each read costs as much as a message, and so does each KiB,
    /// because there is nothing to send.
    pub(super) fn ignore_input(&mut self, slot: SlotIndex, bytes: usize) {
        let tokens = 1 + u16::try_from(bytes >> 10).unwrap_or(u16::MAX - 1);
        if bytes > 0 && self.take_rate(slot, f32::from(tokens)) == Rate::Flood {
            self.close(slot, 1008, "message flood");
        }
    }

    /// Ends an event stream whose subscription has ended; a WebSocket stays.
    pub fn end_without_subscription(&mut self, slot: SlotIndex, reason: &str) {
        let connection = self.connections.at(slot);
        let is_over = connection.state == State::Open && connection.subscriptions.is_empty();
        if is_over && connection.transport == Transport::Events {
            self.close(slot, OVER, reason);
        }
    }

    fn draw_ms(&self, (low, high): (u64, u64)) -> u64 {
        low + self.shared.random_below(high - low + 1)
    }
}
