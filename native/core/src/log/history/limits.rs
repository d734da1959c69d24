//! The limits of a log's size.

use super::Log;
use crate::log::encoding;
use crate::log::entry::Kind;

/// Entries stay this long even beyond the limits, so that readers that keep up get all of a burst …
const GRACE_MS: u64 = 1_000;
/// … unless the log has grown to this many times its limit.
const GRACE_FACTOR: u64 = 4;

/// The size limits of a log. Whichever is reached first drops the oldest entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub entries: usize,
    pub age_ms: u64,
    /// Bytes of frames, plain and deflated, past and live. Entries encoded as events do not count: they have a bound of
    /// their own.
    pub bytes: u64,
}

impl Log {
    /// Drops the entries beyond the limits.
    pub fn trim(&mut self, now_ms: u64) {
        while self.is_over(now_ms) {
            let (meta, in_epoch) = if self.past.entries.front().is_some() {
                self.note_dropped(true);
                let Some(meta) = self.past.pop() else { return };
                (meta, true)
            } else {
                let in_epoch = self.live.first >= self.epoch_start;
                if in_epoch {
                    self.note_dropped(false);
                }
                let Some(meta) = self.live.pop() else { return };
                self.trim_deflated(&meta);
                self.trim_events();
                (meta, in_epoch)
            };
            if in_epoch && meta.kind == Kind::Push {
                self.floor = meta.seq;
            }
        }
    }

    /// Keeps the id of the oldest entry, which is about to be dropped, if it is a push of the epoch.
    fn note_dropped(&mut self, is_past: bool) {
        let segment = if is_past { &self.past } else { &self.live };
        let Some(meta) = segment
            .entries
            .front()
            .filter(|meta| meta.kind == Kind::Push)
        else {
            return;
        };
        let params = encoding::params(meta, segment.frame(segment.first));
        encoding::message_id(params)
            .unwrap_or_default()
            .clone_into(&mut self.floor_id);
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

    /// Bytes of the entries kept. Bytes of dropped entries that remain in a chunk do not count; otherwise one large
    /// chunk would empty the log.
    fn kept_bytes(&self) -> u64 {
        self.past.bytes_from(self.past.first)
            + self.live.bytes_from(self.live.first)
            + self.deflated_bytes()
    }
}
