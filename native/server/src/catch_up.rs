//! Serves one connection alone: its out-buffer first, then each log in which it is behind. A small out-buffer is sent
//! in one write with the bytes of a log.

use std::io::IoSlice;

use broker_core::log::Span;

use super::application::Application;
use super::connection::{BEHIND, Moment, SHARE_BYTES, State};
use super::ids::SlotIndex;
use super::loop_state::{Core, SLOW_CONSUMER};
use super::sys::Moved;
use super::tick::Tick;
use super::tls;

/// The least that a span counts in a share: a system call costs the kernel about as much as sending this many bytes.
const LEAST_BYTES: usize = SHARE_BYTES / 4;
/// Slices of one write: a share of a log rarely has more.
const PARTS: usize = 7;

enum CatchUp {
    /// Nothing is left to do for this subscription at the moment.
    Done,
    /// The log has ended, and all of it has been sent.
    Ended,
    /// The connection is blocked, gone, or has used up its share.
    Later,
}

impl<A: Application> Core<A> {
    /// Sends the pending bytes of one connection, as far as its socket takes them, and about `share` bytes at most. If
    /// more is left, the connection is queued again.
    pub(super) fn flush(&mut self, slot: SlotIndex, mut share: usize) {
        let connection = self.connections.at(slot);
        if connection.writing.is_blocked || connection.state == State::Free {
            return;
        }
        if !connection.out.bytes.is_empty() {
            self.take_along(slot);
        }
        if self.flush_out(slot, &mut share) {
            self.finish_closing(slot);
            self.flush_logs(slot, share);
        }
        let connection = self.connections.at(slot);
        if connection.reading.has_more && connection.is_heard() {
            self.read_later(slot);
        }
    }

    /// Removes the connection, which is written to anyway, from the broadcasts that have not reached it yet.
    fn take_along(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        let framing = connection.framing();
        for at in 0..connection.subscriptions.len() {
            let subscription = &self.connections.at(slot).subscriptions[at];
            let (place, live) = (subscription.topic, subscription.at);
            if live == BEHIND {
                continue;
            }
            let topic = self.topics.at(place);
            if topic.audiences[framing].live[live as usize].cursor < topic.head {
                self.set_behind(slot, at);
            }
        }
    }

    /// Whether a log has entries that have to be sent to the connection alone.
    fn is_behind(&mut self, slot: SlotIndex) -> bool {
        let subscriptions = &self.connections.at(slot).subscriptions;
        subscriptions
            .iter()
            .any(|s| s.at == BEHIND && s.cursor < self.topics.at(s.topic).head)
    }

    /// Sends what the connection has missed, log by log.
    fn flush_logs(&mut self, slot: SlotIndex, mut share: usize) {
        let mut at = 0;
        while let Some(subscription) = self.connections.at(slot).subscriptions.get(at) {
            if subscription.at != BEHIND {
                at += 1;
                continue;
            }
            match self.catch_up(slot, at, &mut share) {
                CatchUp::Done => at += 1,
                CatchUp::Ended => self.end_ended(slot, at),
                CatchUp::Later => return,
            }
        }
    }

    /// Sends the out-buffer; returns false when the connection is blocked, gone, or has used up its share. If the
    /// out-buffer is less than a share, it is left to be sent together with the bytes of a log.
    fn flush_out(&mut self, slot: SlotIndex, share: &mut usize) -> bool {
        if !self.flush_sealed(slot) {
            return false;
        }
        let now_ms = self.now_ms;
        loop {
            let connection = self.connections.at(slot);
            if connection.out.sent == connection.out.bytes.len() {
                self.empty_out(slot);
                return true;
            }
            if connection.out.unsent_bytes() < *share && self.is_behind(slot) {
                return true;
            }
            let connection = self.connections.at(slot);
            if *share == 0 {
                connection.out.trim();
                self.weigh(slot);
                self.touch(slot);
                return false;
            }
            let Some(fd) = &connection.fd else {
                return false;
            };
            let rest = &connection.out.bytes[connection.out.sent..];
            let piece = IoSlice::new(&rest[..rest.len().min(*share)]);
            let tls = connection.tls.as_deref_mut();
            match tls::write(fd, tls, &[piece], &mut self.sealing) {
                Moved::Bytes(sent) => {
                    connection.out.sent += sent;
                    *share -= sent;
                    connection.out.progress = Moment::at_ms(now_ms);
                    if connection.sealed_bytes() > 0 {
                        connection.out.trim();
                        self.note_blocked(slot);
                        self.end_unread(slot);
                        return false;
                    }
                }
                Moved::Blocked => {
                    connection.out.trim();
                    self.note_blocked(slot);
                    self.end_unread(slot);
                    return false;
                }
                Moved::Gone => {
                    self.drop_connection(slot);
                    return false;
                }
            }
        }
    }

