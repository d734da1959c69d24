//! One loop's gateway: handshakes, messages, answers.

use std::sync::Arc;

use super::super::connection::{ConnId, Rate, SlotIndex};
use super::super::core::Core;
use super::super::handler::{Admission, Handler, Message};
use super::super::mailbox::{Answer, Command};
use super::super::turn::refusal;
use super::calls::{self, Calls, Pending};
use super::hub::{DECIDE_MS, Hub};
use super::params;
use super::sessions::{Attached, Session};
use super::upcalls::Upcall;
use crate::protocol::handshake::Request;
use crate::protocol::jsonrpc::{self, Call, Incoming, Rejection};

/// The only path there is.
const PATH: &str = "/api/v1/ws";
/// Unanswered calls of one connection; then nothing is read from it until half of them are answered.
const MOST_CALLS: usize = 256;
/// A client is told so long before its token expires.
const WARNING_MS: u64 = 60_000;
const UPKEEP_MS: u64 = 1_000;

/// The application of a gateway's event loop.
#[derive(Debug)]
pub struct Gateway {
    pub(super) hub: Arc<Hub>,
    next_upkeep_ms: u64,
    /// Whether this loop's gateway does what has to be done once for all loops.
    is_first: bool,
}

/// What became of a native operation.
pub(super) enum Outcome {
    Result(Vec<u8>),
    Error(Vec<u8>),
    /// The application decides.
    Ask,
}

impl Gateway {
    #[must_use]
    pub fn new(hub: Arc<Hub>, loop_index: usize) -> Self {
        Self {
            hub,
            next_upkeep_ms: 0,
            is_first: loop_index == 0,
        }
    }

    // -- sessions

    /// The reader class of a connection now; a token that has expired this instant counts no more.
    pub(super) fn reader(core: &mut Core, slot: SlotIndex) -> Option<u64> {
        let wall_ms = core.shared.wall_ms();
        let session = core.connection(slot).session.as_ref()?;
        if session.expires_ms <= wall_ms {
            Self::sign_out(core, slot, "token_expired");
            return None;
        }
        Some(session.reader)
    }

    fn attach(core: &mut Core, slot: SlotIndex, session: Arc<Session>) {
        let remaining_ms = session.expires_ms.saturating_sub(core.shared.wall_ms());
        let alarm_ms = core
            .now_ms
            .saturating_add(remaining_ms.saturating_sub(WARNING_MS));
        let connection = core.connection(slot);
        connection.session = Some(Attached::new(session));
        connection.warned = false;
        core.set_alarm(slot, Some(alarm_ms));
    }

    /// Makes a connection anonymous and ends what an anonymous one may not follow.
    fn sign_out(core: &mut Core, slot: SlotIndex, reason: &str) {
        core.connection(slot).session = None;
        core.set_alarm(slot, None);
        for log in core.followed(slot) {
            if log.access.lock().allows(None) == Some(false) {
                core.expel(slot, &log, reason);
            }
        }
    }

    fn sign_in(&self, core: &mut Core, slot: SlotIndex, session: Arc<Session>) {
        let is_here = core
            .connection(slot)
            .account
            .as_ref()
            .is_some_and(|account| account.name == session.account);
        if !is_here || session.is_revoked() {
            return;
        }
        let reader = session.reader;
        Self::attach(core, slot, session);
        for log in core.followed(slot) {
            let allowed = log.access.lock().allows(Some(reader));
            match allowed {
                Some(true) => {}
                Some(false) => core.expel(slot, &log, "insufficient_scope"),
                None => {
                    log.access
                        .lock()
                        .decide_by_ms
                        .get_or_insert(core.now_ms + DECIDE_MS);
                    self.hub.upcalls.tell(Upcall::Access {
                        topic: log.topic.clone(),
                        readers: vec![reader],
                    });
                }
            }
        }
    }

    fn end_revoked(core: &mut Core) {
        for slot in core.connections.slots() {
            if core
                .connection(slot)
                .session
                .as_ref()
                .is_some_and(|session| session.is_revoked())
            {
                Self::sign_out(core, slot, "token_revoked");
            }
        }
    }

    /// Looks at the rights of everybody who follows a log on this loop.
    fn check_access(&self, core: &mut Core, number: u64, ask: bool) {
        let Some(log) = core.followed_log(number) else {
            return;
        };
        let is_overdue = log
            .access
            .lock()
            .decide_by_ms
            .is_some_and(|by| core.now_ms >= by);
        let mut undecided = Vec::new();
        for slot in core.followers(number) {
            let reader = Self::reader(core, slot);
            let allowed = log.access.lock().allows(reader);
            match (allowed, reader) {
                (Some(true), _) => {}
                (Some(false), None) => core.expel(slot, &log, "private"),
                (None, Some(reader)) if !is_overdue => {
                    if !undecided.contains(&reader) {
                        undecided.push(reader);
                    }
                }
                _ => core.expel(slot, &log, "insufficient_scope"),
            }
        }
        if ask && !undecided.is_empty() {
            log.access.lock().decide_by_ms = Some(core.now_ms + DECIDE_MS);
            self.hub.upcalls.tell(Upcall::Access {
                topic: log.topic.clone(),
                readers: undecided,
            });
        } else if is_overdue {
            log.access.lock().decide_by_ms = None;
        }
    }

