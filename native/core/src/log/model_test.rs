//! The log against its model, and at the edges of its limits.

use proptest::prelude::*;

use super::model::{Model, ROOMY, Step, message};
use super::{Appended, Entry, Framing, Kind, Limits, Log, LogError, Span};

fn push<'a>(epoch: &'a str, seq: u64, params: &'a [u8]) -> Entry<'a> {
    Entry {
        kind: Kind::Push,
        epoch,
        seq,
        method: "event",
        params,
    }
}

/// Everything from `cursor` to the tip of a log that has it.
fn read_all(log: &mut Log, cursor: u64, budget: u64, framing: Framing) -> Vec<Vec<u8>> {
    super::model::read_all(log, cursor, budget, framing).expect("nothing was trimmed")
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![4 => 0usize..10, 4 => 0usize..300, 1 => 0usize..70_000];
    let params = (b'a'..=b'z', bytes).prop_map(|(letter, bytes)| vec![letter; bytes]);
    let params = params.prop_map(|text| {
        let mut params = b"{\"x\":\"".to_vec();
        params.extend(text);
        params.extend(b"\"}");
        params
    });
    prop_oneof![
        8 => params.clone().prop_map(Step::Push),
        4 => (0u8..4, 0usize..300).prop_map(|(event, bytes)| Step::Tell(event, bytes)),
        2 => (0u8..4).prop_map(Step::Delete),
        2 => params.prop_map(Step::Notice),
        1 => (0u64..20).prop_map(Step::Reset),
        1 => (1u64..20).prop_map(Step::Skip),
        1 => (1u64..5).prop_map(Step::Backfill),
        1 => framing().prop_map(Step::Want),
        1 => framing().prop_map(Step::Unwant),
        2 => prop_oneof![1u64..400, 900u64..20_000].prop_map(Step::Wait),
    ]
}

fn framing() -> impl Strategy<Value = Framing> {
    prop_oneof![Just(Framing::Deflated), Just(Framing::Events)]
}

fn budget() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1u64), 100..1_000u64, Just(1 << 20)]
}

fn tight_limits() -> impl Strategy<Value = Limits> {
    let bytes = prop_oneof![500u64..100_000, Just(u64::MAX)];
    let age_ms = prop_oneof![0u64..5_000, Just(u64::MAX)];
    (1usize..20, age_ms, bytes).prop_map(|(entries, age_ms, bytes)| Limits {
        entries,
        age_ms,
        bytes,
    })
}

fn run(mut model: Model, steps: &[Step]) {
    for step in steps {
        model.apply(step);
    }
    model.check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_position_reads_what_the_model_says(
        base in 0u64..10,
        steps in proptest::collection::vec(step(), 1..40),
        budget in budget(),
    ) {
        run(Model::new(base, ROOMY, budget), &steps);
    }

    #[test]
    fn what_limits_have_left_reads_what_the_model_says(
        base in 0u64..10,
        limits in tight_limits(),
        steps in proptest::collection::vec(step(), 1..60),
        budget in budget(),
    ) {
        run(Model::new(base, limits, budget), &steps);
    }
}

