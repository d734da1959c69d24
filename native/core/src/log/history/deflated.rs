//! The second track: the newest entries as deflated frames, each compressed once for all readers.

use super::Log;
use crate::log::encoding;
use crate::log::entry::Meta;
use crate::log::span::Span;
use crate::log::track::Track;
use crate::protocol::frame::{self, Opcode};

/// Payloads below this are not worth deflating: the frame would hardly shrink.
const DEFLATE_FROM_BYTES: usize = 96;

/// The deflated frames of the live entries from `from` up to `to`.
#[derive(Debug)]
pub(super) struct Deflated {
    pub(super) wanted_by: usize,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) start: u64,
    pub(super) frames: Track,
}

impl Log {
    /// Counts one more follower that wants deflated frames.
    pub(super) fn want_deflated(&mut self) {
        self.deflated.wanted_by += 1;
        if self.deflated.wanted_by == 1 {
            self.deflated.from = self.tip();
            self.deflated.to = self.tip();
            self.deflated.start = self.deflated.frames.end();
        }
    }

    /// Removes one such follower; the last one frees the deflated frames.
    pub(super) fn unwant_deflated(&mut self) {
        self.deflated.wanted_by = self.deflated.wanted_by.saturating_sub(1);
        if self.deflated.wanted_by == 0 {
            self.deflated.frames.release(u64::MAX);
        }
    }

    pub(super) fn deflated_bytes(&self) -> u64 {
        if self.deflated.wanted_by == 0 {
            0
        } else {
            self.deflated.frames.end() - self.deflated.start
        }
    }

    /// Forgets the deflated frame of the live entry that has just been dropped.
    pub(super) fn trim_deflated(&mut self, dropped: &Meta) {
        let (deflated, next) = (&mut self.deflated, self.live.first);
        if deflated.from >= next {
            return;
        }
        if deflated.to >= next {
            deflated.start = dropped.deflated_end;
            deflated.frames.release(deflated.start);
        }
        deflated.from = next;
        deflated.to = deflated.to.max(next);
    }

    /// Forgets the deflated frames up to that of the live entry `index`, whose message is another one from now on: who
    /// reads these entries gets them plain.
    pub(super) fn drop_deflated(&mut self, index: u64) {
        let deflated = &mut self.deflated;
        if deflated.wanted_by == 0 || index < deflated.from || index > deflated.to {
            return;
        }
        if index == deflated.to {
            // Somebody may be deflating the former message.
            deflated.to = index + 1;
            deflated.start = deflated.frames.end();
        } else {
            deflated.start = self.live.meta(index).deflated_end;
        }
        deflated.from = index + 1;
        deflated.frames.release(deflated.start);
    }

    /// Copies the payload of the next entry before `until` that is worth deflating into `payload` (cleared) and returns
    /// its index; None when nothing is left to do or no follower wants it. The caller passes the result to
    /// [`put_deflated`](Self::put_deflated): deflating takes long, and others need the log in the meantime.
    pub fn next_to_deflate(&mut self, until: u64, payload: &mut Vec<u8>) -> Option<u64> {
        if self.deflated.wanted_by == 0 {
            return None;
        }
        while self.deflated.to < until {
            let index = self.deflated.to;
            let frame = self.live.frame(index);
            let plain = encoding::payload(self.live.meta(index), frame);
            if plain.len() >= DEFLATE_FROM_BYTES {
                payload.clear();
                payload.extend_from_slice(plain);
                return Some(index);
            }
            let end = self.deflated.frames.append(frame);
            self.note_deflated(index, end);
        }
        None
    }

    /// Stores the deflated payload of the entry `index`; does nothing when it is no longer wanted.
    pub fn put_deflated(&mut self, index: u64, deflated: &[u8]) {
        if self.deflated.wanted_by == 0 || self.deflated.to != index {
            return;
        }
        let frame = self.live.frame(index);
        let plain = encoding::payload(self.live.meta(index), frame);
        let end = if deflated.len() >= plain.len() {
            self.deflated.frames.append(frame)
        } else {
            self.frame.clear();
            frame::encode(Opcode::Text, deflated, true, &mut self.frame);
            self.deflated.frames.append(&self.frame)
        };
        self.note_deflated(index, end);
    }

    fn note_deflated(&mut self, index: u64, end: u64) {
        let at = usize::try_from(index - self.live.first).unwrap_or(usize::MAX);
        self.live.entries[at].deflated_end = end;
        self.deflated.to = index + 1;
    }

    pub(super) fn read_deflated(&self, from: u64, until: u64, budget: u64, span: &mut Span) {
        let start = |index: u64| {
            if index == self.deflated.from {
                self.deflated.start
            } else {
                self.live.meta(index - 1).deflated_end
            }
        };
        let begin = start(from);
        let mut to = until;
        while to > from + 1 && start(to) - begin > budget {
            to = from + (to - from) / 2;
        }
        if to > from {
            self.deflated.frames.read(begin, start(to), span);
        }
        span.frames += to - from;
        span.next = to;
    }
}
