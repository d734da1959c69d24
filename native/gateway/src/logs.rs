//! The hub's side of the logs: open, append, derive, close.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker_core::log::{Appended, Entry, Kind, Log, LogError, channel_params};
use broker_server::SharedLog;

use super::commands::{Command, Undecided};
use super::hub::Hub;

/// An entry that owns its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedEntry {
    pub kind: Kind,
    pub epoch: String,
    pub seq: u64,
    pub method: String,
    pub params: Vec<u8>,
}

impl OwnedEntry {
    fn borrow(&self) -> Entry<'_> {
        Entry {
            kind: self.kind,
            epoch: &self.epoch,
            seq: self.seq,
            method: &self.method,
            params: &self.params,
        }
    }
}

impl Hub {
    /// Opens a log whose next push is `seq + 1` of `epoch`; a log that is open already stays as it is.
    pub fn open_log(&self, topic: &str, epoch: &str, seq: u64, public: bool) {
        self.open_log_after(topic, epoch, seq, "", public);
    }

    /// The same, where the message at `seq` has this id; empty where it is unknown.
    pub fn open_log_after(&self, topic: &str, epoch: &str, seq: u64, id: &str, public: bool) {
        let shared = self.shared();
        let mut logs = self.logs.lock();
        if logs.contains_key(topic) {
            return;
        }
        let log = Log::after_message(epoch, seq, id, shared.config.history);
        let number = self.next_number();
        logs.insert(
            topic.to_owned(),
            Arc::new(SharedLog::new(number, topic, log, public, shared.now_ms())),
        );
    }

    /// Adds entries and wakes the loops. A topic without an open log is ignored: it has no followers.
    ///
    /// # Errors
    /// The first entry that does not follow its predecessor; those before it have been added. Or the first channel of
    /// the topic that has not taken all entries.
    pub fn append(&self, topic: &str, entries: &[OwnedEntry]) -> Result<(), LogError> {
        let Some(shared_log) = self.find_log(topic) else {
            return Ok(());
        };
        let channels = self.linked(topic);
        let grown_us = self.shared().now_us();
        let now_ms = grown_us / 1_000;
        let (mut added, mut outcome) = (Vec::new(), Ok(()));
        let is_ended = {
            let mut log = shared_log.log.lock();
            for entry in entries {
                match log.append(&entry.borrow(), now_ms) {
                    Ok(Appended::Added) => added.push(entry),
                    Ok(Appended::Skipped) => {}
                    Err(error) => {
                        outcome = Err(error);
                        break;
                    }
                }
            }
            log.is_ended()
        };
        // After the log's lock is released: a thread that holds both takes the lock of all logs first.
        if is_ended {
            self.forget(&shared_log);
        }
        if !added.is_empty() {
            shared_log.announce(&self.shared().mailboxes, grown_us);
            for channel in channels {
                // A channel that cannot take the entries does not keep the others from it.
                outcome = outcome.and(self.derive(&channel, &added));
            }
        }
        outcome
    }

    /// Also appends the notifications of a program to the channels that carry them.
    fn derive(&self, channel_topic: &str, entries: &[&OwnedEntry]) -> Result<(), LogError> {
        let Some(shared_log) = self.find_log(channel_topic) else {
            return Ok(());
        };
        let grown_us = self.shared().now_us();
        let now_ms = grown_us / 1_000;
        {
            let mut log = shared_log.log.lock();
            let (channel, _) = label(&shared_log.topic);
            for entry in entries {
                let params = channel_params(channel, &entry.params);
                let derived = Entry {
                    kind: Kind::Notice,
                    epoch: "",
                    seq: 0,
                    method: &entry.method,
                    params: &params,
                };
                log.append(&derived, now_ms)?;
            }
        }
        shared_log.announce(&self.shared().mailboxes, grown_us);
        Ok(())
    }

    /// Puts older pushes before the log's first one.
    ///
    /// # Errors
    /// When the pushes are not consecutive or do not reach the log's first one.
    pub fn backfill(
        &self,
        topic: &str,
        epoch: &str,
        entries: &[OwnedEntry],
    ) -> Result<(), LogError> {
        let Some(shared_log) = self.find_log(topic) else {
            return Ok(());
        };
        let entries: Vec<Entry<'_>> = entries.iter().map(OwnedEntry::borrow).collect();
        let now_ms = self.shared().now_ms();
        let mut log = shared_log.log.lock();
        log.backfill(epoch, &entries, now_ms)
    }

