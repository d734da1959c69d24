use proptest::prelude::*;

use crate::protocol::deflate::{Deflater, Inflater};
use crate::protocol::frame::{self, Opcode};
use crate::protocol::{Decoder, Fault, Item, ProtocolError, Role};

const MASK: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

/// An [`Item`] that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owned {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
}

impl From<Item<'_>> for Owned {
    fn from(item: Item<'_>) -> Self {
        match item {
            Item::Text(text) => Self::Text(text.to_owned()),
            Item::Binary(bytes) => Self::Binary(bytes.to_vec()),
            Item::Ping(bytes) => Self::Ping(bytes.to_vec()),
            Item::Pong(bytes) => Self::Pong(bytes.to_vec()),
            Item::Close { code, reason } => Self::Close(code, reason.to_owned()),
        }
    }
}

/// Feeds the pieces one by one; the items until the end or the first error.
fn run(decoder: &mut Decoder, pieces: &[&[u8]]) -> (Vec<Owned>, Result<(), ProtocolError>) {
    let (mut items, mut inflater) = (Vec::new(), Inflater::new());
    for piece in pieces {
        let mut sink = |item: Item<'_>| {
            items.push(Owned::from(item));
            true
        };
        if let Err(error) = decoder.feed(&mut piece.to_vec(), &mut inflater, &mut sink) {
            return (items, Err(error));
        }
    }
    (items, Ok(()))
}

fn server() -> Decoder {
    Decoder::new(Role::Server, 1000, true)
}

fn fault_of(pieces: &[&[u8]]) -> Option<Fault> {
    let (_, result) = run(&mut server(), pieces);
    let all = [
        Fault::ReservedBits,
        Fault::ReservedOpcode,
        Fault::FragmentedControl,
        Fault::LongControl,
        Fault::BadLength,
        Fault::Unmasked,
        Fault::Masked,
        Fault::UnexpectedContinuation,
        Fault::ExpectedContinuation,
        Fault::BadCloseBody,
        Fault::BadCloseCode,
        Fault::BadUtf8,
        Fault::BadDeflate,
        Fault::MessageTooBig,
    ];
    let error = result.err()?;
    all.into_iter()
        .find(|&fault| ProtocolError::from(fault) == error)
}

fn masked(opcode: Opcode, payload: &[u8], fin: bool) -> Vec<u8> {
    let mut out = Vec::new();
    frame::encode_masked_fragment(opcode, payload, MASK, false, fin, &mut out);
    out
}

fn squeezed(payload: &[u8]) -> Vec<u8> {
    let (mut wire, mut out) = (Vec::new(), Vec::new());
    Deflater::new().compress(payload, &mut wire);
    frame::encode_masked_fragment(Opcode::Text, &wire, MASK, true, true, &mut out);
    out
}

#[test]
fn an_idle_decoder_is_small_and_holds_nothing() {
    assert_eq!(size_of::<Decoder>(), 16);
    let mut decoder = server();
    let wire = masked(Opcode::Text, b"hello", true);
    run(&mut decoder, &[&wire[..3]]).1.expect("valid so far");
    assert!(decoder.held_bytes() > 0);
    run(&mut decoder, &[&wire[3..]]).1.expect("valid");
    assert_eq!(decoder.held_bytes(), 0);
}

#[test]
fn a_client_must_mask_and_a_server_must_not() {
    assert_eq!(fault_of(&[&[0x81, 0x00]]), Some(Fault::Unmasked));
    let mut client = Decoder::new(Role::Client, 1000, false);
    let (items, result) = run(
        &mut client,
        &[&[0x81, 0x01, b'x'], &masked(Opcode::Text, b"y", true)],
    );
    assert_eq!(items, [Owned::Text("x".into())]);
    assert_eq!(result, Err(Fault::Masked.into()));
}

