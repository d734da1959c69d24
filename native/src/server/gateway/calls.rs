//! Calls of one connection that wait for an answer, and batches that wait for their last one.

/// A call that the application has.
#[derive(Debug)]
pub(super) struct Pending {
    pub ticket: u64,
    /// JSON text; None for a notification.
    pub id: Option<Box<str>>,
    pub batch: Option<u64>,
    /// The params of a `subscribe`, for when it is tried again.
    pub subscribe: Option<Box<str>>,
    /// An `unsubscribe` of the same topic came after this `subscribe`.
    pub is_cancelled: bool,
}

#[derive(Debug)]
struct Batch {
    number: u64,
    missing: usize,
    /// The answers so far, comma-separated.
    answers: Vec<u8>,
}

/// The unanswered calls of one connection; it has none of these while it waits for nothing.
#[derive(Debug, Default)]
pub struct Calls {
    pending: Vec<Pending>,
    batches: Vec<Batch>,
}

impl Calls {
    /// Whether no call waits; a batch waits only for calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.batches.is_empty()
    }

    /// Calls without an answer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn add(&mut self, pending: Pending) {
        self.pending.push(pending);
    }

    /// Takes the call with this ticket out.
    pub(super) fn take(&mut self, ticket: u64) -> Option<Pending> {
        let at = self
            .pending
            .iter()
            .position(|pending| pending.ticket == ticket)?;
        Some(self.pending.swap_remove(at))
    }

    /// Notes that the subscriptions for which `matches` holds are not wanted any more.
    pub(super) fn cancel(&mut self, matches: impl Fn(&str) -> bool) {
        for pending in &mut self.pending {
            if pending.subscribe.as_deref().is_some_and(&matches) {
                pending.is_cancelled = true;
            }
        }
    }

    /// Keeps a batch of which `missing` answers (at least one) are still to come.
    pub(super) fn keep_batch(&mut self, number: u64, missing: usize, answers: Vec<u8>) {
        self.batches.push(Batch {
            number,
            missing,
            answers,
        });
    }

    /// Adds an answer to a batch (None for a notification's); returns the whole message once it is complete,
    /// which is empty when nothing is to be answered.
    pub(super) fn answer_batch(&mut self, number: u64, answer: Option<&[u8]>) -> Option<Vec<u8>> {
        let at = self
            .batches
            .iter()
            .position(|batch| batch.number == number)?;
        let batch = &mut self.batches[at];
        if let Some(answer) = answer {
            put_answer(answer, &mut batch.answers);
        }
        batch.missing -= 1;
        (batch.missing == 0).then(|| finish(self.batches.swap_remove(at).answers))
    }
}

/// Adds one answer to the comma-separated `answers`.
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
    fn a_batch_of_notifications_has_no_answer() {
        assert!(finish(Vec::new()).is_empty());
    }
}
