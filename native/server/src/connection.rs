//! A loop's data about each connection: small, because most connections are idle.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use broker_core::log::Framing;
use broker_core::protocol::handshake::Request;
use broker_core::protocol::{Decoder, DeflateParams, Role};

use super::application::ClientState;
use super::ids::{ConnId, SlotIndex};
use super::refusals::NoRoom;
use super::tick::Tick;
use super::tls::Tls;
use super::transport::Transport;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The slot is unused.
    Free,
    /// The request head is arriving.
    Head,
    /// The handshake waits for a decision of the application.
    Waiting,
    Open,
    /// A close frame or an HTTP error is being sent; input is dropped.
    Closing,
}

/// The data that only a handshake needs.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    /// The limit because of which the connection will be refused.
    pub turned_away: Option<NoRoom>,
    /// A proxy has to name its client first.
    pub awaits_proxy: bool,
    /// The part of the head, or of a proxy's header, that has arrived, then the bytes that followed it.
    pub bytes: Vec<u8>,
    pub request: Request,
    /// The origin of a page that may read the response; the value of `Access-Control-Allow-Origin`.
    pub readable_by: Option<String>,
    /// What is sent first, right after the response.
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
    /// The log's index in the loop.
    pub topic: u32,
    /// Its index in the topic's list of live subscribers, or [`BEHIND`].
    pub at: u32,
    /// The next entry to send. While the subscription is in the list of live subscribers, the cursor there counts
    /// instead.
    pub cursor: u64,
    /// True until a subscription that began in the past has caught up.
    pub recovering: bool,
}

/// Not in a list of live subscribers.
pub(super) const BEHIND: u32 = u32::MAX;

/// One connection.
#[derive(Debug)]
pub(super) struct Connection<C> {
    pub fd: Option<OwnedFd>,
    pub generation: u32,
    pub state: State,
    pub queued: Queued,
    pub reading: Reading,
    pub writing: Writing,
    pub peer: Peer,
    /// Present where the server has a certificate.
    pub tls: Option<Box<Tls>>,
    /// The protocol that it uses; fixed once it is open.
    pub transport: Transport,
    /// Several entries that are sent together are one message; used by a WebSocket only, and fixed as well.
    pub is_joined: bool,
    /// Used by a WebSocket only.
    pub deflate: Option<DeflateParams>,
    pub decoder: Decoder,
    /// Present in [`State::Head`] and [`State::Waiting`].
    pub handshake: Option<Box<Handshake>>,
    pub out: Outgoing,
    /// Bytes that were read and not processed yet.
    pub input: Vec<u8>,
    /// The part of the loop's waiting bytes that belongs to this connection; its limits are far below 4 GiB.
    pub weight: u32,
    pub subscriptions: Vec<Subscription>,
    pub deadlines: Deadlines,
    pub bucket: Bucket,
    /// The handler's data about it; reset when the connection begins to close.
    pub client: C,
}

/// The queues of its loop in which a connection is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queued {
    /// In the queue of connections with input.
    pub to_read: bool,
    /// In the queue of connections with output.
    pub to_flush: bool,
    /// In the queue of connections whose socket was full.
    pub as_blocked: bool,
}

/// The state of reading from a client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// There may be input that no further event will announce.
    pub has_more: bool,
    /// The client has ended its side of the stream, which no further event will announce.
    pub is_ended: bool,
    /// The handler has enough work from this connection: nothing is read.
    pub is_paused: bool,
    /// How many times input is still read and dropped once the connection is closing.
    pub drops_left: u8,
}

/// Whether output can be sent to a client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Writing {
    /// A write met a full socket; the kernel will report when there is room.
    pub is_blocked: bool,
    /// Our side of the stream has ended.
    pub is_ended: bool,
}

/// The other side of the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub address: IpAddr,
    /// Whether `address` counts towards the limit per address.
    pub is_counted: bool,
}

/// Output for this connection alone, sent before anything else.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Whole frames, except for the first; not allocated when empty.
    pub bytes: Vec<u8>,
    /// How many of `bytes` have been sent.
    pub sent: usize,
    /// When the buffer became non-empty; not set while it is empty.
    pub since: Tick,
    /// When a write last sent bytes, including those of a log, or when the connection became blocked.
    pub progress: Moment,
}

impl Outgoing {
    /// The number of pending bytes.
    pub fn unsent_bytes(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Removes the sent bytes, once they are the larger part.
    pub fn trim(&mut self) {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.bytes.shrink_to_fit();
            self.sent = 0;
        }
    }
}

