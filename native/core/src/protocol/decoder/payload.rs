//! Turns payloads into items: unmasks, joins fragments, inflates and checks them.

use simdutf8::compat::from_utf8;

use super::{Decoder, Item, Message};
use crate::protocol::deflate::Inflater;
use crate::protocol::fault::Fault;
use crate::protocol::frame::{self, Header, Opcode};

impl Decoder {
    pub(super) fn take_whole(
        &mut self,
        header: Header,
        payload: &mut [u8],
        inflater: &mut Inflater,
        sink: &mut impl FnMut(Item<'_>) -> bool,
    ) -> Result<(), Fault> {
        if let Some(mask) = header.mask {
            frame::apply_mask(payload, mask, 0);
        }
        if header.opcode.is_control() {
            return self.deliver_control(header.opcode, payload, sink);
        }
        if header.fin && header.opcode != Opcode::Continuation {
            return self.deliver(header.opcode, header.compressed, payload, inflater, sink);
        }
        self.gather(header, payload)?;
        self.end_data_frame(header, inflater, sink)
    }

    /// Takes the part that has arrived of the payload of `header`'s frame, which was or is incomplete.
    pub(super) fn take_part(
        &mut self,
        header: Header,
        input: &mut [u8],
        inflater: &mut Inflater,
        sink: &mut impl FnMut(Item<'_>) -> bool,
    ) -> Result<usize, Fault> {
        let partial = self.partial.get_or_insert_default();
        let missing = header.payload_bytes - partial.received as u64;
        let taken = usize::try_from(missing)
            .unwrap_or(usize::MAX)
            .min(input.len());
        let payload = &mut input[..taken];
        if let Some(mask) = header.mask {
            frame::apply_mask(payload, mask, partial.received);
        }
        partial.received += taken;
        let is_whole = taken as u64 == missing;
        if is_whole {
            partial.frame = None;
        }
        if !header.opcode.is_control() {
            self.gather(header, payload)?;
            if is_whole {
                self.end_data_frame(header, inflater, sink)?;
            }
            return Ok(taken);
        }
        partial.control.extend_from_slice(payload);
        if is_whole {
            let control = std::mem::take(&mut partial.control);
            self.deliver_control(header.opcode, &control, sink)?;
        }
        Ok(taken)
    }

    /// Adds unmasked payload to the message, which a text or binary frame begins.
    ///
    /// The buffer grows with the data received, not with the announced length, so a peer has to send what we store.
    fn gather(&mut self, header: Header, payload: &[u8]) -> Result<(), Fault> {
        let partial = self.partial.get_or_insert_default();
        let message = partial.message.get_or_insert_with(|| Message {
            opcode: header.opcode,
            compressed: header.compressed,
            bytes: Vec::new(),
            valid: 0,
        });
        message.bytes.extend_from_slice(payload);
        if message.opcode == Opcode::Text && !message.compressed {
            match from_utf8(&message.bytes[message.valid..]) {
                Ok(_) => message.valid = message.bytes.len(),
                Err(error) if error.error_len().is_some() => return Err(Fault::BadUtf8),
                Err(error) => message.valid += error.valid_up_to(),
            }
        }
        Ok(())
    }

    fn end_data_frame(
        &mut self,
        header: Header,
        inflater: &mut Inflater,
        sink: &mut impl FnMut(Item<'_>) -> bool,
    ) -> Result<(), Fault> {
        if !header.fin {
            return Ok(());
        }
        let Some(message) = self
            .partial
            .as_mut()
            .and_then(|partial| partial.message.take())
        else {
            unreachable!("gather has put a message there");
        };
        self.deliver(
            message.opcode,
            message.compressed,
            &message.bytes,
            inflater,
            sink,
        )
    }

    fn deliver(
        &mut self,
        opcode: Opcode,
        compressed: bool,
        payload: &[u8],
        inflater: &mut Inflater,
        sink: &mut impl FnMut(Item<'_>) -> bool,
    ) -> Result<(), Fault> {
        let payload = if compressed {
            let limit = usize::try_from(self.message_limit).unwrap_or(usize::MAX);
            inflater.inflate(payload, limit)?
        } else {
            payload
        };
        let item = match opcode {
            Opcode::Text => Item::Text(from_utf8(payload).map_err(|_| Fault::BadUtf8)?),
            _ => Item::Binary(payload),
        };
        self.is_finished = !sink(item);
        Ok(())
    }

    fn deliver_control(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        sink: &mut impl FnMut(Item<'_>) -> bool,
    ) -> Result<(), Fault> {
        let goes_on = match opcode {
            Opcode::Ping => sink(Item::Ping(payload)),
            Opcode::Pong => sink(Item::Pong(payload)),
            _ => {
                sink(parse_close(payload)?);
                false
            }
        };
        self.is_finished = !goes_on;
        Ok(())
    }
}

fn parse_close(payload: &[u8]) -> Result<Item<'_>, Fault> {
    if payload.is_empty() {
        return Ok(Item::Close {
            code: None,
            reason: "",
        });
    }
    let (code, reason) = payload
        .split_first_chunk::<2>()
        .ok_or(Fault::BadCloseBody)?;
    let code = u16::from_be_bytes(*code);
    if !frame::is_close_code(code) {
        return Err(Fault::BadCloseCode);
    }
    let reason = from_utf8(reason).map_err(|_| Fault::BadUtf8)?;
    Ok(Item::Close {
        code: Some(code),
        reason,
    })
}
