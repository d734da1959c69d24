//! The input of a log, and what the log keeps about each entry.

/// The effect of an entry on the topic's followers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A notification with the next seq of the epoch.
    Push,
    /// A notification without a seq, placed between the pushes.
    Notice,
    /// The first notification of a new epoch, whose base is the entry's seq.
    Reset,
    /// The last notification: the topic has ended.
    Gone,
}

/// One step of a topic, as passed by the caller; `params` is the JSON text of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub kind: Kind,
    pub epoch: &'a str,
    pub seq: u64,
    pub method: &'a str,
    pub params: &'a [u8],
}

impl Entry<'_> {
    /// Whether it tells that an event has been deleted.
    pub(super) fn is_deletion(&self) -> bool {
        self.kind == Kind::Push && self.method == DELETION
    }
}

/// The method of a push that tells that an event has been deleted.
pub(super) const DELETION: &str = "eventDeleted";

/// What a log remembers about an entry besides its frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    pub kind: Kind,
    /// True for the method `event`, which recovery leaves out.
    pub is_event: bool,
    /// True for the method `eventDeleted`.
    pub is_deletion: bool,
    /// Bytes of the frame's header: 2, 4 or 10.
    pub header_bytes: u8,
    /// Bytes of the method in the frame, JSON-escaped.
    pub method_bytes: u16,
    /// The seq of the newest push up to and including this entry: a follower's position after it.
    pub seq: u64,
    /// Milliseconds of the caller's clock when it was appended.
    pub at_ms: u64,
    /// Where its frame ends in the plain track.
    pub end: u64,
    /// Where its frame ends in the deflated track; unspecified outside the deflated range.
    pub deflated_end: u64,
}
