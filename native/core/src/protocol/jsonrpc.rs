//! The JSON-RPC 2.0 envelope: method, params, and the form of replies.
//!
//! [`parse`] borrows from the text: ids and params stay the JSON text that the client sent, so an id is returned
//! unchanged and params are parsed once, by the code that runs the method. The rules are those of the JSON-RPC 2.0
//! specification, sections 4 to 6:
//!
//! * text that is not JSON, is nested deeper than [`DEPTH`] or has more than [`VALUES`] values is a parse error
//!   (-32700);
//! * JSON that is not a request is an invalid request (-32600), with the id if it can be determined, else `null`;
//! * a request without `id` is a notification and gets no answer; `"id": null` is a request;
//! * `params` is an object or an array; `null` is the same as no `params`;
//! * a batch is an array of 1 to [`BATCH`] requests. An element that is not a request gets an error of its own. An
//!   empty array, or one that is too long, gets one error; a batch that is too long is not read to its end.
//!
//! Unknown members of the envelope are ignored, as in most implementations.

use std::borrow::Cow;
use std::fmt;

use super::json::Scanner;

/// The most requests in one batch. A larger one would let one message block an event loop.
pub const BATCH: usize = 100;
/// The deepest nesting of arrays and objects, the batch's own array included.
pub const DEPTH: usize = 128;
/// The most values in one message; arrays and objects count too. A megabyte of typical events has less than half as
/// many. A megabyte of small values only would take several times as long to read.
pub const VALUES: usize = 1 << 17;
/// The longest id in bytes as JSON; it is kept until the answer is sent.
pub const ID_BYTES: usize = 256;

pub const PARSE_ERROR: i32 = -32700;
pub const INVALID_REQUEST: i32 = -32600;
pub const INVALID_PARAMS: i32 = -32602;

/// One request or notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// JSON text of a string, a number or `null`; `None` for a notification.
    pub id: Option<&'a str>,
    pub method: Cow<'a, str>,
    /// JSON text of an object or an array.
    pub params: Option<&'a str>,
}

/// A request that cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection<'a> {
    /// JSON text; `null` when the id is unknown.
    pub id: &'a str,
    pub fault: Fault,
}

/// What is wrong with a message, or with an element of a batch. Its text has nothing that JSON has to escape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not JSON, or has too many values or levels.
    Text,
    EmptyBatch,
    LongBatch,
    NoObject,
    RepeatedMember,
    Id,
    Version,
    Method,
    Params,
}

impl Fault {
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Text => PARSE_ERROR,
            _ => INVALID_REQUEST,
        }
    }

    /// The code in words, as the specification has them.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Text => "Parse error",
            _ => "Invalid Request",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => write!(
                out,
                "the message is not JSON, is nested deeper than {DEPTH} levels or has more than {VALUES} values"
            ),
            Self::EmptyBatch => out.write_str("a batch has at least one call"),
            Self::LongBatch => write!(out, "a batch has at most {BATCH} calls"),
            Self::NoObject => out.write_str("a call is an object"),
            Self::RepeatedMember => out.write_str("a call has each member once"),
            Self::Id => write!(
                out,
                "id: must be a string, a number or null, of at most {ID_BYTES} bytes as JSON"
            ),
            Self::Version => out.write_str("jsonrpc: must be the string 2.0"),
            Self::Method => out.write_str("method: must be a string"),
            Self::Params => out.write_str("params: must be an object or an array"),
        }
    }
}

/// The requests of one message, in the order sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    Single(Call<'a>),
    /// 1 to [`BATCH`] elements. Their replies are sent together in one array, or not at all when all are notifications.
    Batch(Vec<Element<'a>>),
}

/// One element of a batch.
pub type Element<'a> = Result<Call<'a>, Rejection<'a>>;

/// Reads the envelope of one text message.
///
/// # Errors
/// The single reply to the whole message.
pub fn parse(text: &str) -> Result<Incoming<'_>, Rejection<'_>> {
    let mut scanner = Scanner::new(text, VALUES);
    let incoming = if scanner.take(b'[') {
        let calls = take_batch(&mut scanner)?;
        (!calls.is_empty())
            .then_some(Incoming::Batch(calls))
            .ok_or(unnamed(Fault::EmptyBatch))
    } else {
        let call = take_call(&mut scanner, DEPTH).ok_or(PARSE_REJECTION)?;
        call.map(Incoming::Single)
    };
    if scanner.is_over() {
        incoming
    } else {
        Err(PARSE_REJECTION)
    }
}

const PARSE_REJECTION: Rejection<'static> = unnamed(Fault::Text);

const fn unnamed(fault: Fault) -> Rejection<'static> {
    Rejection { id: "null", fault }
}

/// Reads the elements of a batch after its opening bracket; elements beyond [`BATCH`] are not read.
fn take_batch<'a>(scanner: &mut Scanner<'a>) -> Result<Vec<Element<'a>>, Rejection<'a>> {
    let mut calls = Vec::new();
    if scanner.take(b']') {
        return Ok(calls);
    }
    loop {
        calls.push(take_call(scanner, DEPTH - 1).ok_or(PARSE_REJECTION)?);
        if scanner.take(b']') {
            return Ok(calls);
        }
        if !scanner.take(b',') {
            return Err(PARSE_REJECTION);
        }
        if calls.len() == BATCH {
            return Err(unnamed(Fault::LongBatch));
        }
    }
}

