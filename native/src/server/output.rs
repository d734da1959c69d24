//! From logs and out-buffers to sockets.
//!
//! Two paths. *Broadcast*: all live subscribers of a log stand at the same cursor, so one span goes to all of
//! them and nothing needs to be noted for those that took it whole. *Flush*: a connection that has bytes of its
//! own waiting, or is behind, is served alone: its out-buffer first, then each log it is behind in.
//!
//! Frames never interleave: when a socket takes a frame in part, the rest of that one frame is copied into the
//! out-buffer, and the cursor moves to the next frame. So cursors always stand between frames, and whatever is put into
//! the out-buffer later comes after a whole frame.

use super::connection::{BEHIND, SlotIndex, State};
use super::core::{Core, SLOW_CONSUMER};
use super::shared::Counters;
use super::sys::{self, Moved};
use super::topics::Live;
use crate::log::{Deflate, Lost, Span};
use crate::protocol::frame;

/// What one read of a log may give: large enough to coalesce well, small enough for a lagging connection's turn.
const SPAN_BYTES: u64 = 256 << 10;
/// Spans a connection may be sent in one turn before others have theirs.
const SPANS_A_TURN: usize = 4;

impl Core {
    /// Sends what is new in a log to its live subscribers.
    pub(super) fn broadcast(&mut self, place: u32) {
        if self.topics.get(place).is_none() {
            return;
        }
        // Counts as a subscriber, so that the topic stays while its last real one may go.
        let topic = self.topics.at(place);
        topic.subscribers += 1;
        let shared = std::sync::Arc::clone(&topic.shared);
        shared.hear(self.index);
        let (tip, ended) = {
            let log = shared.log.lock();
            (log.tip(), log.is_ended())
        };
        for track in 0..2 {
            self.broadcast_track(place, track, tip);
        }
        let topic = self.topics.at(place);
        topic.head = tip;
        let ahead = std::mem::take(&mut topic.ahead);
        for slot in ahead {
            self.touch(slot);
        }
        if ended {
            self.end_live(place);
        }
        self.topics.at(place).subscribers -= 1;
        self.release(place);
    }

    fn broadcast_track(&mut self, place: u32, track: usize, tip: u64) {
        let topic = self.topics.at(place);
        let mut cursor = topic.head;
        let mut live = std::mem::take(&mut topic.live[track]);
        let mut gone = Vec::new();
        let mut span = std::mem::take(&mut self.span);
        while cursor < tip && !live.is_empty() {
            if self.read_log(place, cursor, tip, track, &mut span).is_err() {
                // The log dropped what they have not got: only a burst far over its limits can do this.
                gone.extend(live.drain(..).map(|target| (target.slot, true)));
                break;
            }
            self.send_span(place, &mut live, cursor, &span, &mut gone);
            cursor = span.next;
        }
        self.span = span;
        // What is left of `live` was served; those in `gone` were taken out of it.
        self.topics.at(place).live[track] = live;
        for (slot, is_lost) in gone {
            if let Some(subscription) = self.subscription(slot, place) {
                subscription.at = BEHIND;
            }
            if is_lost {
                self.close(slot, SLOW_CONSUMER.0, SLOW_CONSUMER.1);
            } else {
                self.drop_connection(slot);
            }
        }
    }

    fn read_log(
        &mut self,
        place: u32,
        cursor: u64,
        until: u64,
        track: usize,
        span: &mut Span,
    ) -> Result<(), Lost> {
        let deflater = &mut self.deflater;
        let mut deflate = |payload: &[u8], out: &mut Vec<u8>| deflater.compress(payload, out);
        let deflate: Option<&mut Deflate<'_>> = if track == 1 { Some(&mut deflate) } else { None };
        self.topics
            .at(place)
            .shared
            .log
            .lock()
            .read(cursor, until, SPAN_BYTES, deflate, span)
    }

