//! Logs as shared by the threads, and as seen by one loop.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use broker_core::log::{Framing, Log};

use super::ids::SlotIndex;
use super::lock::Lock;
use super::mailbox::{Command, Mailbox};

/// Who may follow a log.
#[derive(Debug, Default)]
pub struct Access {
    pub public: bool,
    /// The decisions for classes of readers of a private log.
    pub readers: HashMap<u64, bool>,
    /// When undecided readers lose their subscriptions, in loop milliseconds; None while no decision is pending.
    pub decide_by_ms: Option<u64>,
}

impl Access {
    /// Whether `reader` (None: anonymous) may follow; None while that is undecided.
    #[must_use]
    pub fn allows(&self, reader: Option<u64>) -> Option<bool> {
        match (self.public, reader) {
            (true, _) => Some(true),
            (false, None) => Some(false),
            (false, Some(reader)) => self.readers.get(&reader).copied(),
        }
    }

    /// Whether the time to decide is over. True only once; the caller that gets it notifies all loops.
    pub fn is_overdue(&mut self, now_ms: u64) -> bool {
        self.decide_by_ms.take_if(|by| now_ms >= *by).is_some()
    }
}

/// A log with the data that the loops need about it.
#[derive(Debug)]
pub struct SharedLog {
    /// Unique for the life of the server: a topic that is opened again gets another number.
    pub number: u64,
    pub topic: String,
    pub log: Lock<Log>,
    /// Held by the loop that deflates; other loops find the work done.
    deflating: Lock<()>,
    pub access: Lock<Access>,
    /// Subscriptions on all loops.
    pub subscribers: AtomicUsize,
    /// Notifications delivered to connections since the log was opened.
    pub deliveries: AtomicU64,
    /// No new followers are allowed; changed and read under the lock of `log`.
    pub is_closed: AtomicBool,
    /// Since when the log has had no follower, in loop milliseconds.
    pub idle_since_ms: AtomicU64,
    /// A bit for each loop that has subscribers.
    followers: AtomicU64,
    /// A bit for each loop that was notified and has not processed that yet.
    told: AtomicU64,
    /// When the log last grew, in microseconds of the server's clock.
    grown_us: AtomicU64,
}

impl SharedLog {
    #[must_use]
    pub fn new(number: u64, topic: &str, log: Log, public: bool, now_ms: u64) -> Self {
        Self {
            number,
            topic: topic.to_owned(),
            log: Lock::new(log),
            deflating: Lock::default(),
            access: Lock::new(Access {
                public,
                ..Access::default()
            }),
            subscribers: AtomicUsize::new(0),
            deliveries: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            idle_since_ms: AtomicU64::new(now_ms),
            followers: AtomicU64::new(0),
            told: AtomicU64::new(0),
            grown_us: AtomicU64::new(0),
        }
    }

    /// Deflates entries before `until` that are not deflated yet, about `budget` bytes of payloads and at least one
    /// entry. The log is locked only to fetch a payload and to store the result.
    pub(super) fn deflate(
        &self,
        until: u64,
        budget: u64,
        mut deflate: impl FnMut(&[u8], &mut Vec<u8>),
    ) {
        let _turn = self.deflating.lock();
        let (mut payload, mut deflated, mut spent) = (Vec::new(), Vec::new(), 0);
        while spent < budget {
            let next = self.log.lock().next_to_deflate(until, &mut payload);
            let Some(index) = next else { return };
            deflated.clear();
            deflate(&payload, &mut deflated);
            self.log.lock().put_deflated(index, &deflated);
            spent += payload.len() as u64;
        }
    }

    /// Notifies the loops that follow and do not know yet that the log has grown, at `now_us` of the server's clock.
    pub fn announce<C>(&self, mailboxes: &[Mailbox<C>], now_us: u64) {
        self.grown_us.store(now_us, Ordering::Relaxed);
        let followers = self.followers.load(Ordering::SeqCst);
        let news = followers & !self.told.fetch_or(followers, Ordering::SeqCst);
        for (index, mailbox) in mailboxes.iter().enumerate() {
            if news & (1 << index) != 0 {
                mailbox.send(Command::Log(self.number));
            }
        }
    }

    /// Whether a loop has subscribers of the log.
    #[must_use]
    pub fn is_followed_by(&self, loop_index: usize) -> bool {
        self.followers.load(Ordering::SeqCst) & (1 << loop_index) != 0
    }

    /// Registers a loop as a follower: it is notified of entries appended from now on.
    pub(super) fn follow(&self, loop_index: usize) {
        self.told.fetch_and(!(1 << loop_index), Ordering::SeqCst);
        self.followers.fetch_or(1 << loop_index, Ordering::SeqCst);
    }

    pub(super) fn unfollow(&self, loop_index: usize) {
        self.followers
            .fetch_and(!(1 << loop_index), Ordering::SeqCst);
    }

    /// The loop is about to read: later entries must be announced again. Returns when the log last grew.
    pub(super) fn hear(&self, loop_index: usize) -> u64 {
        self.told.fetch_and(!(1 << loop_index), Ordering::SeqCst);
        self.grown_us.load(Ordering::Relaxed)
    }
}

/// A subscriber that is served together with the others of its log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    pub slot: SlotIndex,
    /// Its socket, so that a broadcast does not have to look up the connection.
    pub fd: i32,
    /// The next entry to send.
    pub cursor: u64,
}

