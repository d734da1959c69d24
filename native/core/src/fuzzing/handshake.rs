//! Request heads.

use crate::protocol::handshake::{
    self, Answer, HandshakeError, Head, Limits, Request, parse, parse_response,
};

/// A head that is complete is so however it was cut, and an answer to it is one that a client can read.
///
/// # Panics
/// When a rule is broken.
pub fn handshake(input: &[u8]) {
    let limits = Limits::default();
    let whole = parse(input, &limits);
    check_parts(input, &limits, &whole);
    match &whole {
        Ok(Head::Partial) => assert!(input.len() < limits.head_bytes),
        Ok(Head::Complete { request, consumed }) => {
            assert!(*consumed <= input.len().min(limits.head_bytes));
            check_request(request);
        }
        Err(error) => check_refusal(*error),
    }
    let narrow = Limits {
        head_bytes: 64,
        headers: 2,
    };
    if let Ok(Head::Complete { consumed, .. }) = parse(input, &narrow) {
        assert!(consumed <= 64);
    }
}

/// Bytes come in pieces: what is decided about a part holds for the whole.
fn check_parts(input: &[u8], limits: &Limits, whole: &Result<Head, HandshakeError>) {
    for end in (0..input.len()).filter(|&end| end % 7 == 0 || input[end] == b'\n') {
        match parse(&input[..end], limits) {
            Ok(Head::Partial) => {}
            Ok(complete) => assert_eq!(Ok(&complete), whole.as_ref()),
            Err(_) => assert!(whole.is_err()),
        }
    }
}

fn check_request(request: &Request) {
    assert!(request.path.starts_with('/') || request.path == "*");
    assert!(request.host.is_some() || request.http10);
    let _ = request.query_value("access_token");
    if !request.upgrade {
        return;
    }
    let key = request.key.expect("a WebSocket needs a key");
    let deflate = request.deflate.map(crate::protocol::DeflateOffer::accept);
    let id = request.request_id.as_deref().unwrap_or("none");
    let mut out = Vec::new();
    handshake::accept(request, deflate.as_ref(), &[("X-Request-Id", id)], &mut out);
    let answer = parse_response(&out, &key, &Limits::default()).expect("our own answer");
    let Answer::Open { consumed, .. } = answer else {
        panic!("an acceptance opens: {answer:?}");
    };
    assert_eq!(consumed, out.len());
}

fn check_refusal(error: HandshakeError) {
    let mut out = Vec::new();
    handshake::refuse(error.status(), error.headers(), b"{}", &mut out);
    assert!((400..600).contains(&error.status()));
    assert!(out.starts_with(b"HTTP/1.1 4") || out.starts_with(b"HTTP/1.1 5"));
}
