//! The opening handshake over HTTP/1.1 (RFC 6455 section 4), both sides.
//!
//! [`parse`] reads one request head from bytes that may be incomplete and gives typed, checked fields. A head that
//! asks for a WebSocket is checked completely; any other request is returned with `upgrade` false, so that the
//! caller can answer health checks or refuse it. Bodies are never read: whatever is refused is answered with
//! `Connection: close`.
//!
//! Headers that decide something (`Host`, `Authorization`, `Origin`, the key, the version) must stand there
//! once: two proxies that pick different ones are how requests are smuggled.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use httparse::{EMPTY_HEADER, Header, Status};
use sha1_smol::Sha1;

use super::deflate::{DeflateOffer, DeflateParams};

/// The only version there is (section 4.1).
const VERSION: u8 = 13;
/// Hashed with the key (section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The most headers that [`Limits::headers`] can allow; bounds the table on the stack to 4 KiB.
const MOST_HEADERS: usize = 128;
/// Some clients leave bits behind the sixteenth byte; they carry nothing.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// How large a request head may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes from the first to the empty line. 16 KiB is twice what browsers with many cookies send.
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
    /// All `X-Forwarded-For` headers, joined with `, ` in the order sent.
    pub forwarded_for: Option<String>,
    /// `X-Request-Id`, if it is 1 to 128 visible characters.
    pub request_id: Option<String>,
    /// The base64 text of the sixteen-byte key, validated.
    pub key: Option<[u8; 24]>,
    /// Whether a WebSocket is asked for; then `key` and `version` are there.
    pub upgrade: bool,
    pub version: Option<u8>,
    /// The first offer of permessage-deflate that can be accepted.
    pub deflate: Option<DeflateOffer>,
    pub http10: bool,
}

impl Request {
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
    /// Well-formed as far as it goes; more bytes are needed.
    Partial,
    /// `consumed` bytes of the input are the head.
    Complete { request: Request, consumed: usize },
}

/// Why a request is refused before anybody looks at what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    Malformed,
    HeadTooLarge,
    NotText,
    Repeated,
    NoHost,
    HttpTooOld,
    NotGet,
    HasBody,
    BadVersion,
    BadKey,
    /// Client side: the server's answer is not what the key asks for.
    BadAnswer,
}

impl HandshakeError {
    /// The HTTP status to answer with.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::NotGet => 405,
            Self::BadVersion => 426,
            Self::HeadTooLarge => 431,
            _ => 400,
        }
    }

    /// A short text that is safe to show.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "malformed request head",
            Self::HeadTooLarge => "request head too large",
            Self::NotText => "header is not UTF-8",
            Self::Repeated => "header given twice",
            Self::NoHost => "Host is missing",
            Self::HttpTooOld => "a WebSocket needs HTTP/1.1",
            Self::NotGet => "a WebSocket is opened with GET",
            Self::HasBody => "a WebSocket request has no body",
            Self::BadVersion => "Sec-WebSocket-Version must be 13",
            Self::BadKey => "Sec-WebSocket-Key must be sixteen bytes in base64",
            Self::BadAnswer => "the server's answer is not a WebSocket handshake",
        }
    }

    /// Headers that the answer must carry.
    #[must_use]
    pub const fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::NotGet => &[("Allow", "GET")],
            Self::BadVersion => &[("Sec-WebSocket-Version", "13"), ("Upgrade", "websocket")],
            _ => &[],
        }
    }
}

impl std::fmt::Display for HandshakeError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.reason())
    }
}

impl std::error::Error for HandshakeError {}

/// Reads a request head at the start of `input`; what follows it is not looked at.
///
/// # Errors
/// See [`HandshakeError`]. A head that is too large is found out at the limit, complete or not.
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
        forwarded_for: headers.join("x-forwarded-for")?,
        request_id: headers
            .find_one("x-request-id")?
            .filter(|id| is_request_id(id))
            .map(str::to_owned),
        upgrade: headers.has_token("upgrade", "websocket")?
            && headers.has_token("connection", "upgrade")?,
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

