//! Packed votes on their way to one counter: they accumulate while a batch is in flight, and form the next batch.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use broker_server::{ConnId, Lock};

/// Entries of one batch. All its replies are written in one turn of a loop, in some 2 ms.
const BATCH_ENTRIES: usize = 4_000;
/// Bytes of one batch. Ordinary records take ten bytes; one with all of a thousand options takes two thousand.
const BATCH_BYTES: usize = 1 << 20;
/// Entries that wait for one counter, about 7 MB; more are refused as overload.
const MOST_WAITING: usize = 200_000;
/// Bytes that wait for one counter: records and their bookkeeping.
const MOST_WAITING_BYTES: usize = 16 << 20;
/// The bookkeeping bytes of a record, and of a group.
const RECORD_BYTES: usize = size_of::<Waiting>();
const GROUP_BYTES: usize = size_of::<Group>() + 2 * size_of::<(GroupKey, usize)>() + 64;

/// Which records are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupKey {
    pub poll: u64,
    pub shard: u64,
    pub allow_change: bool,
    /// Otherwise the records are impressions and their sessions.
    pub is_answer: bool,
}

/// Records in the order of their arrival.
pub type Records = (GroupKey, Vec<u8>);

#[derive(Debug)]
struct Group {
    key: GroupKey,
    records: Vec<u8>,
    /// One element per record.
    waiting: Vec<Waiting>,
}

/// The call that a record belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub conn: ConnId,
    pub ticket: u64,
    /// Whether this record's outcome is the reply to the call.
    pub tells: bool,
}

/// What the counter has replied about a group.
#[derive(Clone, Debug)]
pub enum GroupReply {
    /// One byte per record: 1 if it has changed a count, else 0.
    Counted(Vec<u8>),
    /// A JSON-RPC error object for all records.
    Refused(Vec<u8>),
}

/// The outcome of one record.
#[derive(Clone, Debug)]
pub struct Settled {
    pub conn: ConnId,
    pub ticket: u64,
    pub outcome: Settlement,
}

#[derive(Clone, Debug)]
pub enum Settlement {
    /// Whether it has changed a count; None for a record whose outcome is not part of the reply.
    Counted(Option<bool>),
    /// The JSON-RPC error object.
    Refused(Arc<[u8]>),
}

/// The outcomes passed do not match the groups taken.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch;

/// The records that wait for one counter.
#[derive(Debug, Default)]
pub(super) struct VoteQueue(Lock<Queue>);

#[derive(Debug, Default)]
struct Queue {
    batches: VecDeque<Batch>,
    waiting: usize,
    waiting_bytes: usize,
    /// The groups that the application has taken, without their records.
    in_flight: Option<Vec<Group>>,
    /// The application was notified that records wait.
    is_announced: bool,
}

#[derive(Debug, Default)]
struct Batch {
    groups: Vec<Group>,
    places: HashMap<GroupKey, usize>,
    entries: usize,
    bytes: usize,
}

impl VoteQueue {
    pub fn is_full(&self) -> bool {
        let queue = self.0.lock();
        queue.waiting >= MOST_WAITING || queue.waiting_bytes >= MOST_WAITING_BYTES
    }

    /// Adds a record; returns whether the application must be notified that records wait.
    pub fn push(&self, key: GroupKey, record: &[u8], waiting: Waiting) -> bool {
        let mut queue = self.0.lock();
        queue.waiting += 1;
        if queue
            .batches
            .back()
            .is_none_or(|batch| batch.entries >= BATCH_ENTRIES || batch.bytes >= BATCH_BYTES)
        {
            queue.batches.push_back(Batch::default());
        }
        if let Some(batch) = queue.batches.back_mut() {
            queue.waiting_bytes += batch.push(key, record, waiting);
        }
        !std::mem::replace(&mut queue.is_announced, true)
    }

    /// Hands the oldest batch to the application. Returns nothing while the application has one, or if none waits; in
    /// the latter case the next record notifies the application.
    pub fn take(&self) -> Vec<Records> {
        let mut queue = self.0.lock();
        if queue.in_flight.is_some() {
            return Vec::new();
        }
        let Some(mut batch) = queue.batches.pop_front() else {
            queue.is_announced = false;
            return Vec::new();
        };
        queue.waiting -= batch.entries;
        queue.waiting_bytes -= batch.bytes;
        let taken = batch
            .groups
            .iter_mut()
            .map(|group| (group.key, std::mem::take(&mut group.records)))
            .collect();
        queue.in_flight = Some(batch.groups);
        taken
    }

    /// The number of batches that are not settled: a record pushed before this call is settled with the last of them.
    pub fn unsettled(&self) -> usize {
        let queue = self.0.lock();
        queue.batches.len() + usize::from(queue.in_flight.is_some())
    }

    /// Settles the batch that the application has.
    ///
    /// # Errors
    /// [`Mismatch`], and the application still has it.
    pub fn settle(&self, replies: Vec<GroupReply>) -> Result<Vec<Settled>, Mismatch> {
        let mut queue = self.0.lock();
        let groups = queue.in_flight.take().unwrap_or_default();
        let do_match = groups.len() == replies.len()
            && groups
                .iter()
                .zip(&replies)
                .all(|(group, reply)| match reply {
                    GroupReply::Counted(outcomes) => outcomes.len() == group.waiting.len(),
                    GroupReply::Refused(_) => true,
                });
        if !do_match {
            queue.in_flight = Some(groups);
            return Err(Mismatch);
        }
        drop(queue);
        let mut settled = Vec::new();
        for (group, reply) in groups.into_iter().zip(replies) {
            group.settle(reply, &mut settled);
        }
        Ok(settled)
    }
}