fn log_of(pushes: u64, limits: Limits) -> Log {
    let mut log = Log::new("e", 0, limits);
    for seq in 1..=pushes {
        log.append(&push("e", seq, br#"{"x":1}"#), seq * 1_000)
            .expect("consecutive");
    }
    log
}

#[test]
fn a_gap_is_refused_and_changes_nothing() {
    let mut log = log_of(2, ROOMY);
    let error = log.append(&push("e", 4, b"{}"), 0).expect_err("3 is next");
    assert_eq!(error.to_string(), "seq 4 leaves a gap: 3 is next");
    assert!(log.append(&push("f", 3, b"{}"), 0).is_err());
    assert!(log.append(&push("e", 3, b"[]"), 0).is_err());
    assert_eq!(log.seq(), 2);
}

#[test]
fn nothing_follows_the_end() {
    let mut log = log_of(1, ROOMY);
    let gone = Entry {
        kind: Kind::Gone,
        epoch: "e",
        seq: 0,
        method: "programDeleted",
        params: b"{}",
    };
    log.append(&gone, 0).expect("the end");
    assert!(log.is_ended());
    assert!(log.append(&push("e", 2, b"{}"), 0).is_err());
}

#[test]
fn the_oldest_entries_go_first_when_there_are_too_many() {
    let mut log = log_of(
        10,
        Limits {
            entries: 4,
            ..ROOMY
        },
    );
    log.trim(100_000);
    assert_eq!((log.floor(), log.seq()), (6, 10));
    assert_eq!(log.after("e", 5), None);
    let cursor = log.after("e", 6).expect("kept");
    assert_eq!(read_all(&mut log, cursor, 1 << 20, Framing::Plain).len(), 4);
}

#[test]
fn a_burst_over_the_limit_still_reaches_one_who_keeps_up() {
    let limits = Limits {
        entries: 2,
        ..ROOMY
    };
    let mut log = Log::new("e", 0, limits);
    let cursor = log.tip();
    for seq in 1..=5 {
        log.append(&push("e", seq, b"{}"), 50).expect("consecutive");
    }
    assert_eq!(read_all(&mut log, cursor, 1 << 20, Framing::Plain).len(), 5);
    assert_eq!(log.floor(), 3);
}

#[test]
fn old_entries_go_with_time() {
    let mut log = log_of(
        5,
        Limits {
            age_ms: 2_000,
            ..ROOMY
        },
    );
    log.trim(5_999);
    assert_eq!(log.floor(), 3);
    log.trim(1_000_000);
    assert_eq!((log.floor(), log.seq()), (5, 5));
    assert_eq!(log.after("e", 5), Some(log.tip()));
}

#[test]
fn a_trimmed_cursor_is_lost_and_deflated_reading_goes_on() {
    let limits = Limits {
        entries: 3,
        ..ROOMY
    };
    let mut log = Log::new("e", 0, limits);
    let start = log.tip();
    log.want(Framing::Deflated);
    let params = format!("{{\"x\":\"{}\"}}", "y".repeat(200));
    for seq in 1..=20u64 {
        log.append(&push("e", seq, params.as_bytes()), seq * 10_000)
            .expect("consecutive");
        let cursor = log.after("e", seq - 1).expect("the newest");
        assert_eq!(
            read_all(&mut log, cursor, 1 << 20, Framing::Deflated),
            [message("event", params.as_bytes())]
        );
    }
    let tip = log.tip();
    assert_eq!(
        log.read(start, tip, 1, Framing::Plain, &mut Span::default()),
        Err(super::Lost)
    );
    let oldest = log.after("e", 17).expect("kept");
    assert_eq!(read_all(&mut log, oldest, 100, Framing::Deflated).len(), 3);
}

#[test]
fn bytes_are_bounded() {
    let limits = Limits {
        bytes: 10_000,
        ..ROOMY
    };
    let mut log = Log::new("e", 0, limits);
    let params = format!("{{\"x\":\"{}\"}}", "y".repeat(1_000));
    for seq in 1..=1_000u64 {
        log.append(&push("e", seq, params.as_bytes()), 0)
            .expect("consecutive");
    }
    // Within the grace it may be four times the limit, and whole chunks besides.
    assert!(log.held_bytes() <= 40_000 + (128 << 10) + 2_000);
    assert!(log.floor() > 950);
}

#[test]
fn the_last_pushes_are_found_and_completeness_is_told() {
    let mut log = Log::new("e", 5, ROOMY);
    for seq in 6..=8 {
        log.append(&push("e", seq, b"{}"), 0).expect("consecutive");
    }
    assert_eq!(log.last(0), (log.tip(), true));
    assert_eq!(log.seq_at(log.last(2).0), 6);
    assert!(log.last(3).1);
    assert_eq!((log.seq_at(log.last(4).0), log.last(4).1), (5, false));
}

#[test]
fn a_backfill_must_reach_the_log() {
    let mut log = Log::new("e", 5, ROOMY);
    assert!(log.backfill("e", &[push("e", 3, b"{}")], 0).is_err());
    assert!(
        log.backfill("e", &[push("e", 3, b"{}"), push("e", 5, b"{}")], 0)
            .is_err()
    );
    log.backfill("other", &[push("other", 5, b"{}")], 0)
        .expect("another epoch is skipped");
    let entries: Vec<_> = (3..=7).map(|seq| push("e", seq, b"{}")).collect();
    log.backfill("e", &entries, 0)
        .expect("what is beyond the head is skipped");
    log.backfill("e", &entries, 0)
        .expect("what is here is skipped");
    assert_eq!((log.floor(), log.seq()), (2, 5));
    let mut items = Vec::new();
    let cursor = log.after("e", 2).expect("backfilled");
    log.put_items(cursor, 2, usize::MAX, &mut items)
        .expect("here");
    assert_eq!(items, b"{},{}");
}

#[test]
fn a_past_that_is_brought_back_leads_on_to_what_is_left() {
    let limits = Limits {
        age_ms: 5_000,
        ..ROOMY
    };
    let mut log = log_of(4, limits);
    log.trim(8_000);
    assert_eq!(log.floor(), 2);
    log.backfill("e", &[push("e", 2, b"{}")], 8_000)
        .expect("it reaches the oldest kept");
    let cursor = log.after("e", 1).expect("brought back");
    assert_eq!(read_all(&mut log, cursor, 1, Framing::Plain).len(), 3);
}

fn event(seq: u64, id: &str) -> Vec<u8> {
    format!(r#"{{"seq":{seq},"epoch":"e","id":"{id}","metadata":{{"id":"x"}}}}"#).into_bytes()
}

#[test]
fn ids_are_known_from_the_floor_on() {
    let limits = Limits {
        entries: 3,
        age_ms: 0,
        bytes: u64::MAX,
    };
    let mut log = Log::after_message("e", 5, "id-5", limits);
    assert_eq!(
        (log.id_at(5), log.id_at(4), log.id_at(6)),
        (Some("id-5"), None, None)
    );
    for seq in 6..=12 {
        let params = event(seq, &format!("id-{seq}"));
        log.append(&push("e", seq, &params), seq * 5_000)
            .expect("in order");
    }
    assert_eq!(log.floor(), 11);
    assert_eq!(
        (log.id_at(10), log.id_at(11), log.id_at(12)),
        (None, Some("id-11"), Some("id-12"))
    );
    let older: Vec<_> = (8..=11)
        .map(|seq| event(seq, &format!("id-{seq}")))
        .collect();
    let entries: Vec<_> = (8..=11)
        .zip(&older)
        .map(|(seq, params)| push("e", seq, params))
        .collect();
    log.backfill("e", &entries, 60_000)
        .expect("reaches the log");
    // There is room for two; of the third its id is kept.
    assert_eq!(log.floor(), 9);
    assert_eq!(
        (log.id_at(8), log.id_at(9), log.id_at(10)),
        (None, Some("id-9"), Some("id-10"))
    );
}

#[test]
fn another_push_of_a_known_seq_is_refused() {
    let mut log = Log::new("e", 0, ROOMY);
    let (first, other) = (event(1, "id-1"), event(1, "id-x"));
    assert_eq!(log.append(&push("e", 1, &first), 0), Ok(Appended::Added));
    assert_eq!(log.append(&push("e", 1, &first), 0), Ok(Appended::Skipped));
    assert_eq!(
        log.append(&push("e", 1, &other), 0),
        Err(LogError::Other { seq: 1 })
    );
    let reset = Entry {
        kind: Kind::Reset,
        epoch: "e2",
        seq: 1,
        method: "historyReplaced",
        params: b"{}",
    };
    assert_eq!(log.append(&reset, 0), Ok(Appended::Added));
    assert_eq!(log.id_at(1), None);
}

/// The `id:` lines from `cursor` to the tip; empty for an event without one.
fn positions(log: &mut Log, cursor: u64) -> Vec<String> {
    let (mut span, mut cursor, mut out) = (Span::default(), cursor, Vec::new());
    while cursor != log.tip() {
        let tip = log.tip();
        log.make_events(tip, 1);
        log.read(cursor, tip, 1, Framing::Events, &mut span)
            .expect("kept");
        let slices: Vec<_> = span.slices().collect();
        let text = String::from_utf8(slices.concat()).expect("text");
        for event in text.split_terminator("\n\n") {
            let mut lines = event.lines();
            let id = lines.find_map(|line| line.strip_prefix("id: "));
            out.push(id.unwrap_or_default().to_owned());
        }
        cursor = span.next;
    }
    out
}

#[test]
fn events_say_where_their_reader_is() {
    for is_wanted in [false, true] {
        let mut log = Log::after_message("e", 1, "m1", ROOMY);
        if is_wanted {
            log.want(Framing::Events);
        }
        let start = log.tip();
        let entry = |kind, epoch, seq, params| Entry {
            kind,
            epoch,
            seq,
            method: "x",
            params,
        };
        for (kind, epoch, seq, params) in [
            (Kind::Push, "e", 2, br#"{"seq":2,"id":"m2"}"#.as_slice()),
            (Kind::Notice, "", 0, b"{}"),
            (Kind::Push, "e", 3, b"{}"),
        ] {
            log.append(&entry(kind, epoch, seq, params), 0)
                .expect("it follows");
        }
        log.backfill("e", &[push("e", 1, br#"{"id":"m1"}"#)], 0)
            .expect("it reaches the log");
        let past = log.after("e", 0).expect("brought back");
        assert_eq!(positions(&mut log, past), ["e:1:m1", "e:2:m2", "", "e:3"]);
        assert_eq!(positions(&mut log, start), ["e:2:m2", "", "e:3"]);
        for (kind, epoch, seq) in [(Kind::Reset, "f", 5), (Kind::Push, "f", 6)] {
            log.append(&entry(kind, epoch, seq, b"{}"), 0)
                .expect("it follows");
        }
        log.append(&entry(Kind::Gone, "f", 6, b"{}"), 0)
            .expect("the end");
        // Where an event was made while its epoch was the log's, it says so; there is no coming back to it either way.
        let before = if is_wanted {
            ["e:2:m2", "", "e:3"]
        } else {
            ["", "", ""]
        };
        let all = positions(&mut log, start);
        assert_eq!(all[..3], before);
        assert_eq!(all[3..], ["f:5", "f:6", ""]);
    }
}

#[test]
fn events_are_made_once_and_few_of_them_are_kept() {
    let mut log = Log::new("e", 0, ROOMY);
    let start = log.tip();
    let params = format!("{{\"x\":\"{}\"}}", "y".repeat(10_000));
    log.want(Framing::Events);
    for seq in 1..=500 {
        log.append(&push("e", seq, params.as_bytes()), 0)
            .expect("consecutive");
        let (tip, frames_bytes) = (log.tip(), log.held_bytes());
        log.make_events(tip, 1 << 20);
        let made_bytes = log.held_bytes();
        log.make_events(tip, 1 << 20);
        assert_eq!(log.held_bytes(), made_bytes);
        assert!(made_bytes < frames_bytes + 11_000);
    }
    let both = log.held_bytes();
    // Whoever is behind what is kept gets it all the same.
    assert_eq!(
        read_all(&mut log, start, 1 << 20, Framing::Events).len(),
        500
    );
    log.unwant(Framing::Events);
    let plain = log.held_bytes();
    assert!(
        (1 << 20..(1 << 20) + (300 << 10)).contains(&(both - plain)),
        "{}",
        both - plain
    );
    assert_eq!(
        read_all(&mut log, start, 1 << 20, Framing::Events).len(),
        500
    );
}

fn deletion(seq: u64, params: &[u8]) -> Entry<'_> {
    Entry {
        method: "eventDeleted",
        ..push("e", seq, params)
    }
}

fn deleted(seq: u64, id: &str) -> Vec<u8> {
    format!(r#"{{"seq":{seq},"epoch":"e","id":"{id}"}}"#).into_bytes()
}

#[test]
fn whoever_has_begun_to_read_reads_on_what_it_was() {
    let mut log = Log::new("e", 0, ROOMY);
    let start = log.tip();
    let text = "y".repeat(100_000);
    for seq in 1..=4 {
        let params = format!(r#"{{"seq":{seq},"epoch":"e","id":"id-{seq}","metadata":"{text}"}}"#);
        log.append(&push("e", seq, params.as_bytes()), 0)
            .expect("in order");
    }
    let (mut span, tip) = (Span::default(), log.tip());
    log.read(start, tip, u64::MAX, Framing::Plain, &mut span)
        .expect("kept");
    let begun = span.slices().collect::<Vec<_>>().concat();
    let held_bytes = log.held_bytes();
    log.append(&deletion(5, &deleted(5, "id-2")), 0)
        .expect("in order");
    assert_eq!(span.slices().collect::<Vec<_>>().concat(), begun);
    assert!(
        log.held_bytes() < held_bytes - 99_000,
        "it no longer counts"
    );
    let got = read_all(&mut log, start, 1 << 20, Framing::Plain);
    assert_eq!(got[1], message("eventDeleted", &deleted(2, "id-2")));
    assert_eq!(got[4], message("eventDeleted", &deleted(5, "id-2")));
    assert!(got[2].len() > 100_000);
}

#[test]
fn what_is_being_deflated_when_it_is_deleted_stays_unread() {
    let mut log = Log::new("e", 0, ROOMY);
    log.want(Framing::Deflated);
    let start = log.tip();
    let text = "y".repeat(300);
    for (seq, id) in [(1, "a"), (2, "b"), (3, "a"), (4, "c")] {
        let params = format!(r#"{{"seq":{seq},"epoch":"e","id":"{id}","metadata":"{text}"}}"#);
        log.append(&push("e", seq, params.as_bytes()), 0)
            .expect("in order");
    }
    let mut payload = Vec::new();
    for expected in [start, start + 1] {
        let index = log.next_to_deflate(log.tip(), &mut payload);
        assert_eq!(index, Some(expected));
        log.put_deflated(expected, &payload[..10]);
    }
    let index = log.next_to_deflate(log.tip(), &mut payload);
    assert_eq!(index, Some(start + 2));
    log.append(&deletion(5, &deleted(5, "a")), 0)
        .expect("in order");
    log.put_deflated(start + 2, &payload[..10]);
    let got = read_all(&mut log, start, 1 << 20, Framing::Deflated);
    assert_eq!(got.len(), 5);
    for seq in [1, 3, 5] {
        let expected = message("eventDeleted", &deleted(seq, "a"));
        assert_eq!(got[usize::try_from(seq).expect("small") - 1], expected);
    }
    assert!(got[3].len() > 300);
}
