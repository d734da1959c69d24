//! The event loop.
//!
//! One turn: wait for sockets and commands; read and handle; take commands; send answers; broadcast what logs have
//! gained. While one broadcast runs, what is appended gathers and goes out together in the next turn.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::config::client_address;
use super::connection::{ConnId, NEVER, SlotIndex, State};
use super::core::Core;
use super::handler::{Admission, Handler, Message};
use super::mailbox::{Command, Refusal};
use super::shared::Counters;
use super::sys::{self, Accepted, Moved, Ready};
use super::wheel::TICK_MS;
use crate::protocol::frame::{self, Opcode};
use crate::protocol::handshake::{self, Head, Limits, Request};
use crate::protocol::{Inflater, Item};

const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
/// One read of a connection; also what a client can put into one turn before its pause is looked at.
const READ_BYTES: usize = 64 << 10;
/// Reads a connection has in one turn before others have theirs.
const READS_A_TURN: usize = 4;
/// Connections accepted in one turn before sockets are looked at again.
const ACCEPTS_A_TURN: usize = 256;
/// Connections over the limit that are kept until their request has come, because an answer that is sent
/// before is lost with the reset that closing an unread socket causes.
const POLITE_REFUSALS: usize = 1_024;
/// How long a drained client's unanswered calls may keep its connection.
const DRAIN_GRACE_MS: u64 = 5_000;
/// Clients told to reconnect in one tick: 20,000 a second and loop.
const SENT_AWAY_A_TICK: u32 = 2_000;

/// One event loop with its application.
pub(super) struct Loop<H> {
    core: Core,
    handler: H,
    listener: Option<OwnedFd>,
    /// False while the listener is not watched because descriptors ran out.
    is_accepting: bool,
    inflater: Inflater,
    buffer: Vec<u8>,
    due: Vec<(u64, SlotIndex)>,
    next_tick_ms: u64,
    drain: Option<Drain>,
}

/// The farewell to the clients, under way.
struct Drain {
    over_ms: u64,
    /// The next slot to be told.
    next: SlotIndex,
}

impl<H: Handler> Loop<H> {
    /// # Errors
    /// When the kernel refuses a watch.
    pub fn new(core: Core, handler: H, listener: OwnedFd) -> std::io::Result<Self> {
        core.poll.add_source(&listener, LISTENER, false)?;
        core.poll
            .add_source(core.shared.mailboxes[core.index].wake(), WAKE, true)?;
        let next_tick_ms = core.now_ms + TICK_MS;
        Ok(Self {
            core,
            handler,
            listener: Some(listener),
            is_accepting: true,
            inflater: Inflater::new(),
            buffer: vec![0; READ_BYTES],
            due: Vec::new(),
            next_tick_ms,
            drain: None,
        })
    }

    /// Runs until it is told to stop; then every connection is closed.
    pub fn run(mut self) {
        let (mut ready, mut commands) = (Vec::new(), Vec::new());
        while self.turn(&mut ready, &mut commands) {}
        self.stop();
    }

    fn turn(&mut self, ready: &mut Vec<Ready>, commands: &mut Vec<Command>) -> bool {
        let is_busy = !(self.core.touched.is_empty()
            && self.core.unread.is_empty()
            && self.core.grown.is_empty());
        let timeout = if is_busy {
            0
        } else {
            self.next_tick_ms.saturating_sub(self.core.now_ms)
        };
        self.core.poll.wait(timeout, ready);
        self.core.now_ms = self.core.shared.now_ms();
        for event in ready.drain(..) {
            self.event(event);
        }
        for slot in std::mem::take(&mut self.core.unread) {
            self.read(slot);
        }
        self.core.shared.mailboxes[self.core.index].take(commands);
        for command in commands.drain(..) {
            if !self.command(command) {
                return false;
            }
        }
        self.flush();
        for place in std::mem::take(&mut self.core.grown) {
            self.core.broadcast(place);
        }
        self.flush();
        if self.core.now_ms >= self.next_tick_ms {
            self.tick();
        }
        true
    }

