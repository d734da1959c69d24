//! The packed form of votes, impressions and sessions, used on links and in storage.
//!
//! Records follow each other without separators. A record is an unsigned LEB128 number, more such numbers if there are
//! several indexes, then the hash, 8 bytes little-endian. The low two bits of the first number give the kind. The other
//! bits are:
//!
//! * 0, impression, and 1, session: 0;
//! * 2, answer with one index: the index;
//! * 3, answer with several indexes: their count, 2 or more; that many numbers follow, strictly ascending.
//!
//! Every record has one encoding, so equal bytes are equal records. No number takes more than two bytes.

use std::fmt;

/// The highest index of an option.
pub const HIGHEST_INDEX: u16 = 999;

const HASH_BYTES: usize = 8;

/// One record; `bytes` is its encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    pub kind: Kind<'a>,
    /// Never 0.
    pub hash: u64,
    pub bytes: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// The poll was shown to a visitor.
    Impression,
    /// The poll was shown in a session.
    Session,
    /// An answer with one index.
    Single(u16),
    /// An answer with two indexes or more.
    Several(Several<'a>),
}

/// Indexes, ascending, still encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Several<'a>(&'a [u8]);

impl<'a> Several<'a> {
    /// Reads indexes from the [`bytes`](Self::bytes) of another value.
    pub(super) fn from_bytes(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The encoding of the indexes; equal for equal indexes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    pub fn indexes(self) -> impl Iterator<Item = u16> {
        let mut rest = self.0;
        std::iter::from_fn(move || read_number(&mut rest).ok())
    }
}

/// A malformed record; `offset` is where it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed {
    pub offset: usize,
    pub fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The bytes end within the record.
    Truncated,
    /// A number has more bytes than it needs.
    Overlong,
    /// A number is too large for an index or a count.
    TooLarge,
    /// An impression or a session with an index.
    HasIndex,
    /// Several indexes that are fewer than two.
    TooFew,
    /// An index that is not above the one before.
    NotAscending,
    /// The hash is 0.
    NoHash,
}

impl fmt::Display for Malformed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = match self.fault {
            Fault::Truncated => "is truncated",
            Fault::Overlong => "has an overlong number",
            Fault::TooLarge => "has a number that is too large",
            Fault::HasIndex => "has an index but is no answer",
            Fault::TooFew => "has several indexes but fewer than two",
            Fault::NotAscending => "has indexes that do not ascend",
            Fault::NoHash => "has the hash 0",
        };
        write!(out, "the record at offset {} {fault}", self.offset)
    }
}

impl std::error::Error for Malformed {}

/// Indexes that cannot be an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// The list is empty.
    Empty,
    /// This one is above [`HIGHEST_INDEX`].
    TooLarge(u16),
    /// This index is repeated.
    Repeated(u16),
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(out, "indexes must not be empty"),
            Self::TooLarge(index) => {
                write!(out, "indexes must be 0 to {HIGHEST_INDEX}, not {index}")
            }
            Self::Repeated(index) => write!(out, "the index {index} must not be repeated"),
        }
    }
}

impl std::error::Error for NoAnswer {}

/// Reads records one after another, without copying; ends after the first that is malformed.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Records<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            offset: 0,
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let offset = self.offset;
        match read_record(self.rest) {
            Ok(record) => {
                self.rest = &self.rest[record.bytes.len()..];
                self.offset += record.bytes.len();
                Some(Ok(record))
            }
            Err(fault) => {
                self.rest = &[];
                Some(Err(Malformed { offset, fault }))
            }
        }
    }
}

/// Appends an impression; the hash is not 0.
pub fn encode_impression(hash: u64, out: &mut Vec<u8>) {
    write_number(0, out);
    write_hash(hash, out);
}

/// Appends a session; the hash is not 0.
pub fn encode_session(hash: u64, out: &mut Vec<u8>) {
    write_number(1, out);
    write_hash(hash, out);
}

