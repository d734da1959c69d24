//! Who is sent to when more waits than a turn has time for. Turns are taken by hand; each may serve two connections
//! alone, one before its broadcast and one after.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::*;
use crate::log::Kind;
use crate::protocol::frame::{encode_masked, parse_header};
use crate::server::connection::Connection;
use crate::server::gateway::{Gateway, Hub, OwnedEntry};
use crate::server::send::open_sender;
use crate::server::shared::Shared;
use crate::server::sys::{self, Poll};
use crate::server::{Config, SendChoice};

const TOPIC: &str = "main/program/p";
const WAIT: Duration = Duration::from_secs(20);
/// Some fourteen shares.
const HISTORY: u64 = 90;
const EVENT_BYTES: usize = 10_000;

/// A loop without a thread, with a program.
struct Stage {
    event_loop: Loop<Gateway>,
    hub: Arc<Hub>,
    address: SocketAddr,
    appended: u64,
    ready: Vec<Ready>,
    commands: Vec<Command>,
}

impl Stage {
    fn new(send: SendChoice) -> Self {
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = sys::open_listener(any_port).expect("a free port");
        let address = sys::local_address(&listener).expect("bound");
        let shared = Arc::new(Shared::new(Config::default(), 1).expect("descriptors"));
        let hub = Arc::new(Hub::new(Arc::clone(&shared)).expect("descriptors"));
        let accounts = HashMap::from([("main".to_owned(), None)]);
        hub.set_accounts("localhost", "main", accounts);
        hub.open_log(TOPIC, "e", 0, true);
        let poll = Poll::open().expect("descriptors");
        let core = Core::new(shared, 0, poll, open_sender(send).expect("a way to send"));
        let gateway = Gateway::new(Arc::clone(&hub));
        let mut event_loop = Loop::new(core, gateway, listener).expect("descriptors");
        event_loop.patience = Patience {
            most: Duration::ZERO,
            with_news: Duration::ZERO,
        };
        let mut stage = Self {
            event_loop,
            hub,
            address,
            appended: 0,
            ready: Vec::new(),
            commands: Vec::new(),
        };
        for _ in 0..HISTORY {
            stage.publish();
        }
        stage
    }

