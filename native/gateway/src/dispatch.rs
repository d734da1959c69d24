//! One loop's gateway: what happens on the loop, handed to who knows about it.

use std::sync::Arc;

use super::super::connection::SlotIndex;
use super::super::core::Core;
use super::super::handler::{Admission, Handler, Message};
use super::super::mailbox::{Answer, Command};
use super::hub::Hub;
use super::requests::Outcome;
use super::votes::Names;
use crate::protocol::handshake::Request;

/// The application of a gateway's event loop.
#[derive(Debug)]
pub struct Gateway {
    pub(super) hub: Arc<Hub>,
    pub(super) names: Names,
}

impl Gateway {
    #[must_use]
    pub fn new(hub: Arc<Hub>) -> Self {
        Self {
            hub,
            names: Names::default(),
        }
    }
}

impl Handler for Gateway {
    fn handshake(&mut self, core: &mut Core, slot: SlotIndex, request: &Request) -> Admission {
        self.decide(core, slot, request)
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
            Command::Revoke(connections) => Self::end_revoked(core, connections),
            Command::Access(number, undecided) => self.check_access(core, number, undecided),
            Command::Reply(id, ticket, answer, json) => {
                if let Some((slot, pending)) = Self::take_pending(core, id, ticket) {
                    let outcome = match answer {
                        Answer::Result => Outcome::Result(json),
                        Answer::Error => Outcome::Error(json),
                    };
                    Self::finish(core, slot, &pending, &outcome);
                } else if core.has_asked(id, ticket) {
                    Self::refuse_stream(core, id, &json);
                }
            }
            Command::Retry(id, ticket) => self.retry(core, id, ticket),
            Command::Settle(settled) => Self::settle(core, settled),
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
            | Command::Probe
            | Command::Stop => {}
        }
    }

    fn tick(&mut self, core: &mut Core) {
        self.hub.upkeep_when_due(core.now_ms);
    }
}
