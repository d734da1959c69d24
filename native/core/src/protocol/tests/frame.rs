use proptest::prelude::*;

use crate::protocol::Fault;
use crate::protocol::frame::{self, Header, Opcode, parse_header};

fn header_of(frame: &[u8]) -> (Header, usize) {
    parse_header(frame).expect("valid").expect("complete")
}

#[test]
fn each_length_has_its_shortest_header() {
    for (length, header_bytes) in [
        (0, 2),
        (125, 2),
        (126, 4),
        (65_535, 4),
        (65_536, 10),
        (1 << 20, 10),
    ] {
        let mut out = Vec::new();
        frame::encode(Opcode::Binary, &vec![7; length], false, &mut out);
        let (header, bytes) = header_of(&out);
        assert_eq!((header.payload_bytes, bytes), (length as u64, header_bytes));
        assert_eq!(out.len(), header_bytes + length);
    }
}

#[test]
fn a_header_is_incomplete_until_its_last_byte() {
    let mut out = Vec::new();
    frame::encode_masked(Opcode::Text, &vec![b'x'; 70_000], [1, 2, 3, 4], &mut out);
    for bytes in 0..14 {
        assert_eq!(parse_header(&out[..bytes]), Ok(None), "{bytes} bytes");
    }
    let (header, bytes) = header_of(&out);
    assert_eq!((header.mask, bytes), (Some([1, 2, 3, 4]), 14));
}

#[test]
fn lengths_must_be_shortest_and_positive() {
    let long = |length: u64| [&[0x82, 127][..], &length.to_be_bytes()].concat();
    assert_eq!(parse_header(&[0x82, 126, 0, 125]), Err(Fault::BadLength));
    assert!(parse_header(&[0x82, 126, 0, 126]).is_ok());
    assert_eq!(parse_header(&long(65_535)), Err(Fault::BadLength));
    assert!(parse_header(&long(65_536)).is_ok());
    assert!(parse_header(&long((1 << 63) - 1)).is_ok());
    assert_eq!(parse_header(&long(1 << 63)), Err(Fault::BadLength));
}

#[test]
fn reserved_opcodes_and_bits_are_refused() {
    for opcode in [3, 4, 5, 6, 7, 0xB, 0xC, 0xD, 0xE, 0xF] {
        assert_eq!(
            parse_header(&[0x80 | opcode, 0]),
            Err(Fault::ReservedOpcode)
        );
    }
    for bits in [0x10, 0x20, 0x30, 0x50] {
        assert_eq!(parse_header(&[0x81 | bits, 0]), Err(Fault::ReservedBits));
    }
    assert!(header_of(&[0xC1, 0]).0.compressed);
    assert_eq!(
        parse_header(&[0xC0, 0]),
        Err(Fault::ReservedBits),
        "RSV1 on a continuation"
    );
    assert_eq!(
        parse_header(&[0xC9, 0]),
        Err(Fault::ReservedBits),
        "RSV1 on a ping"
    );
}

#[test]
fn control_frames_are_short_and_whole() {
    assert!(parse_header(&[0x89, 125]).is_ok());
    assert_eq!(parse_header(&[0x89, 126]), Err(Fault::LongControl));
    assert_eq!(parse_header(&[0x09, 0]), Err(Fault::FragmentedControl));
}

#[test]
fn a_long_close_reason_is_cut_between_characters() {
    let mut out = Vec::new();
    frame::encode_close(1000, &"é".repeat(100), &mut out);
    assert_eq!(out[..4], [0x88, 124, 0x03, 0xE8]);
    assert_eq!(&out[4..], "é".repeat(61).as_bytes());
}

#[test]
fn close_codes_are_those_of_the_registry() {
    let valid = [
        1000, 1001, 1002, 1003, 1007, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4008, 4999,
    ];
    let invalid = [
        0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535,
    ];
    assert!(valid.into_iter().all(frame::is_close_code));
    assert!(!invalid.into_iter().any(frame::is_close_code));
}

proptest! {
    #[test]
    fn masking_equals_masking_byte_by_byte(
        bytes in prop::collection::vec(any::<u8>(), 0..100), mask: [u8; 4], offset in 0_usize..9,
    ) {
        let slow: Vec<u8> =
            bytes.iter().enumerate().map(|(i, byte)| byte ^ mask[(i + offset) % 4]).collect();
        let mut fast = bytes;
        frame::apply_mask(&mut fast, mask, offset);
        prop_assert_eq!(fast, slow);
    }

    #[test]
    fn any_two_bytes_give_a_header_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..16)) {
        if let Ok(Some((_, used))) = parse_header(&bytes) {
            prop_assert!(used <= bytes.len());
        }
    }
}
