//! Signs of life for clients that want them: the notification `alive`, whenever they were sent nothing for a while.
//!
//! A peer whose node loses its power, or a link that is cut, ends no connection. A client that knows how often it must
//! hear from the gateway notices it by silence alone. Pings would do, but pages do not see them. Calls would do as well,
//! at a little more cost here, and at the price of a client that sends all the time.

use super::application::Application;
use super::connection::{BEHIND, State};
use super::holding::HOLD_MS;
use super::ids::SlotIndex;
use super::loop_state::Core;
use super::tick::Tick;

impl<A: Application> Core<A> {
    /// Says that a client that is about to be let in wants signs of life.
    pub fn set_alive(&mut self, slot: SlotIndex) {
        let (now_ms, interval_ms) = (self.now_ms, self.shared.config.alive_ms);
        if interval_ms > 0 {
            // Spread out, as pings are.
            let first_ms = 1 + self.shared.random_below(interval_ms);
            self.connection(slot).deadlines.alive = Tick::at_ms(now_ms + first_ms);
        }
    }

    /// Sends a sign of life if one is due and nothing else has been sent in its place.
    pub(super) fn show_life(&mut self, slot: SlotIndex) {
        let (now_ms, interval_ms) = (self.now_ms, self.shared.config.alive_ms);
        if !self.connections.at(slot).deadlines.alive.is_over(now_ms) {
            return;
        }
        let due_ms = self.told_ms(slot).map(|ms| ms.saturating_add(interval_ms));
        let connection = self.connections.at(slot);
        if let Some(due_ms) = due_ms.filter(|ms| *ms > now_ms) {
            connection.deadlines.alive = Tick::at_ms(due_ms);
            return;
        }
        connection.deadlines.alive = Tick::at_ms(now_ms + interval_ms);
        // Output that the client has not read yet is the better sign.
        let is_free = !connection.writing.is_blocked && connection.out.bytes.is_empty();
        if connection.state == State::Open && is_free {
            let params = format!(r#"{{"everyMs":{interval_ms}}}"#);
            self.notify(slot, "alive", params.as_bytes());
        }
    }

    /// When a client was last sent entries of a log, where that is known: for the audiences of batches.
    fn told_ms(&mut self, slot: SlotIndex) -> Option<u64> {
        let connection = self.connections.at(slot);
        let framing = connection.framing();
        let followed = connection
            .subscriptions
            .iter()
            .filter(|one| one.at != BEHIND);
        let topics = followed.filter_map(|one| self.topics.get(one.topic));
        let next_ms = topics.map(|topic| topic.audiences[framing].next_ms).max();
        next_ms.filter(|ms| *ms > 0).map(|ms| ms - HOLD_MS)
    }
}