/// The live subscribers of a log that get the same frames, and the progress of the pass over them.
///
/// A pass goes from the last subscriber to the first, in slices, with other work between. A subscriber that joins, or
/// that moves into a freed place, is either behind the pass with a cursor that the pass has reached already, or ahead
/// of it and is met again: nobody is missed. Nobody gets an entry twice, because each subscriber has its own cursor.
#[derive(Debug, Default)]
pub(super) struct Audience {
    pub live: Vec<Live>,
    /// Subscribers before this index have not been reached by the pass.
    pub unmet: usize,
    /// The topic's head when the pass began: every subscriber already reached has everything before it.
    pub pass_head: u64,
    /// Of those who want joined frames: when the next pass may begin, in loop milliseconds.
    pub next_ms: u64,
}

impl Audience {
    /// Whether all subscribers have everything before `head`; if not, the pass continues, or the next one begins.
    pub fn is_served(&mut self, head: u64) -> bool {
        if self.unmet > 0 {
            return false;
        }
        if self.live.is_empty() || self.pass_head == head {
            self.pass_head = head;
            return true;
        }
        self.pass_head = head;
        self.unmet = self.live.len();
        false
    }

    /// Skips subscribers that have everything before `head`, and returns the cursor of the first one that has not.
    pub fn next_cursor(&mut self, head: u64) -> Option<u64> {
        let met = self.live[..self.unmet].iter().rev();
        let served = met.take_while(|target| target.cursor >= head).count();
        self.unmet -= served;
        let next = self.live[..self.unmet].last()?;
        Some(next.cursor)
    }

    /// How many of the last pending subscribers are at `cursor`, at most `most`.
    pub fn count_at(&self, cursor: u64, most: usize) -> usize {
        let unmet = self.live[..self.unmet].iter().rev().take(most);
        unmet.take_while(|target| target.cursor == cursor).count()
    }
}

/// The audiences of a log, one for each framing.
#[derive(Debug, Default)]
pub(super) struct Audiences([Audience; Framing::ALL.len()]);

impl Index<Framing> for Audiences {
    type Output = Audience;

    fn index(&self, framing: Framing) -> &Audience {
        &self.0[framing as usize]
    }
}

impl IndexMut<Framing> for Audiences {
    fn index_mut(&mut self, framing: Framing) -> &mut Audience {
        &mut self.0[framing as usize]
    }
}

/// One log as followed by one loop.
#[derive(Debug)]
pub(super) struct Topic {
    pub shared: Arc<SharedLog>,
    /// The newest tip of the log that the loop has seen.
    pub head: u64,
    /// When the log reached that tip, in microseconds of the server's clock.
    pub grown_us: u64,
    /// The subscribers that are served together.
    pub audiences: Audiences,
    /// Subscriptions of this loop, live or not, plus one while `is_growing` and one while `is_held`.
    pub subscribers: usize,
    /// Whether the topic is in the queue of topics to broadcast.
    pub is_growing: bool,
    /// Whether an audience waits for more to come.
    pub is_held: bool,
}

/// A loop's logs, by index and by number.
#[derive(Debug, Default)]
pub(super) struct Topics {
    places: Vec<Option<Topic>>,
    free: Vec<u32>,
    by_number: HashMap<u64, u32>,
}

impl Topics {
    pub fn find(&self, number: u64) -> Option<u32> {
        self.by_number.get(&number).copied()
    }

    pub fn add(&mut self, topic: Topic) -> u32 {
        let number = topic.shared.number;
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        self.places[place as usize] = Some(topic);
        self.by_number.insert(number, place);
        place
    }

    pub fn remove(&mut self, place: u32) -> Option<Topic> {
        let topic = self.places[place as usize].take()?;
        self.by_number.remove(&topic.shared.number);
        self.free.push(place);
        Some(topic)
    }

    /// The topic at index `place`, which a subscription keeps alive.
    pub fn at(&mut self, place: u32) -> &mut Topic {
        match &mut self.places[place as usize] {
            Some(topic) => topic,
            None => unreachable!("a topic stays while a subscription names its place"),
        }
    }

    pub fn get(&self, place: u32) -> Option<&Topic> {
        self.places.get(place as usize)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use broker_core::log::{Entry, Kind, Limits, Span};

    use super::*;

    const BURST: u64 = 100;
    const BYTES: usize = 10_000;

    fn burst() -> SharedLog {
        let limits = Limits {
            entries: 1_000,
            age_ms: u64::MAX,
            bytes: u64::MAX,
        };
        let mut log = Log::new("e", 0, limits);
        log.want(Framing::Deflated);
        let params = format!(r#"{{"pad":"{}"}}"#, "x".repeat(BYTES)).into_bytes();
        for seq in 1..=BURST {
            let entry = Entry {
                kind: Kind::Push,
                epoch: "e",
                seq,
                method: "event",
                params: &params,
            };
            log.append(&entry, 0).expect("consecutive");
        }
        SharedLog::new(1, "a/program/p", log, true, 0)
    }

    #[test]
    fn a_burst_is_deflated_in_parts_and_others_have_the_log_meanwhile() {
        let shared = burst();
        let (tip, first) = {
            let log = shared.log.lock();
            (log.tip(), log.last(BURST).0)
        };
        let mut rounds = 0;
        let mut deflated_bytes = 0;
        let (mut cursor, mut span) = (first, Span::default());
        while cursor < tip {
            let mut spent = 0;
            shared.deflate(tip, 50_000, |payload, out| {
                assert!(shared.log.is_free(), "a publisher does not wait for this");
                spent += payload.len();
                out.push(0);
            });
            assert!(spent < 50_000 + 2 * BYTES, "{spent}");
            let read = shared
                .log
                .lock()
                .read(cursor, tip, 1 << 20, Framing::Deflated, &mut span);
            assert!(read.is_ok());
            deflated_bytes += span.bytes();
            cursor = span.next;
            rounds += 1;
        }
        assert_eq!(rounds, 20);
        assert!(
            deflated_bytes < BYTES,
            "all of them are deflated: {deflated_bytes}"
        );
    }
}
