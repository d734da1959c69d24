//! Reads the request for a gateway, as the ingress passes it on.
//!
//! The ingress passes on only `GET /api/v1/connect` without a body and without anything else that the API would have
//! to look at (`deployments/ingress.py`); other requests reach the API. So a head of another form is malformed here.

use httparse::{EMPTY_HEADER, Status};

const PATH: &str = "/api/v1/connect";
const PARAMETER: &str = "?programId=";
/// The buffer of `HAProxy` is smaller.
const MOST_BYTES: usize = 64 << 10;
/// The bound of `HAProxy` is 101.
const MOST_HEADERS: usize = 128;

/// What is asked, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    pub host: &'a str,
    pub program: Option<&'a str>,
    /// Given by the client or the ingress; visible ASCII.
    pub id: &'a str,
    /// What the ingress says of itself and of its client.
    pub ingress: &'a [u8],
    /// All `X-Forwarded-For` headers, joined.
    pub forwarded_for: Option<String>,
}

/// What a buffer begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head<'a> {
    Partial,
    /// It takes this many bytes.
    Complete(Asked<'a>, usize),
    Malformed,
}

/// Reads the head at the beginning of `input`. `ingress` is the name of the ingress's header, in lower case.
#[must_use]
pub fn read<'a>(input: &'a [u8], ingress: &str) -> Head<'a> {
    let mut table = [EMPTY_HEADER; MOST_HEADERS];
    let mut raw = httparse::Request::new(&mut table);
    match raw.parse(input) {
        Ok(Status::Complete(bytes)) => {
            let asked = raw
                .path
                .filter(|_| raw.method == Some("GET"))
                .and_then(read_program)
                .and_then(|program| read_headers(raw.headers, ingress, program));
            asked.map_or(Head::Malformed, |asked| Head::Complete(asked, bytes))
        }
        Ok(Status::Partial) if input.len() < MOST_BYTES => Head::Partial,
        Ok(Status::Partial) | Err(_) => Head::Malformed,
    }
}

#[expect(
    clippy::option_option,
    reason = "malformed, or with or without a program"
)]
fn read_program(target: &str) -> Option<Option<&str>> {
    let query = target.strip_prefix(PATH)?;
    if query.is_empty() || query == "?" {
        return Some(None);
    }
    let program = query.strip_prefix(PARAMETER)?;
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || b"._~:-".contains(&byte);
    ((1..=128).contains(&program.len()) && program.bytes().all(is_id)).then_some(Some(program))
}

fn read_headers<'a>(
    headers: &[httparse::Header<'a>],
    ingress: &str,
    program: Option<&'a str>,
) -> Option<Asked<'a>> {
    let mut asked = Asked {
        host: "",
        program,
        id: "",
        ingress: b"",
        forwarded_for: None,
    };
    for header in headers {
        let name = header.name;
        if name.eq_ignore_ascii_case("host") {
            asked.host = std::str::from_utf8(header.value).ok()?;
        } else if name.eq_ignore_ascii_case("x-request-id") {
            asked.id = std::str::from_utf8(header.value).ok()?;
        } else if name.eq_ignore_ascii_case(ingress) {
            asked.ingress = header.value;
        } else if name.eq_ignore_ascii_case("x-forwarded-for") {
            let value = std::str::from_utf8(header.value).ok()?;
            match &mut asked.forwarded_for {
                Some(before) => {
                    before.push(',');
                    before.push_str(value);
                }
                none => *none = Some(value.to_owned()),
            }
        }
    }
    Some(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str = "Host: demo.test\r\nX-Request-Id: r1\r\nX-Broker-Ingress: key public 1.2.3.4\r\n\
        X-Forwarded-For: 5.6.7.8\r\nx-forwarded-for: 9.9.9.9\r\n\r\n";

    #[expect(clippy::option_option, reason = "as `read_program`")]
    fn asked(line: &str) -> Option<Option<String>> {
        let text = format!("{line}\r\n{REST}");
        match read(text.as_bytes(), "x-broker-ingress") {
            Head::Complete(asked, bytes) => {
                assert_eq!(bytes, text.len());
                assert_eq!((asked.host, asked.id), ("demo.test", "r1"));
                assert_eq!(asked.ingress, b"key public 1.2.3.4");
                assert_eq!(asked.forwarded_for.as_deref(), Some("5.6.7.8,9.9.9.9"));
                Some(asked.program.map(str::to_owned))
            }
            Head::Malformed => None,
            Head::Partial => panic!("it is whole"),
        }
    }

    #[test]
    fn only_the_form_that_the_ingress_passes_on_is_read() {
        assert_eq!(asked("GET /api/v1/connect HTTP/1.1"), Some(None));
        assert_eq!(asked("GET /api/v1/connect? HTTP/1.1"), Some(None));
        let program = asked("GET /api/v1/connect?programId=final-1 HTTP/1.1");
        assert_eq!(program, Some(Some("final-1".to_owned())));
        for other in [
            "HEAD /api/v1/connect HTTP/1.1",
            "GET /api/v1/connect/ HTTP/1.1",
            "GET /api/v1/connect?programId= HTTP/1.1",
            "GET /api/v1/connect?programId=a%20b HTTP/1.1",
            "GET /api/v1/connect?programId=a&x=1 HTTP/1.1",
            "GET http://demo.test/api/v1/connect HTTP/1.1",
            "GET\u{1}",
        ] {
            assert_eq!(asked(other), None, "{other}");
        }
    }

    #[test]
    fn a_head_may_come_in_parts_up_to_a_bound() {
        let text = format!("GET /api/v1/connect HTTP/1.1\r\n{REST}");
        for end in 0..text.len() {
            assert_eq!(read(&text.as_bytes()[..end], "x"), Head::Partial, "{end}");
        }
        let long = format!(
            "GET /api/v1/connect HTTP/1.1\r\nX: {}",
            "x".repeat(MOST_BYTES)
        );
        assert_eq!(read(long.as_bytes(), "x"), Head::Malformed);
    }
}
