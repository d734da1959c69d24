//! Sends the new entries of a log to all connections that keep up, together.
//!
//! A broadcast is divided into slices, so that a loop with many viewers can read its sockets in between. Each slice
//! sends up to the newest entry: a loop that is behind sends several entries in one write, and new entries need not
//! wait until a whole pass has ended.

use std::io::IoSlice;

use broker_core::log::{Framing, Span};

use super::application::Application;
use super::connection::BEHIND;
use super::ids::SlotIndex;
use super::loop_state::{Core, SLOW_CONSUMER};
use super::sys::Moved;
use super::tls;
use super::topics::{Audience, Live};

/// How much one read of a log may return: large enough to coalesce well.
const SPAN_BYTES: u64 = 256 << 10;
/// The bytes that a slice of long frames sends in total: some 4 ms at the 2 GB/s at which the kernel copies.
const SLICE_BYTES: usize = 8 << 20;
/// Subscribers per reading of the clock: reading and counting takes 230 ns at worst, sending takes microseconds each.
const SAMPLE: usize = 16;
/// Subscribers of the smallest slice.
const LEAST_SLICE: usize = 16;

/// The subscribers that a slice could not serve, and whether the log has lost entries that they need.
type Gone = Vec<(SlotIndex, bool)>;

impl<A: Application> Core<A> {
    /// Notes how far a log has grown: its broadcast begins, or continues to the new end.
    pub(super) fn note_growth(&mut self, place: u32) {
        let topic = self.topics.at(place);
        topic.grown_us = topic.shared.hear(self.index);
        topic.head = topic.shared.log.lock().tip();
        if !std::mem::replace(&mut topic.is_growing, true) {
            // Counts as a subscriber, so that the topic stays while its last real subscriber may leave.
            topic.subscribers += 1;
            self.grown.push_back(place);
        }
    }

    /// Sends the next slice of the topic that has waited longest.
    pub(super) fn broadcast_slice(&mut self) {
        let Some(place) = self.grown.pop_front() else {
            return;
        };
        let mut is_done = true;
        for framing in Framing::ALL {
            is_done &= self.is_held_back(place, framing) || self.serve(place, framing);
        }
        if !is_done {
            self.grown.push_back(place);
            return;
        }
        let topic = self.topics.at(place);
        topic.is_growing = false;
        let is_over = {
            let log = topic.shared.log.lock();
            log.is_ended() && log.tip() == topic.head
        };
        if is_over {
            self.end_live(place);
        }
        self.topics.at(place).subscribers -= 1;
        self.release(place);
    }

    /// Serves a slice of an audience; returns true when all its subscribers have everything before the head.
    fn serve(&mut self, place: u32, framing: Framing) -> bool {
        let topic = self.topics.at(place);
        let head = topic.head;
        if topic.audiences[framing].is_served(head) {
            return true;
        }
        let mut audience = std::mem::take(&mut topic.audiences[framing]);
        let mut gone = Gone::new();
        if let Some(cursor) = audience.next_cursor(head) {
            let mut span = std::mem::take(&mut self.span);
            let read = self.read_log(place, cursor, head, framing, SPAN_BYTES, &mut span);
            let count = audience.count_at(cursor, self.most_of(&span));
            if read.is_ok() {
                self.send_span(place, &mut audience, count, cursor, &span, &mut gone);
            } else {
                // The log has dropped entries that they do not have, which takes a burst far beyond its limits.
                self.drop_lost(place, &mut audience, count, &mut gone);
            }
            self.span = span;
        }
        let is_done = audience.is_served(head);
        self.topics.at(place).audiences[framing] = audience;
        self.end_gone(place, gone);
        is_done
    }

    /// Subscribers of a slice that sends `span`.
    fn most_of(&self, span: &Span) -> usize {
        let fit = SLICE_BYTES / span.bytes().max(1);
        fit.max(LEAST_SLICE).min(self.slice)
    }

    fn drop_lost(&mut self, place: u32, audience: &mut Audience, count: usize, gone: &mut Gone) {
        for _ in 0..count {
            let last = audience.unmet - 1;
            gone.push((audience.live[last].slot, true));
            self.leave_live(place, audience, last);
            audience.unmet = last;
        }
    }

