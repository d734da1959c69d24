//! Figures: why connections ended, the delay of notifications, and the lag of the event loops.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why this server closes connections: the close code, the reason as sent to the client where a code has several, and
/// the reason's name in the metrics. Only event streams end with 1000.
pub const ENDS: [(u16, Option<&str>, &str); 13] = [
    (1000, Some("program_deleted"), "program_deleted"),
    (1000, None, "unsubscribed"),
    (1001, None, "stopping"),
    (1002, None, "protocol"),
    (1003, None, "binary"),
    (1007, None, "malformed"),
    (1008, Some("message flood"), "flood"),
    (1008, Some("the message took too long"), "slow_message"),
    (1009, None, "too_long"),
    (1011, None, "no_pong"),
    (1012, None, "draining"),
    (1013, None, "crowded"),
    (4008, None, "slow_consumer"),
];

/// Counts of ended connections by reason, since the start.
#[derive(Debug, Default)]
pub struct Closes {
    ours: [AtomicU64; ENDS.len()],
    by_client: AtomicU64,
    lost: AtomicU64,
}

impl Closes {
    /// Counts a connection that we have closed.
    pub(super) fn count(&self, code: u16, reason: &str) {
        let place = ENDS
            .iter()
            .position(|(known, text, _)| *known == code && text.is_none_or(|text| text == reason));
        debug_assert!(place.is_some(), "{code} {reason} stands in the list");
        if let Some(place) = place {
            self.ours[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a connection that its client has closed.
    pub(super) fn count_by_client(&self) {
        self.by_client.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that has ended without a close frame.
    pub(super) fn count_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Reasons and counts: our code and its reason, or `client` or `lost` for both.
    #[must_use]
    pub fn read(&self) -> Vec<(String, &'static str, u64)> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ours = ENDS.iter().zip(&self.ours);
        ours.map(|((code, _, name), counter)| (code.to_string(), *name, load(counter)))
            .chain([
                ("client".to_owned(), "client", load(&self.by_client)),
                ("lost".to_owned(), "lost", load(&self.lost)),
            ])
            .collect()
    }
}

/// Upper bounds of the buckets of `Delays`, in microseconds; also change the catalogue of metrics in Python.
pub const DELAY_BOUNDS_US: [u64; 13] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
    5_000_000,
];

/// The time from the arrival of a notification to its sockets, as a histogram.
///
/// Measured when a slice of a broadcast has been sent, for at least 16 and at most 512 subscribers together, and
/// counted for each of them. Subscribers that are flushed alone, after a full socket or a recovery, are not counted,
/// because that time depends on the client.
#[derive(Debug, Default)]
pub struct Delays {
    counts: [AtomicU64; DELAY_BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

impl Delays {
    /// Counts `subscribers` that were served `delay_us` after their newest notification had arrived.
    pub(super) fn observe(&self, delay_us: u64, subscribers: u64) {
        let bucket = DELAY_BOUNDS_US.partition_point(|bound| *bound < delay_us);
        self.counts[bucket].fetch_add(subscribers, Ordering::Relaxed);
        self.sum_us
            .fetch_add(delay_us.saturating_mul(subscribers), Ordering::Relaxed);
    }

    /// The number of subscribers per bucket, not cumulative, with those beyond the last bucket; then the sum in
    /// microseconds.
    #[must_use]
    pub fn read(&self) -> (Vec<u64>, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (self.counts.iter().map(load).collect(), load(&self.sum_us))
    }
}

/// How late a loop processes commands. Measured only on request, because an idle loop sleeps.
#[derive(Debug, Default)]
pub struct Probe {
    /// When the loop was probed, in microseconds of the server's clock; 0 when it has replied.
    asked_us: AtomicU64,
    lag_us: AtomicU64,
}

impl Probe {
    /// Notes that the loop is probed now. False while an earlier probe is pending.
    pub(super) fn ask(&self, now_us: u64) -> bool {
        let now_us = now_us.max(1);
        self.asked_us
            .compare_exchange(0, now_us, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Notes that the loop has processed the probe.
    pub(super) fn answer(&self, now_us: u64) {
        let asked_us = self.asked_us.swap(0, Ordering::Relaxed);
        self.lag_us
            .store(now_us.saturating_sub(asked_us), Ordering::Relaxed);
    }

    /// The lag in microseconds: of the last reply, or of a pending probe so far.
    #[must_use]
    pub fn read(&self, now_us: u64) -> u64 {
        match self.asked_us.load(Ordering::Relaxed) {
            0 => self.lag_us.load(Ordering::Relaxed),
            asked_us => now_us.saturating_sub(asked_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Closes, DELAY_BOUNDS_US, Delays, ENDS, Probe};

    #[test]
    fn each_end_of_a_connection_has_its_own_count() {
        let closes = Closes::default();
        for (code, reason, _) in ENDS {
            closes.count(code, reason.unwrap_or("whatever it says"));
        }
        closes.count_by_client();
        closes.count_lost();
        let read = closes.read();
        assert_eq!(read.len(), ENDS.len() + 2);
        assert!(read.iter().all(|(.., count)| *count == 1));
    }

    #[test]
    fn a_delay_is_counted_for_every_subscriber_of_a_slice() {
        let delays = Delays::default();
        delays.observe(100, 2);
        delays.observe(101, 3);
        delays.observe(u64::from(u32::MAX), 1);
        let (counts, sum_us) = delays.read();
        assert_eq!(counts.len(), DELAY_BOUNDS_US.len() + 1);
        assert_eq!((counts[0], counts[1], counts[13]), (2, 3, 1));
        assert_eq!(sum_us, 200 + 303 + u64::from(u32::MAX));
    }

    #[test]
    fn an_open_question_tells_how_long_it_is_open() {
        let probe = Probe::default();
        assert!(probe.ask(1_000));
        assert!(!probe.ask(2_000));
        assert_eq!(probe.read(4_000), 3_000);
        probe.answer(5_000);
        assert_eq!(probe.read(9_000), 4_000);
        assert!(probe.ask(10_000));
    }
}
