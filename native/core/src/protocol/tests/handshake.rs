use proptest::prelude::*;

use crate::protocol::deflate::DeflateParams;
use crate::protocol::handshake::{self, Answer, HandshakeError, Head, Limits, Request};

const KEY: &[u8; 24] = b"dGhlIHNhbXBsZSBub25jZQ==";
const UPGRADE: &str = "Host: demo.localhost:8001\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn parse(text: &str) -> Result<Head, HandshakeError> {
    handshake::parse(text.as_bytes(), &Limits::default())
}

fn request(text: &str) -> Request {
    match parse(text) {
        Ok(Head::Complete { request, .. }) => request,
        other => panic!("{other:?}"),
    }
}

/// A WebSocket request with `changed` lines in place of the usual lines of the same name, and others added.
fn upgrade(changed: &str) -> Result<Head, HandshakeError> {
    let name = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let names: Vec<String> = changed.lines().map(name).collect();
    let kept = UPGRADE
        .lines()
        .filter(|line| !names.contains(&name(line)))
        .map(|line| format!("{line}\r\n"));
    let lines: String = kept
        .chain(changed.lines().map(|line| format!("{line}\r\n")))
        .collect();
    parse(&format!("GET /api/v1/ws HTTP/1.1\r\n{lines}\r\n"))
}

#[test]
fn a_websocket_request_is_read() {
    let text = format!(
        "GET /api/v1/ws?access_token=a%2Bb&x HTTP/1.1\r\n{UPGRADE}Origin: http://a.example\r\n\
         Authorization: Bearer t\r\nX-Forwarded-For: 10.0.0.1\r\nx-forwarded-for: 10.0.0.2\r\nX-Request-Id: r-1\r\n\
         Sec-WebSocket-Extensions: bad\r\nSec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\nrest"
    );
    let Ok(Head::Complete { request, consumed }) = parse(&text) else {
        panic!("complete")
    };
    assert_eq!(&text[consumed..], "rest");
    assert_eq!(
        (request.method.as_str(), request.path.as_str()),
        ("GET", "/api/v1/ws")
    );
    assert_eq!(request.query_value("access_token").as_deref(), Some("a+b"));
    assert_eq!(request.query_value("x").as_deref(), Some(""));
    assert_eq!(request.query_value("y"), None);
    assert_eq!(request.host.as_deref(), Some("demo.localhost:8001"));
    assert_eq!(request.origin.as_deref(), Some("http://a.example"));
    assert_eq!(request.authorization.as_deref(), Some("Bearer t"));
    assert_eq!(request.forwarded_for.as_deref(), Some("10.0.0.1, 10.0.0.2"));
    assert_eq!(request.request_id.as_deref(), Some("r-1"));
    assert_eq!(
        (request.key, request.version, request.upgrade),
        (Some(*KEY), Some(13), true)
    );
    assert!(request.deflate.is_some());
}

#[test]
fn other_requests_are_left_to_the_caller() {
    let read = request("HEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(
        (read.method.as_str(), read.upgrade, read.key),
        ("HEAD", false, None)
    );
    let old = request("GET / HTTP/1.0\r\n\r\n");
    assert!(old.http10 && old.host.is_none());
    let absolute = request("GET http://b:1?q=%zz HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(
        (absolute.host.as_deref(), absolute.path.as_str()),
        (Some("b:1"), "/")
    );
    assert_eq!(absolute.query_value("q"), None, "malformed");
}

#[test]
fn each_missing_part_is_refused_with_its_status() {
    let status = |changed: &str| upgrade(changed).map_err(HandshakeError::status).map(|_| ());
    assert_eq!(status(""), Ok(()));
    assert_eq!(status("Sec-WebSocket-Version: 12"), Err(426));
    assert_eq!(status("Sec-WebSocket-Key: dGhlIHNhbXBsZQ=="), Err(400));
    assert_eq!(
        status("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZSEh"),
        Err(400),
        "eighteen bytes"
    );
    assert_eq!(
        status("Sec-WebSocket-Key: !!!!IHNhbXBsZSBub25jZQ=="),
        Err(400)
    );
    assert_eq!(status("Content-Length: 1"), Err(400));
    assert_eq!(status("Content-Length: 0"), Ok(()));
    assert_eq!(status("Transfer-Encoding: chunked"), Err(400));
    assert_eq!(status("Host: a\nHost: b"), Err(400));
    assert_eq!(status("Authorization: a\nAuthorization: b"), Err(400));
    let post = parse(&format!("POST / HTTP/1.1\r\n{UPGRADE}\r\n"));
    assert_eq!(post, Err(HandshakeError::NotGet));
    assert_eq!(HandshakeError::NotGet.headers(), [("Allow", "GET")]);
    assert_eq!(HandshakeError::NotGet.name(), "method_not_allowed");
    assert_eq!(
        HandshakeError::BadVersion.headers()[0],
        ("Sec-WebSocket-Version", "13")
    );
    assert_eq!(
        parse(&format!("GET / HTTP/1.0\r\n{UPGRADE}\r\n")),
        Err(HandshakeError::HttpTooOld)
    );
    assert_eq!(parse("GET / HTTP/1.1\r\n\r\n"), Err(HandshakeError::NoHost));
    assert_eq!(
        parse("GET a HTTP/1.1\r\nHost: a\r\n\r\n"),
        Err(HandshakeError::Malformed)
    );
    assert_eq!(parse("\u{1}GET"), Err(HandshakeError::Malformed));
}

