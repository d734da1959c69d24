//! Shutdown: tells clients when to reconnect, spread over time, and then closes the connections.

use super::super::application::ClientState;
use super::super::connection::State;
use super::super::handler::Handler;
use super::super::ids::SlotIndex;
use super::super::tick::Tick;
use super::super::wheel::TICK_MS;
use super::EventLoop;

/// How long a drained client's unanswered calls may keep its connection.
const DRAIN_GRACE_MS: u64 = 5_000;
/// Clients told to reconnect in one tick: 20,000 a second and loop.
const SENT_AWAY_A_TICK: u32 = 2_000;

/// The drain in progress.
pub(super) struct Drain {
    over_ms: u64,
    /// The next slot to notify.
    next: SlotIndex,
}

impl<H: Handler> EventLoop<H> {
    pub(super) fn begin_drain(&mut self, over_ms: u64) {
        // Connections that the kernel has already accepted are served and told to reconnect; none is reset.
        while self.accept_next() {}
        if let Some(listener) = self.listener.take() {
            self.core.poll.remove(&listener);
        }
        self.drain = Some(Drain { over_ms, next: 0 });
        self.continue_drain();
    }

    pub(super) fn continue_drain(&mut self) {
        let Some(drain) = &mut self.drain else { return };
        let slots = self.core.connections.slots();
        let end = slots.end.min(drain.next + SENT_AWAY_A_TICK);
        for slot in std::mem::replace(&mut drain.next, end)..end {
            if self.core.is_open(slot) {
                self.send_away(slot);
            }
        }
    }

    /// Tells one client when to reconnect, and sets the time at which it is closed.
    pub(super) fn send_away(&mut self, slot: SlotIndex) {
        let Some(drain) = &self.drain else { return };
        let after_ms = self.core.shared.random_below(drain.over_ms + 1);
        let connection = self.core.connection(slot);
        if connection.deadlines.leave_by.is_set() || connection.state != State::Open {
            return;
        }
        let end_ms = self.core.now_ms + after_ms;
        let deadlines = &mut self.core.connection(slot).deadlines;
        deadlines.end = Tick::at_ms(end_ms);
        deadlines.leave_by = Tick::at_ms(end_ms + DRAIN_GRACE_MS);
        let params = format!(r#"{{"afterMs":{after_ms}}}"#);
        self.core.notify(slot, "reconnect", params.as_bytes());
        self.core.schedule(slot);
    }

    /// Closes a drained connection once its calls are answered or the grace period is over.
    pub(super) fn end_drained(&mut self, slot: SlotIndex) {
        let now_ms = self.core.now_ms;
        let connection = self.core.connection(slot);
        let is_waiting = connection.client.awaits_reply();
        if is_waiting && !connection.deadlines.leave_by.is_over(now_ms) {
            connection.deadlines.end = Tick::at_ms(now_ms + TICK_MS);
        } else {
            self.core.close(slot, 1012, "service_restart");
        }
    }
}
