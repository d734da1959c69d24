//! The gateway's interface to the rest of the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use broker_server::{ConnId, Lock, Refusal, SharedLog};

use super::accounts::{Account, Accounts, OpenConnections};
use super::commands::{Answer, Command, Shared, Undecided};
use super::grants::Grants;
use super::notes::Notes;
use super::sessions::Session;
use super::upcalls::{Upcall, Upcalls};
use super::votes::{GroupReply, Mismatch, Settled, Votes};

/// How long the application may take to decide what readers of a log that became private may do.
pub(super) const DECIDE_MS: u64 = 10_000;

/// The interval of the upkeep of logs and polls.
const UPKEEP_MS: u64 = 1_000;

/// The interval at which expired tokens are removed, which looks at all of them. An expired token is refused before,
/// too.
const SWEEP_MS: u64 = 30_000;

/// The state that all loops of a gateway and the callers of the hub share. Every method is short and may be called from
/// any thread. Its effect on a connection happens on that connection's loop, in the order of the calls.
#[derive(Debug)]
pub struct Hub {
    shared: Arc<Shared>,
    pub upcalls: Upcalls,
    pub(super) accounts: Lock<Arc<Accounts>>,
    /// The open connections of each account.
    pub open: Arc<OpenConnections>,
    /// The open logs, by topic.
    pub logs: Lock<HashMap<String, Arc<SharedLog>>>,
    pub(super) grants: Grants,
    /// For each program's topic, the topics of channels that also carry its notifications.
    links: Lock<HashMap<String, Vec<String>>>,
    /// The state for counting votes natively; without it the application takes all votes.
    pub votes: OnceLock<Votes>,
    /// Responses to `GET /connect` that wait to be logged.
    pub connects: Notes,
    numbers: AtomicU64,
    next_upkeep_ms: AtomicU64,
    next_sweep_ms: AtomicU64,
}

impl Hub {
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new(shared: Arc<Shared>) -> std::io::Result<Self> {
        Ok(Self {
            shared,
            upcalls: Upcalls::open()?,
            accounts: Lock::default(),
            open: Arc::default(),
            logs: Lock::default(),
            grants: Grants::default(),
            links: Lock::default(),
            votes: OnceLock::new(),
            connects: Notes::default(),
            numbers: AtomicU64::new(1),
            next_upkeep_ms: AtomicU64::new(0),
            next_sweep_ms: AtomicU64::new(0),
        })
    }

    #[must_use]
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// A number that no log, ticket or batch has had before.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Replaces all accounts; existing connections stay open.
    pub fn set_accounts(
        &self,
        public_host: &str,
        default: &str,
        accounts: HashMap<String, Option<Vec<String>>>,
    ) {
        let by_name = accounts
            .into_iter()
            .map(|(name, origins)| {
                let account = Account {
                    name: name.clone(),
                    origins,
                    open: Arc::clone(&self.open),
                };
                (name, Arc::new(account))
            })
            .collect();
        let public_host = public_host.to_ascii_lowercase();
        *self.accounts.lock() = Arc::new(Accounts {
            public_host,
            default: default.to_owned(),
            by_name,
        });
    }

    /// The open log of a topic.
    #[must_use]
    pub fn find_log(&self, topic: &str) -> Option<Arc<SharedLog>> {
        self.logs.lock().get(topic).cloned()
    }

    /// Remembers the principal of a token.
    pub fn grant(&self, token: &str, session: Session) {
        self.grants.add(token, session, self.shared.wall_ms());
    }

    /// Resumes a handshake whose token has been granted.
    pub fn resume(&self, id: ConnId) {
        self.shared.resume(id);
    }

    /// Ends a handshake with an HTTP error.
    pub fn refuse(&self, id: ConnId, refusal: Refusal) {
        self.shared.refuse(id, refusal);
    }

    /// Gives an open connection the session of a granted token; false when the connection is gone or the token is not
    /// granted.
    pub fn sign_in(&self, id: ConnId, account: &str, token: &str) -> bool {
        let Some(session) = self.grants.find(account, token, self.shared.wall_ms()) else {
            return false;
        };
        if !self.shared.is_open(id) {
            return false;
        }
        self.shared.tell(id, Command::SignIn(id, session));
        true
    }

