//! `subscribe` and `unsubscribe` without the application.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker_core::log::Log;
use broker_core::protocol::jsonrpc;
use broker_server::{Counters, SharedLog, SlotIndex};

use super::gateway::{Core, Gateway};
use super::outcome::Outcome;
use super::params::{Start, Target, parse_subscribe, parse_unsubscribe};

/// The position of a subscription in its log, and the content of the reply.
pub(super) struct Position {
    pub cursor: u64,
    pub recovered: bool,
}

/// Why a log is not followed.
pub(super) enum Unready {
    /// The application may be able to change that.
    Ask,
    Refused {
        status: u16,
        name: &'static str,
        description: &'static str,
    },
}

impl Unready {
    fn refused(status: u16, name: &'static str, description: &'static str) -> Self {
        Self::Refused {
            status,
            name,
            description,
        }
    }

    /// Refuses what is still impossible after the application has prepared what it could.
    fn unless(is_definite: bool, refused: Self) -> Self {
        if is_definite { refused } else { Self::Ask }
    }

    fn not_found(is_definite: bool) -> Self {
        let refused = Self::refused(404, "not_found", "there is no such program or channel");
        Self::unless(is_definite, refused)
    }

    /// For a client that may not follow.
    fn forbidden(reader: Option<u64>, is_definite: bool) -> Self {
        let refused = match reader {
            None => Self::refused(401, "invalid_token", "an access token is required"),
            Some(_) => Self::refused(
                403,
                "insufficient_scope",
                "the access token does not permit this",
            ),
        };
        Self::unless(is_definite, refused)
    }
}

impl From<Unready> for Outcome {
    fn from(unready: Unready) -> Self {
        match unready {
            Unready::Ask => Self::Ask,
            Unready::Refused {
                status,
                name,
                description,
            } => Self::error(status, name, description),
        }
    }
}

impl Gateway {
    /// Follows a log.
    ///
    /// `gathered_bytes` of replies wait in the same batch. `is_definite` is set after the application has prepared what
    /// it could: what is still impossible is then an error, or not recovered.
    pub(super) fn subscribe(
        &mut self,
        core: &mut Core,
        slot: SlotIndex,
        params: Option<&str>,
        gathered_bytes: usize,
        is_definite: bool,
    ) -> Outcome {
        // The target and the position. Unusual params are passed to the application, where all errors come from.
        let Some((target, start, has_token)) = parse_subscribe(params) else {
            if !is_definite {
                return Outcome::Ask;
            }
            let error = jsonrpc::build_error(jsonrpc::INVALID_PARAMS, "invalid_request", None);
            return Outcome::Error(error);
        };
        let is_odd = matches!(target, Target::Channel(_)) && start != Start::Now;
        if (is_odd || has_token) && !is_definite {
            return Outcome::Ask;
        }
        // The log, if it is open and the reader may follow it.
        let reader = Self::reader(core, slot);
        let shared_log = match self.find_open_log(core, slot, reader, &target, is_definite) {
            Ok(shared_log) => shared_log,
            Err(unready) => return unready.into(),
        };
        // A connection that already follows gets its position, and nothing twice: what is between an older position and
        // its own is not recovered.
        if let Some(cursor) = core.cursor(slot, &shared_log) {
            let log = shared_log.log.lock();
            let recovered = match &start {
                Start::Since { epoch, seq, .. } => log.after(epoch, *seq) == Some(cursor),
                Start::Now | Start::History(_) => true,
            };
            let position = Position { cursor, recovered };
            return Outcome::Result(render(&target, &log, &position, cursor, b""));
        }
        let config = &self.hub.shared().config;
        if core.subscriptions(slot) >= config.subscriptions {
            Counters::add(&core.shared.counters.rate_limited, 1);
            let text = "too many subscriptions on this connection";
            return Outcome::error(429, "slow_down", text);
        }
        // The subscription: attach the cursor, and reply with the missed messages that fit.
        let room = core.answer_room(slot).saturating_sub(gathered_bytes);
        let most_bytes = config.recovery_bytes.min(room);
        let answer = |log: &Log, position: &Position| {
            let mut items = Vec::new();
            let next = match target {
                Target::Program(_) => log.put_items(
                    position.cursor,
                    config.recovery_entries,
                    most_bytes,
                    &mut items,
                ),
                Target::Channel(_) => Ok(log.tip()),
            };
            // A cursor found under this lock is not lost.
            let next = next.unwrap_or(log.tip());
            (next, render(&target, log, position, next, &items))
        };
        let followed = Self::follow(core, slot, reader, &start, &shared_log, is_definite, answer);
        followed.map_or_else(Outcome::from, Outcome::Result)
    }

    /// The log of a target, if the connection may follow it.
    pub(super) fn find_open_log(
        &self,
        core: &mut Core,
        slot: SlotIndex,
        reader: Option<u64>,
        target: &Target,
        is_definite: bool,
    ) -> Result<Arc<SharedLog>, Unready> {
        let account = core.client(slot).account_name();
        let shared_log = self
            .find_log_for(reader, target, &account)
            .ok_or_else(|| Unready::not_found(is_definite))?;
        if shared_log.access.lock().allows(reader) != Some(true) {
            return Err(Unready::forbidden(reader, is_definite));
        }
        Ok(shared_log)
    }

