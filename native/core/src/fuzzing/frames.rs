//! Frames of a peer.

use crate::protocol::{Decoder, Flow, Inflater, Item, ProtocolError, Role};

/// Small, so that the fuzzer finds what is over it.
const LIMIT: usize = 2_000;

/// An item that owns its parts.
#[derive(Debug, PartialEq, Eq)]
enum Owned {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
}

/// The items, and the fault, do not depend on how the bytes were cut; nothing passes the limit.
///
/// Nor on pauses. The first byte chooses role and compression, the second the size of the cuts.
///
/// # Panics
/// When a rule is broken.
pub fn frames(input: &[u8]) {
    let [choice, cut, frames @ ..] = input else {
        return;
    };
    let whole = decode(*choice, frames, frames.len().max(1), Flow::On);
    let cut_up = decode(*choice, frames, usize::from(*cut).max(1), Flow::On);
    assert_eq!(whole, cut_up);
    let paused = decode(*choice, frames, frames.len().max(1), Flow::Pause);
    assert_eq!(whole, paused);
}

fn decode(
    choice: u8,
    frames: &[u8],
    cut: usize,
    flow: Flow,
) -> (Vec<Owned>, Option<ProtocolError>) {
    let role = if choice & 1 == 0 {
        Role::Server
    } else {
        Role::Client
    };
    let mut decoder = Decoder::new(role, LIMIT, choice & 2 != 0);
    let (mut inflater, mut items) = (Inflater::new(), Vec::new());
    for mut part in frames.to_vec().chunks_mut(cut) {
        while !part.is_empty() {
            let fed = decoder.feed_some(part, &mut inflater, &mut |item| {
                items.push(own(item));
                flow
            });
            // A buffer that grows may be twice as large as what is in it.
            assert!(decoder.held_bytes() <= 3 * LIMIT + 1_024);
            match fed {
                Ok(used) => part = &mut part[used..],
                Err(error) => {
                    assert!(matches!(error.close_code, 1002 | 1007 | 1009));
                    return (items, Some(error));
                }
            }
        }
    }
    (items, None)
}

fn own(item: Item<'_>) -> Owned {
    match item {
        Item::Text(text) => {
            assert!(text.len() <= LIMIT);
            Owned::Text(text.to_owned())
        }
        Item::Binary(bytes) => {
            assert!(bytes.len() <= LIMIT);
            Owned::Binary(bytes.to_vec())
        }
        Item::Ping(payload) => Owned::Ping(payload.to_vec()),
        Item::Pong(payload) => Owned::Pong(payload.to_vec()),
        Item::Close { code, reason } => {
            assert!(code.is_none_or(crate::protocol::frame::is_close_code));
            Owned::Close(code, reason.to_owned())
        }
    }
}
