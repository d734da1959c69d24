//! Where the values of a JSON text begin and end.
//!
//! One pass, without recursion and without a copy: a message of the largest size holds an event loop for no longer
//! than its bytes take to be looked at once. The grammar is that of RFC 8259. What an escape in a string means and how
//! large a number is are not looked at.

/// How many bytes are looked at together.
const STEP: usize = 16;

/// Reads a text from its beginning. Each method answers `None` where the text is no JSON; then nothing more can be read.
#[derive(Clone, Debug)]
pub struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The next byte that is no white space, which is not taken.
    pub fn peek(&mut self) -> Option<u8> {
        let next = self.byte()?;
        if next > b' ' {
            return Some(next);
        }
        self.pass(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
        self.byte()
    }

    /// Takes the next byte that is no white space, if it is this one.
    pub fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Whether only white space is left.
    pub fn is_over(&mut self) -> bool {
        self.peek().is_none()
    }

    /// Takes a value whose arrays and objects nest at most `depth` (up to 128) deep, and returns its text.
    pub fn value(&mut self, depth: usize) -> Option<&'a str> {
        debug_assert!(depth <= 128, "a bit for each");
        let first = self.peek()?;
        let begin = self.at;
        // How many arrays and objects are open, and for each a bit, the innermost lowest: whether it is an object.
        let (mut open, mut objects) = (0, 0_u128);
        let mut next = first;
        loop {
            match next {
                b'[' | b'{' => {
                    if open == depth {
                        return None;
                    }
                    self.at += 1;
                    // In ASCII, what closes is two behind what opens.
                    if !self.take(next + 2) {
                        (open, objects) = (open + 1, objects << 1 | u128::from(next == b'{'));
                        if next == b'{' {
                            self.key()?;
                        }
                        next = self.peek()?;
                        continue;
                    }
                }
                b'"' => self.string()?,
                b't' => self.word("true")?,
                b'f' => self.word("false")?,
                b'n' => self.word("null")?,
                _ => self.number()?,
            }
            // A value is over, and with it perhaps what it is the last of.
            loop {
                if open == 0 {
                    return Some(&self.text[begin..self.at]);
                }
                let is_object = objects & 1 == 1;
                if self.take(b',') {
                    if is_object {
                        self.key()?;
                    }
                    break;
                }
                if !self.take(if is_object { b'}' } else { b']' }) {
                    return None;
                }
                (open, objects) = (open - 1, objects >> 1);
            }
            next = self.peek()?;
        }
    }

    /// Takes the key of a member and the colon behind it; returns the key as it stands there, with its quotes.
    pub fn key(&mut self) -> Option<&'a str> {
        if self.peek()? != b'"' {
            return None;
        }
        let begin = self.at;
        self.string()?;
        let end = self.at;
        self.take(b':').then(|| &self.text[begin..end])
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Passes the bytes that belong, many at a time.
    fn pass(&mut self, belongs: impl Fn(u8) -> bool) {
        let rest = &self.text.as_bytes()[self.at..];
        let all = |step: &&[u8]| step.iter().fold(true, |all, &byte| all & belongs(byte));
        let whole = rest.chunks_exact(STEP).take_while(all).count() * STEP;
        let tail = &rest[whole..];
        self.at += whole + tail.iter().take_while(|&&byte| belongs(byte)).count();
    }

    fn string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            self.pass(|byte| byte != b'"' && byte != b'\\' && byte >= b' ');
            let special = self.byte()?;
            self.at += 1;
            match special {
                b'"' => return Some(()),
                b'\\' => self.escape()?,
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        let letter = self.byte()?;
        self.at += 1;
        match letter {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                let digits = self.text.as_bytes().get(self.at..self.at + 4)?;
                self.at += 4;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(())
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<()> {
        self.at += usize::from(self.byte() == Some(b'-'));
        if self.byte() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.at += 1;
            self.at += usize::from(matches!(self.byte(), Some(b'+' | b'-')));
            self.digits()?;
        }
        Some(())
    }

    /// At least one.
    fn digits(&mut self) -> Option<()> {
        let begin = self.at;
        while self.byte().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > begin).then_some(())
    }

    fn word(&mut self, word: &str) -> Option<()> {
        let is_it = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        is_it.then(|| self.at += word.len())
    }
}