#[test]
fn compression_must_have_been_agreed_on() {
    let mut plain = Decoder::new(Role::Server, 1000, false);
    assert_eq!(
        run(&mut plain, &[&squeezed(b"x")]).1,
        Err(Fault::ReservedBits.into())
    );
    let (items, _) = run(&mut server(), &[&squeezed(b"x")]);
    assert_eq!(items, [Owned::Text("x".into())]);
}

#[test]
fn fragments_follow_their_beginning() {
    let rest = masked(Opcode::Continuation, b"b", true);
    assert_eq!(fault_of(&[&rest]), Some(Fault::UnexpectedContinuation));
    let first = masked(Opcode::Text, b"a", false);
    assert_eq!(
        fault_of(&[&first, &masked(Opcode::Binary, b"c", true)]),
        Some(Fault::ExpectedContinuation)
    );
    let (items, result) = run(&mut server(), &[&first, &rest, &rest]);
    assert_eq!(items, [Owned::Text("ab".into())]);
    assert_eq!(
        result,
        Err(Fault::UnexpectedContinuation.into()),
        "the message has ended"
    );
}

#[test]
fn control_frames_may_stand_between_fragments() {
    let first = masked(Opcode::Text, b"a", false);
    let ping = masked(Opcode::Ping, b"p", true);
    let rest = masked(Opcode::Continuation, b"b", true);
    let (items, result) = run(&mut server(), &[&first, &ping[..3], &ping[3..], &rest]);
    assert_eq!(items, [Owned::Ping(b"p".into()), Owned::Text("ab".into())]);
    assert_eq!(result, Ok(()));
}

#[test]
fn the_limit_holds_for_one_frame_and_for_fragments() {
    let too_big = Err(ProtocolError {
        close_code: 1009,
        reason: "message too big",
    });
    assert_eq!(
        run(&mut server(), &[&masked(Opcode::Binary, &[0; 1000], true)]).1,
        Ok(())
    );
    let over = masked(Opcode::Binary, &[0; 1001], true);
    assert_eq!(
        run(&mut server(), &[&over[..8]]).1,
        too_big,
        "before the payload comes"
    );
    let first = masked(Opcode::Binary, &[0; 600], false);
    assert_eq!(
        run(
            &mut server(),
            &[&first, &masked(Opcode::Continuation, &[0; 400], true)]
        )
        .1,
        Ok(())
    );
    assert_eq!(
        run(
            &mut server(),
            &[&first, &masked(Opcode::Continuation, &[0; 401], true)]
        )
        .1,
        too_big
    );
}

#[test]
fn the_limit_counts_inflated_bytes() {
    assert_eq!(fault_of(&[&squeezed(&[b'a'; 1000])]), None);
    assert_eq!(
        fault_of(&[&squeezed(&[b'a'; 1001])]),
        Some(Fault::MessageTooBig)
    );
    // Hard data grows a little when deflated and must still fit.
    let hard: Vec<u8> = (0..1000_u32)
        .map(|i| 32 + (i.wrapping_mul(2_654_435_761) >> 25) as u8 % 94)
        .collect();
    assert_eq!(fault_of(&[&squeezed(&hard)]), None);
}

#[test]
fn an_announced_length_is_not_allocated() {
    let mut decoder = Decoder::new(Role::Server, 1 << 30, false);
    let head = [
        &[0x82, 0xFF][..],
        &(1_u64 << 30).to_be_bytes(),
        &MASK,
        b"xyz",
    ]
    .concat();
    run(&mut decoder, &[&head]).1.expect("within the limit");
    assert!(decoder.held_bytes() < 300);
}

#[test]
fn bad_text_fails_at_its_first_impossible_byte() {
    // κόσμε, then F4 90, which no character begins with.
    let text = ["κόσμε".as_bytes(), &[0xF4]].concat();
    let first = masked(Opcode::Text, &text, false);
    let second = masked(Opcode::Continuation, &[0x90, 0x80], false);
    assert_eq!(fault_of(&[&first]), None);
    assert_eq!(fault_of(&[&first, &second[..6]]), None);
    assert_eq!(
        fault_of(&[&first, &second[..7]]),
        Some(Fault::BadUtf8),
        "before the frame is whole"
    );
}

