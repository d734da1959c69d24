use proptest::prelude::*;

use crate::protocol::Fault;
use crate::protocol::deflate::{DeflateOffer, DeflateParams, Deflater, Inflater};

fn compress(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Deflater::new().compress(payload, &mut out);
    out
}

/// The window asked for by the offer that is accepted; 0 when it asks for none.
fn bits(header: &str) -> Option<u8> {
    DeflateOffer::find(header).map(|offer| offer.server_max_window_bits.unwrap_or(0))
}

#[test]
fn good_offers_are_accepted() {
    assert_eq!(bits("permessage-deflate"), Some(0));
    assert_eq!(bits("Permessage-Deflate ; client_max_window_bits"), Some(0));
    assert_eq!(
        bits("permessage-deflate; client_max_window_bits=8"),
        Some(0)
    );
    assert_eq!(
        bits("permessage-deflate; server_max_window_bits=8"),
        Some(8)
    );
    assert_eq!(
        bits("permessage-deflate; server_max_window_bits=\"15\""),
        Some(15)
    );
    assert_eq!(
        bits("permessage-deflate; server_no_context_takeover; client_no_context_takeover"),
        Some(0)
    );
    assert_eq!(
        bits("x-other; a=\"1, permessage-deflate\", permessage-deflate"),
        Some(0)
    );
}

#[test]
fn bad_offers_are_passed_over_for_the_next() {
    for bad in [
        "permessage-deflate; server_max_window_bits",
        "permessage-deflate; server_max_window_bits=7",
        "permessage-deflate; server_max_window_bits=16",
        "permessage-deflate; server_max_window_bits=09",
        "permessage-deflate; client_max_window_bits=",
        "permessage-deflate; server_no_context_takeover=1",
        "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
        "permessage-deflate; window=9",
        "permessage-bzip2",
        "",
    ] {
        assert_eq!(bits(bad), None, "{bad}");
        assert_eq!(
            bits(&format!(
                "{bad}, permessage-deflate; server_max_window_bits=9"
            )),
            Some(9)
        );
    }
}

#[test]
fn the_answer_names_the_terms() {
    let mut out = Vec::new();
    DeflateParams {
        server_max_window_bits: Some(10),
    }
    .write(&mut out);
    assert_eq!(
        out,
        b"permessage-deflate; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=10"
    );
    let text = String::from_utf8(out).expect("ASCII");
    assert_eq!(
        DeflateParams::find(&text),
        Some(DeflateParams {
            server_max_window_bits: Some(10)
        })
    );
    assert_eq!(
        DeflateParams::find("permessage-deflate"),
        None,
        "it would keep its context"
    );
}

#[test]
fn a_message_suits_a_window_at_least_as_long() {
    let narrow = DeflateParams {
        server_max_window_bits: Some(8),
    };
    assert!(narrow.suits(256));
    assert!(!narrow.suits(257));
    assert!(
        DeflateParams {
            server_max_window_bits: Some(15)
        }
        .suits(1 << 20)
    );
    assert!(DeflateParams::default().suits(1 << 20));
}

/// Random bytes, which compress only where they come back.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut byte = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(|_| byte()).collect()
}

#[test]
fn a_narrow_window_is_reached_over_only_so_far() {
    let compressed_for = |bits: u8, message: &[u8]| {
        let mut wire = Vec::new();
        let params = DeflateParams {
            server_max_window_bits: Some(bits),
        };
        Deflater::new().compress_for(params, message, &mut wire);
        assert!(Inflater::new().inflate(&wire, message.len()) == Ok(message));
        wire.len()
    };
    let (near, far) = (noise(200).repeat(3), noise(257).repeat(3));
    for bits in 8..15 {
        assert!(
            compressed_for(bits, &near) < 400,
            "{bits} bits reach over 200 bytes"
        );
    }
    assert!(
        compressed_for(8, &far) > 3 * 257,
        "256 bytes do not reach over 257"
    );
    assert!(compressed_for(15, &far) < 300);
}

#[test]
fn the_examples_of_the_rfc_inflate() {
    let mut inflater = Inflater::new();
    // RFC 7692 sections 7.2.3.1, 7.2.3.3, 7.2.3.4 and 7.2.3.5.
    let fixed = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
    let stored = [
        0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00,
    ];
    let last = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00];
    let two = [
        0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00,
    ];
    for wire in [&fixed[..], &stored, &last, &last[..7], &two] {
        assert_eq!(inflater.inflate(wire, 5), Ok(&b"Hello"[..]), "{wire:x?}");
    }
}

#[test]
fn an_empty_message_is_one_zero_byte() {
    assert_eq!(compress(b""), [0]);
    assert_eq!(Inflater::new().inflate(&[0], 0), Ok(&b""[..]));
}

#[test]
fn the_output_is_bounded() {
    let wire = compress(&vec![0; 1000]);
    let mut inflater = Inflater::new();
    assert_eq!(inflater.inflate(&wire, 1000).map(<[u8]>::len), Ok(1000));
    assert_eq!(inflater.inflate(&wire, 999), Err(Fault::MessageTooBig));
    let bomb = compress(&vec![0; 20 << 20]);
    assert!(bomb.len() < 40_000);
    assert_eq!(inflater.inflate(&bomb, 1 << 20), Err(Fault::MessageTooBig));
    assert_eq!(
        inflater.inflate(&wire, 1000).map(<[u8]>::len),
        Ok(1000),
        "usable afterwards"
    );
}

#[test]
fn garbage_and_cut_streams_are_faults() {
    let mut inflater = Inflater::new();
    assert_eq!(inflater.inflate(&[0xFF; 20], 1000), Err(Fault::BadDeflate));
    let wire = compress(b"a message that is long enough to be cut, long enough");
    assert_eq!(
        inflater.inflate(&wire[..wire.len() / 2], 1000),
        Err(Fault::BadDeflate)
    );
}

proptest! {
    #[test]
    fn messages_survive_compression(
        messages in prop::collection::vec(prop::collection::vec(0_u8..4, 0..3000), 1..5),
    ) {
        let (mut deflater, mut inflater) = (Deflater::new(), Inflater::new());
        for message in &messages {
            let mut wire = Vec::new();
            deflater.compress(message, &mut wire);
            prop_assert_eq!(inflater.inflate(&wire, message.len()), Ok(&message[..]));
        }
    }

    #[test]
    fn random_messages_survive_compression(message in prop::collection::vec(any::<u8>(), 0..40_000)) {
        let (wire, mut inflater) = (compress(&message), Inflater::new());
        prop_assert_eq!(inflater.inflate(&wire, message.len()), Ok(&message[..]));
    }

    #[test]
    fn random_bytes_inflate_within_the_limit_or_fail(wire in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(bytes) = Inflater::new().inflate(&wire, 500) {
            prop_assert!(bytes.len() <= 500);
        }
    }

    #[test]
    fn random_offers_never_panic(header in "[a-z_;=,\"0-9 -]{0,60}", rest in ".{0,20}") {
        let _ = DeflateOffer::find(&header);
        let _ = DeflateOffer::find(&format!("permessage-deflate;{rest}"));
    }
}
