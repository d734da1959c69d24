//! Frame headers, finished frames and masking (RFC 6455 section 5).
//!
//! Encoders append one contiguous frame, header and payload, to a buffer: a single `send` of contiguous bytes is
//! cheaper than `writev` of two parts, and a finished frame can be shared by every subscriber.

use super::fault::Fault;

/// The longest header: two bytes, a 64-bit length, a mask.
pub const HEADER_BYTES: usize = 14;
/// The longest payload of a control frame (section 5.5).
pub const CONTROL_BYTES: usize = 125;

const FIN: u8 = 0x80;
const RSV1: u8 = 0x40;
const RSV23: u8 = 0x30;
const MASKED: u8 = 0x80;
/// In place of a length: the length follows in two bytes, or in eight.
const TWO_BYTES: u8 = 0x7E;
const EIGHT_BYTES: u8 = 0x7F;

/// What a frame is (section 11.8); the reserved numbers have no value here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    Continuation = 0x0,
    Text = 0x1,
    Binary = 0x2,
    Close = 0x8,
    Ping = 0x9,
    Pong = 0xA,
}

impl Opcode {
    /// The opcode with this number, or `None` for a reserved one.
    const fn find(number: u8) -> Option<Self> {
        Some(match number {
            0x0 => Self::Continuation,
            0x1 => Self::Text,
            0x2 => Self::Binary,
            0x8 => Self::Close,
            0x9 => Self::Ping,
            0xA => Self::Pong,
            _ => return None,
        })
    }

    /// Whether frames of this kind may come between the fragments of a message.
    #[must_use]
    pub const fn is_control(self) -> bool {
        self as u8 >= 0x8
    }
}

/// A frame header that obeys every rule that can be checked without knowing what came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub fin: bool,
    /// RSV1: the message is compressed (RFC 7692 section 6). Never set on a control frame.
    pub compressed: bool,
    pub opcode: Opcode,
    /// Bytes of payload that follow.
    pub payload_bytes: u64,
    pub mask: Option<[u8; 4]>,
}

/// Reads a frame header at the start of `input`.
///
/// Returns the header and its own length in bytes, or `None` when `input` ends before it does. Faults in the first two
/// bytes are reported as soon as these two have arrived.
///
/// # Errors
/// Reserved bits and opcodes, fragmented or overlong control frames, and lengths that are not in their shortest form.
pub fn parse_header(input: &[u8]) -> Result<Option<(Header, usize)>, Fault> {
    let &[first, second, ref rest @ ..] = input else {
        return Ok(None);
    };
    let opcode = Opcode::find(first & 0x0F).ok_or(Fault::ReservedOpcode)?;
    let (fin, compressed) = (first & FIN != 0, first & RSV1 != 0);
    if first & RSV23 != 0 || (compressed && (opcode.is_control() || opcode == Opcode::Continuation))
    {
        return Err(Fault::ReservedBits);
    }
    let short = second & 0x7F;
    if opcode.is_control() && !fin {
        return Err(Fault::FragmentedControl);
    }
    if opcode.is_control() && usize::from(short) > CONTROL_BYTES {
        return Err(Fault::LongControl);
    }
    let (payload_bytes, rest) = match short {
        TWO_BYTES => {
            let Some((bytes, rest)) = rest.split_first_chunk::<2>() else {
                return Ok(None);
            };
            (shortest(u64::from(u16::from_be_bytes(*bytes)), 126)?, rest)
        }
        EIGHT_BYTES => {
            let Some((bytes, rest)) = rest.split_first_chunk::<8>() else {
                return Ok(None);
            };
            (shortest(u64::from_be_bytes(*bytes), 1 << 16)?, rest)
        }
        _ => (u64::from(short), rest),
    };
    let (mask, rest) = if second & MASKED == 0 {
        (None, rest)
    } else {
        let Some((mask, rest)) = rest.split_first_chunk::<4>() else {
            return Ok(None);
        };
        (Some(*mask), rest)
    };
    let header = Header {
        fin,
        compressed,
        opcode,
        payload_bytes,
        mask,
    };
    Ok(Some((header, input.len() - rest.len())))
}

