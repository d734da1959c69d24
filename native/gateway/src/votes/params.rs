//! The params of `respond` and `impression`, as far as they are clearly valid.
//!
//! Other params are left to the application, so all errors come from there. So this parser is stricter than the
//! application: text has no escapes, and the text of a visitor or session is visible ASCII.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The longest text of a visitor or session.
const TEXT_BYTES: usize = 128;
/// The longest list of all options, with spaces.
const CHOICE_BYTES: usize = 6_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Params<'a> {
    account_id: Option<&'a str>,
    project_id: Option<&'a str>,
    program_id: &'a str,
    measure_name: &'a str,
    context_id: &'a str,
    visitor_id: Option<&'a str>,
    session_id: Option<&'a str>,
    #[serde(default, borrow, deserialize_with = "keep_raw")]
    measure_value: Option<Raw<'a>>,
}

/// JSON text, `null` too.
struct Raw<'a>(&'a str);

/// One vote or one impression. Names are as sent, to be looked up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Vote<'a> {
    pub account: Option<&'a str>,
    pub project: Option<&'a str>,
    pub program: &'a str,
    pub measure: &'a str,
    pub context: &'a str,
    pub visitor: Option<&'a str>,
    pub session: Option<&'a str>,
    /// The chosen options in the order sent; empty for an impression.
    pub choice: Vec<u16>,
}

/// A vote whose params are clearly valid, whatever the poll is; None leaves it to the application.
pub(crate) fn parse_vote(params: &str, is_answer: bool) -> Option<Vote<'_>> {
    if !params.starts_with('{') {
        return None; // serde would also accept an array
    }
    let params: Params<'_> = serde_json::from_str(params).ok()?;
    let choice = match (params.measure_value, is_answer) {
        (Some(raw), true) => parse_choice(raw.0)?,
        (None, false) => Vec::new(),
        _ => return None,
    };
    let texts = [params.visitor_id, params.session_id];
    if !texts.into_iter().flatten().all(is_plain) {
        return None;
    }
    Some(Vote {
        account: params.account_id,
        project: params.project_id,
        program: params.program_id,
        measure: params.measure_name,
        context: params.context_id,
        visitor: params.visitor_id,
        session: params.session_id,
        choice,
    })
}

fn keep_raw<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<Raw<'a>>, D::Error> {
    let raw: &'de RawValue = Deserialize::deserialize(from)?;
    Ok(Some(Raw(raw.get())))
}

/// One index or a non-empty list of such indexes; a repeated index is found when the vote is encoded.
fn parse_choice(raw: &str) -> Option<Vec<u16>> {
    if !raw.starts_with('[') {
        return serde_json::from_str(raw).ok().map(|index| vec![index]);
    }
    if raw.len() > CHOICE_BYTES {
        return None;
    }
    let choice: Vec<u16> = serde_json::from_str(raw).ok()?;
    (!choice.is_empty()).then_some(choice)
}

fn is_plain(text: &str) -> bool {
    (1..=TEXT_BYTES).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACE: &str = r#""programId":"p","measureName":"m","contextId":"c""#;

    fn parse(more: &str) -> Option<Vec<u16>> {
        let params = format!("{{{PLACE}{more}}}");
        parse_vote(&params, true).map(|vote| vote.choice)
    }

    #[test]
    fn plain_votes_are_read() {
        assert_eq!(parse(r#","measureValue":999"#), Some(vec![999]));
        assert_eq!(parse(r#","measureValue":[ 2, 0 ]"#), Some(vec![2, 0]));
        assert_eq!(
            parse(r#","measureValue":0,"visitorId":null,"accountId":null"#),
            Some(vec![0])
        );
        let params = format!(r#"{{{PLACE},"visitorId":"v ~","sessionId":"s"}}"#);
        let shown = parse_vote(&params, false).expect("plain");
        assert_eq!((shown.visitor, shown.session), (Some("v ~"), Some("s")));
        assert_eq!(
            (shown.program, shown.measure, shown.context),
            ("p", "m", "c")
        );
        let longest = "x".repeat(128);
        assert!(parse(&format!(r#","measureValue":0,"visitorId":"{longest}""#)).is_some());
    }

    #[test]
    fn all_else_is_left_to_the_application() {
        for more in [
            "",
            r#","measureValue":null"#,
            r#","measureValue":-1"#,
            r#","measureValue":-0"#,
            r#","measureValue":1.0"#,
            r#","measureValue":1e0"#,
            r#","measureValue":"1""#,
            r#","measureValue":true"#,
            r#","measureValue":70000"#,
            r#","measureValue":[]"#,
            r#","measureValue":[[1]]"#,
            r#","measureValue":[null]"#,
            r#","measureValue":0,"more":1"#,
            r#","measureValue":0,"idempotencyKey":"k""#,
            r#","measureValue":0,"measureValue":0"#,
            r#","measureValue":0,"programId":"p""#,
            r#","measureValue":0,"visitorId":"""#,
            r#","measureValue":0,"visitorId":1"#,
            r#","measureValue":0,"visitorId":"a\nb""#,
            r#","measureValue":0,"visitorId":"Zo\u00eb""#,
            r#","measureValue":0,"visitorId":"Zoë""#,
            "\u{2c}\"measureValue\":0,\"visitorId\":\"\u{7f}\"",
        ] {
            assert_eq!(parse(more), None, "{more}");
        }
        let longer = "x".repeat(129);
        assert!(parse(&format!(r#","measureValue":0,"visitorId":"{longer}""#)).is_none());
        let endless = "0,".repeat(4_000);
        assert!(parse(&format!(r#","measureValue":[{endless}0]"#)).is_none());
        let shown = format!(r#"{{{PLACE},"measureValue":null}}"#);
        assert_eq!(parse_vote(&shown, false), None);
        assert_eq!(parse_vote("[]", true), None);
        assert_eq!(parse_vote("{}", true), None);
    }

    proptest! {
        #[test]
        fn whatever_is_sent_is_read_or_left(params in r#"\{("[a-zA-Z]{0,13}":("[ -~]{0,3}"|[0-9\[\],]{0,6}),?){0,8}\}"#) {
            let _ = (parse_vote(&params, true), parse_vote(&params, false));
        }

        #[test]
        fn a_list_is_read_as_it_is(choice in prop::collection::vec(0u16..1_000, 1..20)) {
            prop_assert_eq!(parse(&format!(r#","measureValue":{choice:?}"#)), Some(choice));
        }
    }
}
