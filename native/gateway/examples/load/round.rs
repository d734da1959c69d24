//! What the viewers get between one command and its answer.

use serde_json::{Value, json};

/// Latencies kept for the percentiles; of longer rounds every further one is dropped.
const SAMPLES: usize = 4_000_000;

/// Counts and times of one round.
#[derive(Default)]
pub struct Round {
    /// Deliveries, over all viewers; 0 between rounds.
    pub expected: u64,
    pub closed: u64,
    /// Of the closed ones those with 4008, the gateway's code for a slow consumer.
    pub closed_slow: u64,
    /// Subscriptions that were to go on where they had been and could not.
    pub unrecovered: u64,
    delivered: u64,
    lost: u64,
    doubled: u64,
    first_ns: u64,
    last_ns: u64,
    latencies_us: Vec<u32>,
    /// For each message, by its seq from the first one on: when its last viewer had it, microseconds after `sent`.
    last_viewer_us: Vec<u32>,
    first_seq: Option<u64>,
}

impl Round {
    /// A round of so many deliveries.
    #[must_use]
    pub fn new(expected: u64) -> Self {
        Self {
            expected,
            ..Self::default()
        }
    }

    /// Counts a message that a viewer got at `now_ns`; `previous` is the seq it had before, 0 for none.
    pub fn count(&mut self, previous: u64, seq: u64, sent_ns: Option<u64>, now_ns: u64) {
        if previous != 0 && seq <= previous {
            self.doubled += 1;
            return;
        }
        if previous != 0 {
            self.lost += seq - previous - 1;
        }
        if self.delivered == 0 {
            self.first_ns = now_ns;
        }
        self.delivered += 1;
        self.last_ns = now_ns;
        let Some(sent_ns) = sent_ns else { return };
        let late_us = u32::try_from(now_ns.saturating_sub(sent_ns) / 1000).unwrap_or(u32::MAX);
        if self.latencies_us.len() < SAMPLES {
            self.latencies_us.push(late_us);
        }
        self.count_last_viewer(seq, late_us);
    }

    fn count_last_viewer(&mut self, seq: u64, late_us: u32) {
        let first_seq = *self.first_seq.get_or_insert(seq);
        let Some(place) = seq
            .checked_sub(first_seq)
            .and_then(|place| usize::try_from(place).ok())
        else {
            return;
        };
        // A seq far away would be a fault of the server and is reported as lost, not allocated.
        if place < SAMPLES {
            if self.last_viewer_us.len() <= place {
                self.last_viewer_us.resize(place + 1, 0);
            }
            self.last_viewer_us[place] = self.last_viewer_us[place].max(late_us);
        }
    }

    /// Whether everything has come, or can come no more.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.delivered + self.lost >= self.expected
    }

    /// The answer to `expect`, without the client's own CPU time. Latencies in microseconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "durations are short")]
    pub fn report(&mut self) -> Value {
        self.latencies_us.sort_unstable();
        self.last_viewer_us.sort_unstable();
        json!({
            "phase": "done",
            "expected": self.expected,
            "delivered": self.delivered,
            "lost": self.lost,
            "missing": self.expected.saturating_sub(self.delivered + self.lost),
            "doubled": self.doubled,
            "closed": self.closed,
            "closed_slow": self.closed_slow,
            "unrecovered": self.unrecovered,
            "seconds": (self.last_ns - self.first_ns) as f64 / 1e9,
            "last_ns": self.last_ns,
            "latency_p50_us": percentile(&self.latencies_us, 50),
            "latency_p99_us": percentile(&self.latencies_us, 99),
            "latency_max_us": self.latencies_us.last(),
            "last_viewer_p50_us": percentile(&self.last_viewer_us, 50),
        })
    }
}

/// The value that `percent` of the sorted values do not pass; `None` of none.
fn percentile(sorted: &[u32], percent: usize) -> Option<u32> {
    sorted
        .get((sorted.len() * percent).div_ceil(100).saturating_sub(1))
        .copied()
}
