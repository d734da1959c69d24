//! JSON-RPC messages.

use serde_json::value::RawValue;

use crate::protocol::json::Scanner;
use crate::protocol::jsonrpc::{self, Call, Incoming, Rejection};

/// What is accepted is JSON of the right shape, and every answer to it is JSON too.
///
/// # Panics
/// When a rule is broken.
pub fn envelope(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let mut scanner = Scanner::new(text, jsonrpc::VALUES);
    let value = scanner.value(jsonrpc::DEPTH);
    let is_whole = value.is_some() && scanner.is_over();
    assert!(!is_whole || is_json(input), "only JSON is taken");
    let brackets = input.iter().filter(|byte| b"[{".contains(byte)).count();
    assert!(
        is_whole || brackets > jsonrpc::DEPTH || !is_json(input),
        "JSON is taken"
    );
    match jsonrpc::parse(text) {
        Ok(Incoming::Single(call)) => {
            assert!(is_json(text.as_bytes()), "only JSON is accepted");
            check_call(&call);
        }
        Ok(Incoming::Batch(elements)) => {
            assert!((1..=jsonrpc::BATCH).contains(&elements.len()));
            for element in &elements {
                match element {
                    Ok(call) => check_call(call),
                    Err(rejection) => check_rejection(rejection),
                }
            }
        }
        Err(rejection) => check_rejection(&rejection),
    }
    // Strings that clients choose come back in notifications.
    let mut out = Vec::new();
    jsonrpc::write_notification(text, b"{}", &mut out);
    assert!(is_json(&out));
}

fn check_call(call: &Call<'_>) {
    if let Some(id) = call.id {
        assert!(id.len() <= jsonrpc::ID_BYTES && is_json(id.as_bytes()));
        let mut out = Vec::new();
        jsonrpc::write_result(id, b"{}", &mut out);
        assert!(is_json(&out));
    }
    if let Some(params) = call.params {
        assert!(params.starts_with(['{', '[']) && is_json(params.as_bytes()));
    }
}

fn check_rejection(rejection: &Rejection<'_>) {
    let mut out = Vec::new();
    jsonrpc::write_rejection(rejection, b"{}", &mut out);
    assert!(is_json(&out), "{}", String::from_utf8_lossy(&out));
    let text = format!("\"{}\"", rejection.fault);
    assert!(is_json(text.as_bytes()), "{text}");
}

fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<&RawValue>(text).is_ok()
}
