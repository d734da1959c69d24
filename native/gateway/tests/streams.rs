//! Event streams, end to end: what a client is sent, and what it costs to serve those who mean harm.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use broker_core::log::Kind;
use broker_gateway::{Answer, Hub, OwnedEntry, Session, Shared, Upcall};
use broker_server::{Config, SendChoice};
use support::{Client, TOPIC, WAIT, config, start};

const PATH: &str = "/api/v1/programs/p/events/stream";

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Event {
    id: Option<String>,
    name: String,
    data: String,
    retry: Option<u64>,
}

/// A reader of a stream, whose answer has come.
struct Reader {
    socket: TcpStream,
    head: String,
    /// What has come and is no whole event yet.
    rest: String,
}

impl Reader {
    fn open(port: u16, target: &str, headers: &str) -> Self {
        Self::send(
            port,
            &format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"),
        )
    }

    fn send(port: u16, request: &str) -> Self {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        socket
            .set_read_timeout(Some(WAIT))
            .expect("a positive time");
        socket.write_all(request.as_bytes()).expect("room");
        Self {
            socket,
            head: String::new(),
            rest: String::new(),
        }
        .read_head()
    }

    fn read_head(mut self) -> Self {
        loop {
            if let Some((head, rest)) = self.rest.split_once("\r\n\r\n") {
                (self.head, self.rest) = (head.to_owned(), rest.to_owned());
                return self;
            }
            assert!(self.read(), "an answer");
        }
    }

    /// Reads once; false at the end of the stream.
    fn read(&mut self) -> bool {
        let mut buffer = vec![0; 65_536];
        let got = match self.socket.read(&mut buffer) {
            Ok(got) => got,
            Err(error) => {
                assert_ne!(error.kind(), ErrorKind::WouldBlock, "nothing in time");
                0
            }
        };
        self.rest
            .push_str(std::str::from_utf8(&buffer[..got]).expect("ASCII here"));
        got > 0
    }

