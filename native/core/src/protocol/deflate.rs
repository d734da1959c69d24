//! permessage-deflate (RFC 7692) in the form that suits broadcasting.
//!
//! Neither side keeps its compression context between messages. Our answer always says `server_no_context_takeover`,
//! so that one compressed frame is right for every subscriber, and always asks for `client_no_context_takeover`, which
//! a client must obey (section 7.1.1.2), so that one [`Inflater`] serves all connections of an event loop and an
//! idle connection holds no window.
//!
//! `server_max_window_bits` is honoured without a compressor for each size. Within one message no back reference
//! reaches further than the message is long, so a message no longer than the client's window suits that client however
//! it was compressed; [`DeflateParams::suits`] says whether a shared frame does. A longer one is sent to that client
//! uncompressed, which the extension allows for any message (section 6), or compressed for it alone by
//! [`Deflater::compress_for`]. `client_max_window_bits` needs no answer: our inflater has the largest window.
//!
//! An offer that breaks a rule of section 7.1 (unknown, repeated or malformed parameter) is skipped; without an
//! acceptable offer the connection continues uncompressed (section 5.1).

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::fault::Fault;

/// The end of a sync flush; messages are sent without it (section 7.2.1).
const TAIL: [u8; 4] = [0x00, 0x00, 0xFF, 0xFF];
/// A last, empty, stored block. It ends the stream exactly there only if the message did not stop inside a block.
const END: [u8; 5] = [0x01, 0x00, 0x00, 0xFF, 0xFF];
/// The buffer that [`Inflater`] keeps between messages; a larger one is freed, so that one big message does not occupy
/// memory for ever.
const KEPT_BYTES: usize = 64 << 10;
/// The buffer grows by this many bytes at a time.
const STEP_BYTES: usize = 16 << 10;
const MAX_WINDOW_BITS: u8 = 15;
/// For every window below the largest. zlib keeps 262 bytes of its window free, so that with these 512 bytes no
/// reference is longer than 250 and even the smallest window, 256 bytes, is enough.
const NARROW_WINDOW_BITS: u8 = 9;

/// One acceptable offer of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeflateOffer {
    /// The largest window, 2^n bytes, with which the client will inflate; `None` when it sets no limit.
    pub server_max_window_bits: Option<u8>,
}

impl DeflateOffer {
    /// The first offer in the value of `Sec-WebSocket-Extensions` that can be accepted.
    #[must_use]
    pub fn find(header: &str) -> Option<Self> {
        elements(header, ',').find_map(Self::read)
    }

    /// The terms on which this offer is accepted.
    #[must_use]
    pub fn accept(self) -> DeflateParams {
        DeflateParams {
            server_max_window_bits: self.server_max_window_bits,
        }
    }

    fn read(offer: &str) -> Option<Self> {
        let mut parts = elements(offer, ';');
        if !parts.next()?.eq_ignore_ascii_case("permessage-deflate") {
            return None;
        }
        let mut bits = None;
        let mut seen = [false; 4];
        for part in parts {
            let (name, value) = parameter(part);
            let name = name.to_ascii_lowercase();
            let place = match (name.as_str(), value) {
                ("server_no_context_takeover", None) => 0,
                ("client_no_context_takeover", None) => 1,
                ("client_max_window_bits", None) => 2,
                ("client_max_window_bits", Some(text)) => window_bits(text).map(|_| 2)?,
                ("server_max_window_bits", Some(text)) => {
                    bits = Some(window_bits(text)?);
                    3
                }
                _ => return None,
            };
            if std::mem::replace(&mut seen[place], true) {
                return None;
            }
        }
        Some(Self {
            server_max_window_bits: bits,
        })
    }
}

/// The terms of compression on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeflateParams {
    /// As offered, 8 to 15; `None` when the client set no limit.
    pub server_max_window_bits: Option<u8>,
}

impl DeflateParams {
    /// Whether a message of so many uncompressed bytes may go to this connection compressed.
    #[must_use]
    pub fn suits(self, message_bytes: usize) -> bool {
        self.server_max_window_bits
            .is_none_or(|bits| bits >= MAX_WINDOW_BITS || message_bytes <= 1 << bits)
    }

    /// Appends the extension's element of the answer, without the header's name.
    pub fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(
            b"permessage-deflate; server_no_context_takeover; client_no_context_takeover",
        );
        if let Some(bits) = self.server_max_window_bits {
            out.extend_from_slice(format!("; server_max_window_bits={bits}").as_bytes());
        }
    }

    /// Reads a server's answer to our own bare offer (client side).
    ///
    /// Returns `None` unless the server agreed to forget its context after each message, without which a shared
    /// [`Inflater`] cannot read what it sends.
    #[must_use]
    pub fn find(header: &str) -> Option<Self> {
        let forgets = elements(header, ';')
            .any(|part| part.eq_ignore_ascii_case("server_no_context_takeover"));
        forgets
            .then(|| DeflateOffer::find(header))
            .flatten()
            .map(DeflateOffer::accept)
    }
}