    // -- requests

    fn text(&mut self, core: &mut Core, slot: SlotIndex, text: &str) {
        match jsonrpc::parse(text) {
            Ok(Incoming::Single(call)) => {
                if let Some(answer) = self.answer_call(core, slot, &call, None) {
                    core.send_text(slot, &answer);
                }
            }
            Ok(Incoming::Batch(elements)) => self.batch(core, slot, &elements),
            Err(rejection) => {
                if let Some(answer) = Self::answer_rejection(core, slot, &rejection) {
                    core.send_text(slot, &answer);
                }
            }
        }
    }

    fn batch(
        &mut self,
        core: &mut Core,
        slot: SlotIndex,
        elements: &[Result<Call<'_>, Rejection<'_>>],
    ) {
        let number = self.hub.next_number();
        let (mut answers, waiting_before) = (Vec::new(), Self::waiting(core, slot));
        for element in elements {
            let answer = match element {
                Ok(call) => self.answer_call(core, slot, call, Some((number, answers.len()))),
                Err(rejection) => Self::answer_rejection(core, slot, rejection),
            };
            if let Some(answer) = answer {
                calls::put_answer(&answer, &mut answers);
            }
        }
        if !core.is_open(slot) {
            return;
        }
        let missing = Self::waiting(core, slot) - waiting_before;
        if missing > 0 {
            Self::calls(core, slot).keep_batch(number, missing, answers);
        } else if !answers.is_empty() {
            core.send_text(slot, &calls::finish(answers));
        }
    }

    fn waiting(core: &mut Core, slot: SlotIndex) -> usize {
        core.connection(slot)
            .calls
            .as_ref()
            .map_or(0, |calls| calls.len())
    }

    fn calls(core: &mut Core, slot: SlotIndex) -> &mut Calls {
        core.connection(slot).calls.get_or_insert_default()
    }

