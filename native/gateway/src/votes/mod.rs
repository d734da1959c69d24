//! Votes and impressions without the application.
//!
//! Guide. A vote is a call of `respond`, an impression one of `impression`; what is told here of votes holds for both.
//! On its way a vote meets these files, none of which imports one that comes later:
//!
//! | file | what it knows |
//! |---|---|
//! | `params` | what the params say, if they are plainly right |
//! | `rates` | how many votes a connection and an address may send |
//! | `lane` | the queue to one counter: batches, of which the application has one at a time |
//! | `polls` | which polls are open, their keys and options, and which lane a record goes to |
//! | `taking` | the call: from params to records in a lane, from outcomes to the reply |
//!
//! The application answers a vote in full: it looks at the program, its access, the event and the time. What it finds
//! holds for the next moments, so it opens the poll here for as long as it does, and whatever is not plainly right goes
//! to it all the same: its errors are the only ones there are. Counting is the application's too: it fetches batches of
//! records, has them counted, and settles them with what each record changed.

mod lane;
mod names;
mod params;
mod polls;
mod rates;
mod taking;

pub use lane::{Fate, GroupKey, Mismatch, Records, Settled, Settlement};
pub use polls::{OpenPoll, PollName, Votes};
pub use rates::Rates;

pub(crate) use names::Names;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use params::parse_vote;
