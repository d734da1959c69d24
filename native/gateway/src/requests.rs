//! Turns messages into calls, and routes each call: native code, or the application.

use broker_core::protocol::jsonrpc::{self, Call, Incoming, Rejection};
use broker_server::{ConnId, Counters, Rate, Refusal, SlotIndex};

use super::calls::{self, Pending};
use super::gateway::{Core, Gateway};
use super::outcome::{Outcome, error};
use super::params;

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
        let (mut answers, waiting_before) = (Vec::new(), core.client(slot).waiting());
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
        let missing = core.client(slot).waiting() - waiting_before;
        if missing > 0 {
            Self::calls(core, slot).keep_batch(number, missing, answers);
        } else if !answers.is_empty() {
            core.send_text(slot, &calls::finish(answers));
        }
    }

    fn answer_rejection(
        core: &mut Core,
        slot: SlotIndex,
        rejection: &Rejection<'_>,
    ) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        if let Some(error) = Self::rate(core, slot)? {
            jsonrpc::write_error_object(rejection.id, &error, &mut out);
        } else {
            let body = Refusal::json(400, "invalid_request", &rejection.fault.to_string()).body;
            jsonrpc::write_rejection(rejection, &body, &mut out);
        }
        Some(out)
    }

    /// None when the connection was closed just now for flooding; else the error if it is over its rate.
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

    /// Runs one call. Returns its reply, unless there is none or it follows later.
    ///
    /// `batch` is the number of the batch and the bytes of replies that it has gathered.
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
        outcome.render(call.id)
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

    /// Passes a call to the application; returns an error when too many are pending.
    fn ask(
        &mut self,
        core: &mut Core,
        slot: SlotIndex,
        call: &Call<'_>,
        batch: Option<u64>,
    ) -> Option<Vec<u8>> {
        // Called for its effect: an expired session must not be passed along.
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
            vote: None,
        };
        Self::await_answer(core, slot, pending);
        None
    }

    /// Runs a `subscribe` again, after the application has prepared what it could.
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
            // The client has unsubscribed in the meantime: it gets its reply and no pushes.
            Self::undo(core, slot, params);
        }
        Self::finish(core, slot, &pending, &outcome);
    }
}
