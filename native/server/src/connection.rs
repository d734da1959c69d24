//! What a loop keeps of each connection: small, because most are idle.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::gateway::{Account, Attached, Calls};
use super::wire::Wire;
use crate::log::Framing;
use crate::protocol::handshake::Request;
use crate::protocol::{Decoder, DeflateParams, Role};

/// Where a connection stands in its loop.
pub type SlotIndex = u32;

/// A connection of the server: its loop, its slot and how often the slot was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId(pub u64);

impl ConnId {
    const GENERATION_MASK: u32 = 0x00FF_FFFF;

    pub(super) fn new(loop_index: usize, slot: SlotIndex, generation: u32) -> Self {
        Self(
            (loop_index as u64) << 56
                | u64::from(generation & Self::GENERATION_MASK) << 32
                | u64::from(slot),
        )
    }

    /// The loop that owns it; an id that was made up may name one that does not exist.
    #[must_use]
    pub fn loop_index(self) -> usize {
        usize::from(self.0.to_be_bytes()[0])
    }

    pub(super) fn slot(self) -> SlotIndex {
        let [.., a, b, c, d] = self.0.to_be_bytes();
        SlotIndex::from_be_bytes([a, b, c, d])
    }

    pub(super) fn generation(self) -> u32 {
        let [_, a, b, c, ..] = self.0.to_be_bytes();
        u32::from_be_bytes([0, a, b, c])
    }
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody uses the slot.
    Free,
    /// The request head is coming.
    Head,
    /// The handshake waits for a decision.
    Waiting,
    Open,
    /// A close frame or an HTTP error is on its way; what comes in is dropped.
    Closing,
}

/// What only a handshake needs.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    /// The head so far, then what came after it.
    pub bytes: Vec<u8>,
    pub request: Request,
    /// Whether the application has been asked about the token.
    pub was_asked: bool,
    /// Of the question whether an event stream may begin, once the application has been asked that.
    pub ticket: Option<u64>,
    /// The origin of a page that may read the answer; what goes into `Access-Control-Allow-Origin`.
    pub readable_by: Option<String>,
    /// What is sent first, right behind the answer.
    pub greeting: Vec<u8>,
}

impl Handshake {
    fn held_bytes(&self) -> usize {
        let readable_by = self.readable_by.as_ref().map_or(0, String::capacity);
        self.bytes.capacity() + self.request.held_bytes() + readable_by + self.greeting.capacity()
    }
}

/// A cursor of a connection in a log.
#[derive(Debug)]
pub(super) struct Subscription {
    /// The log's place in the loop.
    pub topic: u32,
    /// Its place in the topic's list of live subscribers, or [`BEHIND`].
    pub at: u32,
    /// The next entry to send; that in the list of live subscribers counts instead while it is there.
    pub cursor: u64,
    /// True until a subscription that began in the past has caught up.
    pub recovering: bool,
}

/// Not in a list of live subscribers.
pub(super) const BEHIND: u32 = u32::MAX;

/// One connection.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, packed because there are a million of these"
)]
pub(super) struct Connection {
    pub fd: Option<OwnedFd>,
    pub generation: u32,
    pub state: State,
    /// A write met a full socket; the kernel will tell when there is room.
    pub blocked: bool,
    /// Whether the slot is in the loop's list of blocked connections.
    pub in_blocked: bool,
    /// Whether the slot is in the loop's list of connections to flush.
    pub in_touched: bool,
    /// The handler has enough to do for it: nothing is read.
    pub paused: bool,
    /// There may be something to read that no event will tell of again.
    pub unread: bool,
    /// Whether the slot is in the loop's queue of connections to read.
    pub in_unread: bool,
    /// The client's side of the stream is ended, which no event will tell of again.
    pub hung_up: bool,
    /// Our side of the stream is ended.
    pub ended: bool,
    /// The client was told that its token expires.
    pub warned: bool,
    /// The client was told to reconnect.
    pub sent_away: bool,
    pub address: IpAddr,
    /// Why it was accepted only to be told that there is no room.
    pub turned_away: Option<NoRoom>,
    /// Whether `address` counts in the limit for each address.
    pub counted: bool,
    /// How it is spoken to; does not change once it is open.
    pub wire: Wire,
    /// Of a WebSocket.
    pub deflate: Option<DeflateParams>,
    pub decoder: Decoder,
    pub handshake: Option<Box<Handshake>>,
    /// Bytes that must go out before anything else, whole frames but for the first; not allocated when empty.
    pub out: Vec<u8>,
    /// How many bytes of `out` are gone.
    pub out_at: usize,
    /// Bytes that were read and have not had their turn.
    pub input: Vec<u8>,
    /// What counts of this connection in the loop's waiting bytes.
    pub weight: usize,
    pub subscriptions: Vec<Subscription>,
    /// When a write last moved bytes, or the connection became blocked.
    pub progress_ms: u64,
    /// The tick of the timer that counts.
    pub timer_tick: u64,
    pub ping_ms: u64,
    /// When the pong must be here; `NEVER` when none is awaited.
    pub pong_ms: u64,
    /// When a message that has begun must be complete.
    pub message_ms: u64,
    /// Since when something waits in `out`; `NEVER` when nothing does.
    pub out_since_ms: u64,
    /// When the handshake, the closing or the drain ends it.
    pub end_ms: u64,
    /// When a drained connection is closed even if it still waits for answers.
    pub grace_ms: u64,
    /// When the handler wants to be called.
    pub alarm_ms: u64,
    pub bucket: Bucket,
    pub account: Option<Arc<Account>>,
    pub session: Option<Attached>,
    pub calls: Option<Box<Calls>>,
}

