//! Finds where the values of a JSON text begin and end.
//!
//! One pass, without recursion and without a copy: a message of the largest size occupies an event loop only for as
//! long as one look at each byte takes. Many small values cost most, so their number has a bound. The grammar is that
//! of RFC 8259. Escapes are not decoded, and the size of numbers is not checked.

/// Reads a text from its beginning. Each method returns `None` if the text is not JSON; nothing more can be read then.
#[derive(Clone, Debug)]
pub struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// How many more values may be read.
    left: usize,
}

impl<'a> Scanner<'a> {
    /// Reads `text` up to the first `most` values; nested values count.
    #[must_use]
    pub fn new(text: &'a str, most: usize) -> Self {
        Self {
            text,
            at: 0,
            left: most,
        }
    }

    /// The next byte that is not white space; it is not consumed.
    pub fn peek(&mut self) -> Option<u8> {
        self.at = skip_space(self.text.as_bytes(), self.at);
        self.text.as_bytes().get(self.at).copied()
    }

    /// Consumes the next byte that is not white space, if it is this one.
    pub fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Whether only white space is left.
    pub fn is_over(&mut self) -> bool {
        self.peek().is_none()
    }

    /// Consumes a value whose arrays and objects nest at most `depth` (up to 128) deep, and returns its text.
    pub fn value(&mut self, depth: usize) -> Option<&'a str> {
        self.peek()?;
        let begin = self.at;
        (self.at, self.left) = skip_value(self.text.as_bytes(), begin, depth, self.left).ok()?;
        Some(&self.text[begin..self.at])
    }

    /// Consumes the key of a member and its colon; returns the key with its quotes.
    pub fn key(&mut self) -> Option<&'a str> {
        self.peek()?;
        let begin = self.at;
        self.at = skip_string(self.text.as_bytes(), begin).ok()?;
        let key = &self.text[begin..self.at];
        self.take(b':').then_some(key)
    }
}

/// Why the end of a value was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The text ends before the value does; with more input it may be valid.
    Ended,
    /// The text is not JSON or exceeds a bound, whatever follows.
    Wrong,
}

type Skipped = Result<usize, Stop>;

// Each of these functions gets the offset where something must begin, and returns where it ends.

fn byte(bytes: &[u8], at: usize) -> Result<u8, Stop> {
    bytes.get(at).copied().ok_or(Stop::Ended)
}

/// Also returns how many of the `left` values remain.
fn skip_value(
    bytes: &[u8],
    mut at: usize,
    depth: usize,
    mut left: usize,
) -> Result<(usize, usize), Stop> {
    debug_assert!(depth <= 128, "a bit for each");
    // The number of open arrays and objects, and one bit for each, the innermost lowest: whether it is an object.
    let (mut open, mut objects) = (0, 0_u128);
    loop {
        left = left.checked_sub(1).ok_or(Stop::Wrong)?;
        at = match byte(bytes, at)? {
            b'"' => skip_string(bytes, at)?,
            b't' => skip_word(bytes, at, b"true")?,
            b'f' => skip_word(bytes, at, b"false")?,
            b'n' => skip_word(bytes, at, b"null")?,
            opening @ (b'[' | b'{') => {
                if open == depth {
                    return Err(Stop::Wrong);
                }
                at = skip_space(bytes, at + 1);
                // In ASCII, a closing bracket follows two places after its opening one.
                if byte(bytes, at)? == opening + 2 {
                    at + 1
                } else {
                    let is_object = opening == b'{';
                    (open, objects) = (open + 1, objects << 1 | u128::from(is_object));
                    if is_object {
                        at = skip_key(bytes, at)?;
                    }
                    continue;
                }
            }
            _ => skip_number(bytes, at)?,
        };
        // A value has ended, which may also end the array or object that contains it.
        loop {
            if open == 0 {
                return Ok((at, left));
            }
            at = skip_space(bytes, at);
            let is_object = objects & 1 == 1;
            match byte(bytes, at)? {
                b',' => {
                    at = skip_space(bytes, at + 1);
                    if is_object {
                        at = skip_key(bytes, at)?;
                    }
                    break;
                }
                b']' if !is_object => {}
                b'}' if is_object => {}
                _ => return Err(Stop::Wrong),
            }
            (at, open, objects) = (at + 1, open - 1, objects >> 1);
        }
    }
}

