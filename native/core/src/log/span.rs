//! Bytes on their way from a log to sockets.

use std::ops::Range;
use std::sync::Arc;

use super::framing::Framing;
use super::joining;

/// The cursor points at entries that the log no longer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

#[derive(Debug)]
enum Piece {
    Shared(Arc<Vec<u8>>, Range<usize>),
    Copied(Range<usize>),
}

/// Whole entries read from a log, framed for a socket, in one or a few contiguous slices. The owner keeps and refills
/// it.
#[derive(Debug, Default)]
pub struct Span {
    pieces: Vec<Piece>,
    copied: Vec<u8>,
    /// How they are framed.
    pub(super) framing: Framing,
    /// All of them are one frame.
    is_joined: bool,
    /// Entries in all slices: as many frames, unless these are joined.
    pub frames: u64,
    /// The cursor after the last frame.
    pub next: u64,
}

impl Span {
    /// Clears the contents but keeps the memory, up to the size of one chunk.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.copied.clear();
        self.copied.shrink_to(256 << 10);
        self.frames = 0;
        self.is_joined = false;
    }

    /// Makes one frame of the frames of several entries.
    pub(super) fn join(&mut self) {
        if self.frames < 2 {
            return;
        }
        let mut joined = Vec::with_capacity(self.bytes() + joining::MORE_BYTES);
        joining::join(|| self.slices(), &mut joined);
        self.pieces.clear();
        self.copied = joined;
        self.pieces.push(Piece::Copied(0..self.copied.len()));
        self.is_joined = true;
    }

    /// The slices in order, of which joined entries have one; each begins and ends at the edge of a frame.
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

    /// Entries in one slice.
    #[must_use]
    pub fn count_frames(&self, slice: &[u8]) -> u64 {
        if slice.len() == self.bytes() {
            return self.frames;
        }
        let (mut at, mut count) = (0, 0);
        while at < slice.len() {
            at += self.framing.entry_bytes(&slice[at..]);
            count += 1;
        }
        count
    }

    /// The end of the entry that contains byte `sent` of one slice, and the number of entries up to there.
    #[must_use]
    pub fn whole(&self, slice: &[u8], sent: usize) -> (usize, u64) {
        if self.is_joined {
            return if sent == 0 {
                (0, 0)
            } else {
                (slice.len(), self.frames)
            };
        }
        let (mut end, mut count) = (0, 0);
        while end < sent {
            end += self.framing.entry_bytes(&slice[end..]);
            count += 1;
        }
        (end, count)
    }

    /// Adds what `write` appends: whole entries.
    pub(super) fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let from = self.copied.len();
        write(&mut self.copied);
        if self.copied.len() > from {
            self.pieces.push(Piece::Copied(from..self.copied.len()));
        }
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
