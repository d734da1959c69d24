//! Cursors, and reading with them.

use super::{LIVE_START, Log};
use crate::log::encoding;
use crate::log::framing::Framing;
use crate::log::segment::Segment;
use crate::log::span::{Lost, Span};

impl Log {
    /// The cursor of a reader that has everything up to `seq` of `epoch`; None when the log cannot continue from there.
    #[must_use]
    pub fn after(&self, epoch: &str, seq: u64) -> Option<u64> {
        if epoch != self.epoch || seq < self.floor() || seq > self.seq {
            return None;
        }
        Some(self.place_after(seq))
    }

    /// The cursor after the push `seq`, which lies between the floor and the head.
    fn place_after(&self, seq: u64) -> u64 {
        match self.past.entries.front() {
            Some(oldest) if seq + 1 < oldest.seq + self.past.entries.len() as u64 => {
                self.past.first + (seq + 1).saturating_sub(oldest.seq)
            }
            _ => self.live.after_seq(self.first_live(), seq),
        }
    }

    /// The id of the message at `seq` of the current epoch; None where the log does not know it.
    #[must_use]
    pub fn id_at(&self, seq: u64) -> Option<&str> {
        if seq == self.floor {
            return Some(self.floor_id.as_str()).filter(|id| !id.is_empty());
        }
        // The push itself comes right after its predecessor.
        let cursor = (seq > self.floor).then(|| self.place_after(seq - 1))?;
        let (segment, index) = self.resolve(cursor).ok()?;
        let found = segment.push_at(index, seq)?;
        encoding::message_id(encoding::params(segment.meta(found), segment.frame(found)))
    }

    /// The cursor before the last `pushes` of the current epoch, and whether the log has them all.
    #[must_use]
    pub fn last(&self, pushes: u64) -> (u64, bool) {
        let wanted = self.seq.saturating_sub(pushes);
        let is_complete = wanted >= self.floor() || self.floor() == 0;
        if pushes == 0 {
            return (self.tip(), true);
        }
        (
            self.after(&self.epoch, wanted.max(self.floor()))
                .unwrap_or(self.tip()),
            is_complete,
        )
    }

    /// The seq of the newest push before `cursor`.
    #[must_use]
    pub fn seq_at(&self, cursor: u64) -> u64 {
        if cursor >= self.tip() {
            return self.seq;
        }
        match self.resolve(cursor) {
            Ok((segment, index)) if index > segment.first => segment.meta(index - 1).seq,
            // Nothing precedes it in its segment, so the predecessor is the end of the past, or else the floor.
            Ok((segment, _)) if segment.first >= LIVE_START => self
                .past
                .entries
                .back()
                .map_or(self.floor, |newest| newest.seq),
            _ => self.floor,
        }
    }

    /// Fills `span` with the frames from `cursor` towards `until`, about `budget` bytes at most.
    ///
    /// [`Framing::Deflated`] returns the frames passed to [`put_deflated`](Self::put_deflated) so far, and plain ones.
    /// [`Framing::Events`] encodes for this reader the events that [`make_events`](Self::make_events) has not encoded
    /// for all. The joined framings make one frame of what is read.
    ///
    /// A call may stop early, between past and live or between deflated and plain: continue from `span.next`
    /// until that is `until`.
    ///
    /// # Errors
    /// [`Lost`] when the entries are gone.
    pub fn read(
        &self,
        cursor: u64,
        until: u64,
        budget: u64,
        framing: Framing,
        span: &mut Span,
    ) -> Result<(), Lost> {
        span.clear();
        span.framing = framing.apart();
        self.read_apart(cursor, until, budget, framing.apart(), span)?;
        if framing.is_joined() {
            span.join();
        }
        Ok(())
    }

    fn read_apart(
        &self,
        cursor: u64,
        until: u64,
        budget: u64,
        framing: Framing,
        span: &mut Span,
    ) -> Result<(), Lost> {
        let (segment, index) = self.resolve(cursor)?;
        if segment.first < LIVE_START {
            if framing == Framing::Events {
                self.read_events(segment, index, segment.end(), budget, span);
            } else {
                segment.read(index, segment.end(), budget, span);
            }
            if span.next == self.past_end {
                span.next = self.first_live();
            }
            return Ok(());
        }
        let is_deflated =
            framing == Framing::Deflated && self.deflated.wanted_by > 0 && index < self.deflated.to;
        if framing == Framing::Events {
            self.read_events(&self.live, index, until.max(index), budget, span);
        } else if !is_deflated {
            self.live.read(index, until.max(index), budget, span);
        } else if index < self.deflated.from {
            self.live
                .read(index, until.min(self.deflated.from), budget, span);
        } else {
            let until = until.clamp(index, self.deflated.to);
            self.read_deflated(index, until, budget, span);
        }
        Ok(())
    }

    /// Appends `events` items from `cursor` on, comma-separated, until a limit is reached.
    ///
    /// Returns the cursor after the last item.
    ///
    /// # Errors
    /// [`Lost`] when the entries are gone.
    pub fn put_items(
        &self,
        cursor: u64,
        max_entries: usize,
        max_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<u64, Lost> {
        let begin = out.len();
        let mut cursor = cursor;
        for _ in 0..max_entries {
            if cursor == self.tip() {
                break;
            }
            let (segment, index) = self.resolve(cursor)?;
            let frame = segment.frame(index);
            if out.len() - begin + frame.len() > max_bytes {
                break;
            }
            if out.len() > begin {
                out.push(b',');
            }
            encoding::put_item(segment.meta(index), frame, out);
            cursor = if index + 1 == self.past_end {
                self.first_live()
            } else {
                index + 1
            };
        }
        Ok(cursor)
    }

    /// Bytes of plain frames after `cursor`, and when the next of them was appended (None at the tip).
    ///
    /// # Errors
    /// [`Lost`] when the entries are gone.
    pub fn behind(&self, cursor: u64) -> Result<(u64, Option<u64>), Lost> {
        if cursor == self.tip() {
            return Ok((0, None));
        }
        let (segment, index) = self.resolve(cursor)?;
        let mut bytes = segment.bytes_from(index);
        if segment.first < LIVE_START {
            bytes += self.live.bytes_from(self.first_live());
        }
        Ok((bytes, Some(segment.meta(index).at_ms)))
    }

    /// The oldest live entry of the epoch, where the past continues: the epoch's first entries may have been trimmed
    /// before the past was filled again.
    pub(super) fn first_live(&self) -> u64 {
        self.epoch_start.max(self.live.first)
    }

    /// What `cursor` points at: the segment that has the entry, and the entry's index. The tip belongs to live.
    fn resolve(&self, cursor: u64) -> Result<(&Segment, u64), Lost> {
        if cursor >= LIVE_START {
            return if cursor >= self.live.first {
                Ok((&self.live, cursor))
            } else {
                Err(Lost)
            };
        }
        if cursor >= self.past.first && cursor < self.past.end() {
            Ok((&self.past, cursor))
        } else {
            Err(Lost)
        }
    }
}
