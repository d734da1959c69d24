//! The log against a slow, obvious model of it.

use proptest::prelude::*;

use super::{Appended, Deflate, Entry, Kind, Limits, Log, Span};

const ROOMY: Limits = Limits {
    entries: 1_000_000,
    age_ms: u64::MAX,
    bytes: u64::MAX,
};

fn push<'a>(epoch: &'a str, seq: u64, params: &'a [u8]) -> Entry<'a> {
    Entry {
        kind: Kind::Push,
        epoch,
        seq,
        method: "event",
        params,
    }
}

fn message(method: &str, params: &[u8]) -> Vec<u8> {
    let params = std::str::from_utf8(params).expect("test params are text");
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#).into_bytes()
}

/// The payloads of the frames in a span; deflated ones are marked by the test's own "compressor".
fn payloads(span: &Span) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for mut slice in span.slices() {
        while !slice.is_empty() {
            let (header, header_bytes) = crate::protocol::frame::parse_header(slice)
                .expect("our own frame")
                .expect("a whole header");
            let end = header_bytes + usize::try_from(header.payload_bytes).expect("fits");
            let mut payload = slice[header_bytes..end].to_vec();
            if header.compressed {
                payload = restore(&payload);
            }
            out.push(payload);
            slice = &slice[end..];
        }
    }
    out
}

/// A stand-in for a compressor whose output is shorter and can be undone.
fn shorten(payload: &[u8], out: &mut Vec<u8>) {
    out.extend(payload.iter().rev().skip(1));
}

fn restore(shortened: &[u8]) -> Vec<u8> {
    let mut payload: Vec<u8> = shortened.iter().rev().copied().collect();
    payload.push(b'}');
    payload
}

/// Everything from `cursor` to the tip, in reads of about `budget` bytes.
fn read_all(log: &mut Log, cursor: u64, budget: u64, deflated: bool) -> Vec<Vec<u8>> {
    let (mut span, mut cursor, mut out) = (Span::default(), cursor, Vec::new());
    while cursor != log.tip() {
        let tip = log.tip();
        let mut shorten = shorten;
        let deflate: Option<&mut Deflate<'_>> = if deflated { Some(&mut shorten) } else { None };
        log.read(cursor, tip, budget, deflate, &mut span)
            .expect("nothing was trimmed");
        assert!(span.next != cursor, "a read makes progress");
        let got = payloads(&span);
        assert_eq!(got.len() as u64, span.frames);
        out.extend(got);
        cursor = span.next;
    }
    out
}

#[derive(Clone, Debug)]
enum Step {
    Push(Vec<u8>),
    Notice(Vec<u8>),
    Reset(u64),
    /// Put so many older pushes before the log.
    Backfill(u64),
    WantDeflated,
    UnwantDeflated,
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
        2 => params.prop_map(Step::Notice),
        1 => (0u64..20).prop_map(Step::Reset),
        1 => (1u64..5).prop_map(Step::Backfill),
        1 => Just(Step::WantDeflated),
        1 => Just(Step::UnwantDeflated),
    ]
}

/// What the model remembers of the current epoch: the position after each notification, and its message.
#[derive(Default)]
struct Model {
    epoch: u64,
    seq: u64,
    floor: u64,
    /// In order: (is a push, position after it, method, params).
    messages: Vec<(bool, u64, &'static str, Vec<u8>)>,
}

impl Model {
    fn epoch_name(&self) -> String {
        format!("e{}", self.epoch)
    }

    /// What one who stands at `seq` has still to get.
    fn after(&self, seq: u64) -> Vec<Vec<u8>> {
        let begin = self
            .messages
            .iter()
            .position(|(is_push, at, ..)| *at > seq || (*at == seq && !is_push));
        let rest = begin.map_or(&[][..], |begin| &self.messages[begin..]);
        rest.iter()
            .map(|(_, _, method, params)| message(method, params))
            .collect()
    }

    fn items(&self, seq: u64) -> Vec<u8> {
        let begin = self
            .messages
            .iter()
            .position(|(is_push, at, ..)| *at > seq || (*at == seq && !is_push));
        let rest = begin.map_or(&[][..], |begin| &self.messages[begin..]);
        let items: Vec<String> = rest
            .iter()
            .map(|(_, _, method, params)| {
                let params = String::from_utf8_lossy(params).into_owned();
                if *method == "event" {
                    params
                } else {
                    format!("{{\"method\":\"{method}\",{}", &params[1..])
                }
            })
            .collect();
        items.join(",").into_bytes()
    }

