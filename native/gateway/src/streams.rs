//! A program as a stream of Server-Sent Events: the request, and the right to it.
//!
//! Guide. `GET /api/v1/programs/{programId}/events/stream` is `subscribe` for clients that WebSocket cannot reach. The
//! same decisions are made in the same order: path and method, account, origin, token ([`super::admission`]), then the
//! position, the rights, and the log ([`super::subscribe`]). What native code cannot decide becomes the same upcall, a
//! call of `subscribe`. Until it is answered, the request waits like one whose token is checked, and the handshake's
//! time continues to run. So every refusal is an HTTP response, and a stream that has begun has its subscription.
//!
//! From then on the connection is like any other; [`Transport`] has the differences in protocol. Its first event,
//! `subscribed`, has the position where it begins; missed messages follow from the log as ordinary events, so their
//! number is not limited by the size of a reply. When the right ends, so does the subscription, and with it the stream.

use std::fmt::Write;
use std::num::NonZeroU64;

use broker_core::log::escape;
use broker_core::protocol::events::Position;
use broker_core::protocol::handshake::Request;
use broker_server::{Admission, NoRoom, Refusal, SlotIndex, Transport};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::accounts::Account;
use super::gateway::{Core, Gateway};
use super::outcome::unauthorized;
use super::params::{EXACT, Start, Target};
use super::subscribe::{Unready, put_position};

const PATH: (&str, &str) = ("/api/v1/programs/", "/events/stream");
const METHODS: &str = "GET, OPTIONS";
/// The headers that a page may send, besides those that every page may (Fetch, section 4.8).
const REQUEST_HEADERS: &str = "Authorization, Cache-Control, Last-Event-ID, X-Request-Id";

/// The program whose stream is requested.
pub(super) fn find_program(request: &Request) -> Option<String> {
    request.path_segment(PATH.0, PATH.1)
}

/// The response to a request that is not for a stream, whoever sent it.
pub(super) fn answer_at_once(request: &Request) -> Option<Refusal> {
    match request.method.as_str() {
        "GET" if request.has_body => Some(fault("body", "must be empty")),
        "GET" => None,
        "OPTIONS" => Some(preflight()),
        _ => {
            let text = "the methods of this path are GET and OPTIONS";
            let refusal = Refusal::json(405, "method_not_allowed", text);
            Some(refusal.with_header("Allow", METHODS))
        }
    }
}

fn preflight() -> Refusal {
    let answer = Refusal {
        status: 204,
        headers: Vec::new(),
        body: Vec::new(),
    };
    answer
        .with_header("Allow", METHODS)
        .with_header("Access-Control-Allow-Methods", "GET")
        .with_header("Access-Control-Allow-Headers", REQUEST_HEADERS)
        .with_header("Access-Control-Max-Age", "7200")
}

impl Gateway {
    /// Lets a page of the request's origin, which is allowed, read every response.
    pub(super) fn make_readable(
        core: &mut Core,
        slot: SlotIndex,
        request: &Request,
        account: &Account,
    ) {
        core.set_readable_by(slot, account.readers(request.origin.as_deref()));
    }

    /// Lets an identified client follow a program, or asks the application to decide.
    pub(super) fn begin_stream(
        &self,
        core: &mut Core,
        slot: SlotIndex,
        request: &Request,
        program: String,
    ) -> Admission {
        let (start, is_alive) = match read_query(request) {
            Ok(read) => read,
            Err(refusal) => return Admission::Refuse(refusal),
        };
        if is_alive {
            core.set_alive(slot);
        }
        let target = Target::Program(program);
        core.set_transport(slot, Transport::Events);
        match self.follow_stream(core, slot, &target, &start) {
            Ok(()) => Admission::Accept,
            Err(Unready::Ask) => self.ask_for_stream(core, slot, &target, &start),
            Err(Unready::Refused {
                status: 401,
                description,
                ..
            }) => Admission::Refuse(unauthorized(description)),
            Err(Unready::Refused {
                status,
                name,
                description,
            }) => Admission::Refuse(Refusal::json(status, name, description)),
        }
    }

