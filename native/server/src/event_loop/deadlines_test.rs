//! What a client has to do in time counts only while we look at it. Deadlines are set to now by hand.

use broker_core::protocol::frame::{Opcode, encode_masked};

use super::shares_test::{Connection, Stage, Viewer, call};
use super::*;
use crate::connection::Deadlines;
use crate::tick::Tick;

/// More than one connection may have outstanding.
const CALLS: usize = 300;

/// Turns until the loop has heard all that it is willing to hear.
fn settle(stage: &mut Stage) {
    for _ in 0..1_000 {
        stage.wake();
        stage.turn();
    }
}

/// A deadline that is over.
fn passed(now_ms: u64) -> Tick {
    Tick::at_ms(now_ms.saturating_sub(TICK_MS))
}

/// The deadlines of everybody are over.
fn expire(stage: &mut Stage) -> State {
    let slot = stage.event_loop.core.connections.slots().start;
    let core = &mut stage.event_loop.core;
    let now_ms = core.now_ms;
    let connection = core.connection(slot);
    let Deadlines {
        pong, message, end, ..
    } = &mut connection.deadlines;
    for deadline in [pong, message, end] {
        if deadline.is_set() {
            *deadline = passed(now_ms);
        }
    }
    stage.event_loop.timer(slot);
    stage.event_loop.core.connection(slot).state
}

fn await_pong(stage: &mut Stage) {
    let slot = stage.event_loop.core.connections.slots().start;
    stage.event_loop.ping(slot);
    assert!(
        stage
            .event_loop
            .core
            .connection(slot)
            .deadlines
            .pong
            .is_set()
    );
    settle(stage);
}

fn pong(viewer: &mut Viewer) {
    let mut frame = Vec::new();
    encode_masked(Opcode::Pong, b"", [1, 2, 3, 4], &mut frame);
    viewer.send_bytes(&frame);
}

fn message(bytes: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_masked(Opcode::Text, &vec![b' '; bytes], [1, 2, 3, 4], &mut frame);
    frame
}

#[test]
fn one_whose_pong_we_do_not_read_is_not_closed_for_want_of_it() {
    let mut stage = Stage::empty();
    let mut producer = stage.connect();
    for _ in 0..CALLS {
        producer.send(&call("publish", ""));
    }
    stage.turn_until(|stage| stage.connections()[0].reading.is_paused);
    await_pong(&mut stage);
    pong(&mut producer);
    settle(&mut stage);
    assert_eq!(expire(&mut stage), State::Open);
}

#[test]
fn one_who_is_silent_is_closed_for_want_of_a_pong() {
    let mut stage = Stage::empty();
    let viewer = stage.connect();
    await_pong(&mut stage);
    assert_eq!(expire(&mut stage), State::Free);
    drop(viewer);
}

#[test]
fn any_byte_is_a_sign_of_life() {
    let mut stage = Stage::empty();
    let mut producer = stage.connect();
    let frame = message(1 << 20);
    producer.send_bytes(&frame[..1_000]);
    settle(&mut stage);
    await_pong(&mut stage);
    // The pong can only come behind the message.
    producer.send_bytes(&frame[1_000..2_000]);
    stage.turn_until(|stage| !stage.connections()[0].deadlines.pong.is_set());
}

#[test]
fn a_message_is_not_late_while_we_do_not_read() {
    let mut stage = Stage::empty();
    let mut producer = stage.connect();
    for _ in 0..CALLS {
        producer.send(&call("publish", ""));
    }
    producer.send_bytes(&message(100)[..50]);
    stage.turn_until(|stage| stage.connections()[0].reading.is_paused);
    let slot = stage.event_loop.core.connections.slots().start;
    let now_ms = stage.event_loop.core.now_ms;
    let connection = stage.event_loop.core.connection(slot);
    assert!(connection.reading.is_paused && connection.reading.has_more);
    connection.deadlines.message = passed(now_ms);
    assert_eq!(expire(&mut stage), State::Open);
}

#[test]
fn a_request_that_waits_for_us_is_not_late() {
    let mut stage = Stage::empty();
    let mut viewer = stage.connect_silently();
    viewer.send_bytes(b"GET /api/v1/ws HTTP/1.1\r\n");
    stage.turn_until(|stage| !stage.connections().is_empty());
    settle(&mut stage);
    let slot = stage.event_loop.core.connections.slots().start;
    // As for one of thousands whose turn has not come.
    stage.event_loop.core.connection(slot).reading.has_more = true;
    assert_eq!(expire(&mut stage), State::Head);
    stage.event_loop.core.connection(slot).reading.has_more = false;
    assert_eq!(expire(&mut stage), State::Closing);
}

/// Nobody answers a comment: the kernel has to notice who is gone.
#[test]
fn a_reader_of_events_has_to_acknowledge_them() {
    let mut stage = Stage::empty();
    let mut reader = stage.connect_silently();
    reader.send_bytes(b"GET /api/v1/programs/p/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let is_open = |one: &&Connection| one.state == State::Open;
    stage.turn_until(|stage| stage.connections().iter().any(is_open));
    let _viewer = stage.connect();
    let connections = stage.connections();
    let most_ms = connections.iter().map(|one| {
        let fd = one.fd.as_ref().expect("it is open");
        rustix::net::sockopt::tcp_user_timeout(fd).expect("a TCP socket")
    });
    let config = crate::Config::default();
    let events_ms = u32::try_from(config.pong_ms + config.lag_ms).expect("seconds");
    assert_eq!(most_ms.collect::<Vec<_>>(), [events_ms, 0]);
}

/// A client that sends on behind a farewell would be read from for as long as that lingers.
#[test]
fn a_client_that_goes_on_sending_behind_a_farewell_is_cut_off() {
    const OFFERED_BYTES: usize = 256 << 20;
    let mut stage = Stage::empty();
    let mut viewer = stage.connect();
    // Not masked.
    viewer.send_bytes(b"\x81\x02{}");
    stage.turn_until(|stage| stage.connections()[0].state == State::Closing);
    let flood = vec![b'x'; 1 << 20];
    let mut sent = 0;
    stage.turn_until(|stage| {
        stage.wake();
        sent += viewer.send_some(&flood);
        stage.connections().is_empty() || sent > OFFERED_BYTES
    });
    assert!(sent < OFFERED_BYTES, "{sent} bytes were taken");
}