    /// Lets the connection follow a log from `start` on.
    ///
    /// `answer` returns the reply and the cursor that corresponds to it; the log is locked during the call.
    pub(super) fn follow<Answer>(
        core: &mut Core,
        slot: SlotIndex,
        reader: Option<u64>,
        start: &Start,
        shared_log: &Arc<SharedLog>,
        is_definite: bool,
        answer: impl FnOnce(&Log, &Position) -> (u64, Answer),
    ) -> Result<Answer, Unready> {
        // Held before the log is read, so that no entry after the reply can be missed.
        let place = core.hold(shared_log);
        // Checked again: a change before this loop was a known follower was not announced to it.
        if shared_log.access.lock().allows(reader) != Some(true) {
            core.release(place);
            return Err(Unready::forbidden(reader, is_definite));
        }
        let log = shared_log.log.lock();
        let is_over = log.is_ended() || shared_log.is_closed.load(Ordering::Acquire);
        let position = if is_over {
            None
        } else {
            find_position(&log, start, is_definite)
        };
        let Some(position) = position else {
            drop(log);
            core.release(place);
            return Err(Unready::not_found(is_definite));
        };
        let (next, answer) = answer(&log, &position);
        let is_behind = next != log.tip();
        // Counted under the lock, so that the log is not closed in the meantime.
        shared_log.subscribers.fetch_add(1, Ordering::AcqRel);
        drop(log);
        core.subscribe(slot, place, next, is_behind);
        Ok(answer)
    }

    /// Ends a subscription; does nothing if there is none.
    pub(super) fn unsubscribe(core: &mut Core, slot: SlotIndex, params: Option<&str>) -> Outcome {
        let Some(target) = parse_unsubscribe(params) else {
            return Outcome::Ask;
        };
        Self::end(core, slot, &target);
        let mut result = vec![b'{'];
        target.put_member(&mut result);
        result.push(b'}');
        Outcome::Result(result)
    }

    /// Ends the subscription to a target, and every `subscribe` to it that is still being prepared.
    fn end(core: &mut Core, slot: SlotIndex, target: &Target) {
        let client = core.client(slot);
        if let Some(calls) = &mut client.calls {
            calls.cancel(|params| {
                parse_subscribe(Some(params)).is_some_and(|(other, ..)| other == *target)
            });
        }
        let topic = target.topic(&client.account_name());
        for log in core.followed(slot) {
            if log.topic == topic || view_of(&log.topic) == Some(&topic) {
                core.unsubscribe(slot, &log);
            }
        }
    }

    /// The log of a target: for a channel, the view of the connection's reader class, if there is one. A view cannot be
    /// requested by its own name.
    fn find_log_for(
        &self,
        reader: Option<u64>,
        target: &Target,
        account: &str,
    ) -> Option<Arc<SharedLog>> {
        let (hub, topic) = (&self.hub, target.topic(account));
        let view = match (target, reader) {
            (Target::Channel(name), _) if name.contains('?') => return None,
            (Target::Channel(_), Some(reader)) => hub.find_log(&format!("{topic}?{reader}")),
            _ => None,
        };
        view.or_else(|| hub.find_log(&topic))
    }

    /// Cancels the `subscribe` with these params that the application is preparing.
    pub(super) fn undo(core: &mut Core, slot: SlotIndex, params: Option<&str>) {
        if let Some((target, ..)) = parse_subscribe(params) {
            Self::end(core, slot, &target);
        }
    }
}

/// The channel's topic that a topic is a view of.
fn view_of(topic: &str) -> Option<&str> {
    let (channel, _) = topic.rsplit_once('?')?;
    Some(channel)
}

/// None when the application may be able to provide what the log lacks.
fn find_position(log: &Log, start: &Start, is_definite: bool) -> Option<Position> {
    let tip = log.tip();
    match start {
        Start::Now => Some(Position {
            cursor: tip,
            recovered: true,
        }),
        Start::Since { epoch, seq, id } => {
            // What is still unknown after the application has looked for it is assumed to be right.
            let is_same = is_same_message(log, *seq, id.as_deref()).or(is_definite.then_some(true));
            match log.after(epoch, *seq).filter(|_| is_same == Some(true)) {
                Some(cursor) => Some(Position {
                    cursor,
                    recovered: true,
                }),
                None => is_definite.then_some(Position {
                    cursor: tip,
                    recovered: false,
                }),
            }
        }
        Start::History(count) => {
            let (cursor, is_complete) = log.last(*count);
            (is_complete || is_definite).then_some(Position {
                cursor,
                recovered: true,
            })
        }
    }
}

/// Whether the log has the message that a viewer has seen at `seq`; None when that is unknown.
fn is_same_message(log: &Log, seq: u64, seen: Option<&str>) -> Option<bool> {
    match seen {
        Some(seen) if seq > 0 => log.id_at(seq).map(|id| id == seen),
        _ => Some(true),
    }
}

/// The result of `subscribe` for a client at `next` that has received `items`.
fn render(target: &Target, log: &Log, position: &Position, next: u64, items: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(128 + items.len());
    put_position(target, log, position, next, &mut out);
    if matches!(target, Target::Program(_)) {
        out.extend_from_slice(br#","events":["#);
        out.extend_from_slice(items);
        out.push(b']');
    }
    out.push(b'}');
    out
}

/// Appends an object, not closed, with the target and the position `next`.
pub(super) fn put_position(
    target: &Target,
    log: &Log,
    position: &Position,
    next: u64,
    out: &mut Vec<u8>,
) {
    out.push(b'{');
    target.put_member(out);
    if matches!(target, Target::Program(_)) {
        out.extend_from_slice(br#","epoch":""#);
        broker_core::log::escape(log.epoch(), out);
        let (seq, recovered) = (log.seq_at(next), position.recovered);
        out.extend_from_slice(format!("\",\"seq\":{seq}").as_bytes());
        if let Some(id) = log.id_at(seq) {
            out.extend_from_slice(br#","id":""#);
            broker_core::log::escape(id, out);
            out.push(b'"');
        }
        out.extend_from_slice(format!(",\"recovered\":{recovered}").as_bytes());
    }
}
