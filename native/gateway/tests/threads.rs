//! What threads share, under as much contention as they make: loops, appenders, openers, links, accounts.
//!
//! The assertions are about order and completeness; run under a sanitizer (`make sanitize`), it also looks for races.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use broker_core::log::Kind;
use broker_gateway::{
    Answer, GroupReply, Hub, OpenPoll, OwnedEntry, PollName, Rates, Session, Upcall, Votes,
};
use broker_server::{Config, SendChoice};
use support::{Client, Running, WAIT, config, push, start, start_prepared};

const PROGRAMS: u64 = 6;
const PUSHES: u64 = 300;
const VIEWERS: u64 = 12;
const VOTERS: u64 = 8;
const VOTES: u64 = 2_000;
const COUNTERS: usize = 3;

fn topic(program: u64) -> String {
    format!("main/program/{program}")
}

/// Answers what native code cannot, as the application does: opens the log that is missing, and lets it be retried.
fn answer_upcalls(hub: &Hub, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Acquire) {
        for upcall in hub.upcalls.take(64) {
            match upcall {
                Upcall::Call {
                    conn,
                    ticket,
                    method,
                    ..
                } if method == "subscribe" => hub.retry(conn, ticket),
                Upcall::Call { conn, ticket, .. } => {
                    hub.reply(conn, ticket, Answer::Result, b"1".to_vec());
                }
                Upcall::Idle { topic } => {
                    hub.close_log(&topic);
                }
                Upcall::Access { topic, readers } => {
                    for reader in readers {
                        hub.allow(&topic, reader, true);
                    }
                }
                Upcall::Authenticate { conn, .. } => hub.resume(conn),
                Upcall::Votes { .. } => unreachable!("no poll is open"),
                Upcall::Connects => unreachable!("nobody asks where to connect"),
            }
        }
        thread::yield_now();
    }
}

/// Appends all pushes of one program, some twice, as owners do that were asked again.
fn append_all(hub: &Hub, program: u64) {
    for seq in 1..=PUSHES {
        let size = [10, 200, 3_000][usize::try_from(seq % 3).expect("small")];
        let entries = [push(seq.max(2) - 1, size), push(seq, size)];
        let new = if seq == 1 {
            &entries[1..]
        } else {
            &entries[..]
        };
        hub.append(&topic(program), new).expect("consecutive");
        if seq % 16 == 0 {
            thread::yield_now();
        }
    }
}

