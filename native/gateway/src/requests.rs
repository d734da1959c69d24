//! Messages into calls, calls into answers: at once, or when the application has answered.

use super::super::connection::{ConnId, Rate, SlotIndex};
use super::super::core::Core;
use super::super::refusals::refusal;
use super::super::shared::Counters;
use super::calls::{self, Calls, Pending};
use super::dispatch::Gateway;
use super::params;
use super::upcalls::Upcall;
use crate::protocol::jsonrpc::{self, Call, Incoming, Rejection};

/// Unanswered calls of one connection; then nothing is read from it until half of them are answered.
const MOST_CALLS: usize = 256;

const TOO_LONG: &str =
    "the call was made; its answer is too long beside those of its batch, ask for it alone";

/// What became of a native operation.
pub(super) enum Outcome {
    Result(Vec<u8>),
    Error(Vec<u8>),
    /// The application decides.
    Ask,
    /// It comes when the call has been counted.
    Later,
}

impl Gateway {
    pub(super) fn text(&mut self, core: &mut Core, slot: SlotIndex, text: &str) {
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
        match core.take_rate(slot, 1.0) {
            Rate::Allowed => Some(None),
            Rate::Exceeded => {
                Counters::add(&core.shared.counters.rate_limited, 1);
                Some(Some(error(429, "slow_down", "too many messages")))
            }
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
            None => self.run(core, slot, call, batch),
        };
        let outcome = match outcome {
            Outcome::Ask => match self.ask(core, slot, call, batch.map(|(number, _)| number)) {
                Some(error) => Outcome::Error(error),
                None => return None,
            },
            Outcome::Later => return None,
            other => other,
        };
        render(call.id, &outcome)
    }

    fn run(
        &mut self,
        core: &mut Core,
        slot: SlotIndex,
        call: &Call<'_>,
        batch: Option<(u64, usize)>,
    ) -> Outcome {
        let (number, gathered_bytes) = batch.unzip();
        match call.method.as_ref() {
            "subscribe" => {
                let gathered_bytes = gathered_bytes.unwrap_or(0);
                self.subscribe(core, slot, call.params, gathered_bytes, false)
            }
            "unsubscribe" => Self::unsubscribe(core, slot, call.params),
            "servertime" => Self::servertime(core, call.params),
            "respond" => self.vote(core, slot, call, number, true),
            "impression" => self.vote(core, slot, call, number, false),
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
        let params = call.params.unwrap_or_default().as_bytes().to_vec();
        let asked = self.ask_application(core, slot, &call.method, params, call.id.is_none());
        let Some(ticket) = asked else {
            return Some(error(503, "unavailable", "too many requests are waiting"));
        };
        let pending = Pending {
            ticket,
            id: call.id.map(Box::from),
            batch,
            subscribe: (call.method == "subscribe")
                .then(|| Box::from(call.params.unwrap_or_default())),
            is_cancelled: false,
            ballot: None,
        };
        Self::await_answer(core, slot, pending);
        None
    }

    /// Leaves a call of this connection to the application; its ticket, or None when too much waits there.
    pub(super) fn ask_application(
        &self,
        core: &mut Core,
        slot: SlotIndex,
        method: &str,
        params: Vec<u8>,
        is_notification: bool,
    ) -> Option<u64> {
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
            method: method.to_owned(),
            params,
            is_notification,
        };
        self.hub.upcalls.ask(upcall).then_some(ticket)
    }

    /// Keeps a call until it is answered.
    pub(super) fn await_answer(core: &mut Core, slot: SlotIndex, pending: Pending) {
        let calls = Self::calls(core, slot);
        calls.add(pending);
        if calls.len() >= MOST_CALLS {
            core.set_paused(slot, true);
        }
    }

    /// Delivers the answer to a call that the application had.
    pub(super) fn finish(core: &mut Core, slot: SlotIndex, pending: &Pending, outcome: &Outcome) {
        let mut answer = render(pending.id.as_deref(), outcome);
        let message = match pending.batch {
            None => answer,
            Some(number) => {
                let calls = Self::calls(core, slot);
                let bytes = answer.as_ref().map_or(0, Vec::len);
                if !calls.has_room(number, bytes) {
                    let refused = Outcome::Error(error(413, "payload_too_large", TOO_LONG));
                    answer = render(pending.id.as_deref(), &refused);
                }
                calls.answer_batch(number, answer.as_deref())
            }
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
        core.end_crowding(slot);
    }

    pub(super) fn take_pending(
        core: &mut Core,
        id: ConnId,
        ticket: u64,
    ) -> Option<(SlotIndex, Pending)> {
        let slot = core.find_open(id)?;
        let pending = core.connection(slot).calls.as_mut()?.take(ticket)?;
        Some((slot, pending))
    }

    pub(super) fn retry(&mut self, core: &mut Core, id: ConnId, ticket: u64) {
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
        Outcome::Ask | Outcome::Later => {
            unreachable!("a call that waits is rendered when it is answered")
        }
    }
    Some(out)
}
