//! What a JSON text must not have, found in one pass: a name twice in an object, an integer that not every reader
//! keeps exact, too many arrays and objects inside each other.
//!
//! The text is looked at once and nothing is built of it but the names of the objects that are open. A place is put
//! into words only for the one fault that is found. Objects with few members compare their names one by one; larger
//! ones keep them in a set whose hashes are seeded, so that no choice of names makes it slow.

use std::borrow::Cow;
use std::collections::HashSet;

use super::json::{skip_number, skip_space, skip_string, skip_word};

/// The largest magnitude that every reader keeps exact (RFC 8259 section 6).
const LARGEST: &[u8] = b"9007199254740992";
/// So many names are compared faster than hashed.
const COMPARED: usize = 12;

/// What is wrong with a text; for each but `Malformed` the place is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is no JSON; another reader says where.
    Malformed,
    /// The place is that of the second member.
    Repeated,
    /// An integer beyond ±2^53.
    LargeInteger,
    /// The place is that of the value which is one too deep.
    TooDeep,
}

/// A step of a place.
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

/// An array or object that is open.
struct Open<'a> {
    is_object: bool,
    /// Of an array, the element that is being read.
    index: usize,
    /// Where its names begin among those of all open objects.
    names_from: usize,
    /// The same names, once they are many.
    set: Option<HashSet<Cow<'a, str>>>,
}

struct Reader<'a> {
    bytes: &'a [u8],
    open: Vec<Open<'a>>,
    names: Vec<Cow<'a, str>>,
}

/// Looks for the first fault of a text, of which at most `depth` arrays and objects may be inside each other.
///
/// # Errors
/// The fault.
pub fn check(text: &[u8], depth: usize) -> Result<(), Fault<'_>> {
    let mut reader = Reader {
        bytes: text,
        open: Vec::new(),
        names: Vec::new(),
    };
    reader.read(depth).map_err(|kind| reader.fault(kind))
}

impl<'a> Reader<'a> {
    fn read(&mut self, depth: usize) -> Result<(), Kind> {
        if simdutf8::basic::from_utf8(self.bytes).is_err() {
            return Err(Kind::Malformed);
        }
        let mut at = skip_space(self.bytes, 0);
        loop {
            at = match self.byte(at)? {
                b'"' => skip_string(self.bytes, at).ok_or(Kind::Malformed)?,
                b't' => skip_word(self.bytes, at, b"true").ok_or(Kind::Malformed)?,
                b'f' => skip_word(self.bytes, at, b"false").ok_or(Kind::Malformed)?,
                b'n' => skip_word(self.bytes, at, b"null").ok_or(Kind::Malformed)?,
                opening @ (b'[' | b'{') => {
                    if self.open.len() == depth {
                        return Err(Kind::TooDeep);
                    }
                    at = skip_space(self.bytes, at + 1);
                    // In ASCII, what closes is two behind what opens.
                    if self.byte(at)? == opening + 2 {
                        at + 1
                    } else {
                        at = self.begin(opening == b'{', at)?;
                        continue;
                    }
                }
                _ => {
                    let end = skip_number(self.bytes, at).ok_or(Kind::Malformed)?;
                    if is_large_integer(&self.bytes[at..end]) {
                        return Err(Kind::LargeInteger);
                    }
                    end
                }
            };
            match self.leave(at)? {
                Some(next) => at = next,
                None => return Ok(()),
            }
        }
    }

    fn byte(&self, at: usize) -> Result<u8, Kind> {
        self.bytes.get(at).copied().ok_or(Kind::Malformed)
    }

    /// Opens an array or object that is not empty; answers where its first value begins.
    fn begin(&mut self, is_object: bool, at: usize) -> Result<usize, Kind> {
        self.open.push(Open {
            is_object,
            index: 0,
            names_from: self.names.len(),
            set: None,
        });
        if is_object { self.name(at) } else { Ok(at) }
    }

    /// Passes what is behind a value; answers where the next one begins, or `None` at the end of the text.
    fn leave(&mut self, mut at: usize) -> Result<Option<usize>, Kind> {
        loop {
            at = skip_space(self.bytes, at);
            let Some(open) = self.open.last_mut() else {
                return if at == self.bytes.len() {
                    Ok(None)
                } else {
                    Err(Kind::Malformed)
                };
            };
            match self.bytes.get(at) {
                Some(b',') => {
                    open.index += 1;
                    let is_object = open.is_object;
                    at = skip_space(self.bytes, at + 1);
                    return if is_object { self.name(at) } else { Ok(at) }.map(Some);
                }
                Some(b']') if !open.is_object => {}
                Some(b'}') if open.is_object => {}
                _ => return Err(Kind::Malformed),
            }
            self.names.truncate(open.names_from);
            self.open.pop();
            at += 1;
        }
    }

    /// Takes a name and the colon behind it; answers where the value begins.
    fn name(&mut self, at: usize) -> Result<usize, Kind> {
        let end = skip_string(self.bytes, at).ok_or(Kind::Malformed)?;
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
        if kind == Kind::Malformed {
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

/// The meaning of a name with its quotes; `None` for one that is no Unicode. Without escapes it is borrowed.
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

/// How far into a value the bytes of a text have been looked at that may still be coming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// What has been looked at; an escape whose second byte is missing has not.
    pub at: usize,
    /// Arrays and objects that are open there.
    pub depth: usize,
    pub in_string: bool,
}

impl Passed {
    /// Goes on to the end of the value or of `bytes`, by strings and brackets alone.
    ///
    /// The value begins with a bracket or a quote; it is over when nothing is open after at least one byte.
    #[must_use]
    pub fn go_on(mut self, bytes: &[u8]) -> Self {
        while let Some(&byte) = bytes.get(self.at) {
            match (self.in_string, byte) {
                (true, b'\\') if self.at + 1 == bytes.len() => return self,
                (true, b'\\') => self.at += 1,
                (_, b'"') => self.in_string = !self.in_string,
                (false, b'{' | b'[') => self.depth += 1,
                (false, b'}' | b']') => self.depth = self.depth.saturating_sub(1),
                _ => {
                    self.at += 1;
                    continue;
                }
            }
            self.at += 1;
            if self.depth == 0 && !self.in_string {
                return self;
            }
        }
        self
    }
}
