//! Who wants several notifications as one message, and what waits for that. Turns are taken by hand.

use broker_core::log::{Entry, Framing, Kind};

use super::shares_test::{HISTORY, Stage, Viewer, call};
use crate::SendChoice;
use crate::tick::NEVER;

const TARGET: &str = "/api/v1/ws?batch=true";
const ROOM_BYTES: usize = 512 << 10;
const SHORT_BYTES: usize = 20;

fn connect(stage: &mut Stage, more: &str) -> Viewer {
    let mut viewer = stage.connect_to(TARGET, ROOM_BYTES);
    viewer.send(&call("subscribe", more));
    stage.turn_until(|_| viewer.read_what_is_there() >= 1);
    viewer
}

/// Turns until a viewer has had so many messages.
fn wait_for(stage: &mut Stage, viewer: &mut Viewer, messages: usize) {
    stage.wake();
    stage.turn_until(|stage| {
        stage.wake();
        viewer.read_what_is_there() >= messages
    });
}

/// Sets when what waits may go.
fn hold_until(stage: &mut Stage, ms: u64) {
    let core = &mut stage.event_loop.core;
    let place = core.topics.find(1).expect("it is followed");
    core.topics.at(place).audiences[Framing::Joined].next_ms = ms;
    core.held_until_ms = core.held_until_ms.min(ms);
}

#[test]
fn what_comes_at_once_is_one_message() {
    for send in [SendChoice::Send, SendChoice::Auto] {
        let mut stage = Stage::new(send);
        let mut joined = connect(&mut stage, "");
        let mut single = stage.connect_live();
        for _ in 0..3 {
            stage.publish_long(SHORT_BYTES);
        }
        wait_for(&mut stage, &mut joined, 2);
        wait_for(&mut stage, &mut single, 4);
        let expected: Vec<u64> = (HISTORY + 1..=HISTORY + 3).collect();
        assert_eq!(joined.seqs(), expected);
        assert_eq!(single.seqs(), expected);
        assert_eq!(joined.messages.len(), 2);
        let parts = &single.messages[1..];
        assert!(joined.messages[1].starts_with(&format!("[{}", parts[0])));
        // One alone is no array.
        stage.publish_long(SHORT_BYTES);
        wait_for(&mut stage, &mut joined, 3);
        wait_for(&mut stage, &mut single, 5);
        assert_eq!(joined.messages[2], single.messages[4]);
    }
}

#[test]
fn what_follows_soon_waits_and_then_goes_together() {
    let mut stage = Stage::new(SendChoice::Send);
    let mut joined = connect(&mut stage, "");
    let mut single = stage.connect_live();
    hold_until(&mut stage, NEVER - 1);
    for _ in 0..2 {
        stage.publish_long(SHORT_BYTES);
        let messages = single.read_what_is_there() + 1;
        wait_for(&mut stage, &mut single, messages);
    }
    assert_eq!(joined.read_what_is_there(), 1);
    hold_until(&mut stage, 0);
    wait_for(&mut stage, &mut joined, 2);
    assert_eq!(joined.messages.len(), 2);
    assert_eq!(joined.seqs(), [HISTORY + 1, HISTORY + 2]);
    assert_eq!(stage.event_loop.core.held_until_ms, NEVER);
}

#[test]
fn nobody_waits_when_a_log_has_ended() {
    let mut stage = Stage::new(SendChoice::Send);
    let mut joined = connect(&mut stage, "");
    hold_until(&mut stage, NEVER - 1);
    stage.publish_long(SHORT_BYTES);
    let gone = Entry {
        kind: Kind::Gone,
        epoch: "e",
        seq: 0,
        method: "programDeleted",
        params: br#"{"programId":"p"}"#,
    };
    stage.log.log.lock().append(&gone, 0).expect("the last one");
    stage.announce();
    wait_for(&mut stage, &mut joined, 2);
    assert_eq!(joined.seqs(), [HISTORY + 1]);
    assert!(joined.messages[1].contains("programDeleted"));
    assert!(stage.event_loop.core.topics.find(1).is_none());
}

#[test]
fn what_was_held_for_one_who_has_left_is_let_go_of() {
    let mut stage = Stage::new(SendChoice::Send);
    let mut joined = connect(&mut stage, "");
    hold_until(&mut stage, NEVER - 1);
    stage.publish_long(SHORT_BYTES);
    stage.wake();
    stage.turn_until(|stage| !stage.event_loop.core.held.is_empty());
    joined.send(&call("unsubscribe", ""));
    wait_for(&mut stage, &mut joined, 2);
    assert!(stage.event_loop.core.topics.find(1).is_some());
    stage.event_loop.core.held_until_ms = 0;
    stage.wake();
    stage.turn_until(|stage| stage.event_loop.core.held.is_empty());
    assert!(stage.event_loop.core.topics.find(1).is_none());
}

#[test]
fn one_whose_socket_is_full_gets_everything_once_and_in_order() {
    let mut stage = Stage::new(SendChoice::Send);
    let mut joined = connect(&mut stage, r#","history":20"#);
    for _ in 0..400 {
        stage.publish();
        stage.turn();
    }
    let expected: Vec<u64> = (HISTORY - 19..=HISTORY + 400).collect();
    stage.wake();
    stage.turn_until(|stage| {
        stage.wake();
        joined.read_what_is_there();
        joined.seqs().len() >= expected.len()
    });
    assert_eq!(joined.seqs(), expected);
    // Ten thousand bytes each, and never far more than 64 KiB in one.
    assert!(
        joined
            .messages
            .iter()
            .skip(1)
            .all(|text| text.len() < 80_000)
    );
}