/// What one connection is sent alone before others have their turn. The kernel sends as much in one piece.
pub(super) const SHARE_BYTES: usize = 64 << 10;

/// A deadline that does not come.
pub(super) const NEVER: u64 = u64::MAX;

impl Connection {
    pub fn free(generation: u32) -> Self {
        Self {
            fd: None,
            generation,
            state: State::Free,
            blocked: false,
            in_blocked: false,
            in_touched: false,
            paused: false,
            unread: false,
            in_unread: false,
            hung_up: false,
            ended: false,
            warned: false,
            sent_away: false,
            address: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
            turned_away: None,
            counted: false,
            wire: Wire::default(),
            deflate: None,
            decoder: Decoder::new(Role::Server, 0, false),
            handshake: None,
            out: Vec::new(),
            out_at: 0,
            input: Vec::new(),
            weight: 0,
            subscriptions: Vec::new(),
            progress_ms: 0,
            timer_tick: NEVER,
            ping_ms: NEVER,
            pong_ms: NEVER,
            message_ms: NEVER,
            out_since_ms: NEVER,
            end_ms: NEVER,
            grace_ms: NEVER,
            alarm_ms: NEVER,
            bucket: Bucket::default(),
            account: None,
            session: None,
            calls: None,
        }
    }

    /// The nearest deadline.
    pub fn deadline_ms(&self) -> u64 {
        self.ping_ms
            .min(self.pong_ms)
            .min(self.end_ms)
            .min(self.message_ms)
            .min(self.alarm_ms)
    }

    /// Bytes that wait to be sent.
    pub fn unsent_bytes(&self) -> usize {
        self.out.len() - self.out_at
    }

    /// Whether it has to wait for us: its socket takes more, and a share of sending is not enough.
    pub fn is_owed(&self) -> bool {
        !self.blocked && self.unsent_bytes() >= SHARE_BYTES
    }

    /// Whether what it sends is read. What we owe it goes first, so that we never owe much more.
    pub fn is_heard(&self) -> bool {
        !self.paused && !self.is_owed()
    }

    /// Whether the client has said something that we have not looked at: it is not late, we are, or it has asked for so
    /// much that it has to wait.
    pub fn is_unread(&self) -> bool {
        self.unread && !self.hung_up
    }

    /// Lets go of what is sent of `out`, once it is the larger part.
    pub fn trim_out(&mut self) {
        if self.out_at > self.out.len() / 2 {
            self.out.drain(..self.out_at);
            self.out.shrink_to_fit();
            self.out_at = 0;
        }
    }

    /// Bytes of memory that the client makes us hold, of which it chooses how many: by sending in part, by calls and
    /// handshakes that wait for the application, and by not reading. Everything of this kind is counted here.
    pub fn held_bytes(&self) -> usize {
        self.handshake.as_ref().map_or(0, |h| h.held_bytes())
            + self.input.capacity()
            + self.unfinished_bytes()
            + self.out.capacity()
    }

    /// The part of it that is neither sent nor had its turn because it waits for more: messages in part, and calls
    /// without an answer.
    pub fn unfinished_bytes(&self) -> usize {
        self.decoder.held_bytes() + self.calls.as_ref().map_or(0, |calls| calls.held_bytes())
    }

    /// How it is sent what is in a log, and so which of a topic's audiences it belongs to. Only a client with the full
    /// window can take every shared deflated frame.
    pub fn framing(&self) -> Framing {
        match self.wire {
            Wire::Events => Framing::Events,
            Wire::WebSocket if self.deflate.is_some_and(|params| params.suits(usize::MAX)) => {
                Framing::Deflated
            }
            Wire::WebSocket => Framing::Plain,
        }
    }
}

/// Which limit a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// The gateway's.
    Gateway,
    /// Its address's.
    Address,
}

/// A token bucket, and a second one ten times as deep behind it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    tokens: f32,
    flood: f32,
    at_ms: u64,
}

/// What a bucket says to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    Allowed,
    /// Over the limit: answer with an error.
    Exceeded,
    /// So far over the limit that answering would only help the attack.
    Flood,
}

/// How much deeper the second bucket is.
const FLOOD_FACTOR: f32 = 10.0;

impl Bucket {
    pub fn full(burst: f32, now_ms: u64) -> Self {
        Self {
            tokens: burst,
            flood: burst * FLOOD_FACTOR,
            at_ms: now_ms,
        }
    }

