//! Holds notifications back for those who want few messages, so that what comes within a few milliseconds is one of them.
//!
//! The first entry after a pause goes out at once. Others wait until [`HOLD_MS`] after the pass before began, and then go
//! together: nobody waits longer, and nobody is woken more often. A topic stands among the held ones at most once, and
//! counts as a subscriber meanwhile, so that it stays. One that has ended holds nothing back.

use broker_core::log::Framing;

use super::application::Application;
use super::loop_state::Core;
use super::tick::NEVER;

/// Half a frame of a page that is drawn 60 times a second. At 10,000 events a second a page in Chromium spends a quarter
/// of the processor time that it needs for single messages.
pub(super) const HOLD_MS: u64 = 8;

impl<A: Application> Core<A> {
    /// Whether an audience has to wait before the next pass over it begins; if not, and there is something for it, it
    /// begins now.
    pub(super) fn is_held_back(&mut self, place: u32, framing: Framing) -> bool {
        let now_ms = self.now_ms;
        let topic = self.topics.at(place);
        let audience = &mut topic.audiences[framing];
        let begins = audience.unmet == 0 && audience.pass_head != topic.head;
        if !framing.is_joined() || !begins || audience.live.is_empty() {
            return false;
        }
        if now_ms >= audience.next_ms || topic.shared.log.lock().is_ended() {
            audience.next_ms = now_ms + HOLD_MS;
            return false;
        }
        self.held_until_ms = self.held_until_ms.min(audience.next_ms);
        if !std::mem::replace(&mut topic.is_held, true) {
            topic.subscribers += 1;
            self.held.push(place);
        }
        true
    }

    /// Puts the held topics back among those with news, once the first of them has waited enough.
    pub(super) fn end_holding(&mut self) {
        if self.now_ms < self.held_until_ms {
            return;
        }
        self.held_until_ms = NEVER;
        for place in std::mem::take(&mut self.held) {
            let topic = self.topics.at(place);
            topic.is_held = false;
            if std::mem::replace(&mut topic.is_growing, true) {
                // It counts there already.
                topic.subscribers -= 1;
            } else {
                self.grown.push_back(place);
            }
        }
    }
}
