//! What one connection is sent for itself: answers, notices, control frames.

use super::connection::{SlotIndex, State};
use super::core::{Core, SLOW_CONSUMER};
use crate::protocol::frame::{self, Opcode};

/// A client may leave this many times the lag limit of answers unread …
const UNREAD_FACTOR: usize = 4;
/// … but only so many bytes while the loop is crowded. Longer recoveries then follow as pushes, which wait in the
/// shared log.
const CROWDED_BYTES: usize = 4 << 10;

/// More than this is not deflated for one client: at some 60 MB a second the loop would do nothing else for long, and
/// a client can ask for a megabyte as often as it likes.
const DEFLATE_TO_BYTES: usize = 64 << 10;

fn pays_to_deflate(bytes: usize, from_bytes: usize) -> bool {
    (from_bytes..=DEFLATE_TO_BYTES).contains(&bytes)
}

impl Core {
    /// Sends a text message.
    pub fn send_text(&mut self, slot: SlotIndex, payload: &[u8]) {
        self.send(slot, Opcode::Text, payload);
    }

    /// Sends a message, deflated where that was agreed on, pays and does not keep others waiting.
    ///
    /// A client that has left too much unread is closed instead.
    pub fn send(&mut self, slot: SlotIndex, opcode: Opcode, payload: &[u8]) {
        if !self.may_answer(slot) {
            return;
        }
        let connection = self.connections.at(slot);
        let from_bytes = self.shared.config.deflate_from_bytes;
        let deflate = connection
            .deflate
            .filter(|_| pays_to_deflate(payload.len(), from_bytes));
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
        if self.is_crowded() {
            return CROWDED_BYTES;
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_or_long_is_not_deflated() {
        for (bytes, pays) in [
            (511, false),
            (512, true),
            (DEFLATE_TO_BYTES, true),
            (DEFLATE_TO_BYTES + 1, false),
        ] {
            assert_eq!(pays_to_deflate(bytes, 512), pays, "{bytes}");
        }
    }
}
