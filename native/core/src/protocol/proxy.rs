//! The header of the PROXY protocol, by which a proxy names its client before it passes on the client's bytes.
//!
//! Source: "The PROXY protocol, versions 1 & 2", `doc/proxy-protocol.txt` of `HAProxy`. A receiver must not guess whether a
//! header is there: who calls [`parse`] knows that one has to come. The address of the destination, the ports and the
//! optional fields of version 2 are checked for their form and not used.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest line of version 1, with its end (section 2.1).
const LINE_BYTES: usize = 107;
/// The longest header of version 2 that is read. Addresses take at most 216 bytes; the optional fields that proxies send
/// (names of TLS, a certificate's subject, ids of a cloud's endpoint) some hundred.
pub const MOST_BYTES: usize = 4_096;

const LINE_START: &[u8] = b"PROXY ";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The signature, version and command, family and transport, and the length of what follows.
const FIXED_BYTES: usize = SIGNATURE.len() + 4;
/// Two addresses and two ports.
const IPV4_BYTES: usize = 12;
const IPV6_BYTES: usize = 36;
const UNIX_BYTES: usize = 216;

/// How far a header has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// More bytes are needed.
    Partial,
    Complete {
        /// The client; `None` when the proxy speaks for itself, as in a health check, or does not know an IP address.
        source: Option<IpAddr>,
        /// Where the client's own bytes begin.
        consumed: usize,
    },
}

/// The bytes are no header of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedProxyHeader;

/// Reads a header of either version.
///
/// # Errors
/// When `bytes` cannot be the beginning of a header, or of one that is short enough.
pub fn parse(bytes: &[u8]) -> Result<ProxyHeader, MalformedProxyHeader> {
    if begins(bytes, LINE_START) {
        parse_line(bytes)
    } else if begins(bytes, SIGNATURE) {
        parse_binary(bytes)
    } else {
        Err(MalformedProxyHeader)
    }
}

/// Whether `bytes` begins with `start`, as far as it goes.
fn begins(bytes: &[u8], start: &[u8]) -> bool {
    let known = bytes.len().min(start.len());
    bytes[..known] == start[..known]
}

/// Version 1 (section 2.1).
fn parse_line(bytes: &[u8]) -> Result<ProxyHeader, MalformedProxyHeader> {
    let window = &bytes[..bytes.len().min(LINE_BYTES)];
    let Some(end) = window.iter().position(|&byte| byte == b'\n') else {
        return if window.len() < LINE_BYTES {
            Ok(ProxyHeader::Partial)
        } else {
            Err(MalformedProxyHeader)
        };
    };
    let line = window[..end]
        .strip_suffix(b"\r")
        .ok_or(MalformedProxyHeader)?;
    let text = std::str::from_utf8(line).map_err(|_| MalformedProxyHeader)?;
    let mut words = text.split(' ').skip(1);
    let source = match words.next() {
        // What follows is to be ignored.
        Some("UNKNOWN") => None,
        Some("TCP4") => Some(parse_addresses::<Ipv4Addr>(words)?),
        Some("TCP6") => Some(parse_addresses::<Ipv6Addr>(words)?),
        _ => return Err(MalformedProxyHeader),
    };
    Ok(ProxyHeader::Complete {
        source,
        consumed: end + 1,
    })
}

/// The source of `source destination port port`.
fn parse_addresses<'a, A>(
    mut words: impl Iterator<Item = &'a str>,
) -> Result<IpAddr, MalformedProxyHeader>
where
    A: std::str::FromStr + Into<IpAddr>,
{
    let mut address = || words.next()?.parse::<A>().ok();
    let (source, destination) = (address(), address());
    let has_ports = words.next().is_some_and(is_port) && words.next().is_some_and(is_port);
    match (source, destination, has_ports, words.next()) {
        (Some(source), Some(_), true, None) => Ok(source.into()),
        _ => Err(MalformedProxyHeader),
    }
}

fn is_port(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit()) && word.parse::<u16>().is_ok()
}

/// Version 2 (section 2.2).
fn parse_binary(bytes: &[u8]) -> Result<ProxyHeader, MalformedProxyHeader> {
    let Some(&[command, family, high, low]) = bytes.get(SIGNATURE.len()..FIXED_BYTES) else {
        return Ok(ProxyHeader::Partial);
    };
    let consumed = FIXED_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if consumed > MOST_BYTES {
        return Err(MalformedProxyHeader);
    }
    let is_local = match command {
        0x20 => true,
        0x21 => false,
        _ => return Err(MalformedProxyHeader),
    };
    let address_bytes = match family {
        0x00 => None,
        0x11 | 0x12 => Some(IPV4_BYTES),
        0x21 | 0x22 => Some(IPV6_BYTES),
        0x31 | 0x32 => Some(UNIX_BYTES),
        _ => return Err(MalformedProxyHeader),
    };
    let Some(body) = bytes.get(FIXED_BYTES..consumed) else {
        return Ok(ProxyHeader::Partial);
    };
    // After a command of the proxy's own, or without an address, the receiver skips what follows, whatever it is.
    let Some(address_bytes) = address_bytes.filter(|_| !is_local) else {
        return Ok(ProxyHeader::Complete {
            source: None,
            consumed,
        });
    };
    let (addresses, fields) = body
        .split_at_checked(address_bytes)
        .ok_or(MalformedProxyHeader)?;
    check_fields(fields)?;
    Ok(ProxyHeader::Complete {
        source: read_source(addresses, address_bytes),
        consumed,
    })
}

/// The first of the addresses, in network order.
fn read_source(addresses: &[u8], address_bytes: usize) -> Option<IpAddr> {
    match address_bytes {
        IPV4_BYTES => addresses.first_chunk::<4>().map(|&octets| octets.into()),
        IPV6_BYTES => addresses.first_chunk::<16>().map(|&octets| octets.into()),
        _ => None,
    }
}

/// Each optional field has a type, a length in two bytes and so many bytes, and nothing is left (section 2.2.7).
fn check_fields(mut fields: &[u8]) -> Result<(), MalformedProxyHeader> {
    while !fields.is_empty() {
        let Some((&[_, high, low], rest)) = fields.split_first_chunk::<3>() else {
            return Err(MalformedProxyHeader);
        };
        let value_bytes = usize::from(u16::from_be_bytes([high, low]));
        fields = rest.get(value_bytes..).ok_or(MalformedProxyHeader)?;
    }
    Ok(())
}