#[test]
fn text_must_not_end_within_a_character() {
    assert_eq!(
        fault_of(&[&masked(Opcode::Text, &[0xCE], true)]),
        Some(Fault::BadUtf8)
    );
    let first = masked(Opcode::Text, &[0xCE], false);
    assert_eq!(
        fault_of(&[&first, &masked(Opcode::Continuation, b"", true)]),
        Some(Fault::BadUtf8)
    );
    assert_eq!(
        fault_of(&[&first, &masked(Opcode::Continuation, &[0xBA], true)]),
        None
    );
    assert_eq!(fault_of(&[&squeezed(&[0xCE])]), Some(Fault::BadUtf8));
    assert_eq!(fault_of(&[&masked(Opcode::Binary, &[0xCE], true)]), None);
}

#[test]
fn close_frames_are_checked() {
    let close = |body: &[u8]| masked(Opcode::Close, body, true);
    assert_eq!(
        run(&mut server(), &[&close(b"")]).0,
        [Owned::Close(None, String::new())]
    );
    let (items, _) = run(&mut server(), &[&close(&[0x03, 0xE8, b'h', b'i'])]);
    assert_eq!(items, [Owned::Close(Some(1000), "hi".into())]);
    assert_eq!(fault_of(&[&close(&[0x03])]), Some(Fault::BadCloseBody));
    assert_eq!(
        fault_of(&[&close(&[0x03, 0xED])]),
        Some(Fault::BadCloseCode),
        "1005"
    );
    assert_eq!(
        fault_of(&[&close(&[0x03, 0xE8, 0xFF])]),
        Some(Fault::BadUtf8)
    );
}

#[test]
fn nothing_follows_a_close_an_error_or_a_refusing_sink() {
    let (close, text) = (
        masked(Opcode::Close, b"", true),
        masked(Opcode::Text, b"x", true),
    );
    let (items, result) = run(
        &mut server(),
        &[&[&close[..], &text].concat(), &text, &[0xFF, 0xFF]],
    );
    assert_eq!((items.len(), result), (1, Ok(())));

    let mut broken = server();
    assert!(run(&mut broken, &[&[0xFF, 0xFF]]).1.is_err());
    assert_eq!(run(&mut broken, &[&text]), (vec![], Ok(())));

    let (mut decoder, mut calls) = (server(), 0);
    let mut sink = |_: Item<'_>| {
        calls += 1;
        false
    };
    decoder
        .feed(
            &mut [&text[..], &text].concat(),
            &mut Inflater::new(),
            &mut sink,
        )
        .expect("valid");
    assert_eq!(calls, 1);
    assert_eq!(decoder.held_bytes(), 0);
}

#[test]
fn every_fault_has_a_code_of_the_rfc() {
    assert_eq!(ProtocolError::from(Fault::ReservedBits).close_code, 1002);
    assert_eq!(ProtocolError::from(Fault::BadUtf8).close_code, 1007);
    assert_eq!(
        ProtocolError::from(Fault::MessageTooBig).to_string(),
        "message too big (1009)"
    );
}

/// One message or control frame to send, with how it is cut into frames.
fn sendings() -> impl Strategy<Value = (Owned, bool, Vec<usize>)> {
    let item = prop_oneof![
        4 => ".{0,60}".prop_map(Owned::Text),
        3 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Owned::Binary),
        1 => prop::collection::vec(any::<u8>(), 0..126).prop_map(Owned::Ping),
        1 => prop::collection::vec(any::<u8>(), 0..126).prop_map(Owned::Pong),
    ];
    (
        item,
        any::<bool>(),
        prop::collection::vec(0_usize..200, 0..4),
    )
}

