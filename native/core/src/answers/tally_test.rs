//! The tally against its model, and what it may cost.

use proptest::prelude::*;

use super::Tally;
use super::model::{Model, Sent, answer, encode, encode_votes, sent};

#[test]
fn nothing_of_a_malformed_batch_is_applied() {
    let mut bytes = encode(&[Sent::Impression(1), Sent::Session(1), answer(1, &[0])]);
    bytes.push(0b0100);
    let mut model = Model::default();
    assert!(model.tally.apply(&bytes, false).is_err());
    assert!(model.tally.load(&bytes).is_err());
    model.check();
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
}

#[test]
fn many_voters_are_counted_exactly() {
    let mut tally = Tally::new();
    let votes = encode_votes(0..30_000);
    let applied = tally.apply(&votes, false).expect("a good batch");
    assert!(applied.outcomes == vec![1; 30_000] && applied.news == votes);
    let again = tally.apply(&votes, true).expect("a good batch");
    assert!(again.outcomes == vec![0; 30_000] && again.news.is_empty());
    assert_eq!(tally.totals(), [6_000; 5]);
    assert_eq!(tally.voters(), 30_000);
}

#[test]
fn a_voter_of_a_tally_takes_at_most_sixteen_bytes() {
    let mut tally = Tally::new();
    for number in 0..100_000 {
        tally.load(&encode_votes(number..number + 1)).expect("good");
        let (voters, bytes) = (tally.voters(), tally.memory_bytes());
        assert!(
            voters < 1_000 || bytes <= 16 * voters,
            "{bytes} bytes for {voters}"
        );
    }
}