impl Batch {
    /// Returns the bytes that it occupies.
    fn push(&mut self, key: GroupKey, record: &[u8], waiting: Waiting) -> usize {
        self.entries += 1;
        let mut bytes = record.len() + RECORD_BYTES;
        let place = *self.places.entry(key).or_insert(self.groups.len());
        if place == self.groups.len() {
            bytes += GROUP_BYTES;
            self.groups.push(Group {
                key,
                records: Vec::new(),
                waiting: Vec::new(),
            });
        }
        let group = &mut self.groups[place];
        group.records.extend_from_slice(record);
        group.waiting.push(waiting);
        self.bytes += bytes;
        bytes
    }
}

impl Group {
    fn settle(self, reply: GroupReply, settled: &mut Vec<Settled>) {
        let each = |waiting: Waiting, outcome| Settled {
            conn: waiting.conn,
            ticket: waiting.ticket,
            outcome,
        };
        match reply {
            GroupReply::Counted(outcomes) => {
                settled.extend(
                    self.waiting
                        .into_iter()
                        .zip(outcomes)
                        .map(|(one, changed)| {
                            each(one, Settlement::Counted(one.tells.then_some(changed == 1)))
                        }),
                );
            }
            GroupReply::Refused(error) => {
                let error: Arc<[u8]> = error.into();
                settled.extend(
                    self.waiting
                        .into_iter()
                        .map(|one| each(one, Settlement::Refused(Arc::clone(&error)))),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: GroupKey = GroupKey {
        poll: 1,
        shard: 0,
        allow_change: false,
        is_answer: true,
    };

    fn waiting(ticket: u64) -> Waiting {
        Waiting {
            conn: ConnId(7),
            ticket,
            tells: true,
        }
    }

    #[test]
    fn what_comes_while_a_batch_is_away_goes_with_the_next() {
        let queue = VoteQueue::default();
        assert!(queue.push(KEY, b"a", waiting(1)));
        assert_eq!(queue.unsettled(), 1);
        let first = queue.take();
        assert_eq!(first[0].1, b"a");
        assert_eq!(queue.unsettled(), 1);
        assert!(!queue.push(KEY, b"b", waiting(2)));
        assert!(!queue.push(GroupKey { shard: 1, ..KEY }, b"c", waiting(3)));
        assert!(queue.take().is_empty(), "one at a time");
        assert_eq!(queue.unsettled(), 2);
        let settled = queue
            .settle(vec![GroupReply::Counted(vec![1])])
            .expect("one group");
        assert!(matches!(
            settled[..],
            [Settled {
                ticket: 1,
                outcome: Settlement::Counted(Some(true)),
                ..
            }]
        ));
        assert_eq!(queue.take().len(), 2);
        let replies = vec![
            GroupReply::Counted(vec![0]),
            GroupReply::Refused(b"e".to_vec()),
        ];
        assert_eq!(queue.settle(replies).expect("two groups").len(), 2);
        assert_eq!(queue.unsettled(), 0);
        assert!(queue.take().is_empty());
        assert!(
            queue.push(KEY, b"d", waiting(4)),
            "told again after it was empty"
        );
    }

    #[test]
    fn fates_of_other_groups_are_refused() {
        let queue = VoteQueue::default();
        queue.push(KEY, b"a", waiting(1));
        queue.take();
        for replies in [
            vec![],
            vec![GroupReply::Counted(vec![])],
            vec![GroupReply::Counted(vec![1, 1])],
        ] {
            assert_eq!(queue.settle(replies).err(), Some(Mismatch));
        }
        assert_eq!(
            queue
                .settle(vec![GroupReply::Counted(vec![0])])
                .expect("still there")
                .len(),
            1
        );
    }

    #[test]
    fn batches_and_the_queue_are_bounded() {
        let queue = VoteQueue::default();
        for number in 0..MOST_WAITING {
            assert!(!queue.is_full());
            queue.push(KEY, b"a", waiting(number as u64));
        }
        assert!(queue.is_full());
        assert_eq!(queue.take()[0].1.len(), BATCH_ENTRIES);
        assert!(!queue.is_full());
    }

    #[test]
    fn long_records_and_many_groups_are_bounded_by_their_bytes() {
        let keys: [fn(u64) -> GroupKey; 2] = [|_| KEY, |poll| GroupKey { poll, ..KEY }];
        for (key, bytes) in keys.into_iter().zip([2_000, 9]) {
            let (queue, record, mut count) = (VoteQueue::default(), vec![7; bytes], 0);
            while !queue.is_full() {
                queue.push(key(count), &record, waiting(count));
                count += 1;
            }
            let most = u64::try_from(MOST_WAITING_BYTES / bytes).expect("small");
            assert!(count <= most && count < MOST_WAITING as u64, "{count}");
            let taken = queue.take();
            let held = |(_, records): &Records| records.len() + RECORD_BYTES;
            assert!(taken.iter().map(held).sum::<usize>() <= BATCH_BYTES + 4_000);
            assert!(!queue.is_full());
        }
    }
}
