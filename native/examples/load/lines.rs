//! Redis' and NATS' wires: lines that end with CRLF, some of which announce a payload of so many bytes.

/// What the server said.
pub enum Piece<'a> {
    Line(&'a str),
    Payload(&'a str),
}

/// The receiving side of one connection.
#[derive(Default)]
pub struct Lines {
    /// A piece that has not all come, from its announcing line on.
    partial: Vec<u8>,
}

impl Lines {
    /// Consumes all of `input` and calls `sink` with each piece that is complete. Pieces that are not UTF-8 are
    /// dropped: they are none of the bench's.
    pub fn feed(&mut self, input: &[u8], sink: &mut impl FnMut(Piece<'_>)) {
        if self.partial.is_empty() {
            let taken = take_pieces(input, sink);
            self.partial.extend_from_slice(&input[taken..]);
            return;
        }
        self.partial.extend_from_slice(input);
        let bytes = std::mem::take(&mut self.partial);
        let taken = take_pieces(&bytes, sink);
        self.partial.extend_from_slice(&bytes[taken..]);
    }
}

/// Hands on the complete pieces; returns the bytes they took.
fn take_pieces(input: &[u8], sink: &mut impl FnMut(Piece<'_>)) -> usize {
    let mut taken = 0;
    while let Some(length) = input[taken..].iter().position(|&byte| byte == b'\n') {
        let line = input[taken..taken + length].trim_ascii_end();
        let begin = taken + length + 1;
        let Some(bytes) = announced(line) else {
            emit(line, |text| sink(Piece::Line(text)));
            taken = begin;
            continue;
        };
        if input.len() < begin + bytes + 2 {
            break;
        }
        emit(&input[begin..begin + bytes], |text| {
            sink(Piece::Payload(text));
        });
        taken = begin + bytes + 2;
    }
    taken
}

fn emit(bytes: &[u8], sink: impl FnOnce(&str)) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        sink(text);
    }
}

/// The payload's length behind Redis' `$` or at the end of NATS' `MSG` line.
fn announced(line: &[u8]) -> Option<usize> {
    let digits = line.strip_prefix(b"$").or_else(|| {
        line.strip_prefix(b"MSG ")?
            .rsplit(|&byte| byte == b' ')
            .next()
    })?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}