    /// Remembers a token whose rights have changed, for the connections of its subject too; returns their number.
    pub fn replace(&self, token: &str, session: Session) -> usize {
        let wall_ms = self.shared.wall_ms();
        self.end_sessions(self.grants.replace(token, session, wall_ms))
    }

    /// Forgets a subject's tokens and makes its connections anonymous; returns the number of connections.
    pub fn revoke(&self, account: &str, subject: &str) -> usize {
        self.end_sessions(self.grants.revoke(account, subject))
    }

    fn end_sessions(&self, connections: Vec<ConnId>) -> usize {
        let count = connections.len();
        let mut by_loop: Vec<Vec<ConnId>> = vec![Vec::new(); self.shared.mailboxes.len()];
        for conn in connections {
            by_loop[conn.loop_index()].push(conn);
        }
        for (mailbox, connections) in self.shared.mailboxes.iter().zip(by_loop) {
            if !connections.is_empty() {
                mailbox.send(broker_server::Command::Handler(Command::EndSessions(
                    connections,
                )));
            }
        }
        count
    }

    /// Replies to a call.
    pub fn reply(&self, id: ConnId, ticket: u64, answer: Answer, json: Vec<u8>) {
        self.shared
            .tell(id, Command::Reply(id, ticket, answer, json));
    }

    /// Runs a `subscribe` again.
    pub fn retry(&self, id: ConnId, ticket: u64) {
        self.shared.tell(id, Command::Retry(id, ticket));
    }

    /// Replies to the calls whose records the application has taken for `counter`.
    ///
    /// # Errors
    /// [`Mismatch`]; nothing is answered then.
    pub fn settle(&self, counter: usize, replies: Vec<GroupReply>) -> Result<(), Mismatch> {
        let votes = self.votes.get().ok_or(Mismatch)?;
        let mut by_loop: Vec<Vec<Settled>> = Vec::new();
        by_loop.resize_with(self.shared.mailboxes.len(), Vec::new);
        for one in votes.settle(counter, replies)? {
            if let Some(settled) = by_loop.get_mut(one.conn.loop_index()) {
                settled.push(one);
            }
        }
        for (mailbox, settled) in self.shared.mailboxes.iter().zip(by_loop) {
            if !settled.is_empty() {
                mailbox.send(broker_server::Command::Handler(Command::Settle(settled)));
            }
        }
        Ok(())
    }

    /// Sends one finished message to one connection.
    pub fn notify(&self, id: ConnId, message: Vec<u8>) {
        self.shared.tell(id, Command::Notify(id, message));
    }

    /// From now on, notifications of `topic` are also appended to `channel_topic`.
    pub fn link(&self, topic: &str, channel_topic: &str) {
        let mut links = self.links.lock();
        let channels = links.entry(topic.to_owned()).or_default();
        if !channels.iter().any(|channel| channel == channel_topic) {
            channels.push(channel_topic.to_owned());
        }
    }

    /// Undoes [`link`](Self::link).
    pub fn unlink(&self, topic: &str, channel_topic: &str) {
        let mut links = self.links.lock();
        if let Some(channels) = links.get_mut(topic) {
            channels.retain(|channel| channel != channel_topic);
            if channels.is_empty() {
                links.remove(topic);
            }
        }
    }

    pub(super) fn linked(&self, topic: &str) -> Vec<String> {
        self.links.lock().get(topic).cloned().unwrap_or_default()
    }

