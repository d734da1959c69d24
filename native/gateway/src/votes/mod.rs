//! Votes and impressions without the application.
//!
//! Guide. A vote is a call of `respond`, an impression one of `impression`; what is said of votes here holds for both.
//! A vote passes these files, none of which imports a later one:
//!
//! | file | what it knows |
//! |---|---|
//! | `params` | the params, if they are clearly valid |
//! | `rates` | how many votes a connection and an address may send |
//! | `queue` | the queue to one counter: batches, of which the application has one at a time |
//! | `polls` | which polls are open, their keys and options, and which counter a record goes to |
//! | `taking` | the call: from params to records in a queue, from outcomes to the reply |
//!
//! The application checks a vote in full: the program, its access, the event and the time. The result stays valid for
//! some moments, so the application opens the poll here for that long. Votes that are not clearly valid are still
//! passed to it, so all errors come from there. The application also counts: it fetches batches of records, has them
//! counted, and settles them with what each record changed.

mod names;
mod params;
mod polls;
mod queue;
mod rates;
mod taking;

pub use polls::{OpenPoll, PollName, Votes};
pub use queue::{GroupKey, GroupReply, Mismatch, Records, Settled, Settlement};
pub use rates::Rates;

pub(crate) use names::Names;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use params::parse_vote;
