//! Bytes on their way from a log to sockets.

use std::ops::Range;
use std::sync::Arc;

use super::framing::{Framing, frame_bytes};
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
    /// Where each entry ends among the bytes of all slices, where that would have to be searched for: of events.
    ends: Vec<usize>,
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
        self.ends.clear();
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
        self.whole(slice, slice.len()).1
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
        if self.framing == Framing::Events {
            return self.whole_events(slice, sent);
        }
        let (mut end, mut count) = (0, 0);
        while end < sent {
            end += frame_bytes(&slice[end..]);
            count += 1;
        }
        (end, count)
    }

    /// The same of events, which do not begin with their length: a socket that is full may ask for each write.
    fn whole_events(&self, slice: &[u8], sent: usize) -> (usize, u64) {
        if sent == 0 {
            return (0, 0);
        }
        let before = (self.slices())
            .take_while(|each| !std::ptr::eq(each.as_ptr(), slice.as_ptr()))
            .map(<[u8]>::len)
            .sum::<usize>();
        let first = self.ends.partition_point(|&end| end <= before);
        let last = self.ends.partition_point(|&end| end < before + sent);
        (self.ends[last] - before, (last + 1 - first) as u64)
    }

    /// Adds one event, which `write` appends; returns its bytes.
    pub(super) fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        let from = self.copied.len();
        write(&mut self.copied);
        let to = self.copied.len();
        self.note_ends([to - from]);
        match self.pieces.last_mut() {
            Some(Piece::Copied(range)) if range.end == from => range.end = to,
            _ => self.pieces.push(Piece::Copied(from..to)),
        }
        to - from
    }

    /// Notes where events end that are added next; `ends` count from the first byte of the first one.
    pub(super) fn note_ends(&mut self, ends: impl IntoIterator<Item = usize>) {
        let before = self.ends.last().copied().unwrap_or(0);
        self.ends.extend(ends.into_iter().map(|end| before + end));
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
