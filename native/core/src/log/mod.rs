//! Topic logs: one shared, append-only log of finished WebSocket frames for each topic.
//!
//! Theory of operation. A [`Log`] keeps the notifications of one topic as the very bytes that go to a socket,
//! laid end to end in chunks. A subscription is a cursor, an index of entries, and nothing else: sending is
//! handing out the contiguous bytes between a cursor and the [`tip`](Log::tip). Sealed chunks are shared by
//! reference; the open chunk at the end is copied out, so a reader never sees memory that is written to and
//! the whole module is safe code without I/O.
//!
//! Two segments make a log. *Live* holds what was appended since the log was opened, resets included. *Past*
//! holds older pushes of the current epoch that were put before it by [`backfill`](Log::backfill). Cursors
//! of the two never overlap, and those of a past that a reset threw away are recognised as lost.
//!
//! A second track holds deflated frames of the newest entries while somebody wants them: each entry is
//! compressed once, whatever the number of subscribers. Where there is no deflated frame the plain one is
//! sent, which RFC 7692, section 6 allows frame by frame. A third track holds the newest entries as Server-Sent Events,
//! made once as well. A [`Framing`] names what a reader wants.
//!
//! What a log does not know: who follows it, whether they may, and what time it is.

mod encoding;
mod entry;
mod framing;
mod history;
mod segment;
mod span;
mod track;

pub use encoding::{channel_params, escape};
pub use entry::{Entry, Kind};
pub use framing::Framing;
pub use history::{Appended, Limits, Log, LogError};
pub use span::{Lost, Span};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod model;
#[cfg(test)]
mod model_test;