    /// The epoch, the newest push's seq, and the seq before the oldest push kept.
    #[must_use]
    pub fn head(&self, topic: &str) -> Option<(String, u64, u64)> {
        let shared_log = self.find_log(topic)?;
        let log = shared_log.log.lock();
        Some((log.epoch().to_owned(), log.seq(), log.floor()))
    }

    /// The id of the newest push, where it is known.
    #[must_use]
    pub fn newest_id(&self, topic: &str) -> Option<String> {
        let shared_log = self.find_log(topic)?;
        let log = shared_log.log.lock();
        log.id_at(log.seq()).map(str::to_owned)
    }

    /// Drops a log without subscribers; false when it has some or is not open.
    pub fn close_log(&self, topic: &str) -> bool {
        let mut logs = self.logs.lock();
        let Some(shared_log) = logs.get(topic) else {
            return false;
        };
        {
            // A loop subscribes under this lock, so no subscription can begin between the check and the mark.
            let _log = shared_log.log.lock();
            if shared_log.subscribers.load(Ordering::Acquire) > 0 {
                return false;
            }
            shared_log.is_closed.store(true, Ordering::Release);
        }
        logs.remove(topic);
        true
    }

    /// Removes an ended log from the open ones; its followers keep it until they have read all of it.
    fn forget(&self, shared_log: &Arc<SharedLog>) {
        let mut logs = self.logs.lock();
        if logs
            .get(&shared_log.topic)
            .is_some_and(|log| log.number == shared_log.number)
        {
            logs.remove(&shared_log.topic);
        }
    }

    /// Changes the readers allowed.
    pub fn set_public(&self, topic: &str, public: bool) {
        let Some(shared_log) = self.find_log(topic) else {
            return;
        };
        {
            let mut access = shared_log.access.lock();
            if access.public == public {
                return;
            }
            access.public = public;
            access.readers.clear();
            access.decide_by_ms = None;
        }
        if !public {
            self.announce_access(&shared_log, Undecided::Asked);
        }
    }

    /// Remembers whether a class of readers may follow a private log.
    pub fn allow(&self, topic: &str, reader: u64, allowed: bool) {
        let Some(shared_log) = self.find_log(topic) else {
            return;
        };
        shared_log.access.lock().readers.insert(reader, allowed);
        if !allowed {
            self.announce_access(&shared_log, Undecided::Kept);
        }
    }

    /// Makes the loops check the rights of a log's subscribers.
    pub(super) fn announce_access(&self, shared_log: &SharedLog, undecided: Undecided) {
        for (index, mailbox) in self.shared().mailboxes.iter().enumerate() {
            if shared_log.is_followed_by(index) {
                let look = Command::Access(shared_log.number, undecided);
                mailbox.send(broker_server::Command::Handler(look));
            }
        }
    }
}

