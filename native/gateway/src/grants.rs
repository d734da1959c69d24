//! The tokens that the application has granted.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use broker_server::{ConnId, Lock};

use super::sessions::Session;

/// The most tokens remembered. Beyond this, expired tokens are removed, and all tokens if that leaves more than half;
/// the application is then asked again. So each clean-up makes room for at least half as many grants, over which its
/// cost is spread.
const MOST_GRANTS: usize = 1 << 20;

/// The granted tokens of all accounts. The cost of adding, finding or revoking one does not grow with their number.
#[derive(Debug)]
pub(super) struct Grants {
    tables: Lock<Tables>,
    most: usize,
}

#[derive(Debug, Default)]
struct Tables {
    by_account: HashMap<String, Granted>,
    /// The number over all accounts.
    tokens: usize,
}

/// The tokens of one account.
#[derive(Debug, Default)]
struct Granted {
    by_token: HashMap<Arc<str>, Arc<Session>>,
    /// All sessions of a subject that are remembered or in use, each with its token.
    by_subject: HashMap<String, Vec<TokenOf>>,
}

/// A token with its session.
type TokenOf = (Arc<str>, Weak<Session>);

impl Default for Grants {
    fn default() -> Self {
        Self::new(MOST_GRANTS)
    }
}

impl Grants {
    fn new(most: usize) -> Self {
        Self {
            tables: Lock::default(),
            most,
        }
    }

    /// Remembers a token. A token that is granted again unchanged keeps its session.
    pub fn add(&self, token: &str, session: Session, wall_ms: u64) {
        let mut tables = self.tables.lock();
        if !tables.has(token, &session) {
            tables.add(token, session, self.most, wall_ms);
        }
    }

    /// Remembers a token whose rights have changed: its session replaces those of its subject. Returns the connections
    /// that use them; none when nothing has changed.
    pub fn replace(&self, token: &str, session: Session, wall_ms: u64) -> Vec<ConnId> {
        let mut tables = self.tables.lock();
        if tables.has(token, &session) {
            return Vec::new();
        }
        let former = tables.forget(&session.account, &session.subject);
        let session = tables.add(token, session, self.most, wall_ms);
        former
            .iter()
            .flat_map(|former| former.replace(&session))
            .collect()
    }

    /// The session of a token that has neither expired nor been revoked.
    pub fn find(&self, account: &str, token: &str, wall_ms: u64) -> Option<Arc<Session>> {
        let tables = self.tables.lock();
        let session = tables.by_account.get(account)?.by_token.get(token)?;
        (session.expires_ms > wall_ms).then(|| Arc::clone(session))
    }

    /// Forgets a subject's tokens and ends its sessions; returns the connections that use them.
    pub fn revoke(&self, account: &str, subject: &str) -> Vec<ConnId> {
        let former = self.tables.lock().forget(account, subject);
        former.iter().flat_map(|former| former.revoke()).collect()
    }

    /// Removes expired tokens.
    pub fn sweep(&self, wall_ms: u64) {
        self.tables.lock().sweep(wall_ms);
    }
}

impl Tables {
    /// Whether the token is remembered with an equal session.
    fn has(&self, token: &str, session: &Session) -> bool {
        let granted = self.by_account.get(&session.account);
        let known = granted.and_then(|granted| granted.by_token.get(token));
        known.is_some_and(|known| known.is_like(session))
    }

    fn add(&mut self, token: &str, session: Session, most: usize, wall_ms: u64) -> Arc<Session> {
        if self.tokens >= most {
            self.make_room(most, wall_ms);
        }
        let granted = self.by_account.entry(session.account.clone()).or_default();
        let (token, session) = (Arc::<str>::from(token), Arc::new(session));
        let of_subject = granted
            .by_subject
            .entry(session.subject.clone())
            .or_default();
        of_subject.retain(|(_, weak)| weak.strong_count() > 0);
        of_subject.push((Arc::clone(&token), Arc::downgrade(&session)));
        let former = granted.by_token.insert(token, Arc::clone(&session));
        self.tokens += usize::from(former.is_none());
        session
    }

