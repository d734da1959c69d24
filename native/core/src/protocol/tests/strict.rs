use proptest::prelude::*;
use serde_json::Value;

use crate::protocol::strict::{Kind, Step, check, check_value};

fn fault(text: &str, depth: usize) -> Option<(Kind, String)> {
    let fault = check(text.as_bytes(), depth).err()?;
    let place = fault.place.iter().map(|step| match step {
        Step::Name(name) => format!("/{name}"),
        Step::Index(index) => format!("/{index}"),
    });
    Some((fault.kind, place.collect()))
}

#[test]
fn ordinary_json_has_no_fault() {
    for text in [
        "{}",
        " [1, 2.5e400, \"\\u0022\"] ",
        "null",
        r#"{"a":{"a":{"a":[]}},"b":[{"a":1},{"a":1}]}"#,
        "-9007199254740992",
        "12345678901234567890.5",
        "1e30",
    ] {
        assert_eq!(fault(text, 64), None, "{text}");
    }
}

#[test]
fn what_is_no_json_is_malformed() {
    for text in [
        "",
        "{",
        "[1",
        "[1,]",
        r#"{"a":1,}"#,
        "{} {}",
        "01",
        "nul",
        "{'a':1}",
        r#"{"a" 1}"#,
    ] {
        assert_eq!(
            fault(text, 64),
            Some((Kind::Malformed, String::new())),
            "{text}"
        );
    }
    for text in [&b"\"\xff\""[..], br#"{"\ud800":1}"#] {
        let kind = check(text, 64).map_err(|fault| fault.kind);
        assert_eq!(kind, Err(Kind::Malformed));
    }
}

#[test]
fn faults_have_their_place() {
    for (text, kind, place) in [
        (r#"{"a":1,"a":2}"#, Kind::Repeated, "/a"),
        (r#"{"a":1,"\u0061":2}"#, Kind::Repeated, "/a"),
        (
            r#"{"x":[{"y":0},{"y":1,"z":0,"y":2}]}"#,
            Kind::Repeated,
            "/x/1/y",
        ),
        (
            r#"{"x":{"y":[0,9007199254740993]}}"#,
            Kind::LargeInteger,
            "/x/y/1",
        ),
        ("-9007199254740993", Kind::LargeInteger, ""),
        (r#"{"a":[[1]],"b":[[[1]]]}"#, Kind::TooDeep, "/b/0/0"),
        ("[[[[", Kind::TooDeep, "/0/0/0"),
    ] {
        assert_eq!(fault(text, 3), Some((kind, place.to_owned())), "{text}");
    }
}

#[test]
fn names_are_told_apart_however_many_there_are() {
    for count in [11, 12, 13, 14, 1_000] {
        let members: Vec<_> = (0..count).map(|n| format!("\"k{n}\":0")).collect();
        let all = members.join(",");
        assert_eq!(fault(&format!("[{{{all}}},{{{all}}}]"), 2), None);
        for again in [0, count / 2, count - 1] {
            let found = fault(&format!("{{{all},\"k{again}\":0}}"), 2);
            assert_eq!(found, Some((Kind::Repeated, format!("/k{again}"))));
        }
    }
}

/// The same by the words of the rules, on pairs as they are written.
#[derive(Clone, Debug)]
enum Written {
    Leaf(String),
    Array(Vec<Written>),
    Object(Vec<(String, Written)>),
}

impl Written {
    fn text(&self) -> String {
        match self {
            Self::Leaf(text) => text.clone(),
            Self::Array(items) => {
                let items: Vec<_> = items.iter().map(Self::text).collect();
                format!("[{}]", items.join(" , "))
            }
            Self::Object(members) => {
                let one = |(name, value): &(String, Self)| format!("\"{name}\": {}", value.text());
                format!(
                    "{{{}}}",
                    members.iter().map(one).collect::<Vec<_>>().join(",")
                )
            }
        }
    }

    fn is_fine(&self, depth: usize) -> bool {
        match self {
            Self::Leaf(text) => {
                text.parse::<i128>().is_ok_and(|n| n.abs() <= 1 << 53) || text.starts_with('"')
            }
            Self::Array(items) => depth > 0 && items.iter().all(|item| item.is_fine(depth - 1)),
            Self::Object(members) => {
                let meaning = |name: &String| match serde_json::from_str(&format!("\"{name}\"")) {
                    Ok(Value::String(text)) => text,
                    _ => unreachable!("the names are strings"),
                };
                let mut names: Vec<_> = members.iter().map(|(name, _)| meaning(name)).collect();
                names.sort();
                names.dedup();
                depth > 0
                    && names.len() == members.len()
                    && members.iter().all(|(_, item)| item.is_fine(depth - 1))
            }
        }
    }
}

fn written() -> impl Strategy<Value = Written> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        (-5..5_i64).prop_map(|n| ((1 << 53) + n).to_string()),
        "\"[a-c ]{0,3}\"",
    ];
    let name = prop_oneof![
        "[ab]{0,2}",
        Just("\\u0061".to_owned()),
        Just("\\\"".to_owned())
    ];
    leaf.prop_map(Written::Leaf)
        .prop_recursive(5, 40, 16, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Written::Array),
                prop::collection::vec((name.clone(), inner), 0..4).prop_map(Written::Object),
            ]
        })
}

proptest! {
    #[test]
    fn exactly_what_breaks_no_rule_has_no_fault(value in written(), depth in 0_usize..5) {
        let text = value.text();
        prop_assert_eq!(check(text.as_bytes(), depth).is_ok(), value.is_fine(depth), "{}", text);
    }

    #[test]
    fn a_value_has_its_end_or_fault_as_soon_as_it_is_there(value in written(), depth in 0_usize..5) {
        let text = value.text();
        let whole = format!(" {text}, [\"rest\"");
        let found = check_value(whole.as_bytes(), 1, depth);
        prop_assert_eq!(found.clone().ok(), value.is_fine(depth).then_some(Some(text.len() + 1)), "{}", text);
        for cut in 1..=text.len() {
            let part = check_value(&whole.as_bytes()[..cut], 1, depth);
            let is_told = part.is_err() && found.is_err();
            prop_assert!(part == Ok(None) || is_told, "{} cut at {}: {:?}", text, cut, part);
        }
    }
}

#[test]
fn a_value_that_has_not_ended_is_told_from_one_that_never_will() {
    for text in [
        "",
        "[",
        "[1",
        "[1,",
        "{",
        "{\"a",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1,",
        "12",
        "9007199254740993",
        "[-9007199254740993",
        "-",
        "1.",
        "1e",
        "1e+",
        "tru",
        "n",
        "\"\\",
        "\"\\u00",
        "\"abc",
        "[{\"a\":[[",
    ] {
        assert_eq!(check_value(text.as_bytes(), 0, 64), Ok(None), "{text}");
    }
    for text in [
        "]", "[,", "[1 2", "{1", "{\"a\" 1", "{\"a\":}", "01x]", "-x", "1.x", "trux", "nil",
        "\"\\x", "\"\\u0g", "\"\n", "\"\u{1}",
    ] {
        let kind = check_value(format!("[{text}").as_bytes(), 1, 64).map_err(|fault| fault.kind);
        let is_number = text.starts_with("01");
        assert_eq!(
            kind,
            if is_number {
                Ok(Some(2))
            } else {
                Err(Kind::Malformed)
            },
            "{text}"
        );
    }
    assert_eq!(check_value(b"[true,", 1, 64), Ok(Some(5)));
    assert_eq!(
        check_value(b"\"\xff\"", 0, 64).map_err(|fault| fault.kind),
        Err(Kind::Malformed)
    );
}
