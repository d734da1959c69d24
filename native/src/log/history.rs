//! The log of one topic.

use super::encoding;
use super::entry::{Entry, Kind, Meta};
use super::segment::Segment;
use super::span::{Lost, Span};
use super::track::Track;

/// Live entries count from here; a past's lie below, so that no cursor can mean two entries.
const LIVE_START: u64 = 1 << 62;
/// Indices set aside for each epoch's past.
const PAST_STRIDE: u64 = 1 << 32;
/// Payloads below this are not worth deflating: the frame would hardly shrink.
const DEFLATE_FROM_BYTES: usize = 96;
/// Entries stay this long, so that those who keep up get all of a burst that is over the limits …
const GRACE_MS: u64 = 1_000;
/// … unless the log has grown to this many times its limit.
const GRACE_FACTOR: u64 = 4;

/// How much a log keeps. Whatever is reached first drops the oldest entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub entries: usize,
    pub age_ms: u64,
    /// Bytes of frames, plain and deflated, past and live.
    pub bytes: u64,
}

/// Appends the deflated form of a payload to a buffer.
pub type Deflate<'a> = dyn FnMut(&[u8], &mut Vec<u8>) + 'a;

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    Added,
    /// The log has it already.
    Skipped,
}

/// Why an entry cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogError {
    /// A push that is not the next one.
    Gap { expected: u64, found: u64 },
    /// A push of an epoch that is not the log's.
    Epoch { expected: String, found: String },
    /// `params` is not a JSON object, or the method is too long.
    Malformed,
    /// The topic has ended.
    Ended,
}

impl std::fmt::Display for LogError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gap { expected, found } => {
                write!(f, "seq {found} leaves a gap: {expected} is next")
            }
            Self::Epoch { expected, found } => {
                write!(f, "epoch {found:?} is not the log's {expected:?}")
            }
            Self::Malformed => f.write_str("params is not a JSON object, or method is too long"),
            Self::Ended => f.write_str("the topic has ended"),
        }
    }
}

impl std::error::Error for LogError {}

/// The notifications of one topic, oldest first. See the module for how it works.
#[derive(Debug)]
pub struct Log {
    limits: Limits,
    epoch: String,
    /// The seq of the newest push.
    seq: u64,
    /// The seq before the oldest push kept: recovery reaches back to here.
    floor: u64,
    past: Segment,
    live: Segment,
    /// The live index of the current epoch's first entry.
    epoch_start: u64,
    past_end: u64,
    ended: bool,
    deflated: Deflated,
    payload: Vec<u8>,
    frame: Vec<u8>,
}

/// The deflated frames of the live entries from `from` up to `to`.
#[derive(Debug)]
struct Deflated {
    wanted_by: usize,
    from: u64,
    to: u64,
    start: u64,
    frames: Track,
}

impl Log {
    /// A log whose next push is `seq + 1` of `epoch`.
    #[must_use]
    pub fn new(epoch: &str, seq: u64, limits: Limits) -> Self {
        Self {
            limits,
            epoch: epoch.to_owned(),
            seq,
            floor: seq,
            past: Segment::new(PAST_STRIDE, LIVE_START),
            live: Segment::new(LIVE_START, 0),
            epoch_start: LIVE_START,
            past_end: PAST_STRIDE,
            ended: false,
            deflated: Deflated {
                wanted_by: 0,
                from: LIVE_START,
                to: LIVE_START,
                start: 0,
                frames: Track::new(0),
            },
            payload: Vec::new(),
            frame: Vec::new(),
        }
    }

    /// The epoch's name.
    #[must_use]
    pub fn epoch(&self) -> &str {
        &self.epoch
    }

