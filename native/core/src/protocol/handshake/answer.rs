//! The server's response: 101, or any other HTTP response.

use super::Request;
use super::key::accept_value;
use crate::protocol::deflate::DeflateParams;

/// Appends the 101 that opens the WebSocket, with `extra` headers.
///
/// A request that does not ask for a WebSocket is answered with 400; callers check `upgrade` first.
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

/// Appends any other response, after which the connection is closed.
pub fn refuse(status: u16, headers: &[(&str, &str)], body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("HTTP/1.1 {status} {}\r\n", phrase(status)).as_bytes());
    for (name, value) in headers {
        push_header(name, value, out);
    }
    push_header("X-Content-Type-Options", "nosniff", out);
    // RFC 9110, section 8.6: 204 has none.
    if status != 204 {
        push_header("Content-Length", &body.len().to_string(), out);
    }
    out.extend_from_slice(b"Connection: close\r\n\r\n");
    out.extend_from_slice(body);
}

/// Appends a header line. A line break in the value would begin another header, so it becomes a space.
pub(in crate::protocol) fn push_header(name: &str, value: &str, out: &mut Vec<u8>) {
    let clean = |byte: u8| if byte.is_ascii_control() { b' ' } else { byte };
    out.extend(name.bytes().map(clean));
    out.extend_from_slice(b": ");
    out.extend(value.bytes().map(clean));
    out.extend_from_slice(b"\r\n");
}

const fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
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
