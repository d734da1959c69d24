//! Fuzz targets: one function for each parser of outside bytes, and one for the log.
//!
//! A target takes any bytes, and panics when a rule is broken that should hold for all of them. `native/gateway/fuzz`
//! runs them with coverage feedback; the tests here run them on the resulting corpus, whole and damaged. Most targets
//! are those of the core. Those of the parsers in the server and the gateway are added here.

#[cfg(test)]
mod tests;

use broker_core::protocol::handshake::{Head, Limits, parse};
use broker_core::protocol::jsonrpc::{self, Call, Incoming};
use broker_server::{Network, client_address};
use serde_json::Value;

pub use broker_core::fuzzing::{answers, frames, log, proxy};

use super::params::{parse_servertime, parse_subscribe, parse_unsubscribe};
use super::votes::parse_vote;

/// Request heads, and the address that a proxy names in one.
///
/// # Panics
/// When a rule is broken.
pub fn handshake(input: &[u8]) {
    broker_core::fuzzing::handshake(input);
    if let Ok(Head::Complete { request, .. }) = parse(input, &Limits::default()) {
        let trusted: Vec<_> = Network::parse("0.0.0.0/0").into_iter().collect();
        let forwarded_for = request.forwarded_for.as_deref();
        let _ = client_address([127, 0, 0, 1].into(), forwarded_for, &trusted);
    }
}

/// JSON-RPC messages, and the params of natively answered calls.
///
/// # Panics
/// When a rule is broken.
pub fn envelope(input: &[u8]) {
    broker_core::fuzzing::envelope(input);
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    match jsonrpc::parse(text) {
        Ok(Incoming::Single(call)) => check_params(&call),
        Ok(Incoming::Batch(elements)) => elements.iter().flatten().for_each(check_params),
        Err(_) => {}
    }
}

/// Params of any shape are parsed or left to the application, and a parsed target becomes JSON again.
fn check_params(call: &Call<'_>) {
    let params = call.params;
    let targets = [
        parse_subscribe(params).map(|(target, ..)| target),
        parse_unsubscribe(params),
    ];
    for target in targets.into_iter().flatten() {
        let mut out = vec![b'{'];
        target.put_member(&mut out);
        out.push(b'}');
        assert!(serde_json::from_slice::<Value>(&out).is_ok());
    }
    parse_servertime(params);
    for is_answer in [false, true] {
        params.and_then(|params| parse_vote(params, is_answer));
    }
}
