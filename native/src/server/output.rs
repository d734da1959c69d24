//! From logs and out-buffers to sockets: what both paths need.
//!
//! Two paths. *Broadcast* (`broadcast`): all live subscribers of a log stand at the same cursor, so one span goes to all of
//! them and nothing needs to be noted for those that took it whole. *Flush* (`catch_up`): a connection that has bytes of its
//! own waiting, or is behind, is served alone: its out-buffer first, then each log it is behind in. It gets a share, then
//! it queues again, and the broadcast of something new goes before the queue.
//!
//! Frames never interleave: when a socket takes a frame in part, the rest of that one frame is copied into the
//! out-buffer, and the cursor moves to the next frame. So cursors always stand between frames, and whatever is put into
//! the out-buffer later comes after a whole frame.

use super::connection::SlotIndex;
use super::core::Core;
use super::shared::Counters;
use crate::log::{Lost, Span};
use crate::protocol::frame;

/// What is deflated before others have their turn: 2 ms of work at 60 MB/s.
const DEFLATE_BYTES: u64 = 128 << 10;

impl Core {
    pub(super) fn read_log(
        &mut self,
        place: u32,
        cursor: u64,
        until: u64,
        track: usize,
        bytes: u64,
        span: &mut Span,
    ) -> Result<(), Lost> {
        let (shared, deflater) = (&self.topics.at(place).shared, &mut self.deflater);
        let wants_deflated = track == 1;
        if wants_deflated {
            shared.deflate(until, DEFLATE_BYTES, |payload, out| {
                deflater.compress(payload, out);
            });
        }
        let log = shared.log.lock();
        log.read(cursor, until, bytes, wants_deflated, span)
    }

    /// Notes that a socket took `sent` bytes of whole frames and is full: the rest of a frame it took in part
    /// goes to the out-buffer. Returns the frames that are done with, the one in part included.
    pub(super) fn keep_rest(&mut self, slot: SlotIndex, frames: &[u8], sent: usize) -> u64 {
        let (mut end, mut count) = (0, 0);
        while end < sent {
            end += frame_bytes(&frames[end..]);
            count += 1;
        }
        let now_ms = self.now_ms;
        let connection = self.connections.at(slot);
        connection.out.extend_from_slice(&frames[sent..end]);
        if sent > 0 {
            connection.progress_ms = now_ms;
        }
        self.note_blocked(slot);
        self.weigh(slot);
        count
    }

    pub(super) fn note_blocked(&mut self, slot: SlotIndex) {
        let now_ms = self.now_ms;
        let connection = self.connections.at(slot);
        if !connection.blocked {
            connection.progress_ms = now_ms;
        }
        connection.blocked = true;
        connection.out_since_ms = connection.out_since_ms.min(now_ms);
        if !connection.in_blocked {
            connection.in_blocked = true;
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

/// Bytes of the frame at the start of `frames`, which are our own: whole, unmasked.
fn frame_bytes(frames: &[u8]) -> usize {
    match frame::parse_header(frames) {
        Ok(Some((header, header_bytes))) => {
            header_bytes + usize::try_from(header.payload_bytes).unwrap_or(usize::MAX)
        }
        _ => unreachable!("a log holds whole frames of our own making"),
    }
}

/// Frames in one slice of `span`.
pub(super) fn count_frames(slice: &[u8], span: &Span) -> u64 {
    if slice.len() == span.bytes() {
        return span.frames;
    }
    let (mut at, mut count) = (0, 0);
    while at < slice.len() {
        at += frame_bytes(&slice[at..]);
        count += 1;
    }
    count
}
