//! Records at the edges of what is one.

use proptest::prelude::*;

use super::model::{Sent, answer, encode, sent};
use super::record::{Fault, Records};
use super::{Malformed, NoAnswer, Tally, encode_answer};

const HASH: [u8; 8] = [8, 7, 6, 5, 4, 3, 2, 1];

/// A record with this beginning.
fn record(numbers: &[u8]) -> Vec<u8> {
    [numbers, &HASH].concat()
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
    assert_eq!(read(&encode(std::slice::from_ref(&sent))), Ok(sent));
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

proptest! {
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
