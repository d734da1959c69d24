//! The outcome of a call, and its encoding.

use broker_core::protocol::jsonrpc;
use broker_server::Refusal;

/// The outcome of a call.
pub(super) enum Outcome {
    Result(Vec<u8>),
    Error(Vec<u8>),
    /// The application decides.
    Ask,
    /// The reply follows when the call has been counted.
    Later,
}

impl Outcome {
    /// The error that the HTTP door would return.
    pub fn error(status: u16, name: &str, description: &str) -> Self {
        Self::Error(error(status, name, description))
    }

    /// The whole message; None for a notification.
    pub fn render(&self, id: Option<&str>) -> Option<Vec<u8>> {
        let id = id?;
        let mut out = Vec::new();
        match self {
            Self::Result(json) => jsonrpc::write_result(id, json, &mut out),
            Self::Error(json) => jsonrpc::write_error_object(id, json, &mut out),
            Self::Ask | Self::Later => {
                unreachable!("a call that waits is rendered when it is answered")
            }
        }
        Some(out)
    }
}

/// A JSON-RPC error object with the body that the HTTP door would return.
pub(super) fn error(status: u16, name: &str, description: &str) -> Vec<u8> {
    let body = Refusal::json(status, name, description).body;
    jsonrpc::build_error(i32::from(status), name, Some(&body))
}

/// The HTTP response for a client that needs a token, or another one.
pub(super) fn unauthorized(description: &str) -> Refusal {
    Refusal::json(401, "invalid_token", description).with_header("WWW-Authenticate", "Bearer")
}