    /// Sends the rest of an encrypted record; returns false when the connection is blocked or gone.
    pub(super) fn flush_sealed(&mut self, slot: SlotIndex) -> bool {
        let now_ms = self.now_ms;
        let connection = self.connections.at(slot);
        let (Some(tls), Some(fd)) = (&mut connection.tls, &connection.fd) else {
            return true;
        };
        let before = tls.unsent_bytes();
        if before == 0 {
            return true;
        }
        let outcome = tls.flush(fd);
        if tls.unsent_bytes() < before {
            connection.out.progress = Moment::at_ms(now_ms);
        }
        match outcome {
            Moved::Bytes(_) => {
                self.weigh(slot);
                true
            }
            Moved::Blocked => {
                self.note_blocked(slot);
                self.end_unread(slot);
                false
            }
            Moved::Gone => {
                self.drop_connection(slot);
                false
            }
        }
    }

    /// Serves one subscription that is behind.
    fn catch_up(&mut self, slot: SlotIndex, at: usize, share: &mut usize) -> CatchUp {
        let connection = self.connections.at(slot);
        let framing = connection.framing();
        let place = connection.subscriptions[at].topic;
        loop {
            let cursor = self.connections.at(slot).subscriptions[at].cursor;
            let topic = self.topics.at(place);
            if cursor >= topic.head {
                let is_over = {
                    let log = topic.shared.log.lock();
                    log.is_ended() && log.tip() == cursor
                };
                if is_over {
                    return CatchUp::Ended;
                }
                self.join_live(slot, place, cursor);
                return CatchUp::Done;
            }
            if *share == 0 {
                self.touch(slot);
                return CatchUp::Later;
            }
            let (head, bytes) = (topic.head, *share as u64);
            let mut span = std::mem::take(&mut self.span);
            let read = self.read_log(place, cursor, head, framing, bytes, &mut span);
            *share = share.saturating_sub(span.bytes().max(LEAST_BYTES));
            let is_sent = if read.is_ok() {
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

    fn empty_out(&mut self, slot: SlotIndex) {
        let connection = self.connections.at(slot);
        connection.out.bytes = Vec::new();
        connection.out.sent = 0;
        connection.out.since = Tick::NEVER;
        self.weigh(slot);
    }

    /// Sends the out-buffer and a span to one connection; returns false when it is blocked or gone.
    fn send_alone(&mut self, slot: SlotIndex, at: usize, cursor: u64, span: &Span) -> bool {
        let place = self.connections.at(slot).subscriptions[at].topic;
        let (mut cursor, mut slices) = (cursor, span.slices());
        loop {
            let mut parts: [&[u8]; PARTS] = [&[]; PARTS];
            let mut count = 0;
            for (part, slice) in parts.iter_mut().zip(&mut slices) {
                *part = slice;
                count += 1;
            }
            if count == 0 {
                break;
            }
            let Some(mut sent) = self.write_behind_out(slot, &parts[..count]) else {
                return false;
            };
            for slice in &parts[..count] {
                if sent < slice.len() {
                    let frames = self.keep_rest(slot, span, slice, sent);
                    self.connections.at(slot).subscriptions[at].cursor = cursor + frames;
                    self.count_delivery(place, frames, sent);
                    return false;
                }
                let frames = span.count_frames(slice);
                self.count_delivery(place, frames, slice.len());
                cursor += frames;
                sent -= slice.len();
            }
        }
        let now_ms = self.now_ms;
        let connection = self.connections.at(slot);
        connection.out.progress = Moment::at_ms(now_ms);
        connection.subscriptions[at].cursor = span.next;
        true
    }

    /// Writes the out-buffer and `parts` after it at once; returns how many bytes of the parts were sent. None when the
    /// connection is gone, or blocked before the end of its out-buffer.
    fn write_behind_out(&mut self, slot: SlotIndex, parts: &[&[u8]]) -> Option<usize> {
        let now_ms = self.now_ms;
        let connection = self.connections.at(slot);
        let fd = connection.fd.as_ref()?;
        let own = &connection.out.bytes[connection.out.sent..];
        let own_bytes = own.len();
        let mut pieces = [IoSlice::new(own); PARTS + 1];
        let first = usize::from(own_bytes == 0);
        for (piece, part) in pieces[1..].iter_mut().zip(parts) {
            *piece = IoSlice::new(part);
        }
        let tls = connection.tls.as_deref_mut();
        let outcome = tls::write(fd, tls, &pieces[first..=parts.len()], &mut self.sealing);
        let is_sealed = connection.sealed_bytes() > 0;
        let sent = match outcome {
            Moved::Bytes(sent) => sent,
            Moved::Blocked => 0,
            Moved::Gone => {
                self.drop_connection(slot);
                return None;
            }
        };
        if is_sealed {
            self.note_blocked(slot);
        }
        if own_bytes == 0 {
            return Some(sent);
        }
        if sent >= own_bytes {
            self.empty_out(slot);
            return Some(sent - own_bytes);
        }
        let connection = self.connections.at(slot);
        connection.out.sent += sent;
        if sent > 0 {
            connection.out.progress = Moment::at_ms(now_ms);
        }
        connection.out.trim();
        self.note_blocked(slot);
        self.end_unread(slot);
        None
    }
}
