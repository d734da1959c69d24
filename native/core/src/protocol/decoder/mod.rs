//! The receiving side of a connection: bytes in, messages and control frames out (RFC 6455 sections 5 to 8).
//!
//! # Theory of operation
//! A frame that lies whole in the input is unmasked in place and passed on without a copy. Everything else (a header
//! cut in two, an incomplete payload, a fragmented message) is collected in a [`Partial`], which exists only until it
//! is complete.
//!
//! Faults are found as early as the bytes allow: the rules of a header before its payload arrives, the message limit as
//! soon as a frame announces its length, and UTF-8 as the bytes of an uncompressed text arrive, also across frames. A
//! compressed message is inflated, with a bound, when its last frame is complete, because inflating needs the event
//! loop's shared [`Inflater`]; its UTF-8 is checked then.
//!
//! After a close frame, a fault, or a sink that stops it, the decoder ignores all input.

mod payload;

use std::cell::Cell;

use super::deflate::Inflater;
use super::fault::{Fault, ProtocolError};
use super::frame::{self, HEADER_BYTES, Header, Opcode};

/// Which side of the connection decodes: a server requires masked frames, a client unmasked ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Server,
    Client,
}

/// One thing the peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    Text(&'a str),
    Binary(&'a [u8]),
    Ping(&'a [u8]),
    Pong(&'a [u8]),
    /// The peer closes; nothing follows. `None` when the frame was empty.
    Close {
        code: Option<u16>,
        reason: &'a str,
    },
}

/// What the decoder does after an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    On,
    /// Stops for now.
    Pause,
    /// Stops for good.
    End,
}

/// The receiving state of one connection: 16 bytes while no frame is incomplete.
#[derive(Debug)]
pub struct Decoder {
    partial: Option<Box<Partial>>,
    message_limit: u32,
    role: Role,
    deflate: bool,
    is_finished: bool,
}

/// The state of an incomplete frame or message.
#[derive(Debug, Default)]
struct Partial {
    /// The first bytes of an incomplete header.
    head: [u8; HEADER_BYTES],
    head_bytes: u8,
    /// The frame whose payload is arriving, and how many bytes of it are here.
    frame: Option<Header>,
    received: usize,
    /// The payload of a control frame, which may arrive in the middle of a message.
    control: Vec<u8>,
    message: Option<Message>,
}

/// An incomplete data message.
#[derive(Debug)]
struct Message {
    opcode: Opcode,
    compressed: bool,
    bytes: Vec<u8>,
    /// How much of `bytes` is known to be whole UTF-8 characters; used for uncompressed text only.
    valid: usize,
}

impl Partial {
    fn is_idle(&self) -> bool {
        self.head_bytes == 0 && self.frame.is_none() && self.message.is_none()
    }
}

impl Decoder {
    /// A decoder for one connection.
    ///
    /// `message_limit` bounds a message in bytes, after inflating, up to 4 GiB. `deflate` says whether
    /// permessage-deflate was negotiated.
    #[must_use]
    pub fn new(role: Role, message_limit: usize, deflate: bool) -> Self {
        let message_limit = u32::try_from(message_limit).unwrap_or(u32::MAX);
        Self {
            partial: None,
            message_limit,
            role,
            deflate,
            is_finished: false,
        }
    }

    /// Bytes on the heap that an incomplete frame or message holds now; 0 between messages.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| {
            let message = partial
                .message
                .as_ref()
                .map_or(0, |message| message.bytes.capacity());
            size_of::<Partial>() + partial.control.capacity() + message
        })
    }

    /// Consumes all of `input`, unmasking in place, and calls `sink` with each item as it is complete.
    ///
    /// When `sink` returns false the connection is over for the decoder: the rest of the input and all later input
    /// is dropped. The same holds after [`Item::Close`] and after an error.
    ///
    /// # Errors
    /// The first fault; items before it have been delivered. The caller closes with its code.
    pub fn feed(
        &mut self,
        input: &mut [u8],
        inflater: &mut Inflater,
        sink: &mut impl FnMut(Item<'_>) -> bool,
    ) -> Result<(), ProtocolError> {
        let mut sink = |item: Item<'_>| if sink(item) { Flow::On } else { Flow::End };
        self.feed_some(input, inflater, &mut sink).map(|_| ())
    }

    /// Like [`feed`](Self::feed), but stops after an item for which `sink` returns [`Flow::Pause`]. Returns how many
    /// bytes of `input` were used; the caller feeds the others later, before anything else.
    ///
    /// # Errors
    /// As `feed`.
    pub fn feed_some(
        &mut self,
        input: &mut [u8],
        inflater: &mut Inflater,
        sink: &mut impl FnMut(Item<'_>) -> Flow,
    ) -> Result<usize, ProtocolError> {
        let (mut used, is_paused) = (0, Cell::new(false));
        let mut watched = |item: Item<'_>| match sink(item) {
            Flow::On => true,
            Flow::Pause => {
                is_paused.set(true);
                true
            }
            Flow::End => false,
        };
        while used < input.len() && !self.is_finished {
            match self.step(&mut input[used..], inflater, &mut watched) {
                Ok(taken) => used += taken,
                Err(fault) => {
                    self.is_finished = true;
                    self.partial = None;
                    return Err(fault.into());
                }
            }
            if is_paused.get() {
                break;
            }
        }
        if self.is_finished || self.partial.as_ref().is_some_and(|p| p.is_idle()) {
            self.partial = None;
        }
        Ok(if self.is_finished { input.len() } else { used })
    }

    /// Takes one header, or the part of one frame that has arrived; returns how many bytes of `input` (not empty) it
    /// used.
    fn step(
        &mut self,
        input: &mut [u8],
        inflater: &mut Inflater,
        sink: &mut impl FnMut(Item<'_>) -> bool,
    ) -> Result<usize, Fault> {
        if let Some(header) = self.partial.as_ref().and_then(|partial| partial.frame) {
            return self.take_part(header, input, inflater, sink);
        }
        let Some((header, head_bytes)) = self.take_head(input)? else {
            return Ok(input.len());
        };
        self.check(&header)?;
        let payload = &mut input[head_bytes..];
        let whole = usize::try_from(header.payload_bytes)
            .ok()
            .filter(|&bytes| bytes <= payload.len());
        let taken = if let Some(bytes) = whole {
            self.take_whole(header, &mut payload[..bytes], inflater, sink)?;
            bytes
        } else {
            let partial = self.partial.get_or_insert_default();
            partial.frame = Some(header);
            partial.received = 0;
            self.take_part(header, payload, inflater, sink)?
        };
        Ok(head_bytes + taken)
    }

    /// The header at the start of `input`, joined with what came earlier, and how much of `input` belongs to it.
    fn take_head(&mut self, input: &[u8]) -> Result<Option<(Header, usize)>, Fault> {
        let earlier = self
            .partial
            .as_ref()
            .map_or(0, |partial| usize::from(partial.head_bytes));
        if earlier == 0 {
            if let Some(found) = frame::parse_header(input)? {
                return Ok(Some(found));
            }
        }
        let partial = self.partial.get_or_insert_default();
        let room = &mut partial.head[earlier..];
        let taken = room.len().min(input.len());
        room[..taken].copy_from_slice(&input[..taken]);
        let joined = &partial.head[..earlier + taken];
        let found = frame::parse_header(joined)?;
        partial.head_bytes = if found.is_some() {
            0
        } else {
            small(joined.len())
        };
        Ok(found.map(|(header, bytes)| (header, bytes - earlier)))
    }

    /// The rules for a header that depend on the connection and on what came before.
    fn check(&self, header: &Header) -> Result<(), Fault> {
        match (self.role, header.mask) {
            (Role::Server, None) => return Err(Fault::Unmasked),
            (Role::Client, Some(_)) => return Err(Fault::Masked),
            _ => {}
        }
        if header.compressed && !self.deflate {
            return Err(Fault::ReservedBits);
        }
        if header.opcode.is_control() {
            return Ok(());
        }
        let message = self
            .partial
            .as_ref()
            .and_then(|partial| partial.message.as_ref());
        match (header.opcode, message) {
            (Opcode::Continuation, None) => return Err(Fault::UnexpectedContinuation),
            (Opcode::Text | Opcode::Binary, Some(_)) => return Err(Fault::ExpectedContinuation),
            _ => {}
        }
        let compressed = message.map_or(header.compressed, |message| message.compressed);
        let held = message.map_or(0, |message| message.bytes.len() as u64);
        if header.payload_bytes > self.wire_limit(compressed).saturating_sub(held) {
            return Err(Fault::MessageTooBig);
        }
        Ok(())
    }

    /// How many payload bytes a message may have on the wire.
    ///
    /// DEFLATE enlarges incompressible data, by an eighth when a simple encoder uses only the fixed code (RFC 1951
    /// section 3.2.6). So a compressed message may be that much longer; the limit still applies to its inflated size.
    fn wire_limit(&self, compressed: bool) -> u64 {
        let limit = u64::from(self.message_limit);
        if compressed {
            limit + limit / 8 + 64
        } else {
            limit
        }
    }
}

/// The length of an incomplete header, which is under [`HEADER_BYTES`].
#[expect(
    clippy::cast_possible_truncation,
    reason = "a header has at most 14 bytes"
)]
fn small(length: usize) -> u8 {
    debug_assert!(length <= HEADER_BYTES);
    length as u8
}
