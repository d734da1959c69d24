//! One event loop's connections and their subscriptions, which a handler works with.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use broker_core::log::Span;
use broker_core::protocol::Deflater;

use super::application::Application;
use super::connection::{Connection, Rate, Slab, State};
use super::ids::{ConnId, SlotIndex};
use super::send::Sender;
use super::shared::Shared;
use super::sys::Poll;
use super::tick::{NEVER, Tick};
use super::tls;
use super::topics::Topics;
use super::wheel::Wheel;

/// Subscribers of one slice of a broadcast: some 2 ms of small frames, and as many as one submission to `io_uring` takes.
const SLICE: usize = 512;

/// The close code and reason of a slow consumer.
pub const SLOW_CONSUMER: (u16, &str) = (4008, "slow_consumer");

/// The state of one event loop. See [`Handler`](super::Handler) for who uses it and when.
pub struct Core<A: Application> {
    pub shared: Arc<Shared<A::Command>>,
    /// The loop's clock in milliseconds, read once a turn.
    pub now_ms: u64,
    pub(super) index: usize,
    pub(super) connections: Slab<A::Client>,
    pub(super) topics: Topics,
    pub(super) wheel: Wheel,
    pub(super) poll: Poll,
    pub(super) sender: Box<dyn Sender>,
    pub(super) deflater: Deflater,
    pub(super) span: Span,
    pub(super) results: Vec<i32>,
    /// Connections with output, the longest waiting first.
    pub(super) touched: VecDeque<SlotIndex>,
    /// Connections whose socket was full; some may be writable again.
    pub(super) blocked: Vec<SlotIndex>,
    /// Connections that may have input that no event will announce.
    pub(super) unread: VecDeque<SlotIndex>,
    /// Topics with entries to broadcast, the longest waiting first.
    pub(super) grown: VecDeque<u32>,
    /// Topics of which somebody waits for more, and when the first of them has waited enough.
    pub(super) held: Vec<u32>,
    pub(super) held_until_ms: u64,
    /// Subscribers of one slice of a broadcast.
    pub(super) slice: usize,
    /// Subscribers served since the delay was last measured.
    pub(super) unmeasured: usize,
    /// The least time for each other step of a turn, because the previous broadcast has taken long.
    pub(super) share: Duration,
    pub(super) scratch: Vec<u8>,
    pub(super) sealing: tls::Scratch,
    /// The memory that the connections occupy, see [`Core::weigh`].
    pub(super) waiting_bytes: usize,
    /// Handshakes that the handler wants to decide about again.
    pub(super) resumed: Vec<SlotIndex>,
}

impl<A: Application> Core<A> {
    pub(super) fn new(
        shared: Arc<Shared<A::Command>>,
        index: usize,
        poll: Poll,
        sender: Box<dyn Sender>,
    ) -> Self {
        let now_ms = shared.now_ms();
        Self {
            shared,
            now_ms,
            index,
            connections: Slab::new(index),
            topics: Topics::default(),
            wheel: Wheel::new(now_ms),
            poll,
            sender,
            deflater: Deflater::new(),
            span: Span::default(),
            results: Vec::new(),
            touched: VecDeque::new(),
            blocked: Vec::new(),
            unread: VecDeque::new(),
            waiting_bytes: 0,
            resumed: Vec::new(),
            grown: VecDeque::new(),
            held: Vec::new(),
            held_until_ms: NEVER,
            slice: SLICE,
            unmeasured: 0,
            share: Duration::ZERO,
            scratch: Vec::new(),
            sealing: tls::Scratch::default(),
        }
    }

    /// The permanent id of the connection in `slot`.
    pub fn id(&mut self, slot: SlotIndex) -> ConnId {
        self.connections.id(slot)
    }

    /// The slot of a connection that still exists.
    pub fn find(&mut self, id: ConnId) -> Option<SlotIndex> {
        self.connections.find(id)
    }

