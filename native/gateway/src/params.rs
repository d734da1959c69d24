//! The params of native operations, parsed as strictly as at the REST door.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The target of `subscribe` and `unsubscribe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Program(String),
    Channel(String),
}

impl Target {
    /// The topic of the target in an account.
    pub fn topic(&self, account: &str) -> String {
        match self {
            Self::Program(id) => format!("{account}/program/{id}"),
            Self::Channel(name) => format!("{account}/channel/{name}"),
        }
    }

    /// Appends `"programId":"…"` or `"channel":"…"`.
    pub fn put_member(&self, out: &mut Vec<u8>) {
        let (name, value): (&[u8], _) = match self {
            Self::Program(id) => (br#""programId":""#, id),
            Self::Channel(channel) => (br#""channel":""#, channel),
        };
        out.extend_from_slice(name);
        broker_core::log::escape(value, out);
        out.push(b'"');
    }
}

/// The position where a subscription begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Now,
    Since {
        epoch: String,
        seq: u64,
        /// The id of the message seen at `seq`.
        id: Option<String>,
    },
    /// Before the last pushes, this many of them.
    History(u64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subscribe {
    #[serde(rename = "programId")]
    program_id: Option<String>,
    channel: Option<String>,
    since: Option<Since>,
    history: Option<u64>,
    access_token: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Since {
    epoch: String,
    seq: u64,
    id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unsubscribe {
    #[serde(rename = "programId")]
    program_id: Option<String>,
    channel: Option<String>,
    /// Ending one's own subscription needs no right.
    #[serde(rename = "access_token")]
    _token: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Servertime {
    #[serde(rename = "requestTime")]
    request_time: Option<i64>,
}

/// Integers beyond this are not exact in every JSON reader (RFC 7493, section 2.2).
pub(super) const EXACT: u64 = 1 << 53;

/// The longest message id in a cursor; the application enforces it.
const ID_BYTES: usize = 64;

/// The params of `subscribe`, and whether they contain a token; None when they are unusual in any way.
pub(super) fn parse_subscribe(params: Option<&str>) -> Option<(Target, Start, bool)> {
    let params: Subscribe = parse(params?)?;
    let target = parse_target(params.program_id, params.channel)?;
    let start = match (params.since, params.history) {
        (None, None) => Start::Now,
        (Some(since), None) if since.seq <= EXACT && is_sound(since.id.as_deref()) => {
            Start::Since {
                epoch: since.epoch,
                seq: since.seq,
                id: since.id,
            }
        }
        (None, Some(count)) if count <= EXACT => Start::History(count),
        _ => return None,
    };
    Some((target, start, params.access_token.is_some()))
}

fn is_sound(id: Option<&str>) -> bool {
    id.is_none_or(|id| (1..=ID_BYTES).contains(&id.len()))
}

/// The params of `unsubscribe`; None when they are unusual.
pub(super) fn parse_unsubscribe(params: Option<&str>) -> Option<Target> {
    let params: Unsubscribe = parse(params?)?;
    parse_target(params.program_id, params.channel)
}

/// The `requestTime` of `servertime`; None when the params are unusual.
#[expect(clippy::option_option, reason = "odd, absent, or there")]
pub(super) fn parse_servertime(params: Option<&str>) -> Option<Option<i64>> {
    let Some(params) = params else {
        return Some(None);
    };
    let time = parse::<Servertime>(params)?.request_time;
    time.is_none_or(|time| time.unsigned_abs() <= EXACT)
        .then_some(time)
}

/// An object with these members; serde would also accept an array.
fn parse<'a, T: Deserialize<'a>>(params: &'a str) -> Option<T> {
    params
        .starts_with('{')
        .then(|| serde_json::from_str(params).ok())
        .flatten()
}

fn parse_target(program_id: Option<String>, channel: Option<String>) -> Option<Target> {
    match (program_id, channel) {
        (Some(id), None) => Some(Target::Program(id)),
        (None, Some(channel)) => Some(Target::Channel(channel)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_params_are_read() {
        let program = Target::Program("p".to_owned());
        assert_eq!(
            parse_subscribe(Some(r#"{"programId":"p","since":null}"#)),
            Some((program.clone(), Start::Now, false))
        );
        let since = Start::Since {
            epoch: "e".to_owned(),
            seq: 4,
            id: None,
        };
        assert_eq!(
            parse_subscribe(Some(r#"{"programId":"p","since":{"epoch":"e","seq":4}}"#)),
            Some((program.clone(), since, false))
        );
        let since = Start::Since {
            epoch: "e".to_owned(),
            seq: 4,
            id: Some("i".to_owned()),
        };
        assert_eq!(
            parse_subscribe(Some(
                r#"{"programId":"p","since":{"epoch":"e","seq":4,"id":"i"}}"#
            )),
            Some((program.clone(), since, false))
        );
        assert_eq!(
            parse_subscribe(Some(r#"{"programId":"p","history":0}"#)),
            Some((program.clone(), Start::History(0), false))
        );
        let params = r#"{"programId":"p","access_token":"t"}"#;
        assert_eq!(
            parse_subscribe(Some(params)),
            Some((program.clone(), Start::Now, true))
        );
        assert_eq!(parse_unsubscribe(Some(params)), Some(program));
        assert_eq!(
            parse_servertime(Some(r#"{"requestTime":-5}"#)),
            Some(Some(-5))
        );
        assert_eq!(parse_servertime(None), Some(None));
    }

    #[test]
    fn odd_params_are_left_to_the_application() {
        for odd in [
            "{}",
            "[]",
            r#"["p"]"#,
            r#"{"programId":1}"#,
            r#"{"programId":"p","channel":"c"}"#,
            r#"{"programId":"p","more":1}"#,
            r#"{"programId":"p","programId":"p"}"#,
            r#"{"programId":"p","history":-1}"#,
            r#"{"programId":"p","history":1.0}"#,
            r#"{"programId":"p","history":9007199254740993}"#,
            r#"{"programId":"p","since":{"epoch":"e"}}"#,
            r#"{"programId":"p","since":{"epoch":"e","seq":0,"id":""}}"#,
            r#"{"programId":"p","since":{"epoch":"e","seq":1},"history":1}"#,
        ] {
            assert_eq!(parse_subscribe(Some(odd)), None, "{odd}");
        }
        assert_eq!(parse_subscribe(None), None);
        assert_eq!(
            parse_servertime(Some(r#"{"requestTime":9007199254740993}"#)),
            None
        );
        assert_eq!(parse_servertime(Some("[1]")), None);
    }
}
