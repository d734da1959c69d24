//! The frame of a notification: built once, and taken apart again for recovery.

use super::entry::{Entry, Kind, Meta};
use crate::protocol::events::{self, Position};
use crate::protocol::frame::{self, Opcode};

const BEFORE_METHOD: &[u8] = br#"{"jsonrpc":"2.0","method":""#;
const BEFORE_PARAMS: &[u8] = br#"","params":"#;

/// Builds the frame of `entry` in `frame`, with `payload` as scratch space; both are cleared first.
///
/// The caller fills in where the frame ends. Returns None when the method is too long (64 KiB).
pub(super) fn encode(
    entry: &Entry<'_>,
    payload: &mut Vec<u8>,
    frame: &mut Vec<u8>,
) -> Option<Meta> {
    payload.clear();
    payload.extend_from_slice(BEFORE_METHOD);
    escape(entry.method, payload);
    let method_bytes = u16::try_from(payload.len() - BEFORE_METHOD.len()).ok()?;
    payload.extend_from_slice(BEFORE_PARAMS);
    payload.extend_from_slice(entry.params);
    payload.push(b'}');
    frame.clear();
    frame::encode(Opcode::Text, payload, false, frame);
    Some(Meta {
        kind: entry.kind,
        is_event: entry.kind == Kind::Push && entry.method == "event",
        is_deletion: entry.is_deletion(),
        header_bytes: u8::try_from(frame.len() - payload.len()).ok()?,
        method_bytes,
        seq: entry.seq,
        at_ms: 0,
        end: 0,
        deflated_end: 0,
    })
}

/// The payload of a plain frame.
pub(super) fn payload<'a>(meta: &Meta, frame: &'a [u8]) -> &'a [u8] {
    &frame[usize::from(meta.header_bytes)..]
}

/// Appends the entry as a Server-Sent Event. It has a position, unless the entry does not move it or its `epoch` is
/// None.
pub(super) fn put_event(meta: &Meta, epoch: Option<&str>, frame: &[u8], out: &mut Vec<u8>) {
    let params = params(meta, frame);
    let id = match meta.kind {
        Kind::Push => Some(message_id(params)),
        Kind::Reset => Some(None),
        Kind::Notice | Kind::Gone => None,
    };
    let position = id.zip(epoch).map(|(id, epoch)| Position {
        epoch,
        seq: meta.seq,
        id,
    });
    events::put_event(position, method(meta, frame), params, out);
}

/// The method in a frame, still JSON-escaped.
fn method<'a>(meta: &Meta, frame: &'a [u8]) -> &'a [u8] {
    &payload(meta, frame)[BEFORE_METHOD.len()..][..usize::from(meta.method_bytes)]
}

/// Appends the entry as an item of `events`: its params, preceded by the method unless that is `event`.
pub(super) fn put_item(meta: &Meta, frame: &[u8], out: &mut Vec<u8>) {
    let params = params(meta, frame);
    if meta.is_event {
        out.extend_from_slice(params);
        return;
    }
    out.extend_from_slice(br#"{"method":""#);
    out.extend_from_slice(method(meta, frame));
    out.push(b'"');
    put_members(params, out);
}

const ID: &[u8] = br#""id":""#;
const SEQ: &[u8] = br#"{"seq":"#;
/// The broker's own members of a push end before this offset: seq, epoch, the ids, and the program's id.
const ID_WITHIN: usize = 512;

/// The id in the params of a push: the id of the event that the push is about. It precedes everything that a producer
/// has written, and no value before it contains a quotation mark.
pub(super) fn message_id(params: &[u8]) -> Option<&str> {
    let head = &params[..params.len().min(ID_WITHIN)];
    let start = head.windows(ID.len()).position(|window| window == ID)? + ID.len();
    let length = head[start..].iter().position(|&byte| byte == b'"')?;
    std::str::from_utf8(&head[start..start + length]).ok()
}

/// The params of a push with another `seq`, which is their first member; None where it is not.
pub(super) fn renumbered(params: &[u8], seq: u64) -> Option<Vec<u8>> {
    let rest = params.strip_prefix(SEQ)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    Some([SEQ, seq.to_string().as_bytes(), &rest[digits..]].concat())
}

/// The params in a frame.
pub(super) fn params<'a>(meta: &Meta, frame: &'a [u8]) -> &'a [u8] {
    let body = payload(meta, frame);
    let before = BEFORE_METHOD.len() + usize::from(meta.method_bytes) + BEFORE_PARAMS.len();
    &body[before..body.len() - 1]
}

/// `params`, a JSON object, with `"channel": channel` as its first member.
#[must_use]
pub fn channel_params(channel: &str, params: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(params.len() + channel.len() + 14);
    out.extend_from_slice(br#"{"channel":""#);
    escape(channel, &mut out);
    out.push(b'"');
    put_members(params, &mut out);
    out
}

/// Appends the members of the object `params` to an object that already has one, and closes it.
fn put_members(params: &[u8], out: &mut Vec<u8>) {
    let rest = params[1..].trim_ascii_start();
    if rest.first() != Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(rest);
}

/// Appends `text` as the inside of a JSON string (RFC 8259, section 7).
pub fn escape(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..=0x1f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_goes_before_the_other_members() {
        assert_eq!(
            channel_params("a\"b", br#"{"x":1}"#),
            br#"{"channel":"a\"b","x":1}"#
        );
        assert_eq!(channel_params("a", b"{ }"), br#"{"channel":"a"}"#);
    }

    #[test]
    fn id_is_the_brokers_own() {
        let push = br#"{"seq":1,"epoch":"e","id":"018f-a","programId":"p","metadata":{"id":"x"}}"#;
        assert_eq!(message_id(push), Some("018f-a"));
        let deleted = br#"{"seq":2,"epoch":"e","programId":"p","id":"018f-a"}"#;
        assert_eq!(message_id(deleted), Some("018f-a"));
        assert_eq!(
            message_id(br#"{"programId":"p","epoch":"e","seq":2}"#),
            None
        );
        assert_eq!(message_id(br#"{"id":"open"#), None);
    }

    #[test]
    fn push_gets_another_seq() {
        let deleted = br#"{"seq":12,"epoch":"e","id":"a"}"#;
        let expected = br#"{"seq":7,"epoch":"e","id":"a"}"#;
        assert_eq!(renumbered(deleted, 7).as_deref(), Some(&expected[..]));
        assert_eq!(renumbered(br#"{"id":"a","seq":12}"#, 7), None);
    }

    #[test]
    fn control_characters_are_escaped() {
        let mut out = Vec::new();
        escape("a\n\\é", &mut out);
        assert_eq!(out, "a\\u000a\\\\é".as_bytes());
    }
}