    /// Forgets a subject's tokens; returns its sessions that are in use, or were until now.
    fn forget(&mut self, account: &str, subject: &str) -> Vec<Arc<Session>> {
        let Some(granted) = self.by_account.get_mut(account) else {
            return Vec::new();
        };
        let sessions = granted.by_subject.remove(subject).unwrap_or_default();
        let mut former = Vec::new();
        for (token, weak) in sessions {
            let Some(session) = weak.upgrade() else {
                continue;
            };
            let known = granted.by_token.get(&token);
            // The token may have been granted to another subject since.
            if known.is_some_and(|known| Arc::ptr_eq(known, &session)) {
                granted.by_token.remove(&token);
                self.tokens -= 1;
            }
            former.push(session);
        }
        former
    }

    fn sweep(&mut self, wall_ms: u64) {
        for granted in self.by_account.values_mut() {
            granted
                .by_token
                .retain(|_, session| session.expires_ms > wall_ms);
        }
        self.tidy();
    }

    fn make_room(&mut self, most: usize, wall_ms: u64) {
        self.sweep(wall_ms);
        if self.tokens > most / 2 {
            for granted in self.by_account.values_mut() {
                granted.by_token.clear();
            }
            self.tidy();
        }
    }

    /// Counts the remaining tokens, and removes the sessions without connections.
    fn tidy(&mut self) {
        self.tokens = 0;
        for granted in self.by_account.values_mut() {
            self.tokens += granted.by_token.len();
            granted.by_subject.retain(|_, sessions| {
                sessions.retain(|(_, weak)| weak.strong_count() > 0);
                !sessions.is_empty()
            });
        }
        self.by_account
            .retain(|_, granted| !granted.by_subject.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::sessions::Attached;
    use super::*;

    fn session(expires_ms: u64) -> Session {
        Session::new("demo", 1, 2, "ada", expires_ms)
    }

    #[test]
    fn a_grant_holds_until_it_expires_and_in_its_account_only() {
        let grants = Grants::default();
        grants.add("t", session(100), 0);
        assert!(grants.find("demo", "t", 99).is_some());
        assert!(grants.find("demo", "t", 100).is_none());
        assert!(grants.find("other", "t", 0).is_none());
    }

    #[test]
    fn revoking_tells_of_the_connections_and_forgets_the_tokens() {
        let grants = Grants::default();
        grants.add("t", session(100), 0);
        grants.add("u", session(100), 0);
        let found = grants.find("demo", "t", 0).expect("granted above");
        let attached = Attached::new(found, ConnId(7)).expect("not revoked");
        assert_eq!(grants.revoke("demo", "ada"), [ConnId(7)]);
        assert!(attached.has_ended() && attached.successor().is_none());
        assert!(grants.find("demo", "u", 0).is_none());
        assert!(grants.revoke("demo", "ada").is_empty());
    }

    #[test]
    fn what_replaces_a_session_counts_for_its_token_and_its_connections() {
        let grants = Grants::default();
        let with_reader = |reader| Session::new("demo", 1, reader, "ada", 100);
        grants.add("t", with_reader(1), 0);
        let first = grants.find("demo", "t", 0).expect("granted above");
        let attached = Attached::new(Arc::clone(&first), ConnId(7)).expect("not ended");
        assert!(
            grants.replace("t", with_reader(1), 0).is_empty(),
            "nothing has changed"
        );
        assert!(!attached.has_ended());

        assert_eq!(grants.replace("t", with_reader(2), 0), [ConnId(7)]);
        let second = grants.find("demo", "t", 0).expect("replaced above");
        assert_eq!(second.reader, 2);
        assert!(Attached::new(first, ConnId(8)).is_none());
        let next = attached.successor().expect("it is not revoked");
        assert!(Arc::ptr_eq(&next, &second));

        // The connection has not taken it up yet: it finds it revoked.
        assert!(grants.revoke("demo", "ada").is_empty());
        assert!(next.has_ended() && next.successor().is_none());
    }

    #[test]
    fn a_token_that_is_granted_again_as_it_was_keeps_its_session() {
        let grants = Grants::default();
        grants.add("t", session(100), 0);
        let first = grants.find("demo", "t", 0).expect("granted");
        grants.add("t", session(100), 0);
        let second = grants.find("demo", "t", 0).expect("granted");
        assert!(Arc::ptr_eq(&first, &second));
        grants.add("t", session(200), 0);
        let third = grants.find("demo", "t", 0).expect("granted");
        assert!(!Arc::ptr_eq(&first, &third));
    }

    #[test]
    fn room_is_made_once_for_many_grants() {
        let grants = Grants::new(8);
        let held = || (0..100).filter(|n| grants.find("demo", &n.to_string(), 50).is_some());
        for number in 0..8 {
            // Five of eight remain.
            let expires_ms = if number < 5 { 100 } else { 10 };
            grants.add(&number.to_string(), session(expires_ms), 0);
        }
        grants.add("8", session(100), 50);
        assert_eq!(held().collect::<Vec<_>>(), [8], "more than half were left");
        for number in 9..16 {
            let expires_ms = if number < 12 { 100 } else { 10 };
            grants.add(&number.to_string(), session(expires_ms), 0);
        }
        grants.add("16", session(100), 50);
        assert_eq!(
            held().collect::<Vec<_>>(),
            [8, 9, 10, 11, 16],
            "half is room enough"
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        Grant {
            account: u8,
            token: u8,
            subject: u8,
            expires_ms: u64,
        },
        Attach {
            account: u8,
            token: u8,
        },
        Leave(usize),
        Revoke {
            account: u8,
            subject: u8,
        },
        Wait(u64),
        Sweep,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..2u8, 0..4u8, 0..3u8, 1..20u64).prop_map(|(account, token, subject, expires_ms)| {
                Step::Grant { account, token, subject, expires_ms }
            }),
            4 => (0..2u8, 0..4u8).prop_map(|(account, token)| Step::Attach { account, token }),
            1 => (0..4usize).prop_map(Step::Leave),
            2 => (0..2u8, 0..3u8).prop_map(|(account, subject)| Step::Revoke { account, subject }),
            1 => (0..5u64).prop_map(Step::Wait),
            1 => Just(Step::Sweep),
        ]
    }

    proptest! {
        /// Compares with a list of all grants and one of all connections, searched linearly.
        #[test]
        fn grants_are_what_a_plain_list_says(steps in prop::collection::vec(step(), 1..60)) {
            let (grants, mut now_ms, mut next) = (Grants::default(), 0, 0);
            let mut listed: Vec<(u8, u8, u8, u64)> = Vec::new();
            let mut attached: Vec<(u8, u8, ConnId, Attached)> = Vec::new();
            for step in steps {
                match step {
                    Step::Grant { account, token, subject, expires_ms } => {
                        let (expires_ms, of, by) = (now_ms + expires_ms, account.to_string(), subject.to_string());
                        let session = Session::new(&of, u64::from(subject), 1, &by, expires_ms);
                        grants.add(&token.to_string(), session, now_ms);
                        listed.retain(|one| (one.0, one.1) != (account, token));
                        listed.push((account, token, subject, expires_ms));
                    }
                    Step::Attach { account, token } => {
                        let found = grants.find(&account.to_string(), &token.to_string(), now_ms);
                        let wanted = listed
                            .iter()
                            .find(|one| (one.0, one.1) == (account, token) && one.3 > now_ms);
                        prop_assert_eq!(
                            found.as_ref().map(|session| session.principal),
                            wanted.map(|one| u64::from(one.2))
                        );
                        if let (Some(session), Some(one)) = (found, wanted) {
                            next += 1;
                            let conn = ConnId(next);
                            let user = Attached::new(session, conn).expect("a revoked one is not found");
                            attached.push((account, one.2, conn, user));
                        }
                    }
                    Step::Leave(at) if at < attached.len() => drop(attached.swap_remove(at)),
                    Step::Leave(_) => {}
                    Step::Revoke { account, subject } => {
                        let mut told = grants.revoke(&account.to_string(), &subject.to_string());
                        told.sort_by_key(|conn| conn.0);
                        listed.retain(|one| (one.0, one.2) != (account, subject));
                        let is_ended = |one: &(u8, u8, ConnId, Attached)| (one.0, one.1) == (account, subject);
                        let mut wanted: Vec<_> =
                            attached.iter().filter(|one| is_ended(one)).map(|one| one.2).collect();
                        wanted.sort_by_key(|conn| conn.0);
                        prop_assert_eq!(told, wanted);
                        attached.retain(|one| !is_ended(one));
                    }
                    Step::Wait(ms) => now_ms += ms,
                    Step::Sweep => {
                        grants.sweep(now_ms);
                        let live = listed.iter().filter(|one| one.3 > now_ms).count();
                        prop_assert_eq!(grants.tables.lock().tokens, live);
                    }
                }
                prop_assert!(attached.iter().all(|one| !one.3.has_ended()));
            }
        }
    }
}
