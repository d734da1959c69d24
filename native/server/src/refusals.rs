//! Refusals of handshakes as HTTP responses, and which origins may read them.

/// An HTTP response that ends a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// The limit that a connection exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The server's.
    Server,
    /// Its address's.
    Address,
}

impl Refusal {
    /// A JSON error, worded as the HTTP door does. `name` and `description` contain nothing that has to be escaped.
    #[must_use]
    pub fn json(status: u16, name: &str, description: &str) -> Self {
        let body = format!(
            r#"{{"error":"{name}","error_description":"{description}","status":{status}}}"#
        );
        Self {
            status,
            headers: Vec::new(),
            body: body.into_bytes(),
        }
    }

    /// The same with one more header.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The refusal of a connection for which there is no room.
    #[must_use]
    pub fn no_room(reason: NoRoom) -> Self {
        match reason {
            NoRoom::Server => Self::json(503, "unavailable", "this gateway is full")
                .with_header("Retry-After", "5"),
            NoRoom::Address => {
                Self::json(429, "slow_down", "too many connections from this address")
                    .with_header("Retry-After", "10")
            }
        }
    }
}

/// The headers that let pages read a response; `readable_by` is their origin, or `*` for any.
#[must_use]
pub(super) fn headers_for(readable_by: Option<&str>) -> Vec<(&str, &str)> {
    let Some(origin) = readable_by else {
        return Vec::new();
    };
    let mut headers = vec![
        ("Access-Control-Allow-Origin", origin),
        (
            "Access-Control-Expose-Headers",
            "Retry-After, WWW-Authenticate, X-Request-Id",
        ),
    ];
    if origin != "*" {
        headers.push(("Vary", "Origin"));
    }
    headers
}