    fn publish(&mut self) {
        self.appended += 1;
        let (seq, pad) = (self.appended, "x".repeat(EVENT_BYTES));
        let entry = OwnedEntry {
            kind: Kind::Push,
            epoch: "e".to_owned(),
            seq,
            method: "event".to_owned(),
            params: format!(r#"{{"seq":{seq},"pad":"{pad}"}}"#).into_bytes(),
        };
        self.hub.append(TOPIC, &[entry]).expect("consecutive");
    }

    fn turn(&mut self) {
        // Without the tick, which would serve one more.
        self.event_loop.next_tick_ms = self.event_loop.core.shared.now_ms() + TICK_MS;
        assert!(self.event_loop.turn(&mut self.ready, &mut self.commands));
    }

    fn turn_until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + WAIT;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "in time");
            self.turn();
        }
    }

    fn connect(&mut self) -> Viewer {
        let socket = TcpStream::connect(self.address).expect("the loop listens");
        // So that its window takes a share from the start.
        sockopt::set_socket_recv_buffer_size(&socket, 8 * SHARE_BYTES).expect("a size");
        let mut viewer = Viewer {
            socket,
            bytes: Vec::new(),
            messages: Vec::new(),
        };
        let head = "GET /api/v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
        viewer.socket.write_all(head.as_bytes()).expect("room");
        self.turn_until(|_| viewer.has_head());
        viewer
    }

    /// A viewer that has everything and waits for what comes.
    fn connect_live(&mut self) -> Viewer {
        let mut viewer = self.connect();
        viewer.send(&call("subscribe", ""));
        self.turn_until(|_| viewer.read_what_is_there() == 1);
        viewer
    }

    fn connections(&mut self) -> Vec<&Connection> {
        self.event_loop.core.connections.all()
    }

    /// How many have to wait for the loop.
    fn owed(&mut self) -> usize {
        let all = self.connections();
        all.into_iter().filter(|one| one.is_owed()).count()
    }

    fn unsent_bytes(&mut self) -> Vec<usize> {
        let all = self.connections();
        all.into_iter().map(Connection::unsent_bytes).collect()
    }

    /// Viewers that have asked for all there is and have got none or little of it.
    fn connect_recovering(&mut self, count: usize) -> Vec<Viewer> {
        let mut viewers: Vec<_> = (0..count).map(|_| self.connect()).collect();
        for viewer in &mut viewers {
            viewer.send(&call("subscribe", r#","history":1000"#));
        }
        self.turn_until(|stage| {
            for viewer in &mut viewers {
                viewer.read_what_is_there();
            }
            stage.owed() == count
        });
        viewers
    }
}

/// A client in the same thread.
struct Viewer {
    socket: TcpStream,
    bytes: Vec<u8>,
    messages: Vec<String>,
}

fn call(method: &str, more: &str) -> String {
    let params = format!(r#"{{"programId":"p"{more}}}"#);
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#)
}

impl Viewer {
    fn send(&mut self, text: &str) {
        let mut frame = Vec::new();
        encode_masked(Opcode::Text, text.as_bytes(), [1, 2, 3, 4], &mut frame);
        self.socket.write_all(&frame).expect("room");
    }

    fn has_head(&mut self) -> bool {
        self.receive();
        self.bytes.ends_with(b"\r\n\r\n") && std::mem::take(&mut self.bytes).len() > 4
    }

    fn receive(&mut self) {
        self.socket.set_nonblocking(true).expect("a socket");
        loop {
            let mut buffer = [0; 16_384];
            match self.socket.read(&mut buffer) {
                Ok(0) => return,
                Ok(bytes) => self.bytes.extend_from_slice(&buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("the loop keeps it: {error}"),
            }
        }
    }

    /// Takes the messages that have come, and returns how many there were so far.
    fn read_what_is_there(&mut self) -> usize {
        self.receive();
        while let Some((header, header_bytes)) = parse_header(&self.bytes).expect("whole frames") {
            let end = header_bytes + usize::try_from(header.payload_bytes).expect("small");
            if self.bytes.len() < end {
                break;
            }
            let payload = self.bytes[header_bytes..end].to_vec();
            self.messages
                .push(String::from_utf8_lossy(&payload).into_owned());
            self.bytes.drain(..end);
        }
        self.messages.len()
    }

    /// Waits for the kernel, not for the loop.
    fn wait_for_messages(&mut self, count: usize) {
        let deadline = Instant::now() + WAIT;
        while self.read_what_is_there() < count {
            assert!(Instant::now() < deadline, "it was sent");
        }
    }

    /// The seqs of all events, in the order they came.
    fn seqs(&self) -> Vec<u64> {
        let events = self.messages.iter().flat_map(|message| {
            message
                .split(r#"{"seq":"#)
                .skip(1)
                .filter_map(|rest| rest.split(',').next()?.parse().ok())
        });
        events.collect()
    }
}

#[test]
fn what_is_new_goes_before_what_waits_for_others() {
    for send in [SendChoice::Send, SendChoice::Auto] {
        let mut stage = Stage::new(send);
        let mut live = stage.connect_live();
        let mut recovering = stage.connect_recovering(3);
        stage.publish();
        stage.turn();
        assert_eq!(stage.owed(), 3);
        live.wait_for_messages(2);
        assert_eq!(live.seqs(), [HISTORY + 1]);

        stage.publish();
        stage.turn_until(|_| {
            let counts = recovering.iter_mut().map(Viewer::read_what_is_there);
            counts.min() == Some(3)
        });
        live.wait_for_messages(3);
        assert_eq!(live.seqs(), [HISTORY + 1, HISTORY + 2]);
        for viewer in &recovering {
            let all: Vec<u64> = (1..=HISTORY + 2).collect();
            assert_eq!(viewer.seqs(), all);
        }
    }
}

#[test]
fn those_who_wait_are_sent_to_in_turns() {
    let mut stage = Stage::new(SendChoice::Send);
    let mut recovering = stage.connect_recovering(4);
    for _ in 0..2 {
        let before = stage.unsent_bytes();
        for _ in 0..2 {
            stage.turn();
            for viewer in &mut recovering {
                viewer.read_what_is_there();
            }
        }
        let after = stage.unsent_bytes();
        let sent: Vec<_> = before.iter().zip(after).map(|(a, b)| a - b).collect();
        assert_eq!(sent, [SHARE_BYTES; 4]);
    }
}

#[test]
fn one_who_is_owed_much_is_not_heard_before_it_is_sent() {
    let mut stage = Stage::new(SendChoice::Send);
    let mut viewer = stage.connect();
    let pairs = 20;
    for _ in 0..pairs {
        viewer.send(&call("subscribe", r#","history":1000"#));
        viewer.send(&call("unsubscribe", ""));
    }
    let answer_bytes = EVENT_BYTES * 11 / 10 * usize::try_from(HISTORY).expect("small");
    stage.turn_until(|stage| {
        let [connection] = stage.connections()[..] else {
            panic!("the viewer stays")
        };
        let unsent = connection.unsent_bytes();
        assert!(unsent < SHARE_BYTES + answer_bytes, "{unsent}");
        // What is sent is let go of, though something waits all the time.
        assert!(connection.out.len() <= 2 * unsent, "{unsent}");
        viewer.read_what_is_there() == 2 * pairs
    });
    assert_eq!(viewer.seqs().len() as u64, 20 * HISTORY);
}

#[test]
fn a_loop_that_stops_sends_more_than_a_share() {
    let mut stage = Stage::new(SendChoice::Send);
    let mut viewer = stage.connect();
    viewer.send(&call("subscribe", r#","history":20"#));
    stage.turn_until(|stage| stage.owed() == 1);
    viewer.read_what_is_there();
    stage.event_loop.stop();
    viewer.wait_for_messages(2);
    assert_eq!(viewer.seqs().len(), 20);
    assert!(viewer.messages[1].ends_with("going_away"));
}
