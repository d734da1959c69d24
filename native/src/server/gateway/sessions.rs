//! What tokens stand for, and who holds them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use super::super::lock::Lock;

/// Tokens remembered at most; beyond this the expired go, then all, and are asked for again.
const MOST_GRANTS: usize = 1 << 20;

/// What a granted token stands for.
#[derive(Debug)]
pub struct Session {
    pub account: String,
    pub principal: u64,
    /// The class of callers with equal reading rights.
    pub reader: u64,
    pub subject: String,
    /// Milliseconds since 1970; from then on the token means nothing.
    pub expires_ms: u64,
    is_revoked: AtomicBool,
    connections: AtomicUsize,
}

impl Session {
    #[must_use]
    pub fn new(account: &str, principal: u64, reader: u64, subject: &str, expires_ms: u64) -> Self {
        Self {
            account: account.to_owned(),
            principal,
            reader,
            subject: subject.to_owned(),
            expires_ms,
            is_revoked: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
        }
    }

    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::Acquire)
    }
}

/// A session in use by one connection, which it counts.
#[derive(Debug)]
pub struct Attached(Arc<Session>);

impl Attached {
    #[must_use]
    pub fn new(session: Arc<Session>) -> Self {
        session.connections.fetch_add(1, Ordering::Relaxed);
        Self(session)
    }
}

impl std::ops::Deref for Attached {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.0
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The granted tokens of all accounts.
#[derive(Debug, Default)]
pub(super) struct Grants(Lock<Tables>);

#[derive(Debug, Default)]
struct Tables {
    by_token: HashMap<(String, String), Arc<Session>>,
    /// All sessions of a subject that are cached or in use.
    by_subject: HashMap<(String, String), Vec<Weak<Session>>>,
}

impl Grants {
    pub fn add(&self, token: &str, session: Session, wall_ms: u64) {
        let session = Arc::new(session);
        let mut tables = self.0.lock();
        if tables.by_token.len() >= MOST_GRANTS {
            tables.make_room(wall_ms);
        }
        let of_subject = tables
            .by_subject
            .entry((session.account.clone(), session.subject.clone()))
            .or_default();
        of_subject.retain(|weak| weak.strong_count() > 0);
        of_subject.push(Arc::downgrade(&session));
        tables
            .by_token
            .insert((session.account.clone(), token.to_owned()), session);
    }

    /// The session of a token that has neither expired nor been revoked.
    pub fn find(&self, account: &str, token: &str, wall_ms: u64) -> Option<Arc<Session>> {
        let tables = self.0.lock();
        let session = tables
            .by_token
            .get(&(account.to_owned(), token.to_owned()))?;
        (session.expires_ms > wall_ms).then(|| Arc::clone(session))
    }

    /// Forgets a subject's tokens and marks its sessions; returns how many connections use them.
    pub fn revoke(&self, account: &str, subject: &str) -> usize {
        let mut tables = self.0.lock();
        tables
            .by_token
            .retain(|_, session| session.account != account || session.subject != subject);
        let sessions = tables
            .by_subject
            .remove(&(account.to_owned(), subject.to_owned()))
            .unwrap_or_default();
        let mut connections = 0;
        for session in sessions.iter().filter_map(Weak::upgrade) {
            if !session.is_revoked.swap(true, Ordering::AcqRel) {
                connections += session.connections.load(Ordering::Relaxed);
            }
        }
        connections
    }

    /// Forgets what has expired.
    pub fn sweep(&self, wall_ms: u64) {
        let mut tables = self.0.lock();
        tables
            .by_token
            .retain(|_, session| session.expires_ms > wall_ms);
        tables
            .by_subject
            .retain(|_, sessions| sessions.iter().any(|weak| weak.strong_count() > 0));
    }
}

impl Tables {
    fn make_room(&mut self, wall_ms: u64) {
        self.by_token
            .retain(|_, session| session.expires_ms > wall_ms);
        if self.by_token.len() >= MOST_GRANTS {
            self.by_token.clear();
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn revoking_counts_the_connections_and_forgets_the_tokens() {
        let grants = Grants::default();
        grants.add("t", session(100), 0);
        grants.add("u", session(100), 0);
        let attached = Attached::new(grants.find("demo", "t", 0).expect("granted above"));
        assert_eq!(grants.revoke("demo", "ada"), 1);
        assert!(attached.is_revoked());
        assert!(grants.find("demo", "u", 0).is_none());
        assert_eq!(grants.revoke("demo", "ada"), 0);
    }
}
