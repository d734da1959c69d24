//! Headers of the PROXY protocol: the examples of its specification, each edge, and every way to cut a header.

use std::net::IpAddr;

use proptest::prelude::*;

use crate::protocol::proxy::{MOST_BYTES, MalformedProxyHeader, ProxyHeader, parse};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("a literal address")
}

fn complete(bytes: &[u8]) -> (Option<IpAddr>, usize) {
    match parse(bytes) {
        Ok(ProxyHeader::Complete { source, consumed }) => (source, consumed),
        other => panic!("{other:?}"),
    }
}

/// A header of version 2 with these bytes after its length.
fn binary(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("short").to_be_bytes();
    [SIGNATURE, &[command, family], &length, body].concat()
}

fn ipv4(fields: &[u8]) -> Vec<u8> {
    let addresses = [192, 0, 2, 7, 127, 0, 0, 1, 0x12, 0x34, 0, 80];
    binary(0x21, 0x11, &[&addresses, fields].concat())
}

#[test]
fn a_line_names_the_client() {
    for (line, source) in [
        (
            "PROXY TCP4 192.0.2.7 127.0.0.1 56324 443\r\n",
            Some("192.0.2.7"),
        ),
        (
            "PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
            Some("255.255.255.255"),
        ),
        ("PROXY TCP6 2001:db8::7 ::1 0 443\r\n", Some("2001:db8::7")),
        ("PROXY UNKNOWN\r\n", None),
        (
            "PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n",
            None,
        ),
    ] {
        let bytes = format!("{line}GET / HTTP/1.1\r\n");
        assert_eq!(
            complete(bytes.as_bytes()),
            (source.map(ip), line.len()),
            "{line}"
        );
    }
}

#[test]
fn a_line_of_any_other_form_is_malformed() {
    for line in [
        "GET / HTTP/1.1\r\n",
        "proxy TCP4 192.0.2.7 127.0.0.1 1 2\r\n",
        "PROXY  TCP4 192.0.2.7 127.0.0.1 1 2\r\n",
        "PROXY TCP4 192.0.2.7 127.0.0.1 1 2\n",
        "PROXY TCP4 192.0.2.7 127.0.0.1 1 2 \r\n",
        "PROXY TCP4 192.0.2.7 127.0.0.1 1 2 3\r\n",
        "PROXY TCP4 192.0.2.7 127.0.0.1 1\r\n",
        "PROXY TCP4 192.0.2.7 127.0.0.1 1 65536\r\n",
        "PROXY TCP4 192.0.2.7 127.0.0.1 +1 2\r\n",
        "PROXY TCP4 192.0.2.7 127.0.0.1  2\r\n",
        "PROXY TCP4 192.0.2.07 127.0.0.1 1 2\r\n",
        "PROXY TCP4 192.0.2.7 here 1 2\r\n",
        "PROXY TCP4 ::1 ::1 1 2\r\n",
        "PROXY TCP6 192.0.2.7 127.0.0.1 1 2\r\n",
        "PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
        "PROXY TCP5 192.0.2.7 127.0.0.1 1 2\r\n",
        "PROXY \r\n",
        "\r\n\r\nPROXY",
    ] {
        assert_eq!(parse(line.as_bytes()), Err(MalformedProxyHeader), "{line}");
    }
    assert_eq!(
        parse(b"PROXY UNKNOWN \xff\r\n"),
        Err(MalformedProxyHeader),
        "it is ASCII"
    );
}

#[test]
fn a_line_has_107_bytes_at_most() {
    let line = |bytes: usize| format!("{:<width$}\r\n", "PROXY UNKNOWN ", width = bytes - 2);
    assert_eq!(complete(line(107).as_bytes()), (None, 107));
    assert_eq!(parse(line(108).as_bytes()), Err(MalformedProxyHeader));
    assert_eq!(
        parse(&line(108).as_bytes()[..106]),
        Ok(ProxyHeader::Partial)
    );
    assert_eq!(
        parse(&line(108).as_bytes()[..107]),
        Err(MalformedProxyHeader)
    );
}

