//! Clients that mean harm: each is ended as it should be, costs bounded memory and time, and keeps nobody else from
//! being served.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use broker_core::protocol::frame::{Opcode, encode_masked};
use broker_core::protocol::{Decoder, Deflater, Inflater, Item, Role};
use broker_gateway::{Answer, Hub, OpenPoll, PollName, Rates, Upcall, Votes};
use broker_server::{Config, ConnId, SendChoice};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use support::{
    Client, HEAD, Running, TOPIC, WAIT, config, loops_cpu_s, push, resident_bytes, start_prepared,
};

const MIB: usize = 1 << 20;
/// What an attack may add to this process, its own sockets and messages included.
const GROWTH_BYTES: usize = 48 * MIB;
/// What it may cost the loop, in a build without optimisation.
const CPU_S: f64 = 6.0;

/// A request for an event stream, without the empty line at its end.
const STREAM: &str = "GET /api/v1/programs/p/events/stream HTTP/1.1\r\nHost: localhost\r\n";
const HEADS: [&str; 2] = [HEAD, STREAM];

/// One attack at a time, because memory and time are the whole process's.
static ALONE: Mutex<()> = Mutex::new(());

/// A gateway under attack, and somebody who wants to be served meanwhile.
struct Scene {
    running: Running,
    witness: Client,
    appended: u64,
    before: (usize, f64),
    _alone: MutexGuard<'static, ()>,
}

impl Scene {
    fn new(config: Config) -> Self {
        Self::prepared(config, |_| ())
    }

    fn prepared(config: Config, prepare: impl FnOnce(&Hub)) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let running = start_prepared(Config { loops: 1, ..config }, prepare);
        let mut witness = Client::connect(running.port, false);
        witness.call(1, "subscribe", r#"{"programId":"p"}"#);
        witness.read_until(|messages| messages.len() == 1);
        let before = (resident_bytes(), loops_cpu_s());
        Self {
            running,
            witness,
            appended: 0,
            before,
            _alone: alone,
        }
    }

    fn attackers(&self, count: usize) -> Vec<Attacker> {
        (0..count).map(|_| Attacker::open(self, true)).collect()
    }

    fn publish(&mut self, bytes: usize) {
        self.appended += 1;
        let hub = &self.running.hub;
        hub.append(TOPIC, &[push(self.appended, bytes)])
            .expect("consecutive");
    }

