//! The principal of a connection, and which logs it may follow.

use std::sync::Arc;

use broker_server::{ConnId, SharedLog, SlotIndex};

use super::commands::Undecided;
use super::gateway::{Core, Gateway};
use super::hub::DECIDE_MS;
use super::logs::label;
use super::sessions::{Attached, Session};
use super::upcalls::Upcall;

/// How long before its expiry a client is notified about its token.
const WARNING_MS: u64 = 60_000;

impl Gateway {
    /// The reader class of a connection at this moment; a token that has expired, or was revoked or got other rights a
    /// moment ago, no longer counts. A loop is told by a command, which it may process after messages that arrived
    /// later.
    pub(super) fn reader(core: &mut Core, slot: SlotIndex) -> Option<u64> {
        Self::succeed(core, slot);
        let wall_ms = core.shared.wall_ms();
        let session = core.client(slot).session.as_ref()?;
        if session.expires_ms <= wall_ms {
            Self::sign_out(core, slot, "token_expired");
            return None;
        }
        Some(session.reader)
    }

    /// Gives a connection whose session has ended the one that has replaced it, or none.
    fn succeed(core: &mut Core, slot: SlotIndex) {
        let Some(session) = &core.client(slot).session else {
            return;
        };
        if !session.has_ended() {
            return;
        }
        let mut next = session.successor();
        while let Some(session) = next {
            if Self::attach(core, slot, Arc::clone(&session)) {
                return;
            }
            next = session.successor();
        }
        Self::sign_out(core, slot, "token_revoked");
    }

    /// Gives a connection a session. Returns false, and leaves the connection unchanged, when the session has ended.
    pub(super) fn attach(core: &mut Core, slot: SlotIndex, session: Arc<Session>) -> bool {
        let remaining_ms = session.expires_ms.saturating_sub(core.shared.wall_ms());
        let alarm_ms = core
            .now_ms
            .saturating_add(remaining_ms.saturating_sub(WARNING_MS));
        let conn = core.id(slot);
        let client = core.client(slot);
        if client.session.as_ref().is_some_and(|has| has.is(&session)) {
            // The connection is entered once: a second entry would be removed together with the first.
            return !session.has_ended();
        }
        let Some(attached) = Attached::new(session, conn) else {
            return false;
        };
        client.session = Some(attached);
        client.is_warned = false;
        core.set_alarm(slot, Some(alarm_ms));
        true
    }

    pub(super) fn sign_in(&self, core: &mut Core, slot: SlotIndex, session: Arc<Session>) {
        let is_here = core
            .client(slot)
            .account
            .as_ref()
            .is_some_and(|account| account.name == session.account);
        if is_here && Self::attach(core, slot, session) {
            self.check_followed(core, slot);
        }
    }

    /// Ends what a connection follows and may not.
    fn check_followed(&self, core: &mut Core, slot: SlotIndex) {
        let Some(reader) = core.client(slot).session.as_ref().map(|s| s.reader) else {
            return;
        };
        for log in core.followed(slot) {
            let allowed = log.access.lock().allows(Some(reader));
            match allowed {
                Some(true) => {}
                Some(false) => expel(core, slot, &log, "insufficient_scope"),
                None => self.ask_about(core, &log, vec![reader]),
            }
        }
    }

    /// Asks the application whether classes of readers may continue to follow; [`Hub::upkeep`] ends the wait for all
    /// loops at once.
    ///
    /// [`Hub::upkeep`]: super::hub::Hub::upkeep
    fn ask_about(&self, core: &Core, log: &SharedLog, readers: Vec<u64>) {
        log.access
            .lock()
            .decide_by_ms
            .get_or_insert(core.now_ms + DECIDE_MS);
        self.hub.upcalls.tell(Upcall::Access {
            topic: log.topic.clone(),
            readers,
        });
    }

    /// Makes a connection anonymous and ends the subscriptions that are not allowed to anonymous clients.
    fn sign_out(core: &mut Core, slot: SlotIndex, reason: &str) {
        core.client(slot).session = None;
        core.set_alarm(slot, None);
        for log in core.followed(slot) {
            if log.access.lock().allows(None) == Some(false) {
                expel(core, slot, &log, reason);
            }
        }
    }

    /// Gives these connections the sessions that have replaced theirs, or none, unless they have received another one
    /// in the meantime; ends what they follow and may no longer.
    pub(super) fn end_sessions(&self, core: &mut Core, connections: Vec<ConnId>) {
        for conn in connections {
            if let Some(slot) = core.find(conn) {
                Self::succeed(core, slot);
                self.check_followed(core, slot);
            }
        }
    }

    /// Checks the rights of all followers of a log on this loop.
    pub(super) fn check_access(&self, core: &mut Core, number: u64, undecided: Undecided) {
        let Some(log) = core.followed_log(number) else {
            return;
        };
        let mut unknown = Vec::new();
        for slot in core.followers(number) {
            let reader = Self::reader(core, slot);
            let allowed = log.access.lock().allows(reader);
            match (allowed, reader) {
                (Some(true), _) => {}
                (Some(false), None) => expel(core, slot, &log, "private"),
                (None, Some(reader)) if undecided != Undecided::Expelled => {
                    if !unknown.contains(&reader) {
                        unknown.push(reader);
                    }
                }
                _ => expel(core, slot, &log, "insufficient_scope"),
            }
        }
        if undecided == Undecided::Asked && !unknown.is_empty() {
            self.ask_about(core, &log, unknown);
        }
    }

    /// Notifies the client of a token that is about to expire, and ends the session of one that has expired.
    pub(super) fn look_at_expiry(core: &mut Core, slot: SlotIndex) {
        let (wall_ms, now_ms) = (core.shared.wall_ms(), core.now_ms);
        let client = core.client(slot);
        let Some(session) = &client.session else {
            return;
        };
        let remaining_ms = session.expires_ms.saturating_sub(wall_ms);
        if remaining_ms == 0 {
            Self::sign_out(core, slot, "token_expired");
            return;
        }
        if remaining_ms > WARNING_MS {
            core.set_alarm(slot, Some(now_ms + remaining_ms - WARNING_MS));
            return;
        }
        if !std::mem::replace(&mut client.is_warned, true) {
            let params = format!(r#"{{"expiresInMs":{remaining_ms}}}"#);
            core.notify(slot, "tokenExpiring", params.as_bytes());
        }
        core.set_alarm(slot, Some(now_ms + remaining_ms));
    }
}

/// Ends a subscription that its log no longer allows, and notifies the client.
fn expel(core: &mut Core, slot: SlotIndex, log: &SharedLog, reason: &str) {
    if !core.unsubscribe(slot, log) {
        return;
    }
    let (label, is_program) = label(&log.topic);
    let name = if is_program { "programId" } else { "channel" };
    let mut params = format!("{{\"{name}\":\"").into_bytes();
    broker_core::log::escape(label, &mut params);
    params.extend_from_slice(format!("\",\"reason\":\"{reason}\"}}").as_bytes());
    core.notify(slot, "unsubscribed", &params);
    core.end_without_subscription(slot, reason);
}
