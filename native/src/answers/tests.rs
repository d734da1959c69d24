//! Records at the edges of what is one, and the tally against its model.

use std::collections::BTreeSet;
use std::time::Instant;

use proptest::prelude::*;

use super::model::{Model, Sent, encode};
use super::{Fault, Malformed, NoAnswer, Records, Tally, encode_answer};

const HASH: [u8; 8] = [8, 7, 6, 5, 4, 3, 2, 1];

/// A record with this beginning.
fn record(numbers: &[u8]) -> Vec<u8> {
    [numbers, &HASH].concat()
}

fn answer(hash: u64, indexes: &[u16]) -> Sent {
    Sent::Answer(hash, indexes.iter().copied().collect())
}

/// What the only record in these bytes is, with its indexes.
fn read(bytes: &[u8]) -> Result<Sent, Malformed> {
    let mut records = Records::new(bytes);
    let record = records.next().expect("bytes")?;
    assert_eq!(record.bytes, bytes);
    assert!(records.next().is_none());
    Ok(Sent::new(&record, record.hash))
}

fn fault(numbers: &[u8]) -> Fault {
    read(&record(numbers)).expect_err("malformed").fault
}

#[test]
fn each_kind_is_read() {
    let hash = 0x0102_0304_0506_0708;
    for (numbers, sent) in [
        (&[0][..], Sent::Impression(hash)),
        (&[1], Sent::Session(hash)),
        (&[2], answer(hash, &[0])),
        (&[0b0111_1110], answer(hash, &[31])),
        (&[0x82, 0x01], answer(hash, &[32])),
        (&[0x9e, 0x1f], answer(hash, &[999])),
        (&[0b1011, 0, 1], answer(hash, &[0, 1])),
        (
            &[0b1111, 5, 0x80, 0x01, 0xe7, 0x07],
            answer(hash, &[5, 128, 999]),
        ),
    ] {
        assert_eq!(read(&record(numbers)), Ok(sent.clone()), "{numbers:?}");
        assert_eq!(encode(&[sent]), record(numbers));
    }
}

#[test]
fn all_thousand_indexes_fit_a_record() {
    let sent = Sent::Answer(1, (0..1_000).collect());
    assert_eq!(read(&encode(&[sent.clone()])), Ok(sent));
}

#[test]
fn an_index_of_a_thousand_is_refused() {
    assert_eq!(fault(&[0xa2, 0x1f]), Fault::TooLarge);
    assert_eq!(fault(&[0b1011, 0, 0xe8, 0x07]), Fault::TooLarge);
    assert_eq!(fault(&[0x82, 0x80, 0x01]), Fault::TooLarge);
}

#[test]
fn several_are_at_least_two() {
    assert_eq!(fault(&[0b0011]), Fault::TooFew);
    assert_eq!(fault(&[0b0111, 4]), Fault::TooFew);
}

#[test]
fn indexes_that_do_not_ascend_are_refused() {
    assert_eq!(fault(&[0b1011, 2, 1]), Fault::NotAscending);
    assert_eq!(fault(&[0b1011, 2, 2]), Fault::NotAscending);
    // More than a thousand cannot ascend.
    let mut numbers = vec![0xaf, 0x1f];
    numbers.extend(encode_numbers(0..1_000));
    numbers.extend(encode_numbers(999..1_000));
    assert_eq!(fault(&numbers), Fault::NotAscending);
}

fn encode_numbers(numbers: std::ops::Range<u16>) -> Vec<u8> {
    let low_and_high = numbers.map(|number| [number & 0x7f, number >> 7]);
    let bytes = low_and_high.flat_map(|[low, high]| match high {
        0 => vec![low],
        _ => vec![low | 0x80, high],
    });
    bytes.map(|byte| byte.to_le_bytes()[0]).collect()
}

#[test]
fn an_overlong_number_is_refused() {
    assert_eq!(fault(&[0x82, 0]), Fault::Overlong);
    assert_eq!(fault(&[0b1011, 0x81, 0, 2]), Fault::Overlong);
}

#[test]
fn an_impression_or_a_session_has_no_index() {
    assert_eq!(fault(&[0b0100]), Fault::HasIndex);
    assert_eq!(fault(&[0b0101]), Fault::HasIndex);
}

