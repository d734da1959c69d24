//! One connection served alone: its out-buffer first, then each log it is behind in.

use super::connection::{BEHIND, NEVER, SHARE_BYTES, SlotIndex, State};
use super::core::{Core, SLOW_CONSUMER};
use super::output::count_frames;
use super::sys::{self, Moved};
use crate::log::Span;

/// The least that a span counts in a share: a call costs the kernel about as much as sending so many bytes.
const LEAST_BYTES: usize = SHARE_BYTES / 4;

enum CatchUp {
    /// Nothing is left to do for this subscription now.
    Done,
    /// The log has ended and everything of it is sent.
    Ended,
    /// The connection is blocked, gone, or has had its share.
    Later,
}

impl Core {
    /// Sends what waits for one connection, as far as its socket takes it, and about `share` bytes at most: for the
    /// rest it is touched again.
    pub(super) fn flush(&mut self, slot: SlotIndex, mut share: usize) {
        let connection = self.connections.at(slot);
        if connection.blocked || connection.state == State::Free {
            return;
        }
        if self.flush_out(slot, &mut share) {
            self.finish_closing(slot);
            self.flush_logs(slot, share);
        }
        let connection = self.connections.at(slot);
        if connection.unread && connection.is_heard() {
            self.read_later(slot);
        }
    }

    /// Sends what the connection is behind in, log by log.
    fn flush_logs(&mut self, slot: SlotIndex, mut share: usize) {
        let mut at = 0;
        while let Some(subscription) = self.connections.at(slot).subscriptions.get(at) {
            if subscription.at != BEHIND {
                at += 1;
                continue;
            }
            match self.catch_up(slot, at, &mut share) {
                CatchUp::Done => at += 1,
                CatchUp::Ended => self.end_subscription(slot, at),
                CatchUp::Later => return,
            }
        }
    }

    /// Sends the out-buffer; false when the connection is blocked, gone, or has had its share.
    fn flush_out(&mut self, slot: SlotIndex, share: &mut usize) -> bool {
        let now_ms = self.now_ms;
        loop {
            let connection = self.connections.at(slot);
            let Some(fd) = &connection.fd else {
                return false;
            };
            if connection.out_at == connection.out.len() {
                connection.out = Vec::new();
                connection.out_at = 0;
                connection.out_since_ms = NEVER;
                self.weigh(slot);
                return true;
            }
            if *share == 0 {
                connection.trim_out();
                self.weigh(slot);
                self.touch(slot);
                return false;
            }
            let rest = &connection.out[connection.out_at..];
            match sys::write(fd, &rest[..rest.len().min(*share)]) {
                Moved::Bytes(sent) => {
                    connection.out_at += sent;
                    *share -= sent;
                    connection.progress_ms = now_ms;
                }
                Moved::Blocked => {
                    connection.trim_out();
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

    /// Serves one subscription that is behind.
    fn catch_up(&mut self, slot: SlotIndex, at: usize, share: &mut usize) -> CatchUp {
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
            if *share == 0 {
                self.touch(slot);
                return CatchUp::Later;
            }
            let (head, bytes) = (topic.head, *share as u64);
            let mut span = std::mem::take(&mut self.span);
            let read = self.read_log(place, cursor, head, track, bytes, &mut span);
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

    /// Sends a span to one connection; false when it is blocked or gone.
    fn send_alone(&mut self, slot: SlotIndex, at: usize, cursor: u64, span: &Span) -> bool {
        let place = self.connections.at(slot).subscriptions[at].topic;
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
                self.count_delivery(place, frames, sent);
                return false;
            }
            let frames = count_frames(slice, span);
            self.count_delivery(place, frames, slice.len());
            cursor += frames;
        }
        let now_ms = self.now_ms;
        let connection = self.connections.at(slot);
        connection.progress_ms = now_ms;
        connection.subscriptions[at].cursor = span.next;
        true
    }
}