/// Appends an answer with these indexes, in any order; the hash is not 0.
///
/// # Errors
/// [`NoAnswer`], with nothing appended, when no record says this.
#[expect(clippy::missing_panics_doc, reason = "an index has ten bits")]
pub fn encode_answer(indexes: &[u16], hash: u64, out: &mut Vec<u8>) -> Result<(), NoAnswer> {
    let mut ascending = indexes.to_vec();
    ascending.sort_unstable();
    let highest = *ascending.last().ok_or(NoAnswer::Empty)?;
    if highest > HIGHEST_INDEX {
        return Err(NoAnswer::TooLarge(highest));
    }
    if let Some(pair) = ascending.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(NoAnswer::Repeated(pair[0]));
    }
    if ascending.len() == 1 {
        write_number(highest << 2 | 2, out);
    } else {
        let count = u16::try_from(ascending.len()).expect("at most a thousand differ");
        write_number(count << 2 | 3, out);
        for index in ascending {
            write_number(index, out);
        }
    }
    write_hash(hash, out);
    Ok(())
}

#[inline]
fn read_record(bytes: &[u8]) -> Result<Record<'_>, Fault> {
    let mut rest = bytes;
    let head = read_number(&mut rest)?;
    let number = head >> 2;
    let kind = match head & 3 {
        2 if number <= HIGHEST_INDEX => Kind::Single(number),
        2 => return Err(Fault::TooLarge),
        3 => Kind::Several(read_several(number, &mut rest)?),
        _ if number != 0 => return Err(Fault::HasIndex),
        0 => Kind::Impression,
        _ => Kind::Session,
    };
    let (hash, rest) = rest
        .split_first_chunk::<HASH_BYTES>()
        .ok_or(Fault::Truncated)?;
    let hash = u64::from_le_bytes(*hash);
    if hash == 0 {
        return Err(Fault::NoHash);
    }
    Ok(Record {
        kind,
        hash,
        bytes: &bytes[..bytes.len() - rest.len()],
    })
}

/// `count` ascending indexes from the beginning of `rest`.
fn read_several<'a>(count: u16, rest: &mut &'a [u8]) -> Result<Several<'a>, Fault> {
    if count < 2 {
        return Err(Fault::TooFew);
    }
    let bytes = *rest;
    let mut next = 0;
    for _ in 0..count {
        let index = read_number(rest)?;
        if index > HIGHEST_INDEX {
            return Err(Fault::TooLarge);
        }
        if index < next {
            return Err(Fault::NotAscending);
        }
        next = index + 1;
    }
    Ok(Several(&bytes[..bytes.len() - rest.len()]))
}

/// The number at the beginning of `rest`: 0 to 16,383, because no valid number needs a third byte.
#[inline]
fn read_number(rest: &mut &[u8]) -> Result<u16, Fault> {
    let (&low, after) = rest.split_first().ok_or(Fault::Truncated)?;
    *rest = after;
    if low < 0x80 {
        return Ok(low.into());
    }
    let (&high, after) = rest.split_first().ok_or(Fault::Truncated)?;
    *rest = after;
    match high {
        0 => Err(Fault::Overlong),
        1..0x80 => Ok(u16::from(low & 0x7f) | u16::from(high) << 7),
        _ => Err(Fault::TooLarge),
    }
}

/// A number of at most 14 bits.
fn write_number(number: u16, out: &mut Vec<u8>) {
    let [low, high] = [number & 0x7f, number >> 7].map(|part| part.to_le_bytes()[0]);
    if high == 0 {
        out.push(low);
    } else {
        out.extend_from_slice(&[low | 0x80, high]);
    }
}

fn write_hash(hash: u64, out: &mut Vec<u8>) {
    debug_assert_ne!(hash, 0, "the hasher makes none");
    out.extend_from_slice(&hash.to_le_bytes());
}