/// A key, its colon and the white space after it.
fn skip_key(bytes: &[u8], at: usize) -> Skipped {
    let colon = skip_space(bytes, skip_string(bytes, at)?);
    match byte(bytes, colon)? {
        b':' => Ok(skip_space(bytes, colon + 1)),
        _ => Err(Stop::Wrong),
    }
}

#[inline]
pub(super) fn skip_space(bytes: &[u8], at: usize) -> usize {
    // Usually there is none.
    match bytes.get(at) {
        Some(..=b' ') => skip_much_space(bytes, at),
        _ => at,
    }
}

/// Long runs are checked several bytes at a time.
#[inline(never)]
fn skip_much_space(bytes: &[u8], mut at: usize) -> usize {
    const STEP: usize = 16;
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    while bytes.get(at).is_some_and(is_space) {
        at += 1;
        while let Some(step) = bytes.get(at..at + STEP) {
            if !step.iter().fold(true, |all, byte| all & is_space(byte)) {
                break;
            }
            at += STEP;
        }
    }
    at
}

pub(super) fn skip_string(bytes: &[u8], at: usize) -> Skipped {
    if byte(bytes, at)? != b'"' {
        return Err(Stop::Wrong);
    }
    let mut at = at + 1;
    loop {
        match byte(bytes, at)? {
            b'"' => return Ok(at + 1),
            b'\\' => at = skip_escape(bytes, at + 1)?,
            byte if byte < b' ' => return Err(Stop::Wrong),
            _ => at += 1 + plain_bytes(&bytes[at + 1..]),
        }
    }
}

/// The number of bytes at the beginning of `bytes` that represent themselves in a string. Eight are checked at a time;
/// the last few bytes of the text are not included.
fn plain_bytes(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xFF;
    const HIGHS: u64 = ONES << 7;
    // Sets the high bit of each byte that is below `limit`, at most 128; above the first such byte some bits may be
    // wrong.
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGHS;
    let mut plain = 0;
    for step in bytes.chunks_exact(8) {
        let Ok(step) = <[u8; 8]>::try_from(step) else {
            unreachable!("chunks_exact gives eight bytes");
        };
        let word = u64::from_le_bytes(step);
        let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
        let special = below(word, u64::from(b' ')) | is(b'"') | is(b'\\');
        if special != 0 {
            return plain + special.trailing_zeros() as usize / 8;
        }
        plain += 8;
    }
    plain
}

/// The rest of an escape, after its backslash.
fn skip_escape(bytes: &[u8], at: usize) -> Skipped {
    match byte(bytes, at)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Ok(at + 1),
        b'u' => {
            for place in at + 1..at + 5 {
                if !byte(bytes, place)?.is_ascii_hexdigit() {
                    return Err(Stop::Wrong);
                }
            }
            Ok(at + 5)
        }
        _ => Err(Stop::Wrong),
    }
}

/// A number that reaches the end of the text ends there.
pub(super) fn skip_number(bytes: &[u8], at: usize) -> Skipped {
    let at = match byte(bytes, at)? {
        b'-' if byte(bytes, at + 1)? == b'0' => at + 2,
        b'-' => skip_digits(bytes, at + 1)?,
        b'0' => at + 1,
        _ => skip_digits(bytes, at)?,
    };
    match bytes.get(at) {
        Some(b'.' | b'e' | b'E') => skip_fraction(bytes, at),
        _ => Ok(at),
    }
}

/// The fraction and the exponent of a number.
fn skip_fraction(bytes: &[u8], mut at: usize) -> Skipped {
    if bytes[at] == b'.' {
        at = skip_digits(bytes, at + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        let has_sign = matches!(bytes.get(at + 1), Some(b'+' | b'-'));
        at = skip_digits(bytes, at + 1 + usize::from(has_sign))?;
    }
    Ok(at)
}

/// At least one.
fn skip_digits(bytes: &[u8], begin: usize) -> Skipped {
    if !byte(bytes, begin)?.is_ascii_digit() {
        return Err(Stop::Wrong);
    }
    let mut at = begin + 1;
    while bytes.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    Ok(at)
}

pub(super) fn skip_word(bytes: &[u8], at: usize, word: &[u8]) -> Skipped {
    let rest = &bytes[at..];
    if rest.starts_with(word) {
        Ok(at + word.len())
    } else if word.starts_with(rest) {
        Err(Stop::Ended)
    } else {
        Err(Stop::Wrong)
    }
}