    /// The witness gets a push and an answer.
    fn check_service(&mut self) {
        self.publish(10);
        self.witness.call(2, "servertime", "{}");
        let newest = format!(r#""params":{{"seq":{},"#, self.appended);
        self.witness.read_until(|messages| {
            let has = |text: &str| messages.iter().any(|message| message.contains(text));
            has(&newest) && has("serverTime")
        });
        self.witness.messages.clear();
    }

    /// Also: what the attack has cost is bounded.
    fn check(&mut self) {
        self.check_service();
        let grown = resident_bytes().saturating_sub(self.before.0);
        assert!(grown < GROWTH_BYTES, "{grown} bytes");
        let cpu_s = loops_cpu_s() - self.before.1;
        assert!(cpu_s < CPU_S, "{cpu_s} s of a core");
    }

    fn wait_for(&self, what: &str, is_so: impl Fn(&Running) -> bool) {
        let deadline = Instant::now() + WAIT;
        while !is_so(&self.running) {
            assert!(Instant::now() < deadline, "in time: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Takes calls as an application does, until there were `count`, and answers none.
    fn take_calls(&self, count: usize) -> Vec<(ConnId, u64)> {
        let (mut calls, deadline) = (Vec::new(), Instant::now() + WAIT);
        while calls.len() < count && Instant::now() < deadline {
            let taken = self.running.hub.upcalls.take(usize::MAX);
            calls.extend(taken.into_iter().filter_map(|upcall| match upcall {
                Upcall::Call { conn, ticket, .. } => Some((conn, ticket)),
                _ => None,
            }));
            std::thread::sleep(Duration::from_millis(1));
        }
        calls
    }

    fn connections(running: &Running) -> usize {
        running.server.shared().connections.load(Ordering::Relaxed)
    }
}

/// A bare socket.
struct Attacker(TcpStream);

impl Attacker {
    fn connect(scene: &Scene, from: [u8; 4]) -> Self {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a descriptor");
        bind(&socket, &SocketAddrV4::new(from.into(), 0)).expect("a loopback address");
        let server = SocketAddrV4::new([127, 0, 0, 1].into(), scene.running.port);
        connect(&socket, &server).expect("the server listens");
        let socket = TcpStream::from(socket);
        socket.set_read_timeout(Some(WAIT)).expect("positive");
        socket.set_write_timeout(Some(WAIT)).expect("positive");
        Self(socket)
    }

    /// Connected, and after the handshake.
    fn open(scene: &Scene, deflate: bool) -> Self {
        let mut attacker = Self::connect(scene, [127, 0, 0, 1]);
        let extension = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
        let extension = if deflate { extension } else { "" };
        attacker.send(format!("{HEAD}{extension}\r\n").as_bytes());
        assert_eq!(attacker.status(), 101);
        attacker
    }

    /// Sends all of it, or what the server takes before it hangs up.
    fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }

    fn send_text(&mut self, text: &[u8]) -> bool {
        self.send(&text_frame(text))
    }

    /// The status of the answer to the handshake; 0 when the server hangs up without one.
    fn status(&mut self) -> u16 {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match self.0.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("an answer in time: {error}"),
            }
        }
        let text = String::from_utf8_lossy(&head).into_owned();
        let status = text
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        status.unwrap_or(0)
    }

    /// What the server says until it hangs up: the number of messages and pongs, and its close code. None when a
    /// reset has eaten that.
    fn rest(mut self) -> (usize, Option<u16>) {
        let mut decoder = Decoder::new(Role::Client, 64 * MIB, true);
        let (mut inflater, mut buffer) = (Inflater::new(), vec![0; 65_536]);
        let (mut items, mut closed) = (0, None);
        loop {
            let got = match self.0.read(&mut buffer) {
                Ok(0) => break,
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("the end in time: {error}"),
            };
            let fed = decoder.feed(&mut buffer[..got], &mut inflater, &mut |item| {
                match item {
                    Item::Close { code, .. } => closed = code,
                    _ => items += 1,
                }
                true
            });
            fed.expect("the server keeps the protocol");
        }
        (items, closed)
    }

    /// The server hangs up, with this code unless a reset has eaten it.
    fn ends_with(self, code: u16) {
        let (_, closed) = self.rest();
        assert!(closed.is_none_or(|closed| closed == code), "{closed:?}");
    }
}

fn text_frame(text: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_masked(Opcode::Text, text, [0; 4], &mut frame);
    frame
}

/// The compressed frame of a text.
fn bomb(text: &[u8]) -> Vec<u8> {
    let (mut payload, mut frame) = (Vec::new(), Vec::new());
    Deflater::new().compress(text, &mut payload);
    encode_masked(Opcode::Text, &payload, [0; 4], &mut frame);
    frame[0] |= 0x40;
    frame
}

/// The limits that clients have by default.
fn strict() -> Config {
    Config {
        messages_per_s: 100.0,
        ..config(SendChoice::Auto)
    }
}

#[test]
fn handshakes_that_drip_are_ended_in_time() {
    let mut scene = Scene::new(Config {
        handshake_ms: 400,
        ..strict()
    });
    let mut drips: Vec<_> = (0..300)
        .map(|_| Attacker::connect(&scene, [127, 0, 0, 1]))
        .collect();
    for at in 0..10 {
        for (drip, head) in drips.iter_mut().zip(HEADS.iter().cycle()) {
            drip.send(&head.as_bytes()[at..=at]);
        }
    }
    scene.check_service();
    for mut drip in drips {
        assert!(matches!(drip.status(), 408 | 0));
    }
    scene.check();
}

#[test]
fn a_header_of_a_megabyte_is_refused_at_its_limit() {
    let mut scene = Scene::new(strict());
    for head in HEADS.iter().cycle().take(20) {
        let mut attacker = Attacker::connect(&scene, [127, 0, 0, 1]);
        attacker.send(head.as_bytes());
        attacker.send(&[&b"X-Long: "[..], &vec![b'a'; MIB]].concat());
        assert!(matches!(attacker.status(), 431 | 0));
    }
    scene.check();
}

#[test]
fn garbage_is_ended_at_once() {
    let mut scene = Scene::new(strict());
    let garbage = b"\x73garbage\xff\x00".repeat(100_000);
    for mut attacker in scene.attackers(20) {
        attacker.send(&garbage);
        attacker.ends_with(1002);
    }
    let mut attacker = Attacker::connect(&scene, [127, 0, 0, 1]);
    attacker.send(b"\x16\x03\x01\r\n\r\n");
    attacker.send(&garbage);
    assert!(matches!(attacker.status(), 400 | 0));
    scene.check();
}

#[test]
fn unmasked_frames_are_ended() {
    let mut scene = Scene::new(strict());
    for mut attacker in scene.attackers(10) {
        attacker.send(b"\x81\x02{}");
        attacker.ends_with(1002);
    }
    scene.check();
}

#[test]
fn messages_that_never_end_share_a_bound() {
    let mut scene = Scene::new(Config {
        waiting_bytes: 8 * MIB,
        ..strict()
    });
    let mut part = text_frame(&vec![b'x'; 500_000]);
    part[0] = 0x01;
    let mut attackers = scene.attackers(100);
    for attacker in &mut attackers {
        attacker.send(&part);
    }
    scene.check();
    let codes: Vec<_> = attackers
        .into_iter()
        .map(|mut attacker| {
            // One more byte, which ends those that were let be.
            attacker.send(&[0xff]);
            attacker.rest().1
        })
        .collect();
    let turned_away = codes.iter().filter(|code| **code == Some(1013)).count();
    assert!(turned_away > 50, "{codes:?}");
}

#[test]
fn endless_fragments_are_too_big() {
    let mut scene = Scene::new(strict());
    for mut attacker in scene.attackers(5) {
        let mut part = text_frame(&vec![b'x'; 60_000]);
        part[0] = 0x01;
        attacker.send(&part);
        part[0] = 0x00;
        for _ in 0..30 {
            attacker.send(&part);
        }
        attacker.ends_with(1009);
    }
    scene.check();
}

#[test]
fn a_message_must_be_complete_in_time() {
    let mut scene = Scene::new(Config {
        message_ms: 300,
        ..strict()
    });
    let mut attackers = scene.attackers(20);
    for attacker in &mut attackers {
        attacker.send(&text_frame(b"{}")[..7]);
    }
    for attacker in attackers {
        let (_, closed) = attacker.rest();
        assert_eq!(closed, Some(1008));
    }
    scene.check();
}

#[test]
fn compressed_bombs_are_defused() {
    let mut scene = Scene::new(strict());
    let over = bomb(&vec![b' '; 20 * MIB]);
    assert!(over.len() < 30_000, "one to a thousand");
    for mut attacker in scene.attackers(10) {
        attacker.send(&over);
        attacker.ends_with(1009);
    }
    scene.check();
}

#[test]
fn bombs_below_the_limit_count_by_their_size() {
    let mut scene = Scene::new(Config {
        messages_per_s: 1.0,
        messages_burst: 20.0,
        ..strict()
    });
    let below = bomb(&vec![b' '; MIB / 4]);
    let mut attacker = Attacker::open(&scene, true);
    // 20 messages in a burst are allowed, and ten times as many answered; of these each counts as five.
    let mut sent = 0;
    while sent < 500 && attacker.send(&below) {
        sent += 1;
    }
    attacker.ends_with(1008);
    let read = scene.running.server.shared();
    assert!(read.counters.messages_in.load(Ordering::Relaxed) < 60);
    scene.check();
}

#[test]
fn a_ping_flood_is_not_answered_for_long() {
    let mut scene = Scene::new(strict());
    let mut ping = Vec::new();
    encode_masked(Opcode::Ping, &[b'x'; 125], [0; 4], &mut ping);
    let pings = ping.repeat(500);
    let mut attacker = Attacker::open(&scene, true);
    let mut sent = 0;
    while sent < 100 && attacker.send(&pings) {
        sent += 1;
    }
    let (answers, closed) = attacker.rest();
    assert!(answers < 1_500, "{answers} pongs");
    assert!(matches!(closed, Some(1008) | None));
    scene.check();
}

#[test]
fn a_million_subscriptions_make_nothing() {
    let mut scene = Scene::new(strict());
    let mut attacker = Attacker::open(&scene, false);
    let mut number = 0;
    let mut goes_on = true;
    while goes_on && number < 1_000_000 {
        let calls: Vec<u8> = (number..number + 500)
            .flat_map(|n| {
                let params = format!(r#"{{"programId":"p{n}"}}"#);
                text_frame(
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{n},"method":"subscribe","params":{params}}}"#
                    )
                    .as_bytes(),
                )
            })
            .collect();
        attacker
            .0
            .set_write_timeout(Some(Duration::from_millis(300)))
            .expect("positive");
        goes_on = attacker.send(&calls);
        number += 500;
    }
    // It is not read while 256 of its calls are unanswered.
    assert!(number < 1_000_000);
    assert!(scene.running.hub.upcalls.take(usize::MAX).len() <= 256);
    assert_eq!(scene.running.hub.logs.lock().len(), 1);
    scene.check();
}

