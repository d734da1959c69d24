//! A gateway without Python, and clients of it.
#![allow(dead_code, reason = "no test uses all of it")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use broker_core::log::Kind;
use broker_core::protocol::frame::{Opcode, encode_masked};
use broker_core::protocol::{Decoder, Inflater, Item, Role};
use broker_gateway::{Gateway, Hub, OwnedEntry, Server};
use broker_server::{Config, SendChoice};

/// A request for a WebSocket, without the empty line at its end.
pub const HEAD: &str = "GET /api/v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
pub const TOPIC: &str = "main/program/p";
pub const WAIT: Duration = Duration::from_secs(20);

/// A gateway with one program.
pub struct Running {
    pub server: Server,
    pub hub: Arc<Hub>,
    pub port: u16,
}

pub fn start(config: Config) -> Running {
    start_prepared(config, |_| ())
}

/// As `start`; `prepare` is called before there are loops.
pub fn start_prepared(config: Config, prepare: impl FnOnce(&Hub)) -> Running {
    let server = Server::new(config).expect("a good configuration");
    let hub = Arc::new(Hub::new(Arc::clone(server.shared())).expect("descriptors"));
    let accounts = HashMap::from([("main".to_owned(), None)]);
    hub.set_accounts("localhost", "main", accounts);
    hub.open_log(TOPIC, "e", 0, true);
    prepare(&hub);
    let port = Gateway::start(&server, &hub).expect("a free port");
    Running { server, hub, port }
}

/// Two loops, and no limit on messages.
pub fn config(send: SendChoice) -> Config {
    Config {
        loops: 2,
        send,
        messages_per_s: 0.0,
        ..Config::default()
    }
}

/// The push `seq` with so many bytes of padding.
pub fn push(seq: u64, bytes: usize) -> OwnedEntry {
    let pad = "x".repeat(bytes);
    OwnedEntry {
        kind: Kind::Push,
        epoch: "e".to_owned(),
        seq,
        method: "event".to_owned(),
        params: format!(r#"{{"seq":{seq},"pad":"{pad}"}}"#).into_bytes(),
    }
}

/// A client that keeps what it was sent.
pub struct Client {
    pub socket: TcpStream,
    decoder: Decoder,
    inflater: Inflater,
    pub messages: Vec<String>,
    pub closed: Option<u16>,
}

impl Client {
    pub fn connect(port: u16, deflate: bool) -> Self {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        socket
            .set_read_timeout(Some(WAIT))
            .expect("a positive time");
        let extension = if deflate {
            "Sec-WebSocket-Extensions: permessage-deflate\r\n"
        } else {
            ""
        };
        let request = format!("{HEAD}{extension}\r\n");
        socket.write_all(request.as_bytes()).expect("room");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).expect("an answer");
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "));
        Self {
            socket,
            decoder: Decoder::new(Role::Client, 1 << 26, deflate),
            inflater: Inflater::new(),
            messages: Vec::new(),
            closed: None,
        }
    }

    pub fn send(&mut self, text: &str) {
        let mut frame = Vec::new();
        encode_masked(Opcode::Text, text.as_bytes(), [1, 2, 3, 4], &mut frame);
        self.socket.write_all(&frame).expect("room");
    }

    pub fn send_close(&mut self) {
        let mut frame = Vec::new();
        encode_masked(
            Opcode::Close,
            &1000u16.to_be_bytes(),
            [1, 2, 3, 4],
            &mut frame,
        );
        self.socket.write_all(&frame).expect("room");
    }

    pub fn call(&mut self, id: u64, method: &str, params: &str) {
        self.send(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
        ));
    }

    /// Reads once, at most `bytes`; false at the end of the stream.
    pub fn read(&mut self, bytes: usize) -> bool {
        let mut buffer = vec![0; bytes];
        let got = self.socket.read(&mut buffer).expect("bytes in time");
        let (messages, closed) = (&mut self.messages, &mut self.closed);
        let mut answer = Vec::new();
        self.decoder
            .feed(&mut buffer[..got], &mut self.inflater, &mut |item| {
                match item {
                    Item::Text(text) => messages.push(text.to_owned()),
                    Item::Close { code, .. } => *closed = code,
                    Item::Ping(payload) => {
                        encode_masked(Opcode::Pong, payload, [1; 4], &mut answer);
                    }
                    _ => {}
                }
                true
            })
            .expect("the server keeps the protocol");
        if closed.is_none() {
            self.socket.write_all(&answer).expect("room");
        }
        got > 0 && self.closed.is_none()
    }

    pub fn read_until(&mut self, done: impl Fn(&[String]) -> bool) {
        while !done(&self.messages) {
            assert!(self.read(65_536), "closed {:?} before the end", self.closed);
        }
    }
}

/// Memory of this process that is really there.
pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = status
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok());
    pages.map_or(0, |pages: usize| pages * 4_096)
}

/// CPU seconds, user and system, of all threads of the gateway.
pub fn loops_cpu_s() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let ticks = tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (name, rest) = stat.split_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let spent: u32 =
            fields.get(11)?.parse::<u32>().ok()? + fields.get(12)?.parse::<u32>().ok()?;
        name.contains("broker-loop").then_some(spent)
    });
    f64::from(ticks.sum::<u32>()) / 100.0
}

/// Descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux").count()
}
