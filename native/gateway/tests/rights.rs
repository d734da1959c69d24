//! Who may go on following a log that has become private, whichever loop they are on.

mod support;

use std::collections::HashMap;
use std::thread;
use std::time::Instant;

use broker_gateway::{Answer, Hub, Session, Upcall};
use broker_server::SendChoice;
use support::{Client, TOPIC, WAIT, config, push, start};

/// The class of readers that nobody decides about, and one that may follow.
const UNDECIDED: u64 = 7;
const ALLOWED: u64 = 8;

/// The next upcall that `wanted` makes something of; others are dropped.
fn next<T>(hub: &Hub, wanted: impl Fn(Upcall) -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT;
    loop {
        if let Some(found) = hub.upcalls.take(1).into_iter().next().and_then(&wanted) {
            return found;
        }
        assert!(Instant::now() < deadline, "no such upcall");
        thread::yield_now();
    }
}

/// A subscriber of the class `reader`, and the loop that it is on.
fn subscribe(port: u16, hub: &Hub, reader: u64) -> (usize, Client) {
    let token = format!("token {reader}");
    hub.grant(
        &token,
        Session::new("main", reader, reader, "ada", u64::MAX),
    );
    let mut client = Client::connect(port, false);
    client.call(1, "login", "{}");
    let (conn, ticket) = next(hub, |upcall| match upcall {
        Upcall::Call { conn, ticket, .. } => Some((conn, ticket)),
        _ => None,
    });
    assert!(hub.sign_in(conn, "main", &token));
    hub.reply(conn, ticket, Answer::Result, b"true".to_vec());
    client.call(2, "subscribe", r#"{"programId":"p"}"#);
    client.read_until(|messages| messages.iter().any(|m| m.contains(r#""id":2"#)));
    (conn.loop_index(), client)
}

/// One subscriber of the class on each of two loops.
fn subscribe_on_both(port: u16, hub: &Hub, reader: u64) -> Vec<Client> {
    let mut clients = HashMap::new();
    while clients.len() < 2 {
        let (index, client) = subscribe(port, hub, reader);
        clients.entry(index).or_insert(client);
    }
    clients.into_values().collect()
}

#[test]
fn readers_whose_rights_are_not_decided_in_time_are_expelled_on_all_loops() {
    let running = start(config(SendChoice::Send));
    let hub = &running.hub;
    let undecided = subscribe_on_both(running.port, hub, UNDECIDED);
    let allowed = subscribe_on_both(running.port, hub, ALLOWED);
    hub.set_public(TOPIC, false);
    for _ in 0..2 {
        let asked = next(hub, |upcall| match upcall {
            Upcall::Access { readers, .. } => Some(readers),
            _ => None,
        });
        assert!(asked.contains(&UNDECIDED) && asked.contains(&ALLOWED));
    }
    hub.allow(TOPIC, ALLOWED, true);
    // As if the time were over.
    let log = hub.find_log(TOPIC).expect("it has subscribers");
    log.access.lock().decide_by_ms = Some(0);
    for mut client in undecided {
        client.read_until(|messages| {
            messages
                .iter()
                .any(|m| m.contains(r#""reason":"insufficient_scope""#))
        });
    }
    hub.append(TOPIC, &[push(1, 1)]).expect("the first");
    for mut client in allowed {
        client.read_until(|messages| messages.iter().any(|m| m.contains(r#""pad":"#)));
        assert!(!client.messages.iter().any(|m| m.contains("unsubscribed")));
    }
}
