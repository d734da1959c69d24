//! A slow, obvious model of a log: a list of all notifications, and the expected replies.
//!
//! Property tests and the fuzzer drive a log and its model with the same steps and compare them.

use super::framing::frame_bytes;
use super::{Appended, Entry, Framing, Kind, Limits, Log, Lost, Span};
use crate::protocol::events;

/// Limits that nothing reaches.
pub(crate) const ROOMY: Limits = Limits {
    entries: 1_000_000,
    age_ms: u64::MAX,
    bytes: u64::MAX,
};

/// The params of pushes that were before the log.
const OLD: &[u8] = b"{\"old\":1}";

/// What can happen to a log.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Push(Vec<u8>),
    /// A push about the event of this number, with so many bytes of content.
    Tell(u8, usize),
    /// The deletion of that event, whether it was told or not.
    Delete(u8),
    Notice(Vec<u8>),
    /// A new epoch that begins after this seq.
    Reset(u64),
    /// So many pushes of the epoch are lost, and a reset goes on after them.
    Skip(u64),
    /// Put so many older pushes before the log.
    Backfill(u64),
    Want(Framing),
    Unwant(Framing),
    /// Let so many milliseconds pass.
    Wait(u64),
}

/// One notification of the current epoch.
#[derive(Clone, Debug)]
struct Told {
    is_push: bool,
    /// The position after it.
    seq: u64,
    method: &'static str,
    params: Vec<u8>,
    /// Method and params before the event was deleted, as a database may still bring them back.
    first: (&'static str, Vec<u8>),
    at_ms: u64,
}

impl Told {
    fn message(&self) -> Vec<u8> {
        message(self.method, &self.params)
    }

    fn item(&self) -> String {
        let params = String::from_utf8_lossy(&self.params).into_owned();
        match (self.method, params.as_str()) {
            ("event", _) => params,
            (method, "{}") => format!("{{\"method\":\"{method}\"}}"),
            (method, _) => format!("{{\"method\":\"{method}\",{}", &params[1..]),
        }
    }
}

/// A log with everything that it was ever told.
pub(crate) struct Model {
    pub log: Log,
    limits: Limits,
    epoch: u64,
    seq: u64,
    floor: u64,
    now_ms: u64,
    /// How many want each framing.
    wanted: [usize; Framing::ALL.len()],
    /// The current epoch's, in order.
    told: Vec<Told>,
    /// Where those stand who read after each step, and what each of them has got: frames, and events.
    cursor: u64,
    live: [Vec<Vec<u8>>; 2],
    /// Everything appended since he last lost his place, in order.
    appended: Vec<Vec<u8>>,
    budget: u64,
}

impl Model {
    /// A log after `base` pushes; `budget` is what one read may give.
    pub fn new(base: u64, limits: Limits, budget: u64) -> Self {
        let log = Log::new("e0", base, limits);
        Self {
            cursor: log.tip(),
            log,
            limits,
            epoch: 0,
            seq: base,
            floor: base,
            now_ms: 0,
            wanted: [0; Framing::ALL.len()],
            told: Vec::new(),
            live: [Vec::new(), Vec::new()],
            appended: Vec::new(),
            budget,
        }
    }