    /// Sends one span to all of `live`; who cannot take it whole leaves the list and is behind, who is gone is
    /// added to `gone`.
    fn send_span(
        &mut self,
        place: u32,
        live: &mut Vec<Live>,
        cursor: u64,
        span: &Span,
        gone: &mut Vec<(SlotIndex, bool)>,
    ) {
        for at in (0..live.len()).rev() {
            let connection = self.connections.at(live[at].slot);
            if connection.blocked || !connection.out.is_empty() {
                self.fall_behind(place, live, at, cursor);
            }
        }
        let mut cursor = cursor;
        let mut results = std::mem::take(&mut self.results);
        for slice in span.slices() {
            self.sender.send_all(live, slice, &mut results);
            for at in (0..live.len()).rev() {
                let result = results[at];
                if usize::try_from(result) == Ok(slice.len()) {
                    continue;
                }
                let slot = live[at].slot;
                if result < 0 && result != -libc::EAGAIN && result != -libc::ENOBUFS {
                    gone.push((slot, false));
                    self.leave_live(place, live, u32::try_from(at).unwrap_or(BEHIND));
                    continue;
                }
                let sent = usize::try_from(result).unwrap_or(0);
                let frames = self.keep_rest(slot, slice, sent);
                self.count_delivery(frames, sent);
                self.fall_behind(place, live, at, cursor + frames);
            }
            let frames = count_frames(slice, span);
            cursor += frames;
            self.count_delivery(frames * live.len() as u64, slice.len() * live.len());
        }
        self.results = results;
    }

    /// Takes a live subscriber out of the list; from now on it is flushed alone, from `cursor` on.
    fn fall_behind(&mut self, place: u32, live: &mut Vec<Live>, at: usize, cursor: u64) {
        let slot = live[at].slot;
        self.leave_live(place, live, u32::try_from(at).unwrap_or(BEHIND));
        if let Some(subscription) = self.subscription(slot, place) {
            subscription.at = BEHIND;
            subscription.cursor = cursor;
        }
        self.touch(slot);
    }

    /// Notes that a socket took `sent` bytes of whole frames and is full: the rest of a frame it took in part
    /// goes to the out-buffer. Returns the frames that are done with, the one in part included.
    fn keep_rest(&mut self, slot: SlotIndex, frames: &[u8], sent: usize) -> u64 {
        let (mut end, mut count) = (0, 0);
        while end < sent {
            end += frame_bytes(&frames[end..]);
            count += 1;
        }
        let now_ms = self.now_ms;
        let connection = self.connections.at(slot);
        connection.out.extend_from_slice(&frames[sent..end]);
        if !connection.blocked || sent > 0 {
            connection.progress_ms = now_ms;
        }
        self.note_blocked(slot);
        count
    }

    fn note_blocked(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        connection.blocked = true;
        if !connection.in_blocked {
            connection.in_blocked = true;
            self.blocked.push(slot);
        }
    }

    /// Sends what waits for one connection, as far as its socket takes it.
    pub(super) fn flush(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        if connection.blocked || connection.state == State::Free || !self.flush_out(slot) {
            return;
        }
        self.finish_closing(slot);
        let mut spans = SPANS_A_TURN;
        let mut at = 0;
        while let Some(subscription) = self.connections.at(slot).subscriptions.get(at) {
            if subscription.at != BEHIND {
                at += 1;
                continue;
            }
            match self.catch_up(slot, at, &mut spans) {
                CatchUp::Done => at += 1,
                CatchUp::Ended => self.end_subscription(slot, at),
                CatchUp::Later => return,
            }
        }
    }

    /// Sends the out-buffer; false when the connection is blocked or gone.
    fn flush_out(&mut self, slot: SlotIndex) -> bool {
        let now_ms = self.now_ms;
        loop {
            let connection = self.connections.at(slot);
            let Some(fd) = &connection.fd else {
                return false;
            };
            if connection.out_at == connection.out.len() {
                connection.out = Vec::new();
                connection.out_at = 0;
                return true;
            }
            match sys::write(fd, &connection.out[connection.out_at..]) {
                Moved::Bytes(sent) => {
                    connection.out_at += sent;
                    connection.progress_ms = now_ms;
                }
                Moved::Blocked => {
                    // Keeps the memory in proportion to what is left.
                    if connection.out_at > connection.out.len() / 2 {
                        connection.out.drain(..connection.out_at);
                        connection.out.shrink_to_fit();
                        connection.out_at = 0;
                    }
                    self.note_blocked(slot);
                    return false;
                }
                Moved::Gone => {
                    self.drop_connection(slot);
                    return false;
                }
            }
        }
    }