#[test]
fn the_hash_zero_is_refused() {
    let error = read(&[0; 9]).expect_err("malformed");
    assert_eq!(error.fault, Fault::NoHash);
}

#[test]
fn every_shorter_record_is_truncated() {
    let whole = record(&[0b1111, 5, 0x80, 0x01, 0xe7, 0x07]);
    for length in 1..whole.len() {
        let error = read(&whole[..length]).expect_err("malformed");
        assert_eq!(error.fault, Fault::Truncated, "{length} bytes");
    }
}

#[test]
fn a_fault_names_where_its_record_begins() {
    let bytes = [record(&[0]), record(&[0x82, 0x01]), record(&[0b0100])].concat();
    let mut tally = Tally::new();
    let error = tally.apply(&bytes, false).expect_err("malformed");
    assert_eq!((error.offset, error.fault), (19, Fault::HasIndex));
    assert_eq!(
        error.to_string(),
        "the record at offset 19 has an index but is no answer"
    );
}

#[test]
fn nothing_of_a_malformed_batch_is_applied() {
    let bytes = [record(&[0]), record(&[1]), record(&[2]), record(&[0b0100])].concat();
    let mut model = Model::default();
    assert!(model.tally.apply(&bytes, false).is_err());
    assert!(model.tally.load(&bytes).is_err());
    model.check();
}

#[test]
fn indexes_of_no_answer_are_refused() {
    for (indexes, error) in [
        (&[][..], NoAnswer::Empty),
        (&[1_000], NoAnswer::TooLarge(1_000)),
        (&[7, 1_000], NoAnswer::TooLarge(1_000)),
        (&[7, 3, 7], NoAnswer::Repeated(7)),
    ] {
        let mut bytes = Vec::new();
        assert_eq!(encode_answer(indexes, 1, &mut bytes), Err(error));
        assert!(bytes.is_empty());
    }
}

#[test]
fn indexes_may_come_in_any_order() {
    let mut bytes = Vec::new();
    assert_eq!(encode_answer(&[9, 0, 3], 1, &mut bytes), Ok(()));
    assert_eq!(read(&bytes), Ok(answer(1, &[0, 3, 9])));
}

#[test]
fn the_first_answer_stands() {
    let mut model = Model::default();
    model.apply(
        &[answer(1, &[2]), answer(1, &[0]), answer(1, &[0, 2])],
        false,
    );
    assert_eq!(model.tally.totals(), [0, 0, 1]);
    assert_eq!(model.tally.voters(), 1);
}

#[test]
fn the_last_answer_stands_where_it_may_change() {
    let mut model = Model::default();
    model.apply(
        &[answer(1, &[2]), answer(1, &[0, 3]), answer(1, &[0, 1])],
        true,
    );
    assert_eq!(model.tally.totals(), [1, 1, 0, 0]);
    assert_eq!(
        model.news,
        encode(&[answer(1, &[2]), answer(1, &[0, 3]), answer(1, &[0, 1])])
    );
}

#[test]
fn every_impression_counts_and_the_first_is_stored() {
    let mut tally = Tally::new();
    let shown = encode(&[Sent::Impression(1), Sent::Impression(1), Sent::Session(1)]);
    let applied = tally.apply(&shown, false).expect("a good batch");
    assert_eq!(applied.outcomes, [1, 1, 0]);
    assert_eq!(
        applied.news,
        encode(&[Sent::Impression(1), Sent::Session(1)])
    );
    let counts = (tally.impressions(), tally.visitors(), tally.sessions());
    assert_eq!(counts, (2, 1, 1));
}

#[test]
fn loading_leaves_the_impressions() {
    let mut tally = Tally::new();
    tally.set_impressions(40);
    tally.load(&encode(&[Sent::Impression(1)])).expect("good");
    assert_eq!((tally.impressions(), tally.visitors()), (40, 1));
}

/// Combinations and single answers, from few and from many voters.
fn sent() -> impl Strategy<Value = Sent> {
    let hash = prop_oneof![4 => 1u64..20, 1 => 1u64..=u64::MAX];
    let index = prop_oneof![4 => 0u16..4, 1 => 0u16..1_000];
    let indexes = prop_oneof![
        3 => index.clone().prop_map(|index| BTreeSet::from([index])),
        2 => proptest::collection::btree_set(index, 1..5),
    ];
    prop_oneof![
        1 => hash.clone().prop_map(Sent::Impression),
        1 => hash.clone().prop_map(Sent::Session),
        4 => (hash, indexes).prop_map(|(hash, indexes)| Sent::Answer(hash, indexes)),
    ]
}

