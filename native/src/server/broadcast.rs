//! What is new in a log, to everybody who stands at its head.

use super::connection::{BEHIND, SlotIndex};
use super::core::{Core, SLOW_CONSUMER};
use super::output::count_frames;
use super::topics::Live;
use crate::log::Span;

/// What one read of a log may give to all: large enough to coalesce well.
const SPAN_BYTES: u64 = 256 << 10;

impl Core {
    /// Sends what is new in a log to its live subscribers.
    pub(super) fn broadcast(&mut self, place: u32) {
        if self.topics.get(place).is_none() {
            return;
        }
        // Counts as a subscriber, so that the topic stays while its last real one may go.
        let topic = self.topics.at(place);
        topic.subscribers += 1;
        let shared = std::sync::Arc::clone(&topic.shared);
        shared.hear(self.index);
        let (tip, ended) = {
            let log = shared.log.lock();
            (log.tip(), log.is_ended())
        };
        for track in 0..2 {
            self.broadcast_track(place, track, tip);
        }
        let topic = self.topics.at(place);
        topic.head = tip;
        let ahead = std::mem::take(&mut topic.ahead);
        for slot in ahead {
            self.touch(slot);
        }
        if ended {
            self.end_live(place);
        }
        self.topics.at(place).subscribers -= 1;
        self.release(place);
    }

    fn broadcast_track(&mut self, place: u32, track: usize, tip: u64) {
        let topic = self.topics.at(place);
        let mut cursor = topic.head;
        let mut live = std::mem::take(&mut topic.live[track]);
        let mut gone = Vec::new();
        let mut span = std::mem::take(&mut self.span);
        while cursor < tip && !live.is_empty() {
            let read = self.read_log(place, cursor, tip, track, SPAN_BYTES, &mut span);
            if read.is_err() {
                // The log dropped what they have not got: only a burst far over its limits can do this.
                gone.extend(live.drain(..).map(|target| (target.slot, true)));
                break;
            }
            self.send_span(place, &mut live, cursor, &span, &mut gone);
            cursor = span.next;
        }
        self.span = span;
        // What is left of `live` was served; those in `gone` were taken out of it.
        self.topics.at(place).live[track] = live;
        for (slot, is_lost) in gone {
            if let Some(subscription) = self.subscription(slot, place) {
                subscription.at = BEHIND;
            }
            if is_lost {
                self.close(slot, SLOW_CONSUMER.0, SLOW_CONSUMER.1);
            } else {
                self.drop_connection(slot);
            }
        }
    }

    /// Sends one span to all of `live`; who cannot take it whole leaves the list and is behind, who is gone is
    /// added to `gone`.
    fn send_span(
        &mut self,
        place: u32,
        live: &mut Vec<Live>,
        cursor: u64,
        span: &Span,
        gone: &mut Vec<(SlotIndex, bool)>,
    ) {
        for at in (0..live.len()).rev() {
            let connection = self.connections.at(live[at].slot);
            if connection.blocked || !connection.out.is_empty() {
                self.fall_behind(place, live, at, cursor);
            }
        }
        let mut cursor = cursor;
        let mut results = std::mem::take(&mut self.results);
        for slice in span.slices() {
            self.sender.send_all(live, slice, &mut results);
            for at in (0..live.len()).rev() {
                let result = results[at];
                if usize::try_from(result) == Ok(slice.len()) {
                    continue;
                }
                let slot = live[at].slot;
                if result < 0 && result != -libc::EAGAIN && result != -libc::ENOBUFS {
                    gone.push((slot, false));
                    self.leave_live(place, live, u32::try_from(at).unwrap_or(BEHIND));
                    continue;
                }
                let sent = usize::try_from(result).unwrap_or(0);
                let frames = self.keep_rest(slot, slice, sent);
                self.count_delivery(place, frames, sent);
                self.fall_behind(place, live, at, cursor + frames);
            }
            let frames = count_frames(slice, span);
            cursor += frames;
            self.count_delivery(place, frames * live.len() as u64, slice.len() * live.len());
        }
        self.results = results;
    }

    /// Takes a live subscriber out of the list; from now on it is flushed alone, from `cursor` on.
    fn fall_behind(&mut self, place: u32, live: &mut Vec<Live>, at: usize, cursor: u64) {
        let slot = live[at].slot;
        self.leave_live(place, live, u32::try_from(at).unwrap_or(BEHIND));
        if let Some(subscription) = self.subscription(slot, place) {
            subscription.at = BEHIND;
            subscription.cursor = cursor;
        }
        self.touch(slot);
    }

    /// Ends all live subscriptions of a log that has ended; those behind end when they have caught up.
    fn end_live(&mut self, place: u32) {
        for track in 0..2 {
            while let Some(target) = self
                .topics
                .get(place)
                .and_then(|topic| topic.live[track].last().copied())
            {
                let subscriptions = &self.connections.at(target.slot).subscriptions;
                match subscriptions.iter().position(|s| s.topic == place) {
                    Some(at) => self.end_subscription(target.slot, at),
                    None => unreachable!("leaving a log leaves its list of live subscribers"),
                }
            }
        }
    }
}