    /// The next event; comments are skipped. None at the end of the stream.
    fn find_next(&mut self) -> Option<Event> {
        loop {
            if let Some((text, rest)) = self.rest.split_once("\n\n") {
                let event = parse(text);
                self.rest = rest.to_owned();
                match event {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            if !self.read() {
                return None;
            }
        }
    }

    fn next(&mut self, name: &str) -> Event {
        let event = self.find_next().expect("an event");
        assert_eq!(event.name, name, "{event:?}");
        event
    }

    fn status(&self) -> &str {
        self.head.split(' ').nth(1).expect("a status")
    }

    fn body(&mut self) -> String {
        while self.read() {}
        std::mem::take(&mut self.rest)
    }

    fn has_header(&self, line: &str) -> bool {
        self.head.split("\r\n").any(|other| other == line)
    }
}

fn parse(text: &str) -> Option<Event> {
    let mut event = Event::default();
    for line in text.lines() {
        match line.split_once(": ") {
            Some(("id", id)) => event.id = Some(id.to_owned()),
            Some(("event", name)) => name.clone_into(&mut event.name),
            Some(("data", data)) => data.clone_into(&mut event.data),
            Some(("retry", retry)) => event.retry = retry.parse().ok(),
            _ => assert_eq!(line, ":", "nothing else is sent"),
        }
    }
    (!event.name.is_empty()).then_some(event)
}

fn entry(kind: Kind, epoch: &str, seq: u64, method: &str, params: String) -> OwnedEntry {
    OwnedEntry {
        kind,
        epoch: epoch.to_owned(),
        seq,
        method: method.to_owned(),
        params: params.into_bytes(),
    }
}

/// The push `seq` as an owner makes it, with so many bytes of padding.
fn push(seq: u64, bytes: usize) -> OwnedEntry {
    let pad = "x".repeat(bytes);
    let params = format!(r#"{{"seq":{seq},"epoch":"e","id":"m{seq}","pad":"{pad}"}}"#);
    entry(Kind::Push, "e", seq, "event", params)
}

fn publish(hub: &Hub, seqs: std::ops::RangeInclusive<u64>, bytes: usize) {
    let entries: Vec<_> = seqs.map(|seq| push(seq, bytes)).collect();
    hub.append(TOPIC, &entries).expect("consecutive");
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::yield_now();
    }
}

fn connections(shared: &Shared) -> usize {
    shared.connections.load(Ordering::Relaxed)
}

#[test]
fn a_reader_is_told_where_it_is_and_then_everything() {
    for send in [SendChoice::Send, SendChoice::Auto] {
        let running = start(config(send));
        publish(&running.hub, 1..=1, 1);
        let mut reader = Reader::open(running.port, PATH, "X-Request-Id: r1\r\n");
        assert_eq!(reader.status(), "200");
        for line in [
            "Content-Type: text/event-stream",
            "Cache-Control: no-store",
            "X-Accel-Buffering: no",
            "Connection: close",
            "X-Request-Id: r1",
            "Access-Control-Allow-Origin: *",
        ] {
            assert!(reader.has_header(line), "{line} in {}", reader.head);
        }
        let first = reader.next("subscribed");
        assert_eq!(first.id.as_deref(), Some("e:1:m1"));
        assert_eq!(
            first.data,
            r#"{"programId":"p","epoch":"e","seq":1,"id":"m1","recovered":true}"#
        );
        assert!((1_000..=5_000).contains(&first.retry.expect("each has its own")));
        let mut others: Vec<_> = (0..20)
            .map(|_| Client::connect(running.port, true))
            .collect();
        for client in &mut others {
            client.call(1, "subscribe", r#"{"programId":"p"}"#);
            client.read_until(|messages| !messages.is_empty());
        }
        publish(&running.hub, 2..=4, 300);
        for seq in 2..=4 {
            let event = reader.next("event");
            assert_eq!(event.id, Some(format!("e:{seq}:m{seq}")));
            assert!(event.data.starts_with(&format!(r#"{{"seq":{seq},"#)));
        }
        let deleted = entry(
            Kind::Push,
            "e",
            5,
            "eventDeleted",
            r#"{"seq":5,"epoch":"e","id":"m2"}"#.to_owned(),
        );
        let reset = entry(
            Kind::Reset,
            "f",
            7,
            "historyReplaced",
            r#"{"epoch":"f"}"#.to_owned(),
        );
        let append = |entry| running.hub.append(TOPIC, &[entry]).expect("it follows");
        append(deleted);
        assert_eq!(reader.next("eventDeleted").id.as_deref(), Some("e:5:m2"));
        append(reset);
        assert_eq!(reader.next("historyReplaced").id.as_deref(), Some("f:7"));
        for client in &mut others {
            client.read_until(|messages| messages.len() == 6);
        }
    }
}

#[test]
fn a_reader_goes_on_after_its_position() {
    let running = start(config(SendChoice::Send));
    publish(&running.hub, 1..=2_000, 100);
    let recovered = |event: &Event| event.data.contains(r#""recovered":true"#);
    // More than one answer of a WebSocket has.
    let mut reader = Reader::open(running.port, &format!("{PATH}?since=e:300:m300"), "");
    let first = reader.next("subscribed");
    assert_eq!(
        (first.id.as_deref(), recovered(&first)),
        (Some("e:300:m300"), true)
    );
    for seq in 301..=2_000 {
        assert_eq!(reader.next("event").id, Some(format!("e:{seq}:m{seq}")));
    }
    publish(&running.hub, 2_001..=2_001, 1);
    assert_eq!(reader.next("event").id.as_deref(), Some("e:2001:m2001"));
    let headers = "Last-Event-ID: e:1999\r\n";
    let mut reader = Reader::open(running.port, &format!("{PATH}?since=e:5"), headers);
    assert_eq!(
        reader.next("subscribed").id.as_deref(),
        Some("e:1999:m1999")
    );
    assert_eq!(reader.next("event").id.as_deref(), Some("e:2000:m2000"));
    let mut reader = Reader::open(running.port, &format!("{PATH}?history=2"), "");
    assert_eq!(
        reader.next("subscribed").id.as_deref(),
        Some("e:1999:m1999")
    );
}

/// The next call of `subscribe` that the application is left.
fn asked(hub: &Hub) -> (broker_server::ConnId, u64, String) {
    let deadline = Instant::now() + WAIT;
    loop {
        if let Some(Upcall::Call {
            conn,
            ticket,
            method,
            params,
            ..
        }) = hub.upcalls.take(1).pop()
        {
            assert_eq!(method, "subscribe");
            return (conn, ticket, String::from_utf8(params).expect("text"));
        }
        assert!(Instant::now() < deadline, "nobody is asked");
        thread::yield_now();
    }
}

/// Opens a stream that native code cannot decide about; `answer` is the application.
fn open_asking(
    running: &support::Running,
    target: &str,
    answer: impl FnOnce(broker_server::ConnId, u64, String),
) -> Reader {
    thread::scope(|scope| {
        let opened = scope.spawn(|| Reader::open(running.port, target, ""));
        let (conn, ticket, params) = asked(&running.hub);
        answer(conn, ticket, params);
        opened.join().expect("it is answered")
    })
}

#[test]
fn a_position_that_is_gone_is_said_so() {
    let running = start(config(SendChoice::Send));
    publish(&running.hub, 1..=9, 1);
    for lost in ["other:3", "e:10", "e:3:m4"] {
        let target = format!("{PATH}?since={lost}");
        let mut reader = open_asking(&running, &target, |conn, ticket, params| {
            assert!(
                params.starts_with(r#"{"programId":"p","since":{"epoch":""#),
                "{params}"
            );
            running.hub.retry(conn, ticket);
        });
        let first = reader.next("subscribed");
        assert_eq!(first.id.as_deref(), Some("e:9:m9"));
        assert!(first.data.ends_with(r#""recovered":false}"#));
    }
}

#[test]
fn a_message_for_a_websocket_is_not_sent_to_a_reader() {
    let running = start(config(SendChoice::Send));
    publish(&running.hub, 1..=1, 1);
    let conns = std::cell::Cell::new(None);
    let mut reader = open_asking(&running, &format!("{PATH}?since=f:1"), |conn, ticket, _| {
        conns.set(Some(conn));
        running.hub.retry(conn, ticket);
    });
    reader.next("subscribed");
    let conn = conns.get().expect("it was asked about");
    running
        .hub
        .notify(conn, br#"{"jsonrpc":"2.0","method":"x"}"#.to_vec());
    publish(&running.hub, 2..=2, 1);
    reader.next("event");
}

#[test]
fn what_the_application_refuses_is_an_http_answer() {
    let running = start(config(SendChoice::Send));
    let error = br#"{"code":404,"message":"not_found","data":{"error":"not_found","error_description":"x","status":404}}"#;
    let target = "/api/v1/programs/other/events/stream";
    let mut reader = open_asking(&running, target, |conn, ticket, params| {
        assert_eq!(params, r#"{"programId":"other"}"#);
        // An answer to another question is none to this one.
        running
            .hub
            .reply(conn, ticket + 1, Answer::Error, b"{}".to_vec());
        running
            .hub
            .reply(conn, ticket, Answer::Error, error.to_vec());
    });
    assert_eq!(reader.status(), "404");
    assert!(reader.has_header("Access-Control-Allow-Origin: *"));
    assert_eq!(
        reader.body(),
        r#"{"error":"not_found","error_description":"x","status":404}"#
    );
    let mut reader = open_asking(&running, target, |conn, ticket, _| {
        running.hub.retry(conn, ticket);
    });
    assert_eq!(reader.status(), "404");
    assert!(reader.body().contains("not_found"));
}

#[test]
fn a_reader_that_has_gone_while_the_application_decides_is_forgotten() {
    let running = start(config(SendChoice::Send));
    let mut socket = TcpStream::connect(("127.0.0.1", running.port)).expect("it listens");
    let request = "GET /api/v1/programs/other/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
    socket.write_all(request.as_bytes()).expect("room");
    let (conn, ticket, _) = asked(&running.hub);
    drop(socket);
    let shared = running.server.shared();
    wait_until("it is forgotten", || connections(shared) == 0);
    running.hub.retry(conn, ticket);
    publish(&running.hub, 1..=1, 1);
    assert_eq!(
        Reader::open(running.port, PATH, "")
            .next("subscribed")
            .id
            .as_deref(),
        Some("e:1:m1")
    );
}

#[test]
fn requests_that_are_for_no_stream_are_refused() {
    let running = start(config(SendChoice::Send));
    let long = "x".repeat(20_000);
    for (request, status, body) in [
        (
            "GET /api/v1/programs/p/events HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "404",
            "not_found",
        ),
        (
            &format!("HEAD {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            "405",
            "", // the head alone
        ),
        (
            &format!("POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}"),
            "405",
            "method_not_allowed",
        ),
        (
            &format!("GET {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}"),
            "400",
            "body",
        ),
        (
            &format!(
                "GET {PATH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            ),
            "400",
            "body",
        ),
        (
            &format!("GET {PATH}?since=x HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            "400",
            r#""field":"since""#,
        ),
        (
            &format!("GET {PATH}?x=%22 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            "400",
            r#""field":"x""#,
        ),
        (
            &format!(
                "GET {PATH} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: e:1\r\nLast-Event-ID: e:2\r\n\r\n"
            ),
            "400",
            "repeated",
        ),
        (&format!("GET {PATH} HTTP/1.1\r\n\r\n"), "400", "Host"),
        (
            &format!("GET {PATH} HTTP/1.1\r\nHost: unknown.localhost\r\n\r\n"),
            "404",
            "account",
        ),
        (
            &format!("GET {PATH}?since={long} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            "431",
            "too large",
        ),
        (
            &format!(
                "GET {PATH} HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
                "X: y\r\n".repeat(101)
            ),
            "431",
            "too large",
        ),
        (
            &format!("GET {PATH} HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n"),
            "400",
            "malformed",
        ),
    ] {
        let mut reader = Reader::send(running.port, request);
        assert_eq!(reader.status(), status, "{request:.200}");
        let is_allowed = status != "405" || reader.has_header("Allow: GET, OPTIONS");
        assert!(is_allowed, "{}", reader.head);
        let answer = reader.body();
        assert!(answer.contains(body), "{request:.200} {answer}");
        assert_eq!(answer.is_empty(), body.is_empty(), "{request:.200}");
    }
    let preflight =
        format!("OPTIONS {PATH} HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.test\r\n\r\n");
    let mut reader = Reader::send(running.port, &preflight);
    assert_eq!(reader.status(), "204");
    assert!(reader.has_header(
        "Access-Control-Allow-Headers: Authorization, Cache-Control, Last-Event-ID, X-Request-Id"
    ));
    assert!(!reader.head.contains("Content-Length"));
    assert_eq!(reader.body(), "");
    let http10 = Reader::send(running.port, &format!("GET {PATH} HTTP/1.0\r\n\r\n"));
    assert_eq!(http10.status(), "200");
}

#[test]
fn the_accounts_origins_count() {
    let running = start(config(SendChoice::Send));
    let origins = Some(vec!["https://a.test".to_owned()]);
    running
        .hub
        .set_accounts("localhost", "main", [("main".to_owned(), origins)].into());
    let open = |headers| Reader::open(running.port, PATH, headers);
    let reader = open("Origin: https://a.test\r\n");
    assert_eq!(reader.status(), "200");
    assert!(reader.has_header("Access-Control-Allow-Origin: https://a.test"));
    assert!(reader.has_header("Vary: Origin"));
    let reader = open("Origin: https://b.test\r\n");
    assert_eq!(reader.status(), "403");
    assert!(!reader.head.contains("Access-Control"));
    assert_eq!(open("").status(), "200");
}

#[test]
fn what_follows_the_request_is_dropped_and_a_flood_of_it_ends_the_stream() {
    let running = start(Config {
        messages_per_s: 1.0,
        messages_burst: 10.0,
        ..config(SendChoice::Send)
    });
    let request = format!("GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut reader = Reader::send(running.port, &format!("{request}{request}garbage"));
    reader.next("subscribed");
    reader
        .socket
        .write_all(b"\x81\x85\0\0\0\0hello")
        .expect("room");
    publish(&running.hub, 1..=1, 1);
    reader.next("event");
    let shared = running.server.shared();
    let flood = vec![b'x'; 30_000];
    while connections(shared) > 0 && reader.socket.write_all(&flood).is_ok() {}
    wait_until("it is counted", || {
        let ends = shared.counters.closes.read();
        ends.iter()
            .any(|(_, reason, count)| *reason == "flood" && *count == 1)
    });
}

#[test]
fn a_client_that_ends_its_side_is_gone() {
    let running = start(config(SendChoice::Send));
    let mut reader = Reader::open(running.port, PATH, "");
    reader.next("subscribed");
    reader.socket.shutdown(Shutdown::Write).expect("open");
    let shared = running.server.shared();
    wait_until("it is forgotten", || connections(shared) == 0);
    assert_eq!(shared.counters.subscriptions.load(Ordering::Relaxed), 0);
}

#[test]
fn a_silent_stream_has_comments_and_needs_no_answer() {
    let running = start(Config {
        ping_ms: 100,
        pong_ms: 100,
        ..config(SendChoice::Send)
    });
    let mut reader = Reader::open(running.port, PATH, "");
    reader.next("subscribed");
    while reader.rest.matches(":\n\n").count() < 5 {
        assert!(reader.read(), "it stays");
    }
    publish(&running.hub, 1..=1, 1);
    reader.next("event");
}

#[test]
fn a_program_that_ends_ends_its_streams() {
    let running = start(config(SendChoice::Send));
    let mut readers: Vec<_> = (0..5)
        .map(|_| Reader::open(running.port, PATH, ""))
        .collect();
    let gone = entry(
        Kind::Gone,
        "e",
        1,
        "programDeleted",
        r#"{"programId":"p"}"#.to_owned(),
    );
    running
        .hub
        .append(TOPIC, &[push(1, 1), gone])
        .expect("they follow");
    for reader in &mut readers {
        reader.next("subscribed");
        reader.next("event");
        assert_eq!(reader.next("programDeleted").data, r#"{"programId":"p"}"#);
        let closed = reader.next("closed");
        let retry = closed.retry.expect("when to come back");
        assert!((30_000..=60_000).contains(&retry));
        assert_eq!(
            closed.data,
            format!(r#"{{"code":1000,"reason":"program_deleted","afterMs":{retry}}}"#)
        );
        assert_eq!(reader.find_next(), None);
    }
}

#[test]
fn rights_that_end_end_the_stream() {
    let running = start(config(SendChoice::Send));
    let session = |reader| Session::new("main", 1, reader, "ada", u64::MAX);
    running.hub.grant("t", session(7));
    let mut anonymous = Reader::open(running.port, PATH, "");
    let mut known = Reader::open(running.port, &format!("{PATH}?access_token=t"), "");
    let mut allowed = Reader::open(running.port, PATH, "Authorization: Bearer t\r\n");
    for reader in [&mut anonymous, &mut known, &mut allowed] {
        reader.next("subscribed");
    }
    running.hub.set_public(TOPIC, false);
    assert_eq!(
        anonymous.next("unsubscribed").data,
        r#"{"programId":"p","reason":"private"}"#
    );
    assert!(
        anonymous
            .next("closed")
            .data
            .starts_with(r#"{"code":1000,"reason":"private","#)
    );
    assert_eq!(anonymous.find_next(), None);
    running.hub.allow(TOPIC, 7, true);
    publish(&running.hub, 1..=1, 1);
    known.next("event");
    running.hub.revoke("main", "ada");
    for reader in [&mut known, &mut allowed] {
        while let Some(event) = reader.find_next() {
            let is_expected = ["event", "unsubscribed", "closed"].contains(&event.name.as_str());
            assert!(is_expected, "{event:?}");
            if event.name == "unsubscribed" {
                assert!(event.data.contains("token_revoked"));
            }
        }
    }
    // Nothing of it is seen without a right any more.
    let mut refused = open_asking(&running, PATH, |conn, ticket, _| {
        running.hub.retry(conn, ticket);
    });
    assert_eq!(refused.status(), "401");
    assert!(refused.has_header("WWW-Authenticate: Bearer"));
    assert!(refused.body().contains("invalid_token"));
}

#[test]
fn a_drain_and_a_stop_say_when_to_come_back() {
    let running = start(config(SendChoice::Send));
    let mut reader = Reader::open(running.port, PATH, "");
    reader.next("subscribed");
    running.server.drain(300);
    assert!(reader.next("reconnect").data.starts_with(r#"{"afterMs":"#));
    let closed = reader.next("closed");
    assert!(
        closed
            .data
            .starts_with(r#"{"code":1012,"reason":"service_restart","#)
    );
    assert!((500..=3_000).contains(&closed.retry.expect("when to come back")));
    assert_eq!(reader.find_next(), None);

    let running = start(config(SendChoice::Send));
    let mut reader = Reader::open(running.port, PATH, "");
    reader.next("subscribed");
    running.server.stop();
    assert!(
        reader
            .next("closed")
            .data
            .starts_with(r#"{"code":1001,"reason":"going_away","#)
    );
    assert_eq!(reader.find_next(), None);
}

#[test]
fn one_who_does_not_read_is_closed_and_holds_up_nobody() {
    let running = start(Config {
        lag_bytes: 64 << 10,
        lag_ms: 1_000,
        ..config(SendChoice::Send)
    });
    let shared = running.server.shared();
    let mut slow = Reader::open(running.port, PATH, "");
    slow.next("subscribed");
    let mut reader = Reader::open(running.port, PATH, "");
    reader.next("subscribed");
    let (mut seq, deadline) = (0, Instant::now() + WAIT);
    while shared.counters.slow_consumers.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < deadline, "it is closed");
        publish(&running.hub, seq + 1..=seq + 4, 50_000);
        for _ in 0..4 {
            seq += 1;
            assert_eq!(reader.next("event").id, Some(format!("e:{seq}:m{seq}")));
        }
    }
    // What it had not taken ends with a whole event.
    let mut last = None;
    while let Some(event) = slow.find_next() {
        last = Some(event);
    }
    let last = last.expect("its farewell");
    assert!(
        last.data
            .starts_with(r#"{"code":4008,"reason":"slow_consumer","#),
        "{}",
        last.name
    );
}
