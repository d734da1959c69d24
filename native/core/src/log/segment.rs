//! A sequence of entries with their frames.

use std::collections::VecDeque;

use super::entry::{Kind, Meta};
use super::span::Span;
use super::track::Track;

/// Entries with consecutive indices and the frames that belong to them.
#[derive(Debug)]
pub(super) struct Segment {
    /// The index of the first entry kept.
    pub first: u64,
    pub entries: VecDeque<Meta>,
    pub frames: Track,
    /// Where the first entry's frame begins.
    start: u64,
}

impl Segment {
    pub fn new(first: u64, start: u64) -> Self {
        Self {
            first,
            entries: VecDeque::new(),
            frames: Track::new(start),
            start,
        }
    }

    /// The index after the last entry.
    pub fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// The entry with this index, which the caller knows to be here.
    pub fn meta(&self, index: u64) -> &Meta {
        &self.entries[self.at(index)]
    }

    /// Where the frame of the entry `index` begins; also right for the index after the last one.
    pub fn frame_start(&self, index: u64) -> u64 {
        match self.at(index) {
            0 => self.start,
            at => self.entries[at - 1].end,
        }
    }

    /// The plain frame of an entry.
    pub fn frame(&self, index: u64) -> &[u8] {
        self.frames
            .slice(self.frame_start(index), self.meta(index).end)
    }

    pub fn push(&mut self, mut meta: Meta, frame: &[u8]) {
        meta.end = self.frames.append(frame);
        self.entries.push_back(meta);
    }

    /// Puts `metas` before the first entry; their `end` counts from the first byte of `frames`.
    pub fn prepend(&mut self, metas: Vec<Meta>, frames: Vec<u8>) {
        self.first -= metas.len() as u64;
        self.start = self.frames.prepend(frames);
        for mut meta in metas.into_iter().rev() {
            meta.end += self.start;
            self.entries.push_front(meta);
        }
    }

    /// Puts another message in the place of an entry's; when the entry was made, and its position, stay.
    pub fn replace(&mut self, index: u64, meta: &Meta, frame: &[u8]) {
        let (from, to) = (self.frame_start(index), self.meta(index).end);
        self.frames.replace(from, to, frame);
        let at = self.at(index);
        let kept = &mut self.entries[at];
        *kept = Meta {
            seq: kept.seq,
            at_ms: kept.at_ms,
            end: kept.end,
            deflated_end: kept.deflated_end,
            ..*meta
        };
        for later in self.entries.range_mut(at..) {
            later.end = later.end - (to - from) + frame.len() as u64;
        }
    }

    /// Drops the oldest entry.
    pub fn pop(&mut self) -> Option<Meta> {
        let meta = self.entries.pop_front()?;
        self.first += 1;
        self.start = meta.end;
        self.frames.release(meta.end);
        Some(meta)
    }

    /// Bytes of the frames from the entry `index` on.
    pub fn bytes_from(&self, index: u64) -> u64 {
        self.frames.end() - self.frame_start(index)
    }

    /// Reads whole plain frames from `from` up to `until`, at most about `budget` bytes but at least one frame.
    pub fn read(&self, from: u64, until: u64, budget: u64, span: &mut Span) {
        let begin = self.frame_start(from);
        let mut to = until;
        if self.frame_start(until) - begin > budget {
            let fit = self
                .entries
                .partition_point(|meta| meta.end <= begin + budget);
            to = until.min((self.first + fit as u64).max(from + 1));
        }
        if to > from {
            self.frames.read(begin, self.frame_start(to), span);
        }
        span.frames += to - from;
        span.next = to;
    }

    /// The index of the first entry from `from` on whose position is after `seq`, notices right after
    /// the push `seq` included.
    pub fn after_seq(&self, from: u64, seq: u64) -> u64 {
        let (mut low, mut high) = (from, self.end());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.meta(middle).seq < seq {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let is_push =
            low < self.end() && self.meta(low).seq == seq && self.meta(low).kind == Kind::Push;
        low + u64::from(is_push)
    }

    /// The index of the push `seq`, the first one from `from` on; None when another entry precedes it that is not one
    /// of its notices.
    pub fn push_at(&self, from: u64, seq: u64) -> Option<u64> {
        (from..self.end())
            .map(|index| (index, self.meta(index)))
            .find(|(_, meta)| meta.kind == Kind::Push)
            .filter(|(_, meta)| meta.seq == seq)
            .map(|(index, _)| index)
    }

    fn at(&self, index: u64) -> usize {
        usize::try_from(index - self.first).unwrap_or(usize::MAX)
    }
}
