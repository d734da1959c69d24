//! Finds in one pass what a JSON text must not contain: a name twice in an object, an integer that not every reader
//! keeps exact, and arrays and objects that are nested too deeply.
//!
//! The text is read once, and only the names of open objects are stored. The path of a value is built only for the
//! fault that is reported. Objects with few members compare their names one by one. Larger ones keep them in a set with
//! seeded hashes, so that no choice of names makes it slow.
//!
//! A text that arrives in parts is read by the same rules, value by value (`check_value`). An incomplete value is read
//! again from its beginning. A caller that waits until the text has doubled reads each byte twice on average.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::ControlFlow;

use super::json::{Stop, skip_number, skip_space, skip_string, skip_word};

/// The largest magnitude that every reader keeps exact (RFC 8259 section 6).
const LARGEST: &[u8] = b"9007199254740992";
/// Up to this number, names are compared faster than hashed.
const COMPARED: usize = 12;

/// The kind of fault. The path is known for all kinds but `Malformed` and `Ended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The text is not JSON; another reader reports where.
    Malformed,
    /// The path is that of the second member.
    Repeated,
    /// An integer beyond ±2^53.
    LargeInteger,
    /// The path is that of the first value that is too deep.
    TooDeep,
    /// The text ends before the value does.
    Ended,
}

impl From<Stop> for Kind {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Ended => Self::Ended,
            Stop::Wrong => Self::Malformed,
        }
    }
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    Name(Cow<'a, str>),
    Index(usize),
}

/// The first fault of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault<'a> {
    pub kind: Kind,
    pub place: Vec<Step<'a>>,
}

/// An open array or object.
struct Open<'a> {
    is_object: bool,
    /// Of an array, the element that is being read.
    index: usize,
    /// Where its names begin in the list of the names of all open objects.
    names_from: usize,
    /// The same names as a set, once they are many.
    set: Option<HashSet<Cow<'a, str>>>,
}

struct Reader<'a> {
    bytes: &'a [u8],
    /// Whether more of the text may follow.
    is_part: bool,
    open: Vec<Open<'a>>,
    names: Vec<Cow<'a, str>>,
}

/// Finds the first fault of a text in which arrays and objects may nest at most `depth` deep.
///
/// # Errors
/// The fault. A text that ends too early is malformed.
pub fn check(text: &[u8], depth: usize) -> Result<(), Fault<'_>> {
    let mut reader = Reader::new(text, false);
    reader.whole(depth).map_err(|kind| match kind {
        Kind::Ended => reader.fault(Kind::Malformed),
        kind => reader.fault(kind),
    })
}

