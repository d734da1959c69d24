//! Server-Sent Events (WHATWG HTML, section 9.2): one event stream, as a server writes it.
//!
//! An event is `id:`, `event:` and `data:` lines and an empty line; a line that begins with a colon is a comment. What
//! is written here has one `data:` line and no empty line but the last, so an event ends with the first `\n\n`.

use std::io::Write;

use super::handshake;

/// A comment, which keeps the connection alive and carries no information.
pub const COMMENT: &[u8] = b":\n\n";

/// The longest epoch and the longest message id in a position; the application enforces both.
const NAME_BYTES: usize = 64;
/// Integers beyond this are not exact in every JSON reader (RFC 7493, section 2.2).
const EXACT: u64 = 1 << 53;

/// A reader's position, as in `id:` and `Last-Event-ID`: `EPOCH:SEQ` or `EPOCH:SEQ:ID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position<'a> {
    /// Contains no colon.
    pub epoch: &'a str,
    pub seq: u64,
    /// The id of the message seen at `seq`.
    pub id: Option<&'a str>,
}

impl<'a> Position<'a> {
    /// Reads the text of an `id:` line; None when it is not one of our positions.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let (epoch, rest) = text.split_once(':')?;
        let (seq, id) = rest
            .split_once(':')
            .map_or((rest, None), |(seq, id)| (seq, Some(id)));
        let is_number = seq.bytes().all(|digit| digit.is_ascii_digit());
        let seq = seq.parse().ok().filter(|seq| is_number && *seq <= EXACT)?;
        let is_sound = [Some(epoch), id].into_iter().flatten().all(is_name);
        is_sound.then_some(Self { epoch, seq, id })
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_text(self.epoch.as_bytes(), out);
        // Writing to memory does not fail.
        let _ = write!(out, ":{}", self.seq);
        if let Some(id) = self.id {
            out.push(b':');
            put_text(id.as_bytes(), out);
        }
    }
}

fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES).contains(&text.len())
}

/// Appends an event. `data` is JSON: a line break in it can only separate two values, and becomes a space.
pub fn put_event(position: Option<Position<'_>>, name: &[u8], data: &[u8], out: &mut Vec<u8>) {
    out.reserve(name.len() + data.len() + 3 * NAME_BYTES);
    if let Some(position) = position {
        out.extend_from_slice(b"id: ");
        position.put(out);
        out.push(b'\n');
    }
    out.extend_from_slice(b"event: ");
    put_text(name, out);
    out.extend_from_slice(b"\ndata: ");
    put_text(data, out);
    out.extend_from_slice(b"\n\n");
}

/// Appends how long a client waits before it reconnects; an event follows.
pub fn put_retry(after_ms: u64, out: &mut Vec<u8>) {
    let _ = writeln!(out, "retry: {after_ms}");
}

/// Appends the head of the response whose body is the stream. The body ends with the connection: events need no HTTP
/// framing, and HTTP/1.0 offers nothing else.
pub fn put_head(headers: &[(&str, &str)], out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n");
    out.extend_from_slice(b"Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n");
    for (name, value) in headers {
        handshake::push_header(name, value, out);
    }
    out.extend_from_slice(b"X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n");
}

/// Bytes of the first event of `events`, which begins with a whole one.
#[cfg(any(test, feature = "fuzzing"))]
#[must_use]
pub fn event_bytes(events: &[u8]) -> usize {
    let mut at = 0;
    while let Some(line) = events[at..].iter().position(|&byte| byte == b'\n') {
        at += line + 1;
        if events.get(at) == Some(&b'\n') {
            return at + 1;
        }
    }
    events.len()
}

/// Appends text that must stay on one line.
fn put_text(text: &[u8], out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(text);
    for byte in &mut out[begin..] {
        if matches!(byte, b'\n' | b'\r' | 0) {
            *byte = b' ';
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_position_is_read_as_it_was_written() {
        for (text, epoch, seq, id) in [
            ("e:0", "e", 0, None),
            ("0190-a:41:0190-b", "0190-a", 41, Some("0190-b")),
            ("e:9007199254740992:a:b", "e", 1 << 53, Some("a:b")),
        ] {
            let position = Position { epoch, seq, id };
            assert_eq!(Position::parse(text), Some(position));
            let mut out = Vec::new();
            position.put(&mut out);
            assert_eq!(out, text.as_bytes());
        }
    }

    #[test]
    fn what_is_no_position_is_refused() {
        let long = "x".repeat(65);
        for text in [
            "",
            ":",
            "e",
            "e:",
            ":1",
            "e:x",
            "e:+1",
            "e:-1",
            "e: 1",
            "e:1:",
            "e:9007199254740993",
            "e:99999999999999999999",
            &format!("{long}:1"),
            &format!("e:1:{long}"),
        ] {
            assert_eq!(Position::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_event_is_three_lines_and_an_empty_one() {
        let mut out = Vec::new();
        let position = Position {
            epoch: "e",
            seq: 7,
            id: Some("m"),
        };
        put_event(Some(position), b"event", br#"{"seq":7}"#, &mut out);
        put_event(None, b"programDeleted", b"{}", &mut out);
        assert_eq!(
            out,
            b"id: e:7:m\nevent: event\ndata: {\"seq\":7}\n\nevent: programDeleted\ndata: {}\n\n"
        );
    }

    #[test]
    fn a_line_break_ends_no_line() {
        let mut out = Vec::new();
        put_event(None, b"a\nid: x", b"{\r\n\n}", &mut out);
        assert_eq!(out, b"event: a id: x\ndata: {   }\n\n");
    }

    proptest! {
        #[test]
        fn events_are_told_apart_whatever_is_in_them(
            events in prop::collection::vec((any::<Option<u64>>(), any::<Vec<u8>>(), any::<Vec<u8>>()), 0..8),
        ) {
            let (mut out, mut ends) = (Vec::new(), Vec::new());
            for (seq, name, data) in &events {
                let position = seq.map(|seq| Position { epoch: "e", seq, id: None });
                put_event(position, name, data, &mut out);
                ends.push(out.len());
            }
            let (mut at, mut found) = (0, Vec::new());
            while at < out.len() {
                at += event_bytes(&out[at..]);
                found.push(at);
            }
            prop_assert_eq!(found, ends);
        }

        #[test]
        fn whatever_comes_as_a_position_is_read_or_not(text in ".{0,80}") {
            if let Some(position) = Position::parse(&text) {
                let mut out = Vec::new();
                position.put(&mut out);
                // The number may have had leading zeros.
                prop_assert!(Position::parse(&String::from_utf8(out).expect("text")).is_some());
            }
        }
    }
}
