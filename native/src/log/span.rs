//! Bytes on their way from a log to sockets.

use std::ops::Range;
use std::sync::Arc;

/// The cursor points at entries that the log no longer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

#[derive(Debug)]
enum Piece {
    Shared(Arc<Vec<u8>>, Range<usize>),
    Copied(Range<usize>),
}

/// Whole frames read from a log, in one or a few contiguous slices; kept and refilled by its owner.
#[derive(Debug, Default)]
pub struct Span {
    pieces: Vec<Piece>,
    copied: Vec<u8>,
    /// Frames in all slices.
    pub frames: u64,
    /// The cursor after the last frame.
    pub next: u64,
}

impl Span {
    /// Forgets what was read but keeps the memory, up to what one chunk needs.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.copied.clear();
        self.copied.shrink_to(256 << 10);
        self.frames = 0;
    }

    /// The slices in order; each begins and ends at the edge of a frame.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| match piece {
            Piece::Shared(bytes, range) => &bytes[range.clone()],
            Piece::Copied(range) => &self.copied[range.clone()],
        })
    }

    /// Bytes in all slices.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slices().map(<[u8]>::len).sum()
    }

    pub(super) fn share(&mut self, bytes: &Arc<Vec<u8>>, from: usize, to: usize) {
        self.pieces.push(Piece::Shared(Arc::clone(bytes), from..to));
    }

    pub(super) fn copy(&mut self, bytes: &[u8]) {
        let from = self.copied.len();
        self.copied.extend_from_slice(bytes);
        self.pieces.push(Piece::Copied(from..self.copied.len()));
    }
}
