//! After many have come and gone, memory, descriptors and tasks are where they were; alone in its process.
//!
//! `BROKER_LEAK_ROUNDS` makes it longer: 250 rounds are 100,000 connections and 2,500 programs.

mod support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use broker_core::log::Kind;
use broker_gateway::{OwnedEntry, Upcall};
use broker_server::{Config, SendChoice};
use support::{Client, Running, WAIT, config, descriptors, push, resident_bytes, start};

const CONNECTIONS: u64 = 400;
const PROGRAMS: u64 = 10;
/// What may differ: an allocator keeps what it has been given back, and the first rounds fill pools.
const SLACK_BYTES: usize = 8 << 20;

#[test]
fn memory_descriptors_and_tasks_come_back() {
    let rounds =
        std::env::var("BROKER_LEAK_ROUNDS").map_or(3, |rounds| rounds.parse().expect("a number"));
    let running = start(Config {
        linger_ms: 0,
        ..config(SendChoice::Auto)
    });
    // The first rounds pay for what all share.
    for number in 0..1 {
        round(&running, number);
    }
    let before = (resident_bytes(), descriptors(), tasks());
    for number in 1..=rounds {
        round(&running, number);
    }
    assert_eq!(descriptors(), before.1);
    assert_eq!(tasks(), before.2);
    let grown = resident_bytes().saturating_sub(before.0);
    assert!(grown < SLACK_BYTES, "{grown} bytes after {rounds} rounds");
    let shared = running.server.shared();
    assert_eq!(running.hub.logs.lock().len(), 1, "the program of all tests");
    assert_eq!(shared.counters.subscriptions.load(Ordering::Relaxed), 0);
    assert!(running.hub.open.read().is_empty());
}

/// Programs open, viewers come, see and go, half of them without a word; programs end, by the half deleted.
fn round(running: &Running, number: u64) {
    let hub = &running.hub;
    let programs: Vec<_> = (0..PROGRAMS).map(|n| format!("{number}-{n}")).collect();
    let topic = |program: &String| format!("main/program/{program}");
    for program in &programs {
        hub.open_log(&topic(program), "e", 0, true);
        hub.link(&topic(program), "main/channel/c");
    }
    for batch in 0..CONNECTIONS / 50 {
        let mut clients: Vec<_> = (0..50)
            .map(|n| Client::connect(running.port, n % 2 == 0))
            .collect();
        for (client, program) in clients.iter_mut().zip(programs.iter().cycle()) {
            let params = format!(r#"{{"programId":"{program}","history":10}}"#);
            client.call(1, "subscribe", &params);
        }
        for program in &programs {
            hub.append(&topic(program), &[push(batch + 1, 1_000)])
                .expect("consecutive");
        }
        for client in &mut clients {
            client.read_until(|messages| messages.iter().any(|m| m.contains(r#""pad""#)));
            if client.messages.len() % 2 == 0 {
                client.send_close();
            }
        }
    }
    for (index, program) in programs.iter().enumerate() {
        hub.unlink(&topic(program), "main/channel/c");
        if index % 2 == 0 {
            let gone = OwnedEntry {
                kind: Kind::Gone,
                method: "programDeleted".to_owned(),
                ..push(0, 1)
            };
            hub.append(&topic(program), &[gone]).expect("the end");
        }
    }
    let deadline = Instant::now() + WAIT;
    let shared = running.server.shared();
    while shared.connections.load(Ordering::Relaxed) > 0 || hub.logs.lock().len() > 1 {
        assert!(Instant::now() < deadline, "all are gone in time");
        for upcall in hub.upcalls.take(usize::MAX) {
            if let Upcall::Idle { topic } = upcall {
                if topic != support::TOPIC {
                    hub.close_log(&topic);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn tasks() -> usize {
    std::fs::read_dir("/proc/self/task").expect("Linux").count()
}