/// The non-empty elements of a list, split outside quoted strings and trimmed.
fn elements(list: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    list.split(move |c| {
        quoted ^= c == '"';
        c == separator && !quoted
    })
    .map(str::trim)
    .filter(|element| !element.is_empty())
}

fn parameter(text: &str) -> (&str, Option<&str>) {
    match text.split_once('=') {
        None => (text, None),
        Some((name, value)) => {
            let value = value.trim();
            let inner = value
                .strip_prefix('"')
                .and_then(|value| value.strip_suffix('"'));
            (name.trim(), Some(inner.unwrap_or(value)))
        }
    }
}

/// 8 to 15, without a leading zero (section 7.1.2).
fn window_bits(text: &str) -> Option<u8> {
    match text.as_bytes() {
        [digit @ b'8'..=b'9'] => Some(digit - b'0'),
        [b'1', digit @ b'0'..=b'5'] => Some(10 + digit - b'0'),
        _ => None,
    }
}

/// Compresses messages one by one. About 270 KB once used; keep one per event loop or writer.
#[derive(Default)]
pub struct Deflater {
    wide: Option<Compress>,
    narrow: Option<Compress>,
}

impl Deflater {
    /// A compressor that has not allocated anything yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the compressed `payload` to `out`: the payload of one frame or, cut up, of several.
    ///
    /// The result may go to each connection for which [`DeflateParams::suits`] says so.
    pub fn compress(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        let state = self
            .wide
            .get_or_insert_with(|| Compress::new(Compression::default(), false));
        compress_with(state, payload, out);
    }

    /// Like [`Self::compress`], but for one connection, whatever its window and the message's length.
    pub fn compress_for(&mut self, params: DeflateParams, payload: &[u8], out: &mut Vec<u8>) {
        if params.suits(payload.len()) {
            return self.compress(payload, out);
        }
        let state = self.narrow.get_or_insert_with(|| {
            Compress::new_with_window_bits(Compression::default(), false, NARROW_WINDOW_BITS)
        });
        compress_with(state, payload, out);
    }
}

fn compress_with(state: &mut Compress, payload: &[u8], out: &mut Vec<u8>) {
    state.reset();
    let mut rest = payload;
    loop {
        // A sync flush adds at most a few bytes per block; with this much room most messages need one call.
        out.reserve(rest.len() / 2 + 64);
        let before = state.total_in();
        let status = state.compress_vec(rest, out, FlushCompress::Sync);
        let taken = usize::try_from(state.total_in() - before).unwrap_or(usize::MAX);
        rest = rest.get(taken..).unwrap_or_default();
        // With room left over, the flush is complete (zlib's manual on Z_SYNC_FLUSH).
        if status.is_err() || (rest.is_empty() && out.len() < out.capacity()) {
            break;
        }
    }
    if out.ends_with(&TAIL) {
        out.truncate(out.len() - TAIL.len());
    }
}

/// Inflates messages one by one. About 40 KB once used; keep one per event loop.
#[derive(Default)]
pub struct Inflater {
    state: Option<Decompress>,
    out: Vec<u8>,
}

impl Inflater {
    /// An inflater that has not allocated anything yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Inflates the joined payload of one message; the bytes are valid until the next call.
    ///
    /// # Errors
    /// [`Fault::MessageTooBig`] as soon as the output passes `limit` bytes, however little came in;
    /// [`Fault::BadDeflate`] for bytes that are no DEFLATE stream or end inside a block.
    pub fn inflate(&mut self, payload: &[u8], limit: usize) -> Result<&[u8], Fault> {
        if self.out.capacity() > KEPT_BYTES {
            self.out = Vec::new();
        }
        self.out.clear();
        let state = self.state.get_or_insert_with(|| Decompress::new(false));
        state.reset(false);
        if !inflate_part(state, payload, limit, &mut self.out)? {
            inflate_part(state, &TAIL, limit, &mut self.out)?;
            let inflated = self.out.len();
            if !inflate_part(state, &END, limit, &mut self.out)? || self.out.len() != inflated {
                return Err(Fault::BadDeflate);
            }
        }
        Ok(&self.out)
    }
}

/// Inflates all of `part`; returns whether the stream ended at its end.
fn inflate_part(
    state: &mut Decompress,
    part: &[u8],
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<bool, Fault> {
    let mut rest = part;
    loop {
        if out.len() == out.capacity() {
            out.reserve(STEP_BYTES.max(rest.len()));
        }
        let before = state.total_in();
        let status = state
            .decompress_vec(rest, out, FlushDecompress::Sync)
            .map_err(|_| Fault::BadDeflate)?;
        let taken = usize::try_from(state.total_in() - before).unwrap_or(usize::MAX);
        rest = rest.get(taken..).unwrap_or_default();
        if out.len() > limit {
            return Err(Fault::MessageTooBig);
        }
        let is_end = status == Status::StreamEnd;
        if is_end {
            // A sender may end a block with BFINAL (section 7.2.3.4); what follows starts a new stream.
            state.reset(false);
        }
        let has_room = out.len() < out.capacity();
        if rest.is_empty() && (is_end || has_room) {
            return Ok(is_end);
        }
        if !is_end && taken == 0 && has_room {
            return Err(Fault::BadDeflate);
        }
    }
}
