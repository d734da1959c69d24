//! Bytes that only grow at the end, addressed by offsets that never change.

use std::collections::VecDeque;
use std::sync::Arc;

use super::span::Span;

/// 128 KiB: large enough that a span rarely crosses two chunks, small enough that trimming frees memory soon.
const CHUNK_BYTES: usize = 128 << 10;

#[derive(Debug)]
struct Sealed {
    start: u64,
    bytes: Arc<Vec<u8>>,
}

impl Sealed {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// A run of bytes in sealed, shared chunks and one open chunk at the end.
///
/// What is appended in one call never crosses two chunks.
#[derive(Debug)]
pub(super) struct Track {
    sealed: VecDeque<Sealed>,
    open: Vec<u8>,
    open_start: u64,
}

impl Track {
    /// An empty track whose first byte will have the offset `start`.
    pub fn new(start: u64) -> Self {
        Self {
            sealed: VecDeque::new(),
            open: Vec::new(),
            open_start: start,
        }
    }

    /// The offset after the last byte.
    pub fn end(&self) -> u64 {
        self.open_start + self.open.len() as u64
    }

    /// The offset of the first byte still here.
    pub fn start(&self) -> u64 {
        self.sealed
            .front()
            .map_or(self.open_start, |chunk| chunk.start)
    }

    /// Bytes of memory held.
    pub fn held_bytes(&self) -> u64 {
        self.end() - self.start()
    }

    /// Appends `bytes` and returns the offset after them.
    pub fn append(&mut self, bytes: &[u8]) -> u64 {
        if !self.open.is_empty() && self.open.len() + bytes.len() > CHUNK_BYTES {
            self.seal();
        }
        self.open.extend_from_slice(bytes);
        self.end()
    }

    /// Puts `bytes` before the first byte and returns the offset at which they begin.
    pub fn prepend(&mut self, bytes: Vec<u8>) -> u64 {
        let start = self.start() - bytes.len() as u64;
        self.sealed.push_front(Sealed {
            start,
            bytes: Arc::new(bytes),
        });
        start
    }

    /// Puts `bytes` in the place of those from `from` up to `to`, which were appended in one call; what comes after
    /// them moves. Who shares the chunk keeps what it was.
    pub fn replace(&mut self, from: u64, to: u64, bytes: &[u8]) {
        let moved = |offset: u64| offset - (to - from) + bytes.len() as u64;
        if from >= self.open_start {
            let range = within(self.open_start, from)..within(self.open_start, to);
            self.open.splice(range, bytes.iter().copied());
            return;
        }
        let index = self.sealed.partition_point(|chunk| chunk.end() <= from);
        let chunk = &mut self.sealed[index];
        let range = within(chunk.start, from)..within(chunk.start, to);
        Arc::make_mut(&mut chunk.bytes).splice(range, bytes.iter().copied());
        for later in self.sealed.iter_mut().skip(index + 1) {
            later.start = moved(later.start);
        }
        self.open_start = moved(self.open_start);
    }

    /// Frees the chunks that lie wholly before `offset`.
    pub fn release(&mut self, offset: u64) {
        while self
            .sealed
            .front()
            .is_some_and(|chunk| chunk.end() <= offset)
        {
            self.sealed.pop_front();
        }
        if self.sealed.is_empty() && self.end() <= offset {
            self.open_start = self.end();
            self.open = Vec::new();
        }
    }

    /// Adds the bytes from `from` up to `to` to `span`; both are offsets of this track that are still held.
    pub fn read(&self, from: u64, to: u64, span: &mut Span) {
        let first = self.sealed.partition_point(|chunk| chunk.end() <= from);
        for chunk in self
            .sealed
            .iter()
            .skip(first)
            .take_while(|chunk| chunk.start < to)
        {
            let end = to.min(chunk.end());
            span.share(
                &chunk.bytes,
                within(chunk.start, from.max(chunk.start)),
                within(chunk.start, end),
            );
        }
        if to > self.open_start {
            span.copy(
                &self.open[within(self.open_start, from.max(self.open_start))
                    ..within(self.open_start, to)],
            );
        }
    }

    /// The bytes from `from` up to `to`, which were appended in one call.
    pub fn slice(&self, from: u64, to: u64) -> &[u8] {
        if from >= self.open_start {
            return &self.open[within(self.open_start, from)..within(self.open_start, to)];
        }
        let chunk = &self.sealed[self.sealed.partition_point(|chunk| chunk.end() <= from)];
        &chunk.bytes[within(chunk.start, from)..within(chunk.start, to)]
    }

    fn seal(&mut self) {
        let start = self.open_start;
        self.open_start = self.end();
        let bytes = Arc::new(std::mem::take(&mut self.open));
        self.sealed.push_back(Sealed { start, bytes });
    }
}

/// The index of `offset` in a chunk that begins at `start`; a chunk always fits into memory.
fn within(start: u64, offset: u64) -> usize {
    usize::try_from(offset - start).unwrap_or(usize::MAX)
}
