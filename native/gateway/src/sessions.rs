//! The principal of a granted token, and the connections that use it.
//!
//! A session and its connections agree under the session's lock: a connection is entered there before it gets the
//! session, and whatever ends the session marks it and takes the list in one step. So each connection is either in the
//! list or finds that the session has ended; none is missed, and connections with other sessions are not searched.

use std::collections::HashSet;
use std::sync::Arc;

use broker_server::{ConnId, Lock};

/// The principal of a granted token.
#[derive(Debug)]
pub struct Session {
    pub account: String,
    pub principal: u64,
    /// The class of callers with the same rights to read.
    pub reader: u64,
    pub subject: String,
    /// Milliseconds since 1970; from then on the token is invalid.
    pub expires_ms: u64,
    state: Lock<State>,
}

#[derive(Debug)]
enum State {
    /// The connections that use it.
    Good(HashSet<ConnId>),
    /// The same token stands for other rights now: of these connections too.
    Replaced(Arc<Session>),
    Revoked,
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
            state: Lock::new(State::Good(HashSet::new())),
        }
    }

    /// Whether it has ended: it is revoked, or another one has replaced it.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !matches!(*self.state.lock(), State::Good(_))
    }

    /// What has replaced it, unless it is revoked.
    pub(super) fn successor(&self) -> Option<Arc<Self>> {
        match &*self.state.lock() {
            State::Replaced(session) => Some(Arc::clone(session)),
            State::Good(_) | State::Revoked => None,
        }
    }

    /// Ends it for good; returns the connections that use it, and none on a second call.
    pub(super) fn revoke(&self) -> HashSet<ConnId> {
        self.end(State::Revoked)
    }

    /// Ends it in favour of another one; returns the connections that use it, and none once it has ended.
    pub(super) fn replace(&self, session: &Arc<Self>) -> HashSet<ConnId> {
        self.end(State::Replaced(Arc::clone(session)))
    }

    fn end(&self, end: State) -> HashSet<ConnId> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, end) {
            State::Good(connections) => connections,
            State::Replaced(_) | State::Revoked => HashSet::new(),
        }
    }

    /// Whether it equals another session, so that connections need not change to that one.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let say = |session: &Self| (session.principal, session.reader, session.expires_ms);
        say(self) == say(other) && self.account == other.account && self.subject == other.subject
    }
}

/// A session in use by one connection, which is entered in the session.
#[derive(Debug)]
pub struct Attached {
    session: Arc<Session>,
    conn: ConnId,
}

impl Attached {
    /// Gives a session to a connection, which has no other [`Attached`]; None when the session has ended.
    #[must_use]
    pub fn new(session: Arc<Session>, conn: ConnId) -> Option<Self> {
        match &mut *session.state.lock() {
            State::Good(connections) => connections.insert(conn),
            State::Replaced(_) | State::Revoked => return None,
        };
        Some(Self { session, conn })
    }

    /// Whether it belongs to this very session.
    pub(super) fn is(&self, session: &Arc<Session>) -> bool {
        Arc::ptr_eq(&self.session, session)
    }
}

impl std::ops::Deref for Attached {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let State::Good(connections) = &mut *self.session.state.lock() {
            connections.remove(&self.conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn session() -> Arc<Session> {
        Arc::new(Session::new("demo", 1, 2, "ada", 100))
    }

    #[test]
    fn who_revokes_learns_of_the_connections_that_have_the_session() {
        let session = session();
        let gone = Attached::new(Arc::clone(&session), ConnId(1));
        let here = Attached::new(Arc::clone(&session), ConnId(2)).expect("not revoked");
        drop(gone);
        assert_eq!(session.revoke(), HashSet::from([ConnId(2)]));
        assert!(here.has_ended());
        assert!(Attached::new(Arc::clone(&session), ConnId(3)).is_none());
        assert!(session.revoke().is_empty());
    }

    /// Threads attach and detach while another one revokes; the connections that use the session afterwards are in the
    /// list.
    #[test]
    fn nobody_is_missed_who_attaches_while_the_session_has_ended() {
        const THREADS: u64 = 3;
        for _ in 0..300 {
            let (session, start) = (session(), Arc::new(Barrier::new(4)));
            let threads = (0..THREADS).map(|thread| {
                let (session, start) = (Arc::clone(&session), Arc::clone(&start));
                thread::spawn(move || {
                    start.wait();
                    let attach = |number| {
                        let conn = ConnId(number * THREADS + thread);
                        Attached::new(Arc::clone(&session), conn)
                    };
                    // Every second one has detached already.
                    let attached = (0..100).map_while(attach);
                    attached.step_by(2).collect::<Vec<_>>()
                })
            });
            let threads: Vec<_> = threads.collect();
            start.wait();
            let told = session.revoke();
            let kept: Vec<_> = threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("does not panic"))
                .collect();
            assert!(kept.iter().all(|attached| told.contains(&attached.conn)));
            assert!(told.len() >= kept.len());
        }
    }
}
