//! The callbacks of the server, passed on to the modules that handle them.

use std::num::NonZeroU64;

use broker_core::protocol::handshake::Request;
use broker_server::{Admission, Application, ConnId, Handler, Message, SlotIndex};

use super::client::Client;
use super::commands::{Answer, Command};
use super::gateway::{Core, Gateway};
use super::outcome::Outcome;

impl Application for Gateway {
    type Client = Client;
    type Command = Command;
}

impl Handler for Gateway {
    fn handshake(&mut self, core: &mut Core, slot: SlotIndex, request: &Request) -> Admission {
        self.decide(core, slot, request)
    }

    fn opened(&mut self, core: &mut Core, slot: SlotIndex) {
        core.client(slot).count();
    }

    fn alarm(&mut self, core: &mut Core, slot: SlotIndex) {
        Self::look_at_expiry(core, slot);
    }

    fn message(&mut self, core: &mut Core, slot: SlotIndex, message: Message<'_>) {
        match message {
            Message::Text(text) => self.text(core, slot, text),
            Message::Binary(_) => core.close(slot, 1003, "messages are text"),
        }
    }

    fn command(&mut self, core: &mut Core, command: Command) {
        match command {
            Command::SignIn(id, session) => {
                if let Some(slot) = core.find_open(id) {
                    self.sign_in(core, slot, session);
                }
            }
            Command::EndSessions(connections) => self.end_sessions(core, connections),
            Command::Access(number, undecided) => self.check_access(core, number, undecided),
            Command::Reply(id, ticket, answer, json) => {
                if let Some((slot, pending)) = Self::take_pending(core, id, ticket) {
                    let outcome = match answer {
                        Answer::Result => Outcome::Result(json),
                        Answer::Error => Outcome::Error(json),
                    };
                    Self::finish(core, slot, &pending, &outcome);
                } else if let Some(slot) = find_stream(core, id, ticket) {
                    Self::refuse_stream(core, slot, &json);
                }
            }
            Command::Retry(id, ticket) => {
                if let Some(slot) = find_stream(core, id, ticket) {
                    core.resume(slot);
                } else {
                    self.retry(core, id, ticket);
                }
            }
            Command::Settle(settled) => Self::settle(core, settled),
            Command::Notify(id, message) => {
                if let Some(slot) = core.find_open(id) {
                    core.send_text(slot, &message);
                }
            }
        }
    }

    fn tick(&mut self, core: &mut Core) {
        self.hub.upkeep_when_due(core.now_ms);
    }
}

/// The connection that waits for this decision, to be admitted as an event stream.
fn find_stream(core: &mut Core, id: ConnId, ticket: u64) -> Option<SlotIndex> {
    let slot = core.find_waiting(id)?;
    let asked = core.client(slot).stream_ticket.map(NonZeroU64::get);
    (asked == Some(ticket)).then_some(slot)
}
