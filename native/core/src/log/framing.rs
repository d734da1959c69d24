//! The forms in which entries are sent to clients.

use crate::protocol::{events, frame};

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
}

impl Framing {
    /// All of them, each at the index of its number.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Deflated, Self::Events];

    /// Bytes of the first entry of `entries`, which are whole entries of a log.
    #[must_use]
    pub fn entry_bytes(self, entries: &[u8]) -> usize {
        match self {
            Self::Plain | Self::Deflated => frame_bytes(entries),
            Self::Events => events::event_bytes(entries),
        }
    }
}

/// Bytes of the frame at the start of `frames`, which are whole and unmasked.
fn frame_bytes(frames: &[u8]) -> usize {
    match frame::parse_header(frames) {
        Ok(Some((header, header_bytes))) => {
            header_bytes + usize::try_from(header.payload_bytes).unwrap_or(usize::MAX)
        }
        _ => unreachable!("a log holds whole frames of our own making"),
    }
}