    /// Serves one subscription that is behind.
    fn catch_up(&mut self, slot: SlotIndex, at: usize, spans: &mut usize) -> CatchUp {
        let connection = self.connections.at(slot);
        let track = connection.track();
        let place = connection.subscriptions[at].topic;
        loop {
            let cursor = self.connections.at(slot).subscriptions[at].cursor;
            let topic = self.topics.at(place);
            if cursor == topic.head {
                if topic.shared.log.lock().is_ended() && topic.shared.log.lock().tip() == cursor {
                    return CatchUp::Ended;
                }
                self.join_live(slot, place);
                return CatchUp::Done;
            }
            if cursor > topic.head {
                topic.ahead.push(slot);
                return CatchUp::Done;
            }
            if *spans == 0 {
                self.touch(slot);
                return CatchUp::Later;
            }
            *spans -= 1;
            let head = topic.head;
            let mut span = std::mem::take(&mut self.span);
            let is_sent = if self.read_log(place, cursor, head, track, &mut span).is_ok() {
                self.send_alone(slot, at, cursor, &span)
            } else {
                self.close(slot, SLOW_CONSUMER.0, SLOW_CONSUMER.1);
                false
            };
            self.span = span;
            if !is_sent {
                return CatchUp::Later;
            }
        }
    }

    /// Sends a span to one connection; false when it is blocked or gone.
    fn send_alone(&mut self, slot: SlotIndex, at: usize, cursor: u64, span: &Span) -> bool {
        let mut cursor = cursor;
        for slice in span.slices() {
            let Some(fd) = &self.connections.at(slot).fd else {
                return false;
            };
            let sent = match sys::write(fd, slice) {
                Moved::Bytes(sent) => sent,
                Moved::Blocked => 0,
                Moved::Gone => {
                    self.drop_connection(slot);
                    return false;
                }
            };
            if sent < slice.len() {
                let frames = self.keep_rest(slot, slice, sent);
                self.connections.at(slot).subscriptions[at].cursor = cursor + frames;
                self.count_delivery(frames, sent);
                return false;
            }
            let frames = count_frames(slice, span);
            self.count_delivery(frames, slice.len());
            cursor += frames;
        }
        let now_ms = self.now_ms;
        let connection = self.connections.at(slot);
        connection.progress_ms = now_ms;
        connection.subscriptions[at].cursor = span.next;
        true
    }

    fn count_delivery(&self, frames: u64, bytes: usize) {
        Counters::add(&self.shared.counters.deliveries, frames);
        Counters::add(&self.shared.counters.delivered_bytes, bytes as u64);
    }

    /// Ends all live subscriptions of a log that has ended; those behind end when they have caught up.
    fn end_live(&mut self, place: u32) {
        for track in 0..2 {
            while let Some(target) = self
                .topics
                .get(place)
                .and_then(|topic| topic.live[track].last().copied())
            {
                let subscriptions = &self.connections.at(target.slot).subscriptions;
                match subscriptions.iter().position(|s| s.topic == place) {
                    Some(at) => self.end_subscription(target.slot, at),
                    None => unreachable!("leaving a log leaves its list of live subscribers"),
                }
            }
        }
    }

    /// Closes blocked connections that are over the lag limits.
    pub(super) fn check_lag(&mut self) {
        let mut blocked = std::mem::take(&mut self.blocked);
        blocked.retain(|&slot| {
            let connection = self.connections.at(slot);
            if !connection.in_blocked {
                return false;
            }
            if !connection.blocked || connection.state != State::Open {
                connection.in_blocked = false;
                return false;
            }
            if self.is_too_slow(slot) {
                self.connections.at(slot).in_blocked = false;
                self.close(slot, SLOW_CONSUMER.0, SLOW_CONSUMER.1);
                return false;
            }
            true
        });
        blocked.append(&mut self.blocked);
        self.blocked = blocked;
    }

    fn is_too_slow(&mut self, slot: SlotIndex) -> bool {
        let (lag_bytes, lag_ms) = (self.shared.config.lag_bytes, self.shared.config.lag_ms);
        let now_ms = self.now_ms;
        let connection = self.connections.at(slot);
        if now_ms.saturating_sub(connection.progress_ms) > lag_ms {
            return true;
        }
        let behind: Vec<(u32, u64, bool)> = connection
            .subscriptions
            .iter()
            .filter(|s| s.at == BEHIND)
            .map(|s| (s.topic, s.cursor, s.recovering))
            .collect();
        behind.into_iter().any(|(place, cursor, recovering)| {
            match self.topics.at(place).shared.log.lock().behind(cursor) {
                Err(Lost) => true,
                Ok(_) if recovering => false,
                Ok((bytes, since_ms)) => {
                    bytes > lag_bytes
                        || since_ms.is_some_and(|since| now_ms.saturating_sub(since) > lag_ms)
                }
            }
        })
    }
}

enum CatchUp {
    /// Nothing is left to do for this subscription now.
    Done,
    /// The log has ended and everything of it is sent.
    Ended,
    /// The connection is blocked, gone, or has had its share of the turn.
    Later,
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
fn count_frames(slice: &[u8], span: &Span) -> u64 {
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