    /// The slot of an open connection.
    pub fn find_open(&mut self, id: ConnId) -> Option<SlotIndex> {
        let slot = self.connections.find(id)?;
        (self.connections.at(slot).state == State::Open).then_some(slot)
    }

    /// The slot of a connection whose handshake waits for a decision.
    pub fn find_waiting(&mut self, id: ConnId) -> Option<SlotIndex> {
        let slot = self.connections.find(id)?;
        (self.connections.at(slot).state == State::Waiting).then_some(slot)
    }

    /// Calls [`Handler::handshake`](super::Handler::handshake) again, after the handler returns.
    pub fn resume(&mut self, slot: SlotIndex) {
        self.resumed.push(slot);
    }

    /// Whether output can still be sent to the connection.
    pub fn is_open(&mut self, slot: SlotIndex) -> bool {
        self.connections.at(slot).state == State::Open
    }

    /// The handler's data about a connection.
    pub fn client(&mut self, slot: SlotIndex) -> &mut A::Client {
        &mut self.connections.at(slot).client
    }

    /// The client's address; behind a trusted proxy, the address that the proxy names.
    pub fn address(&mut self, slot: SlotIndex) -> IpAddr {
        self.connections.at(slot).peer.address
    }

    pub(super) fn connection(&mut self, slot: SlotIndex) -> &mut Connection<A::Client> {
        self.connections.at(slot)
    }

    /// Sets the timer of a connection to its nearest deadline, if that is before the timer.
    pub(super) fn schedule(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        let next = connection.deadlines.next();
        if !next.is_set() || next >= connection.deadlines.timer {
            return;
        }
        connection.deadlines.timer = Tick::of_tick(self.wheel.set(next.ms(), slot));
    }

    /// Requests [`Handler::alarm`](super::Handler::alarm) at `at_ms` of the loop's clock; None cancels the request.
    pub fn set_alarm(&mut self, slot: SlotIndex, at_ms: Option<u64>) {
        self.connections.at(slot).deadlines.alarm = at_ms.map_or(Tick::NEVER, Tick::at_ms);
        self.schedule(slot);
    }

    /// Whether the handler has stopped reading from a connection.
    pub fn is_paused(&mut self, slot: SlotIndex) -> bool {
        self.connections.at(slot).reading.is_paused
    }

    /// Stops or resumes reading from a connection.
    pub fn set_paused(&mut self, slot: SlotIndex, paused: bool) {
        let connection = self.connections.at(slot);
        connection.reading.is_paused = paused;
        if !paused && connection.reading.has_more {
            self.read_later(slot);
        }
    }

    /// Queues a connection for reading, after those that wait already.
    pub(super) fn read_later(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        if !std::mem::replace(&mut connection.queued.to_read, true) {
            self.unread.push_back(slot);
        }
    }

    /// Takes `count` tokens of the connection's message rate.
    pub fn take_rate(&mut self, slot: SlotIndex, count: f32) -> Rate {
        let config = &self.shared.config;
        self.connections.at(slot).bucket.take(
            count,
            config.messages_per_s,
            config.messages_burst,
            self.now_ms,
        )
    }

    /// Recounts the memory that a connection makes us hold.
    pub fn weigh(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        let weight = u32::try_from(connection.held_bytes()).unwrap_or(u32::MAX);
        self.waiting_bytes = self.waiting_bytes + weight as usize - connection.weight as usize;
        connection.weight = weight;
    }

    /// Whether the connections of this loop occupy all the memory they may.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.waiting_bytes > self.shared.config.waiting_bytes / self.shared.mailboxes.len()
    }

    /// Whether a broadcast is, or may be, pending.
    pub(super) fn has_news(&self) -> bool {
        !self.grown.is_empty() || self.shared.mailboxes[self.index].has_news()
    }

    /// Queues a connection for sending, after those that wait already.
    pub(super) fn touch(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        if !connection.queued.to_flush {
            connection.queued.to_flush = true;
            self.touched.push_back(slot);
        }
    }
}
