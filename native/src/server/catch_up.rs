//! One connection served alone: its out-buffer first, then each log it is behind in.

use super::connection::{BEHIND, NEVER, SlotIndex, State};
use super::core::{Core, SLOW_CONSUMER};
use super::output::count_frames;
use super::sys::{self, Moved};
use crate::log::Span;

/// Spans a connection may be sent in one turn before others have theirs.
const SPANS_A_TURN: usize = 4;

enum CatchUp {
    /// Nothing is left to do for this subscription now.
    Done,
    /// The log has ended and everything of it is sent.
    Ended,
    /// The connection is blocked, gone, or has had its share of the turn.
    Later,
}

impl Core {
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
                connection.out_since_ms = NEVER;
                self.weigh(slot);
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
                    self.weigh(slot);
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
