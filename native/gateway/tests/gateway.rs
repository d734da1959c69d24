//! The gateway over real sockets: many clients, two loops, no Python.

mod support;

use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use broker_core::log::{Kind, Limits};
use broker_gateway::OwnedEntry;
use broker_server::{Config, SendChoice};
use support::{Client, TOPIC, WAIT, config, push, start};

/// The number after `"seq":`.
fn seq_of(message: &str) -> u64 {
    let at = message.find(r#""seq":"#).expect("a seq") + 6;
    let digits: String = message[at..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().expect("a number")
}

/// The seqs that a client got in the order it got them: those in the answers of `subscribe`, then pushes. Checks that
/// each answer's events end where it says and that pushes go on from there, without gap or double.
fn check_order(messages: &[String]) -> u64 {
    let mut position = None;
    for message in messages {
        if message.contains(r#""result":{"programId""#) {
            if message.contains(r#""events":["#) {
                let (head, events) = message.split_once(r#""events":["#).expect("found");
                position = Some(seq_of(head));
                let seqs: Vec<u64> = events
                    .split(r#"{"seq""#)
                    .skip(1)
                    .map(|rest| seq_of(&format!(r#""seq"{rest}"#)))
                    .collect();
                assert!(seqs.windows(2).all(|pair| pair[0] + 1 == pair[1]));
                assert!(seqs.last().is_none_or(|last| position == Some(*last)));
            } else {
                position = None;
            }
        } else if message.contains(r#""method":"event""#) {
            let seq = seq_of(message);
            let expected = position.expect("a push only while subscribed") + 1;
            assert_eq!(seq, expected, "a gap or a double");
            position = Some(seq);
        }
    }
    position.unwrap_or(0)
}

/// Subscribers come, go and recover, some read slowly, while pushes of many sizes are appended.
fn churn(send: SendChoice) {
    let config = Config {
        lag_bytes: 1 << 30,
        lag_ms: 300_000,
        ..config(send)
    };
    let running = start(config);
    let last = 2_000;
    let port = running.port;
    let clients: Vec<_> = (0..16u64)
        .map(|number| {
            thread::spawn(move || {
                let mut client = Client::connect(port, number % 3 == 0);
                client.call(1, "subscribe", r#"{"programId":"p"}"#);
                client.read_until(|messages| !messages.is_empty());
                loop {
                    if client
                        .messages
                        .last()
                        .is_some_and(|message| message.contains(&format!(r#""seq":{last}"#)))
                    {
                        assert_eq!(check_order(&client.messages), last);
                        break;
                    }
                    // Odd clients read in small bites, which fills their socket.
                    let goes_on = client.read(if number % 2 == 1 { 3_000 } else { 65_536 });
                    assert!(goes_on, "closed {:?}", client.closed);
                    if number % 2 == 1 {
                        thread::sleep(Duration::from_micros(200));
                    }
                    if number % 4 == 2 && client.messages.len() > 150 {
                        let at = check_order(&client.messages);
                        client.call(2, "unsubscribe", r#"{"programId":"p"}"#);
                        client.read_until(|messages| {
                            messages
                                .iter()
                                .any(|m| m.starts_with(r#"{"jsonrpc":"2.0","id":2,"#))
                        });
                        let at = check_order_until_unsubscribed(&client.messages).max(at);
                        client.messages.clear();
                        let params =
                            format!(r#"{{"programId":"p","since":{{"epoch":"e","seq":{at}}}}}"#);
                        client.call(3, "subscribe", &params);
                        client.read_until(|messages| !messages.is_empty());
                        let first = &client.messages[0];
                        assert!(first.contains(r#""recovered":true"#), "{first}");
                        if let Some((_, events)) = first.split_once(r#""events":[{"#) {
                            assert_eq!(seq_of(events), at + 1);
                        }
                    }
                }
            })
        })
        .collect();
    let deadline = Instant::now() + WAIT;
    while running
        .server
        .shared()
        .counters
        .handshakes
        .load(Ordering::Relaxed)
        < 16
    {
        assert!(Instant::now() < deadline, "not all clients came");
        thread::yield_now();
    }
    for seq in 1..=last {
        let bytes = [10, 300, 2_000, 40][usize::try_from(seq % 4).expect("small")];
        running
            .hub
            .append(TOPIC, &[push(seq, bytes)])
            .expect("consecutive");
        if seq % 10 == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
    for client in clients {
        client.join().expect("a client found its order kept");
    }
}

/// The position before the answer to `unsubscribe`.
fn check_order_until_unsubscribed(messages: &[String]) -> u64 {
    let end = messages
        .iter()
        .position(|message| message.starts_with(r#"{"jsonrpc":"2.0","id":2,"#))
        .expect("the answer is there");
    assert_eq!(end, messages.len() - 1, "nothing comes after the answer");
    check_order(&messages[..end])
}

#[test]
fn order_is_kept_under_churn_with_send() {
    churn(SendChoice::Send);
}

#[test]
fn order_is_kept_under_churn_with_the_best_strategy() {
    churn(SendChoice::Auto);
}

#[test]
fn large_frames_cross_chunks_and_full_sockets_whole() {
    let running = start(Config {
        lag_bytes: 1 << 30,
        history: Limits {
            bytes: 1 << 30,
            ..Config::default().history
        },
        ..config(SendChoice::Auto)
    });
    let mut client = Client::connect(running.port, false);
    client.call(1, "subscribe", r#"{"programId":"p"}"#);
    client.read_until(|messages| !messages.is_empty());
    for seq in 1..=40 {
        let bytes = if seq % 5 == 0 { 700_000 } else { 90_000 };
        running
            .hub
            .append(TOPIC, &[push(seq, bytes)])
            .expect("consecutive");
    }
    client.read_until(|messages| messages.len() == 41);
    assert_eq!(check_order(&client.messages), 40);
}

#[test]
fn a_burst_over_the_lag_limit_closes_only_those_who_do_not_read() {
    let running = start(Config {
        lag_bytes: 64 << 10,
        history: Limits {
            bytes: 1 << 30,
            ..Config::default().history
        },
        ..config(SendChoice::Auto)
    });
    let mut clients = [0, 1].map(|_| Client::connect(running.port, false));
    for client in &mut clients {
        client.call(1, "subscribe", r#"{"programId":"p"}"#);
        client.read_until(|messages| !messages.is_empty());
    }
    for seq in 1..=40 {
        running
            .hub
            .append(TOPIC, &[push(seq, 400_000)])
            .expect("consecutive");
    }
    let [reader, _idle] = &mut clients;
    while reader.messages.len() < 41 {
        assert!(reader.read(32 << 10), "closed {:?}", reader.closed);
        // So that the server looks at who lags several times before the end.
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(check_order(&reader.messages), 40);
    let slow_consumers = &running.server.shared().counters.slow_consumers;
    let deadline = Instant::now() + WAIT;
    while slow_consumers.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < deadline, "who reads nothing is closed");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(slow_consumers.load(Ordering::Relaxed), 1);
}

#[test]
fn the_last_viewer_of_an_ended_program_gets_the_end() {
    let running = start(config(SendChoice::Auto));
    let mut client = Client::connect(running.port, true);
    client.call(1, "subscribe", r#"{"programId":"p"}"#);
    client.read_until(|messages| !messages.is_empty());
    let gone = OwnedEntry {
        kind: Kind::Gone,
        seq: 0,
        method: "programDeleted".to_owned(),
        params: b"{}".to_vec(),
        ..push(1, 1)
    };
    running
        .hub
        .append(TOPIC, &[push(1, 300_000), gone])
        .expect("consecutive");
    client.read_until(|messages| messages.len() == 3);
    assert!(client.messages[2].contains("programDeleted"));
    assert!(running.hub.find_log(TOPIC).is_none());
}

#[test]
fn stopping_closes_every_client_with_1001() {
    let running = start(config(SendChoice::Auto));
    let mut client = Client::connect(running.port, false);
    running.server.stop();
    while client.read(1_000) {}
    assert_eq!(client.closed, Some(1001));
}

/// What a client says and its end often come in one event; the end must not be missed for what came with it.
#[test]
fn who_speaks_and_goes_at_once_is_gone_at_once() {
    let running = start(config(SendChoice::Auto));
    let mut clients: Vec<_> = (0..200)
        .map(|_| Client::connect(running.port, false))
        .collect();
    for client in &mut clients {
        client.call(1, "servertime", "{}");
        client.socket.shutdown(Shutdown::Write).expect("connected");
    }
    let deadline = Instant::now() + WAIT / 2;
    while running.server.shared().connections.load(Ordering::Relaxed) > 0 {
        assert!(Instant::now() < deadline, "all are gone before a ping");
        std::thread::sleep(Duration::from_millis(5));
    }
}
