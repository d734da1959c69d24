//! The polls that the application has opened to this gateway, and the queues to the counters.
//!
//! Theory of operation. The application checks a vote in full: the program, its access, the event and the time. The
//! result stays valid for some moments, so the application *opens* the poll here for that long. Votes for an open poll
//! that are clearly valid ([`super::params`]) become records at once, on their connection's loop, and wait in the queue
//! of their counter until the application sends them. A poll that is not opened again lapses: when the application
//! hangs, votes are passed to it again and get its errors.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use broker_core::answers::{self, Hasher};
use broker_server::Lock;

use super::queue::{GroupKey, GroupReply, Mismatch, Records, Settled, VoteQueue, Waiting};
use super::rates::Rates;

/// A poll as passed by the application.
#[derive(Debug)]
pub struct OpenPoll {
    pub uid: u64,
    pub shards: u64,
    pub key: [u8; 16],
    /// The number of options, 1 to 1,000.
    pub options: u16,
    pub allow_change: bool,
    /// The names by which a request may refer to the program's project.
    pub projects: Vec<String>,
    /// On the server's clock; from then on the poll is no longer open.
    pub until_ms: u64,
}

/// The parts by which a request names a poll.
#[derive(Clone, Copy, Debug)]
pub struct PollName<'a> {
    pub account: &'a str,
    pub program: &'a str,
    pub context: &'a str,
    pub measure: &'a str,
}

impl PollName<'_> {
    /// Writes the name as one text. No part has a line break, because all are printable.
    fn put(&self, out: &mut String) {
        out.clear();
        for part in [self.account, self.program, self.context, self.measure] {
            out.push_str(part);
            out.push('\n');
        }
    }
}

/// Open polls, limits, and a queue to each counter. Every method is short and may be called from any thread.
#[derive(Debug)]
pub struct Votes {
    /// A prefix that makes the number of a connection unique among all gateways.
    pub(super) door: String,
    /// Votes that were counted without the application since the start.
    pub taken: AtomicU64,
    per_connection: Arc<Rates>,
    per_address: Arc<Rates>,
    polls: Lock<HashMap<String, Arc<OpenPoll>>>,
    queues: Vec<VoteQueue>,
}

impl Votes {
    /// A record of shard `n` goes to counter `n` modulo `counters`, of which there is at least one.
    #[must_use]
    pub fn new(
        door: String,
        per_connection: Arc<Rates>,
        per_address: Arc<Rates>,
        counters: usize,
    ) -> Self {
        Self {
            door,
            taken: AtomicU64::new(0),
            per_connection,
            per_address,
            polls: Lock::default(),
            queues: (0..counters.max(1)).map(|_| VoteQueue::default()).collect(),
        }
    }

    /// Opens a poll, or opens it again.
    pub fn open(&self, name: &PollName<'_>, poll: OpenPoll) {
        let mut text = String::new();
        name.put(&mut text);
        self.polls.lock().insert(text, Arc::new(poll));
    }

    /// Leaves later votes of a poll to the application; queued votes are still counted.
    pub fn close(&self, name: &PollName<'_>) {
        let mut text = String::new();
        name.put(&mut text);
        self.polls.lock().remove(&text);
    }

    /// The poll, if it is open. `scratch` is used to build its name.
    pub(super) fn find(
        &self,
        name: &PollName<'_>,
        now_ms: u64,
        scratch: &mut String,
    ) -> Option<Arc<OpenPoll>> {
        name.put(scratch);
        let poll = self.polls.lock().get(scratch).cloned()?;
        (now_ms < poll.until_ms).then_some(poll)
    }

    /// Removes polls that have lapsed.
    pub(crate) fn sweep(&self, now_ms: u64) {
        self.polls.lock().retain(|_, poll| now_ms < poll.until_ms);
    }

    /// Takes a token from each limit; false when one of them has none.
    pub(super) fn take_tokens(&self, connection: &str, address: &str) -> bool {
        let now_s = monotonic_s();
        self.per_connection.take(connection, 1.0, now_s) == 0.0
            && self.per_address.take(address, 1.0, now_s) == 0.0
    }

    /// Whether the queue of one of these parts is full.
    pub(super) fn is_full(&self, poll: &OpenPoll, parts: &[PackedVote]) -> bool {
        parts
            .iter()
            .any(|part| self.queue(part.shard(poll)).is_full())
    }

    /// Queues a part for its counter, which is returned if the application must be notified that records wait for it.
    pub(super) fn push(
        &self,
        poll: &OpenPoll,
        part: &PackedVote,
        waiting: Waiting,
    ) -> Option<usize> {
        let shard = part.shard(poll);
        let key = GroupKey {
            poll: poll.uid,
            shard,
            allow_change: poll.allow_change,
            is_answer: part.is_answer,
        };
        self.queue(shard)
            .push(key, &part.record, waiting)
            .then(|| self.counter_of(shard))
    }

    /// Takes the records that wait for a counter, as one batch; nothing for one that does not exist.
    #[must_use]
    pub fn take(&self, counter: usize) -> Vec<Records> {
        self.queues
            .get(counter)
            .map(VoteQueue::take)
            .unwrap_or_default()
    }

    /// How many batches of a counter are not settled; 0 for one that does not exist.
    #[must_use]
    pub fn unsettled(&self, counter: usize) -> usize {
        self.queues.get(counter).map_or(0, VoteQueue::unsettled)
    }