    /// Subscribes, and sets what is sent first.
    fn follow_stream(
        &self,
        core: &mut Core,
        slot: SlotIndex,
        target: &Target,
        start: &Start,
    ) -> Result<(), Unready> {
        let is_definite = core.client(slot).stream_ticket.is_some();
        let reader = Self::reader(core, slot);
        let shared_log = self.find_open_log(core, slot, reader, target, is_definite)?;
        let (epoch, seq, id, params) = Self::follow(
            core,
            slot,
            reader,
            start,
            &shared_log,
            is_definite,
            |log, position| {
                let (next, mut params) = (position.cursor, Vec::new());
                put_position(target, log, position, next, &mut params);
                params.push(b'}');
                let seq = log.seq_at(next);
                let id = log.id_at(seq).map(str::to_owned);
                (next, (log.epoch().to_owned(), seq, id, params))
            },
        )?;
        let position = Position {
            epoch: &epoch,
            seq,
            id: id.as_deref(),
        };
        core.set_greeting(slot, position, "subscribed", &params);
        Ok(())
    }

    /// Passes the request to the application, as a call of `subscribe`.
    fn ask_for_stream(
        &self,
        core: &mut Core,
        slot: SlotIndex,
        target: &Target,
        start: &Start,
    ) -> Admission {
        core.weigh(slot);
        if core.is_crowded() {
            return Admission::Refuse(Refusal::no_room(NoRoom::Server));
        }
        let params = build_params(target, start);
        let ticket = self.ask_application(core, slot, "subscribe", params, false);
        if let Some(ticket) = ticket {
            core.client(slot).stream_ticket = NonZeroU64::new(ticket);
            return Admission::Wait;
        }
        let refusal = Refusal::json(503, "unavailable", "too many requests are waiting");
        Admission::Refuse(refusal.with_header("Retry-After", "2"))
    }

    /// Ends the request for a stream with the application's JSON-RPC error.
    pub(super) fn refuse_stream(core: &mut Core, slot: SlotIndex, error: &[u8]) {
        core.refuse(slot, &refusal_of(error));
    }
}

/// The position where a stream begins, and whether signs of life are wanted. `Last-Event-ID` takes precedence over the query, which an `EventSource` sends
/// unchanged when it reconnects by itself.
fn read_query(request: &Request) -> Result<(Start, bool), Refusal> {
    let pairs = request
        .query_pairs()
        .ok_or_else(|| fault("query", "must be percent-encoded UTF-8"))?;
    let (mut since, mut history, mut alive) = (None, None, None);
    for (name, value) in &pairs {
        let place = match name.as_str() {
            // Read by the code that looks for the token.
            "access_token" => continue,
            "since" => &mut since,
            "history" => &mut history,
            "alive" => &mut alive,
            _ => return Err(fault(name, "is unknown")),
        };
        if place.replace(value).is_some() {
            return Err(fault(name, "must not be repeated"));
        }
    }
    let last_seen = request.last_event_id.as_deref();
    let last_seen = last_seen
        .filter(|text| !text.is_empty())
        .map(|text| read_position("Last-Event-ID", text))
        .transpose()?;
    let start = match (since, history) {
        (None, None) => Start::Now,
        (Some(text), None) => read_position("since", text)?,
        (None, Some(text)) => read_history(text)?,
        (Some(_), Some(_)) => return Err(fault("history", "must not be combined with since")),
    };
    let is_alive = match alive.map(String::as_str) {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(fault("alive", "must be true or false")),
    };
    Ok((last_seen.unwrap_or(start), is_alive))
}

fn read_position(field: &str, text: &str) -> Result<Start, Refusal> {
    let Some(Position { epoch, seq, id }) = Position::parse(text) else {
        return Err(fault(field, "must be epoch:seq or epoch:seq:id"));
    };
    Ok(Start::Since {
        epoch: epoch.to_owned(),
        seq,
        id: id.map(str::to_owned),
    })
}

fn read_history(text: &str) -> Result<Start, Refusal> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let count = text
        .parse()
        .ok()
        .filter(|count| is_number && *count <= EXACT);
    count
        .map(Start::History)
        .ok_or_else(|| fault("history", "must be a number from 0 to 9007199254740992"))
}

