//! The third track: the newest entries as Server-Sent Events, each encoded once for all readers.
//!
//! Readers that keep up read from here. A reader further behind is rare and reads events made for it alone from the
//! plain frames. That only copies bytes, so no entry has to be stored twice for it.

use std::collections::VecDeque;

use super::Log;
use crate::log::encoding;
use crate::log::segment::Segment;
use crate::log::span::Span;
use crate::log::track::Track;

/// The size of the track: several times what a broadcast reads at once, however many readers there are.
const KEPT_BYTES: u64 = 1 << 20;

/// The events of the live entries from `first` on.
#[derive(Debug)]
pub(super) struct Events {
    wanted_by: usize,
    first: u64,
    /// Where the first event begins.
    start: u64,
    /// Where each event ends.
    ends: VecDeque<u64>,
    pub(super) made: Track,
}

impl Events {
    pub fn new() -> Self {
        Self {
            wanted_by: 0,
            first: 0,
            start: 0,
            ends: VecDeque::new(),
            made: Track::new(0),
        }
    }

    /// The index after the last event.
    fn end(&self) -> u64 {
        self.first + self.ends.len() as u64
    }

    fn has(&self, index: u64) -> bool {
        (self.first..self.end()).contains(&index)
    }

    /// Where the event `index` begins, which is here, or the next one.
    fn event_start(&self, index: u64) -> u64 {
        match usize::try_from(index - self.first) {
            Ok(at @ 1..) => self.ends[at - 1],
            _ => self.start,
        }
    }

    fn pop(&mut self) {
        if let Some(end) = self.ends.pop_front() {
            self.first += 1;
            self.start = end;
            self.made.release(end);
        }
    }
}

impl Log {
    /// Counts one more follower that wants events.
    pub(super) fn want_events(&mut self) {
        self.events.wanted_by += 1;
        if self.events.wanted_by == 1 {
            self.events.first = self.tip();
        }
    }

    /// Removes one such follower; the last one frees the events.
    pub(super) fn unwant_events(&mut self) {
        self.events.wanted_by = self.events.wanted_by.saturating_sub(1);
        while self.events.wanted_by == 0 && !self.events.ends.is_empty() {
            self.events.pop();
        }
    }

    /// Encodes further events, towards `until`: about `budget` bytes of them, and at least one.
    pub fn make_events(&mut self, until: u64, budget: u64) {
        if self.events.wanted_by == 0 {
            return;
        }
        let (begin, mut event) = (self.events.made.end(), std::mem::take(&mut self.frame));
        while self.events.end() < until.min(self.tip()) {
            if self.events.made.end() - begin >= budget {
                break;
            }
            event.clear();
            self.put_event(&self.live, self.events.end(), &mut event);
            let end = self.events.made.append(&event);
            self.events.ends.push_back(end);
        }
        self.frame = event;
        while self.events.made.end() - self.events.start > KEPT_BYTES && self.events.ends.len() > 1
        {
            self.events.pop();
        }
    }

    /// Forgets the event of the live entry that has just been dropped.
    pub(super) fn trim_events(&mut self) {
        let oldest = self.live.first;
        while self.events.first < oldest && !self.events.ends.is_empty() {
            self.events.pop();
        }
        self.events.first = self.events.first.max(oldest);
    }

    /// Forgets the events up to that of the live entry `index`, whose message is another one from now on.
    pub(super) fn drop_events(&mut self, index: u64) {
        if self.events.has(index) {
            while self.events.first <= index {
                self.events.pop();
            }
        }
    }

    /// Reads events from the entry `from` of a segment up to `until`, at most about `budget` bytes but at least one.
    pub(super) fn read_events(
        &self,
        segment: &Segment,
        from: u64,
        until: u64,
        budget: u64,
        span: &mut Span,
    ) {
        let to = if self.events.has(from) {
            self.read_made(from, until.min(self.events.end()), budget, span)
        } else if from < self.events.first && !self.events.ends.is_empty() {
            self.make_apart(segment, from, until.min(self.events.first), budget, span)
        } else {
            self.make_apart(segment, from, until, budget, span)
        };
        span.frames += to - from;
        span.next = to;
    }

    fn read_made(&self, from: u64, until: u64, budget: u64, span: &mut Span) -> u64 {
        let begin = self.events.event_start(from);
        let mut to = until;
        if self.events.event_start(until) - begin > budget {
            let fit = self
                .events
                .ends
                .partition_point(|end| *end <= begin + budget);
            to = until.min((self.events.first + fit as u64).max(from + 1));
        }
        if to > from {
            let at = |index: u64| usize::try_from(index - self.events.first).unwrap_or(usize::MAX);
            let ends = self.events.ends.range(at(from)..at(to));
            span.note_ends(ends.map(|end| usize::try_from(end - begin).unwrap_or(usize::MAX)));
            self.events
                .made
                .read(begin, self.events.event_start(to), span);
        }
        to
    }

    /// Encodes events for one reader.
    fn make_apart(
        &self,
        segment: &Segment,
        from: u64,
        until: u64,
        budget: u64,
        span: &mut Span,
    ) -> u64 {
        let (mut to, mut bytes) = (from, 0);
        while to < until && bytes < budget {
            bytes += span.write(|out| self.put_event(segment, to, out)) as u64;
            to += 1;
        }
        to
    }

    /// Appends an entry as an event. An event of an earlier epoch has no position, because a reader cannot resume
    /// there.
    fn put_event(&self, segment: &Segment, index: u64, out: &mut Vec<u8>) {
        let is_past = index < super::LIVE_START;
        // The entry before the epoch's first one is the reset that began the epoch.
        let epoch = (is_past || index + 1 >= self.epoch_start).then_some(self.epoch.as_str());
        encoding::put_event(segment.meta(index), epoch, segment.frame(index), out);
    }
}
