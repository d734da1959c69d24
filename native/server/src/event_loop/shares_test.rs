//! Who is sent to when more waits than a turn has time for. Turns are taken by hand; each may serve two connections
//! alone, one before its broadcast and one after, and broadcasts one slice.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::net::sockopt;

use broker_core::log::{Entry, Kind, Log};
use broker_core::protocol::frame::{Opcode, encode_masked, parse_header};

use super::application_test::{Calls, OneLog};
use super::*;
use crate::send::open_sender;
use crate::shared::Shared;
use crate::sys::{self, Poll};
use crate::topics::SharedLog;
use crate::{Config, SendChoice};

/// A connection of the application.
pub(super) type Connection = crate::connection::Connection<Calls>;

const TOPIC: &str = "main/program/p";
const WAIT: Duration = Duration::from_secs(20);
/// Some fourteen shares.
pub(super) const HISTORY: u64 = 90;
const EVENT_BYTES: usize = 10_000;

/// A loop without a thread, with a program.
pub(super) struct Stage {
    pub event_loop: EventLoop<OneLog>,
    shared: Arc<Shared<()>>,
    pub log: Arc<SharedLog>,
    address: SocketAddr,
    appended: u64,
    ready: Vec<Ready>,
    commands: Vec<Command<()>>,
}

impl Stage {
    /// Without events.
    pub fn empty() -> Self {
        Self::with_history(SendChoice::Send, 0)
    }

    pub fn new(send: SendChoice) -> Self {
        Self::with_history(send, HISTORY)
    }

    fn with_history(send: SendChoice, history: u64) -> Self {
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = sys::open_listener(any_port).expect("a free port");
        let address = sys::local_address(&listener).expect("bound");
        let shared = Arc::new(Shared::new(Config::default(), 1).expect("descriptors"));
        let log = Log::new("e", 0, shared.config.history);
        let log = Arc::new(SharedLog::new(1, TOPIC, log, true, 0));
        let poll = Poll::open().expect("descriptors");
        let sender = open_sender(send, &shared.send_way).expect("a way to send");
        let core = Core::new(Arc::clone(&shared), 0, poll, sender);
        let application = OneLog {
            log: Arc::clone(&log),
        };
        let mut event_loop = EventLoop::new(core, application, listener).expect("descriptors");
        event_loop.patience = Patience {
            most: Duration::ZERO,
            with_news: Duration::ZERO,
            share: u32::MAX,
        };
        event_loop.broadcast = Duration::ZERO;
        let mut stage = Self {
            event_loop,
            shared,
            log,
            address,
            appended: 0,
            ready: Vec::new(),
            commands: Vec::new(),
        };
        for _ in 0..history {
            stage.publish();
        }
        stage
    }

    pub fn publish(&mut self) {
        self.publish_long(EVENT_BYTES);
    }

