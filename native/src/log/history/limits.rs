//! How much of a log is kept.

use super::Log;
use crate::log::entry::Kind;

/// Entries stay this long, so that those who keep up get all of a burst that is over the limits …
const GRACE_MS: u64 = 1_000;
/// … unless the log has grown to this many times its limit.
const GRACE_FACTOR: u64 = 4;

/// How much a log keeps. Whatever is reached first drops the oldest entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub entries: usize,
    pub age_ms: u64,
    /// Bytes of frames, plain and deflated, past and live.
    pub bytes: u64,
}

impl Log {
    /// Drops what is over the limits.
    pub fn trim(&mut self, now_ms: u64) {
        while self.is_over(now_ms) {
            let (meta, in_epoch) = if let Some(meta) = self.past.pop() {
                (meta, true)
            } else {
                let in_epoch = self.live.first >= self.epoch_start;
                let Some(meta) = self.live.pop() else { return };
                self.trim_deflated(&meta);
                (meta, in_epoch)
            };
            if in_epoch && meta.kind == Kind::Push {
                self.floor = meta.seq;
            }
        }
    }

    fn is_over(&self, now_ms: u64) -> bool {
        let Some(oldest) = self.past.entries.front().or(self.live.entries.front()) else {
            return false;
        };
        let age_ms = now_ms.saturating_sub(oldest.at_ms);
        if age_ms < GRACE_MS && self.kept_bytes() <= self.limits.bytes.saturating_mul(GRACE_FACTOR)
        {
            return false;
        }
        self.past.entries.len() + self.live.entries.len() > self.limits.entries
            || age_ms > self.limits.age_ms
            || self.kept_bytes() > self.limits.bytes
    }

    /// Bytes of the entries kept; what chunks still hold of dropped ones does not count, or one large chunk
    /// would empty the log.
    fn kept_bytes(&self) -> u64 {
        self.past.bytes_from(self.past.first)
            + self.live.bytes_from(self.live.first)
            + self.deflated_bytes()
    }
}
