//! Token buckets by name, for limits that are checked too often to leave this process.
//!
//! A bucket is one number: the moment at which it is full again (the generic cell rate algorithm of ITU-T I.371, annex
//! A). A full bucket equals none, so removing it costs nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use broker_server::Lock;

/// Full buckets removed per use.
const SWEPT: usize = 2;
/// A fraction of a token: sums of seconds are not exact.
const INEXACT: f64 = 1e-6;

/// One limit for each name, shared by all its users; every method may be called from any thread.
#[derive(Debug)]
pub struct Rates {
    per_s: f64,
    burst: f64,
    most: usize,
    buckets: Lock<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    /// When each bucket is full, and the number of its last use.
    by_name: HashMap<Arc<str>, (f64, u64)>,
    by_use: BTreeMap<u64, Arc<str>>,
    uses: u64,
}

impl Rates {
    /// `per_s` 0 means no limit. Beyond `most` buckets, the least recently used one is removed.
    #[must_use]
    pub fn new(per_s: f64, burst: f64, most: usize) -> Self {
        Self {
            per_s,
            burst,
            most,
            buckets: Lock::default(),
        }
    }

    /// Takes tokens at `now_s` of a clock that never goes back. Returns how many are missing: 0 when they were taken;
    /// otherwise none was taken.
    ///
    /// A request larger than the bucket needs a full bucket, and its rest is paid back before the next one is admitted.
    pub fn take(&self, name: &str, tokens: f64, now_s: f64) -> f64 {
        if self.per_s == 0.0 {
            return 0.0;
        }
        let mut buckets = self.buckets.lock();
        let known = buckets.by_name.get(name).copied();
        let full_at_s = known.map_or(now_s, |(full_at_s, _)| full_at_s.max(now_s));
        let missing = (full_at_s - now_s) * self.per_s + tokens.min(self.burst) - self.burst;
        if missing > INEXACT {
            return missing;
        }
        buckets.put(name, known, full_at_s + tokens / self.per_s);
        buckets.sweep(now_s, self.most);
        0.0
    }

    /// The number of buckets kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.lock().by_name.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Buckets {
    fn put(&mut self, name: &str, known: Option<(f64, u64)>, full_at_s: f64) {
        self.uses += 1;
        let shared = known
            .and_then(|(_, used)| self.by_use.remove(&used))
            .unwrap_or_else(|| Arc::from(name));
        self.by_use.insert(self.uses, Arc::clone(&shared));
        self.by_name.insert(shared, (full_at_s, self.uses));
    }

    fn sweep(&mut self, now_s: f64, most: usize) {
        for _ in 0..SWEPT {
            let Some(oldest) = self.by_use.first_entry() else {
                return;
            };
            let is_full = self
                .by_name
                .get(oldest.get())
                .is_none_or(|(full_at_s, _)| *full_at_s <= now_s);
            if !is_full && self.by_name.len() <= most {
                return;
            }
            self.by_name.remove(&oldest.remove());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_taken_and_then_what_comes_back() {
        let rates = Rates::new(2.0, 3.0, 10);
        let take = |now_s| rates.take("a", 1.0, now_s) == 0.0;
        assert!(take(0.0) && take(0.0) && take(0.0) && !take(0.0));
        assert!(!take(0.4) && take(0.5) && !take(0.5));
    }

    #[test]
    fn the_least_recently_used_is_forgotten() {
        let rates = Rates::new(1.0, 1.0, 2);
        for name in ["a", "b", "c"] {
            assert!(rates.take(name, 1.0, 0.0) == 0.0);
        }
        assert_eq!(rates.len(), 2);
        assert!(rates.take("b", 1.0, 0.0) > 0.0);
        assert!(rates.take("a", 1.0, 0.0) == 0.0);
    }

    #[test]
    fn no_rate_is_no_limit() {
        let rates = Rates::new(0.0, 1.0, 2);
        assert!(rates.take("a", 1e9, 0.0) == 0.0 && rates.is_empty());
    }
}
