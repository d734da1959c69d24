//! The opening handshake over HTTP/1.1 (RFC 6455 section 4), both sides.
//!
//! [`parse`] reads one request head from bytes that may be incomplete and returns typed, checked fields. A head that
//! asks for a WebSocket is checked completely; any other request is returned with `upgrade` false, so that the caller
//! can answer health checks or refuse it. Bodies are never read: every refusal has `Connection: close`.
//!
//! Headers that affect a decision (`Host`, `Authorization`, `Origin`, the key, the version) must not be repeated: two
//! proxies that pick different ones make request smuggling possible.

mod answer;
mod client;
mod error;
mod headers;
mod key;

use httparse::{EMPTY_HEADER, Status};

use self::headers::{Headers, percent_decode, split_target};
use self::key::parse_key;
use super::deflate::DeflateOffer;

pub(super) use answer::push_header;
pub use answer::{accept, refuse};
pub use client::{Answer, parse_response, request};
pub use error::HandshakeError;

/// The only version (section 4.1).
const VERSION: u8 = 13;
/// The most headers that [`Limits::headers`] can allow; bounds the table on the stack to 4 KiB.
const MOST_HEADERS: usize = 128;

/// The size limits of a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes from the first to the empty line. 16 KiB, as common HTTP servers allow.
    pub head_bytes: usize,
    /// Header lines, at most 128.
    pub headers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: 16 << 10,
            headers: 100,
        }
    }
}

/// A request head, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// Begins with `/`; still percent-encoded.
    pub path: String,
    /// What follows `?`; still percent-encoded.
    pub query: Option<String>,
    /// With the port, as sent; never absent in HTTP/1.1.
    pub host: Option<String>,
    pub origin: Option<String>,
    pub authorization: Option<String>,
    /// Where the client of an event stream stopped (WHATWG HTML, section 9.2.4).
    pub last_event_id: Option<String>,
    /// All `X-Forwarded-For` headers, joined with `, ` in the order sent.
    pub forwarded_for: Option<String>,
    /// `X-Request-Id`, if it is 1 to 128 visible characters.
    pub request_id: Option<String>,
    /// The base64 text of the sixteen-byte key, validated.
    pub key: Option<[u8; 24]>,
    /// Whether a WebSocket is requested; then `key` and `version` are present.
    pub upgrade: bool,
    pub version: Option<u8>,
    /// The first acceptable offer of permessage-deflate.
    pub deflate: Option<DeflateOffer>,
    /// Whether a body is announced; it is never read.
    pub has_body: bool,
    pub http10: bool,
}

impl Request {
    /// Bytes of its strings.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let optional = [
            &self.query,
            &self.host,
            &self.origin,
            &self.authorization,
            &self.last_event_id,
            &self.forwarded_for,
            &self.request_id,
        ];
        let optional = optional.into_iter().flatten();
        self.method.capacity()
            + self.path.capacity()
            + optional.map(String::capacity).sum::<usize>()
    }

    /// The names and values of the query in the order sent, decoded; `None` when one of them is malformed.
    #[must_use]
    pub fn query_pairs(&self) -> Option<Vec<(String, String)>> {
        let pairs = self.query.as_deref().unwrap_or_default().split('&');
        pairs
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                Some((percent_decode(name)?, percent_decode(value)?))
            })
            .collect()
    }

    /// The segment of the path between `before` and `after`, decoded; `None` when the path has another form, or the
    /// part between is not exactly one segment.
    #[must_use]
    pub fn path_segment(&self, before: &str, after: &str) -> Option<String> {
        let segment = self.path.strip_prefix(before)?.strip_suffix(after)?;
        // In a path a plus sign means itself.
        (!segment.is_empty() && !segment.contains('/'))
            .then(|| percent_decode(&segment.replace('+', "%2B")))
            .flatten()
    }

    /// The first value of `name` in the query, decoded; `None` when it is absent or not UTF-8.
    #[must_use]
    pub fn query_value(&self, name: &str) -> Option<String> {
        let query = self.query.as_deref()?;
        let mut pairs = query
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let (_, value) = pairs.find(|(key, _)| percent_decode(key).as_deref() == Some(name))?;
        percent_decode(value)
    }
}

/// What [`parse`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "made and taken apart once a connection, on the stack"
)]
pub enum Head {
    /// Well-formed so far; more bytes are needed.
    Partial,
    /// `consumed` bytes of the input are the head.
    Complete { request: Request, consumed: usize },
}

/// Reads a request head at the start of `input`; ignores what follows it.
///
/// # Errors
/// See [`HandshakeError`]. A head that is too large is refused at the limit, complete or not.
pub fn parse(input: &[u8], limits: &Limits) -> Result<Head, HandshakeError> {
    let mut table = [EMPTY_HEADER; MOST_HEADERS];
    let mut raw = httparse::Request::new(&mut table[..limits.headers.min(MOST_HEADERS)]);
    let window = &input[..input.len().min(limits.head_bytes)];
    match raw.parse(window) {
        Ok(Status::Complete(consumed)) => {
            let request = read(&raw)?;
            Ok(Head::Complete { request, consumed })
        }
        Ok(Status::Partial) if input.len() < limits.head_bytes => Ok(Head::Partial),
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            Err(HandshakeError::HeadTooLarge)
        }
        Err(_) => Err(HandshakeError::Malformed),
    }
}

fn read(raw: &httparse::Request<'_, '_>) -> Result<Request, HandshakeError> {
    let headers = Headers(raw.headers);
    let (authority, path, query) = split_target(raw.path.unwrap_or_default())?;
    let mut request = Request {
        method: raw.method.unwrap_or_default().to_owned(),
        path,
        query,
        host: authority.or(headers.find_one("host")?.map(str::to_owned)),
        origin: headers.find_one("origin")?.map(str::to_owned),
        authorization: headers.find_one("authorization")?.map(str::to_owned),
        last_event_id: headers.find_one("last-event-id")?.map(str::to_owned),
        forwarded_for: headers.join("x-forwarded-for")?,
        request_id: headers
            .find_one("x-request-id")?
            .filter(|id| is_request_id(id))
            .map(str::to_owned),
        upgrade: headers.has_token("upgrade", "websocket")?
            && headers.has_token("connection", "upgrade")?,
        has_body: headers.join("transfer-encoding")?.is_some()
            || headers
                .find_one("content-length")?
                .is_some_and(|n| n != "0"),
        http10: raw.version == Some(0),
        ..Request::default()
    };
    if request.host.is_none() && !request.http10 {
        return Err(HandshakeError::NoHost);
    }
    if request.upgrade {
        read_upgrade(&mut request, &headers)?;
    }
    Ok(request)
}

/// Checks the requirements for opening a WebSocket (section 4.2.1).
fn read_upgrade(request: &mut Request, headers: &Headers<'_>) -> Result<(), HandshakeError> {
    if request.method != "GET" {
        return Err(HandshakeError::NotGet);
    }
    if request.http10 {
        return Err(HandshakeError::HttpTooOld);
    }
    if request.has_body {
        return Err(HandshakeError::HasBody);
    }
    if headers.find_one("sec-websocket-version")? != Some("13") {
        return Err(HandshakeError::BadVersion);
    }
    let key = headers
        .find_one("sec-websocket-key")?
        .ok_or(HandshakeError::BadKey)?;
    request.key = Some(parse_key(key).ok_or(HandshakeError::BadKey)?);
    request.version = Some(VERSION);
    request.deflate = headers
        .join("sec-websocket-extensions")?
        .and_then(|value| DeflateOffer::find(&value));
    Ok(())
}

fn is_request_id(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}
