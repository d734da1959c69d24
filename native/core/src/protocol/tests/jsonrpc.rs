use proptest::prelude::*;
use serde_json::{Value, json};

use crate::protocol::jsonrpc::{
    self, Call, DEPTH, Fault, INVALID_REQUEST, Incoming, PARSE_ERROR, Rejection, VALUES,
};

fn single(text: &str) -> Call<'_> {
    match jsonrpc::parse(text) {
        Ok(Incoming::Single(call)) => call,
        other => panic!("{other:?}"),
    }
}

fn rejected(text: &str) -> (i32, String) {
    let rejection = jsonrpc::parse(text).expect_err("must be refused");
    (rejection.fault.code(), rejection.id.to_owned())
}

/// What the sender is told about a message.
fn told(text: &str) -> String {
    let rejection = jsonrpc::parse(text).expect_err("must be refused");
    rejection.fault.to_string()
}

fn invalid(id: &str) -> (i32, String) {
    (INVALID_REQUEST, id.to_owned())
}

#[test]
fn ids_and_params_stay_as_sent() {
    let call =
        single(r#" {"jsonrpc":"2.0", "method":"sub\u0061", "params":{"a": 1.0}, "id": 1.50e3} "#);
    assert_eq!(
        call,
        Call {
            id: Some("1.50e3"),
            method: "suba".into(),
            params: Some(r#"{"a": 1.0}"#)
        }
    );
    assert_eq!(
        single(r#"{"jsonrpc":"2.0","method":"m","id":"\u00e9"}"#).id,
        Some(r#""\u00e9""#)
    );
    assert_eq!(
        single(r#"{"jsonrpc":"2.0","method":"m","params":[1],"x":1}"#).params,
        Some("[1]")
    );
}

#[test]
fn a_null_id_is_a_request_and_null_params_are_none() {
    let call = single(r#"{"jsonrpc":"2.0","method":"m","params":null,"id":null}"#);
    assert_eq!((call.id, call.params), (Some("null"), None));
    assert_eq!(single(r#"{"jsonrpc":"2.0","method":"m"}"#).id, None);
}

#[test]
fn text_that_is_no_json_is_a_parse_error() {
    for text in [
        "",
        " ",
        "{",
        r#"{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]"#,
        "[1,",
        "[1]x",
        "{}{}",
    ] {
        assert_eq!(rejected(text), (PARSE_ERROR, "null".to_owned()), "{text}");
    }
}

#[test]
fn json_that_is_no_request_is_an_invalid_request() {
    for text in [
        "1",
        "null",
        "\"x\"",
        "[]",
        " [ ] ",
        "{}",
        r#"{"jsonrpc":"2.0","method":1,"params":"bar"}"#,
    ] {
        assert_eq!(rejected(text), invalid("null"), "{text}");
    }
    assert_eq!(
        rejected(r#"{"jsonrpc":"1.0","method":"m","id":7}"#),
        invalid("7")
    );
    assert_eq!(rejected(r#"{"method":"m","id":7}"#), invalid("7"));
    assert_eq!(rejected(r#"{"jsonrpc":"2.0","id":"a"}"#), invalid("\"a\""));
    assert_eq!(
        rejected(r#"{"jsonrpc":"2.0","method":"m","params":3,"id":7}"#),
        invalid("7")
    );
    for id in ["{}", "[1]", "true"] {
        assert_eq!(
            rejected(&format!(r#"{{"jsonrpc":"2.0","method":"m","id":{id}}}"#)),
            invalid("null")
        );
    }
    assert_eq!(
        rejected(r#"{"jsonrpc":"2.0","method":"m","id":1,"id":2}"#),
        invalid("null"),
        "twice"
    );
}

#[test]
fn ids_are_bounded() {
    let request = |length: usize| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"m","id":"{}"}}"#,
            "x".repeat(length - 2)
        )
    };
    assert_eq!(single(&request(256)).id.map(str::len), Some(256));
    assert_eq!(rejected(&request(257)), invalid("null"));
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth - 1), "]".repeat(depth - 1));
        format!(r#"{{"jsonrpc":"2.0","method":"m","params":{open}{close}}}"#)
    };
    assert!(jsonrpc::parse(&nested(DEPTH)).is_ok());
    assert_eq!(
        rejected(&nested(DEPTH + 1)),
        (PARSE_ERROR, "null".to_owned())
    );
    assert_eq!(rejected(&"[".repeat(1 << 20)).0, PARSE_ERROR);
    let text = format!(
        r#"{{"jsonrpc":"2.0","method":"m","params":["\"{}"]}}"#,
        "[".repeat(1000)
    );
    assert!(
        jsonrpc::parse(&text).is_ok(),
        "brackets in a string do not nest"
    );
}

#[test]
fn the_number_of_values_is_bounded() {
    // The version, the method and the params themselves are three.
    let text = |values: usize| {
        let values = vec!["1"; values - 3].join(",");
        format!(r#"{{"jsonrpc":"2.0","method":"m","params":[{values}]}}"#)
    };
    assert!(jsonrpc::parse(&text(VALUES)).is_ok());
    assert_eq!(rejected(&text(VALUES + 1)), rejected("["));
}

#[test]
fn a_batch_answers_each_element() {
    let text = r#"[{"jsonrpc":"2.0","method":"a","id":1}, 1, {"jsonrpc":"2.0","method":"b"}, [2]]"#;
    let Ok(Incoming::Batch(calls)) = jsonrpc::parse(text) else {
        panic!("a batch")
    };
    let bad = Err(Rejection {
        id: "null",
        fault: Fault::NoObject,
    });
    assert_eq!(calls.len(), 4);
    assert_eq!(
        calls[0],
        Ok(Call {
            id: Some("1"),
            method: "a".into(),
            params: None
        })
    );
    assert_eq!((&calls[1], &calls[3]), (&bad, &bad));
    assert_eq!(calls[2].as_ref().map(|call| call.id), Ok(None));
}

#[test]
fn a_batch_is_bounded() {
    let batch = |calls: usize| {
        format!(
            "[{}]",
            vec![r#"{"jsonrpc":"2.0","method":"m"}"#; calls].join(",")
        )
    };
    assert!(
        matches!(jsonrpc::parse(&batch(100)), Ok(Incoming::Batch(calls)) if calls.len() == 100)
    );
    assert_eq!(rejected(&batch(101)), invalid("null"));
    let (full, first) = (batch(100), batch(98));
    let behind = |text: &str, rest: &str| text.replace(']', rest);
    assert_eq!(
        rejected(&behind(&full, ",1,")),
        invalid("null"),
        "no more is read"
    );
    assert_eq!(rejected(&behind(&full, "x]")), rejected("["));
    assert_eq!(rejected(&behind(&full, "]x")), rejected("["));
    assert_eq!(rejected(&behind(&first, ",1,")), rejected("["));
}

#[test]
fn a_rejection_says_what_is_wrong() {
    let call = r#"{"jsonrpc":"2.0","method":"m"}"#;
    let batch = format!("[{}]", vec![call; 101].join(","));
    let long_id = format!(
        r#"{{"jsonrpc":"2.0","method":"m","id":"{}"}}"#,
        "i".repeat(300)
    );
    let id = "id: must be a string, a number or null, of at most 256 bytes as JSON";
    for (text, fault) in [
        (
            "{",
            "the message is not JSON, is nested deeper than 128 levels or has more than 131072 values",
        ),
        ("[]", "a batch has at least one call"),
        (&batch, "a batch has at most 100 calls"),
        ("1", "a call is an object"),
        (
            r#"{"jsonrpc":"2.0","method":"m","method":"n"}"#,
            "a call has each member once",
        ),
        (&long_id, id),
        (r#"{"jsonrpc":"2.0","method":"m","id":[]}"#, id),
        (
            r#"{"jsonrpc":"1.0","method":"m"}"#,
            "jsonrpc: must be the string 2.0",
        ),
        (r#"{"method":"m"}"#, "jsonrpc: must be the string 2.0"),
        (
            r#"{"jsonrpc":"2.0","method":1}"#,
            "method: must be a string",
        ),
        (
            r#"{"jsonrpc":"2.0","method":"m","params":1}"#,
            "params: must be an object or an array",
        ),
    ] {
        assert_eq!(told(text), fault, "{text}");
    }
}

#[test]
fn keys_may_be_escaped() {
    let longest = r"\u006a\u0073\u006f\u006e\u0072\u0070\u0063";
    let text = format!(
        r#"{{"{longest}":"2.0","m\u0065thod":"m","\ud800":1,"{longest}x":2,"\u0069dx":{{}}}}"#
    );
    assert_eq!(single(&text).method, "m");
    assert_eq!(single(&text).id, None);
}

#[test]
fn answers_are_json() {
    let mut out = Vec::new();
    jsonrpc::write_result("\"a\"", b"{\"x\":1}", &mut out);
    assert_eq!(out, br#"{"jsonrpc":"2.0","id":"a","result":{"x":1}}"#);
    out.clear();
    jsonrpc::write_error("1", 404, "not \"found\"", Some(b"[]"), &mut out);
    assert_eq!(
        out,
        br#"{"jsonrpc":"2.0","id":1,"error":{"code":404,"message":"not \"found\"","data":[]}}"#
    );
    out.clear();
    let rejection = jsonrpc::parse("").expect_err("empty");
    jsonrpc::write_rejection(&rejection, b"{}", &mut out);
    assert_eq!(
        out,
        br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error","data":{}}}"#
    );
    out.clear();
    jsonrpc::write_notification("event", b"{}", &mut out);
    assert_eq!(out, br#"{"jsonrpc":"2.0","method":"event","params":{}}"#);
}

/// Reads the envelope the slow way, from a whole `Value`.
fn slow(text: &str) -> Result<(Option<Value>, String, Option<Value>), i32> {
    let value: Value = serde_json::from_str(text).map_err(|_| PARSE_ERROR)?;
    let object = value.as_object().ok_or(INVALID_REQUEST)?;
    let method = object.get("method").and_then(Value::as_str);
    let id = object.get("id").cloned();
    let params = object
        .get("params")
        .filter(|params| !params.is_null())
        .cloned();
    let id_is_good = id
        .as_ref()
        .is_none_or(|id| id.is_null() || id.is_string() || id.is_number());
    let params_are_good = params
        .as_ref()
        .is_none_or(|params| params.is_object() || params.is_array());
    match method {
        Some(method)
            if object.get("jsonrpc") == Some(&json!("2.0")) && id_is_good && params_are_good =>
        {
            Ok((id, method.to_owned(), params))
        }
        _ => Err(INVALID_REQUEST),
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!("2.0")),
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::hash_map("[a-z\"\\\\]{0,3}", inner, 0..3)
                .prop_map(|map| Value::from(map.into_iter().collect::<serde_json::Map<_, _>>())),
        ]
    })
}

proptest! {
    #[test]
    fn envelopes_read_as_the_slow_way(
        version in prop_oneof![4 => Just(Some(json!("2.0"))), 1 => prop::option::of(values())],
        method in prop_oneof![4 => ".{0,9}".prop_map(|text| Some(Value::from(text))), 1 => prop::option::of(values())],
        id in prop::option::of(values()), params in prop::option::of(values()),
    ) {
        let members = [("jsonrpc", version), ("method", method), ("id", id), ("params", params)];
        let object: serde_json::Map<String, Value> =
            members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        let text = Value::from(object).to_string();
        let fast = match jsonrpc::parse(&text) {
            Ok(Incoming::Single(call)) => {
                let read = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
                Ok((call.id.map(read), call.method.into_owned(), call.params.map(read)))
            }
            Ok(Incoming::Batch(_)) => panic!("an object is no batch"),
            Err(rejection) => Err(rejection.fault.code()),
        };
        prop_assert_eq!(fast, slow(&text));
    }

    #[test]
    fn random_text_never_panics(text in ".{0,80}", json in "[\\[\\]{}\",:0-9a-z\\\\ ]{0,60}") {
        let _ = jsonrpc::parse(&text);
        let _ = jsonrpc::parse(&json);
    }
}