#[test]
fn the_size_of_a_head_is_bounded() {
    let limits = Limits {
        head_bytes: 100,
        headers: 2,
    };
    let head = |filler: usize| {
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "x".repeat(filler)
        )
    };
    let fixed = head(0).len();
    let parse = |text: &str| handshake::parse(text.as_bytes(), &limits);
    assert!(matches!(
        parse(&head(100 - fixed)),
        Ok(Head::Complete { consumed: 100, .. })
    ));
    assert_eq!(parse(&head(101 - fixed)), Err(HandshakeError::HeadTooLarge));
    assert_eq!(parse(&head(500)[..99]), Ok(Head::Partial));
    assert_eq!(parse(&head(500)[..100]), Err(HandshakeError::HeadTooLarge));
    assert_eq!(
        parse("GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\nY: 1\r\n\r\n"),
        Err(HandshakeError::HeadTooLarge)
    );
}

#[test]
fn request_ids_are_short_and_visible() {
    let id = |value: &str| {
        request(&format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: {value}\r\n\r\n"
        ))
        .request_id
    };
    assert_eq!(id(&"x".repeat(128)).map(|id| id.len()), Some(128));
    assert_eq!(id(&"x".repeat(129)), None);
    assert_eq!(id("a b"), None);
    assert_eq!(id(""), None);
}

#[test]
fn the_answer_is_that_of_the_rfc() {
    let Ok(Head::Complete { request, .. }) = upgrade("") else {
        panic!("complete")
    };
    let mut out = Vec::new();
    handshake::accept(
        &request,
        None,
        &[("X-Request-Id", "1\r\nSet-Cookie: a")],
        &mut out,
    );
    let text = String::from_utf8(out).expect("ASCII");
    assert_eq!(
        text,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nX-Request-Id: 1  Set-Cookie: a\r\n\r\n"
    );
}

#[test]
fn a_refusal_closes_the_connection() {
    let mut out = Vec::new();
    handshake::refuse(426, HandshakeError::BadVersion.headers(), b"{}", &mut out);
    let text = String::from_utf8(out).expect("ASCII");
    assert!(text.starts_with("HTTP/1.1 426 Upgrade Required\r\nSec-WebSocket-Version: 13\r\n"));
    assert!(text.ends_with("Content-Length: 2\r\nConnection: close\r\n\r\n{}"));
}

#[test]
fn both_sides_agree() {
    let limits = Limits::default();
    for deflate in [false, true] {
        let (mut hello, mut answer) = (Vec::new(), Vec::new());
        handshake::request("a:1", "/ws", KEY, deflate, &mut hello);
        let Ok(Head::Complete { request, consumed }) = handshake::parse(&hello, &limits) else {
            panic!("complete")
        };
        assert_eq!(
            (consumed, request.deflate.is_some()),
            (hello.len(), deflate)
        );
        let params = request.deflate.map(crate::protocol::DeflateOffer::accept);
        handshake::accept(&request, params.as_ref(), &[], &mut answer);
        assert_eq!(
            handshake::parse_response(&answer[..50], KEY, &limits),
            Ok(Answer::Partial)
        );
        let deflate = deflate.then(DeflateParams::default);
        let open = Answer::Open {
            deflate,
            consumed: answer.len(),
        };
        assert_eq!(handshake::parse_response(&answer, KEY, &limits), Ok(open));
        let other = b"eGhlIHNhbXBsZSBub25jZQ==";
        assert_eq!(
            handshake::parse_response(&answer, other, &limits),
            Err(HandshakeError::BadAnswer)
        );
    }
    let mut refusal = Vec::new();
    handshake::refuse(503, &[], b"", &mut refusal);
    assert_eq!(
        handshake::parse_response(&refusal, KEY, &limits),
        Ok(Answer::Refused { status: 503 })
    );
}

proptest! {
    #[test]
    fn random_heads_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), text in "[ -~\r\n]{0,200}") {
        let _ = handshake::parse(&bytes, &Limits::default());
        let _ = handshake::parse(text.as_bytes(), &Limits::default());
        let _ = upgrade(&text);
        let _ = handshake::parse_response(&bytes, KEY, &Limits::default());
    }

    #[test]
    fn a_head_is_partial_until_its_last_byte(cut in any::<prop::sample::Index>()) {
        let text = format!("GET /api/v1/ws HTTP/1.1\r\n{UPGRADE}\r\n");
        prop_assert_eq!(parse(&text[..cut.index(text.len())]), Ok(Head::Partial));
    }
}