/// The name after `account/program/` or `account/channel/` in a topic, and whether it is a program's. The log of a view
/// of a channel has the channel's name: the part after `?` is internal.
pub(super) fn label(topic: &str) -> (&str, bool) {
    let mut parts = topic.splitn(3, '/').skip(1);
    let is_program = parts.next() == Some("program");
    let name = parts.next().unwrap_or_default();
    (name.split('?').next().unwrap_or(name), is_program)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use broker_server::{Config, Shared};

    use super::*;

    #[test]
    fn a_channel_that_has_ended_keeps_nothing_from_the_others() {
        let shared = Shared::new(Config::default(), 1).expect("descriptors");
        let hub = Hub::new(Arc::new(shared)).expect("descriptors");
        hub.open_log("a/program/p", "e0", 0, true);
        for channel in ["a/channel/one", "a/channel/two", "a/channel/three"] {
            hub.open_log(channel, "", 0, true);
            hub.link("a/program/p", channel);
        }
        let find = |channel| hub.find_log(channel).expect("open");
        // As it is between its end and its removal.
        let gone = entry(Kind::Gone, 0, 0, "over");
        let ended = find("a/channel/two").log.lock().append(&gone.borrow(), 0);
        assert!(ended.is_ok());
        let told = hub.append("a/program/p", &[entry(Kind::Push, 0, 1, "event")]);
        assert_eq!(told, Err(LogError::Ended));
        for channel in ["a/channel/one", "a/channel/three"] {
            let shared_log = find(channel);
            let log = shared_log.log.lock();
            let (mut items, begin) = (Vec::new(), log.tip() - 1);
            let seen = log.put_items(begin, usize::MAX, usize::MAX, &mut items);
            assert!(
                seen.is_ok() && items.starts_with(br#"{"method":"event""#),
                "{channel}"
            );
        }
    }

    const PROGRAMS: usize = 3;
    const CHANNELS: usize = 2;

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        Reset(usize),
        Link(usize, usize),
        Unlink(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let pair = (0..PROGRAMS, 0..CHANNELS);
        prop_oneof![
            4 => (0..PROGRAMS).prop_map(Step::Push),
            1 => (0..PROGRAMS).prop_map(Step::Reset),
            2 => pair.clone().prop_map(|(program, channel)| Step::Link(program, channel)),
            1 => pair.prop_map(|(program, channel)| Step::Unlink(program, channel)),
        ]
    }

    fn entry(kind: Kind, epoch: usize, seq: u64, method: &str) -> OwnedEntry {
        OwnedEntry {
            kind,
            epoch: format!("e{epoch}"),
            seq,
            method: method.to_owned(),
            params: format!(r#"{{"seq":{seq}}}"#).into_bytes(),
        }
    }

    proptest! {
        #[test]
        fn a_channel_shows_what_its_programs_told_while_they_were_linked(
            steps in proptest::collection::vec(step(), 1..60),
        ) {
            let shared = Shared::new(Config::default(), 1).expect("descriptors");
            let hub = Hub::new(Arc::new(shared)).expect("descriptors");
            let program = |number: usize| format!("a/program/{number}");
            let channel = |number: usize| format!("a/channel/c{number}");
            (0..PROGRAMS).for_each(|number| hub.open_log(&program(number), "e0", 0, true));
            (0..CHANNELS).for_each(|number| hub.open_log(&channel(number), "", 0, true));
            let log = |number: usize| hub.find_log(&channel(number)).expect("open");
            let begins: Vec<_> = (0..CHANNELS).map(|n| log(n).log.lock().tip()).collect();
            let (mut heads, mut links) = ([(0, 0); PROGRAMS], BTreeSet::new());
            let mut expected = vec![Vec::new(); CHANNELS];
            for step in steps {
                let (number, told) = match step {
                    Step::Link(number, other) => {
                        hub.link(&program(number), &channel(other));
                        links.insert((number, other));
                        continue;
                    }
                    Step::Unlink(number, other) => {
                        hub.unlink(&program(number), &channel(other));
                        links.remove(&(number, other));
                        continue;
                    }
                    Step::Push(number) => {
                        heads[number].1 += 1;
                        let (epoch, seq) = heads[number];
                        (number, entry(Kind::Push, epoch, seq, "event"))
                    }
                    Step::Reset(number) => {
                        heads[number] = (heads[number].0 + 1, 5);
                        (number, entry(Kind::Reset, heads[number].0, 5, "historyReplaced"))
                    }
                };
                // Twice, as after a poll that was answered twice: the second one has no effect.
                for _ in 0..2 {
                    hub.append(&program(number), std::slice::from_ref(&told)).expect("in order");
                }
                for (_, other) in links.iter().filter(|(from, _)| *from == number) {
                    let (method, seq) = (&told.method, told.seq);
                    expected[*other].push(format!(
                        r#"{{"method":"{method}","channel":"c{other}","seq":{seq}}}"#
                    ));
                }
            }
            for (number, expected) in expected.iter().enumerate() {
                let mut items = Vec::new();
                let shared_log = log(number);
                let seen = shared_log.log.lock().put_items(begins[number], usize::MAX, usize::MAX, &mut items);
                prop_assert!(seen.is_ok());
                prop_assert_eq!(String::from_utf8_lossy(&items), expected.join(","));
            }
        }
    }
}