/// The members of a request as JSON text, before their types are checked.
#[derive(Default)]
struct Envelope<'a> {
    jsonrpc: Option<&'a str>,
    id: Option<&'a str>,
    method: Option<&'a str>,
    params: Option<&'a str>,
}

impl<'a> Envelope<'a> {
    fn member(&mut self, key: &str) -> Option<&mut Option<&'a str>> {
        match parse_key(key)?.as_ref() {
            "jsonrpc" => Some(&mut self.jsonrpc),
            "id" => Some(&mut self.id),
            "method" => Some(&mut self.method),
            "params" => Some(&mut self.params),
            _ => None,
        }
    }
}

/// Reads a value that should be a request; `None` when it is not JSON or is nested deeper than `depth`.
fn take_call<'a>(scanner: &mut Scanner<'a>, depth: usize) -> Option<Element<'a>> {
    if scanner.peek()? != b'{' {
        scanner.value(depth)?;
        return Some(Err(unnamed(Fault::NoObject)));
    }
    let (mut envelope, mut is_clear) = (Envelope::default(), true);
    scanner.take(b'{');
    let mut is_over = scanner.take(b'}');
    while !is_over {
        let key = scanner.key()?;
        let value = scanner.value(depth - 1)?;
        if let Some(member) = envelope.member(key) {
            // Implementations disagree on which of two equal names counts.
            is_clear &= member.replace(value).is_none();
        }
        is_over = scanner.take(b'}');
        if !is_over && !scanner.take(b',') {
            return None;
        }
    }
    if !is_clear {
        return Some(Err(unnamed(Fault::RepeatedMember)));
    }
    if envelope.id.is_some_and(|id| !is_id(id)) {
        return Some(Err(unnamed(Fault::Id)));
    }
    let id = envelope.id.unwrap_or("null");
    Some(read_call(&envelope).map_err(|fault| Rejection { id, fault }))
}

fn read_call<'a>(envelope: &Envelope<'a>) -> Result<Call<'a>, Fault> {
    let version = envelope.jsonrpc.and_then(parse_string);
    if version.as_deref() != Some("2.0") {
        return Err(Fault::Version);
    }
    let method = envelope.method.and_then(parse_string);
    let method = method.ok_or(Fault::Method)?;
    let params = match envelope.params {
        None | Some("null") => None,
        Some(params) if params.starts_with(['{', '[']) => Some(params),
        Some(_) => return Err(Fault::Params),
    };
    let id = envelope.id;
    Ok(Call { id, method, params })
}

/// A key that may be one of the envelope's, which have at most seven letters; escaped, a letter takes at most six
/// bytes.
fn parse_key(key: &str) -> Option<Cow<'_, str>> {
    if key.len() > 2 + 6 * "jsonrpc".len() {
        return None;
    }
    parse_string(key)
}

/// The value of a JSON string; `None` when it is not a string, or not Unicode. Borrowed if it has no escapes.
fn parse_string(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if inner.as_bytes().contains(&b'\\') {
        return serde_json::from_str(json).ok().map(Cow::Owned);
    }
    Some(Cow::Borrowed(inner))
}

/// Whether a well-formed JSON value may be an id.
fn is_id(text: &str) -> bool {
    text.len() <= ID_BYTES
        && (text == "null"
            || text.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit()))
}

/// Appends the reply to a request; `id` and `result` are JSON text.
pub fn write_result(id: &str, result: &[u8], out: &mut Vec<u8>) {
    write_answer(id, b"result", result, out);
}

/// Appends an error reply whose error object is JSON text.
pub fn write_error_object(id: &str, error: &[u8], out: &mut Vec<u8>) {
    write_answer(id, b"error", error, out);
}

/// Appends an error reply; `data` is JSON text.
pub fn write_error(id: &str, code: i32, message: &str, data: Option<&[u8]>, out: &mut Vec<u8>) {
    write_error_object(id, &build_error(code, message, data), out);
}

/// Appends the reply to a request that cannot be executed; `data` is JSON text.
pub fn write_rejection(rejection: &Rejection<'_>, data: &[u8], out: &mut Vec<u8>) {
    let fault = rejection.fault;
    write_error(rejection.id, fault.code(), fault.message(), Some(data), out);
}

/// Appends a notification; `params` is JSON text.
pub fn write_notification(method: &str, params: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","method":"#);
    write_string(method, out);
    out.extend_from_slice(br#","params":"#);
    out.extend_from_slice(params);
    out.push(b'}');
}

/// An error object as JSON text.
#[must_use]
pub fn build_error(code: i32, message: &str, data: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(48 + message.len() + data.map_or(0, <[u8]>::len));
    out.extend_from_slice(format!("{{\"code\":{code},\"message\":").as_bytes());
    write_string(message, &mut out);
    if let Some(data) = data {
        out.extend_from_slice(b",\"data\":");
        out.extend_from_slice(data);
    }
    out.push(b'}');
    out
}

fn write_answer(id: &str, member: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.reserve(40 + id.len() + value.len());
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"");
    out.extend_from_slice(member);
    out.extend_from_slice(b"\":");
    out.extend_from_slice(value);
    out.push(b'}');
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    if serde_json::to_writer(&mut *out, text).is_err() {
        unreachable!("writing to memory does not fail, and any str is a JSON string");
    }
}