/// `length`, if a shorter form could not have carried it and its top bit is clear.
fn shortest(length: u64, least: u64) -> Result<u64, Fault> {
    if length < least || length >> 63 == 1 {
        return Err(Fault::BadLength);
    }
    Ok(length)
}

/// Masks or unmasks `bytes` in place; `offset` is the position of their first byte within the payload.
///
/// Works on eight bytes at a time, which the compiler turns into vector instructions.
pub fn apply_mask(bytes: &mut [u8], mask: [u8; 4], offset: usize) {
    let mut turned = mask;
    turned.rotate_left(offset % 4);
    let [a, b, c, d] = turned;
    let word = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let mut words = bytes.chunks_exact_mut(8);
    for chunk in &mut words {
        let Ok(bytes) = <&mut [u8; 8]>::try_from(chunk) else {
            unreachable!("chunks_exact_mut gives eight bytes");
        };
        *bytes = (u64::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
    }
    for (byte, key) in words.into_remainder().iter_mut().zip(turned.iter().cycle()) {
        *byte ^= key;
    }
}

/// Appends a finished, unmasked frame: what a server sends. `compressed` payloads come from [`super::Deflater`].
pub fn encode(opcode: Opcode, payload: &[u8], compressed: bool, out: &mut Vec<u8>) {
    encode_fragment(opcode, payload, compressed, true, out);
}

/// Appends an unmasked frame that may be a fragment (`fin` false) of a longer message.
pub fn encode_fragment(
    opcode: Opcode,
    payload: &[u8],
    compressed: bool,
    fin: bool,
    out: &mut Vec<u8>,
) {
    out.reserve(HEADER_BYTES + payload.len());
    push_header(opcode, payload.len(), compressed, fin, 0, out);
    out.extend_from_slice(payload);
}

/// Appends a finished frame masked with `mask`: what a client sends.
pub fn encode_masked(opcode: Opcode, payload: &[u8], mask: [u8; 4], out: &mut Vec<u8>) {
    encode_masked_fragment(opcode, payload, mask, false, true, out);
}

/// Appends a masked frame that may be compressed and may be a fragment.
pub fn encode_masked_fragment(
    opcode: Opcode,
    payload: &[u8],
    mask: [u8; 4],
    compressed: bool,
    fin: bool,
    out: &mut Vec<u8>,
) {
    out.reserve(HEADER_BYTES + payload.len());
    push_header(opcode, payload.len(), compressed, fin, MASKED, out);
    out.extend_from_slice(&mask);
    let start = out.len();
    out.extend_from_slice(payload);
    apply_mask(&mut out[start..], mask, 0);
}

/// Appends an unmasked close frame. A `reason` over 123 bytes is cut at a character boundary.
pub fn encode_close(code: u16, reason: &str, out: &mut Vec<u8>) {
    let mut end = reason.len().min(CONTROL_BYTES - 2);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let reason = &reason[..end];
    push_header(Opcode::Close, 2 + reason.len(), false, true, 0, out);
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(reason.as_bytes());
}

/// Whether a close frame may carry `code` (section 7.4 and the IANA registry of close codes).
#[must_use]
pub const fn is_close_code(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "each arm's range fits the narrower type"
)]
fn push_header(
    opcode: Opcode,
    length: usize,
    compressed: bool,
    fin: bool,
    masked: u8,
    out: &mut Vec<u8>,
) {
    let first = opcode as u8 | if fin { FIN } else { 0 } | if compressed { RSV1 } else { 0 };
    match length {
        0..126 => out.extend_from_slice(&[first, masked | length as u8]),
        126..=0xFFFF => {
            out.extend_from_slice(&[first, masked | TWO_BYTES]);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.extend_from_slice(&[first, masked | EIGHT_BYTES]);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}
