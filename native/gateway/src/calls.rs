//! Calls of one connection that wait for a reply, and batches that wait for their last reply.

use super::votes::Settlement;

/// A call that the application processes, or that waits to be counted.
#[derive(Debug)]
pub(super) struct Pending {
    pub ticket: u64,
    /// JSON text; None for a notification.
    pub id: Option<Box<str>>,
    pub batch: Option<u64>,
    /// The params of a `subscribe`, kept for a second attempt.
    pub subscribe: Option<Box<str>>,
    /// An `unsubscribe` from the same topic arrived after this `subscribe`.
    pub is_cancelled: bool,
    pub vote: Option<Uncounted>,
}

/// A vote, or an impression, that waits for its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uncounted {
    /// Parts that are not settled yet: at first 1 of a vote, 2 of an impression.
    pub missing: u8,
    /// Whether the vote has changed a count, as far as is known.
    pub changed: bool,
}

#[derive(Debug)]
struct Batch {
    number: u64,
    missing: usize,
    /// The replies so far, comma-separated.
    answers: Vec<u8>,
}

/// The replies of one batch that waits for the last one; together at most as long as one reply may be.
pub(super) const MOST_BATCH_BYTES: usize = 16 << 20;

/// The pending calls of one connection; it has no instance while nothing is pending.
#[derive(Debug, Default)]
pub struct Calls {
    pending: Vec<Pending>,
    batches: Vec<Batch>,
    /// The bytes of the pending calls and of the batches.
    bytes: usize,
}

impl Pending {
    fn bytes(&self) -> usize {
        let texts = [&self.id, &self.subscribe].into_iter().flatten();
        size_of::<Self>() + texts.map(|text| text.len()).sum::<usize>()
    }
}

impl Calls {
    /// Whether no call is pending. A batch waits for calls only.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.batches.is_empty()
    }

    /// The number of pending calls.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// The bytes that they occupy.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the application processes a call of this connection.
    pub(super) fn has_asked(&self) -> bool {
        self.pending.iter().any(|pending| pending.vote.is_none())
    }

    /// Notes that a record of a vote is settled. Removes the vote when all its records are, or when it has failed.
    pub(super) fn settle(&mut self, ticket: u64, outcome: &Settlement) -> Option<(Pending, bool)> {
        let at = self
            .pending
            .iter()
            .position(|pending| pending.ticket == ticket)?;
        let uncounted = self.pending[at].vote.as_mut()?;
        if let Settlement::Counted(changed) = outcome {
            uncounted.changed |= changed.unwrap_or(false);
            uncounted.missing -= 1;
            if uncounted.missing > 0 {
                return None;
            }
        }
        let changed = uncounted.changed;
        Some((self.remove(at), changed))
    }

    pub(super) fn add(&mut self, pending: Pending) {
        self.bytes += pending.bytes();
        self.pending.push(pending);
    }

    fn remove(&mut self, at: usize) -> Pending {
        let pending = self.pending.swap_remove(at);
        self.bytes -= pending.bytes();
        pending
    }

    /// Removes the call with this ticket.
    pub(super) fn take(&mut self, ticket: u64) -> Option<Pending> {
        let at = self
            .pending
            .iter()
            .position(|pending| pending.ticket == ticket)?;
        Some(self.remove(at))
    }

    /// Notes that the subscriptions for which `matches` holds are no longer wanted.
    pub(super) fn cancel(&mut self, matches: impl Fn(&str) -> bool) {
        for pending in &mut self.pending {
            if pending.subscribe.as_deref().is_some_and(&matches) {
                pending.is_cancelled = true;
            }
        }
    }

    /// Keeps a batch in which `missing` replies (at least one) are still to come.
    pub(super) fn keep_batch(&mut self, number: u64, missing: usize, answers: Vec<u8>) {
        self.bytes += answers.capacity();
        self.batches.push(Batch {
            number,
            missing,
            answers,
        });
    }

    /// Adds a reply to a batch (None for a notification). Returns the whole message once it is complete; the message is
    /// empty when there is nothing to reply.
    pub(super) fn answer_batch(&mut self, number: u64, answer: Option<&[u8]>) -> Option<Vec<u8>> {
        let at = self
            .batches
            .iter()
            .position(|batch| batch.number == number)?;
        let batch = &mut self.batches[at];
        self.bytes -= batch.answers.capacity();
        if let Some(answer) = answer {
            put_answer(answer, &mut batch.answers);
        }
        batch.missing -= 1;
        if batch.missing > 0 {
            self.bytes += batch.answers.capacity();
            return None;
        }
        Some(finish(self.batches.swap_remove(at).answers))
    }

    /// Whether a batch can hold another reply of this many bytes until its last one has come.
    pub(super) fn has_room(&self, number: u64, bytes: usize) -> bool {
        let mut batches = self.batches.iter();
        batches
            .find(|batch| batch.number == number)
            .is_none_or(|batch| batch.answers.len() + bytes <= MOST_BATCH_BYTES)
    }
}

/// Adds one reply to the comma-separated `answers`.
pub(super) fn put_answer(answer: &[u8], answers: &mut Vec<u8>) {
    answers.push(if answers.is_empty() { b'[' } else { b',' });
    answers.extend_from_slice(answer);
}

/// Closes the array, unless it is empty.
pub(super) fn finish(mut answers: Vec<u8>) -> Vec<u8> {
    if !answers.is_empty() {
        answers.push(b']');
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_complete_with_its_last_answer() {
        let mut calls = Calls::default();
        let mut answers = Vec::new();
        put_answer(b"1", &mut answers);
        calls.keep_batch(7, 2, answers);
        assert_eq!(calls.answer_batch(7, None), None);
        assert_eq!(
            calls.answer_batch(7, Some(b"2")).as_deref(),
            Some(&b"[1,2]"[..])
        );
        assert!(calls.is_empty());
        assert_eq!(calls.answer_batch(7, Some(b"3")), None);
    }

    #[test]
    fn a_vote_is_settled_with_its_last_record_or_its_first_failure() {
        let vote = |ticket| Pending {
            ticket,
            id: None,
            batch: None,
            subscribe: None,
            is_cancelled: false,
            vote: Some(Uncounted {
                missing: 2,
                changed: false,
            }),
        };
        let mut calls = Calls::default();
        calls.add(vote(1));
        calls.add(vote(2));
        assert!(!calls.has_asked());
        assert!(calls.settle(1, &Settlement::Counted(Some(true))).is_none());
        let (_, changed) = calls
            .settle(1, &Settlement::Counted(None))
            .expect("its last record");
        assert!(changed);
        assert!(calls.settle(2, &Settlement::Refused([].into())).is_some());
        assert!(calls.settle(2, &Settlement::Counted(None)).is_none());
        assert!(calls.is_empty());
    }

    #[test]
    fn a_batch_of_notifications_has_no_answer() {
        assert!(finish(Vec::new()).is_empty());
    }
}