    /// The seq of the newest push.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The seq before the oldest push that recovery may begin with.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
            .max(self.seq.saturating_sub(self.limits.entries as u64))
    }

    /// True after the topic's last notification.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// The cursor of one who has everything.
    #[must_use]
    pub fn tip(&self) -> u64 {
        self.live.end()
    }

    /// Bytes of frames held.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.past.frames.held_bytes()
            + self.live.frames.held_bytes()
            + self.deflated.frames.held_bytes()
    }

    /// Adds one entry at the end.
    ///
    /// # Errors
    /// [`LogError`] when it does not follow what is here; the log is then unchanged.
    pub fn append(&mut self, entry: &Entry<'_>, now_ms: u64) -> Result<Appended, LogError> {
        if self.ended {
            return Err(LogError::Ended);
        }
        if self.is_known(entry)? {
            return Ok(Appended::Skipped);
        }
        let mut meta = self.encode(entry)?;
        meta.at_ms = now_ms;
        meta.seq = match entry.kind {
            Kind::Push | Kind::Reset => entry.seq,
            Kind::Notice | Kind::Gone => self.seq,
        };
        self.live.push(meta, &self.frame);
        match entry.kind {
            Kind::Push => self.seq = entry.seq,
            Kind::Notice => {}
            Kind::Reset => self.begin_epoch(entry.epoch, entry.seq),
            Kind::Gone => self.ended = true,
        }
        self.trim(now_ms);
        Ok(Appended::Added)
    }

    /// Puts older pushes of the current epoch before the oldest one kept; what is here already is skipped,
    /// and so is everything when `epoch` is no longer the current one.
    ///
    /// # Errors
    /// [`LogError::Gap`] when the entries are not consecutive or do not reach the oldest push kept.
    pub fn backfill(
        &mut self,
        epoch: &str,
        entries: &[Entry<'_>],
        now_ms: u64,
    ) -> Result<(), LogError> {
        if epoch != self.epoch {
            return Ok(());
        }
        let room = self
            .limits
            .entries
            .saturating_sub(self.past.entries.len() + self.live.entries.len());
        let older: Vec<_> = entries
            .iter()
            .filter(|e| e.kind == Kind::Push && e.seq <= self.floor)
            .collect();
        let kept = &older[older.len().saturating_sub(room)..];
        let Some(first) = kept.first() else {
            return Ok(());
        };
        for (entry, expected) in kept.iter().zip(first.seq..) {
            check_seq(expected, entry.seq)?;
        }
        check_seq(self.floor, first.seq + kept.len() as u64 - 1)?;
        let (mut metas, mut frames) = (Vec::with_capacity(kept.len()), Vec::new());
        for entry in kept {
            let mut meta = self.encode(entry)?;
            frames.extend_from_slice(&self.frame);
            meta.at_ms = now_ms;
            meta.end = frames.len() as u64;
            metas.push(meta);
        }
        let floor = first.seq - 1;
        self.past.prepend(metas, frames);
        self.floor = floor;
        self.trim(now_ms);
        Ok(())
    }

    /// The cursor of one who has everything up to `seq` of `epoch`; None when the log cannot go on from there.
    #[must_use]
    pub fn after(&self, epoch: &str, seq: u64) -> Option<u64> {
        if epoch != self.epoch || seq < self.floor() || seq > self.seq {
            return None;
        }
        match self.past.entries.front() {
            Some(oldest) if seq + 1 < oldest.seq + self.past.entries.len() as u64 => {
                Some(self.past.first + (seq + 1).saturating_sub(oldest.seq))
            }
            _ => Some(
                self.live
                    .after_seq(self.epoch_start.max(self.live.first), seq),
            ),
        }
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
            // Nothing before it in its segment: the past's end, or else the floor, is what came before.
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
    /// With `deflate` (from payload to deflated payload), frames are deflated where that pays.
    /// One call may stop early, at the edge between past and live or between deflated and plain: go on from
    /// `span.next` until that is `until`.
    ///
    /// # Errors
    /// [`Lost`] when the entries are gone.
    pub fn read(
        &mut self,
        cursor: u64,
        until: u64,
        budget: u64,
        deflate: Option<&mut Deflate<'_>>,
        span: &mut Span,
    ) -> Result<(), Lost> {
        span.clear();
        let (segment, index) = self.resolve(cursor)?;
        if segment.first < LIVE_START {
            segment.read(index, segment.end(), budget, span);
            if span.next == self.past_end {
                span.next = self.epoch_start;
            }
            return Ok(());
        }
        let Some(deflate) = deflate.filter(|_| self.deflated.wanted_by > 0) else {
            self.live.read(index, until.max(index), budget, span);
            return Ok(());
        };
        self.deflate_to(until, deflate);
        if index < self.deflated.from {
            self.live
                .read(index, until.min(self.deflated.from), budget, span);
        } else {
            self.read_deflated(index, until.max(index), budget, span);
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
                self.epoch_start
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
            bytes += self.live.bytes_from(self.epoch_start.max(self.live.first));
        }
        Ok((bytes, Some(segment.meta(index).at_ms)))
    }

    /// Counts one more follower that wants deflated frames.
    pub fn want_deflated(&mut self) {
        self.deflated.wanted_by += 1;
        if self.deflated.wanted_by == 1 {
            self.deflated.from = self.tip();
            self.deflated.to = self.tip();
            self.deflated.start = self.deflated.frames.end();
        }
    }

    /// Counts one less; the last one frees the deflated frames.
    pub fn unwant_deflated(&mut self) {
        self.deflated.wanted_by = self.deflated.wanted_by.saturating_sub(1);
        if self.deflated.wanted_by == 0 {
            self.deflated.frames.release(u64::MAX);
        }
    }

    /// Drops what is over the limits.
    pub fn trim(&mut self, now_ms: u64) {
        while self.is_over(now_ms) {
            let (meta, in_epoch) = if let Some(meta) = self.past.pop() {
                (meta, true)
            } else {
                let in_epoch = self.live.first >= self.epoch_start;
                let Some(meta) = self.live.pop() else { return };
                self.trim_deflated(&meta);
                (meta, in_epoch)
            };
            if in_epoch && meta.kind == Kind::Push {
                self.floor = meta.seq;
            }
        }
    }

    fn is_over(&self, now_ms: u64) -> bool {
        let Some(oldest) = self.past.entries.front().or(self.live.entries.front()) else {
            return false;
        };
        let age_ms = now_ms.saturating_sub(oldest.at_ms);
        if age_ms < GRACE_MS && self.kept_bytes() <= self.limits.bytes.saturating_mul(GRACE_FACTOR)
        {
            return false;
        }
        self.past.entries.len() + self.live.entries.len() > self.limits.entries
            || age_ms > self.limits.age_ms
            || self.kept_bytes() > self.limits.bytes
    }

    /// Bytes of the entries kept; what chunks still hold of dropped ones does not count, or one large chunk
    /// would empty the log.
    fn kept_bytes(&self) -> u64 {
        self.past.bytes_from(self.past.first)
            + self.live.bytes_from(self.live.first)
            + self.deflated_bytes()
    }

    fn deflated_bytes(&self) -> u64 {
        if self.deflated.wanted_by == 0 {
            0
        } else {
            self.deflated.frames.end() - self.deflated.start
        }
    }

    /// Forgets the deflated frame of the live entry that has just been dropped.
    fn trim_deflated(&mut self, dropped: &Meta) {
        let (deflated, next) = (&mut self.deflated, self.live.first);
        if deflated.from >= next {
            return;
        }
        if deflated.to >= next {
            deflated.start = dropped.deflated_end;
            deflated.frames.release(deflated.start);
        }
        deflated.from = next;
        deflated.to = deflated.to.max(next);
    }

    /// True when a push is here already.
    fn is_known(&self, entry: &Entry<'_>) -> Result<bool, LogError> {
        match entry.kind {
            Kind::Push if entry.epoch != self.epoch => Err(LogError::Epoch {
                expected: self.epoch.clone(),
                found: entry.epoch.to_owned(),
            }),
            Kind::Push if entry.seq <= self.seq => Ok(true),
            Kind::Push => check_seq(self.seq + 1, entry.seq).map(|()| false),
            Kind::Reset => Ok(entry.epoch == self.epoch),
            Kind::Notice | Kind::Gone => Ok(false),
        }
    }

    fn encode(&mut self, entry: &Entry<'_>) -> Result<Meta, LogError> {
        if entry.params.first() != Some(&b'{') || entry.params.last() != Some(&b'}') {
            return Err(LogError::Malformed);
        }
        encoding::encode(entry, &mut self.payload, &mut self.frame).ok_or(LogError::Malformed)
    }

    fn begin_epoch(&mut self, epoch: &str, base: u64) {
        epoch.clone_into(&mut self.epoch);
        self.seq = base;
        self.floor = base;
        self.epoch_start = self.live.end();
        self.past_end += PAST_STRIDE;
        self.past = Segment::new(self.past_end, LIVE_START);
    }

    /// Where `cursor` points: the segment that has the entry, and the entry's index. The tip is in live.
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

    /// Deflates the entries up to `until` that are not yet.
    fn deflate_to(&mut self, until: u64, deflate: &mut Deflate<'_>) {
        use crate::protocol::frame::{self, Opcode};
        while self.deflated.to < until {
            let index = self.deflated.to;
            let frame = self.live.frame(index);
            let payload = encoding::payload(self.live.meta(index), frame);
            self.payload.clear();
            if payload.len() >= DEFLATE_FROM_BYTES {
                deflate(payload, &mut self.payload);
            }
            let end = if payload.len() < DEFLATE_FROM_BYTES || self.payload.len() >= payload.len() {
                self.deflated.frames.append(frame)
            } else {
                self.frame.clear();
                frame::encode(Opcode::Text, &self.payload, true, &mut self.frame);
                self.deflated.frames.append(&self.frame)
            };
            let at = usize::try_from(index - self.live.first).unwrap_or(usize::MAX);
            self.live.entries[at].deflated_end = end;
            self.deflated.to += 1;
        }
    }

    fn read_deflated(&self, from: u64, until: u64, budget: u64, span: &mut Span) {
        let start = |index: u64| {
            if index == self.deflated.from {
                self.deflated.start
            } else {
                self.live.meta(index - 1).deflated_end
            }
        };
        let begin = start(from);
        let mut to = until;
        while to > from + 1 && start(to) - begin > budget {
            to = from + (to - from) / 2;
        }
        if to > from {
            self.deflated.frames.read(begin, start(to), span);
        }
        span.frames += to - from;
        span.next = to;
    }
}

fn check_seq(expected: u64, found: u64) -> Result<(), LogError> {
    if expected == found {
        Ok(())
    } else {
        Err(LogError::Gap { expected, found })
    }
}
