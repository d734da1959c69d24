//! One event loop's connections and their subscriptions: what a handler works with.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::connection::{
    BEHIND, Bucket, ConnId, Connection, NEVER, Rate, Slab, SlotIndex, State, Subscription,
};
use super::mailbox::Refusal;
use super::send::Sender;
use super::shared::{Counters, Shared};
use super::sys::{self, Poll};
use super::topics::{Live, SharedLog, Topic, Topics};
use super::wheel::Wheel;
use crate::log::Span;
use crate::protocol::frame::{self, Opcode};
use crate::protocol::{Decoder, Deflater, Role, handshake};

/// How long a closing connection may take to read what is left for it.
const LINGER_MS: u64 = 5_000;
/// A client may leave this many times the lag limit of answers unread.
const UNREAD_FACTOR: usize = 4;

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
    /// Connections with something to send.
    pub(super) touched: Vec<SlotIndex>,
    /// Connections whose socket was full; some may have gone on since.
    pub(super) blocked: Vec<SlotIndex>,
    /// Connections that may have something to read which no event will tell of.
    pub(super) unread: Vec<SlotIndex>,
    /// Logs with news.
    pub(super) grown: Vec<u32>,
    scratch: Vec<u8>,
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
            touched: Vec::new(),
            blocked: Vec::new(),
            unread: Vec::new(),
            grown: Vec::new(),
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

    /// Whether the connection can still be spoken to.
    pub fn is_open(&mut self, slot: SlotIndex) -> bool {
        self.connections.at(slot).state == State::Open
    }

    pub(super) fn connection(&mut self, slot: SlotIndex) -> &mut Connection {
        self.connections.at(slot)
    }

    // -- life

    /// Takes in an accepted socket; one that is over the limit is refused once its head has come.
    pub(super) fn add(&mut self, socket: OwnedFd, address: IpAddr, over_limit: bool) {
        let slot = self.connections.take();
        let id = self.connections.id(slot);
        if self.poll.add_connection(&socket, id.0).is_err() {
            self.connections.give_back(slot);
            return;
        }
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        let end_ms = self.now_ms + self.shared.config.handshake_ms;
        let connection = self.connections.at(slot);
        connection.fd = Some(socket);
        connection.address = address;
        connection.over_limit = over_limit;
        connection.state = State::Head;
        connection.end_ms = end_ms;
        connection.handshake = Some(Box::default());
        self.schedule(slot);
    }

    /// Finishes the handshake: the WebSocket is open.
    pub fn admit(&mut self, slot: SlotIndex) {
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
        let deflate = request.deflate.map(crate::protocol::DeflateOffer::accept);
        let made_id;
        let request_id = if let Some(request_id) = &request.request_id {
            request_id
        } else {
            made_id = request_id_from(&shared);
            &made_id
        };
        handshake::accept(
            request,
            deflate.as_ref(),
            &[("X-Request-Id", request_id)],
            &mut connection.out,
        );
        connection.state = State::Open;
        connection.deflate = deflate;
        connection.decoder =
            Decoder::new(Role::Server, config.message_limit_bytes, deflate.is_some());
        connection.bucket = Bucket::full(config.messages_burst, now_ms);
        connection.end_ms = NEVER;
        // Spread, so that clients who came together are not pinged together for ever.
        connection.ping_ms =
            now_ms + config.ping_ms / 2 + shared.random_below(config.ping_ms / 2 + 1);
        shared.note_open(id, true);
        if let Some(account) = &connection.account {
            shared.enter_account(&account.name);
        }
        Counters::add(&shared.counters.handshakes, 1);
        self.schedule(slot);
        self.touch(slot);
    }

    /// Ends a handshake with an HTTP answer.
    pub fn refuse(&mut self, slot: SlotIndex, refusal: &Refusal) {
        let shared = Arc::clone(&self.shared);
        let connection = self.connections.at(slot);
        let given = connection
            .handshake
            .take()
            .and_then(|handshake| handshake.request.request_id);
        let request_id = given.unwrap_or_else(|| request_id_from(&shared));
        let mut headers: Vec<(&str, &str)> = refusal
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        headers.push(("X-Request-Id", &request_id));
        if !refusal.body.is_empty()
            && !headers
                .iter()
                .any(|(name, _)| name.eq_ignore_ascii_case("content-type"))
        {
            headers.push(("Content-Type", "application/json"));
        }
        handshake::refuse(refusal.status, &headers, &refusal.body, &mut connection.out);
        Counters::add(&shared.counters.refused, 1);
        self.begin_closing(slot);
    }

    /// Sends a close frame and ends the connection once that is gone or the linger time is over.
    pub fn close(&mut self, slot: SlotIndex, code: u16, reason: &str) {
        let connection = self.connections.at(slot);
        if connection.state != State::Open {
            return;
        }
        frame::encode_close(code, reason, &mut connection.out);
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
        connection.paused = false;
        connection.session = None;
        connection.calls = None;
        connection.ping_ms = NEVER;
        connection.pong_ms = NEVER;
        connection.alarm_ms = NEVER;
        connection.end_ms = now_ms + LINGER_MS;
        self.schedule(slot);
        self.touch(slot);
    }

    /// Takes a connection out of what is counted as open; before its state changes.
    fn note_closed(&mut self, slot: SlotIndex) {
        self.shared.note_open(self.connections.id(slot), false);
        let connection = self.connections.at(slot);
        if let (State::Open, Some(account)) = (connection.state, &connection.account) {
            self.shared.leave_account(&account.name);
        }
    }

    /// Forgets a connection at once.
    pub(super) fn drop_connection(&mut self, slot: SlotIndex) {
        if self.connections.at(slot).state == State::Free {
            return;
        }
        self.unsubscribe_all(slot);
        self.note_closed(slot);
        let connection = self.connections.at(slot);
        if connection.counted {
            self.shared.leave(connection.address);
        }
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.connections.give_back(slot);
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
            self.unread.push(slot);
        }
    }

    /// Takes `count` tokens of the connection's message rate and returns the worst answer.
    pub fn take_rate(&mut self, slot: SlotIndex) -> Rate {
        let config = &self.shared.config;
        self.connections.at(slot).bucket.take(
            config.messages_per_s,
            config.messages_burst,
            self.now_ms,
        )
    }

    // -- sending

    /// Sends a text message.
    pub fn send_text(&mut self, slot: SlotIndex, payload: &[u8]) {
        self.send(slot, Opcode::Text, payload);
    }

    /// Sends a message, deflated where that was agreed on and pays.
    ///
    /// A client that has left too much unread is closed instead.
    pub fn send(&mut self, slot: SlotIndex, opcode: Opcode, payload: &[u8]) {
        if !self.may_answer(slot) {
            return;
        }
        let connection = self.connections.at(slot);
        let deflate_from_bytes = self.shared.config.deflate_from_bytes;
        let deflate = connection
            .deflate
            .filter(|_| payload.len() >= deflate_from_bytes);
        if let Some(params) = deflate {
            self.scratch.clear();
            self.deflater
                .compress_for(params, payload, &mut self.scratch);
            frame::encode(opcode, &self.scratch, true, &mut connection.out);
            self.scratch.shrink_to(64 << 10);
        } else {
            frame::encode(opcode, payload, false, &mut connection.out);
        }
        self.touch(slot);
    }

    /// Sends a control frame, or an application's own frame.
    pub(super) fn send_control(&mut self, slot: SlotIndex, opcode: Opcode, payload: &[u8]) {
        if self.may_answer(slot) {
            frame::encode(opcode, payload, false, &mut self.connections.at(slot).out);
            self.touch(slot);
        }
    }

    /// Bytes that one more answer may have before the client counts as one that does not read.
    pub fn answer_room(&mut self, slot: SlotIndex) -> usize {
        self.unread_limit()
            .saturating_sub(self.connections.at(slot).unsent_bytes())
    }

    fn unread_limit(&self) -> usize {
        usize::try_from(self.shared.config.lag_bytes)
            .unwrap_or(usize::MAX)
            .saturating_mul(UNREAD_FACTOR)
    }

    fn may_answer(&mut self, slot: SlotIndex) -> bool {
        if self.connections.at(slot).state != State::Open {
            return false;
        }
        if self.answer_room(slot) == 0 {
            self.close(slot, SLOW_CONSUMER.0, SLOW_CONSUMER.1);
            return false;
        }
        true
    }

    /// Notes that a connection has something to send in this turn.
    pub(super) fn touch(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        if !connection.in_touched {
            connection.in_touched = true;
            self.touched.push(slot);
        }
    }

    // -- subscriptions

    /// How many logs the connection follows.
    pub fn subscriptions(&mut self, slot: SlotIndex) -> usize {
        self.connections.at(slot).subscriptions.len()
    }

    /// The logs that the connection follows.
    pub fn followed(&mut self, slot: SlotIndex) -> Vec<Arc<SharedLog>> {
        let places: Vec<u32> = self
            .connections
            .at(slot)
            .subscriptions
            .iter()
            .map(|s| s.topic)
            .collect();
        places
            .into_iter()
            .map(|place| Arc::clone(&self.topics.at(place).shared))
            .collect()
    }

    /// The cursor of the connection in a log; None when it does not follow.
    pub fn cursor(&mut self, slot: SlotIndex, log: &SharedLog) -> Option<u64> {
        let place = self.topics.find(log.number)?;
        let subscription = self
            .connections
            .at(slot)
            .subscriptions
            .iter()
            .find(|s| s.topic == place)?;
        Some(if subscription.at == BEHIND {
            subscription.cursor
        } else {
            self.topics.at(place).head
        })
    }

    /// A log that this loop follows, by number.
    pub(super) fn followed_log(&self, number: u64) -> Option<Arc<SharedLog>> {
        let place = self.topics.find(number)?;
        self.topics
            .get(place)
            .map(|topic| Arc::clone(&topic.shared))
    }

    /// The connections that follow a log. Looks at every connection: for what is rare.
    pub(super) fn followers(&mut self, number: u64) -> Vec<SlotIndex> {
        let Some(place) = self.topics.find(number) else {
            return Vec::new();
        };
        self.connections
            .slots()
            .filter(|&slot| {
                self.connections
                    .at(slot)
                    .subscriptions
                    .iter()
                    .any(|s| s.topic == place)
            })
            .collect()
    }

    /// Makes the loop follow a log, so that what is appended from now on wakes it. Every call is undone by
    /// one of `subscribe` or [`release`](Self::release).
    pub(super) fn hold(&mut self, log: &Arc<SharedLog>) -> u32 {
        if let Some(place) = self.topics.find(log.number) {
            return place;
        }
        log.follow(self.index);
        let head = log.log.lock().tip();
        self.topics.add(Topic {
            shared: Arc::clone(log),
            head,
            live: [Vec::new(), Vec::new()],
            subscribers: 0,
            ahead: Vec::new(),
        })
    }

    /// Lets go of a log that was held for nothing.
    pub(super) fn release(&mut self, place: u32) {
        if self
            .topics
            .get(place)
            .is_some_and(|topic| topic.subscribers == 0)
        {
            if let Some(topic) = self.topics.remove(place) {
                topic.shared.unfollow(self.index);
            }
        }
    }

    /// Lets the connection follow a held log from `cursor` on. It must not follow it already, and the caller
    /// has counted it in the log's `subscribers`.
    pub(super) fn subscribe(&mut self, slot: SlotIndex, place: u32, cursor: u64, recovering: bool) {
        let topic = self.topics.at(place);
        topic.subscribers += 1;
        let connection = self.connections.at(slot);
        if connection.track() == 1 {
            topic.shared.log.lock().want_deflated();
        }
        connection.subscriptions.reserve_exact(1);
        connection.subscriptions.push(Subscription {
            topic: place,
            at: BEHIND,
            cursor,
            recovering,
        });
        self.shared
            .counters
            .subscriptions
            .fetch_add(1, Ordering::Relaxed);
        if cursor == self.topics.at(place).head {
            self.join_live(slot, place);
        } else {
            self.topics.at(place).ahead.push(slot);
            self.touch(slot);
        }
    }

    /// Ends the connection's subscription of a log; false when there is none.
    pub fn unsubscribe(&mut self, slot: SlotIndex, log: &SharedLog) -> bool {
        let Some(place) = self.topics.find(log.number) else {
            return false;
        };
        let subscriptions = &self.connections.at(slot).subscriptions;
        let Some(at) = subscriptions.iter().position(|s| s.topic == place) else {
            return false;
        };
        self.end_subscription(slot, at);
        true
    }

    fn unsubscribe_all(&mut self, slot: SlotIndex) {
        while !self.connections.at(slot).subscriptions.is_empty() {
            self.end_subscription(slot, 0);
        }
    }

    /// Ends the connection's subscription number `at`.
    pub(super) fn end_subscription(&mut self, slot: SlotIndex, at: usize) {
        let connection = self.connections.at(slot);
        let track = connection.track();
        let subscription = connection.subscriptions.swap_remove(at);
        let place = subscription.topic;
        if subscription.at != BEHIND {
            let mut live = std::mem::take(&mut self.topics.at(place).live[track]);
            self.leave_live(place, &mut live, subscription.at);
            self.topics.at(place).live[track] = live;
        }
        let now_ms = self.now_ms;
        let topic = self.topics.at(place);
        topic.subscribers -= 1;
        if track == 1 {
            topic.shared.log.lock().unwant_deflated();
        }
        if topic.shared.subscribers.fetch_sub(1, Ordering::Relaxed) == 1 {
            topic.shared.idle_since_ms.store(now_ms, Ordering::Relaxed);
        }
        self.shared
            .counters
            .subscriptions
            .fetch_sub(1, Ordering::Relaxed);
        self.release(place);
    }

    /// Takes the entry `at` out of a live list that was lifted out of its topic.
    pub(super) fn leave_live(&mut self, place: u32, live: &mut Vec<Live>, at: u32) {
        live.swap_remove(at as usize);
        if let Some(moved) = live.get(at as usize) {
            if let Some(subscription) = self.subscription(moved.slot, place) {
                subscription.at = at;
            }
        }
    }

    pub(super) fn subscription(
        &mut self,
        slot: SlotIndex,
        place: u32,
    ) -> Option<&mut Subscription> {
        self.connections
            .at(slot)
            .subscriptions
            .iter_mut()
            .find(|s| s.topic == place)
    }

    /// Puts a subscriber that has everything up to the head among the live ones.
    pub(super) fn join_live(&mut self, slot: SlotIndex, place: u32) {
        let connection = self.connections.at(slot);
        let track = connection.track();
        let Some(fd) = connection.fd.as_ref().map(AsRawFd::as_raw_fd) else {
            return;
        };
        let live = &mut self.topics.at(place).live[track];
        let at = u32::try_from(live.len()).unwrap_or(BEHIND);
        live.push(Live { slot, fd });
        if let Some(subscription) = self.subscription(slot, place) {
            subscription.at = at;
            subscription.recovering = false;
        }
    }

    /// Ends a subscription that its log does not allow any more, and says so.
    pub fn expel(&mut self, slot: SlotIndex, log: &SharedLog, reason: &str) {
        if !self.unsubscribe(slot, log) {
            return;
        }
        let (label, is_program) = log.label();
        let name = if is_program { "programId" } else { "channel" };
        let mut message =
            format!("{{\"jsonrpc\":\"2.0\",\"method\":\"unsubscribed\",\"params\":{{\"{name}\":\"")
                .into_bytes();
        crate::log::escape(label, &mut message);
        message.extend_from_slice(b"\",\"reason\":\"");
        message.extend_from_slice(reason.as_bytes());
        message.extend_from_slice(b"\"}}");
        self.send_text(slot, &message);
    }

    /// Ends the socket's writing side once everything is out.
    pub(super) fn finish_closing(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        if connection.state == State::Closing && !connection.ended && connection.out.is_empty() {
            connection.ended = true;
            if let Some(fd) = &connection.fd {
                sys::end_writing(fd);
            }
        }
    }
}

/// The close code and reason of one who does not keep up.
pub const SLOW_CONSUMER: (u16, &str) = (4008, "slow_consumer");

fn request_id_from(shared: &Shared) -> String {
    format!("{:016x}{:016x}", shared.random(), shared.random())
}
