//! Sends every message back: the conformance cases' server.
//!
//! `echo ADDRESS` runs the gateway's own protocol and server code. Only the handler differs, and the limits: messages
//! of up to 16 MiB, answers that are deflated however short or long they are, because the cases look at each of them,
//! and no pings, because a case that takes long does not expect one, and any number of frames a second.
//! SIGTERM ends it, as it ends any program that does not ask otherwise.

use std::error::Error;
use std::net::SocketAddr;
use std::thread;

use broker_core::protocol::Opcode;
use broker_core::protocol::handshake::Request;
use broker_server::{Admission, Application, Config, Core, Handler, Message, Server, SlotIndex};

const MESSAGE_LIMIT_BYTES: usize = 16 << 20;
/// An hour, longer than any case.
const PING_MS: u64 = 3_600_000;

struct Echo;

impl Application for Echo {
    type Client = ();
    type Command = ();
}

impl Handler for Echo {
    fn handshake(
        &mut self,
        _core: &mut Core<Self>,
        _slot: SlotIndex,
        _request: &Request,
    ) -> Admission {
        Admission::Accept
    }

    fn message(&mut self, core: &mut Core<Self>, slot: SlotIndex, message: Message<'_>) {
        match message {
            Message::Text(text) => core.send(slot, Opcode::Text, text.as_bytes()),
            Message::Binary(bytes) => core.send(slot, Opcode::Binary, bytes),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = std::env::args()
        .nth(1)
        .ok_or("usage: echo ADDRESS")?
        .parse()?;
    let server = Server::new(Config {
        host: address.ip().to_string(),
        port: address.port(),
        message_limit_bytes: MESSAGE_LIMIT_BYTES,
        deflated_bytes: 0..=MESSAGE_LIMIT_BYTES,
        ping_ms: PING_MS,
        messages_per_s: 0.0,
        lag_bytes: 4 * MESSAGE_LIMIT_BYTES as u64,
        ..Config::default()
    })?;
    server.start(|_| Echo)?;
    loop {
        thread::park();
    }
}
