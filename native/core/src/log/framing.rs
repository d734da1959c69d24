//! The forms in which entries are sent to clients.

use crate::protocol::frame;

/// One layout of all entries of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// WebSocket frames.
    #[default]
    Plain,
    /// WebSocket frames, deflated where the log has done so and it makes them smaller.
    Deflated,
    /// Server-Sent Events.
    Events,
    /// As [`Plain`](Self::Plain), but several entries that are read at once are one frame: a JSON array.
    Joined,
    /// As [`Deflated`](Self::Deflated), joined likewise.
    JoinedDeflated,
}

impl Framing {
    /// All of them, each at the index of its number.
    pub const ALL: [Self; 5] = [
        Self::Plain,
        Self::Deflated,
        Self::Events,
        Self::Joined,
        Self::JoinedDeflated,
    ];

    /// The same with a frame for each entry: how a log keeps it.
    #[must_use]
    pub fn apart(self) -> Self {
        match self {
            Self::Plain | Self::Joined => Self::Plain,
            Self::Deflated | Self::JoinedDeflated => Self::Deflated,
            Self::Events => Self::Events,
        }
    }

    /// Whether several entries make one frame.
    #[must_use]
    pub fn is_joined(self) -> bool {
        self != self.apart()
    }
}

/// Bytes of the frame at the start of `frames`, which are whole and unmasked.
pub(super) fn frame_bytes(frames: &[u8]) -> usize {
    match frame::parse_header(frames) {
        Ok(Some((header, header_bytes))) => {
            header_bytes + usize::try_from(header.payload_bytes).unwrap_or(usize::MAX)
        }
        _ => unreachable!("a log holds whole frames of our own making"),
    }
}
