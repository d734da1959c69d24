use proptest::prelude::*;
use serde_json::value::RawValue;

use crate::protocol::json::Scanner;

/// The value that `text` is, and nothing else.
fn whole(text: &str, depth: usize) -> Option<&str> {
    let mut scanner = Scanner::new(text, usize::MAX);
    let value = scanner.value(depth)?;
    scanner.is_over().then_some(value)
}

fn agrees_with_serde(text: &str) {
    let slow: Option<&RawValue> = serde_json::from_str(text).ok();
    assert_eq!(whole(text, 128), slow.map(RawValue::get), "{text:?}");
}

#[test]
fn values_are_taken_one_by_one() {
    let mut scanner = Scanner::new(" [1,\n{\"a\\\"\":[]}] , \"x\" \t", usize::MAX);
    assert_eq!(scanner.value(3), Some("[1,\n{\"a\\\"\":[]}]"));
    assert!(!scanner.take(b';') && scanner.take(b','));
    assert!(!scanner.is_over());
    assert_eq!(scanner.value(0), Some("\"x\""));
    assert!(scanner.is_over());
}

#[test]
fn keys_have_a_colon() {
    let mut scanner = Scanner::new(r#" "a\n" : 1"#, usize::MAX);
    assert_eq!(
        (scanner.key(), scanner.value(0)),
        (Some(r#""a\n""#), Some("1"))
    );
    assert_eq!(Scanner::new(r#""a" 1"#, usize::MAX).key(), None);
    assert_eq!(Scanner::new("a:1", usize::MAX).key(), None);
}

#[test]
fn depth_is_that_of_the_value() {
    for (text, depth) in [("1", 0), ("[]", 1), ("[[],[]]", 2), (r#"{"a":[{}]}"#, 3)] {
        assert!(whole(text, depth).is_some(), "{text}");
        assert!(depth == 0 || whole(text, depth - 1).is_none(), "{text}");
    }
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(whole(&nested(128), 128).is_some());
    assert!(whole(&nested(129), 128).is_none());
    let objects = r#"{"a":"#.repeat(128) + "1" + &"}".repeat(128);
    assert!(whole(&objects, 128).is_some() && whole(&objects, 127).is_none());
    assert!(whole(&(objects + "}"), 128).is_none());
}

#[test]
fn values_are_counted() {
    for (text, values) in [("1", 1), ("[]", 1), (r#"[1,"",{"a":[null]}]"#, 6)] {
        assert_eq!(Scanner::new(text, values).value(9), Some(text));
        assert_eq!(Scanner::new(text, values - 1).value(9), None, "{text}");
    }
    let mut scanner = Scanner::new("1,[2],3", 3);
    assert!(scanner.value(0).is_some() && scanner.take(b','));
    assert!(scanner.value(1).is_some() && scanner.take(b','));
    assert!(scanner.value(0).is_none());
}

#[test]
fn the_grammar_is_that_of_serde() {
    let numbers =
        "0 -0 1 01 -01 - -a 1. .1 1.5 1.e1 1e 1e5 1E+5 1e-05 1e+ 0x1 1_0 +1 1e5.2 --1 00 1e400";
    let words = "true false null tru truee nulll True nul NaN";
    let strings =
        r#""" "a "a"b "\" "\\" "\q" "\u00e9" "\u00g9" "\u12" "\ud800" "\/" "'" 'a' "é" "\é""#;
    let containers = r#"[] [ ] [1,] [,1] [1 2] [1}} {} {1:2} {"a"} {"a":} {"a":1,} {"a":1 "b":2} {"a":1,"a":2} [[] ][ {]} ] } , : [1]] {"a":1]"#;
    for list in [numbers, words, strings, containers] {
        list.split(' ').for_each(agrees_with_serde);
    }
    // At, below and above what is looked at together.
    for length in [0, 1, 15, 16, 17, 31, 32, 33] {
        let pad = "x".repeat(length);
        let space = " ".repeat(length);
        for text in [
            format!("\"{pad}\""),
            format!("\"{pad}\u{1}\""),
            format!("\"{pad}\u{1f}\""),
            format!("\"{pad}\u{7f}é\\n\""),
            format!("\"{pad}\n\""),
            format!("\"{pad}"),
            format!("{space}1{space}"),
            format!("[{space}1{space},\t\r\n{space}2{space}]{space}"),
            format!("{space}\u{b}1"),
            format!("1{space}\u{a0}"),
            space,
        ] {
            agrees_with_serde(&text);
        }
    }
}

proptest! {
    #[test]
    fn texts_read_as_with_serde(
        text in "[\\[\\]{}\",:0-2eE+.ntu\\\\ -]{0,40}",
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "[", "]", "{", "}", ",", ":", "\"a\"", "\"\\u00e9\"", "1", "-2.5e3", "true", "null", " ", "\n",
            ]),
            0..14,
        ),
    ) {
        agrees_with_serde(&text);
        agrees_with_serde(&pieces.concat());
    }

    #[test]
    fn damaged_values_read_as_with_serde(
        list in prop::collection::vec((".{0,20}", any::<f64>(), prop::option::of(any::<bool>())), 0..4),
        at in any::<prop::sample::Index>(), damage in any::<char>(),
    ) {
        let text = serde_json::to_string_pretty(&list).expect("JSON");
        agrees_with_serde(&text);
        let mut damaged: Vec<char> = text.chars().collect();
        let at = at.index(damaged.len());
        damaged[at] = damage;
        agrees_with_serde(&damaged.iter().collect::<String>());
        damaged.remove(at);
        agrees_with_serde(&damaged.iter().collect::<String>());
    }
}
