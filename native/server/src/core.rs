//! One event loop's connections and their subscriptions: what a handler works with.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::broadcast::SLICE;
use super::connection::{ConnId, Connection, NEVER, Rate, Slab, SlotIndex, State};
use super::send::Sender;
use super::shared::Shared;
use super::sys::Poll;
use super::topics::Topics;
use super::wheel::Wheel;
use crate::log::Span;
use crate::protocol::Deflater;

/// The close code and reason of one who does not keep up.
pub const SLOW_CONSUMER: (u16, &str) = (4008, "slow_consumer");

/// The state of one event loop. See [`super::Handler`] for who uses it and when.
pub struct Core {
    pub shared: Arc<Shared>,
    /// The loop's clock in milliseconds, read once a turn.
    pub now_ms: u64,
    pub(super) index: usize,
    pub(super) connections: Slab,
    pub(super) topics: Topics,
    pub(super) wheel: Wheel,
    pub(super) poll: Poll,
    pub(super) sender: Box<dyn Sender>,
    pub(super) deflater: Deflater,
    pub(super) span: Span,
    pub(super) results: Vec<i32>,
    /// Connections with something to send, who has waited longest first.
    pub(super) touched: VecDeque<SlotIndex>,
    /// Connections whose socket was full; some may have gone on since.
    pub(super) blocked: Vec<SlotIndex>,
    /// Connections that may have something to read which no event will tell of.
    pub(super) unread: VecDeque<SlotIndex>,
    /// Topics with news for somebody, which has waited longest first.
    pub(super) grown: VecDeque<u32>,
    /// Subscribers of one slice of a broadcast.
    pub(super) slice: usize,
    /// What each of the other things of a turn may take at least, because the broadcast before has taken long.
    pub(super) share: Duration,
    pub(super) scratch: Vec<u8>,
    /// What the connections have waiting here, see [`Core::weigh`].
    pub(super) waiting_bytes: usize,
}

impl Core {
    pub(super) fn new(
        shared: Arc<Shared>,
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
            grown: VecDeque::new(),
            slice: SLICE,
            share: Duration::ZERO,
            scratch: Vec::new(),
        }
    }

    /// The lasting name of the connection in `slot`.
    pub fn id(&mut self, slot: SlotIndex) -> ConnId {
        self.connections.id(slot)
    }

    /// The slot of an open connection.
    pub fn find_open(&mut self, id: ConnId) -> Option<SlotIndex> {
        let slot = self.connections.find(id)?;
        (self.connections.at(slot).state == State::Open).then_some(slot)
    }

    pub(super) fn find_waiting(&mut self, id: ConnId) -> Option<SlotIndex> {
        let slot = self.connections.find(id)?;
        (self.connections.at(slot).state == State::Waiting).then_some(slot)
    }

    /// Whether the connection waits for the answer to this question, to be let in.
    pub(super) fn has_asked(&mut self, id: ConnId, ticket: u64) -> bool {
        let Some(slot) = self.find_waiting(id) else {
            return false;
        };
        let pending = self.connections.at(slot).handshake.as_ref();
        pending.is_some_and(|pending| pending.ticket == Some(ticket))
    }

    /// Whether the connection can still be spoken to.
    pub fn is_open(&mut self, slot: SlotIndex) -> bool {
        self.connections.at(slot).state == State::Open
    }

    pub(super) fn connection(&mut self, slot: SlotIndex) -> &mut Connection {
        self.connections.at(slot)
    }

    /// Sets the timer of a connection to its nearest deadline, if that is before the timer.
    pub(super) fn schedule(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        let deadline = connection.deadline_ms();
        if deadline == NEVER || deadline.div_ceil(super::wheel::TICK_MS) >= connection.timer_tick {
            return;
        }
        connection.timer_tick = self.wheel.set(deadline, slot);
    }

    /// Asks for [`super::Handler::alarm`] at `at_ms` of the loop's clock; None takes it back.
    pub fn set_alarm(&mut self, slot: SlotIndex, at_ms: Option<u64>) {
        self.connections.at(slot).alarm_ms = at_ms.unwrap_or(NEVER);
        self.schedule(slot);
    }

    /// Stops reading from a connection, or goes on.
    pub fn set_paused(&mut self, slot: SlotIndex, paused: bool) {
        let connection = self.connections.at(slot);
        connection.paused = paused;
        if !paused && connection.unread {
            self.read_later(slot);
        }
    }

    /// Queues a connection for reading, behind those that wait already.
    pub(super) fn read_later(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        if !std::mem::replace(&mut connection.in_unread, true) {
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

    /// Counts anew what a connection makes us hold.
    pub(super) fn weigh(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        let weight = connection.held_bytes();
        self.waiting_bytes = self.waiting_bytes + weight - connection.weight;
        connection.weight = weight;
    }

    /// Whether the connections of this loop hold all the memory that they may.
    pub(super) fn is_crowded(&self) -> bool {
        self.waiting_bytes > self.shared.config.waiting_bytes / self.shared.mailboxes.len()
    }

    /// Whether something waits to be broadcast, or may.
    pub(super) fn has_news(&self) -> bool {
        !self.grown.is_empty() || self.shared.mailboxes[self.index].has_news()
    }

    /// Queues a connection for sending, behind those that wait already.
    pub(super) fn touch(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        if !connection.in_touched {
            connection.in_touched = true;
            self.touched.push_back(slot);
        }
    }
}