/// The deadlines of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    /// The timer that is in effect.
    pub timer: Tick,
    /// When the next keep-alive is sent.
    pub ping: Tick,
    /// When the next sign of life is due; set for clients that want them.
    pub alive: Tick,
    /// When the pong must have arrived.
    pub pong: Tick,
    /// When a message that has begun must be complete.
    pub message: Tick,
    /// When the handshake, the closing or the drain times out.
    pub end: Tick,
    /// When a client that was told to reconnect is closed even if it still waits for replies.
    pub leave_by: Tick,
    /// When the handler's alarm is due.
    pub alarm: Tick,
}

/// A past time of the loop's clock in milliseconds: its low half, which is unambiguous for three weeks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment(u32);

impl Moment {
    pub fn at_ms(ms: u64) -> Self {
        let [.., a, b, c, d] = ms.to_be_bytes();
        Self(u32::from_be_bytes([a, b, c, d]))
    }

    /// How long ago it was, modulo seven weeks; 0 for more than three weeks and for times in the future.
    pub fn since_ms(self, now_ms: u64) -> u64 {
        let past_ms = Self::at_ms(now_ms).0.wrapping_sub(self.0);
        if past_ms <= u32::MAX / 2 {
            u64::from(past_ms)
        } else {
            0
        }
    }
}

impl Deadlines {
    const NONE: Self = Self {
        timer: Tick::NEVER,
        ping: Tick::NEVER,
        alive: Tick::NEVER,
        pong: Tick::NEVER,
        message: Tick::NEVER,
        end: Tick::NEVER,
        leave_by: Tick::NEVER,
        alarm: Tick::NEVER,
    };

    /// The nearest deadline for which the loop sets a timer.
    pub fn next(&self) -> Tick {
        self.ping
            .min(self.alive)
            .min(self.pong)
            .min(self.end)
            .min(self.message)
            .min(self.alarm)
    }
}

/// How much one connection is sent alone before the others have their turn. The kernel sends that much in one piece.
pub(super) const SHARE_BYTES: usize = 64 << 10;

impl<C: ClientState> Connection<C> {
    pub fn free(generation: u32) -> Self {
        Self {
            fd: None,
            generation,
            state: State::Free,
            queued: Queued::default(),
            reading: Reading::default(),
            writing: Writing::default(),
            peer: Peer {
                address: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
                is_counted: false,
            },
            tls: None,
            transport: Transport::default(),
            is_joined: false,
            deflate: None,
            decoder: Decoder::new(Role::Server, 0, false),
            handshake: None,
            out: Outgoing {
                bytes: Vec::new(),
                sent: 0,
                since: Tick::NEVER,
                progress: Moment::default(),
            },
            input: Vec::new(),
            weight: 0,
            subscriptions: Vec::new(),
            deadlines: Deadlines::NONE,
            bucket: Bucket::default(),
            client: C::default(),
        }
    }

    /// Whether a proxy has not named its client yet.
    pub fn awaits_proxy(&self) -> bool {
        self.handshake.as_ref().is_some_and(|it| it.awaits_proxy)
    }

    /// Whether the connection waits for us: its socket takes more, and its output exceeds one share.
    pub fn is_owed(&self) -> bool {
        !self.writing.is_blocked && self.out.unsent_bytes() >= SHARE_BYTES
    }

    /// Whether its input is read. Its output is sent first, so that the output never grows far.
    pub fn is_heard(&self) -> bool {
        !self.reading.is_paused && !self.is_owed()
    }

    /// Whether the client has sent input that we have not processed: we are late, not the client, or it has requested
    /// so much that it has to wait.
    pub fn is_unread(&self) -> bool {
        self.reading.has_more && !self.reading.is_ended
    }

    /// Bytes of memory that the client controls: incomplete messages, calls and handshakes that wait for the
    /// application, and output that it does not read. All memory of this kind is counted here.
    pub fn held_bytes(&self) -> usize {
        self.handshake.as_ref().map_or(0, |h| h.held_bytes())
            + self.input.capacity()
            + self.unfinished_bytes()
            + self.out.bytes.capacity()
            + self.tls.as_ref().map_or(0, |tls| tls.held_bytes())
    }