/// Encodes as a client: cut at `cuts`, with a ping between the fragments.
fn send(
    item: &Owned,
    compressed: bool,
    cuts: &[usize],
    out: &mut Vec<u8>,
    expected: &mut Vec<Owned>,
) {
    let (opcode, payload) = match item {
        Owned::Text(text) => (Opcode::Text, text.as_bytes()),
        Owned::Binary(bytes) => (Opcode::Binary, &bytes[..]),
        Owned::Ping(bytes) => (Opcode::Ping, &bytes[..]),
        Owned::Pong(bytes) => (Opcode::Pong, &bytes[..]),
        Owned::Close(..) => unreachable!("not generated"),
    };
    if opcode.is_control() {
        frame::encode_masked(opcode, payload, MASK, out);
        expected.push(item.clone());
        return;
    }
    let mut wire = Vec::new();
    if compressed {
        Deflater::new().compress(payload, &mut wire);
    } else {
        wire.extend_from_slice(payload);
    }
    let mut ends: Vec<usize> = cuts.iter().map(|&cut| cut.min(wire.len())).collect();
    ends.sort_unstable();
    let mut start = 0;
    for (index, &end) in ends.iter().enumerate() {
        let kind = if index == 0 {
            opcode
        } else {
            Opcode::Continuation
        };
        frame::encode_masked_fragment(
            kind,
            &wire[start..end],
            MASK,
            compressed && index == 0,
            false,
            out,
        );
        frame::encode_masked(Opcode::Ping, b"between", MASK, out);
        expected.push(Owned::Ping(b"between".into()));
        start = end;
    }
    let kind = if ends.is_empty() {
        opcode
    } else {
        Opcode::Continuation
    };
    frame::encode_masked_fragment(
        kind,
        &wire[start..],
        MASK,
        compressed && ends.is_empty(),
        true,
        out,
    );
    expected.push(item.clone());
}

proptest! {
    #[test]
    fn items_do_not_depend_on_how_bytes_arrive(
        sendings in prop::collection::vec(sendings(), 0..8),
        sizes in prop::collection::vec(1_usize..40, 1..30),
    ) {
        let (mut wire, mut expected) = (Vec::new(), Vec::new());
        for (item, compressed, cuts) in &sendings {
            send(item, *compressed, cuts, &mut wire, &mut expected);
        }
        let mut pieces = Vec::new();
        let mut rest = &wire[..];
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, later) = rest.split_at(rest.len().min(*size));
            pieces.push(piece);
            rest = later;
        }
        for pieces in [&pieces[..], &[&wire[..]]] {
            let mut decoder = server();
            let (items, result) = run(&mut decoder, pieces);
            prop_assert_eq!(&items, &expected);
            prop_assert_eq!(result, Ok(()));
            prop_assert_eq!(decoder.held_bytes(), 0);
        }
    }

    #[test]
    fn random_bytes_never_panic_and_arrive_alike(
        wire in prop::collection::vec(any::<u8>(), 0..300), at in 0_usize..300,
    ) {
        let at = at.min(wire.len());
        let whole = run(&mut server(), &[&wire]);
        let halves = run(&mut server(), &[&wire[..at], &wire[at..]]);
        prop_assert_eq!(whole, halves);
    }

    #[test]
    fn damaged_frames_never_panic_and_arrive_alike(
        sendings in prop::collection::vec(sendings(), 1..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (mut wire, mut expected) = (Vec::new(), Vec::new());
        for (item, compressed, cuts) in &sendings {
            send(item, *compressed, cuts, &mut wire, &mut expected);
        }
        for (index, byte) in damage {
            let at = index.index(wire.len());
            wire[at] = byte;
        }
        let bytes: Vec<&[u8]> = wire.chunks(1).collect();
        let (whole, single) = (run(&mut server(), &[&wire]), run(&mut server(), &bytes));
        // A fault may be found later in one piece, never another one and never after other items.
        prop_assert_eq!(whole, single);
    }
}