    /// Takes `count` tokens; `per_s` 0 means no limit.
    #[expect(
        clippy::cast_precision_loss,
        reason = "milliseconds between two messages"
    )]
    pub fn take(&mut self, count: f32, per_s: f32, burst: f32, now_ms: u64) -> Rate {
        if per_s == 0.0 {
            return Rate::Allowed;
        }
        let earned = now_ms.saturating_sub(self.at_ms) as f32 * per_s / 1000.0;
        self.at_ms = now_ms;
        self.tokens = (self.tokens + earned).min(burst);
        self.flood = (self.flood + earned).min(burst * FLOOD_FACTOR) - count;
        if self.flood < 0.0 {
            return Rate::Flood;
        }
        if self.tokens < 1.0 {
            return Rate::Exceeded;
        }
        // What costs more than is left is paid back before the next.
        self.tokens -= count;
        Rate::Allowed
    }
}

/// Connections by slot, in pages so that growing copies nothing.
#[derive(Debug)]
pub(super) struct Slab {
    loop_index: usize,
    pages: Vec<Vec<Connection>>,
    free: Vec<SlotIndex>,
    slots: u32,
}

const PAGE: u32 = 256;

impl Slab {
    pub fn new(loop_index: usize) -> Self {
        Self {
            loop_index,
            pages: Vec::new(),
            free: Vec::new(),
            slots: 0,
        }
    }

    /// Takes a free slot, whose connection is blank.
    pub fn take(&mut self) -> SlotIndex {
        if let Some(slot) = self.free.pop() {
            return slot;
        }
        if self.slots % PAGE == 0 {
            self.pages.push(Vec::with_capacity(PAGE as usize));
        }
        if let Some(page) = self.pages.last_mut() {
            page.push(Connection::free(0));
        }
        self.slots += 1;
        self.slots - 1
    }

    /// Gives a slot back, under a new generation.
    pub fn give_back(&mut self, slot: SlotIndex) {
        let generation = self.at(slot).generation.wrapping_add(1) & ConnId::GENERATION_MASK;
        *self.at(slot) = Connection::free(generation);
        self.free.push(slot);
    }

    pub fn at(&mut self, slot: SlotIndex) -> &mut Connection {
        &mut self.pages[(slot / PAGE) as usize][(slot % PAGE) as usize]
    }

    /// The slot of a connection that is still there.
    pub fn find(&mut self, id: ConnId) -> Option<SlotIndex> {
        let slot = id.slot();
        if slot >= self.slots {
            return None;
        }
        let connection = self.at(slot);
        (connection.state != State::Free && connection.generation == id.generation())
            .then_some(slot)
    }

    pub fn id(&mut self, slot: SlotIndex) -> ConnId {
        let generation = self.at(slot).generation;
        ConnId::new(self.loop_index, slot, generation)
    }

    /// The connections.
    #[cfg(test)]
    pub fn all(&self) -> Vec<&Connection> {
        let all = self.pages.iter().flatten();
        all.filter(|one| one.state != State::Free).collect()
    }

    /// Whether there is no connection at all.
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.slots as usize
    }

    /// All slots ever taken; some may be free.
    pub fn slots(&self) -> std::ops::Range<SlotIndex> {
        0..self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_empty_before_the_first_connection_and_after_the_last() {
        let mut slab = Slab::new(0);
        assert!(slab.is_empty());
        let (one, other) = (slab.take(), slab.take());
        slab.give_back(one);
        assert!(!slab.is_empty());
        slab.give_back(other);
        assert!(slab.is_empty());
    }

    #[test]
    fn an_id_dies_with_its_connection() {
        let mut slab = Slab::new(3);
        let slot = slab.take();
        slab.at(slot).state = State::Open;
        let id = slab.id(slot);
        assert_eq!((id.loop_index(), slab.find(id)), (3, Some(slot)));
        slab.give_back(slot);
        assert_eq!(slab.take(), slot);
        slab.at(slot).state = State::Open;
        assert_eq!(slab.find(id), None);
        assert_eq!(slab.find(ConnId(u64::MAX)), None);
    }

    #[test]
    fn a_bucket_allows_its_burst_then_its_rate() {
        let mut bucket = Bucket::full(2.0, 0);
        assert_eq!(bucket.take(1.0, 1.0, 2.0, 0), Rate::Allowed);
        assert_eq!(bucket.take(1.0, 1.0, 2.0, 0), Rate::Allowed);
        assert_eq!(bucket.take(1.0, 1.0, 2.0, 0), Rate::Exceeded);
        assert_eq!(bucket.take(1.0, 1.0, 2.0, 1_000), Rate::Allowed);
        for _ in 0..16 {
            bucket.take(1.0, 1.0, 2.0, 1_000);
        }
        assert_eq!(bucket.take(1.0, 1.0, 2.0, 1_000), Rate::Exceeded);
        assert_eq!(bucket.take(1.0, 1.0, 2.0, 1_000), Rate::Flood);
    }

    #[test]
    fn a_connection_is_small() {
        assert!(
            size_of::<Connection>() <= 320,
            "{}",
            size_of::<Connection>()
        );
    }
}
