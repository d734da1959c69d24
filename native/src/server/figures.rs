//! What is told of how connections end, and of how late the loops are.

use std::sync::atomic::{AtomicU64, Ordering};

/// The codes that this server closes with.
pub const CLOSE_CODES: [u16; 10] = [1001, 1002, 1003, 1007, 1008, 1009, 1011, 1012, 1013, 4008];

/// How open connections have ended since the start.
#[derive(Debug, Default)]
pub struct Closes {
    by_code: [AtomicU64; CLOSE_CODES.len()],
    by_client: AtomicU64,
    lost: AtomicU64,
}

impl Closes {
    /// Counts a connection that we have closed.
    pub(super) fn count(&self, code: u16) {
        let place = CLOSE_CODES.iter().position(|known| *known == code);
        debug_assert!(place.is_some(), "{code} stands in the list");
        if let Some(place) = place {
            self.by_code[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a connection whose client has said good-bye.
    pub(super) fn count_by_client(&self) {
        self.by_client.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that has ended without a close frame.
    pub(super) fn count_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// What has ended connections, and how many: each of our codes, `client` and `lost`.
    #[must_use]
    pub fn read(&self) -> Vec<(String, u64)> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ours = CLOSE_CODES.iter().zip(&self.by_code);
        ours.map(|(code, counter)| (code.to_string(), load(counter)))
            .chain([
                ("client".to_owned(), load(&self.by_client)),
                ("lost".to_owned(), load(&self.lost)),
            ])
            .collect()
    }
}

/// How late a loop takes up what others leave for it. Asked for, never measured unasked: an idle loop sleeps.
#[derive(Debug, Default)]
pub struct Probe {
    /// When the loop was asked, in microseconds of the server's clock; 0 when it has answered.
    asked_us: AtomicU64,
    lag_us: AtomicU64,
}

impl Probe {
    /// Notes that the loop is asked now. False when an earlier question is still open.
    pub(super) fn ask(&self, now_us: u64) -> bool {
        let now_us = now_us.max(1);
        self.asked_us
            .compare_exchange(0, now_us, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Notes that the loop has taken the question up.
    pub(super) fn answer(&self, now_us: u64) {
        let asked_us = self.asked_us.swap(0, Ordering::Relaxed);
        self.lag_us
            .store(now_us.saturating_sub(asked_us), Ordering::Relaxed);
    }

    /// The lag, in microseconds: of the newest answer, or so far, of a question that is open.
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
    use super::{CLOSE_CODES, Closes, Probe};

    #[test]
    fn each_end_of_a_connection_has_its_own_count() {
        let closes = Closes::default();
        for code in CLOSE_CODES {
            closes.count(code);
        }
        closes.count_by_client();
        closes.count_lost();
        let read = closes.read();
        assert_eq!(read.len(), CLOSE_CODES.len() + 2);
        assert!(read.iter().all(|(_, count)| *count == 1));
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