    fn flush(&mut self) {
        for slot in std::mem::take(&mut self.core.touched) {
            self.core.connection(slot).in_touched = false;
            self.core.flush(slot);
        }
    }

    fn event(&mut self, event: Ready) {
        match event.token {
            LISTENER => self.accept(ACCEPTS_A_TURN),
            WAKE => {}
            token => {
                let Some(slot) = self.core.connections.find(ConnId(token)) else {
                    return;
                };
                if event.writable && self.core.connection(slot).blocked {
                    self.core.connection(slot).blocked = false;
                    self.core.touch(slot);
                }
                if event.hung_up && self.core.connection(slot).state == State::Waiting {
                    self.core.drop_connection(slot);
                } else if event.readable || event.hung_up {
                    self.core.connection(slot).unread = true;
                    self.read(slot);
                }
            }
        }
    }

    // -- accepting

    fn accept(&mut self, most: usize) {
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

    // -- reading

    fn read(&mut self, slot: SlotIndex) {
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

    fn take_frames(&mut self, slot: SlotIndex, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        let blank = crate::protocol::Decoder::new(crate::protocol::Role::Server, 0, false);
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

    // -- commands

    fn command(&mut self, command: Command) -> bool {
        match command {
            Command::Stop => return false,
            Command::Log(number) => {
                if let Some(place) = self.core.topics.find(number) {
                    self.core.grown.push(place);
                }
            }
            Command::Drain(over_ms) => self.begin_drain(over_ms),
            Command::Refuse(id, refusal) => {
                if let Some(slot) = self.core.find_waiting(id) {
                    self.core.refuse(slot, &refusal);
                }
            }
            Command::Resume(id) => {
                if let Some(slot) = self.core.find_waiting(id) {
                    self.resume(slot);
                }
            }
            other => self.handler.command(&mut self.core, other),
        }
        true
    }

    /// Asks the handler once more about a handshake that waited.
    fn resume(&mut self, slot: SlotIndex) {
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

    // -- time

    fn tick(&mut self) {
        let now_ms = self.core.now_ms;
        self.next_tick_ms = now_ms + TICK_MS;
        let mut due = std::mem::take(&mut self.due);
        self.core.wheel.take(now_ms, &mut due);
        for (tick, slot) in due.drain(..) {
            let connection = self.core.connection(slot);
            if connection.state == State::Free || connection.timer_tick != tick {
                continue;
            }
            connection.timer_tick = NEVER;
            self.timer(slot);
            self.core.schedule(slot);
        }
        self.due = due;
        self.core.check_lag();
        self.handler.tick(&mut self.core);
        self.continue_drain();
        if !self.is_accepting {
            self.is_accepting = true;
            if let Some(listener) = &self.listener {
                self.is_accepting = self.core.poll.add_source(listener, LISTENER, false).is_ok();
            }
        }
        self.flush();
    }

    fn timer(&mut self, slot: SlotIndex) {
        let now_ms = self.core.now_ms;
        let connection = self.core.connection(slot);
        if connection.end_ms <= now_ms {
            self.end(slot);
            return;
        }
        if connection.pong_ms <= now_ms {
            // Nobody is there to read a close frame: say it once and go.
            self.core.close(slot, 1011, "no pong");
            self.core.flush(slot);
            self.core.drop_connection(slot);
            return;
        }
        if connection.ping_ms <= now_ms {
            self.ping(slot);
        }
        let connection = self.core.connection(slot);
        if connection.alarm_ms <= now_ms {
            connection.alarm_ms = NEVER;
            self.handler.alarm(&mut self.core, slot);
        }
    }

    fn ping(&mut self, slot: SlotIndex) {
        let (now_ms, config) = (self.core.now_ms, &self.core.shared.config);
        let (interval_ms, timeout_ms) = (config.ping_ms, config.pong_ms);
        let connection = self.core.connection(slot);
        connection.ping_ms = now_ms + interval_ms;
        // A ping would wait behind what the client has not read yet: the lag policy looks after that one.
        if connection.blocked || !connection.out.is_empty() || connection.pong_ms != NEVER {
            return;
        }
        connection.pong_ms = now_ms + timeout_ms;
        self.core.send_control(slot, Opcode::Ping, b"");
    }

    /// The time of a connection in `end_ms` is over.
    fn end(&mut self, slot: SlotIndex) {
        match self.core.connection(slot).state {
            State::Head | State::Waiting => {
                self.core.refuse(
                    slot,
                    &refusal(408, "request_timeout", "the handshake took too long"),
                );
            }
            State::Open => self.end_drained(slot),
            State::Closing | State::Free => self.core.drop_connection(slot),
        }
    }

    // -- life

    fn begin_drain(&mut self, over_ms: u64) {
        // Whoever the kernel has already let in is served and told; nobody is reset.
        self.accept(usize::MAX);
        if let Some(listener) = self.listener.take() {
            self.core.poll.remove(&listener);
        }
        self.drain = Some(Drain { over_ms, next: 0 });
        self.continue_drain();
    }

    fn continue_drain(&mut self) {
        let Some(drain) = &mut self.drain else { return };
        let slots = self.core.connections.slots();
        let end = slots.end.min(drain.next + SENT_AWAY_A_TICK);
        for slot in std::mem::replace(&mut drain.next, end)..end {
            if self.core.is_open(slot) {
                self.send_away(slot);
            }
        }
    }

    /// Tells one client when to reconnect, and sets the time at which it is closed.
    fn send_away(&mut self, slot: SlotIndex) {
        let Some(drain) = &self.drain else { return };
        let after_ms = self.core.shared.random_below(drain.over_ms + 1);
        let connection = self.core.connection(slot);
        if connection.sent_away || connection.state != State::Open {
            return;
        }
        connection.sent_away = true;
        let end_ms = self.core.now_ms + after_ms;
        self.core.connection(slot).end_ms = end_ms;
        let message = format!(
            r#"{{"jsonrpc":"2.0","method":"reconnect","params":{{"afterMs":{after_ms}}}}}"#
        );
        self.core.send_text(slot, message.as_bytes());
        self.core.schedule(slot);
    }

    /// Closes a drained connection, once the calls it waits for are answered or the grace is over.
    fn end_drained(&mut self, slot: SlotIndex) {
        let now_ms = self.core.now_ms;
        let connection = self.core.connection(slot);
        let is_waiting = connection
            .calls
            .as_ref()
            .is_some_and(|calls| !calls.is_empty());
        if connection.grace_ms == NEVER {
            connection.grace_ms = now_ms + DRAIN_GRACE_MS;
        }
        if is_waiting && now_ms < connection.grace_ms {
            connection.end_ms = now_ms + TICK_MS;
        } else {
            self.core.close(slot, 1012, "service_restart");
        }
    }

    fn stop(&mut self) {
        for slot in self.core.connections.slots() {
            self.core.close(slot, 1001, "going_away");
            self.core.flush(slot);
            self.core.drop_connection(slot);
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

fn full() -> Refusal {
    let mut refusal = refusal(503, "unavailable", "this gateway is full");
    refusal
        .headers
        .push(("Retry-After".to_owned(), "5".to_owned()));
    refusal
}

/// Turns a connection away that there is no room for at all; its request is never read.
fn refuse_unread(socket: &OwnedFd, counters: &Counters) {
    let mut out = Vec::new();
    handshake::refuse(503, &[("Retry-After", "5")], &full().body, &mut out);
    // What does not fit at once is lost: there is no room to keep it.
    let _ = sys::write(socket, &out);
    Counters::add(&counters.refused, 1);
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