#[test]
fn a_long_recovery_is_not_deflated_for_one_client() {
    let mut scene = Scene::new(strict());
    scene.publish(1_000);
    for _ in 0..50 {
        scene.publish(10_000);
    }
    for (history, is_deflated) in [(1, true), (50, false)] {
        let mut attacker = Attacker::open(&scene, true);
        let params = format!(r#"{{"programId":"p","history":{history}}}"#);
        let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{params}}}"#);
        attacker.send_text(call.as_bytes());
        let mut first = [0];
        attacker.0.read_exact(&mut first).expect("an answer");
        assert_eq!(first[0] & 0x40 != 0, is_deflated, "{history}");
    }
    scene.check();
}

#[test]
fn deep_json_is_refused_and_the_client_goes_on() {
    let mut scene = Scene::new(strict());
    let mut client = Client::connect(scene.running.port, false);
    for opening in ["[", r#"{"a":"#] {
        client.messages.clear();
        client.send(&opening.repeat(100_000));
        client.read_until(|messages| !messages.is_empty());
        assert!(client.messages[0].contains("-32700"));
    }
    scene.check();
}

#[test]
fn what_is_no_call_is_answered_with_the_body_of_an_error() {
    let scene = Scene::new(strict());
    let mut client = Client::connect(scene.running.port, false);
    let call = r#"{"jsonrpc":"2.0","method":"servertime"}"#;
    let long_id = call.replace('}', &format!(r#","id":"{}"}}"#, "i".repeat(300)));
    for (text, code, told) in [
        ("{".to_owned(), -32700, "the message is not JSON, "),
        (
            format!("[{}]", vec![call; 101].join(",")),
            -32600,
            "a batch has at most 100 calls",
        ),
        (
            long_id,
            -32600,
            "id: must be a string, a number or null, of at most 256 bytes",
        ),
    ] {
        client.messages.clear();
        client.send(&text);
        client.read_until(|messages| !messages.is_empty());
        let answer = &client.messages[0];
        let data = format!(r#""data":{{"error":"invalid_request","error_description":"{told}"#);
        assert!(answer.contains(&format!(r#""code":{code}"#)), "{answer}");
        assert!(
            answer.contains(&data) && answer.ends_with(r#","status":400}}}"#),
            "{answer}"
        );
    }
}

#[test]
fn thousands_of_silent_sockets_are_ended() {
    let mut scene = Scene::new(Config {
        handshake_ms: 1_000,
        ..strict()
    });
    let sockets: Vec<_> = (0..4_000)
        .map(|_| Attacker::connect(&scene, [127, 0, 0, 1]))
        .collect();
    scene.check();
    scene.wait_for("all but the witness are gone", |running| {
        // A silent peer may linger before it is forgotten.
        Scene::connections(running) == 1
    });
    drop(sockets);
    scene.check();
}

#[test]
fn one_who_reads_a_byte_at_a_time_is_closed() {
    let mut scene = Scene::new(Config {
        lag_ms: 4_000,
        lag_bytes: 1 << 30,
        ..strict()
    });
    let mut slow = Attacker::open(&scene, false);
    slow.send_text(br#"{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"programId":"p"}}"#);
    scene.check_service();
    for _ in 0..16 {
        scene.publish(300_000);
        scene.check_service();
    }
    let slow_consumers = |running: &Running| {
        let counters = &running.server.shared().counters;
        counters.slow_consumers.load(Ordering::Relaxed)
    };
    let deadline = Instant::now() + WAIT;
    while slow_consumers(&scene.running) == 0 {
        assert!(Instant::now() < deadline);
        let _ = slow.0.read(&mut [0]);
        scene.check_service();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(slow_consumers(&scene.running), 1);
}

#[test]
fn answers_that_nobody_reads_share_a_bound() {
    let mut scene = Scene::new(Config {
        waiting_bytes: 8 * MIB,
        ..strict()
    });
    for _ in 0..50 {
        scene.publish(20_000);
    }
    scene.check_service();
    let mut attackers: Vec<_> = (0..150).map(|_| Attacker::open(&scene, false)).collect();
    for round in 0..6 {
        for attacker in &mut attackers {
            let call = if round % 2 == 0 {
                r#""method":"subscribe","params":{"programId":"p","history":50}"#
            } else {
                r#""method":"unsubscribe","params":{"programId":"p"}"#
            };
            attacker.send_text(format!(r#"{{"jsonrpc":"2.0","id":1,{call}}}"#).as_bytes());
        }
        scene.check_service();
    }
    scene.check();
}

/// Little may wait, and nobody is held to a rate.
fn small() -> Config {
    Config {
        waiting_bytes: 8 * MIB,
        ..config(SendChoice::Auto)
    }
}

/// How many attack, and how much each makes the gateway hold: twice as many, or twice as much, cost no more.
const DOUBLED: [(usize, usize); 3] = [(1, 1), (2, 1), (1, 2)];

#[test]
fn tokens_of_handshakes_that_wait_share_a_bound() {
    for (times, size) in DOUBLED {
        let mut scene = Scene::new(small());
        let token = "t".repeat(7_500 * size);
        let mut attackers: Vec<_> = (0..1_500 * times)
            .map(|_| Attacker::connect(&scene, [127, 0, 0, 1]))
            .collect();
        for attacker in &mut attackers {
            attacker.send(format!("{HEAD}Authorization: Bearer {token}\r\n\r\n").as_bytes());
        }
        assert_eq!(attackers.pop().map(|mut last| last.status()), Some(503));
        scene.check();
    }
}

/// Each names a program that native code does not know, by an id or a position that is as long as a head may be.
#[test]
fn streams_that_wait_share_a_bound() {
    for (times, size) in DOUBLED {
        let mut scene = Scene::new(small());
        let name = "p".repeat(7_500 * size);
        let mut attackers: Vec<_> = (0..1_500 * times)
            .map(|_| Attacker::connect(&scene, [127, 0, 0, 1]))
            .collect();
        for attacker in &mut attackers {
            let target = format!("/api/v1/programs/{name}/events/stream");
            attacker.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
        }
        assert_eq!(attackers.pop().map(|mut last| last.status()), Some(503));
        scene.check();
    }
}

#[test]
fn readers_of_streams_who_send_for_ever_are_ended() {
    let mut scene = Scene::new(Config {
        messages_per_s: 1.0,
        messages_burst: 10.0,
        ..strict()
    });
    let mut attackers: Vec<_> = (0..10)
        .map(|_| Attacker::connect(&scene, [127, 0, 0, 1]))
        .collect();
    for attacker in &mut attackers {
        attacker.send(format!("{STREAM}\r\n").as_bytes());
        assert_eq!(attacker.status(), 200);
    }
    let flood = vec![b'x'; MIB];
    for _ in 0..10 {
        attackers.retain_mut(|attacker| attacker.send(&flood));
    }
    scene.wait_for("all are ended", |running| {
        let closes = running.server.shared().counters.closes.read();
        let flood = closes.into_iter().find(|(_, reason, _)| *reason == "flood");
        flood.is_some_and(|(.., count)| count == 10)
    });
    scene.check();
}

#[test]
fn calls_that_wait_share_a_bound() {
    for (times, size) in DOUBLED {
        let mut scene = Scene::new(small());
        let mut attackers = scene.attackers(80 * times);
        let long = " ".repeat(20_000 * size);
        let params = format!(r#"{{"programId":"unknown"{long}}}"#);
        let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{params}}}"#);
        let frame = text_frame(call.as_bytes());
        for _ in 0..10 {
            for attacker in &mut attackers {
                attacker.send(&frame);
            }
            scene.running.hub.upcalls.take(usize::MAX);
        }
        scene.wait_for("many are turned away", |running| {
            let closes = running.server.shared().counters.closes.read();
            let turned_away = closes.into_iter().find(|(code, ..)| code == "1013");
            turned_away.is_some_and(|(.., count)| count > attackers.len() as u64 / 4)
        });
        scene.check();
    }
}

#[test]
fn batches_that_wait_for_their_last_answer_share_a_bound() {
    for (times, size) in DOUBLED {
        let mut scene = Scene::new(small());
        let mut attackers = scene.attackers(12 * times);
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"other"}"#;
        let batch = format!("[{}]", vec![call; 20].join(","));
        for attacker in &mut attackers {
            attacker.send_text(batch.as_bytes());
        }
        let calls = scene.take_calls(20 * attackers.len());
        let answer = format!(r#""{}""#, "a".repeat(size * MIB / 2)).into_bytes();
        for (number, (conn, ticket)) in calls.into_iter().enumerate() {
            if number % 20 != 19 {
                let hub = &scene.running.hub;
                hub.reply(conn, ticket, Answer::Result, answer.clone());
                if number % 5 == 0 {
                    scene.check_service(); // an application waits for nobody, but has no endless queue
                }
            }
        }
        scene.check();
        attackers.pop().expect("the last").ends_with(1013);
    }
}

#[test]
fn an_answer_that_is_too_long_beside_the_others_of_its_batch_is_refused() {
    let scene = Scene::new(config(SendChoice::Auto));
    let mut client = Client::connect(scene.running.port, false);
    let call = |id: usize| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"other"}}"#);
    client.send(&format!(
        "[{}]",
        (1..=3).map(call).collect::<Vec<_>>().join(",")
    ));
    let answer = format!(r#""{}""#, "a".repeat(9 * MIB)).into_bytes();
    for (conn, ticket) in scene.take_calls(3) {
        let hub = &scene.running.hub;
        hub.reply(conn, ticket, Answer::Result, answer.clone());
    }
    client.read_until(|messages| !messages.is_empty());
    let message = &client.messages[0];
    assert!(message.len() < 10 * MIB);
    assert_eq!(
        message.matches(r#""message":"payload_too_large""#).count(),
        2
    );
}

#[test]
fn answers_to_clients_whose_socket_is_full_share_a_bound() {
    for (times, size) in DOUBLED {
        let mut scene = Scene::new(small());
        let mut attackers = scene.attackers(50 * times);
        for _ in 0..20 {
            for attacker in &mut attackers {
                attacker.send_text(br#"{"jsonrpc":"2.0","id":1,"method":"other"}"#);
            }
        }
        let calls = scene.take_calls(20 * attackers.len());
        let answer = format!(r#""{}""#, "a".repeat(size * MIB / 2)).into_bytes();
        for (number, (conn, ticket)) in calls.into_iter().enumerate() {
            let hub = &scene.running.hub;
            hub.reply(conn, ticket, Answer::Result, answer.clone());
            if number % 10 == 0 {
                scene.check_service();
            }
        }
        scene.check();
    }
}

/// Batches of a mebibyte that one counter's queue takes.
const QUEUE_BATCHES: usize = 16;

#[test]
fn votes_that_wait_for_their_counter_share_a_bound() {
    let name = PollName {
        account: "main",
        program: "p",
        context: "c",
        measure: "m",
    };
    let mut scene = Scene::prepared(small(), |hub| {
        let rates = || std::sync::Arc::new(Rates::new(0.0, 1.0, 10));
        let votes = Votes::new("d".to_owned(), rates(), rates(), 1);
        let poll = OpenPoll {
            uid: 1,
            shards: 1,
            key: [1; 16],
            options: 1_000,
            allow_change: false,
            projects: Vec::new(),
            until_ms: u64::MAX,
        };
        votes.open(&name, poll);
        assert!(hub.votes.set(votes).is_ok());
    });
    // A tenth more than has room: without optimisation a loop reads some 500 such votes a second.
    let mut attackers = scene.attackers(37);
    let choice: Vec<_> = (0..1_000).collect();
    let place = r#""programId":"p","contextId":"c","measureName":"m""#;
    let params = format!(r#"{{{place},"measureValue":{choice:?}}}"#);
    let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"respond","params":{params}}}"#);
    let frame = text_frame(call.as_bytes());
    for _ in 0..250 {
        for attacker in &mut attackers {
            attacker.send(&frame);
        }
    }
    scene.check();
    // Reading so many long votes takes a slow machine longer than anything else here.
    let deadline = Instant::now() + 6 * WAIT;
    let waiting = |running: &Running| running.hub.votes.get().map_or(0, |b| b.unsettled(0));
    while waiting(&scene.running) < QUEUE_BATCHES {
        assert!(Instant::now() < deadline, "the queue fills");
        scene.check_service(); // who does not answer pings for as long is closed
        std::thread::sleep(Duration::from_millis(50));
    }
    let refused = |message: &String| message.contains("too many votes are waiting");
    let deadline = Instant::now() + WAIT;
    while !scene.witness.messages.iter().any(refused) {
        assert!(Instant::now() < deadline, "the queue is full");
        std::thread::sleep(Duration::from_millis(100));
        scene.witness.messages.clear();
        scene.witness.call(3, "respond", &params);
        scene.witness.call(4, "servertime", "{}");
        let is_answered = |message: &String| message.contains("serverTime");
        scene
            .witness
            .read_until(|messages| messages.iter().any(is_answered));
    }
}

#[test]
fn one_address_has_its_share_and_others_theirs() {
    let mut scene = Scene::new(Config {
        connections_per_address: 200,
        ..strict()
    });
    let greedy = [127, 0, 0, 9];
    let mut sockets: Vec<_> = (0..1_000)
        .map(|_| Attacker::connect(&scene, greedy))
        .collect();
    let mut open = 0;
    for socket in &mut sockets {
        socket.send(format!("{HEAD}\r\n").as_bytes());
        match socket.status() {
            101 => open += 1,
            429 | 0 => {}
            status => panic!("{status}"),
        }
    }
    assert_eq!(open, 200);
    assert!(Scene::connections(&scene.running) < 300);
    let mut other = Attacker::connect(&scene, [127, 0, 0, 8]);
    other.send(format!("{HEAD}\r\n").as_bytes());
    assert_eq!(other.status(), 101);
    drop(sockets);
    scene.wait_for("the greedy are gone", |running| {
        Scene::connections(running) == 2
    });
    let mut back = Attacker::connect(&scene, greedy);
    back.send(format!("{HEAD}\r\n").as_bytes());
    assert_eq!(back.status(), 101);
    scene.check();
}