    /// Whether its input has ended within a record of TLS.
    pub fn is_within_record(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_within_record())
    }

    /// Encrypted bytes that the socket has not taken.
    pub fn sealed_bytes(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| tls.unsent_bytes())
    }

    /// Output that has not been sent.
    pub fn unsent_bytes(&self) -> usize {
        self.out.unsent_bytes() + self.sealed_bytes()
    }

    /// The part of it that is not output and does not wait for its turn: incomplete messages, and calls without a
    /// reply.
    pub fn unfinished_bytes(&self) -> usize {
        self.decoder.held_bytes() + self.client.held_bytes()
    }

    /// The form in which it receives the entries of a log, which decides its audience of a topic. Only a client with
    /// the full window can take every shared deflated frame.
    pub fn framing(&self) -> Framing {
        let is_deflated = self.deflate.is_some_and(|params| params.suits(usize::MAX));
        match (self.transport, is_deflated, self.is_joined) {
            (Transport::Events, ..) => Framing::Events,
            (Transport::WebSocket, true, true) => Framing::JoinedDeflated,
            (Transport::WebSocket, true, false) => Framing::Deflated,
            (Transport::WebSocket, false, true) => Framing::Joined,
            (Transport::WebSocket, false, false) => Framing::Plain,
        }
    }
}

/// A token bucket, and a second one ten times as deep behind it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    tokens: f32,
    flood: f32,
    at: Moment,
}

/// A bucket's verdict on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    Allowed,
    /// Over the limit: reply with an error.
    Exceeded,
    /// So far over the limit that a reply would only help the attacker.
    Flood,
}

/// How many times deeper the second bucket is.
const FLOOD_FACTOR: f32 = 10.0;

impl Bucket {
    pub fn full(burst: f32, now_ms: u64) -> Self {
        Self {
            tokens: burst,
            flood: burst * FLOOD_FACTOR,
            at: Moment::at_ms(now_ms),
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
        let earned = self.at.since_ms(now_ms) as f32 * per_s / 1000.0;
        self.at = Moment::at_ms(now_ms);
        self.tokens = (self.tokens + earned).min(burst);
        self.flood = (self.flood + earned).min(burst * FLOOD_FACTOR) - count;
        if self.flood < 0.0 {
            return Rate::Flood;
        }
        if self.tokens < 1.0 {
            return Rate::Exceeded;
        }
        // A cost beyond the tokens left has to be paid back before the next one.
        self.tokens -= count;
        Rate::Allowed
    }
}

/// Connections by slot, in pages so that growing copies nothing.
#[derive(Debug)]
pub(super) struct Slab<C> {
    loop_index: usize,
    pages: Vec<Vec<Connection<C>>>,
    free: Vec<SlotIndex>,
    slots: u32,
}

const PAGE: u32 = 256;

impl<C: ClientState> Slab<C> {
    pub fn new(loop_index: usize) -> Self {
        Self {
            loop_index,
            pages: Vec::new(),
            free: Vec::new(),
            slots: 0,
        }
    }

    /// Takes a free slot, whose connection is in its initial state.
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

    /// Frees a slot, under a new generation.
    pub fn give_back(&mut self, slot: SlotIndex) {
        let generation = self.at(slot).generation.wrapping_add(1) & ConnId::GENERATION_MASK;
        *self.at(slot) = Connection::free(generation);
        self.free.push(slot);
    }

    pub fn at(&mut self, slot: SlotIndex) -> &mut Connection<C> {
        &mut self.pages[(slot / PAGE) as usize][(slot % PAGE) as usize]
    }

    /// The slot of a connection that still exists.
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
    pub fn all(&self) -> Vec<&Connection<C>> {
        let all = self.pages.iter().flatten();
        all.filter(|one| one.state != State::Free).collect()
    }

    /// Whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.slots as usize
    }

    /// All slots ever used; some may be free.
    pub fn slots(&self) -> std::ops::Range<SlotIndex> {
        0..self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_empty_before_the_first_connection_and_after_the_last() {
        let mut slab = Slab::<()>::new(0);
        assert!(slab.is_empty());
        let (one, other) = (slab.take(), slab.take());
        slab.give_back(one);
        assert!(!slab.is_empty());
        slab.give_back(other);
        assert!(slab.is_empty());
    }

    #[test]
    fn an_id_dies_with_its_connection() {
        let mut slab = Slab::<()>::new(3);
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

    /// The handler's data about it come on top.
    #[test]
    fn a_moment_that_has_not_come_is_no_weeks_ago() {
        let moment = Moment::at_ms(u64::from(u32::MAX) + 5);
        assert_eq!(moment.since_ms(u64::from(u32::MAX) + 9), 4);
        assert_eq!(moment.since_ms(u64::from(u32::MAX) + 4), 0);
        assert_eq!(
            Moment::at_ms(u64::from(u32::MAX) - 1).since_ms(u64::from(u32::MAX) + 1),
            2
        );
    }

    #[test]
    fn a_connection_is_small() {
        assert!(
            size_of::<Connection<()>>() <= 208,
            "{}",
            size_of::<Connection<()>>()
        );
    }
}