    fn apply(&mut self, step: &Step, log: &mut Log, wanted: &mut usize) {
        match step {
            Step::Push(params) => {
                self.seq += 1;
                let epoch = self.epoch_name();
                let entry = push(&epoch, self.seq, params);
                assert_eq!(log.append(&entry, 0), Ok(Appended::Added));
                assert_eq!(log.append(&entry, 0), Ok(Appended::Skipped));
                self.messages
                    .push((true, self.seq, "event", params.clone()));
            }
            Step::Notice(params) => {
                let entry = Entry {
                    kind: Kind::Notice,
                    epoch: "",
                    seq: 0,
                    method: "note",
                    params,
                };
                assert_eq!(log.append(&entry, 0), Ok(Appended::Added));
                self.messages
                    .push((false, self.seq, "note", params.clone()));
            }
            Step::Reset(base) => {
                self.epoch += 1;
                (self.seq, self.floor) = (*base, *base);
                self.messages.clear();
                let epoch = self.epoch_name();
                let entry = Entry {
                    kind: Kind::Reset,
                    epoch: &epoch,
                    seq: *base,
                    method: "historyReplaced",
                    params: b"{}",
                };
                assert_eq!(log.append(&entry, 0), Ok(Appended::Added));
            }
            Step::Backfill(count) => {
                let count = (*count).min(self.floor);
                let epoch = self.epoch_name();
                let first = self.floor - count + 1;
                let entries: Vec<_> = (first..=self.floor)
                    .map(|seq| push(&epoch, seq, b"{\"old\":1}"))
                    .collect();
                log.backfill(&epoch, &entries, 0).expect("consecutive");
                let older =
                    (first..=self.floor).map(|seq| (true, seq, "event", b"{\"old\":1}".to_vec()));
                self.messages = older.chain(self.messages.drain(..)).collect();
                self.floor -= count;
            }
            Step::WantDeflated => {
                log.want_deflated();
                *wanted += 1;
            }
            Step::UnwantDeflated if *wanted > 0 => {
                log.unwant_deflated();
                *wanted -= 1;
            }
            Step::UnwantDeflated => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_position_reads_what_the_model_says(
        base in 0u64..10,
        steps in proptest::collection::vec(step(), 1..40),
        budget in prop_oneof![Just(1u64), 100..1_000u64, Just(1 << 20)],
    ) {
        let mut model = Model { seq: base, floor: base, ..Model::default() };
        let mut log = Log::new("e0", base, ROOMY);
        let mut wanted = 0;
        let start = log.tip();
        let mut live = Vec::new();
        let mut cursor = start;
        for step in &steps {
            model.apply(step, &mut log, &mut wanted);
            // One who keeps up, on the deflated track while there is one.
            live.extend(read_all(&mut log, cursor, budget, wanted > 0));
            cursor = log.tip();
        }
        let epoch = model.epoch_name();
        prop_assert_eq!((log.epoch(), log.seq(), log.floor()), (epoch.as_str(), model.seq, model.floor));
        prop_assert_eq!(&read_all(&mut log, start, budget, false), &live);
        for seq in model.floor..=model.seq {
            let cursor = log.after(&epoch, seq).expect("within the log");
            prop_assert_eq!(read_all(&mut log, cursor, budget, wanted > 0), model.after(seq));
            prop_assert_eq!(log.seq_at(cursor), seq);
            let mut items = Vec::new();
            let next = log.put_items(cursor, usize::MAX, usize::MAX, &mut items).expect("within the log");
            prop_assert_eq!(next, log.tip());
            prop_assert_eq!(items, model.items(seq));
        }
        prop_assert_eq!(log.after(&epoch, model.seq + 1), None);
        prop_assert!(model.floor == 0 || log.after(&epoch, model.floor - 1).is_none());
        prop_assert_eq!(log.after("other", model.seq), None);
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
    assert_eq!(read_all(&mut log, cursor, 1 << 20, false).len(), 4);
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
    assert_eq!(read_all(&mut log, cursor, 1 << 20, false).len(), 5);
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
    log.want_deflated();
    let params = format!("{{\"x\":\"{}\"}}", "y".repeat(200));
    for seq in 1..=20u64 {
        log.append(&push("e", seq, params.as_bytes()), seq * 10_000)
            .expect("consecutive");
        let cursor = log.after("e", seq - 1).expect("the newest");
        assert_eq!(
            read_all(&mut log, cursor, 1 << 20, true),
            [message("event", params.as_bytes())]
        );
    }
    let tip = log.tip();
    assert_eq!(
        log.read(start, tip, 1, None, &mut Span::default()),
        Err(super::Lost)
    );
    let oldest = log.after("e", 17).expect("kept");
    assert_eq!(read_all(&mut log, oldest, 100, true).len(), 3);
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