/// Checks what a client must send to open a WebSocket (section 4.2.1).
fn read_upgrade(request: &mut Request, headers: &Headers<'_>) -> Result<(), HandshakeError> {
    if request.method != "GET" {
        return Err(HandshakeError::NotGet);
    }
    if request.http10 {
        return Err(HandshakeError::HttpTooOld);
    }
    if headers.join("transfer-encoding")?.is_some()
        || headers
            .find_one("content-length")?
            .is_some_and(|n| n != "0")
    {
        return Err(HandshakeError::HasBody);
    }
    if headers.find_one("sec-websocket-version")? != Some("13") {
        return Err(HandshakeError::BadVersion);
    }
    let key = headers
        .find_one("sec-websocket-key")?
        .ok_or(HandshakeError::BadKey)?;
    let text: [u8; 24] = key
        .as_bytes()
        .try_into()
        .map_err(|_| HandshakeError::BadKey)?;
    if BASE64
        .decode(text)
        .map_err(|_| HandshakeError::BadKey)?
        .len()
        != 16
    {
        return Err(HandshakeError::BadKey);
    }
    request.key = Some(text);
    request.version = Some(VERSION);
    request.deflate = headers
        .join("sec-websocket-extensions")?
        .and_then(|value| DeflateOffer::find(&value));
    Ok(())
}

/// Splits the request target; the absolute form names the authority itself (RFC 9112 section 3.2.2).
fn split_target(target: &str) -> Result<(Option<String>, String, Option<String>), HandshakeError> {
    let (authority, rest) = if target.starts_with('/') {
        (None, target)
    } else {
        let schemes = ["http://", "https://", "ws://", "wss://"];
        let rest = schemes
            .iter()
            .find_map(|scheme| target.strip_prefix(scheme))
            .ok_or(HandshakeError::Malformed)?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        (Some(rest[..end].to_owned()), &rest[end..])
    };
    let (path, query) = rest
        .split_once('?')
        .map_or((rest, None), |(path, query)| (path, Some(query.to_owned())));
    let path = if path.is_empty() { "/" } else { path };
    Ok((authority, path.to_owned(), query))
}

fn is_request_id(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The header lines of a head, looked up without regard to case.
struct Headers<'a>(&'a [Header<'a>]);

impl<'a> Headers<'a> {
    fn all(&self, name: &str) -> impl Iterator<Item = Result<&'a str, HandshakeError>> {
        let named = self
            .0
            .iter()
            .filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.map(|header| {
            std::str::from_utf8(header.value)
                .map(str::trim)
                .map_err(|_| HandshakeError::NotText)
        })
    }

    fn find_one(&self, name: &str) -> Result<Option<&'a str>, HandshakeError> {
        let mut values = self.all(name);
        let first = values.next().transpose()?;
        if values.next().is_some() {
            return Err(HandshakeError::Repeated);
        }
        Ok(first)
    }

    /// All values of a list header in one (RFC 9110 section 5.3).
    fn join(&self, name: &str) -> Result<Option<String>, HandshakeError> {
        let values = self.all(name).collect::<Result<Vec<_>, _>>()?;
        Ok((!values.is_empty()).then(|| values.join(", ")))
    }

    fn has_token(&self, name: &str, token: &str) -> Result<bool, HandshakeError> {
        for value in self.all(name) {
            if value?
                .split(',')
                .any(|element| element.trim().eq_ignore_ascii_case(token))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let (high, low) = (bytes.next().and_then(hex)?, bytes.next().and_then(hex)?);
                high << 4 | low
            }
            _ => byte,
        });
    }
    String::from_utf8(out).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

/// The value of `Sec-WebSocket-Accept` for a key (section 4.2.2).
fn accept_value(key: &[u8; 24]) -> String {
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(GUID);
    BASE64.encode(hash.digest().bytes())
}

