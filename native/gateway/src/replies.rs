//! Pending calls: passed to the application, stored, found again, answered.

use broker_server::{ConnId, SlotIndex};

use super::calls::{Calls, Pending};
use super::gateway::{Core, Gateway};
use super::outcome::Outcome;
use super::upcalls::Upcall;

/// Pending calls of one connection at which reading from it stops, until half of them are answered.
const MOST_CALLS: usize = 256;

const TOO_LONG: &str = "the call was carried out, but its reply does not fit into the reply of its batch; make the call alone";

impl Gateway {
    pub(super) fn calls(core: &mut Core, slot: SlotIndex) -> &mut Calls {
        core.client(slot).calls.get_or_insert_default()
    }

    /// Passes a call of this connection to the application; returns its ticket, or None when the queue is full.
    pub(super) fn ask_application(
        &self,
        core: &mut Core,
        slot: SlotIndex,
        method: &str,
        params: Vec<u8>,
        is_notification: bool,
    ) -> Option<u64> {
        let (ticket, conn) = (self.hub.next_number(), core.id(slot));
        let address = core.address(slot).to_string();
        let client = core.client(slot);
        let session = client.session.as_ref();
        let upcall = Upcall::Call {
            conn,
            ticket,
            account: client.account_name(),
            principal: session.map_or(0, |session| session.principal),
            address,
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

    /// Removes a pending call.
    pub(super) fn take_pending(
        core: &mut Core,
        id: ConnId,
        ticket: u64,
    ) -> Option<(SlotIndex, Pending)> {
        let slot = core.find_open(id)?;
        let pending = core.client(slot).calls.as_mut()?.take(ticket)?;
        Some((slot, pending))
    }

    /// Delivers the reply to a pending call.
    pub(super) fn finish(core: &mut Core, slot: SlotIndex, pending: &Pending, outcome: &Outcome) {
        let mut answer = outcome.render(pending.id.as_deref());
        let message = match pending.batch {
            None => answer,
            Some(number) => {
                let calls = Self::calls(core, slot);
                let bytes = answer.as_ref().map_or(0, Vec::len);
                if !calls.has_room(number, bytes) {
                    let refused = Outcome::error(413, "payload_too_large", TOO_LONG);
                    answer = refused.render(pending.id.as_deref());
                }
                calls.answer_batch(number, answer.as_deref())
            }
        };
        if let Some(message) = message.filter(|message| !message.is_empty()) {
            core.send_text(slot, &message);
        }
        let calls = &mut core.client(slot).calls;
        if calls.as_ref().is_some_and(|calls| calls.is_empty()) {
            *calls = None;
        }
        let waiting = core.client(slot).waiting();
        if core.is_paused(slot) && waiting <= MOST_CALLS / 2 {
            core.set_paused(slot, false);
        }
        core.end_crowding(slot);
    }
}
