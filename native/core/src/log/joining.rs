//! One frame of many: finished frames joined to a JSON array, without encoding or compressing any of them again.
//!
//! A deflated payload is a run of DEFLATE blocks that ends with a sync flush, of which the last four bytes are not sent
//! (RFC 7692, section 7.2.1), and refers to nothing before its own beginning, as every message is compressed without
//! the context of others. Put back the four bytes, and what follows may be other blocks: those of the next payload, or
//! *stored* ones (RFC 1951, section 3.2.4), which hold brackets, commas and the payloads that were not deflated.

use crate::protocol::frame::{self, Header, Opcode};

/// What a joined frame has beyond the frames in it, except stored blocks: the header and the brackets.
pub(super) const MORE_BYTES: usize = 64;
/// What the sync flush of a deflated payload ends with.
const TAIL: [u8; 4] = [0x00, 0x00, 0xFF, 0xFF];
/// Begins a stored block that is not the last one.
const STORED: u8 = 0;
/// Bytes of the longest stored block.
const STORED_BYTES: usize = u16::MAX as usize;

/// Appends one frame that holds the payloads of all frames in the slices, as an array.
///
/// The slices hold whole frames of a log. They are asked for twice: whether one is deflated decides about all.
pub(super) fn join<'a, I: Iterator<Item = &'a [u8]>>(slices: impl Fn() -> I, out: &mut Vec<u8>) {
    let frames = || slices().flat_map(|slice| Frames { rest: slice });
    let is_deflated = frames().any(|(header, _)| header.compressed);
    let mut payload = Vec::with_capacity(out.capacity());
    let put = if is_deflated { put_stored } else { put_plain };
    for (number, (header, bytes)) in frames().enumerate() {
        put(if number == 0 { b"[" } else { b"," }, &mut payload);
        if header.compressed {
            payload.extend_from_slice(bytes);
            payload.extend_from_slice(&TAIL);
        } else {
            put(bytes, &mut payload);
        }
    }
    put(b"]", &mut payload);
    if is_deflated {
        // An empty stored block without its tail, which the reader puts back.
        payload.push(STORED);
    }
    frame::encode(Opcode::Text, &payload, is_deflated, out);
}

fn put_plain(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(bytes);
}

fn put_stored(bytes: &[u8], out: &mut Vec<u8>) {
    for block in bytes.chunks(STORED_BYTES) {
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        out.push(STORED);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.extend_from_slice(block);
    }
}

/// The frames of a slice with their payloads.
struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Frames<'a> {
    type Item = (Header, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let Ok(Some((header, header_bytes))) = frame::parse_header(self.rest) else {
            unreachable!("a log holds whole frames of our own making")
        };
        let end = header_bytes + usize::try_from(header.payload_bytes).unwrap_or(usize::MAX);
        let payload = &self.rest[header_bytes..end];
        self.rest = &self.rest[end..];
        Some((header, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Deflater, Inflater};

    fn joined(slices: &[Vec<u8>]) -> (bool, String) {
        let mut out = Vec::new();
        join(|| slices.iter().map(Vec::as_slice), &mut out);
        let (header, header_bytes) = frame::parse_header(&out).expect("a frame").expect("whole");
        assert_eq!(header_bytes as u64 + header.payload_bytes, out.len() as u64);
        let payload = &out[header_bytes..];
        let mut inflater = Inflater::new();
        let text = if header.compressed {
            inflater
                .inflate(payload, 1 << 20)
                .expect("a DEFLATE stream")
        } else {
            payload
        };
        (
            header.compressed,
            String::from_utf8(text.to_vec()).expect("UTF-8"),
        )
    }

    fn plain(texts: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        for text in texts {
            frame::encode(Opcode::Text, text.as_bytes(), false, &mut out);
        }
        out
    }

    fn deflated(text: &str) -> Vec<u8> {
        let (mut payload, mut out) = (Vec::new(), Vec::new());
        Deflater::new().compress(text.as_bytes(), &mut payload);
        frame::encode(Opcode::Text, &payload, true, &mut out);
        out
    }

    #[test]
    fn plain_frames_become_an_array_over_slices_and_lengths() {
        let long = "7".repeat(70_000);
        let slices = [plain(&["1", "{}"]), plain(&[&long])];
        assert_eq!(joined(&slices), (false, format!("[1,{{}},{long}]")));
    }

    #[test]
    fn deflated_frames_are_joined_as_they_are_beside_plain_ones() {
        let (one, other) = ("ab".repeat(300), "cd".repeat(40_000));
        let long = "7".repeat(70_000);
        let slices = [deflated(&one), plain(&["1", &long]), deflated(&other)];
        assert_eq!(joined(&slices), (true, format!("[{one},1,{long},{other}]")));
    }

    #[test]
    fn what_is_joined_does_not_refer_to_what_was_sent_before() {
        let same = "0123456789abcdef".repeat(20);
        let slices = [deflated(&same), deflated(&same), deflated(&same)];
        assert_eq!(joined(&slices), (true, format!("[{same},{same},{same}]")));
    }
}