/// Appends the 101 that opens the WebSocket, with `extra` headers.
///
/// A request that asked for no WebSocket is answered 400 instead; callers look at `upgrade` first.
pub fn accept(
    request: &Request,
    deflate: Option<&DeflateParams>,
    extra: &[(&str, &str)],
    out: &mut Vec<u8>,
) {
    let Some(key) = &request.key else {
        return refuse(400, &[], b"", out);
    };
    out.extend_from_slice(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    );
    push_header("Sec-WebSocket-Accept", &accept_value(key), out);
    if let Some(params) = deflate {
        out.extend_from_slice(b"Sec-WebSocket-Extensions: ");
        params.write(out);
        out.extend_from_slice(b"\r\n");
    }
    for (name, value) in extra {
        push_header(name, value, out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends any other answer, after which the connection is closed.
pub fn refuse(status: u16, headers: &[(&str, &str)], body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("HTTP/1.1 {status} {}\r\n", phrase(status)).as_bytes());
    for (name, value) in headers {
        push_header(name, value, out);
    }
    push_header("Content-Length", &body.len().to_string(), out);
    out.extend_from_slice(b"Connection: close\r\n\r\n");
    out.extend_from_slice(body);
}

/// Appends a header line; a line break in it, which would begin another header, becomes a space.
fn push_header(name: &str, value: &str, out: &mut Vec<u8>) {
    let clean = |byte: u8| if byte.is_ascii_control() { b' ' } else { byte };
    out.extend(name.bytes().map(clean));
    out.extend_from_slice(b": ");
    out.extend(value.bytes().map(clean));
    out.extend_from_slice(b"\r\n");
}

const fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

/// What [`parse_response`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// More bytes are needed.
    Partial,
    /// The WebSocket is open; `consumed` bytes of the input are the head, the rest are frames.
    Open {
        deflate: Option<DeflateParams>,
        consumed: usize,
    },
    /// The server answered with another status than 101.
    Refused { status: u16 },
}

/// Appends a client's request to open a WebSocket. `key` is sixteen bytes in base64.
pub fn request(host: &str, path: &str, key: &[u8; 24], deflate: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("GET {path} HTTP/1.1\r\n").as_bytes());
    push_header("Host", host, out);
    out.extend_from_slice(
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n",
    );
    out.extend_from_slice(b"Sec-WebSocket-Key: ");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n");
    if deflate {
        push_header(
            "Sec-WebSocket-Extensions",
            "permessage-deflate; server_no_context_takeover",
            out,
        );
    }
    out.extend_from_slice(b"\r\n");
}

/// Reads the server's answer to [`request`] (section 4.1, client requirements).
///
/// # Errors
/// [`HandshakeError::HeadTooLarge`], [`HandshakeError::Malformed`], or [`HandshakeError::BadAnswer`] for a 101 whose
/// headers do not match the key or that names an extension on other terms than ours.
pub fn parse_response(
    input: &[u8],
    key: &[u8; 24],
    limits: &Limits,
) -> Result<Answer, HandshakeError> {
    let mut table = [EMPTY_HEADER; MOST_HEADERS];
    let mut raw = httparse::Response::new(&mut table[..limits.headers.min(MOST_HEADERS)]);
    let window = &input[..input.len().min(limits.head_bytes)];
    let consumed = match raw.parse(window) {
        Ok(Status::Complete(consumed)) => consumed,
        Ok(Status::Partial) if input.len() < limits.head_bytes => return Ok(Answer::Partial),
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(HandshakeError::HeadTooLarge);
        }
        Err(_) => return Err(HandshakeError::Malformed),
    };
    let status = raw.code.unwrap_or_default();
    if status != 101 {
        return Ok(Answer::Refused { status });
    }
    let headers = Headers(raw.headers);
    let agrees = headers.has_token("upgrade", "websocket")?
        && headers.has_token("connection", "upgrade")?
        && headers.find_one("sec-websocket-accept")? == Some(&accept_value(key));
    let extensions = headers.join("sec-websocket-extensions")?;
    let deflate = extensions.as_deref().and_then(DeflateParams::find);
    if !agrees || extensions.is_some() != deflate.is_some() {
        return Err(HandshakeError::BadAnswer);
    }
    Ok(Answer::Open { deflate, consumed })
}
