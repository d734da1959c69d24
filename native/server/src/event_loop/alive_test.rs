//! Who gets signs of life, and what comes in their place. Deadlines are set to now by hand.

use super::shares_test::{HISTORY, Stage, Viewer, call};
use super::*;
use crate::SendChoice;
use crate::tick::Tick;

const ROOM_BYTES: usize = 512 << 10;
const SIGN: &str = r#"{"jsonrpc":"2.0","method":"alive","params":{"everyMs":1000}}"#;

/// A viewer that has subscribed and heard of it.
fn connect(stage: &mut Stage, query: &str) -> Viewer {
    let mut viewer = stage.connect_to(&format!("/api/v1/ws?{query}"), ROOM_BYTES);
    viewer.send(&call("subscribe", ""));
    stage.turn_until(|_| viewer.read_what_is_there() == 1);
    viewer
}

/// The sign of life of everybody who wants any is due now.
fn let_be_due(stage: &mut Stage) {
    for slot in stage.event_loop.core.connections.slots() {
        let core = &mut stage.event_loop.core;
        core.now_ms = core.shared.now_ms() + TICK_MS;
        let now_ms = core.now_ms;
        let deadlines = &mut core.connection(slot).deadlines;
        if deadlines.alive.is_set() {
            deadlines.alive = Tick::at_ms(now_ms - TICK_MS);
        }
        stage.event_loop.timer(slot);
    }
}

/// Whether anybody waits for one, and none of them is over.
fn is_put_off(stage: &mut Stage) -> bool {
    let now_ms = stage.event_loop.core.now_ms;
    let all = stage.connections().into_iter();
    let due: Vec<_> = all
        .map(|one| one.deadlines.alive)
        .filter(|due| due.is_set())
        .collect();
    !due.is_empty() && due.iter().all(|due| !due.is_over(now_ms))
}

#[test]
fn only_who_wants_signs_of_life_gets_them() {
    let mut stage = Stage::empty();
    let mut wanting = connect(&mut stage, "alive=true");
    let mut other = connect(&mut stage, "alive=false");
    for signs in 1..=2 {
        let_be_due(&mut stage);
        stage.wake();
        stage.turn_until(|stage| {
            stage.wake();
            wanting.read_what_is_there() == 1 + signs
        });
        assert!(is_put_off(&mut stage));
    }
    assert_eq!(wanting.messages[1..], [SIGN, SIGN]);
    assert_eq!(other.read_what_is_there(), 1);
}

#[test]
fn what_was_just_sent_stands_in_for_a_sign_of_life() {
    let mut stage = Stage::new(SendChoice::Send);
    let mut viewer = connect(&mut stage, "batch=true&alive=true");
    stage.publish_long(20);
    stage.wake();
    stage.turn_until(|stage| {
        stage.wake();
        viewer.read_what_is_there() == 2
    });
    let_be_due(&mut stage);
    assert!(is_put_off(&mut stage));
    stage.publish_long(20);
    stage.wake();
    stage.turn_until(|stage| {
        stage.wake();
        viewer.read_what_is_there() == 3
    });
    assert_eq!(viewer.seqs(), [HISTORY + 1, HISTORY + 2]);
}

#[test]
fn one_that_does_not_read_gets_none() {
    let mut stage = Stage::empty();
    let _viewer = connect(&mut stage, "alive=true");
    let slot = stage.event_loop.core.connections.slots().start;
    let writing = &mut stage.event_loop.core.connection(slot).writing;
    writing.is_blocked = true;
    let_be_due(&mut stage);
    assert!(stage.event_loop.core.connection(slot).out.bytes.is_empty());
    assert!(is_put_off(&mut stage));
}