/// The equivalent params of `subscribe`.
fn build_params(target: &Target, start: &Start) -> Vec<u8> {
    let mut params = vec![b'{'];
    target.put_member(&mut params);
    match start {
        Start::Now => {}
        Start::Since { epoch, seq, id } => {
            params.extend_from_slice(br#","since":{"epoch":""#);
            escape(epoch, &mut params);
            params.extend_from_slice(format!("\",\"seq\":{seq}").as_bytes());
            if let Some(id) = id {
                params.extend_from_slice(br#","id":""#);
                escape(id, &mut params);
                params.push(b'"');
            }
            params.push(b'}');
        }
        Start::History(count) => {
            params.extend_from_slice(format!(",\"history\":{count}").as_bytes());
        }
    }
    params.push(b'}');
    params
}

/// The longest name of a field in an error; the application enforces it.
const FIELD_CHARACTERS: usize = 100;

/// The 400 response about one field.
fn fault(field: &str, message: &str) -> Refusal {
    let mut name = Vec::new();
    let short: String = field.chars().take(FIELD_CHARACTERS).collect();
    escape(&short, &mut name);
    let name = String::from_utf8_lossy(&name);
    let mut refusal = Refusal::json(400, "invalid_request", &format!("{name}: {message}"));
    // The body is an object: it continues before its last brace.
    let mut body = String::from_utf8_lossy(&refusal.body).into_owned();
    body.pop();
    let _ = write!(
        body,
        r#","errors":[{{"field":"{name}","message":"{message}"}}]}}"#
    );
    refusal.body = body.into_bytes();
    refusal
}

/// The HTTP response for a JSON-RPC error of the application, whose `data` is the response's body.
fn refusal_of(error: &[u8]) -> Refusal {
    #[derive(Deserialize)]
    struct Failure {
        data: Map<String, Value>,
    }
    let body = serde_json::from_slice(error).map(|Failure { data }| data);
    let Some((mut body, status)) = body.ok().and_then(|body| {
        let status = u16::try_from(body.get("status")?.as_u64()?).ok()?;
        (400..600).contains(&status).then_some((body, status))
    }) else {
        return Refusal::json(500, "internal_error", "an internal error");
    };
    let retry_after = body.remove("retryAfter");
    let mut refusal = Refusal {
        status,
        headers: Vec::new(),
        body: Value::Object(body).to_string().into_bytes(),
    };
    if let Some(seconds) = retry_after {
        refusal = refusal.with_header("Retry-After", &seconds.to_string());
    }
    if status == 401 {
        refusal = refusal.with_header("WWW-Authenticate", "Bearer");
    }
    refusal
}

#[cfg(test)]
mod tests {
    use broker_core::protocol::handshake::{Head, Limits, parse};
    use proptest::prelude::*;

    use super::*;

    fn request(target: &str, headers: &str) -> Request {
        let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n{headers}\r\n");
        match parse(head.as_bytes(), &Limits::default()) {
            Ok(Head::Complete { request, .. }) => request,
            other => panic!("{other:?}"),
        }
    }

    fn start(query: &str, headers: &str) -> Result<Start, String> {
        read(query, headers).map(|(start, _)| start)
    }

    fn read(query: &str, headers: &str) -> Result<(Start, bool), String> {
        let request = request(&format!("/api/v1/programs/p/events/stream{query}"), headers);
        read_query(&request).map_err(|refusal| {
            assert_eq!(refusal.status, 400);
            let body: Value = serde_json::from_slice(&refusal.body).expect("JSON");
            body["errors"][0]["field"]
                .as_str()
                .expect("a field")
                .to_owned()
        })
    }

    fn since(epoch: &str, seq: u64, id: Option<&str>) -> Start {
        Start::Since {
            epoch: epoch.to_owned(),
            seq,
            id: id.map(str::to_owned),
        }
    }

    #[test]
    fn a_path_names_one_program() {
        for (path, program) in [
            ("/api/v1/programs/p/events/stream", Some("p")),
            ("/api/v1/programs/a%3Ab/events/stream?since=x", Some("a:b")),
            ("/api/v1/programs/a+b/events/stream", Some("a+b")),
            ("/api/v1/programs/%2F/events/stream", Some("/")),
            ("/api/v1/programs//events/stream", None),
            ("/api/v1/programs/events/stream", None),
            ("/api/v1/programs/a/b/events/stream", None),
            ("/api/v1/programs/p/events/stream/", None),
            ("/api/v1/programs/%FF/events/stream", None),
            ("/api/v1/ws", None),
        ] {
            let found = find_program(&request(path, ""));
            assert_eq!(found.as_deref(), program, "{path}");
        }
    }

    #[test]
    fn the_last_event_counts_before_the_query() {
        let came_back = "Last-Event-ID: f:9:m\r\n";
        assert_eq!(start("", ""), Ok(Start::Now));
        assert_eq!(start("?since=e:4", ""), Ok(since("e", 4, None)));
        assert_eq!(
            start("?since=e%3A4%3Am&access_token=t", ""),
            Ok(since("e", 4, Some("m")))
        );
        assert_eq!(start("?since=e:4", came_back), Ok(since("f", 9, Some("m"))));
        assert_eq!(start("?history=3", ""), Ok(Start::History(3)));
        assert_eq!(start("?history=3", came_back), Ok(since("f", 9, Some("m"))));
        assert_eq!(
            start("?since=e:4&", "Last-Event-ID:\r\n"),
            Ok(since("e", 4, None))
        );
    }

    #[test]
    fn signs_of_life_are_asked_for() {
        for (query, is_alive) in [("", false), ("?alive=false", false), ("?alive=true", true)] {
            assert_eq!(read(query, ""), Ok((Start::Now, is_alive)), "{query}");
        }
    }

    #[test]
    fn a_fault_names_its_field() {
        for (query, headers, field) in [
            ("?since=x", "", "since"),
            ("?since=", "", "since"),
            ("?since=e:1&since=e:1", "", "since"),
            ("?history=-1", "", "history"),
            ("?history=", "", "history"),
            ("?history=9007199254740993", "", "history"),
            ("?history=1&since=e:1", "", "history"),
            ("?lastEventId=e:1", "", "lastEventId"),
            ("?alive=yes", "", "alive"),
            ("?alive=true&alive=true", "", "alive"),
            ("?%22=1", "", "\""),
            ("?since=%FF", "", "query"),
            ("", "Last-Event-ID: x\r\n", "Last-Event-ID"),
        ] {
            assert_eq!(start(query, headers), Err(field.to_owned()), "{query}");
        }
    }

    #[test]
    fn methods_and_bodies_are_refused_or_answered() {
        let mut request = request("/api/v1/programs/p/events/stream", "Content-Length: 1\r\n");
        let status = |request: &Request| answer_at_once(request).map(|answer| answer.status);
        assert_eq!(status(&request), Some(400));
        for (method, expected) in [("HEAD", 405), ("POST", 405), ("OPTIONS", 204)] {
            method.clone_into(&mut request.method);
            assert_eq!(status(&request), Some(expected), "{method}");
        }
    }

    #[test]
    fn an_error_of_the_application_becomes_an_answer() {
        let error = br#"{"code":503,"message":"unavailable","data":{"error":"unavailable","error_description":"x","status":503,"retryAfter":2}}"#;
        let answer = refusal_of(error);
        assert_eq!(answer.status, 503);
        assert_eq!(answer.headers, [("Retry-After".to_owned(), "2".to_owned())]);
        let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(body["error"], "unavailable");
        assert_eq!(body.get("retryAfter"), None);
        for odd in [
            "",
            "{}",
            "[]",
            r#"{"data":{"status":200}}"#,
            r#"{"data":{"status":70000}}"#,
        ] {
            assert_eq!(refusal_of(odd.as_bytes()).status, 500, "{odd}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_asked_is_said_again_as_params(program in ".{0,20}", epoch in "[^:]{1,20}", seq in 0..EXACT, id in proptest::option::of(".{1,20}")) {
            let start = Start::Since { epoch, seq, id };
            let params = build_params(&Target::Program(program.clone()), &start);
            let text = String::from_utf8(params).expect("text");
            let read = super::super::params::parse_subscribe(Some(&text)).expect("understood");
            prop_assert_eq!(read, (Target::Program(program), start, false));
        }

        #[test]
        fn whatever_the_field_a_fault_is_json(field in ".{0,200}") {
            let body: Value = serde_json::from_slice(&fault(&field, "m").body).expect("JSON");
            let expected: String = field.chars().take(FIELD_CHARACTERS).collect();
            prop_assert_eq!(&body["errors"][0]["field"], &Value::from(expected));
        }
    }
}