/// Follows all programs from their beginning until it has every push, in order.
fn view_all(port: u16, number: u64) {
    let mut client = Client::connect(port, number % 2 == 0);
    for program in 0..PROGRAMS {
        let params = format!(r#"{{"programId":"{program}","since":{{"epoch":"e","seq":0}}}}"#);
        client.call(program, "subscribe", &params);
        client.call(100 + program, "other", "{}");
    }
    let total = usize::try_from(PROGRAMS * PUSHES).expect("small");
    let deadline = Instant::now() + WAIT * 3;
    let mut seqs = 0;
    while seqs < total {
        assert!(Instant::now() < deadline, "{seqs} of {total}");
        assert!(client.read(65_536), "closed {:?}", client.closed);
        let items = |message: &String| message.matches(r#""pad":"#).count();
        seqs = client.messages.iter().map(items).sum();
    }
    assert_eq!(seqs, total, "nothing comes twice");
    let answers = |message: &&String| message.contains(r#""id":10"#);
    client.read_until(|messages| messages.iter().filter(answers).count() >= 6);
}

/// Changes what does not concern the viewers, as fast as it can.
fn meddle(running: &Running, is_over: &AtomicBool) {
    let (hub, mut round) = (&running.hub, 0u64);
    while !is_over.load(Ordering::Acquire) {
        round += 1;
        let spare = format!("main/program/spare{}", round % 7);
        hub.open_log(&spare, "e", 0, round % 2 == 0);
        hub.link(&topic(round % PROGRAMS), "main/channel/all");
        hub.set_public(&spare, round % 3 == 0);
        hub.allow(&spare, round % 5, round % 2 == 0);
        hub.unlink(&topic(round % PROGRAMS), "main/channel/all");
        hub.grant("token", Session::new("main", 1, 1, "ada", u64::MAX));
        hub.revoke("main", "ada");
        assert!(hub.head(&topic(0)).is_some());
        hub.close_log(&spare);
        if round % 64 == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn many_threads_lose_nothing() {
    let running = Arc::new(start(Config {
        loops: 4,
        lag_bytes: 1 << 30,
        lag_ms: 60_000,
        // A sanitizer makes everybody slow, and nobody silent.
        ping_ms: 600_000,
        ..config(SendChoice::Send)
    }));
    for program in 0..PROGRAMS {
        running.hub.open_log(&topic(program), "e", 0, true);
    }
    running.hub.open_log("main/channel/all", "", 0, true);
    let is_over = Arc::new(AtomicBool::new(false));
    let helpers: Vec<_> = (0..3)
        .map(|number| {
            let (running, is_over) = (Arc::clone(&running), Arc::clone(&is_over));
            thread::spawn(move || match number {
                0 => answer_upcalls(&running.hub, &is_over),
                _ => meddle(&running, &is_over),
            })
        })
        .collect();
    let viewers: Vec<_> = (0..VIEWERS)
        .map(|number| {
            let port = running.port;
            thread::spawn(move || view_all(port, number))
        })
        .collect();
    // Two appenders for each program: what one has appended the other skips.
    let appenders: Vec<_> = (0..PROGRAMS)
        .map(|program| {
            let running = Arc::clone(&running);
            thread::spawn(move || append_all(&running.hub, program))
        })
        .collect();
    for appender in appenders {
        appender.join().expect("appending goes on");
    }
    for viewer in viewers {
        viewer.join().expect("a viewer has got everything in order");
    }
    is_over.store(true, Ordering::Release);
    for helper in helpers {
        helper.join().expect("no panic");
    }
}

#[test]
fn a_program_that_ends_while_viewers_come_tells_them_or_refuses_them() {
    let running = Arc::new(start(config(SendChoice::Send)));
    let is_over = Arc::new(AtomicBool::new(false));
    let application = {
        let (running, is_over) = (Arc::clone(&running), Arc::clone(&is_over));
        thread::spawn(move || answer_upcalls(&running.hub, &is_over))
    };
    for round in 0..60 {
        let program = topic(1_000 + round);
        running.hub.open_log(&program, "e", 0, true);
        let ender = {
            let (running, program) = (Arc::clone(&running), program.clone());
            let gone = OwnedEntry {
                kind: Kind::Gone,
                method: "programDeleted".to_owned(),
                ..push(0, 1)
            };
            thread::spawn(move || running.hub.append(&program, &[gone]).expect("the end"))
        };
        let mut client = Client::connect(running.port, false);
        let params = format!(r#"{{"programId":"{}"}}"#, 1_000 + round);
        client.call(1, "subscribe", &params);
        client.read_until(|messages| {
            let has = |text: &str| messages.iter().any(|message| message.contains(text));
            has(r#""code":404"#) || (has(r#""epoch""#) && has("programDeleted"))
        });
        ender.join().expect("no panic");
    }
    is_over.store(true, Ordering::Release);
    application.join().expect("no panic");
}

/// The poll that all vote in, opened for a while.
fn open_poll(votes: &Votes, until_ms: u64) {
    let name = PollName {
        account: "main",
        program: "p",
        context: "c",
        measure: "m",
    };
    let poll = OpenPoll {
        uid: 7,
        shards: 8,
        key: [1; 16],
        options: 2,
        allow_change: false,
        projects: Vec::new(),
        until_ms,
    };
    if until_ms == 0 {
        votes.close(&name);
    } else {
        votes.open(&name, poll);
    }
}

/// Takes votes as the counters do, all new, until it is over; returns how many there were.
fn count_votes(hub: &Hub, is_over: &AtomicBool) -> u64 {
    let votes = hub.votes.get().expect("prepared");
    let mut counted = 0;
    while !is_over.load(Ordering::Acquire) {
        for counter in 0..COUNTERS {
            let taken = votes.take(counter);
            let replies: Vec<_> = taken
                .iter()
                .map(|(_, records)| GroupReply::Counted(vec![1; records.len() / 9]))
                .collect();
            counted += taken
                .iter()
                .map(|(_, records)| records.len() as u64 / 9)
                .sum::<u64>();
            if !taken.is_empty() {
                hub.settle(counter, replies).expect("an outcome for each");
            }
        }
        for upcall in hub.upcalls.take(64) {
            if let Upcall::Call { conn, ticket, .. } = upcall {
                counted += 1; // the poll was closed at that moment
                hub.reply(
                    conn,
                    ticket,
                    Answer::Result,
                    br#"{"accepted":1,"duplicates":0}"#.to_vec(),
                );
            }
        }
        thread::yield_now();
    }
    counted
}

#[test]
fn votes_of_many_loops_are_each_taken_and_answered_once() {
    let rates = || Arc::new(Rates::new(0.0, 0.0, 100));
    let votes = Votes::new("d".to_owned(), rates(), rates(), COUNTERS);
    let config = Config {
        loops: 4,
        ping_ms: 600_000,
        ..config(SendChoice::Send)
    };
    let running = Arc::new(start_prepared(config, |hub| {
        assert!(hub.votes.set(votes).is_ok());
    }));
    let is_over = Arc::new(AtomicBool::new(false));
    let counter = {
        let (running, is_over) = (Arc::clone(&running), Arc::clone(&is_over));
        thread::spawn(move || count_votes(&running.hub, &is_over))
    };
    let opener = {
        let (running, is_over) = (Arc::clone(&running), Arc::clone(&is_over));
        thread::spawn(move || {
            let votes = running.hub.votes.get().expect("prepared");
            while !is_over.load(Ordering::Acquire) {
                open_poll(votes, u64::MAX);
                thread::sleep(Duration::from_millis(5));
                open_poll(votes, 0);
            }
        })
    };
    let clients: Vec<_> = (0..VOTERS)
        .map(|number| {
            let port = running.port;
            thread::spawn(move || {
                let mut client = Client::connect(port, false);
                for vote in 0..VOTES {
                    let params = format!(
                        r#"{{"programId":"p","contextId":"c","measureName":"m","measureValue":1,"visitorId":"{number}-{vote}"}}"#
                    );
                    client.call(vote, "respond", &params);
                }
                let total = usize::try_from(VOTES).expect("small");
                client.read_until(|messages| messages.len() >= total);
                assert!(client.messages.iter().all(|answer| answer.contains(r#""accepted":1"#)));
                assert_eq!(client.messages.len(), total);
            })
        })
        .collect();
    for client in clients {
        client.join().expect("each vote has been answered");
    }
    is_over.store(true, Ordering::Release);
    opener.join().expect("no panic");
    assert_eq!(counter.join().expect("no panic"), VOTERS * VOTES);
    let votes = running.hub.votes.get().expect("prepared");
    let natively = votes.taken.load(Ordering::Relaxed);
    assert!(natively > VOTERS * VOTES / 2, "{natively} natively");
}
