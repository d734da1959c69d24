//! Output for a single connection: replies, notices, control frames.

use broker_core::protocol::frame::{self, Opcode};

use super::application::Application;
use super::connection::State;
use super::ids::SlotIndex;
use super::loop_state::{Core, SLOW_CONSUMER};

/// A client may leave this many times the lag limit of replies unread …
const UNREAD_BYTES_FACTOR: usize = 4;
/// … but only this many bytes while the loop's memory is used up, and the same number for calls without a reply. Longer
/// recoveries then follow as pushes, which wait in the shared log.
pub(super) const CROWDED_BYTES: usize = 4 << 10;

impl<A: Application> Core<A> {
    /// Sends a text message.
    pub fn send_text(&mut self, slot: SlotIndex, payload: &[u8]) {
        self.send(slot, Opcode::Text, payload);
    }

    /// Sends a message, deflated where that was negotiated, saves bytes, and does not delay others.
    ///
    /// A client that has left too many bytes unread is closed instead; one without messages gets none.
    pub fn send(&mut self, slot: SlotIndex, opcode: Opcode, payload: &[u8]) {
        if !self.connections.at(slot).transport.has_messages() || !self.may_answer(slot) {
            return;
        }
        let connection = self.connections.at(slot);
        let deflated = &self.shared.config.deflated_bytes;
        let deflate = connection
            .deflate
            .filter(|_| deflated.contains(&payload.len()));
        if let Some(params) = deflate {
            self.scratch.clear();
            self.deflater
                .compress_for(params, payload, &mut self.scratch);
            frame::encode(opcode, &self.scratch, true, &mut connection.out.bytes);
            self.scratch.shrink_to(64 << 10);
        } else {
            frame::encode(opcode, payload, false, &mut connection.out.bytes);
        }
        self.weigh(slot);
        self.touch(slot);
    }

    /// Sends a control frame, or a frame of the application.
    pub(super) fn send_control(&mut self, slot: SlotIndex, opcode: Opcode, payload: &[u8]) {
        self.send_whole(slot, |out| frame::encode(opcode, payload, false, out));
    }

    /// Sends what `put` appends: one whole frame or event.
    pub(super) fn send_whole(&mut self, slot: SlotIndex, put: impl FnOnce(&mut Vec<u8>)) {
        if self.may_answer(slot) {
            put(&mut self.connections.at(slot).out.bytes);
            self.weigh(slot);
            self.touch(slot);
        }
    }

    /// Closes a connection that occupies more than its share while the loop's memory is used up.
    pub fn end_crowding(&mut self, slot: SlotIndex) {
        self.weigh(slot);
        if !self.is_crowded() {
            return;
        }
        let connection = self.connections.at(slot);
        let has_part = connection.decoder.held_bytes() > 0 || connection.is_within_record();
        if has_part || connection.unfinished_bytes() > CROWDED_BYTES {
            self.close(slot, 1013, "too much is waiting");
        }
    }

    /// Ends a connection whose socket is full and whose output exceeds what it may hold while the loop's memory is used
    /// up. It ends at once: the client would not read a close frame either, after output that it does not read.
    pub(super) fn end_unread(&mut self, slot: SlotIndex) {
        self.weigh(slot);
        if self.is_crowded() && self.connections.at(slot).unsent_bytes() > CROWDED_BYTES {
            self.close(slot, SLOW_CONSUMER.0, SLOW_CONSUMER.1);
            self.drop_connection(slot);
        }
    }

    /// The longest next reply before the client counts as a slow consumer.
    pub fn answer_room(&mut self, slot: SlotIndex) -> usize {
        self.unread_limit()
            .saturating_sub(self.connections.at(slot).unsent_bytes())
    }

    fn unread_limit(&self) -> usize {
        if self.is_crowded() {
            return CROWDED_BYTES;
        }
        usize::try_from(self.shared.config.lag_bytes)
            .unwrap_or(usize::MAX)
            .saturating_mul(UNREAD_BYTES_FACTOR)
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
}
