//! Topic logs: one shared, append-only log of finished WebSocket frames per topic.
//!
//! Theory of operation. A [`Log`] keeps the notifications of one topic as the exact bytes that are written to a socket,
//! one after another in chunks. A subscription is a cursor, an index of entries, and nothing else: sending means
//! handing out the contiguous bytes between a cursor and the [`tip`](Log::tip). Sealed chunks are shared by reference.
//! The open chunk at the end is copied, so a reader never sees memory that is being written to, and the whole module is
//! safe code without I/O.
//!
//! A log has two segments. *Live* holds what was appended since the log was opened, including resets. *Past* holds
//! older pushes of the current epoch, which [`backfill`](Log::backfill) put before it. Cursors of the two never
//! overlap, and a cursor into a past that a reset has discarded is recognised as lost.
//!
//! A second track holds deflated frames of the newest entries while readers want them: each entry is compressed once,
//! whatever the number of subscribers. An entry without a deflated frame is sent plain, which RFC 7692, section 6
//! allows frame by frame. A third track holds the newest entries as Server-Sent Events, also encoded once. A
//! [`Framing`] says which form a reader wants.
//! A reader that asks for few messages gets the entries that are read together *joined*: their finished frames are
//! copied into one frame, once for all readers at the same cursor, and none is encoded or compressed again.
//!
//! A log does not know its readers, their rights, or the time.

mod encoding;
mod entry;
mod framing;
mod history;
mod joining;
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
