//! `respond` and `impression` as calls: from params to packed votes, and from outcomes to the reply.
//!
//! Where a poll allows changes, the votes of a connection are counted in the order sent: while the application
//! processes a call of the connection, it also gets the votes after it, and it waits for votes queued here before it
//! counts one.

use std::fmt::Write;
use std::sync::Arc;

use broker_core::protocol::jsonrpc::Call;
use broker_server::{Counters, SlotIndex, household};

use super::params::{Vote, parse_vote};
use super::polls::{OpenPoll, PackedVote, PollName, Votes};
use super::queue::{Settled, Settlement, Waiting};
use crate::calls::{Pending, Uncounted};
use crate::gateway::{Core, Gateway};
use crate::outcome::Outcome;
use crate::upcalls::Upcall;

const ACCEPTED: &[u8] = br#"{"accepted":1,"duplicates":0}"#;
const DUPLICATE: &[u8] = br#"{"accepted":0,"duplicates":1}"#;

impl Gateway {
    /// Takes one vote. `batch` is the number of its JSON-RPC batch.
    pub(crate) fn vote(
        &mut self,
        core: &mut Core,
        slot: SlotIndex,
        call: &Call<'_>,
        batch: Option<u64>,
        is_answer: bool,
    ) -> Outcome {
        let vote = call.params.and_then(|params| {
            // Checked first: without it, the params need not be read.
            self.hub.votes.get()?;
            parse_vote(params, is_answer)
        });
        let hub = Arc::clone(&self.hub);
        let (Some(vote), Some(votes)) = (vote, hub.votes.get()) else {
            return Outcome::Ask;
        };
        let Some((poll, parts)) = self.read_vote(core, slot, votes, &vote) else {
            return Outcome::Ask;
        };
        if votes.is_full(&poll, &parts) {
            return Outcome::error(503, "unavailable", "too many votes are waiting");
        }
        if !votes.take_tokens(&self.names.connection, &self.names.address) {
            return Outcome::Ask; // the application refuses it, with the full error
        }
        let (ticket, conn) = (hub.next_number(), core.id(slot));
        for (number, part) in parts.iter().enumerate() {
            let tells = number == 0;
            let waiting = Waiting {
                conn,
                ticket,
                tells,
            };
            if let Some(counter) = votes.push(&poll, part, waiting) {
                hub.upcalls.tell(Upcall::Votes { counter });
            }
        }
        let pending = Pending {
            ticket,
            id: call.id.map(Box::from),
            batch,
            subscribe: None,
            is_cancelled: false,
            vote: Some(Uncounted {
                missing: if is_answer { 1 } else { 2 },
                changed: false,
            }),
        };
        Self::await_answer(core, slot, pending);
        Counters::add(&votes.taken, 1);
        Outcome::Later
    }

    /// The records of a vote, the one that decides the reply first; None leaves it to the application. Writes the names
    /// of the connection and of its address.
    fn read_vote(
        &mut self,
        core: &mut Core,
        slot: SlotIndex,
        votes: &Votes,
        vote: &Vote<'_>,
    ) -> Option<(Arc<OpenPoll>, Vec<PackedVote>)> {
        // Called for its effect too: an expired session identifies no visitor.
        let is_anonymous = Self::reader(core, slot).is_none();
        let (now_ms, conn) = (core.shared.now_ms(), core.id(slot));
        let address = core.address(slot).to_canonical();
        let client = core.client(slot);
        let account = client.account.as_ref()?;
        let name = PollName {
            account: &account.name,
            program: vote.program,
            context: vote.context,
            measure: vote.measure,
        };
        let poll = votes.find(&name, now_ms, &mut self.names.poll)?;
        let is_elsewhere = vote.account.is_some_and(|name| name != account.name)
            || vote
                .project
                .is_some_and(|name| !poll.projects.iter().any(|project| project == name));
        // A log-in, or an earlier vote, may be in progress.
        let has_asked = || client.calls.as_ref().is_some_and(|calls| calls.has_asked());
        let is_nameless = vote.visitor.is_none();
        if is_elsewhere
            || (is_nameless && !is_anonymous)
            || ((is_nameless || poll.allow_change) && has_asked())
        {
            return None;
        }
        self.names.connection.clear();
        write!(self.names.connection, "{}/{}", votes.door, conn.0).ok()?;
        self.names.address.clear();
        let size = if address.is_ipv6() { "/64" } else { "" };
        write!(
            self.names.address,
            "{}/{}{size}",
            account.name,
            household(address)
        )
        .ok()?;
        let visitor = vote.visitor.unwrap_or(&self.names.connection);
        let session = vote.session.unwrap_or(&self.names.connection);
        let parts = if vote.choice.is_empty() {
            Vec::from(poll.impression(visitor, session))
        } else {
            vec![poll.answer(visitor, &vote.choice)?]
        };
        Some((poll, parts))
    }

    /// Replies to votes whose records have been counted, or could not be.
    pub(crate) fn settle(core: &mut Core, settled: Vec<Settled>) {
        for one in settled {
            let Some(slot) = core.find_open(one.conn) else {
                continue; // the records are counted all the same
            };
            let calls = core.client(slot).calls.as_mut();
            let done = calls.and_then(|calls| calls.settle(one.ticket, &one.outcome));
            let Some((pending, changed)) = done else {
                continue;
            };
            let outcome = match one.outcome {
                Settlement::Refused(error) => Outcome::Error(error.to_vec()),
                Settlement::Counted(_) if changed => Outcome::Result(ACCEPTED.to_vec()),
                Settlement::Counted(_) => Outcome::Result(DUPLICATE.to_vec()),
            };
            Self::finish(core, slot, &pending, &outcome);
        }
    }
}
