//! From logs and out-buffers to sockets: the part that both paths share.
//!
//! Two paths. *Broadcast* (`broadcast`): all live subscribers of a log are at the same cursor, so one span goes to all
//! of them, and a subscriber that took it whole needs no bookkeeping. *Flush* (`catch_up`): a connection that has
//! output of its own, or is behind, is served alone: its out-buffer first, then each log in which it is behind. It gets
//! a share, then it queues again, and broadcasts of new entries go before the queue.
//!
//! A client that asks for batches gets the entries of a few milliseconds as one message (`holding`).
//!
//! Frames, or events on an event stream, never interleave: when a socket takes part of a frame, the rest of that one
//! frame is copied into the out-buffer, and the cursor moves to the next frame. So cursors always point between frames,
//! and whatever is added to the out-buffer later follows a whole frame.

use broker_core::log::{Framing, Lost, Span};

use super::application::Application;
use super::connection::Moment;
use super::ids::SlotIndex;
use super::loop_state::Core;
use super::shared::Counters;
use super::tick::Tick;

/// How much is deflated before others have their turn: 2 ms of work at 60 MB/s.
const DEFLATE_BYTES: u64 = 128 << 10;
/// The longest joined frame, except a longer entry: what a page reads of it in one task, some 200 events, leaves it time
/// to draw.
const JOINED_BYTES: u64 = 64 << 10;

impl<A: Application> Core<A> {
    pub(super) fn read_log(
        &mut self,
        place: u32,
        cursor: u64,
        until: u64,
        framing: Framing,
        bytes: u64,
        span: &mut Span,
    ) -> Result<(), Lost> {
        let (shared, deflater) = (&self.topics.at(place).shared, &mut self.deflater);
        match framing {
            Framing::Plain | Framing::Joined => {}
            Framing::Deflated | Framing::JoinedDeflated => {
                shared.deflate(until, DEFLATE_BYTES, |payload, out| {
                    deflater.compress(payload, out);
                });
            }
            Framing::Events => shared.log.lock().make_events(until, bytes),
        }
        let bytes = if framing.is_joined() {
            bytes.min(JOINED_BYTES)
        } else {
            bytes
        };
        let log = shared.log.lock();
        log.read(cursor, until, bytes, framing, span)
    }

    /// Notes that a socket took `sent` bytes of a slice of `span` and is full: the rest of a partly sent frame goes to
    /// the out-buffer. Returns the number of frames done, including the partly sent one.
    pub(super) fn keep_rest(
        &mut self,
        slot: SlotIndex,
        span: &Span,
        frames: &[u8],
        sent: usize,
    ) -> u64 {
        let (end, count) = span.whole(frames, sent);
        let now_ms = self.now_ms;
        let connection = self.connections.at(slot);
        connection.out.bytes.extend_from_slice(&frames[sent..end]);
        if sent > 0 {
            connection.out.progress = Moment::at_ms(now_ms);
        }
        self.note_blocked(slot);
        self.weigh(slot);
        count
    }

    pub(super) fn note_blocked(&mut self, slot: SlotIndex) {
        let now_ms = self.now_ms;
        let connection = self.connections.at(slot);
        if !connection.writing.is_blocked {
            connection.out.progress = Moment::at_ms(now_ms);
        }
        connection.writing.is_blocked = true;
        connection.out.since = connection.out.since.min(Tick::at_ms(now_ms));
        if !connection.queued.as_blocked {
            connection.queued.as_blocked = true;
            self.blocked.push(slot);
        }
    }

    pub(super) fn count_delivery(&self, place: u32, frames: u64, bytes: usize) {
        if let Some(topic) = self.topics.get(place) {
            Counters::add(&topic.shared.deliveries, frames);
        }
        Counters::add(&self.shared.counters.deliveries, frames);
        Counters::add(&self.shared.counters.delivered_bytes, bytes as u64);
    }
}
