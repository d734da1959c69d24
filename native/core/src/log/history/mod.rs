//! The log of one topic.

mod deflated;
mod error;
mod events;
mod limits;
mod reading;
mod withdrawal;

use self::deflated::Deflated;
use self::events::Events;
use super::encoding;
use super::entry::{Entry, Kind, Meta};
use super::framing::Framing;
use super::segment::Segment;
use super::track::Track;

pub use error::LogError;
pub use limits::Limits;

/// Live entries count from here. Those of a past lie below, so that no cursor can refer to two entries.
const LIVE_START: u64 = 1 << 62;
/// The number of indices reserved for each epoch's past.
const PAST_STRIDE: u64 = 1 << 32;

/// The result of adding an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    Added,
    /// The log has it already.
    Skipped,
}

/// The notifications of one topic, oldest first. The module explains how it works.
#[derive(Debug)]
pub struct Log {
    limits: Limits,
    epoch: String,
    /// The seq of the newest push.
    seq: u64,
    /// The seq before the oldest push kept, where recovery may begin.
    floor: u64,
    /// The id of the message at `floor`; empty where it is unknown.
    floor_id: String,
    past: Segment,
    live: Segment,
    /// The live index of the current epoch's first entry.
    epoch_start: u64,
    past_end: u64,
    ended: bool,
    deflated: Deflated,
    events: Events,
    payload: Vec<u8>,
    frame: Vec<u8>,
}

impl Log {
    /// A log whose next push is `seq + 1` of `epoch`.
    #[must_use]
    pub fn new(epoch: &str, seq: u64, limits: Limits) -> Self {
        Self::after_message(epoch, seq, "", limits)
    }

    /// The same, where the message at `seq` has this id; it may be empty.
    #[must_use]
    pub fn after_message(epoch: &str, seq: u64, id: &str, limits: Limits) -> Self {
        Self {
            limits,
            epoch: epoch.to_owned(),
            seq,
            floor: seq,
            floor_id: id.to_owned(),
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
            events: Events::new(),
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

    /// The seq before the oldest push kept, where recovery may begin.
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

    /// The cursor of a reader that has received everything.
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
            + self.events.made.held_bytes()
    }

    /// Counts one more follower that reads with this framing.
    pub fn want(&mut self, framing: Framing) {
        match framing {
            Framing::Plain | Framing::Joined => {}
            Framing::Deflated | Framing::JoinedDeflated => self.want_deflated(),
            Framing::Events => self.want_events(),
        }
    }

    /// Removes one such follower.
    pub fn unwant(&mut self, framing: Framing) {
        match framing {
            Framing::Plain | Framing::Joined => {}
            Framing::Deflated | Framing::JoinedDeflated => self.unwant_deflated(),
            Framing::Events => self.unwant_events(),
        }
    }

    /// Adds one entry at the end.
    ///
    /// # Errors
    /// [`LogError`] when the entry does not follow the newest one; the log is then unchanged.
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
        if entry.is_deletion() {
            self.withdraw(entry);
        }
        self.trim(now_ms);
        Ok(Appended::Added)
    }

    /// Puts older pushes of the current epoch before the oldest one kept. Skips pushes that the log already has, and
    /// everything if `epoch` is no longer the current one. If there is no room for a push, only its id is kept,
    /// provided that it is the next one.
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
        let (left, kept) = older.split_at(older.len().saturating_sub(room));
        let Some(first) = kept.first() else {
            self.note_floor(left.last().copied());
            return Ok(());
        };
        for (entry, expected) in kept.iter().zip(first.seq..) {
            check_seq(expected, entry.seq)?;
        }
        check_seq(self.floor, first.seq + kept.len() as u64 - 1)?;
        let (mut metas, mut frames) = (Vec::with_capacity(kept.len()), Vec::new());
        let deletions = self.deletions(kept);
        for entry in kept {
            let mut meta = self.encode_or_withdraw(entry, &deletions)?;
            frames.extend_from_slice(&self.frame);
            meta.at_ms = now_ms;
            meta.end = frames.len() as u64;
            metas.push(meta);
        }
        let floor = first.seq - 1;
        self.past.prepend(metas, frames);
        self.floor = floor;
        self.floor_id.clear();
        self.note_floor(left.last().copied());
        self.trim(now_ms);
        Ok(())
    }

    /// Keeps the id of a push that is not kept itself, if it precedes the oldest one kept.
    fn note_floor(&mut self, push: Option<&Entry<'_>>) {
        if let Some(push) = push.filter(|push| push.seq == self.floor) {
            encoding::message_id(push.params)
                .unwrap_or_default()
                .clone_into(&mut self.floor_id);
        }
    }

    /// Whether the log already has a push.
    fn is_known(&self, entry: &Entry<'_>) -> Result<bool, LogError> {
        match entry.kind {
            Kind::Push if entry.epoch != self.epoch => Err(LogError::Epoch {
                expected: self.epoch.clone(),
                found: entry.epoch.to_owned(),
            }),
            Kind::Push if entry.seq <= self.seq => {
                let (known, found) = (self.id_at(entry.seq), encoding::message_id(entry.params));
                if known.is_some() && found.is_some() && known != found {
                    return Err(LogError::Other { seq: entry.seq });
                }
                Ok(true)
            }
            Kind::Push => check_seq(self.seq + 1, entry.seq).map(|()| false),
            // A reset within this epoch: the pushes before it are lost.
            Kind::Reset => Ok(entry.epoch == self.epoch && entry.seq <= self.seq),
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
        self.floor_id.clear();
        self.epoch_start = self.live.end();
        self.past_end += PAST_STRIDE;
        self.past = Segment::new(self.past_end, LIVE_START);
    }
}

fn check_seq(expected: u64, found: u64) -> Result<(), LogError> {
    if expected == found {
        Ok(())
    } else {
        Err(LogError::Gap { expected, found })
    }
}
