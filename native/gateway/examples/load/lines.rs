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

#[cfg(test)]
mod tests {
    use super::*;

    const REDIS: &[u8] =
        b"*3\r\n$9\r\nsubscribe\r\n$5\r\nbench\r\n:1\r\n*3\r\n$7\r\nmessage\r\n$5\r\nbench\r\n$4\r\n{\r\n}\r\n";
    const NATS: &[u8] =
        b"INFO {}\r\nPONG\r\nMSG bench 1 5\r\nMSG \n\r\nMSG bench 1 0\r\n\r\nPING\r\n";

    fn read(parts: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut said) = (Lines::default(), Vec::new());
        for part in parts {
            lines.feed(part, &mut |piece| {
                said.push(match piece {
                    Piece::Line(text) => format!("line {text}"),
                    Piece::Payload(text) => format!("payload {text}"),
                });
            });
        }
        assert!(lines.partial.is_empty());
        said
    }

    #[test]
    fn payloads_are_told_from_lines() {
        assert_eq!(
            read(&[REDIS]).join(", "),
            "line *3, payload subscribe, payload bench, line :1, line *3, payload message, payload bench, payload {\r\n}"
        );
        assert_eq!(
            read(&[NATS]).join(", "),
            "line INFO {}, line PONG, payload MSG \n, payload , line PING"
        );
    }

    #[test]
    fn a_cut_anywhere_changes_nothing() {
        for wire in [REDIS, NATS] {
            for cut in 0..wire.len() {
                assert_eq!(read(&[&wire[..cut], &wire[cut..]]), read(&[wire]));
            }
        }
    }
}