    pub(crate) fn settle(
        &self,
        counter: usize,
        replies: Vec<GroupReply>,
    ) -> Result<Vec<Settled>, Mismatch> {
        self.queues.get(counter).ok_or(Mismatch)?.settle(replies)
    }

    fn counter_of(&self, shard: u64) -> usize {
        usize::try_from(shard).unwrap_or_default() % self.queues.len()
    }

    fn queue(&self, shard: u64) -> &VoteQueue {
        &self.queues[self.counter_of(shard)]
    }
}

/// A vote, or one of the two parts of an impression, packed for its counter.
#[derive(Debug)]
pub(super) struct PackedVote {
    record: Vec<u8>,
    hash: u64,
    is_answer: bool,
}

impl PackedVote {
    fn shard(&self, poll: &OpenPoll) -> u64 {
        self.hash % poll.shards.max(1)
    }
}

impl OpenPoll {
    /// Packs a vote. None if the poll lacks such an option; the application then refuses the vote.
    pub(super) fn answer(&self, visitor: &str, choice: &[u16]) -> Option<PackedVote> {
        if choice.iter().any(|index| *index >= self.options) {
            return None;
        }
        let hash = Hasher::new(&self.key, self.uid).answer(visitor);
        let mut record = Vec::with_capacity(10);
        answers::encode_answer(choice, hash, &mut record).ok()?;
        Some(PackedVote {
            record,
            hash,
            is_answer: true,
        })
    }

    /// Packs an impression. The outcome of the first part says whether it has changed a count.
    pub(super) fn impression(&self, visitor: &str, session: &str) -> [PackedVote; 2] {
        let hasher = Hasher::new(&self.key, self.uid);
        let (visitor, session) = (hasher.impression(visitor), hasher.session(session));
        let (mut shown, mut seen) = (Vec::with_capacity(9), Vec::with_capacity(9));
        answers::encode_impression(visitor, &mut shown);
        answers::encode_session(session, &mut seen);
        [(shown, visitor), (seen, session)].map(|(record, hash)| PackedVote {
            record,
            hash,
            is_answer: false,
        })
    }
}

/// Seconds of the clock of the application's limits, `CLOCK_MONOTONIC`.
#[expect(
    clippy::cast_precision_loss,
    reason = "seconds since the machine started"
)]
fn monotonic_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: PollName<'_> = PollName {
        account: "demo",
        program: "p",
        context: "c",
        measure: "m",
    };

    fn poll() -> OpenPoll {
        OpenPoll {
            uid: 7,
            shards: 4,
            key: [1; 16],
            options: 2,
            allow_change: false,
            projects: Vec::new(),
            until_ms: 100,
        }
    }

    fn votes() -> Votes {
        let rates = |burst| Arc::new(Rates::new(1e-3, burst, 10));
        Votes::new("d".to_owned(), rates(1.0), rates(2.0), 2)
    }

    #[test]
    fn a_poll_is_open_until_it_lapses_or_is_closed() {
        let (votes, mut scratch) = (votes(), String::new());
        let mut find = |name: &PollName<'_>, now_ms| votes.find(name, now_ms, &mut scratch);
        assert!(find(&NAME, 0).is_none());
        votes.open(&NAME, poll());
        assert!(find(&NAME, 99).is_some() && find(&NAME, 100).is_none());
        for other in [
            PollName {
                account: "o",
                ..NAME
            },
            PollName {
                program: "o",
                ..NAME
            },
            PollName {
                context: "o",
                ..NAME
            },
            PollName {
                measure: "o",
                ..NAME
            },
        ] {
            assert!(find(&other, 0).is_none());
        }
        votes.sweep(99);
        assert!(find(&NAME, 0).is_some());
        votes.close(&NAME);
        assert!(find(&NAME, 0).is_none());
        votes.open(&NAME, poll());
        votes.sweep(100);
        assert!(find(&NAME, 0).is_none());
    }

    #[test]
    fn only_what_the_poll_has_is_an_answer() {
        let poll = poll();
        assert!(poll.answer("v", &[0, 1]).is_some());
        assert!(poll.answer("v", &[2]).is_none());
        assert!(poll.answer("v", &[1, 1]).is_none());
    }

    #[test]
    fn each_limit_refuses() {
        let votes = votes();
        assert!(votes.take_tokens("a", "x"));
        assert!(!votes.take_tokens("a", "x"), "the connection's");
        assert!(votes.take_tokens("b", "x"));
        assert!(!votes.take_tokens("c", "x"), "the address's");
    }

    #[test]
    fn records_go_to_the_counter_of_their_shard() {
        let (votes, poll) = (votes(), poll());
        for number in 0..100 {
            let part = poll.answer(&number.to_string(), &[0]).expect("an answer");
            let waiting = Waiting {
                conn: broker_server::ConnId(0),
                ticket: number,
                tells: true,
            };
            votes.push(&poll, &part, waiting);
        }
        for counter in 0..2 {
            for (key, records) in votes.take(counter) {
                assert_eq!(key.shard % 2, counter as u64);
                for record in records.chunks(9) {
                    let hash = u64::from_le_bytes(record[1..].try_into().expect("8 bytes"));
                    assert_eq!(hash % 4, key.shard);
                }
            }
        }
        assert!(votes.take(2).is_empty());
    }
}
