//! Closes slow consumers, so that they delay nobody else.

use broker_core::log::Lost;

use super::application::Application;
use super::connection::{BEHIND, State};
use super::ids::SlotIndex;
use super::loop_state::{Core, SLOW_CONSUMER};

/// How many times longer than the lag limit a client may take to read its output if it reads slowly, but reads.
const UNREAD_TIME_FACTOR: u64 = 4;
/// How long a client that is far behind may take nothing. A burst exceeds the limit in a moment, before any client can
/// have read it, and it is stored in a log that all share: a client that continues to read costs nothing.
const STALL_MS: u64 = 1_000;

impl<A: Application> Core<A> {
    /// Closes blocked connections that are over the lag limits.
    pub(super) fn check_lag(&mut self) {
        let mut blocked = std::mem::take(&mut self.blocked);
        blocked.retain(|&slot| {
            let connection = self.connections.at(slot);
            if !connection.queued.as_blocked {
                return false;
            }
            if !connection.writing.is_blocked || connection.state != State::Open {
                connection.queued.as_blocked = false;
                return false;
            }
            if self.is_too_slow(slot) {
                self.connections.at(slot).queued.as_blocked = false;
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
        let stalled_ms = connection.out.progress.since_ms(now_ms);
        if stalled_ms > lag_ms {
            return true;
        }
        if now_ms.saturating_sub(connection.out.since.ms())
            > lag_ms.saturating_mul(UNREAD_TIME_FACTOR)
        {
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
                    bytes > lag_bytes && stalled_ms > STALL_MS
                        || since_ms.is_some_and(|since| now_ms.saturating_sub(since) > lag_ms)
                }
            }
        })
    }
}