    /// Takes a step and lets the live reader read.
    pub fn apply(&mut self, step: &Step) {
        match step {
            Step::Push(params) => self.push("event", params),
            Step::Tell(event, bytes) => {
                let more = format!(r#","metadata":"{}""#, "z".repeat(*bytes));
                self.push("event", &about(self.epoch, self.seq + 1, *event, &more));
            }
            Step::Delete(event) => self.delete(*event),
            Step::Notice(params) => self.append(Kind::Notice, "note", self.seq, params),
            Step::Reset(base) => {
                self.epoch += 1;
                (self.seq, self.floor) = (*base, *base);
                self.told.clear();
                self.append(Kind::Reset, "historyReplaced", *base, b"{}");
                self.told.clear();
            }
            Step::Skip(pushes) => {
                self.seq += pushes;
                self.floor = self.seq;
                self.told.clear();
                self.append(Kind::Reset, "historyReplaced", self.seq, b"{}");
                self.told.clear();
                let epoch = self.epoch_name();
                let again = entry(Kind::Reset, &epoch, "historyReplaced", self.seq, b"{}");
                assert_eq!(
                    self.log.append(&again, self.now_ms),
                    Ok(Appended::Skipped),
                    "twice is once"
                );
            }
            Step::Backfill(count) => self.backfill(*count),
            Step::Want(framing) => {
                self.log.want(*framing);
                self.wanted[*framing as usize] += 1;
            }
            Step::Unwant(framing) => {
                let wanted = &mut self.wanted[*framing as usize];
                if *wanted > 0 {
                    self.log.unwant(*framing);
                    *wanted -= 1;
                }
            }
            Step::Wait(ms) => {
                self.now_ms += ms;
                self.log.trim(self.now_ms);
            }
        }
        self.read_live();
    }

    /// Compares everything that can be asked of the log with the model.
    pub fn check(&mut self) {
        let (epoch, seq, floor) = (self.epoch_name(), self.seq, self.log.floor());
        assert_eq!((self.log.epoch(), self.log.seq()), (epoch.as_str(), seq));
        self.check_limits();
        for at in floor..=seq {
            self.check_position(at);
        }
        assert_eq!(self.log.after(&epoch, seq + 1), None);
        assert!(floor == 0 || self.log.after(&epoch, floor - 1).is_none());
        assert_eq!(self.log.after("other", seq), None);
    }

    fn epoch_name(&self) -> String {
        format!("e{}", self.epoch)
    }

    fn is_roomy(&self) -> bool {
        self.limits == ROOMY
    }

    fn push(&mut self, method: &'static str, params: &[u8]) {
        self.seq += 1;
        self.append(Kind::Push, method, self.seq, params);
        let epoch = self.epoch_name();
        let again = entry(Kind::Push, &epoch, method, self.seq, params);
        assert_eq!(
            self.log.append(&again, self.now_ms),
            Ok(Appended::Skipped),
            "twice is once"
        );
    }

    /// From now on nobody reads what the event was.
    fn delete(&mut self, event: u8) {
        self.push("eventDeleted", &about(self.epoch, self.seq + 1, event, ""));
        for told in &mut self.told {
            let deletion = about(self.epoch, told.seq, event, "");
            if told.params.starts_with(&deletion[..deletion.len() - 1]) {
                (told.method, told.params) = ("eventDeleted", deletion);
            }
        }
    }

    fn append(&mut self, kind: Kind, method: &'static str, seq: u64, params: &[u8]) {
        let epoch = self.epoch_name();
        let new = entry(kind, &epoch, method, seq, params);
        assert_eq!(self.log.append(&new, self.now_ms), Ok(Appended::Added));
        self.told.push(Told {
            is_push: kind == Kind::Push,
            seq,
            method,
            params: params.to_vec(),
            first: (method, params.to_vec()),
            at_ms: self.now_ms,
        });
        self.appended.push(message(method, params));
    }

    /// Brings back `count` pushes before the oldest, as the database has them.
    fn backfill(&mut self, count: u64) {
        let (epoch, end) = (self.epoch_name(), self.log.floor());
        let begin = end.saturating_sub(count);
        let older = (begin.min(self.floor)..self.floor).map(|before| Told {
            is_push: true,
            seq: before + 1,
            method: "event",
            params: OLD.to_vec(),
            first: ("event", OLD.to_vec()),
            at_ms: self.now_ms,
        });
        let told: Vec<_> = older.chain(self.told.drain(..)).collect();
        self.told = told;
        self.floor = self.floor.min(begin);
        let now_ms = self.now_ms;
        for told in &mut self.told {
            if told.is_push && told.seq > begin && told.seq <= end {
                told.at_ms = now_ms;
            }
        }
        let wanted = self
            .told
            .iter()
            .filter(|told| told.is_push && told.seq > begin && told.seq <= end);
        let entries: Vec<_> = wanted
            .map(|told| entry(Kind::Push, &epoch, told.first.0, told.seq, &told.first.1))
            .collect();
        self.log
            .backfill(&epoch, &entries, now_ms)
            .expect("consecutive up to the floor");
    }

    /// Who keeps up gets everything in order, on the deflated track while there is one, and as events.
    fn read_live(&mut self) {
        let mut is_lost = false;
        for (live, framing) in self.live.iter_mut().zip(framings(self.wanted)) {
            let got = read_all(&mut self.log, self.cursor, self.budget, framing);
            is_lost |= got.is_err();
            live.extend(got.unwrap_or_default());
        }
        if is_lost {
            assert!(!self.is_roomy(), "nothing was trimmed");
            self.live = [Vec::new(), Vec::new()];
            self.appended.clear();
        }
        for live in &self.live {
            assert_eq!(live, &self.appended, "a live reader misses nothing");
        }
        self.cursor = self.log.tip();
    }

    fn check_limits(&self) {
        let entries = self.limits.entries as u64;
        let floor = self.log.floor();
        assert!(
            self.seq - floor <= entries,
            "recovery reaches no further than allowed"
        );
        // What has been brought back is young again, and nothing goes before it.
        let mut youngest_ms = 0;
        let mut is_expired = |told: &&Told| {
            youngest_ms = told.at_ms.max(youngest_ms);
            let age_ms = self.now_ms - youngest_ms;
            told.is_push && age_ms > self.limits.age_ms && age_ms >= 1_000
        };
        let expired = self.told.iter().filter(|told| is_expired(told)).last();
        assert!(
            expired.is_none_or(|told| floor >= told.seq),
            "what is too old is gone"
        );
        if self.is_roomy() {
            assert_eq!(floor, self.floor, "nothing goes without a reason");
        }
    }

    /// Compares what one who stands at `seq` still gets, as frames and as items.
    fn check_position(&mut self, seq: u64) {
        let epoch = self.epoch_name();
        let cursor = self.log.after(&epoch, seq).expect("within the log");
        let expected: Vec<_> = self
            .told
            .iter()
            .filter(|told| told.seq > seq || (told.seq == seq && !told.is_push))
            .cloned()
            .collect();
        let [got, events, joined] = framings(self.wanted)
            .map(|framing| read_all(&mut self.log, cursor, self.budget, framing).expect("here"));
        assert_eq!(got, events, "after {seq}");
        assert_eq!(got, joined, "after {seq}");
        let messages: Vec<_> = expected.iter().map(Told::message).collect();
        let mut items = Vec::new();
        let next = self
            .log
            .put_items(cursor, usize::MAX, usize::MAX, &mut items);
        assert_eq!(next, Ok(self.log.tip()));
        if self.is_roomy() {
            assert_eq!(got, messages);
            assert_eq!(self.log.seq_at(cursor), seq);
            let expected: Vec<_> = expected.iter().map(Told::item).collect();
            assert_eq!(String::from_utf8_lossy(&items), expected.join(","));
            return;
        }
        // Notices are trimmed with their time and do not come back: all pushes, and of the rest a part in order.
        let mut rest = got.iter();
        let mut missing = expected.iter().filter(|_| true);
        for message in rest.by_ref() {
            let found = missing.find(|told| told.message() == *message || told.is_push);
            assert_eq!(
                found.map(Told::message).as_ref(),
                Some(message),
                "after {seq}"
            );
        }
        assert!(!missing.any(|told| told.is_push), "all pushes after {seq}");
    }
}

/// The params of a push about an event; `more` are further members.
fn about(epoch: u64, seq: u64, event: u8, more: &str) -> Vec<u8> {
    format!(r#"{{"seq":{seq},"epoch":"e{epoch}","id":"event-{event}"{more}}}"#).into_bytes()
}

fn entry<'a>(kind: Kind, epoch: &'a str, method: &'a str, seq: u64, params: &'a [u8]) -> Entry<'a> {
    Entry {
        kind,
        epoch,
        seq,
        method,
        params,
    }
}

/// The message of a notification.
pub(crate) fn message(method: &str, params: &[u8]) -> Vec<u8> {
    let mut out = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":"#).into_bytes();
    out.extend_from_slice(params);
    out.push(b'}');
    out
}

/// Of those who read frames, of those who read events, and of those who read few frames.
fn framings(wanted: [usize; Framing::ALL.len()]) -> [Framing; 3] {
    let frames = if wanted[Framing::Deflated as usize] > 0 {
        Framing::Deflated
    } else {
        Framing::Plain
    };
    [frames, Framing::Events, Framing::Joined]
}

/// Everything from `cursor` to the tip, in reads of about `budget` bytes.
pub(crate) fn read_all(
    log: &mut Log,
    cursor: u64,
    budget: u64,
    framing: Framing,
) -> Result<Vec<Vec<u8>>, Lost> {
    let (mut span, mut cursor, mut out) = (Span::default(), cursor, Vec::new());
    while cursor != log.tip() {
        let tip = log.tip();
        match framing {
            Framing::Plain | Framing::Joined => {}
            Framing::Deflated | Framing::JoinedDeflated => deflate_some(log, tip, budget),
            Framing::Events => log.make_events(tip, budget),
        }
        log.read(cursor, tip, budget, framing, &mut span)?;
        assert!(span.next != cursor, "a read makes progress");
        let got = payloads(&span, framing);
        assert_eq!(got.len() as u64, span.frames);
        out.extend(got);
        cursor = span.next;
    }
    Ok(out)
}

/// Deflates about `budget` bytes, one entry at least.
fn deflate_some(log: &mut Log, until: u64, budget: u64) {
    let (mut payload, mut deflated, mut spent) = (Vec::new(), Vec::new(), 0);
    while let Some(index) = log.next_to_deflate(until, &mut payload) {
        deflated.clear();
        shorten(&payload, &mut deflated);
        log.put_deflated(index, &deflated);
        log.put_deflated(index, b"twice is once");
        spent += payload.len() as u64;
        if spent >= budget {
            return;
        }
    }
}

/// The messages of the entries in a span; deflated ones are marked by the model's own "compressor".
fn payloads(span: &Span, framing: Framing) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for slice in span.slices() {
        let (whole, entries) = span.whole(slice, slice.len());
        assert_eq!(whole, slice.len());
        if framing.is_joined() && entries > 1 {
            out.extend(split(&payload(slice)));
            continue;
        }
        let (mut at, mut count) = (0, 0);
        while at < slice.len() {
            let rest = &slice[at..];
            let entry = match framing {
                Framing::Events => &rest[..events::event_bytes(rest)],
                _ => &rest[..frame_bytes(rest)],
            };
            out.push(match framing {
                Framing::Events => message_of(entry),
                _ => payload(entry),
            });
            let end = at + entry.len();
            count += 1;
            assert_eq!(span.whole(slice, at + 1), (end, count));
            assert_eq!(span.whole(slice, end), (end, count));
            at = end;
        }
    }
    out
}

/// The messages of an array.
fn split(array: &[u8]) -> Vec<Vec<u8>> {
    let text = std::str::from_utf8(array).expect("our own text");
    let inner = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let parts = inner.expect("an array").split(r#",{"jsonrpc""#).enumerate();
    parts
        .map(|(number, part)| match number {
            0 => part.as_bytes().to_vec(),
            _ => format!(r#"{{"jsonrpc"{part}"#).into_bytes(),
        })
        .collect()
}

/// The payload of a frame.
fn payload(frame: &[u8]) -> Vec<u8> {
    let (header, header_bytes) = crate::protocol::frame::parse_header(frame)
        .expect("our own frame")
        .expect("a whole header");
    let payload = frame[header_bytes..].to_vec();
    if header.compressed {
        restore(&payload)
    } else {
        payload
    }
}

/// What an event says, as the message of a notification.
fn message_of(event: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(event).expect("our own event");
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let (method, params) = (line("event: "), line("data: "));
    message(
        method.expect("each has a name"),
        params.expect("each says something").as_bytes(),
    )
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