    fn end_gone(&mut self, place: u32, gone: Gone) {
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

    /// Sends one span to the last `count` pending subscribers, which are at `cursor`. A subscriber that cannot take all
    /// of it leaves the audience and counts as behind; one that has gone is added to `gone`.
    fn send_span(
        &mut self,
        place: u32,
        audience: &mut Audience,
        count: usize,
        cursor: u64,
        span: &Span,
        gone: &mut Gone,
    ) {
        let begin = audience.unmet - count;
        let mut end = audience.unmet;
        for at in (begin..end).rev() {
            let connection = self.connections.at(audience.live[at].slot);
            if connection.writing.is_blocked || !connection.out.bytes.is_empty() {
                self.fall_behind(place, audience, at, &mut end, cursor);
            }
        }
        let mut cursor = cursor;
        let mut results = std::mem::take(&mut self.results);
        for slice in span.slices() {
            let targets = &audience.live[begin..end];
            if self.shared.speaks_tls() {
                self.send_sealed(targets, slice, &mut results);
            } else {
                self.sender.send_all(targets, slice, &mut results);
            }
            for at in (begin..end).rev() {
                let result = results[at - begin];
                if usize::try_from(result) == Ok(slice.len()) {
                    continue;
                }
                let slot = audience.live[at].slot;
                if result < 0 && result != -libc::EAGAIN && result != -libc::ENOBUFS {
                    gone.push((slot, false));
                    self.take_out(place, audience, at, &mut end);
                    continue;
                }
                let sent = usize::try_from(result).unwrap_or(0);
                let frames = self.keep_rest(slot, span, slice, sent);
                self.count_delivery(place, frames, sent);
                self.fall_behind(place, audience, at, &mut end, cursor + frames);
            }
            let frames = span.count_frames(slice);
            let served = end - begin;
            cursor += frames;
            self.count_delivery(place, frames * served as u64, slice.len() * served);
        }
        self.results = results;
        self.measure(place, end - begin);
        for target in &mut audience.live[begin..end] {
            target.cursor = span.next;
        }
        if span.next >= self.topics.at(place).head {
            audience.unmet = begin;
        }
    }

    /// Like [`Sender::send_all`], through the session of each connection.
    ///
    /// [`Sender::send_all`]: super::send::Sender::send_all
    fn send_sealed(&mut self, targets: &[Live], bytes: &[u8], results: &mut Vec<i32>) {
        results.clear();
        for target in targets {
            let connection = self.connections.at(target.slot);
            let Some(fd) = &connection.fd else {
                results.push(-libc::EBADF);
                continue;
            };
            let (tls, piece) = (connection.tls.as_deref_mut(), IoSlice::new(bytes));
            let outcome = tls::write(fd, tls, &[piece], &mut self.sealing);
            let is_sealed = connection.sealed_bytes() > 0;
            results.push(match outcome {
                Moved::Bytes(sent) => i32::try_from(sent).unwrap_or(i32::MAX),
                Moved::Blocked => -libc::EAGAIN,
                Moved::Gone => -libc::EPIPE,
            });
            if is_sealed {
                self.note_blocked(target.slot);
                self.weigh(target.slot);
            }
        }
    }

    /// Counts how late the subscribers of a slice were served. The clock is not read for each small slice; subscribers
    /// served since the last reading are counted together with these.
    fn measure(&mut self, place: u32, served: usize) {
        self.unmeasured += served;
        if self.unmeasured >= SAMPLE {
            let delay_us = (self.shared.now_us()).saturating_sub(self.topics.at(place).grown_us);
            let served = std::mem::take(&mut self.unmeasured) as u64;
            self.shared.counters.delays.observe(delay_us, served);
        }
    }

    /// Removes the entry `at` of a slice that ends before `end` from the audience, which makes the slice one shorter.
    /// The entries between `at` and `end` have been processed.
    fn take_out(&mut self, place: u32, audience: &mut Audience, at: usize, end: &mut usize) {
        *end -= 1;
        audience.live.swap(at, *end);
        self.renumber(place, audience, at);
        self.leave_live(place, audience, *end);
    }

    /// Removes one subscriber of a slice from the audience; from now on it is flushed alone, from `cursor` on.
    fn fall_behind(
        &mut self,
        place: u32,
        audience: &mut Audience,
        at: usize,
        end: &mut usize,
        cursor: u64,
    ) {
        let slot = audience.live[at].slot;
        self.take_out(place, audience, at, end);
        if let Some(subscription) = self.subscription(slot, place) {
            subscription.at = BEHIND;
            subscription.cursor = cursor;
        }
        self.touch(slot);
    }

    /// Ends all live subscriptions of a log that has ended; those that are behind end when they have caught up.
    fn end_live(&mut self, place: u32) {
        for framing in Framing::ALL {
            while let Some(target) = self
                .topics
                .get(place)
                .and_then(|topic| topic.audiences[framing].live.last().copied())
            {
                let subscriptions = &self.connections.at(target.slot).subscriptions;
                match subscriptions.iter().position(|s| s.topic == place) {
                    Some(at) => self.end_ended(target.slot, at),
                    None => unreachable!("leaving a log leaves its list of live subscribers"),
                }
            }
        }
    }
}