    /// Does the upkeep for all loops once a second, on whichever loop comes first, so it does not depend on any one of
    /// them.
    pub(super) fn upkeep_when_due(&self, now_ms: u64) {
        let due_ms = self.next_upkeep_ms.load(Ordering::Relaxed);
        let next_ms = now_ms + UPKEEP_MS;
        let is_mine = now_ms >= due_ms
            && self
                .next_upkeep_ms
                .compare_exchange(due_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_mine {
            self.upkeep();
        }
    }

    /// Drops entries that are too old, and makes an upcall about each log without followers.
    fn upkeep(&self) {
        let (now_ms, linger_ms) = (self.shared.now_ms(), self.shared.config.linger_ms);
        if now_ms >= self.next_sweep_ms.load(Ordering::Relaxed) {
            self.next_sweep_ms
                .store(now_ms + SWEEP_MS, Ordering::Relaxed);
            self.grants.sweep(self.shared.wall_ms());
        }
        if let Some(votes) = self.votes.get() {
            votes.sweep(now_ms);
        }
        let logs: Vec<_> = self.logs.lock().values().cloned().collect();
        for shared_log in logs {
            shared_log.log.lock().trim(now_ms);
            let idle_since_ms = shared_log.idle_since_ms.load(Ordering::Relaxed);
            let is_idle = shared_log.subscribers.load(Ordering::Relaxed) == 0;
            if is_idle && now_ms.saturating_sub(idle_since_ms) >= linger_ms {
                shared_log.idle_since_ms.store(now_ms, Ordering::Relaxed);
                self.upcalls.tell(Upcall::Idle {
                    topic: shared_log.topic.clone(),
                });
            }
            if shared_log.access.lock().is_overdue(now_ms) {
                self.announce_access(&shared_log, Undecided::Expelled);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use broker_server::{Config, Mailbox};

    use super::super::sessions::Attached;
    use super::*;

    /// For each loop, the connections whose session ends.
    fn ended(hub: &Hub) -> Vec<Vec<ConnId>> {
        let take = |mailbox: &Mailbox<Command>| {
            let mut commands = Vec::new();
            mailbox.take(&mut commands);
            let connections = commands.into_iter().flat_map(|command| match command {
                broker_server::Command::Handler(Command::EndSessions(connections)) => connections,
                other => unreachable!("nobody asked for {other:?}"),
            });
            connections.collect()
        };
        hub.shared.mailboxes.iter().map(take).collect()
    }

    #[test]
    fn the_loop_that_comes_first_does_the_upkeep_and_no_other() {
        let shared = Shared::new(Config::default(), 2).expect("descriptors");
        let hub = Hub::new(Arc::new(shared)).expect("descriptors");
        hub.grant("t", Session::new("demo", 1, 2, "ada", 1));
        let is_swept = || hub.grants.find("demo", "t", 0).is_none();
        hub.next_upkeep_ms.store(500, Ordering::Relaxed);
        hub.upkeep_when_due(499);
        assert!(!is_swept());
        hub.upkeep_when_due(500);
        assert!(is_swept());
        assert_eq!(hub.next_upkeep_ms.load(Ordering::Relaxed), 1_500);
        hub.upkeep_when_due(1_499);
        assert_eq!(hub.next_upkeep_ms.load(Ordering::Relaxed), 1_500);
        hub.upkeep_when_due(1_600);
        assert_eq!(hub.next_upkeep_ms.load(Ordering::Relaxed), 2_600);
    }

    #[test]
    fn only_the_loops_that_have_a_connection_of_a_session_hear_of_its_end() {
        let shared = Shared::new(Config::default(), 3).expect("descriptors");
        let hub = Hub::new(Arc::new(shared)).expect("descriptors");
        let attach = |conn| {
            let session = hub.grants.find("demo", "t", 0).expect("granted");
            Attached::new(session, conn).expect("not revoked")
        };
        hub.grant("t", Session::new("demo", 1, 2, "ada", u64::MAX));
        assert_eq!(hub.revoke("demo", "ada"), 0);
        assert_eq!(ended(&hub), [vec![], vec![], vec![]]);
        hub.grant("t", Session::new("demo", 1, 2, "ada", u64::MAX));
        let conn = ConnId::new(1, 5, 0);
        let _attached = attach(conn);
        assert_eq!(hub.revoke("demo", "ada"), 1);
        assert_eq!(ended(&hub), [vec![], vec![conn], vec![]]);
    }
}
