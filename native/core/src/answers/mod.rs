//! The exact counts of one shard of a poll, in about 14 bytes per voter.
//!
//! Theory of operation. A visitor reaches this module as a [`Record`]: a keyed hash of who ([`hash`]), and what
//! for: an answer with one index or several, an impression, or a session. A [`Tally`] takes batches of records and
//! keeps who has been counted in three sets, one a kind, each a [`Table`](voters) of hashes; that of the voters
//! keeps the choice too, so that a later answer can undo an earlier one. A batch yields, beside what each record
//! changed, the *news*: those records without which the tally cannot be made again. A tally that has loaded all news
//! in the order in which they came is equal to the one that gave them, but for the number of impressions, which is
//! stored beside them because an impression by a known visitor is no news.
//!
//! A batch is read whole before anything of it is applied: it is applied, or refused with the offset of the fault.
//!
//! What it does not know: which polls there are, who a visitor is, whether what it counts is stored, and what time
//! it is. Two visitors whose hashes are equal count as one; among ten million that happens to a pair once in 370,000
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
