//! Packed votes, and the tally that counts them.

use crate::answers::Tally;
use crate::answers::model::{Model, Sent, encode};
use crate::answers::record::Records;

/// Voters at most: with so few, most come again.
const VOTERS: u64 = 8;

/// What is read as a record has one encoding; a tally takes all of its input or nothing, and counts as its model does.
///
/// The first byte chooses whether answers may change, bit by bit for each batch, the second how many records a
/// batch has.
///
/// # Panics
/// When a rule is broken.
pub fn answers(input: &[u8]) {
    let [changes, size, bytes @ ..] = input else {
        return;
    };
    let (mut batch, mut read) = (Vec::new(), 0);
    for record in Records::new(bytes) {
        match record {
            Ok(record) => {
                assert_eq!(encode(&[Sent::new(&record, record.hash)]), record.bytes);
                batch.push(Sent::new(&record, record.hash % VOTERS + 1));
                read += record.bytes.len();
            }
            Err(error) => assert_eq!(error.offset, read),
        }
    }
    let mut tally = Tally::new();
    match tally.apply(bytes, false) {
        Ok(applied) => assert_eq!(applied.outcomes.len(), batch.len()),
        Err(error) => {
            assert_eq!(error.offset, read);
            assert_eq!(tally.memory_bytes(), Tally::new().memory_bytes());
        }
    }
    let mut model = Model::default();
    for (number, part) in batch.chunks(usize::from(*size).max(1)).enumerate() {
        model.apply(part, changes >> (number % 8) & 1 == 1);
        model.check();
    }
    model.check_reloaded();
}