proptest! {
    #[test]
    fn a_tally_says_what_its_model_says(
        batches in proptest::collection::vec(
            (proptest::collection::vec(sent(), 0..40), any::<bool>()),
            1..8,
        ),
    ) {
        let mut model = Model::default();
        for (batch, allow_change) in batches {
            model.apply(&batch, allow_change);
            model.check();
        }
        model.check_reloaded();
    }

    #[test]
    fn what_is_read_is_what_was_encoded(batch in proptest::collection::vec(sent(), 0..40)) {
        let bytes = encode(&batch);
        let read: Result<Vec<_>, _> = Records::new(&bytes)
            .map(|record| record.map(|record| Sent::new(&record, record.hash)))
            .collect();
        prop_assert_eq!(read, Ok(batch));
    }

    #[test]
    fn whatever_is_read_has_one_encoding(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        for record in Records::new(&bytes).flatten() {
            let sent = Sent::new(&record, record.hash);
            prop_assert_eq!(encode(&[sent]), record.bytes);
        }
    }
}

#[test]
fn many_voters_are_counted_exactly() {
    let mut model = Model::default();
    let votes: Vec<_> = (1..=30_000u64)
        .map(|number| {
            answer(
                number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                &[u16::try_from(number % 5).expect("small")],
            )
        })
        .collect();
    model.apply(&votes, false);
    model.apply(&votes, true);
    model.check();
    model.check_reloaded();
    assert_eq!(model.tally.totals(), [6_000; 5]);
}

#[test]
fn a_voter_of_a_tally_takes_at_most_sixteen_bytes() {
    let mut tally = Tally::new();
    for number in 1..=100_000usize {
        let hash = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let batch = encode(&[answer(hash, &[3])]);
        tally.apply(&batch, false).expect("a good batch");
        if number >= 1_000 {
            let bytes = tally.memory_bytes();
            assert!(bytes <= 16 * number, "{bytes} bytes for {number} voters");
        }
    }
}

/// How long a record takes and how many bytes a voter, at the sizes of a poll.
#[test]
#[ignore = "a measurement: cargo test --release -- --ignored --nocapture answers"]
fn measure() {
    const BATCH: u64 = 1_000;
    let batch = |first: u64| -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in first..first + BATCH {
            let mut hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let indexes = [u16::try_from(number % 4).expect("small")];
            encode_answer(&indexes, hash ^ (hash >> 31), &mut bytes).expect("an index");
        }
        bytes
    };
    let mut tally = Tally::new();
    let (mut first, mut worst_bytes, mut worst_ns) = (1, 0.0f64, 0);
    for voters in [1_000u64, 10_000, 100_000, 1_000_000, 10_000_000] {
        let (mut total_ns, begun) = (0, first);
        while first <= voters {
            let bytes = batch(first);
            let start = Instant::now();
            let applied = tally.apply(&bytes, false).expect("a good batch");
            let ns = start.elapsed().as_nanos();
            assert_eq!(applied.news, bytes);
            (total_ns, worst_ns) = (total_ns + ns, worst_ns.max(ns));
            first += BATCH;
            worst_bytes = worst_bytes.max(tally.memory_bytes() as f64 / (first - 1) as f64);
        }
        let start = Instant::now();
        let mut repeat_ns = 0;
        for number in 0..1_000 {
            let bytes = batch(1 + number * (voters / BATCH) % voters / BATCH * BATCH);
            let start = Instant::now();
            tally.apply(&bytes, false).expect("a good batch");
            repeat_ns += start.elapsed().as_nanos();
        }
        let _ = start;
        println!(
            "{voters} voters: {} ns a new one, {} ns a repeat, slowest batch {} µs, at most {worst_bytes:.2} bytes each",
            total_ns / u128::from(first - begun),
            repeat_ns / 1_000_000,
            worst_ns / 1_000,
        );
        (worst_bytes, worst_ns) = (0.0, 0);
    }
}