    pub fn publish_long(&mut self, bytes: usize) {
        self.appended += 1;
        let (seq, pad) = (self.appended, "x".repeat(bytes));
        let params = format!(r#"{{"seq":{seq},"pad":"{pad}"}}"#);
        let entry = Entry {
            kind: Kind::Push,
            epoch: "e",
            seq,
            method: "event",
            params: params.as_bytes(),
        };
        let appended = self.log.log.lock().append(&entry, self.shared.now_ms());
        appended.expect("consecutive");
        self.announce();
    }

    pub fn announce(&self) {
        self.log
            .announce(&self.shared.mailboxes, self.shared.now_us());
    }

    /// So that the next turn does not sleep when there is nothing to do.
    pub fn wake(&self) {
        self.shared.mailboxes[0].send(Command::Probe);
    }

    pub fn turn(&mut self) {
        // Without the tick, which would serve one more.
        self.event_loop.next_tick_ms = self.event_loop.core.shared.now_ms() + TICK_MS;
        assert!(self.event_loop.turn(&mut self.ready, &mut self.commands));
    }

    pub fn turn_until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + WAIT;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "in time");
            self.turn();
        }
    }

    pub fn connect(&mut self) -> Viewer {
        // So that its window takes a share from the start.
        self.connect_with_room(8 * SHARE_BYTES)
    }

    fn connect_with_room(&mut self, bytes: usize) -> Viewer {
        self.connect_to("/api/v1/ws", bytes)
    }

    pub fn connect_to(&mut self, target: &str, bytes: usize) -> Viewer {
        let mut viewer = self.connect_silently();
        sockopt::set_socket_recv_buffer_size(&viewer.socket, bytes).expect("a size");
        let head = format!(
            "GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        viewer.socket.write_all(head.as_bytes()).expect("room");
        self.turn_until(|_| viewer.has_head());
        viewer
    }

    /// One that has not sent its request.
    pub fn connect_silently(&self) -> Viewer {
        let socket = TcpStream::connect(self.address).expect("the loop listens");
        socket.set_nodelay(true).expect("a socket");
        Viewer {
            socket,
            asked: 0,
            bytes: Vec::new(),
            messages: Vec::new(),
        }
    }

    /// A viewer that has everything and waits for what comes.
    pub fn connect_live(&mut self) -> Viewer {
        let mut viewer = self.connect();
        viewer.send(&call("subscribe", ""));
        self.turn_until(|_| viewer.read_what_is_there() == 1);
        viewer
    }

    pub fn connections(&mut self) -> Vec<&Connection> {
        self.event_loop.core.connections.all()
    }

    /// Viewers of new events, with a loop that sends to two of them in a turn.
    fn connect_crowd(&mut self, count: usize) -> Vec<Viewer> {
        self.event_loop.core.slice = 2;
        (0..count).map(|_| self.connect_live()).collect()
    }

    /// How many have to wait for the loop.
    fn owed(&mut self) -> usize {
        let all = self.connections();
        all.into_iter().filter(|one| one.is_owed()).count()
    }

    fn unsent_bytes(&mut self) -> Vec<usize> {
        let all = self.connections();
        all.into_iter().map(|one| one.out.unsent_bytes()).collect()
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
pub(super) struct Viewer {
    socket: TcpStream,
    /// Calls sent.
    asked: usize,
    bytes: Vec<u8>,
    pub messages: Vec<String>,
}

const SERVERTIME: &str = r#"{"jsonrpc":"2.0","id":1,"method":"servertime"}"#;

/// Waits for the kernel until all have `count` messages together; returns how many they have.
fn wait_for_all(viewers: &mut [Viewer], count: usize) -> usize {
    let deadline = Instant::now() + WAIT;
    loop {
        let counts = viewers.iter_mut().map(Viewer::read_what_is_there);
        let received = counts.sum();
        if received >= count {
            return received;
        }
        assert!(Instant::now() < deadline, "{received} instead of {count}");
    }
}

/// Whether each has `count` messages.
fn has_each(viewers: &mut [Viewer], count: usize) -> bool {
    let mut counts = viewers.iter_mut().map(Viewer::read_what_is_there);
    counts.all(|received| received == count)
}

pub(super) fn call(method: &str, more: &str) -> String {
    let params = format!(r#"{{"programId":"p"{more}}}"#);
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#)
}

impl Viewer {
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("room");
    }

    /// Sends what the socket takes at once, and returns how many bytes that were.
    pub fn send_some(&mut self, bytes: &[u8]) -> usize {
        self.socket.set_nonblocking(true).expect("a socket");
        self.socket.write(bytes).unwrap_or(0)
    }

    pub fn send(&mut self, text: &str) {
        self.asked += 1;
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
    pub fn read_what_is_there(&mut self) -> usize {
        self.receive();
        while let Some((header, header_bytes)) = parse_header(&self.bytes).expect("whole frames") {
            let end = header_bytes + usize::try_from(header.payload_bytes).expect("small");
            if self.bytes.len() < end {
                break;
            }
            let payload = &self.bytes[header_bytes..end];
            let is_event = payload.starts_with(br#"{"jsonrpc":"2.0","method":"event""#);
            // An event's padding is not looked at again.
            let kept = if is_event { 80 } else { payload.len() };
            let text = String::from_utf8_lossy(&payload[..kept.min(payload.len())]);
            self.messages.push(text.into_owned());
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

    /// Whether all calls are answered.
    fn is_answered(&mut self) -> bool {
        self.read_what_is_there();
        let answers = self
            .messages
            .iter()
            .filter(|text| text.contains(r#""id":1"#));
        answers.count() == self.asked
    }

    /// The seq up to which the viewer has all since it last subscribed, if it follows.
    fn position(&self) -> Option<u64> {
        let mut position = None;
        for message in &self.messages {
            let seq = message.split(r#""seq":"#).nth(1).map(|rest| {
                let end = rest.find(',').expect("more follows");
                rest[..end].parse::<u64>().expect("a number")
            });
            if message.contains(r#""method":"event""#) {
                assert_eq!(seq, position.map(|seq| seq + 1), "each once, in order");
                position = seq;
            } else if message.contains(r#""recovered""#) {
                assert!(position.is_none() || position == seq, "nothing is missing");
                position = seq;
            } else if message.contains(r#""programId""#) {
                position = None;
            }
        }
        position
    }

    /// The seqs of all events, in the order they came.
    pub fn seqs(&self) -> Vec<u64> {
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
        let unsent = connection.out.unsent_bytes();
        assert!(unsent < SHARE_BYTES + answer_bytes, "{unsent}");
        // What is sent is let go of, though something waits all the time.
        assert!(connection.out.bytes.len() <= 2 * unsent, "{unsent}");
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

#[test]
fn a_broadcast_goes_in_slices_and_who_speaks_meanwhile_is_heard() {
    for send in [SendChoice::Send, SendChoice::Auto] {
        let mut stage = Stage::with_history(send, 0);
        let mut crowd = stage.connect_crowd(6);
        let mut speaker = stage.connect();
        for round in 1..=3 {
            stage.publish();
            speaker.send(SERVERTIME);
            stage.turn();
            // Two have the event, all have had the answer to their `subscribe` and the events before.
            assert_eq!(wait_for_all(&mut crowd, 6 * round + 2), 6 * round + 2);
            speaker.read_what_is_there();
            stage.turn_until(|_| speaker.read_what_is_there() == round);
            stage.turn_until(|_| has_each(&mut crowd, 1 + round));
        }
        for viewer in &crowd {
            assert_eq!(viewer.seqs(), [1, 2, 3]);
        }
    }
}

#[test]
fn taking_in_has_a_share_of_what_the_broadcast_took_in_the_turn_before() {
    let mut stage = Stage::with_history(SendChoice::Send, 0);
    let mut crowd = stage.connect_crowd(6);
    stage.event_loop.patience.share = 1;
    stage.publish();
    let began = Instant::now();
    stage.turn();
    let share = stage.event_loop.core.share;
    assert!(share > Duration::ZERO && share <= began.elapsed());
    stage.turn_until(|_| has_each(&mut crowd, 2));
}

#[test]
fn what_comes_during_a_broadcast_goes_along() {
    let mut stage = Stage::with_history(SendChoice::Send, 0);
    let mut crowd = stage.connect_crowd(6);
    for _ in 0..3 {
        stage.publish();
        stage.turn();
    }
    // Two have had one event, the next two have had two, and the last two all three.
    wait_for_all(&mut crowd, 6 + 2 + 4 + 6);
    let mut received: Vec<_> = crowd.iter().map(|one| one.seqs().len()).collect();
    received.sort_unstable();
    assert_eq!(received, [1, 1, 2, 2, 3, 3]);
    stage.turn_until(|_| has_each(&mut crowd, 4));
}

#[test]
fn an_answer_and_what_is_new_go_in_one_write() {
    let mut stage = Stage::with_history(SendChoice::Send, 0);
    let mut viewer = stage.connect_live();
    let slot = stage.event_loop.core.connections.slots().start;
    let mut crowd = stage.connect_crowd(4);
    stage.publish();
    stage.turn();
    // The last ones have it first; the viewer, who came before them, not yet.
    stage.event_loop.core.send_text(slot, b"{}");
    let before = sys::writes();
    stage.turn_until(|_| viewer.read_what_is_there() == 3);
    assert_eq!(sys::writes() - before, 1);
    assert_eq!(viewer.messages[1], "{}");
    stage.turn_until(|_| has_each(&mut crowd, 2));
}

/// What may happen between two turns.
#[derive(Clone, Debug)]
enum Step {
    Publish(usize),
    Call(usize),
    Subscribe(usize),
    Unsubscribe(usize),
    Read(usize),
    Turn,
}

fn step() -> impl Strategy<Value = Step> {
    let viewer = 0..5usize;
    prop_oneof![
        4 => prop_oneof![4 => 0..300usize, 1 => 60_000..100_000usize].prop_map(Step::Publish),
        1 => viewer.clone().prop_map(Step::Call),
        1 => viewer.clone().prop_map(Step::Subscribe),
        1 => viewer.clone().prop_map(Step::Unsubscribe),
        1 => viewer.prop_map(Step::Read),
        8 => Just(Step::Turn),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Some do not read for a while and are served alone then, some come and go while a broadcast is under way.
    #[test]
    fn nobody_misses_or_doubles_an_event_of_a_sliced_broadcast(
        steps in proptest::collection::vec(step(), 1..80),
        slice in 1..4usize,
        is_ring in any::<bool>(),
    ) {
        let send = if is_ring { SendChoice::Auto } else { SendChoice::Send };
        let mut stage = Stage::with_history(send, 0);
        stage.event_loop.core.slice = slice;
        let mut viewers: Vec<_> = (0..5).map(|_| stage.connect_with_room(2 * SHARE_BYTES)).collect();
        for viewer in &mut viewers {
            viewer.send(&call("subscribe", ""));
        }
        for step in steps {
            match step {
                Step::Publish(bytes) => stage.publish_long(bytes),
                Step::Call(viewer) => viewers[viewer].send(SERVERTIME),
                Step::Subscribe(viewer) => viewers[viewer].send(&call("subscribe", "")),
                Step::Unsubscribe(viewer) => viewers[viewer].send(&call("unsubscribe", "")),
                Step::Read(viewer) => {
                    viewers[viewer].read_what_is_there();
                }
                Step::Turn => {
                    stage.wake();
                    stage.turn();
                }
            }
        }
        for viewer in &mut viewers {
            viewer.send(&call("subscribe", ""));
        }
        stage.turn_until(|_| viewers.iter_mut().all(Viewer::is_answered));
        stage.publish();
        let last = stage.appended;
        stage.turn_until(|_| {
            viewers.iter_mut().all(|one| {
                one.read_what_is_there();
                one.position() == Some(last)
            })
        });
    }
}