    fn answer_rejection(
        core: &mut Core,
        slot: SlotIndex,
        rejection: &Rejection<'_>,
    ) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match Self::rate(core, slot)? {
            Some(error) => jsonrpc::write_error_object(rejection.id, &error, &mut out),
            None => jsonrpc::write_rejection(rejection, &mut out),
        }
        Some(out)
    }

    /// None when the connection has just been closed for flooding; else the error when it is over its rate.
    #[expect(clippy::option_option, reason = "closed, over the rate, or neither")]
    fn rate(core: &mut Core, slot: SlotIndex) -> Option<Option<Vec<u8>>> {
        match core.take_rate(slot) {
            Rate::Allowed => Some(None),
            Rate::Exceeded => Some(Some(error(429, "slow_down", "too many messages"))),
            Rate::Flood => {
                core.close(slot, 1008, "message flood");
                None
            }
        }
    }

    /// Runs one call. Returns its answer, unless there is none or it comes later.
    ///
    /// `batch` is the batch's number and the bytes of answers it has gathered.
    fn answer_call(
        &mut self,
        core: &mut Core,
        slot: SlotIndex,
        call: &Call<'_>,
        batch: Option<(u64, usize)>,
    ) -> Option<Vec<u8>> {
        if !core.is_open(slot) {
            return None;
        }
        let outcome = match Self::rate(core, slot)? {
            Some(error) => Outcome::Error(error),
            None => self.run(core, slot, call, batch.map_or(0, |(_, bytes)| bytes)),
        };
        let outcome = match outcome {
            Outcome::Ask => match self.ask(core, slot, call, batch.map(|(number, _)| number)) {
                Some(error) => Outcome::Error(error),
                None => return None,
            },
            other => other,
        };
        render(call.id, &outcome)
    }

    fn run(
        &mut self,
        core: &mut Core,
        slot: SlotIndex,
        call: &Call<'_>,
        gathered_bytes: usize,
    ) -> Outcome {
        match call.method.as_ref() {
            "subscribe" => self.subscribe(core, slot, call.params, gathered_bytes, false),
            "unsubscribe" => Self::unsubscribe(core, slot, call.params),
            "servertime" => Self::servertime(core, call.params),
            _ => Outcome::Ask,
        }
    }

    fn servertime(core: &Core, params: Option<&str>) -> Outcome {
        let Some(request_time) = params::parse_servertime(params) else {
            return Outcome::Ask;
        };
        let server_time = core.shared.wall_ms();
        Outcome::Result(match request_time {
            Some(time) => {
                format!(r#"{{"serverTime":{server_time},"requestTime":{time}}}"#).into_bytes()
            }
            None => format!(r#"{{"serverTime":{server_time}}}"#).into_bytes(),
        })
    }

    /// Hands a call to the application; returns an error when it has too many already.
    fn ask(
        &mut self,
        core: &mut Core,
        slot: SlotIndex,
        call: &Call<'_>,
        batch: Option<u64>,
    ) -> Option<Vec<u8>> {
        // Looked at for its effect: an expired session must not go along.
        Self::reader(core, slot);
        let (ticket, conn) = (self.hub.next_number(), core.id(slot));
        let connection = core.connection(slot);
        let upcall = Upcall::Call {
            conn,
            ticket,
            account: connection
                .account
                .as_ref()
                .map(|account| account.name.clone())
                .unwrap_or_default(),
            principal: connection
                .session
                .as_ref()
                .map_or(0, |session| session.principal),
            address: connection.address.to_string(),
            method: call.method.clone().into_owned(),
            params: call.params.unwrap_or_default().as_bytes().to_vec(),
            is_notification: call.id.is_none(),
        };
        if !self.hub.upcalls.ask(upcall) {
            return Some(error(503, "unavailable", "too many requests are waiting"));
        }
        let calls = Self::calls(core, slot);
        calls.add(Pending {
            ticket,
            id: call.id.map(Box::from),
            batch,
            subscribe: (call.method == "subscribe")
                .then(|| Box::from(call.params.unwrap_or_default())),
            is_cancelled: false,
        });
        if calls.len() >= MOST_CALLS {
            core.set_paused(slot, true);
        }
        None
    }

    /// Delivers the answer to a call that the application had.
    fn finish(core: &mut Core, slot: SlotIndex, pending: &Pending, outcome: &Outcome) {
        let answer = render(pending.id.as_deref(), outcome);
        let message = match pending.batch {
            None => answer,
            Some(number) => Self::calls(core, slot).answer_batch(number, answer.as_deref()),
        };
        if let Some(message) = message.filter(|message| !message.is_empty()) {
            core.send_text(slot, &message);
        }
        let connection = core.connection(slot);
        let waiting = connection.calls.as_ref().map_or(0, |calls| calls.len());
        if connection
            .calls
            .as_ref()
            .is_some_and(|calls| calls.is_empty())
        {
            connection.calls = None;
        }
        if connection.paused && waiting <= MOST_CALLS / 2 {
            core.set_paused(slot, false);
        }
    }

    fn take_pending(core: &mut Core, id: ConnId, ticket: u64) -> Option<(SlotIndex, Pending)> {
        let slot = core.find_open(id)?;
        let pending = core.connection(slot).calls.as_mut()?.take(ticket)?;
        Some((slot, pending))
    }

    fn retry(&mut self, core: &mut Core, id: ConnId, ticket: u64) {
        let Some((slot, pending)) = Self::take_pending(core, id, ticket) else {
            return;
        };
        let params = pending
            .subscribe
            .as_deref()
            .filter(|params| !params.is_empty());
        let outcome = self.subscribe(core, slot, params, 0, true);
        if pending.is_cancelled {
            // The client has changed its mind meanwhile: it gets its answer and no pushes.
            Self::undo(core, slot, params);
        }
        Self::finish(core, slot, &pending, &outcome);
    }
}

impl Handler for Gateway {
    fn handshake(&mut self, core: &mut Core, slot: SlotIndex, request: &Request) -> Admission {
        if request.path != PATH {
            return Admission::Refuse(refusal(404, "not_found", "there is nothing at this path"));
        }
        if !request.upgrade {
            let mut refusal = refusal(426, "upgrade_required", "this path speaks WebSocket only");
            refusal
                .headers
                .push(("Upgrade".to_owned(), "websocket".to_owned()));
            return Admission::Refuse(refusal);
        }
        let accounts = Arc::clone(&self.hub.accounts.lock());
        let Some(account) = accounts.find(request.host.as_deref()) else {
            return Admission::Refuse(refusal(404, "not_found", "there is no such account"));
        };
        if !account.allows(request.origin.as_deref()) {
            return Admission::Refuse(refusal(
                403,
                "insufficient_scope",
                "the account does not allow this origin",
            ));
        }
        core.connection(slot).account = Some(Arc::clone(&account));
        let token = match find_token(request) {
            Token::None => return Admission::Accept,
            Token::Malformed => return Admission::Refuse(bad_token()),
            Token::Given(token) => token,
        };
        if let Some(session) = self
            .hub
            .grants
            .find(&account.name, &token, core.shared.wall_ms())
        {
            Self::attach(core, slot, session);
            return Admission::Accept;
        }
        let conn = core.id(slot);
        let connection = core.connection(slot);
        let address = connection.address.to_string();
        let Some(pending) = &mut connection.handshake else {
            return Admission::Wait;
        };
        if pending.was_asked {
            return Admission::Refuse(bad_token());
        }
        pending.was_asked = true;
        let upcall = Upcall::Authenticate {
            conn,
            account: account.name.clone(),
            token,
            address,
        };
        if self.hub.upcalls.ask(upcall) {
            return Admission::Wait;
        }
        let mut refusal = refusal(503, "unavailable", "too many handshakes are waiting");
        refusal
            .headers
            .push(("Retry-After".to_owned(), "2".to_owned()));
        Admission::Refuse(refusal)
    }

    fn message(&mut self, core: &mut Core, slot: SlotIndex, message: Message<'_>) {
        match message {
            Message::Text(text) => self.text(core, slot, text),
            Message::Binary(_) => core.close(slot, 1003, "messages are text"),
        }
    }

    fn alarm(&mut self, core: &mut Core, slot: SlotIndex) {
        let (wall_ms, now_ms) = (core.shared.wall_ms(), core.now_ms);
        let connection = core.connection(slot);
        let Some(session) = &connection.session else {
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
        if !std::mem::replace(&mut connection.warned, true) {
            let params = format!(r#"{{"expiresInMs":{remaining_ms}}}"#);
            let mut message = Vec::new();
            jsonrpc::write_notification("tokenExpiring", params.as_bytes(), &mut message);
            core.send_text(slot, &message);
        }
        core.set_alarm(slot, Some(now_ms + remaining_ms));
    }

    fn command(&mut self, core: &mut Core, command: Command) {
        match command {
            Command::SignIn(id, session) => {
                if let Some(slot) = core.find_open(id) {
                    self.sign_in(core, slot, session);
                }
            }
            Command::Revoke => Self::end_revoked(core),
            Command::Access(number, ask) => self.check_access(core, number, ask),
            Command::Reply(id, ticket, answer, json) => {
                if let Some((slot, pending)) = Self::take_pending(core, id, ticket) {
                    let outcome = match answer {
                        Answer::Result => Outcome::Result(json),
                        Answer::Error => Outcome::Error(json),
                    };
                    Self::finish(core, slot, &pending, &outcome);
                }
            }
            Command::Retry(id, ticket) => self.retry(core, id, ticket),
            Command::Notify(id, message) => {
                if let Some(slot) = core.find_open(id) {
                    core.send_text(slot, &message);
                }
            }
            // The loop itself takes these.
            Command::Log(_)
            | Command::Resume(_)
            | Command::Refuse(..)
            | Command::Drain(_)
            | Command::Stop => {}
        }
    }

    fn tick(&mut self, core: &mut Core) {
        if self.is_first && core.now_ms >= self.next_upkeep_ms {
            self.next_upkeep_ms = core.now_ms + UPKEEP_MS;
            self.hub.upkeep();
        }
    }
}

enum Token {
    None,
    Malformed,
    Given(String),
}

/// The token of a handshake; the header counts before the query.
fn find_token(request: &Request) -> Token {
    if let Some(authorization) = &request.authorization {
        return match authorization.split_once(' ') {
            Some((scheme, token))
                if scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() =>
            {
                Token::Given(token.trim().to_owned())
            }
            _ => Token::Malformed,
        };
    }
    match request.query_value("access_token") {
        None => Token::None,
        Some(token) if token.is_empty() => Token::Malformed,
        Some(token) => Token::Given(token),
    }
}

fn bad_token() -> super::super::mailbox::Refusal {
    let mut refusal = refusal(401, "invalid_token", "the access token is not valid");
    refusal
        .headers
        .push(("WWW-Authenticate".to_owned(), "Bearer".to_owned()));
    refusal
}

/// A JSON-RPC error object with the body that the HTTP door would answer.
pub(super) fn error(status: u16, name: &str, description: &str) -> Vec<u8> {
    let body = refusal(status, name, description).body;
    jsonrpc::build_error(i32::from(status), name, Some(&body))
}

/// The whole answer; None for a notification.
fn render(id: Option<&str>, outcome: &Outcome) -> Option<Vec<u8>> {
    let id = id?;
    let mut out = Vec::new();
    match outcome {
        Outcome::Result(json) => jsonrpc::write_result(id, json, &mut out),
        Outcome::Error(json) => jsonrpc::write_error_object(id, json, &mut out),
        Outcome::Ask => unreachable!("a call that the application has is answered by it"),
    }
    Some(out)
}