/// Finds the first fault of the value that begins at `begin`, in which arrays and objects may nest at most `depth`
/// deep. Returns where the value ends, or `None` if the text ends before that is known.
///
/// # Errors
/// The fault. An incomplete value is not a fault.
pub fn check_value(text: &[u8], begin: usize, depth: usize) -> Result<Option<usize>, Fault<'_>> {
    let mut reader = Reader::new(text, true);
    match reader.value(begin, depth) {
        // More digits may follow.
        Ok(end) if end == text.len() && text[end - 1].is_ascii_digit() => Ok(None),
        Ok(end) if simdutf8::basic::from_utf8(&text[begin..end]).is_err() => {
            Err(reader.fault(Kind::Malformed))
        }
        Ok(end) => Ok(Some(end)),
        Err(Kind::Ended) => Ok(None),
        Err(kind) => Err(reader.fault(kind)),
    }
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8], is_part: bool) -> Self {
        Self {
            bytes,
            is_part,
            open: Vec::new(),
            names: Vec::new(),
        }
    }

    fn whole(&mut self, depth: usize) -> Result<(), Kind> {
        if simdutf8::basic::from_utf8(self.bytes).is_err() {
            return Err(Kind::Malformed);
        }
        let end = self.value(skip_space(self.bytes, 0), depth)?;
        if skip_space(self.bytes, end) == self.bytes.len() {
            Ok(())
        } else {
            Err(Kind::Malformed)
        }
    }

    /// Skips a value; returns where it ends.
    fn value(&mut self, mut at: usize, depth: usize) -> Result<usize, Kind> {
        loop {
            at = match self.byte(at)? {
                b'"' => skip_string(self.bytes, at)?,
                b't' => skip_word(self.bytes, at, b"true")?,
                b'f' => skip_word(self.bytes, at, b"false")?,
                b'n' => skip_word(self.bytes, at, b"null")?,
                opening @ (b'[' | b'{') => {
                    if self.open.len() == depth {
                        return Err(Kind::TooDeep);
                    }
                    at = skip_space(self.bytes, at + 1);
                    // In ASCII, a closing bracket follows two places after its opening one.
                    if self.byte(at)? == opening + 2 {
                        at + 1
                    } else {
                        at = self.begin(opening == b'{', at)?;
                        continue;
                    }
                }
                _ => {
                    let end = skip_number(self.bytes, at)?;
                    if is_large_integer(&self.bytes[at..end]) {
                        // A fraction or an exponent may follow.
                        let is_open = self.is_part && end == self.bytes.len();
                        return Err(if is_open {
                            Kind::Ended
                        } else {
                            Kind::LargeInteger
                        });
                    }
                    end
                }
            };
            match self.leave(at)? {
                ControlFlow::Continue(next) => at = next,
                ControlFlow::Break(end) => return Ok(end),
            }
        }
    }

    fn byte(&self, at: usize) -> Result<u8, Kind> {
        self.bytes.get(at).copied().ok_or(Kind::Ended)
    }

    /// Opens an array or object that is not empty; returns where its first value begins.
    fn begin(&mut self, is_object: bool, at: usize) -> Result<usize, Kind> {
        self.open.push(Open {
            is_object,
            index: 0,
            names_from: self.names.len(),
            set: None,
        });
        if is_object { self.name(at) } else { Ok(at) }
    }

    /// Skips what follows a value; returns where the next value begins, or where the outermost one has ended.
    fn leave(&mut self, mut at: usize) -> Result<ControlFlow<usize, usize>, Kind> {
        loop {
            let Some(open) = self.open.last_mut() else {
                return Ok(ControlFlow::Break(at));
            };
            at = skip_space(self.bytes, at);
            match self.bytes.get(at) {
                Some(b',') => {
                    open.index += 1;
                    let is_object = open.is_object;
                    at = skip_space(self.bytes, at + 1);
                    let next = if is_object { self.name(at)? } else { at };
                    return Ok(ControlFlow::Continue(next));
                }
                Some(b']') if !open.is_object => {}
                Some(b'}') if open.is_object => {}
                Some(_) => return Err(Kind::Malformed),
                None => return Err(Kind::Ended),
            }
            self.names.truncate(open.names_from);
            self.open.pop();
            at += 1;
        }
    }

    /// Reads a name and its colon; returns where the value begins.
    fn name(&mut self, at: usize) -> Result<usize, Kind> {
        let end = skip_string(self.bytes, at)?;
        let name = read_name(&self.bytes[at..end]).ok_or(Kind::Malformed)?;
        let Some(open) = self.open.last_mut() else {
            unreachable!("a name is read in an object that is open");
        };
        let known = &self.names[open.names_from..];
        let is_new = match &mut open.set {
            Some(set) => set.insert(name.clone()),
            None => !known.contains(&name),
        };
        if open.set.is_none() && known.len() == COMPARED {
            open.set = Some(known.iter().cloned().chain([name.clone()]).collect());
        }
        self.names.push(name);
        if !is_new {
            return Err(Kind::Repeated);
        }
        let colon = skip_space(self.bytes, end);
        match self.byte(colon)? {
            b':' => Ok(skip_space(self.bytes, colon + 1)),
            _ => Err(Kind::Malformed),
        }
    }

    /// The fault at the value or name that is being read.
    fn fault(self, kind: Kind) -> Fault<'a> {
        if matches!(kind, Kind::Malformed | Kind::Ended) {
            return Fault {
                kind,
                place: Vec::new(),
            };
        }
        let ends = self.open.iter().skip(1).map(|open| open.names_from);
        let ends: Vec<usize> = ends.chain([self.names.len()]).collect();
        let steps = self.open.iter().zip(ends);
        let place = steps.map(|(open, end)| {
            if open.is_object {
                Step::Name(self.names[end - 1].clone())
            } else {
                Step::Index(open.index)
            }
        });
        Fault {
            kind,
            place: place.collect(),
        }
    }
}

/// The value of a quoted name; `None` when it is not Unicode. Borrowed if it has no escapes.
fn read_name(json: &[u8]) -> Option<Cow<'_, str>> {
    let inner = &json[1..json.len() - 1];
    if inner.contains(&b'\\') {
        return serde_json::from_slice(json).ok().map(Cow::Owned);
    }
    std::str::from_utf8(inner).ok().map(Cow::Borrowed)
}

/// Whether a number of the right form is an integer beyond ±2^53.
fn is_large_integer(number: &[u8]) -> bool {
    let digits = number.strip_prefix(b"-").unwrap_or(number);
    if digits.len() < LARGEST.len() || !digits.iter().all(u8::is_ascii_digit) {
        return false;
    }
    digits.len() > LARGEST.len() || digits > LARGEST
}
