//! The exact counts of one shard of a poll, in about 14 bytes per voter.
//!
//! Theory of operation. A visitor reaches this module as a [`Record`]: a keyed hash of the visitor ([`hash`]) and what
//! is counted: an answer with one index or several, an impression, or a session. A [`Tally`] takes batches of records.
//! It keeps the visitors that have been counted in three sets of hashes, one for each kind ([`Table`](voters)). The set
//! of voters also keeps the choice, so that a later answer can undo an earlier one. A batch returns what each record
//! changed, and the *news*: the records that are needed to rebuild the tally. A tally that has loaded all news in their
//! original order equals the one that produced them, except for the number of impressions. That number is stored
//! separately, because an impression by a known visitor is no news.
//!
//! A whole batch is checked before any of it is applied: it is applied completely, or refused with the offset of the
//! fault.
//!
//! What this module does not know: which polls exist, who a visitor is, whether its counts are stored, and what time it
//! is. Two visitors with equal hashes count as one; among ten million visitors, one pair collides in one of 370,000
//! polls.

mod combinations;
mod hash;
pub(crate) mod record;
mod tally;
mod voters;

pub use hash::Hasher;
pub use record::{
    HIGHEST_INDEX, Malformed, NoAnswer, encode_answer, encode_impression, encode_session,
};
pub use tally::{Applied, Tally};

#[cfg(test)]
mod measure;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod model;
#[cfg(test)]
mod record_test;
#[cfg(test)]
mod tally_test;
