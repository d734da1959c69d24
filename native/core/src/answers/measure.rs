//! Benchmarks of a tally: time per vote and bytes per voter, at realistic sizes.

use std::time::{Duration, Instant};

use super::Tally;
use super::model::encode_votes;

/// Records a batch.
const BATCH: u64 = 1_000;

#[test]
#[ignore = "a measurement: cargo test --release --lib -- --ignored --nocapture answers"]
fn measure() {
    let mut tally = Tally::new();
    let mut next = 0;
    for voters in [1_000, 10_000, 100_000, 1_000_000, 10_000_000] {
        let (begun, mut spent, mut slowest) = (next, Duration::ZERO, Duration::ZERO);
        let mut most_hundredths = 0;
        while next < voters {
            let time = apply(&mut tally, next);
            (spent, slowest) = (spent + time, slowest.max(time));
            next += BATCH;
            let bytes = u64::try_from(tally.memory_bytes()).expect("no such memory");
            most_hundredths = most_hundredths.max(100 * bytes / next);
        }
        // Spread over the whole range, so that most lookups miss the cache.
        let repeats = (0..1_000).map(|round| round * 7_919 % (voters / BATCH) * BATCH);
        let again: Duration = repeats.map(|first| apply(&mut tally, first)).sum();
        println!(
            "{voters} voters: {} ns a new one, {} ns a repeat, slowest batch {slowest:?}, at most {}.{:02} bytes each",
            spent.as_nanos() / u128::from(next - begun),
            again.as_nanos() / 1_000 / u128::from(BATCH),
            most_hundredths / 100,
            most_hundredths % 100,
        );
    }
}

/// The time for a batch that begins with this voter.
fn apply(tally: &mut Tally, first: u64) -> Duration {
    let batch = encode_votes(first..first + BATCH);
    let start = Instant::now();
    tally.apply(&batch, false).expect("a good batch");
    start.elapsed()
}
