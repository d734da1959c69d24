//! The application of the loop's tests: it has one log. A client follows it, asks the time, or calls what nobody answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker_core::protocol::handshake::Request;
use broker_core::protocol::jsonrpc::{self, Call, Incoming};

use crate::application::{Application, ClientState};
use crate::handler::{Admission, Handler, Message};
use crate::ids::SlotIndex;
use crate::loop_state::Core;
use crate::topics::SharedLog;
use crate::transport::Transport;

/// Calls without an answer; then nothing more is read.
const MOST_CALLS: usize = 256;
/// Of the entries in one answer.
const MOST_BYTES: usize = 1 << 20;

pub(super) struct OneLog {
    pub log: Arc<SharedLog>,
}

/// The calls of a client that nobody has answered.
#[derive(Debug, Default)]
pub(super) struct Calls(usize);

impl ClientState for Calls {
    fn awaits_reply(&self) -> bool {
        self.0 > 0
    }
}

impl Application for OneLog {
    type Client = Calls;
    type Command = ();
}

impl Handler for OneLog {
    fn handshake(
        &mut self,
        core: &mut Core<Self>,
        slot: SlotIndex,
        request: &Request,
    ) -> Admission {
        if !request.upgrade {
            core.set_transport(slot, Transport::Events);
            self.follow(core, slot, 0);
        }
        let query = request.query.as_deref().unwrap_or_default();
        core.set_joined(slot, query.contains("batch=true"));
        if query.contains("alive=true") {
            core.set_alive(slot);
        }
        Admission::Accept
    }

    fn message(&mut self, core: &mut Core<Self>, slot: SlotIndex, message: Message<'_>) {
        let Message::Text(text) = message else { return };
        let Ok(Incoming::Single(call)) = jsonrpc::parse(text) else {
            return;
        };
        let result = match call.method.as_ref() {
            "subscribe" => self.follow(core, slot, read_history(&call)),
            "unsubscribe" => {
                core.unsubscribe(slot, &self.log);
                br#"{"programId":"p"}"#.to_vec()
            }
            "servertime" => b"{}".to_vec(),
            _ => {
                let calls = core.client(slot);
                calls.0 += 1;
                if calls.0 == MOST_CALLS {
                    core.set_paused(slot, true);
                }
                return;
            }
        };
        let mut answer = Vec::new();
        jsonrpc::write_result(call.id.unwrap_or("null"), &result, &mut answer);
        core.send_text(slot, &answer);
    }
}

impl OneLog {
    /// Lets a client follow the log, unless it does, and says from where on, and what came before.
    fn follow(&self, core: &mut Core<Self>, slot: SlotIndex, history: u64) -> Vec<u8> {
        if let Some(cursor) = core.cursor(slot, &self.log) {
            return render(self.log.log.lock().seq_at(cursor), b"");
        }
        let place = core.hold(&self.log);
        let most_bytes = MOST_BYTES.min(core.answer_room(slot));
        let log = self.log.log.lock();
        let begin = if history == 0 {
            log.tip()
        } else {
            log.last(history).0
        };
        let mut items = Vec::new();
        let next = log.put_items(begin, 1_000, most_bytes, &mut items);
        let next = next.unwrap_or(log.tip());
        let (seq, is_behind) = (log.seq_at(next), next != log.tip());
        self.log.subscribers.fetch_add(1, Ordering::AcqRel);
        drop(log);
        core.subscribe(slot, place, next, is_behind);
        render(seq, &items)
    }
}

fn render(seq: u64, items: &[u8]) -> Vec<u8> {
    let mut out =
        format!(r#"{{"programId":"p","seq":{seq},"recovered":true,"events":["#).into_bytes();
    out.extend_from_slice(items);
    out.extend_from_slice(b"]}");
    out
}

fn read_history(call: &Call<'_>) -> u64 {
    let after = call
        .params
        .and_then(|params| params.split(r#""history":"#).nth(1));
    let digits = after.and_then(|text| text.split('}').next());
    digits.map_or(0, |digits| digits.parse().expect("a number"))
}