#[test]
fn a_binary_header_names_the_client() {
    let header = ipv4(&[]);
    assert_eq!(complete(&header), (Some(ip("192.0.2.7")), 28));
    let mut addresses = [0; 36];
    addresses[..16].copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    for family in [0x21, 0x22] {
        let header = binary(0x21, family, &addresses);
        assert_eq!(complete(&header), (Some(ip("2001:db8::7")), 52));
    }
}

#[test]
fn a_proxy_that_speaks_for_itself_names_nobody() {
    for (header, bytes) in [
        (binary(0x20, 0x00, &[]), 16),
        (binary(0x20, 0x11, b"whatever is here"), 32),
        (binary(0x21, 0x00, b"and here"), 24),
        (binary(0x21, 0x31, &[0; 216]), 232),
    ] {
        assert_eq!(complete(&header), (None, bytes));
    }
}

#[test]
fn optional_fields_are_skipped_when_they_are_whole() {
    let field = [0x03, 0, 4, 1, 2, 3, 4];
    let header = ipv4(&[&field[..], &[0x04, 0, 0]].concat());
    assert_eq!(complete(&header), (Some(ip("192.0.2.7")), 38));
    for fields in [
        &[0x04][..],
        &[0x04, 0],
        &[0x04, 0, 1],
        &[0x04, 0xff, 0xff, 1],
    ] {
        assert_eq!(parse(&ipv4(fields)), Err(MalformedProxyHeader));
    }
}

#[test]
fn a_binary_header_of_any_other_form_is_malformed() {
    for (command, family, body_bytes) in [
        (0x11, 0x11, 12),
        (0x31, 0x11, 12),
        (0x22, 0x11, 12),
        (0x21, 0x10, 12),
        (0x21, 0x13, 12),
        (0x21, 0x41, 12),
        (0x21, 0x11, 11),
        (0x21, 0x21, 35),
        (0x21, 0x31, 215),
    ] {
        let header = binary(command, family, &vec![0; body_bytes]);
        assert_eq!(
            parse(&header),
            Err(MalformedProxyHeader),
            "{command:x} {family:x}"
        );
    }
}

#[test]
fn a_binary_header_is_bounded_before_it_has_come() {
    let longest = binary(0x20, 0, &vec![0; MOST_BYTES - 16]);
    assert_eq!(complete(&longest), (None, MOST_BYTES));
    let longer = binary(0x20, 0, &vec![0; MOST_BYTES - 15]);
    assert_eq!(parse(&longer[..15]), Ok(ProxyHeader::Partial));
    assert_eq!(parse(&longer[..16]), Err(MalformedProxyHeader));
}

proptest! {
    #[test]
    fn a_header_that_is_cut_is_partial_and_one_with_more_behind_is_the_same(
        source in any::<[u8; 4]>(),
        fields in proptest::collection::vec(any::<u8>(), 0..300),
        more in proptest::collection::vec(any::<u8>(), 0..50),
        is_line in any::<bool>(),
    ) {
        let length = u16::try_from(fields.len()).expect("short").to_be_bytes();
        let address = IpAddr::from(source);
        let header = if is_line {
            format!("PROXY TCP4 {address} 127.0.0.1 1 2\r\n").into_bytes()
        } else {
            let rest = [127, 0, 0, 1, 0, 1, 0, 2, 0xe0, length[0], length[1]];
            binary(0x21, 0x11, &[&source[..], &rest, &fields].concat())
        };
        for end in 0..header.len() {
            prop_assert_eq!(parse(&header[..end]), Ok(ProxyHeader::Partial));
        }
        let (found, consumed) = complete(&[&header[..], &more].concat());
        prop_assert_eq!((found, consumed), (Some(address), header.len()));
    }
}
